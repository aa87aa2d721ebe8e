//! Segments that are not what they were or were to be: cut, copied, named twice, not begun, of a
//! stream that broke off.

mod common;

use callsight_analysis::{Options, Report, analyze};
use callsight_format::{
    ByteOrder, Cause, FILE_WINDOW_BYTES, FLAG_WRAPPED, MARK_CLOCK, NOTE_SEGMENT, NOTE_STOP, Origin,
    StopReason,
};
use common::*;

/// The head of a segment behind one of `bytes` bytes.
fn after(bytes: usize) -> Records {
    let later = Records { ts: 1000, ..Records::default() };
    later.note(7, NOTE_SEGMENT, &(bytes as u64).to_le_bytes())
}

fn report_of(files: &[(&str, Vec<u8>)]) -> Report {
    Captures::new(files).analyze().expect("a report")
}

/// Nothing is said but that there is no such program.
#[track_caller]
fn assert_no_doubts(report: &Report) {
    let doubts: Vec<_> = report.notices.iter().filter(|line| !line.contains("no name")).collect();
    assert!(doubts.is_empty(), "{doubts:?}");
}

#[test]
fn a_segment_that_was_cut_later_says_how_much_may_be_missing() {
    let calls = "enter a, enter b, exit b, exit a";
    let first = Records::default().process(7, 7, "/bin/app").thread(7, calls).file_mapped(0);
    let rest = |bytes| after(bytes).thread(7, calls).end(7).file_mapped(0);
    let whole = [("trace.7.7.0.bin", first.clone()), ("trace.7.7.1.bin", rest(first.len()))];
    let report = report_of(&whole);
    assert_no_doubts(&report);
    assert_eq!(rows(&report), "a 2 60/40, b 2 20/20");
    for (cut, said) in [(64, "up to 2 events"), (33, "up to 2 events"), (32, "up to 1 event")] {
        let mut files = whole.clone();
        files[0].1.truncate(first.len() - cut);
        let report = report_of(&files);
        assert_noticed(&report, &format!("1 segment was cut short later: {said}"));
        assert_eq!(report.totals.unmatched_exits, 0, "{:?}", report.notices);
        assert_eq!(report.processes[0].ended, Some(true));
    }
}

#[test]
fn a_segment_that_a_killed_program_had_not_begun_is_no_doubt() {
    let begun = Records::default().process(7, 7, "/bin/app").thread(7, "enter a, exit a");
    let begun = begun.file_mapped(0);
    // No room is reserved yet, or the first.
    let (empty, blank) = (Vec::new(), vec![0; 2 * FILE_WINDOW_BYTES]);
    for bytes in [&empty, &blank] {
        // Whichever thread opened it.
        for name in ["trace.7.7.1.bin", "trace.7.8.1.bin"] {
            let report = report_of(&[("trace.7.7.0.bin", begun.clone()), (name, bytes.clone())]);
            assert_eq!(rows(&report), "a 1 10/10");
            let told = report.notices.iter().find(|line| line.contains("left out"));
            assert_eq!(told, None);
        }
    }
    let more = [&blank[..], &[0]].concat();
    let written = [&blank[1..], &[1]].concat();
    // An older one, one of another process, and those that were begun.
    for (name, bytes) in [
        ("trace.7.7.0.bin", &empty),
        ("trace.9.9.1.bin", &empty),
        ("trace.7.7.2.bin", &more),
        ("trace.7.7.2.bin", &written),
    ] {
        let report = report_of(&[("trace.7.7.1.bin", begun.clone()), (name, bytes.clone())]);
        assert_noticed(&report, &format!("{name}: only 0 bytes, too short for a header"));
    }
}

/// The clock words of a life that began at `t0_ns`.
fn began(t0_ns: u64) -> Origin {
    Origin { t0_ns, ..Origin::default() }
}

