//! What is in a directory → what the report says, for every kind of file.

mod common;

use std::path::PathBuf;
use std::process::Command;

use callsight_analysis::{Detail, Error, Options, Report, analyze};
use callsight_format::{
    ByteOrder, Event, KIND_ENTER, KIND_MARKER, MARK_BUDGET, MARK_CLOCK, MARK_WRAP, NOTE_PADDING,
    NOTE_STOP, Origin, StopReason,
};
use common::{Captures, Records, assert_noticed, report, rows, ticks};

/// Two calls in a third.
fn small() -> Records {
    Records::default().thread(7, "enter a, enter b, exit b, enter b, exit b, exit a")
}

const SMALL_ROWS: &str = "a 1 50/30, b 2 20/20";

#[test]
fn version_1_reads() {
    assert_eq!(rows(&report(small().file_v1())), SMALL_ROWS);
}

#[test]
fn version_2_reads_in_both_byte_orders() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let report = report(small().file(order));
        assert_eq!(rows(&report), SMALL_ROWS);
        assert_eq!((report.events, report.span_ns, report.threads.len()), (6, 50, 1));
    }
}

#[test]
fn a_larger_header_is_skipped() {
    let mut bytes = small().file(ByteOrder::Little);
    bytes[16] = 112;
    bytes.splice(80..80, [0xee; 32]);
    assert_eq!(rows(&report(bytes)), SMALL_ROWS);
}

#[test]
fn recursion_counts_once_in_total_and_each_time_in_calls() {
    let script = "enter r, enter s, enter r, exit r, exit s, exit r";
    let report = report(Records::default().thread(7, script).file(ByteOrder::Little));
    assert_eq!(rows(&report), "r 2 50/30, s 1 30/20");
    let r = report.rows.iter().find(|row| row.calls == 2).and_then(|row| row.durations);
    assert_eq!(r.map(|r| (r.min_ns, r.mean_ns, r.max_ns)), Some((10, 30, 50)));
}

#[test]
fn the_cost_of_hooks_is_taken_off_so_that_self_times_still_sum_to_the_total() {
    let origin = Origin { t0_ns: 5, hook_ns: 2, ..Origin::default() };
    let captures =
        Captures::new(&[("trace.7.7.0.bin", small().file_of(origin, ByteOrder::Little))]);
    let options = Options { subtract_overhead: true, ..Options::default() };
    let report = captures.analyze_with(&options).expect("a report");
    assert_eq!(rows(&report), "a 1 40/24, b 2 16/16");
    assert_noticed(&report, "2 ns a hook are taken off");
    let silent = Captures::new(&[("trace.7.7.0.bin", small().file(ByteOrder::Little))]);
    let report = silent.analyze_with(&options).expect("a report");
    assert_noticed(&report, "nothing is taken off total and self times");
}

#[test]
fn stacks_and_callers_are_without_the_cost_of_hooks_as_functions_are() {
    // The second `b` is shorter than its hook.
    let script = "enter a, enter b, wait 30, exit b, exit a, enter c, enter b, exit b, exit c";
    let calls = Records::default().thread(7, script);
    let origin = Origin { t0_ns: 5, hook_ns: 14, ..Origin::default() };
    let captures = Captures::new(&[("trace.7.7.0.bin", calls.file_of(origin, ByteOrder::Little))]);
    let detail = Detail { paths: true, callers: true };
    let report_of = |subtract_overhead| {
        let options = Options { subtract_overhead, detail, ..Options::default() };
        captures.analyze_with(&options).expect("a report")
    };
    for report in [report_of(false), report_of(true)] {
        for (index, row) in report.rows.iter().enumerate() {
            let paths = report.paths.iter().filter(|path| path.row == Some(index));
            let callers = report.callers.iter().filter(|caller| caller.callee == index);
            assert_eq!(paths.map(|path| path.self_ns).sum::<u64>(), row.self_ns, "{row:?}");
            assert_eq!(callers.map(|caller| caller.total_ns).sum::<u64>(), row.total_ns, "{row:?}");
        }
    }
    assert_eq!(rows(&report_of(false)), "a 1 60/20, b 2 50/50, c 1 30/20");
    assert_eq!(rows(&report_of(true)), "a 1 18/0, b 2 22/22, c 1 0/0");
}

