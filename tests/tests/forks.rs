//! Forks: children, workers, what goes on when its parent has ended or given something up. Every call
//! is that of the process that made it, once.

use callsight_tests::{Drain, Hooks, Program, Report, Ring, Server, skip, streamed_in};

#[test]
fn a_forked_child_leaves_functions_it_never_entered() {
    let program = Program::c(
        r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static int leaf(int x) { return x + 1; }
        static pid_t split(void) { leaf(0); pid_t child = fork(); leaf(1); return child; }
        static pid_t outer(void) { pid_t child = split(); leaf(2); return child; }
        int main(void) {
            pid_t child = outer();
            if (child) waitpid(child, 0, 0);
            leaf(3); return 0; }"#,
    );
    program.compared_with("", &[("leaf", 7), ("split", 1), ("outer", 1), ("main", 1)]);
}

/// Events of `programs/renounce.c` with what it does after it has given something up.
const FAMILY_EVENTS: u64 = 2 * (1 + 2 * 101) + 4 * 2 * 1001 + 2 * 2 * 101;

#[test]
fn forked_workers_record_into_the_ring_whatever_their_parent_gave_up() {
    let test = "forked_workers_record_into_the_ring_whatever_their_parent_gave_up";
    let program = Program::c(include_str!("../programs/renounce.c")).build(Hooks::Ours);
    let all = ["", "rights", "root", "shm", "addresses", "descriptors", "files"];
    // A version 2 ring does not say whether it is still read, so its name is looked for first.
    for (version, all) in [("3", &all[..]), ("2", &all[1..2])] {
        for what in all {
            let _ = std::fs::remove_dir(program.folder().join("jail"));
            let shell = program.tracing().env("TRACE_RING", version);
            let (ran, drained, report) =
                streamed_in(&shell, &program, &format!("'{what}'"), 1 << 20);
            if ran.code == 77 {
                skip(test, &format!("this user may not give up: {what}"));
                continue;
            }
            assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{what}: {ran}");
            let jail = program.folder().join("jail/traces");
            assert!(!jail.exists(), "{what}: a capture of its own");
            // A batch of a version 2 ring that a process holds at `_exit` is in no count.
            if version == "3" {
                let events = (report.number("events"), report.lost());
                assert_eq!(events, (FAMILY_EVENTS, 0), "{what}: {drained}\n{:?}", report.notices());
                assert_eq!(report.calls_of("leaf"), 4400, "{what}");
            } else {
                assert!(report.calls_of("leaf") >= 2200, "{what}: {:?}", report.notices());
            }
        }
    }
}

/// Forks, ends, and leaves a child that calls leaf again when the ring at `argv[1]` has lost its name.
const LATE_CHILD: &str = r#"
    #include <unistd.h>
    static int leaf(int x) { return x + 1; }
    static void work(int n) { while (n--) leaf(n); }
    __attribute__((no_instrument_function)) static void outlive(const char *path) {
        close(1);
        close(2);
        for (int i = 0; i < 30000 && access(path, F_OK) == 0; i++) usleep(1000);
    }
    int main(int argc, char **argv) {
        work(10);
        if (argc > 1 && fork() == 0) { outlive(argv[1]); work(100); _exit(0); }
        return 0;
    }"#;

#[test]
fn a_child_whose_parents_ring_is_finished_looks_for_its_name_again() {
    let program = Program::c(LATE_CHILD).build(Hooks::Ours);
    let ring = Ring::new();
    let shell = program.tracing();
    let server = Server::ours(&shell, &["--out", "traces"]);
    let first = Drain::ours(&shell, &ring, server.port);
    let small = shell.clone().env("TRACE_SHM", ring.name()).env("TRACE_SHM_SIZE", "1000000");
    let ran = small.run(&format!("exec ./prog /dev/shm{}", ring.name()));
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(first.finish().code, 0);
    assert_eq!(Drain::ours(&shell, &ring, server.port).finish().code, 0);
    server.stop();
    let report = program.report();
    assert_eq!((report.number("events"), report.lost()), (2 * (1 + 11 + 101), 0));
    assert_eq!(report.calls_of("leaf"), 110);
}

