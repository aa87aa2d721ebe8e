//! Captures of version 3: what is lost, sent again or damaged shows in the numbers, exactly.

#[path = "common/chunks.rs"]
mod chunks;
mod common;
#[path = "../../runtime/format/tests/packer.rs"]
mod packer;

use callsight_format::{ByteOrder, Cause, END_STOPPED, Origin, StopReason};
use chunks::*;
use common::*;

#[test]
fn blocks_of_two_threads_are_two_threads() {
    let report = report_of(&[two_threads().file(1)]);
    assert_eq!(rows(&report), "a 2 60/40, b 1 10/10, c 1 10/10");
    let records: u64 = two_threads().records.iter().sum();
    assert_eq!(identity(&report), (records, records, 0, 0));
    assert_eq!((report.threads.len(), report.processes.len()), (2, 1));
    assert_eq!(report.processes[0].ended, Some(true));
    assert_silent(&report);
}

#[test]
fn a_block_that_is_missing_is_a_loss_of_its_records() {
    let whole = two_threads();
    let all: u64 = whole.records.iter().sum();
    for missing in 1..whole.chunks.len() - 2 {
        let mut sender = whole.clone();
        let gone = sender.records.remove(missing);
        sender.chunks.remove(missing);
        let report = report_of(&[sender.file(1)]);
        assert_eq!(identity(&report), (all, all - gone, gone, 0), "block {missing}");
        assert_eq!(report.losses["unacked"], gone);
        assert_eq!(report.totals.unmatched_exits, 0, "{:?}", report.notices);
        assert_eq!((report.threads.len(), report.processes.len()), (2, 1), "block {missing}");
        assert_eq!(report.processes[0].pid, 7);
        assert_noticed(&report, "1 block is missing");
    }
}

#[test]
fn a_chunk_that_comes_twice_counts_once() {
    let whole = report_of(&[two_threads().file(1)]);
    for twice in 0..two_threads().chunks.len() {
        let mut sender = two_threads();
        sender.chunks.insert(twice + 1, sender.chunks[twice].clone());
        let report = report_of(&[sender.file(1)]);
        assert_eq!((rows(&report), identity(&report)), (rows(&whole), identity(&whole)));
        assert_eq!(report.identity.repeated, two_threads().records[twice]);
        assert_silent(&report);
    }
}

