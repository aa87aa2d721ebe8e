//! Drains that go on for others, in captures of version 3: what is sent again counts once, and what
//! went between two of them is lost, exactly.

#[path = "common/chunks.rs"]
mod chunks;
mod common;
#[path = "../../runtime/format/tests/packer.rs"]
mod packer;

use callsight_analysis::Report;
use callsight_format::{Cause, END_STOPPED, Event, StopReason};
use chunks::*;
use common::*;

/// A thread whose drain is killed behind its first calls, and another one that begins again
/// `again` records before the last that the first has sent.
fn restarted(again: usize) -> Report {
    let mut writer = Writer::new(7, 7);
    let mut first = Sender::new(1);
    let records = [birth(7, 7, 0), calls(7, 100, "enter a, enter b, exit b, enter c")].concat();
    first.block(&mut writer, &records, &[]);
    writer.next -= again as u64;
    let mut second = Sender::new(2);
    let rest = [&records[records.len() - again..], &calls(7, 140, "exit c, exit a")].concat();
    second.block(&mut writer, &rest, &[]);
    second.end(rest.len() as u64, &[]);
    report_of(&[first.file(1), second.file(2)])
}

#[test]
fn what_a_restarted_drain_sends_again_counts_once() {
    for again in 0..7 {
        let report = restarted(again);
        assert_eq!(rows(&report), "a 1 50/30, b 1 10/10, c 1 10/10", "{again} records again");
        assert_eq!((identity(&report).2, report.identity.repeated), (0, again as u64));
        assert_silent(&report);
    }
}

#[test]
fn what_a_budget_kept_out_and_the_next_drain_sent_again_is_here_and_not_lost() {
    // Of ten records that a capture has no room for, the next drain sends four again.
    let mut writer = Writer::new(7, 7);
    let mut first = Sender::new(1);
    let records = [birth(7, 7, 0), calls(7, 100, "enter a")].concat();
    first.block(&mut writer, &records, &[]);
    first.sink_with_records(StopReason::Cut, &[(Cause::Budget, 10, 10)]);
    writer.next += 6;
    let mut second = Sender::new(2).taking_over(writer.next, 7, "/bin/p");
    let rest = calls(7, 500, "enter b, exit b, enter c, exit c, exit a");
    second.block(&mut writer, &rest, &[]);
    second.end(5, &[]);
    let report = report_of(&[first.file(1), second.file(2)]);
    let emitted = records.len() as u64 + 6 + 5;
    assert_eq!(identity(&report), (emitted, emitted - 6, 6, 0));
    assert_eq!(report.losses["budget"], 6);
}

#[test]
fn what_a_stream_lacks_at_its_start_and_what_went_before_it_are_lost_once() {
    for (taken, between) in [(true, 40), (false, 40), (true, 0)] {
        let mut writer = Writer::new(7, 7);
        let mut first = Sender::new(1);
        let records = [birth(7, 7, 0), calls(7, 100, "enter a")].concat();
        first.block(&mut writer, &records, &[]);
        writer.next += between;
        let mut second = Sender::new(2);
        if taken {
            second = second.taking_over(writer.next, 7, "/bin/p");
        }
        second.block(&mut writer, &calls(7, 200, "enter b, exit b"), &[]);
        second.block(&mut writer, &calls(7, 300, "enter c, exit a"), &[]);
        second.end(4, &[]);
        // A server passed on that it had it, and not the block.
        second.chunks.remove(1);
        let report = report_of(&[first.file(1), second.file(2)]);
        let (here, lost) = (records.len() as u64 + 2, between + 2);
        assert_eq!(identity(&report), (here + lost, here, lost, 0), "{taken} {between}");
    }
}

#[test]
fn what_a_killed_drain_took_along_is_exact() {
    let mut writer = Writer::new(7, 7);
    let mut first = Sender::new(1);
    first.block(&mut writer, &[birth(7, 7, 0), calls(7, 100, "enter a")].concat(), &[]);
    writer.next += 40;
    let mut second = Sender::new(2);
    second.block(&mut writer, &calls(7, 500, "exit b, exit a"), &[]);
    second.end(2, &[]);
    let report = report_of(&[first.file(1), second.file(2)]);
    assert_eq!(report.losses["unacked"], 40);
    assert_eq!((report.totals.unmatched_exits, report.totals.exits_after_loss), (0, 1));
    assert_eq!(identity(&report).3, 0);
}

