//! Beside C callsight 0.5.0: files, streams and rings cross over in both directions. Where it is
//! wrong, the test states the right answer, and ours gives it.

use std::process::Command;

use callsight_tests::{Built, Calls, Drain, Hooks, Program, Report, Ring, Server, Shell, peer};

const FANOUT: &str = include_str!("../programs/fanout.c");
const PRODUCER: &str = include_str!("../programs/producer.c");

/// The peer's report over `traces/`.
fn peer_report(program: &Built) -> Report {
    let mut command = Command::new(peer("callsight"));
    command.args(["analyze", "traces", "--exe", "./prog", "--format", "json", "--top", "0"]);
    let ran = program.shell().command(&mut command, "the peer's analyze");
    assert_eq!(ran.code, 0, "{ran}");
    Report::parse(&ran.stdout)
}

fn our_report(program: &Built) -> Report {
    Report::of(&program.shell(), &["traces", "--exe", "./prog"])
}

fn true_calls(program: &Program, arguments: &str) -> Calls {
    program.build(Hooks::Count).counted(arguments).1.calls
}

#[test]
fn its_analyzer_reads_our_files() {
    let program = Program::c(FANOUT);
    let traced = program.build(Hooks::Ours);
    traced.tracing().ok("./prog");
    let report = peer_report(&traced);
    assert_eq!(report.calls(), true_calls(&program, ""));
    assert_eq!(report.number("unmatched_exits"), 0);
    assert_eq!(report.number("threads"), 26);
}

#[test]
fn our_analyzer_reads_its_files() {
    let program = Program::c(FANOUT);
    let traced = program.build(Hooks::Peer);
    traced.tracing().ok("./prog");
    let report = our_report(&traced);
    assert_eq!(report.calls(), true_calls(&program, ""));
    assert_eq!(report.number("unmatched_exits"), 0);
    assert_eq!(report.number("threads"), 26);
}

#[test]
fn both_analyzers_say_the_same_of_its_files() {
    let program = Program::c(FANOUT);
    let traced = program.build(Hooks::Peer);
    traced.tracing().ok("./prog 20");
    let (ours, its) = (our_report(&traced), peer_report(&traced));
    for key in ["events", "threads", "functions", "unmatched_exits", "unclosed_enters"] {
        assert_eq!(ours.number(key), its.number(key), "{key}");
    }
    let leaf = |report: &Report| report.row("leaf")["self_ms"].as_f64().expect("self_ms");
    let (ours, its) = (leaf(&ours), leaf(&its));
    assert!((ours - its).abs() <= 0.001 * its.max(1.0), "leaf: {ours} ms by us, {its} ms by it");
}

#[test]
fn its_server_takes_our_drain() {
    let program = Program::c(FANOUT);
    let traced = program.build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let mut server = Server::peers(&shell);
    let drain = Drain::ours(&shell, &ring, server.port);
    shell.env("TRACE_SHM", ring.name()).env("TRACE_SHM_SIZE", "67108864").ok("./prog");
    let drained = drain.finish();
    assert_eq!(drained.code, 0, "{drained}");
    server.wait_for("trace.stream.1.");
    server.stop();
    let calls = true_calls(&program, "");
    assert_eq!(peer_report(&traced).calls(), calls, "{drained}");
    assert_eq!(our_report(&traced).calls(), calls, "{drained}");
}

/// Runs a program that its drain can follow: it must be seen attached, and not be over before.
fn run_for_its_drain(shell: &Shell, ring: &Ring) {
    let shell = shell.clone().env("TRACE_SHM", ring.name()).env("TRACE_SHM_SIZE", "67108864");
    shell.ok("./prog 40000 3 2000");
}

#[test]
fn our_server_takes_its_drain() {
    let program = Program::c(PRODUCER);
    let traced = program.build(Hooks::Peer);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drain = Drain::peers(&shell, &ring, server.port);
    run_for_its_drain(&shell, &ring);
    let drained = drain.finish();
    server.stop();
    let report = our_report(&traced);
    assert_eq!(report.calls(), true_calls(&program, "40000 3 0"), "{drained}");
    assert_eq!(report.number("unmatched_exits"), 0);
}

#[test]
fn its_drain_reads_our_ring_in_version_2() {
    let program = Program::c(PRODUCER);
    let traced = program.build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing().env("TRACE_RING", "2"));
    let mut server = Server::peers(&shell);
    let drain = Drain::peers(&shell, &ring, server.port);
    run_for_its_drain(&shell, &ring);
    let drained = drain.finish();
    server.wait_for("trace.stream.1.");
    server.stop();
    let calls = true_calls(&program, "40000 3 0");
    assert_eq!(peer_report(&traced).calls(), calls, "{drained}");
    assert_eq!(our_report(&traced).calls(), calls, "{drained}");
}

