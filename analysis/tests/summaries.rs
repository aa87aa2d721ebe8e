//! Summary files, of both versions and orders, alone and beside event files.

mod common;

use std::mem::offset_of;

use callsight_analysis::{Detail, Mode, Options, Report};
use callsight_format::{
    ByteOrder, Cause, SUMMARY_HEADER_BYTES, SUMMARY_HEADER_V1_BYTES, SUMMARY_MAGIC,
    SUMMARY_RECORD_BYTES, SUMMARY_RECORD_V1_BYTES, SummaryHeader, SummaryRecord, summary_bucket,
};
use common::{Captures, Records, assert_noticed, rows};

/// A summary of one function, at the address of `a`, that was called with these durations.
fn summary(version: u32, order: ByteOrder, durations: &[u64]) -> Vec<u8> {
    let (header, record) = match version {
        1 => (SUMMARY_HEADER_V1_BYTES, SUMMARY_RECORD_V1_BYTES),
        _ => (SUMMARY_HEADER_BYTES, SUMMARY_RECORD_BYTES),
    };
    let mut bytes = vec![0; header + record];
    let mut put32 = |at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&order.put_u32(word));
    put32(offset_of!(SummaryHeader, version), version);
    put32(offset_of!(SummaryHeader, record_size), record as u32);
    put32(offset_of!(SummaryHeader, header_size), header as u32);
    put32(offset_of!(SummaryHeader, pid), 7);
    put32(offset_of!(SummaryHeader, tid), 8);
    for (bucket, count) in counts(durations) {
        put32(header + offset_of!(SummaryRecord, histogram) + 4 * bucket, count);
    }
    let mut put64 = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&order.put_u64(word));
    let sum = durations.iter().sum();
    put64(offset_of!(SummaryHeader, records), 1);
    put64(offset_of!(SummaryHeader, span), 5000);
    put64(header + offset_of!(SummaryRecord, func), 16 * u64::from(b'a'));
    put64(header + offset_of!(SummaryRecord, calls), durations.len() as u64);
    put64(header + offset_of!(SummaryRecord, inclusive), sum);
    put64(header + offset_of!(SummaryRecord, own), sum);
    put64(header + offset_of!(SummaryRecord, min), *durations.iter().min().expect("one"));
    put64(header + offset_of!(SummaryRecord, max), *durations.iter().max().expect("one"));
    bytes[..8].copy_from_slice(&SUMMARY_MAGIC);
    bytes
}

fn counts(durations: &[u64]) -> Vec<(usize, u32)> {
    let bucket = |wanted: usize| {
        let inside = durations.iter().filter(|duration| summary_bucket(**duration) == wanted);
        (wanted, inside.count() as u32)
    };
    (0..callsight_format::SUMMARY_BUCKETS).map(bucket).collect()
}

fn report(files: &[(&str, Vec<u8>)]) -> Report {
    Captures::new(files).analyze().expect("a report")
}

#[test]
fn both_versions_read_in_both_orders() {
    for (version, order) in [(1, ByteOrder::Little), (2, ByteOrder::Little), (2, ByteOrder::Big)] {
        let bytes = summary(version, order, &[100, 200, 300]);
        let report = report(&[("trace.summary.7.8.bin", bytes)]);
        assert_eq!(rows(&report), "a 3 600/600");
        assert_eq!((report.mode, report.span_ns), (Mode::Summary, 5000));
        let durations = report.rows[0].durations.expect("durations");
        assert_eq!((durations.min_ns, durations.max_ns), (100, 300));
    }
}

#[test]
fn a_function_that_a_killed_program_was_just_adding_is_none() {
    let whole = summary(2, ByteOrder::NATIVE, &[1000, 2000]);
    let adding = [&whole[..], &[0; SUMMARY_RECORD_BYTES]].concat();
    let [whole, adding] = [whole, adding].map(|bytes| report(&[("trace.summary.7.7.bin", bytes)]));
    assert_eq!(rows(&adding), rows(&whole));
    assert_eq!(adding.notices, whole.notices);
}

