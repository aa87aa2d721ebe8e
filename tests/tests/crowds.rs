//! More processes or threads than a ring has places for: they go on, and every call is recorded or
//! counted.

use callsight_tests::{Hooks, Program, skip, streamed_in};

/// Children that live all at once, more than the table of a ring has entries. The parent and those in
/// the table end first; of the others, a third is killed.
const CROWD: &str = r#"
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>
    enum { COUNT = 300, FIRST = 150 };
    static int leaf(int x) { return x + 1; }
    static int job(int n) { int s = 0; while (n--) s = leaf(s); return s; }
    __attribute__((no_instrument_function)) static void child(int at, int ready, int go) {
        char byte = 0;
        job(20);
        write(ready, &byte, 1);
        read(go, &byte, 1);
        if (at >= FIRST) {
            /* Longer than a drain waits for a quiet process that ended its recording. */
            usleep(2500000);
            job(20);
            if (at % 3 == 0) kill(getpid(), SIGKILL);
        }
        _exit(0);
    }
    int main() {
        int ready[2], go[2];
        char byte;
        if (pipe(ready) || pipe(go)) return 9;
        for (int at = 0; at < COUNT; at++) {
            pid_t pid = fork();
            if (pid < 0) return 8;
            if (!pid) { close(go[1]); child(at, ready[1], go[0]); }
            if (read(ready[0], &byte, 1) != 1) return 7;
        }
        puts("all");
        return 0;
    }"#;

#[test]
fn more_processes_than_the_table_of_a_ring_has_entries_lose_nothing() {
    let program = Program::c(CROWD).build(Hooks::Ours);
    let shell = program.tracing().env("TRACE_DIR", "/proc/nowhere");
    let (ran, drained, report) = streamed_in(&shell, &program, "", 16 << 20);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "all\n", ""), "{ran}");
    // Of main both, of each call of job 42.
    report.adds_up(2 + 42 * 300 + 42 * 150);
    assert_eq!(report.lost(), 0, "{drained}\n{:?}", report.notices());
    assert_eq!(report.calls_of("job"), 450);
}

#[test]
fn threads_that_a_version_2_ring_has_no_place_for_are_counted() {
    let program = Program::c(include_str!("../programs/crowd.c")).build(Hooks::Ours);
    let shell = program.tracing().env("TRACE_RING", "2");
    let (ran, _, report) = streamed_in(&shell, &program, "peak once 4500 20", 16 << 20);
    if ran.code == 3 {
        return skip(
            "threads of version 2",
            "this machine lets a process have fewer than 4500 threads",
        );
    }
    assert_eq!(ran.code, 0, "{ran}");
    report.adds_up(40 * 4500);
    assert!(report.lost() >= 40 * (4500 - 4096), "{:?}", report.notices());
}
