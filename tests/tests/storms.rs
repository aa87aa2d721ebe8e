//! Many processes and threads at once, against the independent count.

use callsight_tests::{Hooks, Program, Report, streamed};

const STORM: &str = include_str!("../programs/storm.c");
const FANOUT: &str = include_str!("../programs/fanout.c");

/// Calls of functions that do the same in every run.
fn calls(report: &Report) -> [u64; 4] {
    ["leaf", "small", "work", "spin"].map(|name| report.calls_of(name))
}

fn truth(forks: &str) -> [u64; 4] {
    let (ran, counts) = Program::c(STORM).build(Hooks::Count).counted(forks);
    assert_eq!(ran.stdout, "bad 0\n");
    ["leaf", "small", "work", "spin"].map(|name| counts.calls[name].iter().sum())
}

#[test]
fn forks_among_running_threads_lose_and_share_nothing_in_files() {
    let program = Program::c(STORM).build(Hooks::Ours);
    let ran = program.tracing().env("TRACE_MAX_MB", "0").run("exec ./prog 60");
    assert_eq!(ran.stdout, "bad 0\n", "{ran}");
    let report = program.report();
    assert_eq!(calls(&report), truth("60"));
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}

#[test]
fn forks_among_running_threads_lose_and_share_nothing_in_a_ring() {
    let program = Program::c(STORM).build(Hooks::Ours);
    let (ran, drained, report) = streamed(&program, "60", 256 << 20);
    assert_eq!(ran.stdout, "bad 0\n", "{ran}");
    // Children live and die between two looks of the drain.
    assert!(drained.all().contains("unaccounted=0"), "{drained}");
    assert_eq!(calls(&report), truth("60"));
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}

#[test]
fn more_threads_than_pages_do_not_starve_each_other() {
    let program = Program::c(FANOUT);
    let (_, counts) = program.build(Hooks::Count).counted("2000");
    let (_, drained, report) = streamed(&program.build(Hooks::Ours), "2000", 4096);
    let (delivered, lost) = (report.number("events"), report.lost());
    assert_eq!(delivered + lost, counts.events(), "{drained}");
    // Four pages of 30 events: what is kept for ever by threads that wait would be 120.
    assert!(delivered > 1000, "only {delivered} events came through: {drained}");
}

#[test]
fn wrapping_counts_every_event_that_it_gives_up() {
    let program = Program::c(FANOUT);
    let (_, counts) = program.build(Hooks::Count).counted("");
    let traced = program.build(Hooks::Ours);
    traced.tracing().env("TRACE_MAX_MB", "4").env("TRACE_FULL", "wrap").ok("./prog");
    let report = traced.report();
    assert_eq!(report.number("events") + report.lost(), counts.events());
}
