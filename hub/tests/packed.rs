//! Senders that pack, over real sockets: acknowledged, cut off, and back again.

mod common;

use std::io::Read;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use callsight_format::*;
use callsight_hub::capture::CaptureLimits;
use callsight_hub::ingest::Destinations;
use common::packed::*;
use common::server::{NO_LIMITS, Served, run_server_on, send, serve, serve_within, wait_closed};
use common::*;

const CALLS: u64 = 50;

fn only_capture(served: &Served) -> std::path::PathBuf {
    let captures = served.captures();
    assert_eq!(captures.len(), 1, "{captures:?}");
    captures[0].clone()
}

#[test]
fn a_capture_holds_the_very_chunks_and_their_last_number_is_acknowledged() {
    let sent = blocks(40, CALLS);
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        assert_eq!(device.has(), 0, "a new stream");
        sent.iter().for_each(|block| device.send(block));
        device.end(40, 40 * CALLS * 2);
    });
    let path = only_capture(&served);
    let chunks = chunks_of(&path);
    let bytes: Vec<_> = chunks.iter().map(|(_, bytes, _)| bytes.clone()).collect();
    assert_eq!(bytes[0], hello(1, LE));
    assert_eq!(bytes[1..41], sent);
    assert_eq!(chunks[41].0, CHUNK_END);
    let last = Last { reason: StopReason::Closed as u32, ..Last::default() };
    assert_eq!((chunks.len(), last_of(&path)), (43, last));
    let line = served.lines.last().expect("a line");
    assert!(
        line.contains("(4000 events, 1 segment, 0 dropped; emitted 4000, unaccounted=0)"),
        "{line}"
    );
    let json = std::fs::read_to_string(served.dir.path().join("trace.stream.1.json"));
    assert!(json.expect("JSON").contains(r#""stream": "0101"#));
}

#[test]
fn a_sender_that_says_no_stream_hears_nothing() {
    // What it does not read when it closes would cost it what it has not sent yet.
    serve(Some(2), |at| {
        for first in [chunk(CHUNK_HELLO, &fields(&[(HELLO_HOSTNAME, b"old")]), LE), Vec::new()] {
            let mut device = common::server::connect(at, LE);
            send(&mut device, &[first, chunk(CHUNK_EVENTS, &calls(1, 10, LE), LE)].concat());
            device.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
            let heard = device.read(&mut [0; 1]).map_err(|error| error.kind());
            assert_eq!(heard, Err(std::io::ErrorKind::WouldBlock));
            wait_closed(device);
        }
    });
}

#[test]
fn a_stream_cut_anywhere_goes_on_where_it_was() {
    let sent = blocks(3, 4);
    let whole = sent.concat();
    // Too slow to try all of them: every seventh, which meets each field of a header.
    for cut in (0..=whole.len()).step_by(7) {
        let served = serve(Some(1), |at| {
            let mut device = Device::connect(at, 1);
            device.send(&whole[..cut]);
            drop(device);
            let mut device = Device::connect(at, 1);
            let has = device.has() as usize;
            assert!(sent[..has].iter().map(Vec::len).sum::<usize>() <= cut);
            sent[has..].iter().for_each(|block| device.send(block));
            device.end(3, 24);
        });
        assert_eq!(numbers_of(&only_capture(&served)), [1, 2, 3], "cut at {cut}");
        assert_eq!((served.totals.stored_events, served.totals.dropped_events), (24, 0));
    }
}

#[test]
fn what_comes_again_is_left_out_and_counted() {
    let sent = blocks(10, CALLS);
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        sent.iter().for_each(|block| device.send(block));
        device.wait_for(10);
        drop(device);
        let mut device = Device::connect(at, 1);
        assert_eq!(device.has(), 10);
        sent[4..].iter().for_each(|block| device.send(block));
        device.end(10, 10 * CALLS * 2);
    });
    assert_eq!(numbers_of(&only_capture(&served)), (1..=10).collect::<Vec<_>>());
    let line = served.lines.last().expect("a line");
    assert!(line.contains("0 dropped; emitted 1000, unaccounted=0; 6 blocks came again"), "{line}");
}