#[test]
fn ticks_become_ns_by_the_last_anchor() {
    let mut records = small();
    records.events.push(Event {
        ts: 3000,
        func: MARK_CLOCK,
        call_site: 1005,
        kind: 2,
        tid: 7,
        ..Event::default()
    });
    // The header's rate would make these 10 times as long.
    let report = report(records.file_of(ticks(200_000_000), ByteOrder::Little));
    assert_eq!(rows(&report), "a 1 25/15, b 2 10/10");
    assert_noticed(&report, "off by a factor of 10.000");
    // Each of several has one of its own.
    let of = |t0_ticks, tick_hz| {
        let origin = Origin { t0_ticks, ..ticks(tick_hz) };
        records.file_of(origin, ByteOrder::Little)
    };
    let files = [
        ("trace.7.7.0.bin", of(1000, 200_000_000)),
        ("trace.8.8.0.bin", of(999, 1_000_000_000)),
        ("trace.9.9.0.bin", of(1000, 500_000_000)),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_noticed(&report, "process 7, process 8, process 9: its header states a clock rate that");
    assert_noticed(&report, "off by factors of 2.001 to 10.000");
}

#[test]
fn an_anchor_of_one_file_serves_all_that_share_its_start() {
    let anchor =
        Event { ts: 3000, func: MARK_CLOCK, call_site: 1005, kind: 2, tid: 8, ..Event::default() };
    let closing = Records { events: vec![anchor], ..Records::default() };
    let files = [
        ("trace.7.7.0.bin", small().file_of(ticks(0), ByteOrder::Little)),
        ("trace.8.8.0.bin", closing.file_of(ticks(0), ByteOrder::Little)),
    ];
    assert_eq!(rows(&Captures::new(&files).analyze().expect("a report")), "a 1 25/15, b 2 10/10");
}

#[test]
fn one_capture_without_a_clock_does_not_stop_the_others() {
    let poison = Origin { t0_ns: 99, ..ticks(0) };
    let files = [
        ("trace.stream.1.0.bin", small().file_of(poison, ByteOrder::Little)),
        ("trace.stream.2.0.bin", small().file(ByteOrder::Little)),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!(rows(&report), SMALL_ROWS);
    assert_noticed(&report, "left out: stream 1");
    let error = Captures::new(&files[..1]).analyze().expect_err("nothing left");
    assert!(error.to_string().contains("how long a tick is"), "{error}");
}

#[test]
fn more_than_ten_segments_are_read_in_order() {
    let events = Records::default().thread(7, &["enter a, exit a"; 12].join(", ")).events;
    let outer = Records::default().thread(7, "enter z").events;
    let names: Vec<String> = (0..13).map(|seq| format!("trace.7.7.{seq}.bin")).collect();
    let chunks = [&outer[..]].into_iter().chain(events.chunks(2));
    let files: Vec<(&str, Vec<u8>)> = names
        .iter()
        .zip(chunks)
        .map(|(name, events)| {
            let records = Records { events: events.to_vec(), ..Records::default() };
            (name.as_str(), records.file(ByteOrder::Little))
        })
        .collect();
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!(rows(&report), "a 12 120/120, z 1 230/110");
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (0, 1));
}

#[test]
fn one_thread_id_in_two_streams_is_two_threads() {
    let enters = Records::default().thread(7, "enter a").file(ByteOrder::Little);
    let exits = Records::default().thread(7, "wait 500, exit a").file(ByteOrder::Little);
    let files = [("trace.stream.1.0.bin", enters), ("trace.stream.2.0.bin", exits)];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!(rows(&report), "a 1 0/0");
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (1, 1));
    assert_eq!(report.threads.len(), 2);
}

#[test]
fn a_killed_process_leaves_a_zero_tail_that_is_no_event() {
    let report = report(small().file_mapped(2000));
    assert_eq!(rows(&report), SMALL_ROWS);
    assert!(report.losses.is_empty());
}

#[test]
fn a_slot_left_zero_among_events_is_a_torn_event() {
    let mut records = small();
    records.events[2] = Event::default();
    let report = report(records.file_mapped(100));
    assert_eq!(report.losses["torn"], 1);
    assert_eq!(report.totals.unmatched_exits, 0);
    assert_noticed(&report, "1 event was lost: 1 torn");
}

#[test]
fn a_half_written_slot_is_a_torn_event() {
    let mut records = small();
    records.events.push(Event { ts: 0, func: 1600, tid: 7, ..Event::default() });
    let report = report(records.file_mapped(100));
    assert_eq!((rows(&report).as_str(), report.losses["torn"]), (SMALL_ROWS, 1));
}

