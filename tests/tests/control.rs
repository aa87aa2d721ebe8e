//! Record, pause and stop, as the drain tells a ring's processes by the ring's control word.

use callsight_format::{
    COMMAND_PAUSE, COMMAND_RECORD, COMMAND_STOP, RING_CONTROL_OFFSET, RingControl,
};
use callsight_tests::{Drain, Hooks, Program, Report, Ring, Server, streamed};

/// A program that gives itself the commands a drain would give it, by the body of its `main`.
fn commanded(main: &str) -> Program {
    let text = format!(
        r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <pthread.h>
        #include <signal.h>
        #include <stddef.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <sys/wait.h>
        #include <unistd.h>
        #define QUIET __attribute__((no_instrument_function))
        enum {{ RECORD = {COMMAND_RECORD}, PAUSE = {COMMAND_PAUSE}, STOP = {COMMAND_STOP} }};
        static volatile unsigned *word;
        QUIET static void command(unsigned what) {{
            if (!word) {{
                char path[300];
                snprintf(path, sizeof path, "/dev/shm%s", getenv("TRACE_SHM"));
                int file = open(path, O_RDWR);
                char *ring = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
                close(file);
                word = (unsigned *)(ring + {});
            }}
            *word = what;
        }}
        QUIET static void forbid_system_calls(void) {{
            struct sock_filter filter[] = {{
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            }};
            struct sock_fprog program = {{ 4, filter }};
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(1);
        }}
        static int before(int x) {{ return x + 1; }}
        static int paused(int x) {{ return x + 1; }}
        static int after(int x) {{ return x + 1; }}
        QUIET static void times(int n, int (*function)(int)) {{
            int x = 0;
            while (n--) x = function(x);
        }}
        static void left(void) {{ command(PAUSE); times(1000, paused); }}
        static void outer(void) {{ left(); command(RECORD); times(10, after); }}
        static void *thread(void *unused) {{ times(100, paused); return unused; }}
        static pthread_t other;
        QUIET static void start(void *(*function)(void *)) {{ pthread_create(&other, 0, function, 0); }}
        QUIET static void be_killed(int unused) {{ (void)unused; raise(SIGKILL); }}
        QUIET static void child_ends(void (*end)(int)) {{
            if (!fork()) {{ times(1000, paused); end(0); }}
            wait(0);
        }}
        static pthread_barrier_t met;
        QUIET static void meet_and_wait(void) {{ pthread_barrier_wait(&met); pause(); }}
        static void *lives_on(void *unused) {{ times(100, paused); meet_and_wait(); return unused; }}
        QUIET static void thread_ends(void) {{ start(thread); pthread_join(other, 0); }}
        QUIET int main(void) {{ {main} return 0; }}"#,
        RING_CONTROL_OFFSET + std::mem::offset_of!(RingControl, command),
    );
    Program::c(&text)
}

/// The report over a run in a ring with room for everything.
fn report(main: &str) -> Report {
    let (ran, drained, report) = streamed(&commanded(main).build(Hooks::Ours), "", 16 << 20);
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(report.number("unmatched_exits"), 0, "{drained}{:?}", report.notices());
    report
}

/// The same in a ring of 64 pages of 1 KiB that nobody empties before the program is over.
fn report_of_small_ring(main: &str) -> Report {
    let program = commanded(main).build(Hooks::Ours);
    let ring = Ring::new();
    let shell = program.tracing().env("TRACE_SHM", ring.name());
    let ran = shell.clone().env("TRACE_SHM_SIZE", "65536").run("exec ./prog");
    assert_eq!(ran.code, 0, "{ran}");
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drained = Drain::ours(&shell, &ring, server.port).finish();
    server.stop();
    assert_eq!(drained.code, 0, "{drained}");
    program.report()
}

/// Says that `threads` threads were paused, each once.
#[track_caller]
fn tells_pauses_of(report: &Report, threads: u64) {
    let notices = report.notices().join("\n");
    let said = format!("recording was paused {threads} times in {threads} threads");
    assert!(notices.contains(&said), "{notices}");
    assert_eq!(report.number("pauses"), threads);
}

/// Most calls whose enter is in a page of that ring: what is recorded before a pause is noticed.
const PAGE_CALLS: u64 = (16 << 10) / 32 / 2;