#[test]
fn a_newer_connection_of_a_stream_has_it_and_the_older_one_is_closed() {
    let sent = blocks(10, CALLS);
    let served = serve(Some(1), |at| {
        let mut older = Device::connect(at, 1);
        sent[..5].iter().for_each(|block| older.send(block));
        older.wait_for(5);
        let mut newer = Device::connect(at, 1);
        assert_eq!(newer.has(), 5);
        assert_eq!(older.hear(), None, "it is closed");
        sent[5..].iter().for_each(|block| newer.send(block));
        newer.end(10, 10 * CALLS * 2);
    });
    assert_eq!(numbers_of(&only_capture(&served)), (1..=10).collect::<Vec<_>>());
    assert!(served.said("its sender has connected again"), "{:?}", served.lines);
}

#[test]
fn a_sender_that_missed_the_last_number_hears_it_again() {
    let sent = blocks(3, CALLS);
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        sent.iter().for_each(|block| device.send(block));
        device.send(&end(3, 3 * CALLS * 2, &[]));
        device.wait_for(4);
        drop(device);
        assert_eq!(Device::connect(at, 1).has(), 4);
    });
    assert_eq!(numbers_of(&only_capture(&served)), [1, 2, 3]);
}

#[test]
fn a_damaged_block_closes_its_connection_and_the_stream_goes_on_without_loss() {
    let sent = blocks(6, CALLS);
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        device.send(&sent[0]);
        let mut raw = zstd::bulk::decompress(&sent[1][CHUNK_HEADER_BYTES..], 1 << 20).expect("raw");
        raw[BLOCK_HEADER_BYTES + 3] ^= 1;
        device.send(&chunk(CHUNK_BLOCK, &raw, LE));
        while device.hear().is_some() {}
        let mut device = Device::connect(at, 1);
        assert_eq!(device.has(), 1);
        sent[1..].iter().for_each(|block| device.send(block));
        device.end(6, 6 * CALLS * 2);
    });
    assert_eq!((served.totals.rejected, served.totals.streams), (1, 1));
    assert!(served.said("checksum"), "{:?}", served.lines);
    assert_eq!(numbers_of(&only_capture(&served)), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn thirty_streams_at_once_that_are_cut_off_again_and_again_lose_nothing() {
    let sent = blocks(30, CALLS);
    let served = serve(Some(30), |at| {
        thread::scope(|scope| {
            for stream in 1..=30u8 {
                let sent = &sent;
                scope.spawn(move || {
                    for round in 0..5 {
                        let mut device = Device::connect(at, stream);
                        let has = device.has() as usize;
                        let upto = (has + usize::from(stream) % 7 + round).min(sent.len());
                        sent[has..upto].iter().for_each(|block| device.send(block));
                    }
                    let mut device = Device::connect(at, stream);
                    let has = device.has() as usize;
                    sent[has..].iter().for_each(|block| device.send(block));
                    device.end(30, 30 * CALLS * 2);
                });
            }
        });
    });
    assert_eq!(served.captures().len(), 30);
    for path in served.captures() {
        assert_eq!(numbers_of(&path), (1..=30).collect::<Vec<_>>());
    }
    assert_eq!(served.totals.stored_events, 30 * 30 * CALLS * 2);
}

#[test]
fn another_server_goes_on_in_the_same_capture() {
    let sent = blocks(20, CALLS);
    let dir = tempfile::tempdir().expect("a folder");
    let limits = CaptureLimits { segment_bytes: 2000, budget_bytes: 0 };
    let first = run_server_on(dir, limits, None, Destinations::default(), |at, _| {
        let mut device = Device::connect(at, 1);
        sent[..9].iter().for_each(|block| device.send(block));
        device.wait_for(9);
    });
    let last_segment = first.captures().pop().expect("a segment");
    assert_eq!(last_of(&last_segment).reason, StopReason::Cut as u32);
    let second = run_server_on(first.dir, limits, Some(1), Destinations::default(), |at, _| {
        let mut device = Device::connect(at, 1);
        assert_eq!(device.has(), 9);
        sent[9..].iter().for_each(|block| device.send(block));
        device.end(20, 20 * CALLS * 2);
    });
    assert!(second.said("goes on in trace.stream.1.*.bin behind block 9"), "{:?}", second.lines);
    let line = second.lines.last().expect("a line");
    assert!(line.contains("emitted 1100, unaccounted=0 since block 9)"), "{line}");
    assert_eq!(
        second.totals.to_string(),
        "1 stream, 1100 events, 0 dropped, unaccounted=0, without what an earlier server had of 1 \
         stream"
    );
    let captures = second.captures();
    let numbers: Vec<u64> = captures.iter().flat_map(|path| numbers_of(path)).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    assert!(captures.len() > 2 && captures.iter().all(|path| chunks_of(path)[0].1 == hello(1, LE)));
    assert_eq!(last_of(captures.last().expect("a segment")).reason, StopReason::Closed as u32);
    let third = run_server_on(second.dir, limits, None, Destinations::default(), |at, _| {
        assert_eq!(Device::connect(at, 1).has(), 21, "all of it is there");
    });
    assert_eq!(third.captures(), captures);
}

#[test]
fn what_numbers_pass_over_is_counted_as_never_acknowledged() {
    let mut writer = Writer::new(1);
    let first = writer.block(1, 10);
    writer.next += 6;
    writer.full += 2;
    let second = writer.block_with(2, 10, &loss_events(1, Cause::Full, 2));
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        device.send(&first);
        device.send(&second);
        // One writer of 8 records never came at all.
        device.send(&end(2, 20 + 6 + 20 + 8, &[(Cause::Full, 2)]));
        device.wait_for(3);
    });
    let line = served.lines.last().expect("a line");
    assert!(
        line.contains(
            "(40 events, 1 segment, 14 dropped: 2 full, 12 unacked; emitted 54, unaccounted=0)"
        ),
        "{line}"
    );
}