#[test]
fn our_drain_reads_its_ring_and_ends_after_a_short_run() {
    let program = Program::c(PRODUCER);
    let traced = program.build(Hooks::Peer);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let server = Server::ours(&shell, &["--out", "traces"]);
    shell.clone().env("TRACE_SHM", ring.name()).ok("./prog 1000 1 0");
    // Its own drain waits for ever here: the program came and went between two of its looks.
    let drained = Drain::ours(&shell, &ring, server.port).finish();
    assert_eq!(drained.code, 0, "{drained}");
    server.stop();
    assert_eq!(our_report(&traced).calls(), true_calls(&program, "1000 1 0"), "{drained}");
}

#[test]
fn more_than_ten_of_its_segments_are_read_in_numeric_order() {
    let program = Program::c(PRODUCER);
    let traced = program.build(Hooks::Peer);
    let ran = traced.tracing().env("TRACE_SEG_MB", "1").run("./prog 400000 1 0; ls traces | wc -l");
    let segments: u32 = ran.stdout.lines().last().and_then(|n| n.parse().ok()).expect("a number");
    assert!(segments > 10, "{ran}");
    // Read as text, segment 10 comes before segment 2: its analyzer then loses a call of batch.
    let report = our_report(&traced);
    assert_eq!(report.calls(), true_calls(&program, "400000 1 0"));
    assert_eq!(report.number("unmatched_exits"), 0);
    let max = report.row("batch")["max_ms"].as_f64().expect("max_ms");
    assert!(max <= report.total_ms("main"), "one call of batch cannot outlast main");
}

/// One fact its runtime or analyzer gets wrong, on a small program of its own.
fn right_answer(text: &str, arguments: &str, calls: &[(&str, u64)]) -> Report {
    let (_, report) = Program::c(text).compared(arguments);
    for (name, number) in calls {
        assert_eq!(report.calls_of(name), *number, "{name}");
    }
    report
}

#[test]
fn a_thread_that_outlives_main_keeps_its_calls() {
    let text = r#"
        #include <pthread.h>
        #include <unistd.h>
        static volatile int ready;
        static int leaf(int x) { return x + 1; }
        static void *work(void *p) {
            for (int i = 0; i < 10000; i++) leaf(i);
            ready = 1;
            for (;;) pause();
            return p;
        }
        int main(void) {
            pthread_t t;
            pthread_create(&t, 0, work, 0);
            while (!ready) usleep(100);
            return 0;
        }"#;
    let report = right_answer(text, "", &[("leaf", 10_000), ("work", 1)]);
    assert_eq!(report.number("unclosed_enters"), 1, "work");
}

#[test]
fn a_program_that_ends_by_underscore_exit_keeps_its_calls() {
    right_answer(PRODUCER, "5000 1 0 quit", &[("leaf", 5000), ("main", 1)]);
}

#[test]
fn functions_still_running_at_exit_are_in_the_report_with_their_time() {
    let text = r#"
        #include <stdlib.h>
        #include <unistd.h>
        static void deep(int n) { if (n) deep(n - 1); else { usleep(60000); exit(3); } }
        int main(void) { deep(3); }"#;
    let report = right_answer(text, "", &[("deep", 4), ("main", 1)]);
    assert_eq!(report.number("unclosed_enters"), 5);
    assert!(report.total_ms("main") >= 60.0);
}

#[test]
fn functions_left_by_longjmp_are_in_the_report() {
    let text = r#"
        #include <setjmp.h>
        static jmp_buf here;
        static void deep(int n) { if (n) deep(n - 1); else longjmp(here, 1); }
        static int protect(void) { if (!setjmp(here)) deep(5); return 1; }
        int main(void) { int n = 0; while (n < 100) n += protect(); return 0; }"#;
    let report = right_answer(text, "", &[("deep", 600), ("protect", 100), ("main", 1)]);
    assert_eq!(report.number("unclosed_enters"), 0);
}

#[test]
fn recursion_does_not_add_up_beyond_the_run() {
    let text = r#"
        #include <stdio.h>
        static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
        int main(void) { printf("%d\n", fib(20)); return 0; }"#;
    let report = right_answer(text, "", &[("fib", 21_891)]);
    assert!(report.total_ms("fib") <= report.total_ms("main"));
}

#[test]
fn late_destructors_are_recorded() {
    let text = r#"
        #include <stdlib.h>
        static int leaf(int x) { return x + 1; }
        static void at_exit(void) { leaf(1); }
        __attribute__((destructor(101))) static void last(void) { leaf(2); }
        int main(void) { atexit(at_exit); return leaf(-1); }"#;
    right_answer(text, "", &[("leaf", 3), ("at_exit", 1), ("last", 1)]);
}

#[test]
fn a_missing_parent_of_the_trace_folder_loses_events_but_says_so() {
    let traced = Program::c(PRODUCER).build(Hooks::Ours);
    let shell = traced.shell().env("TRACE_ENABLE", "1");
    let ran = shell.env("TRACE_DIR", "no/such/folder").run("exec ./prog 1000 1 0");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "done 1000\n"), "{ran}");
}