#[test]
fn windows_of_two_threads_interleave() {
    let mut both = Records::default().thread(7, "enter a, enter b");
    both = both.thread(8, "enter a, exit a").thread(7, "exit b, exit a");
    let report = report(both.file_mapped(20));
    assert_eq!(rows(&report), "a 2 60/30, b 1 30/30");
    assert_eq!(report.totals.unmatched_exits, 0);
}

#[test]
fn a_missing_segment_explains_what_does_not_match() {
    let files = [
        ("trace.7.7.0.bin", Records::default().thread(7, "enter a").file_mapped(4)),
        ("trace.7.7.2.bin", Records::default().thread(7, "exit b, exit a").file_mapped(4)),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!((report.totals.unmatched_exits, report.totals.exits_after_loss), (0, 1));
    assert_noticed(&report, "1 segment is not here");
}

#[test]
fn a_rotated_trace_says_that_its_beginning_is_missing() {
    let records = Records::default().mark(7, MARK_WRAP, 500).thread(7, "exit a, enter b, exit b");
    let report = report(records.file(ByteOrder::Little));
    assert_eq!((report.totals.unmatched_exits, report.totals.exits_after_loss), (0, 1));
    assert_noticed(&report, "1 segment with 500 events was rotated away");
}

#[test]
fn the_end_told_by_a_thread_whose_calls_were_rotated_away_still_ends_the_process() {
    let records = Records::default()
        .again(9, 7, "/bin/app")
        .thread(9, "enter a, exit a")
        .end(7)
        .mark(7, MARK_CLOCK, 4000);
    let captures = [("trace.7.9.0.bin", records.file_mapped_of(ticks(1_000_000_000), 0))];
    let report = Captures::new(&captures).analyze().expect("a report");
    assert_eq!(report.processes[0].ended, Some(true));
    assert_eq!(report.threads.len(), 1);
}

#[test]
fn a_clock_anchor_in_between_is_not_the_end_of_a_process() {
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .thread(7, "enter a")
        .mark(7, MARK_CLOCK, 4000)
        .thread(7, "exit a");
    let captures = [("trace.7.7.0.bin", records.file_mapped_of(ticks(1_000_000_000), 0))];
    let report = Captures::new(&captures).analyze().expect("a report");
    assert_eq!(report.processes[0].ended, Some(false));
}

#[test]
fn a_capture_without_calls_says_so() {
    let report = report(Records::default().process(7, 7, "/bin/app").file_mapped(0));
    assert_noticed(&report, "no enter and no exit");
}

#[test]
fn limits_and_unknown_records_are_said() {
    let mut records = small().mark(7, MARK_BUDGET, 8 << 20).mark(7, 200, 0).mark(7, 9, 0);
    records.events.push(Event { ts: 5000, func: 1, kind: 77, tid: 7, ..Event::default() });
    let mut bytes = records.file(ByteOrder::Little);
    bytes.extend([1, 2, 3]);
    let report = report(bytes);
    assert_eq!(rows(&report), SMALL_ROWS);
    assert_noticed(&report, "recording stopped at the disk budget of 8.0 MiB");
    assert_noticed(&report, "1 record of an unknown kind");
    assert_noticed(&report, "1 marker of an unknown meaning");
    assert_noticed(&report, "1 record of hardware counters");
    assert_noticed(&report, "1 file ends within an event");
}

#[test]
fn damaged_files_in_a_directory_are_left_out_and_named() {
    let mut other = small().file(ByteOrder::Little);
    other[8] = 9;
    let files = [
        ("trace.1.1.0.bin", Vec::new()),
        ("trace.2.2.0.bin", other),
        ("trace.3.3.0.bin", small().file(ByteOrder::Little)),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!(rows(&report), SMALL_ROWS);
    assert_noticed(&report, "trace.1.1.0.bin: only 0 bytes");
    assert_noticed(&report, "trace.2.2.0.bin: written in format 9");
    let error = Captures::new(&files[..2]).analyze().expect_err("nothing usable");
    assert!(error.to_string().contains("of 2 files, none can be used"), "{error}");
}

/// A capture with everything in it.
fn full() -> Records {
    Records::default()
        .process(7, 7, "/bin/app")
        .name(7, "main-thread-long")
        .module(7, 1000, 4000, &[1, 2, 3], "/bin/app")
        .thread(7, "enter a, enter b, exit b")
        .lost(7, 0, 3)
        .thread(8, "enter c, exit c")
        .gone(7, 1000, 4000)
        .thread(7, "exit q, exit a")
        .end(7)
}

#[test]
fn a_capture_cut_at_any_byte_gives_a_report_or_an_error() {
    for bytes in [full().file_mapped(80), full().file(ByteOrder::Big), full().file_v1()] {
        let whole = report(bytes.clone()).events;
        for len in 0..bytes.len() {
            let captures = Captures::new(&[("trace.7.7.0.bin", bytes[..len].to_vec())]);
            if let Ok(report) = captures.analyze() {
                assert!(report.events <= whole, "cut at {len}");
            }
        }
    }
}

#[test]
fn random_damage_gives_a_report_or_an_error() {
    let bytes = full().file_mapped(80);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    for _ in 0..1000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random(4) {
            let at = random(damaged.len());
            damaged[at] = random(256) as u8;
        }
        let captures = Captures::new(&[("trace.7.7.0.bin", damaged)]);
        if let Ok(report) = captures.analyze() {
            let enters = report.rows.iter().map(|row| row.calls).sum::<u64>();
            assert!(enters <= report.events);
            report.write_text(&mut Vec::new(), 0).expect("it can be written");
        }
    }
}

#[test]
fn a_long_trace_of_deep_recursion_is_linear() {
    let mut events = Vec::new();
    for ts in 1..200_001 {
        events.push(Event { ts, func: 1600, tid: 7, kind: KIND_ENTER, ..Event::default() });
    }
    let records = Records { events, ..Records::default() };
    let captures = Captures::new(&[("trace.7.7.0.bin", records.file(ByteOrder::Little))]);
    let detail = Detail { paths: true, callers: true };
    let options = Options { detail, ..Options::default() };
    let report = captures.analyze_with(&options).expect("a report");
    assert_eq!((report.rows[0].calls, report.rows[0].total_ns), (200_000, 199_999));
    let mut folded = Vec::new();
    report.write_folded(&mut folded, 0).expect("written");
    assert!(folded.len() < 4 << 20, "{} bytes", folded.len());
    assert_noticed(&report, "calls are deeper than 512 frames");
}

/// Two streams of one ring: the drain was stopped and started again in between.
fn resumed(first: Records, second: impl FnOnce(Records) -> Records, seconds_t0: u64) -> Report {
    let next = second(Records { ts: first.ts + 5000, ..Records::default() });
    let origin = |t0_ticks| Origin { t0_ticks, ..ticks(2_000_000_000) };
    let files = [
        ("trace.stream.9.0.bin", first.file_of(origin(1000), ByteOrder::Little)),
        ("trace.stream.10.0.bin", next.file_of(origin(seconds_t0), ByteOrder::Little)),
    ];
    Captures::new(&files).analyze().expect("a report")
}

/// A process that is inside `m` and `a` when the drain stops.
fn begun() -> Records {
    Records::default()
        .process(7, 7, "/bin/app")
        .module(7, 0, 1 << 20, &[1], "/bin/app")
        .thread(7, "enter m, enter a")
}

#[test]
fn streams_of_one_ring_go_on_where_the_last_one_ended() {
    let report =
        resumed(begun(), |next| next.thread(7, "exit a, enter a, exit a, exit m").end(7), 1000);
    assert_eq!((report.processes.len(), report.threads.len(), report.rows.len()), (1, 1, 2));
    assert_eq!((report.processes[0].pid, report.processes[0].ended), (7, Some(true)));
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (0, 0));
    assert!(report.rows.iter().all(|row| row.module == "/bin/app"), "{:?}", report.rows);
    for words in ["in order", "runs", "restart", "not here"] {
        let said = report.notices.iter().any(|notice| notice.contains(words));
        assert!(!said, "{words:?} in {:?}", report.notices);
    }
}