#[test]
fn what_a_ring_that_was_stopped_for_a_while_dropped_is_stopped_also_where_a_note_calls_it_full() {
    for ends in [true, false] {
        let served = serve(None, |at| {
            let mut writer = Writer::new(1);
            let mut device = Device::connect(at, 1);
            device.send(&writer.block(1, 10));
            writer.next += 40;
            writer.stopped += 40;
            device.send(&writer.block_with(2, 10, &loss_events(1, Cause::Full, 40)));
            device.wait_for(2);
            if ends {
                device.send(&end(2, 80, &[(Cause::Stopped, 40)]));
                device.wait_for(3);
            }
        });
        let line = served.lines.last().expect("a line");
        let expected = "40 dropped: 40 stopped; emitted 80, unaccounted=0)";
        assert!(line.contains(expected), "{line}");
        assert_eq!(served.totals.to_string(), "1 stream, 40 events, 40 dropped, unaccounted=0");
    }
}

#[test]
fn a_torn_record_between_two_blocks_is_one_loss() {
    let mut writer = Writer::new(1);
    let first = writer.block(1, 10);
    writer.next += 1;
    let second = writer.block_with(2, 10, &loss_events(1, Cause::Torn, 1));
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        device.send(&first);
        device.send(&second);
        device.send(&end(2, 41, &[(Cause::Torn, 1)]));
        device.wait_for(3);
    });
    let line = served.lines.last().expect("a line");
    let expected = "(40 events, 1 segment, 1 dropped: 1 torn; emitted 41, unaccounted=0)";
    assert!(line.contains(expected), "{line}");
}