/// A life of process 7 of two threads and as many segments each: it says what it is in each segment, which
/// is the module at `base`.
fn life(t0_ns: u64, base: u64) -> [Vec<u8>; 4] {
    let mut before = None;
    std::array::from_fn(|number| {
        let tid = if number < 2 { 8 } else { 7 };
        let ts = 10_000 * t0_ns + 1000 * number as u64;
        let mut records = Records { ts, ..Records::default() };
        if let Some(bytes) = before {
            records = records.note(tid, NOTE_SEGMENT, &u64::to_le_bytes(bytes));
        }
        records = records.again(tid, 7, "/bin/app").module(tid, base, 4096, &[1], "/bin/app");
        records = match number {
            0 | 2 => {
                records.process(tid, 7, "/bin/app").thread(tid, &format!("enter @{}", base + 32))
            }
            _ => records.thread(tid, &format!("exit @{}", base + 32)),
        };
        let bytes = records.file_mapped_of(began(t0_ns), 0);
        before = Some(bytes.len() as u64);
        bytes
    })
}

/// Two lives under one pid: the names of both begin at 0, but for what the main thread opened.
fn two_lives() -> Vec<(&'static str, Vec<u8>)> {
    let names = [
        ["trace.7.8.0.bin", "trace.7.8.1.bin", "trace.7.7.2.bin", "trace.7.7.3.bin"],
        ["trace.7.9.0.bin", "trace.7.9.1.bin", "trace.7.7.4.bin", "trace.7.7.5.bin"],
    ];
    let second = life(6, 40_960);
    let files = names[0].into_iter().zip(life(5, 8192));
    files.chain(names[1].into_iter().zip(second)).collect()
}

#[test]
fn each_life_of_a_process_has_its_own_order_and_modules() {
    let report = report_of(&two_lives());
    let doubts: Vec<_> =
        report.notices.iter().filter(|line| !line.contains("runs are added")).collect();
    assert!(doubts.iter().all(|line| line.contains("no name")), "{doubts:?}");
    let rows: Vec<_> = report.rows.iter().map(|row| (row.address, row.calls)).collect();
    assert_eq!((rows, report.threads.len()), (vec![(32, 4)], 4));
    let durations = report.rows[0].durations.expect("durations");
    assert!(durations.min_ns > 900 && durations.max_ns < 1100, "{durations:?}");
    assert_eq!(report.totals.unmatched_exits + report.totals.unclosed_enters, 0);
}

#[test]
fn a_number_is_missing_only_where_no_other_life_has_its_name() {
    let without = |name: &str| {
        let files = two_lives().into_iter().filter(|(of, _)| *of != name).collect::<Vec<_>>();
        report_of(&files)
    };
    assert_noticed(&without("trace.7.7.4.bin"), "1 segment is not here");
    assert_noticed(&without("trace.7.9.0.bin"), "1 segment is not here");
    // What was cut is found over the numbers that others have.
    let mut files = two_lives();
    let cut = files[5].1.len() - 32;
    files[5].1.truncate(cut);
    assert_noticed(&report_of(&files), "1 segment was cut short later: up to 1 event");
}

#[test]
fn a_life_whose_first_segments_were_rotated_away_has_its_own_modules() {
    let rotated = |t0_ns: u64, base: u64| {
        let origin = Origin { flags: FLAG_WRAPPED, ..began(t0_ns) };
        Records { ts: 10_000 * t0_ns, ..after(4096) }
            .again(7, 7, "/bin/app")
            .module(7, base, 4096, &[1], "/bin/app")
            .thread(7, &format!("enter @{0}, exit @{0}", base + 32))
            .file_mapped_of(origin, 0)
    };
    // The second life took numbers that the first one had given up.
    let files = [("trace.7.7.6.bin", rotated(5, 8192)), ("trace.7.7.3.bin", rotated(6, 40_960))];
    let report = report_of(&files);
    let rows: Vec<_> =
        report.rows.iter().map(|row| (row.module.as_str(), row.address, row.calls)).collect();
    assert_eq!(rows, [("/bin/app", 32, 2)]);
}

#[test]
fn a_life_that_ended_with_exec_has_the_anchors_of_the_next_one() {
    let life = |t0_ticks: u64| Origin { t0_ticks, t0_ns: t0_ticks / 2, ..ticks(0) };
    let calls = "enter a, exit a";
    let first = Records::default().process(7, 7, "/bin/app").thread(7, calls);
    let mut second = Records { ts: 5000, ..Records::default() };
    second = second.process(7, 7, "/bin/app").thread(7, calls).end(7).mark(7, MARK_CLOCK, 3500);
    second.events.last_mut().expect("the anchor").ts = 7000;
    let files = [
        ("trace.7.7.0.bin", first.file_mapped_of(life(1000), 0)),
        ("trace.7.7.1.bin", second.file_mapped_of(life(5000), 0)),
    ];
    let report = report_of(&files);
    assert_eq!(rows(&report), "a 2 10/10");
    assert!(report.notices.iter().all(|line| !line.contains("anchor")), "{:?}", report.notices);
}

