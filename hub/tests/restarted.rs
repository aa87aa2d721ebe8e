//! A drain that was killed, and the one that goes on for it: two streams of one ring.

mod common;

use callsight_format::*;
use callsight_hub::capture::CaptureLimits;
use callsight_hub::ingest::Destinations;
use common::loss_events;
use common::packed::*;
use common::server::*;

/// The last line of a server.
fn total(served: &Served) -> String {
    served.totals.to_string()
}

/// A drain sends 60 events and is killed; the next one begins behind the first `behind` of them, and
/// sends up to the 120th.
fn restarted(clocks: [&'static [u8]; 2], behind: u64) -> Served {
    serve(None, |at| {
        let mut writer = Writer::new(1);
        let mut first = drain(at, 1, clocks[0], 0);
        (1..=3).for_each(|number| first.send(&writer.block(number, 10)));
        first.wait_for(3);
        drop(first);
        let mut second = drain(at, 2, clocks[1], behind);
        writer.next = behind;
        let calls = (120 - behind) / 2;
        second.send(&writer.block(1, calls));
        second.end(1, 2 * calls);
    })
}

#[test]
fn what_a_restarted_drain_sends_again_is_in_the_total_once() {
    for (behind, line) in [
        (60, "2 streams, 120 events, 0 dropped, unaccounted=0"),
        (40, "2 streams, 120 events (20 of them came twice), 0 dropped, unaccounted=0"),
        (34, "2 streams, 120 events (26 of them came twice), 0 dropped, unaccounted=0"),
        (0, "2 streams, 120 events (60 of them came twice), 0 dropped, unaccounted=0"),
    ] {
        let served = restarted([b"boot", b"boot"], behind);
        assert_eq!(total(&served), line);
        assert!(behind == 60 || served.said("came in another stream, too"), "{:?}", served.lines);
    }
}

#[test]
fn the_same_numbers_on_two_machines_are_two_programs() {
    for clocks in [[&b"one"[..], &b"other"[..]], [b"", b""]] {
        let served = restarted(clocks, 0);
        assert_eq!(total(&served), "2 streams, 180 events, 0 dropped, unaccounted=0");
    }
}

#[test]
fn a_loss_that_both_drains_tell_is_counted_once() {
    let notes = loss_events(1, Cause::Full, 7);
    let served = serve(None, |at| {
        for stream in [1, 2] {
            let mut writer = Writer::new(1);
            let mut device = drain(at, stream, b"boot", 0);
            device.send(&writer.block_with(1, 10, &notes));
            device.wait_for(1);
        }
    });
    let line = "2 streams, 20 events (20 of them came twice), 7 dropped, unaccounted=0";
    assert_eq!(total(&served), line);
}

#[test]
fn what_was_lost_between_two_streams_is_in_the_total() {
    let served = serve(None, |at| {
        let mut writer = Writer::new(1);
        let mut first = drain(at, 1, b"boot", 0);
        first.send(&writer.block(1, 10));
        first.wait_for(1);
        drop(first);
        let mut second = drain(at, 2, b"boot", 50);
        // 30 were given back and never came; 12 the writer dropped, and its note was among them.
        (writer.next, writer.full) = (20 + 30 + 12, 12);
        second.send(&writer.block(1, 10));
        second.end(1, 20);
    });
    assert_eq!(total(&served), "2 streams, 40 events, 42 dropped, unaccounted=0");
}

#[test]
fn what_a_thread_lost_behind_its_last_record_is_in_the_total_once_whatever_the_cause() {
    for cause in [Cause::Full, Cause::Stopped, Cause::Budget] {
        let served = serve(None, |at| {
            let mut writer = Writer::new(1);
            let mut device = drain(at, 1, b"boot", 0);
            device.send(&writer.block(1, 10));
            writer.next += 40;
            match cause {
                Cause::Full => writer.full = 40,
                _ => writer.stopped = 40,
            }
            device.send(&writer.block_with(2, 0, &loss_events(1, cause, 40)));
            device.send(&end(2, 60, &[(cause, 40)]));
            device.wait_for(3);
        });
        assert_eq!(total(&served), "1 stream, 20 events, 40 dropped, unaccounted=0", "{cause:?}");
    }
}

#[test]
fn what_a_budget_kept_out_and_the_next_drain_brings_again_is_stored_and_not_lost() {
    for (budget_bytes, resent) in [(7_000, 40), (9_000, 40), (6_000, 70)] {
        let limits = CaptureLimits { segment_bytes: 0, budget_bytes };
        let served = serve_within(limits, None, |at| {
            let mut writer = Writer::new(1);
            let mut first = drain(at, 1, b"boot", 0);
            (1..=100).for_each(|number| first.send(&writer.block(number, 10)));
            first.wait_for(100);
            drop(first);
            let behind = 20 * (100 - resent);
            let mut second = drain(at, 2, b"boot", behind);
            writer.next = behind;
            (1..=resent).for_each(|number| second.send(&writer.block(number, 10)));
            second.end(resent, 20 * resent);
        });
        let there: u64 = served.captures().iter().map(|path| packed_hooks(path)).sum();
        let totals = &served.totals;
        assert!(there < 20 * (100 + resent), "all were stored, {there}");
        assert_eq!(totals.stored_events + totals.again_events, there, "{totals}");
        assert_eq!(totals.stored_events + totals.dropped_events, 2000, "{totals}");
    }
}

#[test]
fn what_an_earlier_server_told_is_not_in_the_last_line_of_the_next() {
    for unpacked in [false, true] {
        let destinations = || Destinations { unpacked, ..Destinations::default() };
        let notes = loss_events(1, Cause::Full, 12);
        let (left, mut writer) = (tempfile::tempdir().expect("a folder"), Writer::new(1));
        let dir = tempfile::tempdir().expect("a folder");
        run_server_on(dir, NO_LIMITS, None, destinations(), |at, dir| {
            let mut device = drain(at, 1, b"boot", 0);
            device.send(&writer.block(1, 10));
            (writer.next, writer.full) = (writer.next + 12, 12);
            device.send(&writer.block_with(2, 10, &notes));
            device.wait_for(2);
            for entry in std::fs::read_dir(dir).expect("list") {
                let entry = entry.expect("an entry");
                std::fs::copy(entry.path(), left.path().join(entry.file_name())).expect("copy");
            }
        });
        let served = run_server_on(left, NO_LIMITS, None, destinations(), |at, _| {
            let mut device = drain(at, 1, b"boot", 0);
            device.wait_for(2);
            (writer.next, writer.full) = (writer.next + 5, 17);
            device.send(&writer.block_with(3, 10, &loss_events(1, Cause::Full, 5)));
            device.send(&end(3, 60 + 17, &[(Cause::Full, 17)]));
            device.wait_for(4);
        });
        let behind = "without what an earlier server had of 1 stream";
        assert_eq!(
            total(&served),
            format!("1 stream, 20 events, 5 dropped, unaccounted=0, {behind}")
        );
        assert!(served.said("5 dropped: 5 full; emitted 25, unaccounted=0"), "{:?}", served.lines);
    }
}
