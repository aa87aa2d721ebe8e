//! Summary files, of both versions and orders, alone and beside event files.

mod common;

use std::mem::offset_of;

use callsight_analysis::{Mode, Report};
use callsight_format::{
    ByteOrder, SUMMARY_HEADER_BYTES, SUMMARY_HEADER_V1_BYTES, SUMMARY_MAGIC, SUMMARY_RECORD_BYTES,
    SUMMARY_RECORD_V1_BYTES, SummaryHeader, SummaryRecord, summary_bucket,
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
fn percentiles_stay_between_the_extremes() {
    let bytes = summary(2, ByteOrder::Little, &[1_636_000]);
    let durations = report(&[("trace.summary.7.8.bin", bytes)]).rows[0].durations.expect("some");
    assert_eq!((durations.p50_ns, durations.p999_ns), (1_636_000, 1_636_000));
}

#[test]
fn calls_that_found_no_room_are_dropped_calls() {
    for (left_out, dropped) in [(0, ""), (3, "! 3 calls were left out: 3 full\n")] {
        let mut bytes = summary(2, ByteOrder::Little, &[100, 200]);
        let at = offset_of!(SummaryHeader, truncated);
        bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(left_out));
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
    }
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
