//! Many processes and threads at once, against the independent count.

use callsight_tests::{Drain, Hooks, Program, Report, Ring, Server, streamed};

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

/// Children in turn, more than a ring names, that are killed and that nobody waits for.
const ZOMBIES: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) static void work(void) { __asm__ volatile(""); }
int main(void)
{
    int bad = 0;
    for (int child = 0; child < 300; child++) {
        siginfo_t info;
        pid_t pid = fork();
        for (int call = 0; pid == 0 && call < 20; call++)
            work();
        if (pid == 0)
            kill(getpid(), SIGKILL);
        bad += waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0;
    }
    printf("bad %d\n", bad);
}
"#;

#[test]
fn children_that_nobody_waits_for_keep_no_place_in_a_ring() {
    let program = Program::c(ZOMBIES).build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), program.tracing());
    // No drain frees the places meanwhile.
    let ran = shell.clone().env("TRACE_SHM", ring.name()).ok("exec ./prog");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("bad 0\n", ""), "{ran}");
    let files = std::fs::read_dir(program.folder().join("traces")).map_or(0, Iterator::count);
    assert_eq!(files, 0, "all are in the ring: {ran}");
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drained = Drain::ours(&shell, &ring, server.port).finish();
    server.stop();
    assert!(drained.all().contains("unaccounted=0"), "{drained}");
    assert_eq!(program.report().calls_of("work"), 6000, "{drained}");
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