#[test]
fn percentiles_stay_between_the_extremes() {
    let bytes = summary(2, ByteOrder::Little, &[1_636_000]);
    let durations = report(&[("trace.summary.7.8.bin", bytes)]).rows[0].durations.expect("some");
    assert_eq!((durations.p50_ns, durations.p999_ns), (1_636_000, 1_636_000));
}

#[test]
fn calls_that_found_no_room_are_dropped_calls() {
    for (left_out, dropped) in [(0, ""), (3, "! 3 calls were left out: 3 unknown\n")] {
        let bytes = with_header(&[100, 200], offset_of!(SummaryHeader, truncated), left_out);
        let report = report(&[("trace.summary.7.8.bin", bytes)]);
        let mut text = Vec::new();
        report.write_text(&mut text, 1).expect("memory");
        let text = String::from_utf8(text).expect("text");
        let emitted = 2 + left_out;
        let line = format!(
            "\ncalls emitted={emitted} delivered=2 dropped={left_out} unaccounted=0\n{dropped}"
        );
        assert!(text.contains(&line), "{text}");
        assert_eq!((report.identity.emitted, report.lost_events()), (emitted, left_out));
        assert!(text.starts_with("events=0 ") && text.contains(" summed_calls=2\n"), "{text}");
    }
}