#[test]
fn segments_of_one_stream_go_on() {
    let sender = two_threads();
    let rest = [&sender.chunks[..1], &sender.chunks[4..]].concat();
    let files = [
        ("trace.stream.1.0.bin", file(1, 0, &sender.chunks[..4])),
        ("trace.stream.1.1.bin", file(1, 1, &rest)),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_silent(&report);
    assert_eq!(identity(&report), identity(&report_of(&[sender.file(1)])));
    let report = Captures::new(&files[1..]).analyze().expect("a report");
    let (emitted, delivered, dropped, unaccounted) = identity(&report);
    assert_eq!(sender.records[..4].iter().sum::<u64>(), dropped);
    assert_eq!((emitted, unaccounted), (delivered + dropped, 0));
    assert_noticed(&report, "1 segment is not here");
}

#[test]
fn a_thread_id_that_is_used_again_is_another_thread() {
    let mut sender = Sender::new(1);
    let (mut old, mut new) = (Writer::new(7, 8), Writer::new(7, 8));
    sender.block(&mut old, &[birth(7, 8, 0), calls(8, 100, "enter a, exit a")].concat(), &[]);
    sender.block(&mut old, &calls(8, 200, "enter a, exit a"), &[]);
    sender.block(&mut new, &[birth(7, 8, 300), calls(8, 400, "enter b")].concat(), &[]);
    sender.block(&mut new, &calls(8, 500, "exit b"), &[]);
    sender.end(old.next + new.next, &[]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!((rows(&report).as_str(), report.threads.len()), ("a 2 20/20, b 1 100/100", 2));
    assert_silent(&report);
    // Its beginning is damaged.
    sender.chunks.remove(3);
    let gone = sender.records.remove(3);
    let report = report_of(&[sender.file(1)]);
    assert_eq!((identity(&report).2, identity(&report).3), (gone, 0));
    assert_eq!((report.threads.len(), report.totals.unmatched_exits), (2, 0));
    assert_eq!(report.totals.exits_after_loss, 1);
}

#[test]
fn a_process_of_which_only_the_numbers_came_has_its_pid() {
    let mut writer = Writer::new(7, 8);
    let mut sender = Sender::new(1);
    sender.block(&mut writer, &birth(7, 8, 0), &[]);
    sender.block(&mut writer, &calls(8, 100, "enter a, exit a"), &[]);
    sender.chunks.remove(1);
    let report = report_of(&[sender.file(1)]);
    assert_eq!((report.processes.len(), report.processes[0].pid), (1, 7));
    assert_eq!((report.threads[0].pid, report.processes[0].start), (7, 14));
}

#[test]
fn what_the_ring_dropped_is_told_by_notes_and_no_gap() {
    let mut writer = Writer::new(7, 7);
    let mut sender = Sender::new(1);
    sender.block(&mut writer, &[birth(7, 7, 0), calls(7, 100, "enter a")].concat(), &[]);
    writer.drop(30);
    let told = [note_of(7, Cause::Full, 30, 200), calls(7, 300, "exit a")].concat();
    sender.block(&mut writer, &told, &[]);
    // Reserved, and never stored; then dropped with nothing behind it.
    writer.next += 1;
    let torn = note_of(7, Cause::Torn, 1, 390);
    sender.block(&mut writer, &calls(7, 400, "enter b, exit b"), &torn);
    writer.drop(4);
    sender.block(&mut Writer::new(7, 7), &[], &note_of(7, Cause::Full, 4, 500));
    let emitted = writer.next;
    sender.end(emitted, &[(Cause::Full, 34), (Cause::Torn, 1)]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(identity(&report), (emitted, emitted - 35, 35, 0));
    assert_eq!((report.losses["full"], report.losses["torn"], report.losses.len()), (34, 1, 2));
    // The note of the 30 is damaged, and what says so at the end as well.
    for kept in [5, 4] {
        let mut sender = sender.clone();
        sender.chunks.truncate(kept + 1);
        sender.chunks.remove(2);
        let gone = sender.records[2];
        let report = report_of(&[sender.file(1)]);
        let tail = if kept == 5 { 4 } else { 0 };
        assert_eq!(report.losses["unacked"], gone, "{:?}", report.losses);
        assert_eq!(report.losses["full"], 30 + tail, "{:?}", report.losses);
    }
}

/// A thread that is told to stop, and to go on: its own note calls `full` what it dropped meanwhile.
fn stopped_and_resumed() -> (Sender, Writer) {
    let mut writer = Writer::new(7, 7);
    let mut sender = Sender::new(1);
    sender.block(&mut writer, &[birth(7, 7, 0), calls(7, 100, "enter a, exit a")].concat(), &[]);
    writer.stop(350);
    let told = [note_of(7, Cause::Full, 350, 200), calls(7, 300, "enter a, exit a")].concat();
    sender.block(&mut writer, &told, &[]);
    (sender, writer)
}

#[test]
fn what_a_ring_that_was_stopped_for_a_while_dropped_counts_once_as_stopped() {
    let (mut sender, writer) = stopped_and_resumed();
    let cut = report_of(&[sender.file(1)]);
    sender.end(writer.next, &[(Cause::Stopped, 350)]);
    for report in [report_of(&[sender.file(1)]), cut] {
        let delivered = writer.next - 350;
        assert_eq!(identity(&report), (writer.next, delivered, 350, 0), "{:?}", report.losses);
        assert_eq!(report.losses.get("stopped"), Some(&350), "{:?}", report.losses);
    }
}

#[test]
fn what_was_dropped_for_a_cause_that_no_block_tells_is_told_without_the_note_too() {
    let (mut sender, mut writer) = stopped_and_resumed();
    sender.chunks.pop();
    let gone = sender.records.pop().expect("a block");
    sender.block(&mut writer, &calls(7, 400, "enter a, exit a"), &[]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!((report.losses["stopped"], report.losses["unacked"]), (350, gone));
    assert_eq!(identity(&report), (writer.next, writer.next - 350 - gone, 350 + gone, 0));
}

#[test]
fn writers_that_are_missing_altogether_are_found_at_the_end() {
    let mut sender = two_threads();
    sender.chunks.truncate(sender.chunks.len() - 2);
    let all: u64 = sender.records.iter().sum();
    let mut other = Writer::new(7, 9);
    for ts in [0, 100] {
        sender.block(&mut other, &birth(7, 9, ts), &[]);
        sender.chunks.pop();
    }
    let emitted = all + other.next + 400;
    sender.end(emitted, &[(Cause::NoSlot, 400)]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(identity(&report), (emitted, all, other.next + 400, 0));
    assert_eq!((report.losses["no_slot"], report.losses["unacked"]), (400, other.next));
    assert_noticed(&report, "2 blocks are missing");
}

#[test]
fn counts_that_contradict_each_other_are_said() {
    for (unaccounted, words) in
        [(-3, "3 records fewer were emitted"), (5, "5 records more were emitted")]
    {
        let mut sender = two_threads();
        sender.chunks.truncate(sender.chunks.len() - 2);
        let all: u64 = sender.records.iter().sum();
        let emitted = all.saturating_add_signed(unaccounted);
        sender.end(emitted, &[]);
        let report = report_of(&[sender.file(1)]);
        assert_eq!(identity(&report), (emitted, all, 0, unaccounted));
        assert_noticed(&report, words);
    }
}

#[test]
fn what_a_sink_dropped_is_told_by_its_causes() {
    let mut sender = two_threads();
    sender.chunks.pop();
    let all: u64 = sender.records.iter().sum();
    let gone = sender.records.remove(4);
    sender.chunks.remove(4);
    sender.sink(StopReason::Closed, &[(Cause::Queue, gone)]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(identity(&report), (all, all - gone, gone, 0));
    assert_eq!((report.losses["queue"], report.losses.len()), (gone, 1));
}

#[test]
fn what_was_not_sent_and_not_stored_counts_in_events_also_beside_a_whole_copy() {
    let mut sender = two_threads();
    let whole = sender.file(1);
    sender.chunks.truncate(sender.chunks.len() - 2);
    let all: u64 = sender.records.iter().sum();
    // In each block that is gone, one record is a note.
    let [stored, sent] = [7, 4].map(|at| {
        sender.chunks.remove(at);
        sender.records.remove(at)
    });
    sender.not_sent = vec![(Cause::Queue, sent - 1, sent)];
    sender.end(all, &[]);
    sender.sink_with_records(StopReason::Closed, &[(Cause::Io, stored - 1, stored)]);
    let report = report_of(&[sender.file(2)]);
    let here = all - sent - stored;
    assert_eq!(identity(&report), (all - 2, here, sent + stored - 2, 0));
    assert_eq!((report.losses["queue"], report.losses["io"]), (sent - 1, stored - 1));
    assert_eq!(report.losses.len(), 2, "{:?}", report.losses);
    // Another sink of the stream has everything, and its end tells of none.
    let report = report_of(&[whole, sender.file(2)]);
    assert_eq!(identity(&report), (all, all, 0, 0), "{:?}", report.losses);
}

#[test]
fn a_torn_record_whose_note_was_dropped_is_one_loss() {
    let mut writer = Writer::new(7, 7);
    let mut sender = Sender::new(1);
    sender.block(&mut writer, &[birth(7, 7, 0), calls(7, 100, "enter a")].concat(), &[]);
    // Reserved, and never stored.
    writer.next += 1;
    let torn = note_of(7, Cause::Torn, 1, 190);
    sender.block(&mut writer, &calls(7, 200, "enter b, exit b"), &torn);
    sender.block(&mut writer, &calls(7, 300, "exit a"), &[]);
    sender.chunks.remove(2);
    sender.not_sent = vec![(Cause::Queue, 2, 2)];
    sender.end(writer.next, &[(Cause::Torn, 1)]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(identity(&report), (writer.next, writer.next - 3, 3, 0), "{:?}", report.losses);
    assert_eq!((report.losses["queue"], report.losses["torn"]), (2, 1));
}

#[test]
fn a_stream_that_broke_off_says_so() {
    let mut sender = two_threads();
    sender.chunks.truncate(sender.chunks.len() - 2);
    assert_noticed(&report_of(&[sender.file(1)]), "stream 1 broke off before its end");
    sender.sink(StopReason::Cut, &[]);
    let report = report_of(&[sender.file(1)]);
    assert_noticed(&report, "stream 1 broke off before its end");
    assert_eq!(identity(&report).2, 0);
}

#[test]
fn what_a_stopped_drain_left_in_the_ring_is_no_loss() {
    let mut sender = two_threads();
    sender.chunks.truncate(sender.chunks.len() - 2);
    let all: u64 = sender.records.iter().sum();
    sender.end_with(END_STOPPED, all + 25, &[]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(identity(&report), (all + 25, all, 0, 0));
    assert_eq!(report.identity.left_in_ring, 25);
    assert_noticed(&report, "25 records were still in the ring");
}

#[test]
fn what_came_before_the_server_greeted_is_no_gap() {
    let mut writer = Writer::new(7, 7);
    let mut sender = Sender::new(1);
    let raw = [birth(7, 7, 0), calls(7, 100, "enter a, enter b")].concat();
    // The name is a note of the drain's.
    let name = Records { ts: 130, ..Records::default() }.name(7, "main").events;
    sender.raw(&[&raw[..], &name].concat());
    writer.next = raw.len() as u64;
    sender.block(&mut writer, &calls(7, 140, "exit b, exit a"), &[]);
    sender.end(writer.next, &[]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(rows(&report), "a 1 50/20, b 1 30/30");
    assert_eq!(identity(&report), (writer.next, writer.next, 0, 0));
    assert_eq!(report.threads.len(), 1);
    assert_silent(&report);
}

#[test]
fn blocks_whose_records_came_before_the_server_greeted_are_not_missing() {
    let mut writer = Writer::new(7, 7);
    let mut sender = Sender::new(1);
    let raw = [birth(7, 7, 0), calls(7, 100, "enter a, enter b")].concat();
    sender.raw(&raw);
    // The file has them in a block.
    sender.block(&mut writer, &raw, &[]);
    sender.chunks.pop();
    sender.block(&mut writer, &calls(7, 140, "exit b, exit a"), &[]);
    let before = sender.clone();
    sender.end(writer.next, &[]);
    assert_silent(&report_of(&[sender.file(1)]));
    let mut sender = before;
    sender.end(writer.next + 4, &[]);
    assert_noticed(&report_of(&[sender.file(1)]), "1 block");
}

#[test]
fn what_a_queue_dropped_before_the_server_greeted_is_a_gap_in_the_times() {
    let mut sender = Sender::new(1);
    let raw = [birth(7, 7, 0), calls(7, 100, "enter a, enter b, exit b")].concat();
    let rest = calls(7, 5000, "exit c, exit b, exit a, enter a, exit a");
    sender.raw(&raw);
    sender.raw(&calls(7, 140, "enter b, enter c"));
    sender.raw(&rest);
    let gone = sender.records.remove(2);
    sender.chunks.remove(2);
    let came = (raw.len() + rest.len()) as u64;
    // Whether or not its end says who dropped it.
    for told in [vec![(Cause::Queue, gone, gone)], Vec::new()] {
        let mut sender = sender.clone();
        sender.not_sent = told.clone();
        sender.end(came + gone, &[]);
        let report = report_of(&[sender.file(1)]);
        assert_eq!(identity(&report), (came + gone, came, gone, 0), "{:?}", report.losses);
        let totals = &report.totals;
        assert_eq!((totals.unmatched_exits, totals.exits_after_loss), (0, 2), "{totals:?}");
        assert_eq!((totals.skipped_calls, totals.gap_ns), (0, 4880), "{totals:?}");
        assert_noticed(&report, "events were lost during");
        // Of the first call of `a` only the times before and behind.
        assert_eq!(rows(&report), "a 2 50/40, b 1 10/10");
    }
}

#[test]
fn a_missing_block_of_a_ring_of_version_2_explains_what_does_not_match() {
    let scripts = ["enter a, enter b", "exit b, enter c", "exit c, exit a"];
    let send = |missing: usize| {
        let mut sender = Sender::new(1);
        for (script, ts) in scripts.iter().zip([100, 200, 300]) {
            sender.unnumbered_block(7, &calls(7, ts, script));
        }
        sender.end(6, &[]);
        if missing > 0 {
            sender.chunks.remove(missing);
        }
        report_of(&[sender.file(1)])
    };
    let whole = send(0);
    assert_eq!((identity(&whole), whole.totals.unmatched_exits), ((6, 6, 0, 0), 0));
    assert_silent(&whole);
    for missing in 1..=3 {
        let report = send(missing);
        assert_eq!(identity(&report), (6, 4, 2, 0), "block {missing}");
        assert_eq!(report.totals.unmatched_exits, 0, "block {missing}: {:?}", report.totals);
        assert_noticed(&report, "1 block is missing");
    }
}

#[test]
fn a_server_of_version_2_before_one_that_asks_for_blocks_is_no_gap() {
    let raw = Records::default().process(7, 7, "/bin/app").thread(7, "enter a, enter b");
    let mut writer = Writer::new(7, 7);
    writer.next = raw.events.len() as u64;
    let origin = Origin { t0_ns: 5, t0_ticks: 9, ..Origin::default() };
    let mut sender = Sender::new(2);
    sender.block(&mut writer, &calls(7, raw.ts + 10, "exit b, exit a"), &[]);
    sender.end(2, &[]);
    let report = report_of(&[raw.file_of(origin, ByteOrder::Little), sender.file(2)]);
    assert_eq!((identity(&report), report.threads.len()), ((writer.next, writer.next, 0, 0), 1));
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (0, 0));
    assert_silent(&report);
}

#[test]
fn what_a_sink_dropped_before_its_drain_was_stopped_is_not_in_the_ring() {
    let mut sender = two_threads();
    sender.chunks.truncate(sender.chunks.len() - 2);
    let all: u64 = sender.records.iter().sum();
    sender.end_with(END_STOPPED, all + 25, &[]);
    sender.sink(StopReason::Closed, &[(Cause::Queue, sender.records[7])]);
    sender.chunks.remove(7);
    let gone = sender.records[7];
    let report = report_of(&[sender.file(1)]);
    assert_eq!(identity(&report), (all + 25, all - gone, gone, 0));
    assert_eq!((report.losses["queue"], report.identity.left_in_ring), (gone, 25));
}

#[test]
fn a_program_that_outlived_its_drain_is_told_as_that() {
    let mut sender = Sender::new(1);
    let mut writer = Writer::new(7, 7);
    sender.block(&mut writer, &birth(7, 7, 0), &[]);
    sender.block(&mut writer, &calls(7, 100, "enter a, enter b, exit b"), &[]);
    sender.end_with(END_STOPPED, writer.next, &[]);
    sender.sink(StopReason::Closed, &[]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(report.processes[0].ended, None);
    assert_noticed(&report, "process 7 (/bin/app) had not ended when this was taken");
    assert!(report.notices.iter().all(|line| !line.contains("in order")), "{:?}", report.notices);
}
