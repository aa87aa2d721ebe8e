//! Every call arrives or is counted as lost: reports against the independent count, by file and
//! through ring, drain and server.

use callsight_tests::{Drain, Hooks, Program, Ring, Server, streamed};

const FANOUT: &str = include_str!("../programs/fanout.c");
const PRODUCER: &str = include_str!("../programs/producer.c");

/// Enters and exits of a run, as the counting hook saw them, with calls by function.
fn truth(program: &Program, arguments: &str) -> (u64, callsight_tests::Calls) {
    let (_, counts) = program.build(Hooks::Count).counted(arguments);
    (counts.events(), counts.calls)
}

#[test]
fn half_a_million_events_of_26_threads_arrive_with_every_count_true() {
    let program = Program::c(FANOUT);
    let (events, calls) = truth(&program, "");
    assert!(events > 500_000);
    let (ran, _, report) = streamed(&program.build(Hooks::Ours), "", 64 << 20);
    assert_eq!(ran.stdout, "sum 1300000\n");
    report.clean();
    assert_eq!(report.number("events"), events);
    assert_eq!(report.number("threads"), 26);
    assert_eq!(report.number("unclosed_enters"), 0);
    assert_eq!(report.calls(), calls);
}

#[test]
fn files_hold_every_count_of_26_threads() {
    let program = Program::c(FANOUT);
    let (events, calls) = truth(&program, "");
    let (_, report) = program.build(Hooks::Ours).traced("");
    report.clean();
    assert_eq!((report.number("events"), report.number("threads")), (events, 26));
    assert_eq!(report.calls(), calls);
}

#[test]
fn many_segments_are_read_in_their_order() {
    let program = Program::c(FANOUT);
    let (events, calls) = truth(&program, "600");
    let traced = program.build(Hooks::Ours);
    let ran = traced.tracing().env("TRACE_SEG_MB", "8").run("./prog 600; ls traces | wc -l");
    let segments: u32 = ran.stdout.lines().last().and_then(|n| n.parse().ok()).expect("a number");
    assert!(segments > 10, "{segments} segments are too few to be put in a wrong order");
    let report = traced.report();
    report.clean();
    assert_eq!(report.number("events"), events);
    assert_eq!(report.calls(), calls);
}

#[test]
fn a_tiny_ring_delivers_or_counts_every_event() {
    let program = Program::c(FANOUT);
    let (events, _) = truth(&program, "");
    let (ran, drained, report) = streamed(&program.build(Hooks::Ours), "", 65536);
    assert_eq!(ran.stdout, "sum 1300000\n");
    let (delivered, lost) = (report.number("events"), report.lost());
    assert!(lost > 0, "a ring of 64 KiB holds {delivered} events and loses none: {drained}");
    assert_eq!(delivered + lost, events, "{drained}\n{:?}", report.notices());
    assert_eq!(report.number("unmatched_exits"), 0, "losses explain what does not match");
    assert!(report.notices().iter().any(|line| line.contains(&lost.to_string())));
}

#[test]
fn a_drain_that_comes_after_the_end_gets_what_the_ring_holds() {
    let program = Program::c(PRODUCER);
    let (events, _) = truth(&program, "200000 4 0");
    let traced = program.build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let tracing = shell.clone().env("TRACE_SHM", ring.name()).env("TRACE_SHM_SIZE", "65536");
    let ran = tracing.run("exec ./prog 200000 4 0");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "done 800000\n"));
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drained = Drain::ours(&shell, &ring, server.port).finish();
    assert_eq!(drained.code, 0, "{drained}");
    server.stop();
    let report = traced.report();
    assert!(report.number("events") > 0);
    assert_eq!(report.number("events") + report.lost(), events, "{drained}");
    assert_eq!(report.number("unmatched_exits"), 0);
}

#[test]
fn what_fills_a_ring_behind_the_last_event_that_is_wanted_is_no_record() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing().env("TRACE_MAX", "1000"));
    let name = ring.name().to_owned();
    shell.env("TRACE_SHM", &name).ok(&format!(
        "callsight drain --file traces {name} 2>said & drain=$!\n./prog 20\nwait $drain"
    ));
    let report = traced.report();
    let delivered = report.records("delivered");
    let events = report.number("events");
    assert!(events > 500 && events <= 1000, "{events} events");
    // Each of 26 threads leaves notes, each page one.
    assert!(delivered - events < 26 * 20, "{delivered} records of {events} events");
}

