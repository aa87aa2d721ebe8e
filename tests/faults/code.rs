//! What programs do to themselves: F17 signals, F18 leaps out of functions, F19 clocks.

use std::process::Command;

use callsight_format::{EVENT_BYTES, FILE_HEADER_BYTES, RingHeader};
use callsight_tests::{Built, Hooks, Program, Report, Shell};

use crate::job::Job;
use crate::outcome::{Outcome, Plan};
use crate::ringview::ring_file;
use crate::scene::{Scene, captures_in, ended_well};
use crate::truth::{Account, Truth};

const ALARMS: &str = include_str!("../programs/alarms.c");
const LEAPS: &str = include_str!("../programs/leaps.cpp");
const NAPS: &str = include_str!("../programs/naps.c");

/// F17: timers of 1 to 10 kHz whose handlers are traced, also inside hooks and handlers.
pub fn signals(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F17");
    let program = Program::c(ALARMS).build(Hooks::Ours);
    let seconds = plan.either("2", "20");
    let mut sum = Account::default();
    let rates = [1000, chance.of_range(1000..10_000), 10_000];
    for hz in rates {
        let scene = Scene::new(chance.pick(&[1 << 20, 64 << 20]));
        let server = scene.server();
        let drain = scene.drain(server.port);
        let file = scene.path("tally");
        let words = [file.to_str().expect("a path"), seconds, &hz.to_string()];
        let ran = scene.program(&program.exe, &words).end();
        assert_eq!(
            (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
            (0, "done\n", ""),
            "{ran}"
        );
        ended_well(&drain.end());
        server.stop();
        let report = scene.report_of("traces");
        let account = Account::of(&report);
        account.holds(Truth::read(&file), &format!("timers of {hz} Hz"));
        assert_eq!(report.number("unmatched_exits"), 0, "{hz} Hz: {:?}", report.notices());
        if account.lost_events() == 0 {
            assert_eq!(report.number("unclosed_enters"), 0, "{hz} Hz: {:?}", report.notices());
            let handled = report.calls_of("in_handler");
            assert!(handled > 0, "{hz} Hz: no handler ran");
        }
        sum.add(&account);
    }
    Outcome::Holds(format!(
        "{rates:?} Hz for {seconds} s each on 3 threads, no deadlock, nesting right, {sum} \
         unaccounted=0"
    ))
}

/// F18: exceptions, longjmp, pthread_cancel, exit in a deep stack, swapcontext.
pub fn leaps(_: &Plan) -> Outcome {
    let program = Program::cpp(LEAPS).flags(&["-Wno-infinite-recursion"]);
    let (traced, counted) = (program.build(Hooks::Ours), program.build(Hooks::Count));
    let mut sum = Account::default();
    let mut marked = 0;
    let ways = ["throw", "jump", "cancel", "exit", "switch"];
    for way in ways {
        let (untraced, counts) = counted.counted(way);
        let scene = Scene::new(16 << 20);
        let server = scene.server();
        let drain = scene.drain(server.port);
        let ran = scene.program(&traced.exe, &[way]).end();
        assert_eq!((ran.code, &ran.stdout), (untraced.code, &untraced.stdout), "{way}: {ran}");
        ended_well(&drain.end());
        server.stop();
        let report = scene.report_of("traces");
        let account = Account::of(&report);
        account.holds(Truth::exactly(counts.events()), way);
        assert_eq!(report.calls(), counts.calls, "{way}: {:?}", report.notices());
        assert_eq!(report.number("unmatched_exits"), 0, "{way}: {:?}", report.notices());
        sane_durations(&report, way);
        // Frames that were left without an exit are marked, all of them and no others.
        let skipped = report.number("skipped_calls") + report.number("unclosed_enters");
        assert_eq!(skipped, counts.enters - counts.exits, "{way}: {:?}", report.notices());
        marked += skipped;
        sum.add(&account);
    }
    Outcome::Holds(format!("{ways:?}: exact counts, {marked} frames marked, {sum} unaccounted=0"))
}

/// Longer than anything here lasts, and shorter than any duration below zero would look.
const HOUR_NS: u64 = 3_600_000_000_000;

/// No duration is below zero.
#[track_caller]
fn sane_durations(report: &Report, what: &str) {
    for row in report.rows() {
        for key in ["min_ns", "mean_ns", "max_ns", "p50_ns", "p99_ns", "p999_ns"] {
            let Some(ns) = row[key].as_u64() else { continue };
            assert!(ns < HOUR_NS, "{what}: {key} of {row}");
        }
        assert!(row["self_ms"].as_f64() >= Some(0.0), "{what}: {row}");
        assert!(row["incl_ms"].as_f64() >= row["self_ms"].as_f64(), "{what}: {row}");
    }
}

/// F19: time namespaces, a tick rate that lies, times that run backwards.
pub fn clocks(plan: &Plan) -> Outcome {
    let program = Program::c(NAPS).build(Hooks::Ours);
    let spaces = time_namespaces(&program);
    let lies = lying_rates(&program);
    let backwards = backward_ticks(&program, plan);
    let spaces = match spaces {
        Ok(count) => format!("{count} runs in time namespaces"),
        Err(reason) => format!("no time namespace ({reason})"),
    };
    Outcome::Holds(format!(
        "{spaces}, {lies} lying rates: durations true or flagged; {backwards} captures with times \
         that run backwards: order kept, no negative duration"
    ))
}

/// What the program measured: inside and outside of its naps, in ms.
fn measured(scene: &Scene) -> (f64, f64) {
    let text = std::fs::read_to_string(scene.path("naps")).expect("what the program measured");
    let mut numbers = text.split_whitespace().map(|ns| ns.parse::<f64>().expect("ns") / 1e6);
    (numbers.next().expect("inside"), numbers.next().expect("outside"))
}

/// The duration is the one the program measured, as exact as the rate of the clock is known.
#[track_caller]
fn is_true(report: &Report, (inside, outside): (f64, f64), what: &str) {
    let total = report.total_ms("nap");
    assert!(
        total > inside * 0.99 && total < outside * 1.01,
        "{what}: {total} ms, between {inside} and {outside} by the program's own clock"
    );
}

fn time_namespaces(program: &Built) -> Result<usize, String> {
    let mut count = 0;
    for (clock, offset) in [("mono", "86400"), ("auto", "86400"), ("mono", "-10"), ("raw", "1000")]
    {
        let scene = Scene::new(1 << 20);
        let server = scene.server();
        let drain = scene.drain(server.port);
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--time", "--monotonic", offset, "--fork", "--"]);
        command.arg(&program.exe).arg(scene.path("naps")).arg("8");
        let ran = Job::start(&scene.tracing().env("TRACE_CLOCK", clock), &mut command).end();
        if ran.code != 0 {
            drop(drain.stop());
            return Err(ran.stderr.trim().to_owned());
        }
        ended_well(&drain.end());
        server.stop();
        let report = scene.report_of("traces");
        Account::of(&report).holds(Truth::exactly(16), "naps in a time namespace");
        is_true(&report, measured(&scene), &format!("clock {clock}, offset {offset} s"));
        count += 1;
    }
    Ok(count)
}

/// The rate in the ring's header is another one when the drain comes; how many were tried.
fn lying_rates(program: &Built) -> usize {
    let rates = [0, 1, 1000, 1 << 40, u64::MAX];
    for rate in rates {
        let scene = Scene::new(1 << 20);
        let file = scene.path("naps");
        let ran = scene.program(&program.exe, &[file.to_str().expect("a path"), "8"]).end();
        assert_eq!(ran.code, 0, "{ran}");
        let path = ring_file(&scene.ring);
        let mut bytes = std::fs::read(&path).expect("the ring");
        let at = std::mem::offset_of!(RingHeader, tick_hz);
        bytes[at..at + 8].copy_from_slice(&rate.to_ne_bytes());
        std::fs::write(&path, bytes).expect("write the ring");
        let server = scene.server();
        ended_well(&scene.drain(server.port).end());
        server.stop();
        let report = scene.report_of("traces");
        Account::of(&report).holds(Truth::exactly(16), "naps with a lying rate");
        if report.notices().is_empty() {
            is_true(&report, measured(&scene), &format!("{rate} ticks a second, and no notice"));
        }
    }
    rates.len()
}

/// Times of a capture are set back; how many captures were tried.
fn backward_ticks(program: &Built, plan: &Plan) -> u64 {
    let mut chance = plan.chance("F19");
    let folder = program.folder().join("traces");
    let shell = program.tracing();
    shell.ok(&format!("./prog {} 8", program.folder().join("naps").display()));
    let capture = captures_in(&folder).pop().expect("a capture");
    let honest = std::fs::read(&capture).expect("read a capture");
    let header = u32::from_ne_bytes(honest[16..20].try_into().expect("4 bytes")) as usize;
    assert!(header >= FILE_HEADER_BYTES, "a header of {header} bytes");
    let events = (honest.len() - header) / EVENT_BYTES;
    let kind_at = std::mem::offset_of!(callsight_format::Event, kind);
    let calls: Vec<usize> = (0..events)
        .map(|event| header + event * EVENT_BYTES)
        .filter(|at| honest[*at..at + 8] != [0; 8] && honest[at + kind_at] < 2)
        .collect();
    let rounds = plan.either(12, 200);
    for round in 0..rounds {
        let mut bytes = honest.clone();
        for _ in 0..chance.of_range(1..4) {
            let at = calls[chance.index(calls.len())];
            let ts = u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            let most = ts.min(1 << chance.of_range(8..40));
            let back = ts - chance.of_range(1..most);
            bytes[at..at + 8].copy_from_slice(&back.to_ne_bytes());
        }
        std::fs::write(&capture, &bytes).expect("write a capture");
        let report = Report::of(&Shell::new(program.folder()), &["traces"]);
        let what = format!("round {round}");
        Account::of(&report).holds(Truth::exactly(16), &what);
        sane_durations(&report, &what);
    }
    rounds
}