#[test]
fn what_its_sender_did_not_send_is_told_by_its_end() {
    let mut writer = Writer::new(1);
    let sent = [writer.block(1, 10), writer.block(2, 10), writer.block(3, 10)];
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        device.send(&sent[0]);
        device.send(&sent[2]);
        // The block in between had two notes, and another behind the last one 9 records.
        let not_sent = Some((Cause::Queue, 18 + 8, 20 + 9));
        device.send(&end_not_sent(4, 60 + 9, &[], not_sent));
        device.wait_for(5);
    });
    let line = served.lines.last().expect("a line");
    assert!(
        line.contains("(40 events, 1 segment, 26 dropped: 26 queue; emitted 66, unaccounted=0)"),
        "{line}"
    );
}

#[test]
fn a_server_can_unpack_into_a_capture_of_events() {
    let sent = blocks(12, CALLS);
    let dir = tempfile::tempdir().expect("a folder");
    let destinations = Destinations { unpacked: true, ..Destinations::default() };
    let served = run_server_on(dir, NO_LIMITS, Some(1), destinations, |at, _| {
        let mut device = Device::connect(at, 1);
        sent[..6].iter().for_each(|block| device.send(block));
        drop(device);
        let mut device = Device::connect(at, 1);
        let has = device.has() as usize;
        sent[has..].iter().for_each(|block| device.send(block));
        device.end(12, 12 * CALLS * 2);
    });
    let events = calls_of(&only_capture(&served));
    assert_eq!(events.len() as u64, 12 * CALLS * 2);
    let of_first = events.iter().filter(|event| event.tid == 1).map(|event| event.ts);
    assert!(of_first.eq(10..10 + 4 * CALLS * 2), "in order, each once");
}

#[test]
fn a_budget_ends_a_packed_capture_and_all_is_still_acknowledged() {
    let limits = CaptureLimits { segment_bytes: 3000, budget_bytes: 8000 };
    let served = serve_within(limits, Some(1), |at| {
        let mut device = Device::connect(at, 1);
        blocks(60, CALLS).iter().for_each(|block| device.send(block));
        device.end(60, 60 * CALLS * 2);
    });
    let captures = served.captures();
    let bytes: u64 = captures.iter().map(|path| path.metadata().expect("a file").len()).sum();
    assert!(captures.len() > 2 && bytes <= 8000, "{bytes} bytes");
    let stored: u64 = captures.iter().map(|path| packed_hooks(path)).sum();
    let last = last_of(captures.last().expect("a segment"));
    assert_eq!(last.dropped, [(Cause::Budget as u32, 60 * CALLS * 2 - stored)]);
    assert_eq!(last.stop, (MARK_BUDGET, 8000));
    assert_eq!(served.totals.stored_events, stored);
}

#[test]
fn raw_events_of_a_sender_that_packs_later_are_in_the_capture_too() {
    let raw = chunk(CHUNK_EVENTS, &calls(9, 30, LE), LE);
    let served = serve(Some(1), |at| {
        let mut device = Device::connect(at, 1);
        device.send(&raw);
        blocks(2, CALLS).iter().for_each(|block| device.send(block));
        device.end(2, 60 + 2 * CALLS * 2);
    });
    let chunks = chunks_of(&only_capture(&served));
    assert_eq!((chunks[1].0, &chunks[1].1), (CHUNK_EVENTS, &raw));
    assert_eq!(served.totals.stored_events, 60 + 2 * CALLS * 2);
}

#[test]
fn two_streams_with_ids_of_their_own_are_two_captures() {
    let served = serve(Some(2), |at| {
        for stream in [1, 2] {
            let mut device = Device::connect(at, stream);
            device.send(&blocks(1, CALLS)[0]);
            device.end(1, CALLS * 2);
        }
        // A connection without a handshake is no stream of anybody.
        drop(TcpStream::connect(at));
    });
    assert_eq!(served.captures().len(), 2);
}