#[test]
fn what_forked_workers_cannot_make_a_capture_for_is_counted_in_their_parents() {
    let test = "what_forked_workers_cannot_make_a_capture_for_is_counted_in_their_parents";
    let program = Program::c(include_str!("../programs/renounce.c")).build(Hooks::Ours);
    for what in ["rights", "addresses", "descriptors", "files"] {
        let (ran, report) = program.traced(what);
        if ran.code == 77 {
            skip(test, &format!("this user may not give up: {what}"));
            continue;
        }
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{what}: {ran}");
        let (events, lost) = (report.number("events"), report.lost());
        assert_eq!(events + lost, FAMILY_EVENTS, "{what}: {:?}", report.notices());
        assert_eq!(report.losses().len(), usize::from(lost > 0), "{what}: {:?}", report.losses());
        // What takes room for addresses can be made do with less.
        assert!(lost > 0 || what == "addresses", "{what}: {:?}", report.notices());
        let shell = program.tracing().env("TRACE_MODE", "summary");
        shell.ok(&format!("exec ./prog {what}"));
        let report = Report::of(&program.shell(), &["traces", "--exe", "prog"]);
        let calls = report.calls_of("leaf") + report.calls_of("work") + report.calls_of("main");
        assert_eq!(calls + report.lost(), FAMILY_EVENTS / 2, "{what}: {:?}", report.notices());
    }
}

#[test]
fn vfork_and_posix_spawn_leave_the_parent_as_it_was() {
    let program = Program::c(
        r#"
        #define _GNU_SOURCE
        #include <spawn.h>
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        extern char **environ;
        static int leaf(int x) { return x + 1; }
        static void spawn(void) {
            pid_t child;
            char *argv[] = { "true", 0 };
            posix_spawnp(&child, "true", 0, 0, argv, environ);
            waitpid(child, 0, 0);
        }
        int main(void) {
            for (int i = 0; i < 20; i++) {
                leaf(i);
                pid_t child = vfork();
                if (!child) _exit(0);
                waitpid(child, 0, 0);
                spawn();
            }
            puts("done"); return 0; }"#,
    );
    program.compared_with("", &[("leaf", 20), ("spawn", 20), ("main", 1)]).clean();
}