#[test]
fn the_beginning_of_a_thread_that_a_killed_drain_took_along_is_exact() {
    let (mut writer, mut other) = (Writer::new(7, 7), Writer::new(7, 8));
    let mut first = Sender::new(1);
    first.block(&mut writer, &[birth(7, 7, 0), calls(7, 100, "enter a")].concat(), &[]);
    other.next += 40;
    let mut second = Sender::new(2).taking_over(writer.next + 40, 7, "/bin/p");
    second.block(&mut other, &calls(8, 500, "exit b"), &[]);
    second.block(&mut writer, &calls(7, 600, "exit a"), &[]);
    second.end(2, &[]);
    let report = report_of(&[first.file(1), second.file(2)]);
    assert_eq!(report.losses["unacked"], 40);
    assert_eq!(identity(&report).3, 0);
}

#[test]
fn what_a_drain_sent_that_was_greeted_too_late_is_no_gap_between_two_others() {
    let mut writer = Writer::new(7, 7);
    let mut senders = [1, 2, 3].map(Sender::new);
    senders[0].block(
        &mut writer,
        &[birth(7, 7, 0), calls(7, 100, "enter a, enter b")].concat(),
        &[],
    );
    senders[1].raw(&calls(7, 140, "exit b, enter c"));
    writer.next += 2;
    senders[2].block(&mut writer, &calls(7, 180, "exit c, exit a"), &[]);
    senders[2].end(2, &[]);
    let files = [senders[0].file(1), senders[1].file(2), senders[2].file(3)];
    let report = report_of(&files);
    assert_eq!(identity(&report), (writer.next, writer.next, 0, 0), "{:?}", report.losses);
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (0, 0));
    // Of what came between and what did not, the rest is lost.
    writer.next += 5;
    senders[2].block(&mut writer, &calls(7, 300, "enter a, exit a"), &[]);
    let report = report_of(&[senders[0].file(1), senders[1].file(2), senders[2].file(3)]);
    assert_eq!(report.losses["unacked"], 5);
}

#[test]
fn a_last_loss_that_two_drains_tell_is_one() {
    let mut writer = Writer::new(7, 7);
    let (mut first, mut second) = (Sender::new(1), Sender::new(2));
    first.block(&mut writer, &[birth(7, 7, 0), calls(7, 100, "enter a, exit a")].concat(), &[]);
    let last = note_of(7, Cause::Full, 40, 900);
    first.block(&mut Writer::new(7, 7), &[], &last);
    first.end_with(END_STOPPED, writer.next + 40, &[(Cause::Full, 40)]);
    second.block(&mut Writer::new(7, 7), &[], &last);
    second.end(40, &[(Cause::Full, 40)]);
    let report = report_of(&[first.file(1), second.file(2)]);
    assert_eq!(identity(&report), (writer.next + 40, writer.next, 40, 0));
    assert_silent_but_for(&report, "40 events were lost: 40 full");
    // Another thread that lost as many is another loss.
    let mut third = second.clone();
    third.chunks.pop();
    third.block(&mut Writer::new(7, 8), &[], &note_of(8, Cause::Full, 40, 900));
    let report = report_of(&[first.file(1), third.file(2)]);
    assert_eq!(report.losses["full"], 80);
}