#[test]
fn what_a_killed_drain_took_along_explains_what_does_not_match() {
    let first = begun().note(0, NOTE_STOP, &(StopReason::Cut as u32).to_le_bytes());
    // The exit of `a` and the enter of `x` are lost.
    let report =
        resumed(first, |next| next.thread(7, "exit x, exit m, enter b, exit b").end(7), 1000);
    let totals = report.totals;
    assert_eq!((totals.unmatched_exits, totals.exits_after_loss), (0, 1));
    assert_eq!((totals.skipped_calls, totals.calls_cut_by_loss), (0, 1));
    assert_noticed(&report, "stream 9 broke off 1 time and went on again");
    assert_noticed(&report, "2 calls or exits do not match across a restart of the drain");
}

#[test]
fn what_a_thread_lost_before_a_stream_is_in_none_of_its_calls() {
    let times = |lost: bool| {
        let begun = begun().again(8, 7, "/bin/app").thread(8, "enter w");
        let next = |next: Records| {
            let next = next.thread(7, "exit a, exit m").thread(8, "exit w").end(7);
            if lost { next.lost_before(7) } else { next }
        };
        let report = resumed(begun, next, 1000);
        (rows(&report), report.totals.gap_ns, report.totals.uncertain_calls)
    };
    let whole = "a 1 2525/2525, m 1 2535/10, w 1 2515/2515";
    assert_eq!(times(false), (whole.to_owned(), 0, 0));
    let gap = "a 1 0/0, m 1 10/10, w 1 2515/2515";
    assert_eq!(times(true), (gap.to_owned(), 2525, 2));
}

