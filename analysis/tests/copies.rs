//! The same stream, or streams of one ring, in several directories: one trace.

#[path = "common/chunks.rs"]
mod chunks;
mod common;
#[path = "../../runtime/format/tests/packer.rs"]
mod packer;

use callsight_analysis::{Options, Report, analyze};
use callsight_format::{ByteOrder, Cause, Origin, StopReason};
use chunks::*;
use common::*;

/// The report on captures in folders of their own, each of files by name.
fn report_of_folders(folders: &[&[(&str, Vec<u8>)]]) -> Report {
    let captures: Vec<Captures> = folders.iter().map(|files| Captures::new(files)).collect();
    let paths: Vec<_> = captures.iter().map(|captures| captures.path().to_path_buf()).collect();
    analyze(&paths, &Options::default()).expect("a report")
}

#[test]
fn a_stream_in_two_folders_is_one_trace() {
    let sender = two_threads();
    let all: u64 = sender.records.iter().sum();
    let once = report_of(&[sender.file(1)]);
    let [one, other] = [("trace.stream.1.0.bin", 1), ("trace.stream.9.0.bin", 9)]
        .map(|(name, number)| [(name, sender.file(number))]);
    let both = [one.clone(), other.clone()].concat();
    for folders in [vec![&one[..], &one], vec![&other, &one], vec![&both]] {
        let report = report_of_folders(&folders);
        assert_eq!((rows(&report), identity(&report)), (rows(&once), identity(&once)));
        assert_eq!((report.identity.repeated, report.events), (all, once.events));
        assert_eq!((report.processes.len(), report.threads.len()), (1, 2));
        assert_silent(&report);
    }
}

#[test]
fn what_one_capture_of_a_stream_lacks_is_taken_from_another() {
    let whole = two_threads();
    let all: u64 = whole.records.iter().sum();
    let without = |gone: &[usize]| {
        let kept = (0..whole.chunks.len()).filter(|at| !gone.contains(at));
        [(
            "trace.stream.1.0.bin",
            file(1, 0, &kept.map(|at| whole.chunks[at].clone()).collect::<Vec<_>>()),
        )]
    };
    let once = report_of(&[whole.file(1)]);
    let last = whole.chunks.len() - 1;
    for (one, other) in [
        (vec![2, 4, 6], vec![1, 3, 5, 7]),
        (vec![], vec![3, 4, 5]),
        // One is of a server that was killed.
        (vec![4, 5, 6, 7, 8, 9].into_iter().take(last - 3).collect(), vec![2]),
    ] {
        for (one, other) in [(&one, &other), (&other, &one)] {
            let report = report_of_folders(&[&without(one), &without(other)]);
            assert_eq!(rows(&report), rows(&once), "without {one:?} and {other:?}");
            assert_eq!(identity(&report), (all, all, 0, 0), "{:?}", report.losses);
            assert_eq!(report.processes[0].ended, Some(true));
            assert_silent(&report);
        }
    }
    // What both lack is lost.
    let report = report_of_folders(&[&without(&[3, 5]), &without(&[2, 5])]);
    assert_eq!(identity(&report), (all, all - whole.records[5], whole.records[5], 0));
    assert_noticed(&report, "1 block is missing");
}

#[test]
fn segments_of_two_captures_of_a_stream_need_not_end_at_the_same_places() {
    let sender = two_threads();
    let parts = |at: usize| {
        let rest = [&sender.chunks[..1], &sender.chunks[at..]].concat();
        [
            ("trace.stream.1.0.bin", file(1, 0, &sender.chunks[..at])),
            ("trace.stream.1.1.bin", file(1, 1, &rest)),
        ]
    };
    let once = report_of(&[sender.file(1)]);
    let report = report_of_folders(&[&parts(3), &parts(6)]);
    assert_eq!((rows(&report), identity(&report)), (rows(&once), identity(&once)));
    assert_silent(&report);
    // The first segment of one, and the last of the other.
    let report = report_of_folders(&[&parts(6)[..1], &parts(3)[1..]]);
    assert_eq!((rows(&report), identity(&report)), (rows(&once), identity(&once)));
    assert_silent(&report);
}

#[test]
fn what_a_sink_dropped_of_a_stream_that_another_has_is_no_loss_without_an_end_either() {
    let mut sender = two_threads();
    sender.chunks.truncate(sender.chunks.len() - 2);
    let all: u64 = sender.records.iter().sum();
    let mut lossy = sender.clone();
    lossy.chunks.remove(4);
    lossy.sink(StopReason::Cut, &[(Cause::Queue, lossy.records[4])]);
    sender.sink(StopReason::Cut, &[]);
    let files = [sender.file(1), lossy.file(1)].map(|bytes| [("trace.stream.1.0.bin", bytes)]);
    let report = report_of_folders(&[&files[0], &files[1]]);
    assert_eq!(identity(&report), (all, all, 0, 0), "{:?}", report.losses);
}