#[test]
fn what_drains_tell_last_of_a_writer_needs_no_other_note() {
    let born = birth(7, 7, 0);
    let mut writer = Writer::new(7, 7);
    let mut first = Sender::new(1);
    first.block(&mut writer, &born, &[]);
    // Lost on the way, with the note that tells 50: its drain is stopped.
    writer.drop(50);
    let on_the_way = note_of(7, Cause::Full, 50, 90).len() as u64 + 20;
    writer.next += on_the_way;
    let taken = born.len() as u64 + on_the_way;
    let mut second = Sender::new(2).taking_over(taken, 7, "/bin/app");
    writer.drop(40);
    second.block(&mut writer, &[], &note_of(7, Cause::Full, 40, 900));
    second.end(40, &[(Cause::Full, 40)]);
    let report = report_of(&[first.file(1), second.file(2)]);
    assert_eq!((report.losses["full"], report.losses["unacked"]), (90, on_the_way));
    let delivered = born.len() as u64;
    assert_eq!(identity(&report), (writer.next, delivered, 90 + on_the_way, 0));
}

#[test]
fn a_program_that_replaced_itself_has_its_calls_once_whoever_sends_them_again() {
    let images: Vec<Vec<Event>> = [0, 500]
        .map(|ts| [birth(7, 7, ts), calls(7, ts + 100, "enter a, exit a, enter b")].concat())
        .to_vec();
    let send = |sender: &mut Sender| {
        for records in &images {
            // Exec keeps the ids of process and thread, and numbers begin again.
            sender.block(&mut Writer::new(7, 7), records, &[]);
        }
    };
    let mut first = Sender::new(1);
    send(&mut first);
    let all: u64 = first.records.iter().sum();
    let once = report_of(&[first.file(1)]);
    // The first drain was killed before it gave anything back; the second goes on for it.
    let mut second = Sender::new(2);
    send(&mut second);
    second.end(all, &[]);
    let report = report_of(&[first.file(1), second.file(2)]);
    assert_eq!((rows(&report), report.identity.repeated), (rows(&once), all));
    assert_eq!(identity(&report), (all, all, 0, 0), "{:?}", report.notices);
}

#[test]
fn what_a_killed_drain_held_of_a_thread_that_has_ended_is_missed() {
    let (mut ended, mut goes_on) = (Writer::new(7, 7), Writer::new(7, 8));
    let mut first = Sender::new(1);
    first.block(&mut ended, &[birth(7, 7, 0), calls(7, 100, "enter a")].concat(), &[]);
    first.block(&mut goes_on, &calls(8, 110, "enter a"), &[]);
    let came: u64 = first.records.iter().sum();
    // The drain had 600 more of the one and 20 of the other, and a note of 50 that were dropped.
    goes_on.next += 20;
    let mut second = Sender::new(2).taking_over(came + 620, 7, "/bin/app");
    second.block(&mut goes_on, &calls(8, 200, "exit a"), &[]);
    second.in_ring = vec![(Cause::Full, 50)];
    second.end(1, &[]);
    let report = report_of(&[first.file(1), second.file(2)]);
    assert_eq!((report.losses["unacked"], report.losses["full"]), (620, 50));
    assert_eq!(identity(&report), (came + 620 + 50 + 1, came + 1, 670, 0));
    // The second alone misses nothing of what others had.
    let report = report_of(&[second.file(1)]);
    assert_eq!(identity(&report), (1, 1, 0, 0));
}

#[test]
fn a_capture_of_a_drain_that_took_over_has_only_its_own_losses() {
    let mut writer = Writer::new(7, 7);
    writer.drop(30);
    writer.next += 100;
    let taken = writer.next - 30;
    let mut sender = Sender::new(1).taking_over(taken, 7, "/bin/app");
    let records = calls(7, 100, "exit b, exit a, enter a, exit a");
    sender.block(&mut writer, &records, &[]);
    writer.drop(5);
    sender.block(&mut writer, &calls(7, 140, "enter a"), &[]);
    writer.drop(7);
    sender.block(&mut writer, &[], &note_of(7, Cause::Full, 12, 900));
    let all = records.len() as u64 + 1;
    sender.end(all + 12, &[(Cause::Full, 12)]);
    let report = report_of(&[sender.file(1)]);
    assert_eq!(identity(&report), (all + 12, all, 12, 0));
    assert_eq!(report.losses["full"], 12);
    assert_eq!(report.processes[0].exe, "/bin/app");
    assert_noticed(&report, "another drain had taken 100 records of its ring before it");
}