/// A summary of calls with these durations, with `word` at `at` in its header.
fn with_header(durations: &[u64], at: usize, word: u64) -> Vec<u8> {
    let mut bytes = summary(2, ByteOrder::Little, durations);
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// The same in the record of its function.
fn with_record(durations: &[u64], at: usize, word: u64) -> Vec<u8> {
    with_header(durations, SUMMARY_HEADER_BYTES + at, word)
}

#[test]
fn losses_of_summary_files_are_told_beside_event_files() {
    let events = Records::default().thread(7, "enter z, exit z").lost(7, Cause::Full as u32, 5);
    let left_out = with_header(&[100, 200], offset_of!(SummaryHeader, truncated), 3);
    let files =
        [("trace.7.7.0.bin", events.file(ByteOrder::Little)), ("trace.summary.7.8.bin", left_out)];
    let report = report(&files);
    let alone = Captures::new(&files[..1]).analyze().expect("a report").identity;
    let identity = report.identity;
    assert_eq!(identity.delivered, alone.delivered + 2);
    assert_eq!(identity.emitted, alone.emitted + 5);
    assert_eq!(identity.emitted, identity.delivered + report.lost_events());
    assert_noticed(&report, "8 events and calls were lost: 5 full, 3 unknown");
    assert_noticed(
        &report,
        "thread 8 of process 7: 3 calls are counted in its summary, but for no f",
    );
    assert!(report.headline().ends_with(" summed_calls=2"), "{}", report.headline());
    assert!(report.identity_line().starts_with("records and calls emitted="));
    let mut json = Vec::new();
    report.write_json(&mut json, 0).expect("memory");
    let json = String::from_utf8(json).expect("text");
    for part in ["\"lost_events\": 8", "\"unknown\": 3", "\"summed_calls\": 2"] {
        assert!(json.contains(part), "{part}: {json}");
    }
}

#[test]
fn only_files_that_may_count_every_level_of_a_recursion_are_told_to() {
    let words = "1 summary file may count every level of a recursion";
    let says_once = |bytes| {
        let report = report(&[("trace.summary.7.8.bin", bytes)]);
        assert_noticed(&report, "at most 13 % off");
        !report.notices.iter().any(|line| line.contains(words))
    };
    assert!(!says_once(summary(2, ByteOrder::Little, &[100])));
    assert!(says_once(with_header(&[100], offset_of!(SummaryHeader, hook_ns), 9)));
}

#[test]
fn the_mean_of_a_recursion_that_counts_once_is_that_of_its_calls() {
    let bytes = with_record(&[1000, 2000, 3000], offset_of!(SummaryRecord, inclusive), 3000);
    let row = &report(&[("trace.summary.7.8.bin", bytes)]).rows[0];
    let mean_ns = row.durations.expect("durations").mean_ns;
    assert!(row.total_ns == 3000 && (1740..2260).contains(&mean_ns), "{row:?}");
}

#[test]
fn what_many_threads_and_processes_left_out_is_said_once() {
    let files: Vec<(String, Vec<u8>)> = (1..=50u32)
        .map(|pid| {
            let mut bytes = with_record(&[100, 200], offset_of!(SummaryRecord, calls), 5);
            let mut put32 = |at: usize, word: u32| {
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            };
            put32(offset_of!(SummaryHeader, pid), pid);
            put32(offset_of!(SummaryHeader, truncated), 2);
            (format!("trace.summary.{pid}.8.bin"), bytes)
        })
        .collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let report = report(&files);
    assert_noticed(&report, "8 of process 11 and 47 more: 100 calls are counted in its summary");
    assert_noticed(&report, "process 3 and 47 more: 150 calls had not returned");
    assert!(report.notices.len() < 10, "{:#?}", report.notices);
}

#[test]
fn calls_that_had_not_returned_are_listed_as_such() {
    let bytes = with_record(&[100, 200], offset_of!(SummaryRecord, calls), 5);
    let report = report(&[("trace.summary.7.8.bin", bytes)]);
    let row = &report.rows[0];
    assert_eq!((row.calls, row.not_returned, report.totals.unclosed_enters), (5, 3, 3));
    assert_noticed(&report, "process 7: 3 calls had not returned when its summary was left");
    // More than a bucket can hold: C callsight's begin again, ours stay.
    for (stays, calls) in [(false, (1 << 32) + 2), (true, (1 << 33) + 2)] {
        let mut bytes = with_record(&[100, 100], offset_of!(SummaryRecord, calls), calls);
        let bucket = 4 * summary_bucket(100) + offset_of!(SummaryRecord, histogram);
        let at = SUMMARY_HEADER_BYTES + bucket;
        if stays {
            bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        let report = Captures::new(&[("trace.summary.7.8.bin", bytes)]).analyze();
        assert_eq!(report.expect("a report").rows[0].not_returned, 0);
    }
}

#[test]
fn what_summary_files_cannot_give_is_said() {
    let captures = Captures::new(&[("trace.summary.7.8.bin", summary(2, ByteOrder::Little, &[9]))]);
    let with = |paths, callers, subtract_overhead| {
        let detail = Detail { paths, callers };
        let options = Options { detail, subtract_overhead, ..Options::default() };
        captures.analyze_with(&options).expect("a report")
    };
    assert_noticed(&with(true, false, false), "summary files have no stacks");
    assert_noticed(&with(false, true, false), "summary files have no callers");
    assert_noticed(&with(false, false, true), "nothing is taken off their times");
    let plain = with(false, false, false);
    assert!(
        plain.notices.iter().all(|line| !line.contains("files have no")),
        "{:?}",
        plain.notices
    );
}

#[test]
fn event_files_beside_summary_files_are_used_too() {
    let events = Records::default().thread(7, "enter z, exit z").file(ByteOrder::Little);
    let files = [
        ("trace.7.7.0.bin", events),
        ("trace.summary.7.8.bin", summary(2, ByteOrder::Little, &[100])),
    ];
    let report = report(&files);
    assert_eq!((rows(&report).as_str(), report.mode), ("a 1 100/100, z 1 10/10", Mode::Mixed));
    assert_noticed(&report, "1 event file and 1 summary file are added up here");
}

#[test]
fn a_summary_cut_at_any_byte_is_said_or_left_out() {
    let whole = summary(2, ByteOrder::Little, &[100]);
    let events = Records::default().thread(7, "enter z, exit z").file(ByteOrder::Little);
    for len in 0..whole.len() {
        let files =
            [("trace.7.7.0.bin", events.clone()), ("trace.summary.7.8.bin", whole[..len].to_vec())];
        let report = report(&files);
        assert_eq!(rows(&report), "z 1 10/10", "cut at {len}");
        assert!(!report.notices.is_empty(), "cut at {len}");
    }
}
