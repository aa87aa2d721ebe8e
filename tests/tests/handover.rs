//! Drains that go on for others: what one held that was killed is in no stream, and counted.

use std::thread;
use std::time::Duration;

use callsight_tests::{Drain, Hooks, Program, Ring, Server, Shell};

/// Waits for somebody to open `go`, then has threads in turn call `leaf`: when it ends, nobody goes on
/// with their numbers.
const IN_TURN: &str = r#"
    #include <fcntl.h>
    #include <pthread.h>
    #include <unistd.h>
    enum { THREADS = 400, CALLS = 1500 };
    static int leaf(int x) { return x + 1; }
    __attribute__((no_instrument_function)) static void *work(void *p) {
        for (int i = 0; i < CALLS; i++) leaf(i);
        return p;
    }
    __attribute__((no_instrument_function)) int main(void) {
        leaf(0);
        close(open("go", O_RDONLY));
        for (int i = 0; i < THREADS; i++) {
            pthread_t thread;
            if (pthread_create(&thread, 0, work, 0)) return 9;
            pthread_join(thread, 0);
        }
        return 0;
    }"#;
const EVENTS: u64 = 2 * (400 * 1500 + 1);
/// Most records that are no calls which a thread, or the process, has in the data.
const NOTES: u64 = 64;

#[test]
fn what_a_killed_drain_held_of_threads_that_have_ended_is_counted() {
    let program = Program::c(IN_TURN).build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), program.tracing());
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drain = Drain::ours(&shell, &ring, server.port);
    shell.ok("mkfifo go");
    thread::scope(|scope| {
        let traced = shell.clone().env("TRACE_SHM", ring.name()).env("TRACE_SHM_SIZE", "1048576");
        let running = scope.spawn(move || traced.run("exec ./prog"));
        // When the first call is stored, the server has greeted.
        wait_for_capture(&shell);
        server.freeze();
        shell.ok(": > go");
        assert_eq!(running.join().expect("no panic").code, 0);
    });
    drain.kill();
    server.kill();
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drained = Drain::ours(&shell, &ring, server.port).finish();
    let said = server.stop();
    assert!(drained.code == 0 && drained.stderr.contains("unaccounted=0"), "{drained}\n{said}");
    let report = program.report();
    let (events, lost) = (report.number("events"), report.lost());
    let all = EVENTS..=EVENTS + NOTES * 402;
    assert!(all.contains(&(events + lost)), "{events} + {lost}: {:?}", report.notices());
    assert!(lost > EVENTS / 2, "the drain gave nothing away: {:?}", report.notices());
    assert!(said.contains(&format!(", {lost} dropped, unaccounted=0")), "{lost}: {said}");
}

#[track_caller]
fn wait_for_capture(shell: &Shell) {
    let there = "test $(cat traces/trace.stream.1.*.bin 2>/dev/null | wc -c) -gt 400";
    shell.ok(&format!("for i in $(seq 600); do {there} && exit 0; sleep 0.1; done; exit 1"));
    thread::sleep(Duration::from_millis(300));
}