#[test]
fn the_drain_ends_by_itself_when_the_program_was_killed() {
    let program = Program::c(PRODUCER);
    let (_, calls) = truth(&program, "100000 3 0 kill");
    let (ran, _, report) = streamed(&program.build(Hooks::Ours), "100000 3 0 kill", 64 << 20);
    assert_eq!(ran.code, 128 + libc::SIGKILL, "{ran}");
    assert_eq!(report.calls(), calls);
    assert_eq!(report.number("unclosed_enters"), 1, "main never returned");
    assert_eq!(report.number("unmatched_exits"), 0);
}

#[test]
fn short_runs_arrive_whole_whichever_side_starts_first() {
    let program = Program::c(PRODUCER);
    let (events, calls) = truth(&program, "1000 1 0");
    let traced = program.build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let server = Server::ours(&shell, &["--out", "traces"]);
    let tracing = shell.clone().env("TRACE_SHM", ring.name());
    for drain_first in [false, true, false, true, true, false] {
        let early = drain_first.then(|| Drain::ours(&shell, &ring, server.port));
        tracing.ok("./prog 1000 1 0");
        let drain = early.unwrap_or_else(|| Drain::ours(&shell, &ring, server.port));
        let drained = drain.finish();
        assert_eq!(drained.code, 0, "{drained}");
    }
    server.stop();
    let report = traced.report();
    assert_eq!(report.lost(), 0);
    assert_eq!(report.number("events"), 6 * events);
    for (name, numbers) in calls {
        assert_eq!(report.calls_of(&name), 6 * numbers.iter().sum::<u64>(), "{name}");
    }
}

#[test]
fn a_fork_takes_nothing_from_the_stream_of_its_parent() {
    let program = Program::c(PRODUCER);
    let (events, calls) = truth(&program, "20000 2 0 fork");
    let (_, _, report) = streamed(&program.build(Hooks::Ours), "20000 2 0 fork", 64 << 20);
    assert_eq!(report.lost(), 0);
    assert_eq!(report.number("unmatched_exits"), 0);
    assert_eq!(report.number("events"), events);
    assert_eq!(report.calls(), calls);
}

#[test]
fn two_streams_at_once_stay_apart() {
    let program = Program::c(PRODUCER);
    let (events, calls) = truth(&program, "100000 2 100");
    let traced = program.build(Hooks::Ours);
    let (rings, shell) = ([Ring::new(), Ring::new()], traced.tracing());
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drains = rings.each_ref().map(|ring| Drain::ours(&shell, ring, server.port));
    let one = |ring: &Ring| {
        format!("TRACE_SHM={} TRACE_SHM_SIZE=67108864 ./prog 100000 2 100", ring.name())
    };
    shell.ok(&format!("{} & {}; wait", one(&rings[0]), one(&rings[1])));
    for drained in drains.map(Drain::finish) {
        assert_eq!(drained.code, 0, "{drained}");
    }
    server.stop();
    let report = traced.report();
    assert_eq!((report.number("unmatched_exits"), report.lost()), (0, 0));
    assert_eq!(report.number("events"), 2 * events);
    for (name, numbers) in calls {
        assert_eq!(report.calls_of(&name), 2 * numbers.iter().sum::<u64>(), "{name}");
    }
}

#[test]
fn a_tiny_ring_of_version_2_counts_what_it_drops_once() {
    let program = Program::c(FANOUT);
    let (events, _) = truth(&program, "");
    let traced = program.build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let server = Server::ours(&shell, &["--out", "traces"]);
    let drain = Drain::ours(&shell, &ring, server.port);
    let shell = shell.env("TRACE_SHM", ring.name()).env("TRACE_SHM_SIZE", "65536");
    shell.env("TRACE_RING", "2").ok("./prog");
    let drained = drain.finish();
    server.stop();
    let report = traced.report();
    assert!(report.lost() > 0, "{drained}");
    assert_eq!(report.number("events") + report.lost(), events, "{drained}");
}