#[test]
fn a_pause_leaves_out_and_loses_nothing() {
    let report = report(
        "times(1000, before); command(PAUSE); times(100000, paused); command(RECORD); \
         times(1000, after);",
    );
    assert_eq!((report.calls_of("before"), report.calls_of("after")), (1000, 1000));
    assert!(report.calls_of("paused") <= PAGE_CALLS, "{} calls", report.calls_of("paused"));
    assert_eq!(report.lost(), 0, "{:?}", report.notices());
}

#[test]
fn what_was_open_in_a_pause_is_told_as_that() {
    let report = report("times(10, before); outer(); times(10, after);");
    assert_eq!((report.calls_of("left"), report.calls_of("outer")), (1, 1));
    assert_eq!(report.calls_of("after"), 20);
    assert_eq!((report.number("pauses"), report.lost()), (1, 0), "{:?}", report.notices());
    // `left` returned in the pause, and perhaps the `paused` that noticed it; `outer` lasted longer.
    let cut = report.number("calls_cut_by_loss");
    assert!(cut == 1 || cut == 2, "{cut}");
    assert_eq!(report.number("uncertain_calls"), cut + 1);
    let notices = report.notices().join("\n");
    assert!(notices.contains("recording was paused 1 time in 1 thread"), "{notices}");
}

#[test]
fn a_paused_process_sees_its_threads_and_children_paused_and_all_of_them_go_on() {
    let report = report(
        "times(1000, before); command(PAUSE); times(1000, paused); \
         thread_ends(); \
         if (!fork()) { times(1000, paused); command(RECORD); times(1000, after); exit(0); } \
         wait(0); times(1000, after); \
         command(PAUSE); times(1000, paused); command(RECORD); times(1000, after);",
    );
    assert_eq!((report.calls_of("before"), report.calls_of("thread")), (1000, 0));
    assert_eq!(report.calls_of("after"), 3000);
    assert!(report.calls_of("paused") <= 2 * PAGE_CALLS);
    assert_eq!(report.lost(), 0, "{:?}", report.notices());
}

#[test]
fn neither_a_pause_nor_its_end_makes_a_system_call() {
    let report = report(
        "before(0); command(RECORD); forbid_system_calls(); times(1000, before); \
         command(PAUSE); times(1000, paused); command(RECORD); times(1000, after); \
         syscall(SYS_exit_group, 0);",
    );
    assert_eq!((report.calls_of("before"), report.calls_of("after")), (1001, 1000));
    assert_eq!(report.lost(), 0, "{:?}", report.notices());
}

#[test]
fn whoever_made_calls_in_a_pause_and_does_not_go_on_has_told_it() {
    let report = report(
        "times(1000, before); command(PAUSE); times(1000, paused); \
         child_ends(exit); child_ends(_exit); child_ends(be_killed); thread_ends(); \
         pthread_barrier_init(&met, 0, 2); start(lives_on); pthread_barrier_wait(&met);",
    );
    assert_eq!((report.calls_of("before"), report.calls_of("thread")), (1000, 0));
    // Three children, two threads, and the one that ends the program.
    tells_pauses_of(&report, 6);
    assert_eq!(report.lost(), 0, "{:?}", report.notices());
}

#[test]
fn a_pause_of_a_full_ring_is_told_by_its_drain_and_no_loss() {
    let report = report_of_small_ring(
        "times(10000, before); command(PAUSE); times(1000, paused); thread_ends();",
    );
    assert_eq!(report.calls_of("paused"), 0);
    tells_pauses_of(&report, 2);
    assert_eq!(report.number("events") + report.lost(), 2 * 10_000, "{:?}", report.notices());
}

#[test]
fn what_comes_behind_a_pause_finds_room_in_the_ring() {
    let report = report_of_small_ring(
        "before(0); command(PAUSE); for (int i = 0; i < 200; i++) thread_ends(); \
         command(RECORD); times(100, after);",
    );
    assert_eq!((report.calls_of("after"), report.lost()), (100, 0), "{:?}", report.notices());
    assert!(report.number("pauses") > 1, "{:?}", report.notices());
}

#[test]
fn what_comes_after_a_stop_is_counted() {
    let report = report("times(1000, before); command(STOP); times(100000, after);");
    assert_eq!(report.calls_of("before"), 1000);
    let stored = report.number("events") - 2 * 1000;
    assert!(stored <= 2 * PAGE_CALLS, "{stored} events after the stop");
    assert_eq!(stored + report.lost(), 200_000, "{:?}", report.notices());
}