#[test]
fn streams_of_other_rings_stay_apart() {
    let report = resumed(begun(), |next| next.thread(7, "exit a, exit m"), 1001);
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (2, 2));
    assert_eq!(report.threads.len(), 2);
}

#[test]
fn what_is_no_file_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("trace.7.7.0.bin");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo");
    assert!(made.success());
    for path in [pipe, PathBuf::from("/dev/zero")] {
        let error = analyze(std::slice::from_ref(&path), &Options::default()).expect_err("no file");
        assert!(matches!(error, Error::NotAFile { .. }), "{error}");
        let exes = Options { exes: vec![path], ..Options::default() };
        let file = Captures::new(&[("trace.7.7.0.bin", small().file(ByteOrder::Little))]);
        let error = file.analyze_with(&exes).expect_err("no binary");
        assert!(matches!(error, Error::Binary { .. }), "{error}");
    }
}

#[test]
fn one_thing_is_said_of_as_one() {
    let mut out = Vec::new();
    let report = report(Records::default().thread(7, "enter a, exit a").file(ByteOrder::Little));
    report.write_text(&mut out, 0).expect("written");
    let text = String::from_utf8(out).expect("UTF-8");
    assert!(text.contains("1 function by self time") && text.contains("1 thread by"), "{text}");
    assert!(text.contains("1 function of an unnamed program has no name"), "{text}");
}

#[test]
fn what_fills_unused_slots_is_no_record() {
    let mut records = small();
    let calls = records.events.len() as u64;
    let last = records.events[records.events.len() - 1];
    let padding = Event { func: NOTE_PADDING, call_site: 0, kind: KIND_MARKER, ..last };
    records.events.extend([padding; 50]);
    // A server's own are of no thread, and never counted.
    records.events.extend([Event { tid: 0, ..padding }; 3]);
    let report = report(records.file(ByteOrder::Little));
    assert_eq!((rows(&report).as_str(), report.identity.delivered), (SMALL_ROWS, calls));
}

#[test]
fn calls_that_were_open_in_a_pause_have_no_exact_end_and_nothing_is_lost() {
    // b returned in the pause, and d was called in it; the second thread began in it.
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .thread(7, "enter a, enter c, exit c, enter b")
        .paused(7)
        .thread(7, "enter c, exit c, exit d, exit a")
        .process(8, 7, "/bin/app")
        .paused(8)
        .thread(8, "enter c, exit c, exit b")
        .end(7);
    let all = records.events.len() as u64;
    let report = report(records.file(ByteOrder::Little));
    let totals = &report.totals;
    assert_eq!((totals.unmatched_exits, totals.exits_after_loss), (0, 2));
    assert_eq!((totals.pauses, totals.paused_threads), (2, 2));
    assert_eq!((report.lost_events(), report.identity.unaccounted), (0, 0));
    assert_eq!(report.identity.delivered, all);
    assert_noticed(&report, "recording was paused 2 times in 2 threads; calls of that time");
    assert_noticed(&report, "exits have no enter because of a pause");
    assert_noticed(&report, "were open while recording was paused; they count, but");
    assert!(report.notices.iter().all(|line| !line.contains("lost")), "{:?}", report.notices);
}