#[test]
fn what_came_before_a_server_greeted_is_taken_from_the_blocks_of_the_file() {
    let whole = two_threads();
    let all: u64 = whole.records.iter().sum();
    let mut live = Sender::new(1);
    live.raw(&[birth(7, 7, 0), birth(7, 8, 0)].concat());
    live.chunks.extend_from_slice(&whole.chunks[3..]);
    let once = report_of(&[whole.file(1)]);
    let files = [whole.file(1), live.file(1)].map(|bytes| [("trace.stream.1.0.bin", bytes)]);
    for order in [[0, 1], [1, 0]] {
        let report = report_of_folders(&order.map(|at| &files[at][..]));
        assert_eq!((rows(&report), identity(&report)), (rows(&once), identity(&once)));
        assert_eq!(report.identity.repeated, all);
        assert_silent(&report);
    }
}

#[test]
fn events_of_a_ring_beside_chunks_of_it_stay_in_their_place_and_two_of_events_apart() {
    let raw = Records::default().process(7, 7, "/bin/app").thread(7, "enter a, enter b");
    let mut writer = Writer::new(7, 7);
    writer.next = raw.events.len() as u64;
    let origin = Origin { t0_ns: 5, t0_ticks: 9, ..Origin::default() };
    let mut sender = Sender::new(2);
    sender.block(&mut writer, &calls(7, raw.ts + 10, "exit b, exit a"), &[]);
    sender.end(2, &[]);
    let events = ("trace.stream.1.0.bin", raw.file_of(origin, ByteOrder::Little));
    let chunks = [("trace.stream.2.0.bin", sender.file(2))];
    let both = [events.clone(), chunks[0].clone()];
    let report = report_of_folders(&[&both, &chunks]);
    assert_eq!((identity(&report), report.threads.len()), ((writer.next, writer.next, 0, 0), 1));
    assert_eq!(report.identity.repeated, 2);
    assert!(!report.notices.iter().any(|line| line.contains("two traces")), "{:?}", report.notices);
    // No number tells that these are the same.
    let report = report_of_folders(&[&both[..1], &[events]]);
    assert_eq!((report.events, report.threads.len()), (4, 2));
    assert_eq!(report.totals.unclosed_enters, 4);
    assert_noticed(&report, "process 7: in two traces, ");
}

/// A thread that calls for 4 ms, from a time on, and as its writer numbers it.
fn long_calls(ts: u64) -> Vec<callsight_format::Event> {
    let all =
        (0..4).flat_map(|ms| calls(7, ts + ms * 1_000_000, "enter a, enter b, exit b, exit a"));
    all.collect()
}

#[test]
fn events_and_chunks_of_the_same_calls_are_added_up_and_said_to_be_twice() {
    let records = [birth(7, 7, 0), long_calls(100)].concat();
    let bytes = |events: &[callsight_format::Event]| {
        let origin = Origin { t0_ns: 5, t0_ticks: 9, ..Origin::default() };
        Records { events: events.to_vec(), ..Records::default() }.file_of(origin, ByteOrder::Little)
    };
    // Of the same time, and of one that begins and ends later.
    for from in [0, records.len() - 8] {
        let mut sender = Sender::new(2);
        let mut writer = Writer::new(7, 7);
        writer.next = from as u64;
        let rest = [&records[from..], &calls(7, 9_000_000, "enter a, exit a")].concat();
        sender.block(&mut writer, &rest, &[]);
        sender.end(rest.len() as u64, &[]);
        let events = ("trace.stream.1.0.bin", bytes(&records));
        let chunks = ("trace.stream.2.0.bin", sender.file(2));
        for folders in
            [vec![vec![events.clone(), chunks.clone()]], vec![vec![events], vec![chunks]]]
        {
            let folders: Vec<&[_]> = folders.iter().map(Vec::as_slice).collect();
            let report = report_of_folders(&folders);
            let all = 16 + rest.iter().filter(|event| event.kind < 2).count() as u64;
            assert_eq!((report.events, report.threads.len()), (all, 2), "from {from}");
            let twice =
                |line: &&String| line.contains("stepped back") || line.contains("two traces");
            let said: Vec<&String> = report.notices.iter().filter(twice).collect();
            let [line] = said[..] else { panic!("{:?}", report.notices) };
            assert!(line.starts_with("process 7: in two traces, "), "{line}");
            assert!(line.contains("stream.1.0.bin (events) and "), "{line}");
            assert!(
                line.ends_with("stream.2.0.bin (chunks): calls are added up; analyze the files of events or those of chunks alone"),
                "{line}"
            );
        }
    }
}

#[test]
fn streams_of_one_ring_in_two_folders_follow_each_other() {
    let mut writer = Writer::new(7, 7);
    let mut first = Sender::new(1);
    let begun = [birth(7, 7, 0), calls(7, 100, "enter a, enter b")].concat();
    first.block(&mut writer, &begun, &[]);
    let mut second = Sender::new(2).taking_over(writer.next, 7, "/bin/app");
    second.block(&mut writer, &calls(7, 140, "exit b, exit a"), &[]);
    second.end(2, &[]);
    let files = [first.file(4), second.file(1)];
    let [first, second] = ["trace.stream.4.0.bin", "trace.stream.1.0.bin"];
    let report = report_of_folders(&[&[(first, files[0].clone())], &[(second, files[1].clone())]]);
    assert_eq!(rows(&report), "a 1 50/20, b 1 30/30");
    assert_eq!(identity(&report), (writer.next, writer.next, 0, 0));
    assert_silent(&report);
}