/// A thread makes the first hooked call of all, while main forks; both processes make a thousand calls.
const FORKS_AT_ONCE: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#define PLAIN __attribute__((no_instrument_function))
__attribute__((noinline)) static int leaf(int count) { return count + 1; }
PLAIN static void *thousand(void *nothing)
{
    for (int call = 0; call < 1000; call++)
        leaf(call);
    return nothing;
}
PLAIN int main(int count, char **words)
{
    pthread_t thread;
    pthread_create(&thread, NULL, thousand, NULL);
    for (volatile long turn = atol(words[1]); turn > 0; turn--)
        ;
    pid_t child = fork();
    if (child == 0) {
        thousand(NULL);
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    pthread_join(thread, NULL);
    return count == 2 && status == 0 ? 0 : 1;
}
"#;

#[test]
fn a_fork_while_another_thread_makes_the_first_call_costs_neither_process_anything() {
    let program = Program::c(FORKS_AT_ONCE).build(Hooks::Ours);
    for turns in (0..300_000).step_by(10_000) {
        program.tracing().ok(&format!("timeout 20 ./prog {turns}"));
        let report = program.report();
        assert_eq!(report.calls()["leaf"], [2000], "{turns}: {:?}", report.notices());
        // A fork before there is a call is a run of its own.
        assert_eq!(report.lost(), 0, "{turns}: {:?}", report.notices());
    }
}

#[test]
fn a_fork_while_another_thread_makes_the_ring_goes_into_that_ring() {
    let program = Program::c(FORKS_AT_ONCE).build(Hooks::Ours);
    for turns in (0..6_000_000).step_by(500_000) {
        let (ring, shell) = (Ring::new(), program.tracing());
        let name = ring.name().to_owned();
        let ran = shell.env("TRACE_SHM", &name).ok(&format!(
            "callsight drain --file traces {name} 2>said & drain=$!\n\
             timeout 20 ./prog {turns}\nwait $drain\nls traces\ncat said >&2"
        ));
        let report = program.report();
        assert_eq!(report.calls()["leaf"], [2000], "{turns}: {ran} {:?}", report.notices());
        // A fork before there is a call is a run of its own.
        assert_eq!(report.lost(), 0, "{turns}: {:?}", report.notices());
    }
}

/// Children of `vfork`, which run in their parent's memory, make ten calls before the thread that waits for
/// them has made one. What else there is: nothing (`alone`), a thread that comes afterwards (`after`), one
/// that waits meanwhile (`waiting`), one that has made calls already (`before`), and that one with no call by
/// the first (`never`).
const GUESTS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define PLAIN __attribute__((no_instrument_function))
static volatile int has_begun, may_go_on;
__attribute__((noinline)) static int leaf(int count) { return count + 1; }
PLAIN static void calls(int count)
{
    while (count--)
        leaf(count);
}
PLAIN static void *thread(void *begins)
{
    pthread_setname_np(pthread_self(), "other");
    if (begins)
        calls(1);
    has_begun = 1;
    while (!may_go_on)
        usleep(100);
    calls(500);
    return begins;
}
PLAIN int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    pthread_t other;
    int begins = !strcmp(what, "before") || !strcmp(what, "never");
    if (begins || !strcmp(what, "waiting")) {
        pthread_create(&other, NULL, thread, begins ? &other : NULL);
        while (!has_begun)
            usleep(100);
    }
    for (int child = 0; child < 5; child++) {
        pid_t pid = vfork();
        if (pid == 0) {
            leaf(0);
            leaf(1);
            _exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    if (!strcmp(what, "waiting"))
        calls(50);
    may_go_on = 1;
    if (!strcmp(what, "after"))
        pthread_create(&other, NULL, thread, NULL);
    if (strcmp(what, "never") && strcmp(what, "waiting"))
        calls(50);
    if (strcmp(what, "alone"))
        pthread_join(other, NULL);
    return 0;
}
"#;

#[test]
fn what_a_vfork_child_calls_before_its_parent_is_counted_and_leaves_the_parent_as_it_was() {
    let program = Program::c(GUESTS).build(Hooks::Ours);
    let all = [("alone", 50), ("after", 550), ("waiting", 550), ("before", 551), ("never", 501)];
    for (what, calls) in all {
        let counts =
            |report: &Report| (report.calls_of("leaf"), report.lost(), report.number("threads"));
        let threads = if what == "alone" || what == "never" { 1 } else { 2 };
        let (ran, report) = program.traced(what);
        assert_eq!(ran.code, 0, "files, {what}: {ran}");
        assert_eq!(counts(&report), (calls, 20, threads), "files, {what}: {:?}", report.notices());
        let shell = program.tracing();
        let (ran, drained, report) = streamed_in(&shell, &program, what, 1 << 20);
        assert_eq!(ran.code, 0, "ring, {what}: {ran}");
        assert_eq!(counts(&report), (calls, 20, threads), "ring, {what}: {drained}");
        // The first that makes a call of its own is not wanted, and tells nothing.
        if what == "waiting" {
            program.tracing().env("TRACE_THREADS", "other").ok("exec ./prog waiting");
            let report = program.report();
            let counts = (report.calls_of("leaf"), report.lost());
            assert_eq!(counts, (500, 20), "{:?}", report.notices());
        }
        program.tracing().env("TRACE_MODE", "summary").ok(&format!("exec ./prog {what}"));
        let report = Report::of(&program.shell(), &["traces", "--exe", "prog"]);
        let counts = (report.calls_of("leaf"), report.lost());
        assert_eq!(counts, (calls, 10), "summary, {what}: {:?}", report.notices());
    }
}

/// Forty children in which two threads make their first calls while the third, which never makes one, is
/// suspended by its `vfork`. They end at once, with no last word.
const GUESTS_AT_ONCE: &str = r#"
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#define PLAIN __attribute__((no_instrument_function))
static volatile int may_go_on;
__attribute__((noinline)) static int leaf(int count) { return count + 1; }
PLAIN static void *thread(void *nothing)
{
    while (!may_go_on)
        ;
    for (int call = 0; call < 5; call++)
        leaf(call);
    return nothing;
}
PLAIN static void round_of(int number)
{
    pthread_t threads[2];
    for (int each = 0; each < 2; each++)
        pthread_create(&threads[each], NULL, thread, NULL);
    may_go_on = 1;
    for (volatile int turn = number * 500; turn > 0; turn--)
        ;
    pid_t child = vfork();
    if (child == 0) {
        leaf(0);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    for (int each = 0; each < 2; each++)
        pthread_join(threads[each], NULL);
}
PLAIN int main(void)
{
    for (int number = 0; number < 40; number++) {
        pid_t child = fork();
        if (child == 0) {
            round_of(number);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    return 0;
}
"#;

#[test]
fn what_a_vfork_child_calls_while_its_parents_threads_begin_is_counted() {
    let program = Program::c(GUESTS_AT_ONCE).build(Hooks::Ours);
    let (ran, report) = program.traced("");
    assert_eq!(ran.code, 0, "{ran}");
    let counts = |report: &Report| (report.calls_of("leaf"), report.lost());
    assert_eq!(counts(&report), (400, 80), "files: {:?}", report.notices());
    program.tracing().env("TRACE_MODE", "summary").ok("exec ./prog");
    let report = Report::of(&program.shell(), &["traces", "--exe", "prog"]);
    assert_eq!(counts(&report), (400, 40), "summary: {:?}", report.notices());
}
