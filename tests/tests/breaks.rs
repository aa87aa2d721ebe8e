//! What breaks behind the program: a server that is killed, files that are cut or copied later.
//! Whatever is missing then is said.

use callsight_tests::{Drain, Hooks, Program, Ring, Server};

const PRODUCER: &str = include_str!("../programs/producer.c");

#[test]
fn what_a_killed_server_had_not_read_comes_again() {
    let program = Program::c(PRODUCER);
    let (_, truth) = program.build(Hooks::Count).counted("40000 1 0");
    let traced = program.build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let first = Server::ours(&shell, &["--out", "traces"]);
    let drain = Drain::ours(&shell, &ring, first.port);
    let running = std::thread::scope(|scope| {
        let program = scope
            .spawn(|| shell.clone().env("TRACE_SHM", ring.name()).run("exec ./prog 40000 1 25000"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        first.freeze();
        std::thread::sleep(std::time::Duration::from_millis(300));
        first.kill();
        let drained = drain.finish();
        assert_eq!(drained.code, 1, "{drained}");
        let second = Server::ours(&shell, &["--out", "traces"]);
        let drained = Drain::ours(&shell, &ring, second.port).finish();
        assert_eq!(drained.code, 0, "{drained}");
        second.stop();
        program.join().expect("the program")
    });
    assert_eq!(running.code, 0, "{running}");
    let report = traced.report();
    assert_eq!(report.calls(), truth.calls, "{:?}", report.notices());
    assert_eq!(report.number("lost_events"), 0, "{:?}", report.notices());
}

#[test]
fn a_segment_cut_or_replaced_later_is_noticed() {
    let traced = Program::c(PRODUCER).build(Hooks::Ours);
    let shell = traced.tracing().env("TRACE_SEG_MB", "1");
    for (change, said) in [
        ("truncate -s 40000 traces/trace.*.3.bin", "1 segment was cut short later: up to 31"),
        ("truncate -s 500000 traces/trace.*.0.bin", "1 segment was cut short later: up to 16"),
        ("cp traces/trace.*.3.bin $(echo traces/trace.*.4.bin)", "holds segment 3 of process"),
    ] {
        shell.ok("rm -f traces/*; ./prog 200000 1 0");
        shell.ok(change);
        let report = traced.report();
        let notices = report.notices();
        assert!(notices.iter().any(|line| line.contains(said)), "{change}: {notices:?}");
        assert_eq!(report.number("unmatched_exits"), 0, "{change}: {notices:?}");
    }
}

#[test]
fn a_stream_whose_segment_is_cut_later_says_so() {
    let traced = Program::c(PRODUCER).build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let server = Server::ours(&shell, &["--out", "traces", "--seg-mb", "1", "--events"]);
    let drain = Drain::ours(&shell, &ring, server.port);
    shell.clone().env("TRACE_SHM", ring.name()).ok("./prog 100000 1 1000");
    assert_eq!(drain.finish().code, 0);
    server.stop();
    let whole = traced.report();
    assert!(whole.notices().is_empty(), "{:?}", whole.notices());
    shell.ok("truncate -s 400016 traces/trace.stream.1.2.bin");
    let notices = traced.report().notices();
    assert!(notices.iter().any(|line| line.contains("1 segment was cut short")), "{notices:?}");
}