#[test]
fn a_segment_under_the_name_of_another_is_left_out() {
    let directory = Captures::new(&[
        ("trace.7.7.0.bin", Records::default().thread(7, "enter a, exit a").file_mapped(0)),
        ("trace.7.7.1.bin", Records::default().thread(7, "enter b, exit b").file_mapped(0)),
    ]);
    let path = |name| directory.path().join(name);
    std::fs::copy(path("trace.7.7.0.bin"), path("trace.7.7.1.bin")).expect("copy");
    std::fs::copy(path("trace.7.7.0.bin"), path("trace.9.9.0.bin")).expect("copy");
    let report = directory.analyze().expect("a report");
    assert_eq!(rows(&report), "a 1 10/10");
    assert_noticed(&report, "trace.7.7.1.bin: it holds segment 0 of process 7, not segment 1");
    assert_noticed(
        &report,
        "trace.9.9.0.bin: it holds segment 0 of process 7, not segment 0 of pr",
    );
}

#[test]
fn a_file_that_is_named_twice_counts_once() {
    let calls = Records::default().thread(7, "enter a, exit a");
    let directory = Captures::new(&[("trace.7.7.0.bin", calls.file(ByteOrder::Little))]);
    let file = directory.path().join("trace.7.7.0.bin");
    let other = directory.path().join("sub/../trace.7.7.0.bin");
    std::fs::create_dir(directory.path().join("sub")).expect("a directory");
    let link = directory.path().join("sub/trace.7.7.0.bin");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let report = analyze(&[file, other, link], &Options::default()).expect("a report");
    assert_eq!(rows(&report), "a 1 10/10");
}

#[test]
fn a_stream_without_an_end_broke_off() {
    let origin = Origin { t0_ns: 5, t0_ticks: 9, ..Origin::default() };
    let stream = |records: Records| records.file_of(origin, ByteOrder::Little);
    let begun = || after(0).process(7, 7, "/bin/app").thread(7, "enter a, exit a");
    let closed =
        |records: Records| records.note(0, NOTE_STOP, &(StopReason::Closed as u32).to_le_bytes());
    let open = report_of(&[("trace.stream.1.0.bin", stream(begun()))]);
    assert_noticed(&open, "stream 1 broke off before its end");
    assert_noticed(&open, "its server was killed");
    assert_eq!(open.processes[0].ended, None);
    let whole = report_of(&[("trace.stream.1.0.bin", stream(closed(begun().end(7))))]);
    assert_no_doubts(&whole);
    let again = after(0).again(7, 7, "/bin/app").thread(7, "enter a, exit a").end(7);
    let both = report_of(&[
        ("trace.stream.1.0.bin", stream(begun())),
        ("trace.stream.2.0.bin", stream(closed(again))),
    ]);
    assert_noticed(&both, "stream 1 broke off 1 time and went on again");
    // One of a server that does not say when it is done.
    let other = Records::default().thread(7, "enter a, exit a");
    let other = report_of(&[("trace.stream.1.0.bin", stream(other))]);
    assert_no_doubts(&other);
}

#[test]
fn how_a_process_ended_is_not_known_where_events_are_lost() {
    let begun = || Records::default().process(7, 7, "/bin/app").thread(7, "enter a, exit a");
    let report_of = |records: Records| report(records.file_mapped_of(ticks(1_000_000_000), 40));
    let lossy = report_of(begun().lost(7, Cause::Full as u32, 5));
    assert_noticed(&lossy, "how process 7 (/bin/app) ended is not known");
    assert_eq!(lossy.processes[0].ended, None);
    let torn = report_of(begun().lost(7, Cause::Torn as u32, 1));
    assert_noticed(&torn, "process 7 (/bin/app) did not end in order");
}
