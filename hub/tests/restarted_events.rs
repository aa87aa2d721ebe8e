//! Two streams of one ring in captures of events, whose drain was killed, and the server with it:
//! each event is there once or counted.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use callsight_format::*;
use callsight_hub::capture::CaptureLimits;
use callsight_hub::ingest::Destinations;
use common::packed::*;
use common::server::*;
use common::{calls_of, events_of, loss_events, told};

/// A server of events on a folder, which ends in order.
fn serve_events(dir: tempfile::TempDir, devices: impl FnOnce(SocketAddr, &Path)) -> Served {
    serve_as(true, dir, devices)
}

/// The same of events or of chunks.
fn serve_as(
    unpacked: bool,
    dir: tempfile::TempDir,
    devices: impl FnOnce(SocketAddr, &Path),
) -> Served {
    let destinations = Destinations { unpacked, ..Destinations::default() };
    run_server_on(dir, NO_LIMITS, None, destinations, devices)
}

/// What a server of events leaves that is killed when `devices` are done.
fn killed_behind(dir: tempfile::TempDir, devices: impl FnOnce(SocketAddr)) -> tempfile::TempDir {
    killed_as(true, dir, devices)
}

/// The same of events or of chunks.
fn killed_as(
    unpacked: bool,
    dir: tempfile::TempDir,
    devices: impl FnOnce(SocketAddr),
) -> tempfile::TempDir {
    let left = folder();
    serve_as(unpacked, dir, |at, dir| {
        devices(at);
        for entry in fs::read_dir(dir).expect("list") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), left.path().join(entry.file_name())).expect("copy");
        }
    });
    left
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Sends blocks as the next stream of the ring, from whose records others had taken so many.
fn send(at: SocketAddr, stream: u8, taken: u64, blocks: &[Vec<u8>]) -> Device {
    let mut device = drain(at, stream, b"boot", taken);
    blocks.iter().for_each(|block| device.send(block));
    device.wait_for(blocks.len() as u64);
    device
}

/// The same to the end of the ring.
fn send_all(at: SocketAddr, stream: u8, taken: u64, blocks: &[Vec<u8>], calls: u64) {
    send(at, stream, taken, blocks).end(blocks.len() as u64, 2 * calls);
}

/// Blocks of these threads, each with the number of its first record and its calls.
fn sent(blocks: &[(u32, u64, u64)]) -> Vec<Vec<u8>> {
    let numbered = (1..).zip(blocks);
    let block = |(number, (tid, first, calls)): (u64, &(u32, u64, u64))| {
        let mut writer = Writer { next: *first, ..Writer::new(*tid) };
        writer.block(number, *calls)
    };
    numbered.map(block).collect()
}

fn all<T>(served: &Served, of: impl Fn(&Path) -> Vec<T>) -> Vec<T> {
    served.captures().iter().flat_map(|path| of(path)).collect()
}

/// Numbers of the records that are there of each thread.
fn records(served: &Served) -> BTreeMap<u32, Vec<u64>> {
    let mut records: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    // The time of a record is its number, and 10.
    all(served, calls_of).iter().for_each(|e| records.entry(e.tid).or_default().push(e.ts - 10));
    records
}

/// The losses told in all captures.
fn losses(served: &Served) -> Vec<(u32, u64)> {
    let told = told(&all(served, events_of)).into_iter();
    told.filter(|(_, events)| *events > 0).collect()
}

/// How many captures say that they broke off before their end.
fn cut(served: &Served) -> usize {
    let cut = [&4u16.to_le_bytes()[..], &(StopReason::Cut as u32).to_le_bytes()].concat();
    let pieces = all(served, events_of).iter().filter_map(NotePiece::of).collect::<Vec<_>>();
    let stops = pieces.iter().filter(|piece| piece.code == NOTE_STOP);
    stops.filter(|stop| stop.bytes.starts_with(&cut)).count()
}

const UNACKED: u32 = Cause::Unacked as u32;

/// A drain sends 60 records; it and the server are killed. The next ones begin at record `from`, which
/// had been `taken`, and go on to the 120th.
fn both_killed(from: u64, taken: u64) -> Served {
    let left = killed_behind(folder(), |at| {
        send(at, 1, 0, &sent(&[(1, 0, 10), (1, 20, 10), (1, 40, 10)]));
    });
    let calls = (120 - from) / 2;
    serve_events(left, |at, _| send_all(at, 2, taken, &sent(&[(1, from, calls)]), calls))
}

#[test]
fn what_a_drain_held_that_was_killed_with_its_server_is_told() {
    for from in [60, 80, 118] {
        let served = both_killed(from, from);
        assert_eq!(
            records(&served)[&1],
            [(0..60).collect::<Vec<_>>(), (from..120).collect()].concat()
        );
        let missing = if from > 60 { vec![(UNACKED, from - 60)] } else { vec![] };
        assert_eq!(losses(&served), missing, "from {from}");
        assert_eq!(served.totals.dropped_events, from - 60);
        assert_eq!(cut(&served), 0, "what is missing is told");
    }
}

#[test]
fn what_a_drain_sends_again_to_the_next_server_is_there_once() {
    for from in [58, 42, 40, 2, 0] {
        let served = both_killed(from, from);
        assert_eq!(records(&served)[&1], (0..120).collect::<Vec<_>>(), "from {from}");
        assert_eq!(losses(&served), [], "from {from}");
        assert_eq!((served.totals.again_events, served.totals.dropped_events), (60 - from, 0));
    }
}

#[test]
fn one_thread_of_which_records_come_again_hides_nothing_that_is_missing_of_another() {
    let left = killed_behind(folder(), |at| {
        send(at, 1, 0, &sent(&[(1, 0, 10), (2, 0, 10)]));
    });
    // 30 of the second are in the file beside alone.
    let served = serve_events(left, |at, _| {
        send_all(at, 2, 60, &sent(&[(1, 10, 10), (2, 50, 10)]), 20);
    });
    let of_second = [(0..20).collect::<Vec<_>>(), (50..70).collect()].concat();
    assert_eq!(records(&served), BTreeMap::from([(1, (0..30).collect()), (2, of_second)]));
    assert_eq!(losses(&served), [(UNACKED, 30)]);
}

#[test]
fn what_was_lost_of_a_thread_that_had_ended_is_told_by_the_sum() {
    let left = killed_behind(folder(), |at| {
        send(at, 1, 0, &sent(&[(1, 0, 10)]));
    });
    let served = serve_events(left, |at, _| send_all(at, 2, 90, &sent(&[(3, 0, 10)]), 10));
    assert_eq!(losses(&served), [(UNACKED, 70)]);
    assert_eq!(cut(&served), 0);
}

/// Threads of which a capture tells that some is missing before their first record there, and when that is.
fn gaps(path: &Path) -> Vec<(u32, u64)> {
    let events = events_of(path);
    let pieces = events.iter().filter_map(|event| Some((event.tid, NotePiece::of(event)?)));
    let pieces = pieces.filter(|(_, piece)| piece.code == NOTE_LOSS);
    let mut notes: BTreeMap<u32, NoteAssembler> = BTreeMap::new();
    let whole = pieces.filter_map(|(tid, piece)| {
        let loss = LossNote::parse(notes.entry(tid).or_default().push(&piece)?.1)?;
        (loss.last > 0).then_some((tid, loss.last))
    });
    whole.collect()
}

#[test]
fn each_stream_tells_which_threads_lost_some_before_it() {
    let one = killed_behind(folder(), |at| {
        send(at, 1, 0, &sent(&[(1, 0, 10), (2, 0, 10), (3, 0, 10)]));
    });
    // 30 are of a thread that had ended.
    let other = killed_behind(one, |at| {
        send(at, 2, 110, &sent(&[(1, 32, 5), (2, 20, 5), (3, 28, 5)]));
    });
    let served = serve_events(other, |at, _| send_all(at, 3, 150, &sent(&[(2, 40, 5)]), 5));
    let told: Vec<_> = served.captures().iter().map(|path| gaps(path)).collect();
    // The time of a record is its number, and 10.
    assert_eq!(told, [vec![], vec![(3, 38), (1, 42)], vec![(2, 50)]]);
    let lost: u64 = losses(&served).iter().map(|(_, events)| events).sum();
    assert_eq!(lost, 50 + 10);
}

#[test]
fn a_server_of_chunks_counts_what_a_drain_held_that_was_killed_with_the_one_before() {
    for (from, lost, again) in [(60, 0, 0), (80, 20, 0), (118, 58, 0), (42, 0, 18), (0, 0, 60)] {
        let left = killed_as(false, folder(), |at| {
            send(at, 1, 0, &sent(&[(1, 0, 10), (1, 20, 10), (1, 40, 10)]));
        });
        let calls = (120 - from) / 2;
        let served = serve_as(false, left, |at, _| {
            send_all(at, 2, from, &sent(&[(1, from, calls)]), calls);
        });
        assert_eq!(served.totals.dropped_events, lost, "from {from}, {again} came twice");
    }
    // Of a thread that had ended, and of one that ended in between.
    let left = killed_as(false, folder(), |at| {
        send(at, 1, 0, &sent(&[(1, 0, 10), (2, 0, 10)]));
    });
    let served =
        serve_as(false, left, |at, _| send_all(at, 2, 90, &sent(&[(3, 0, 10), (2, 30, 5)]), 15));
    assert_eq!(served.totals.dropped_events, 50);
}

#[test]
fn a_server_of_chunks_counts_no_loss_that_lies_between_streams_of_earlier_ones() {
    let one = killed_as(false, folder(), |at| {
        send(at, 1, 0, &sent(&[(1, 0, 10)]));
    });
    // This drain goes on with the next server, which is stopped, then is killed.
    let other = killed_as(false, one, |at| {
        let mut device = drain(at, 1, b"boot", 0);
        let blocks = sent(&[(1, 0, 10), (1, 20, 5)]);
        blocks.iter().for_each(|block| device.send(block));
        device.wait_for(2);
    });
    let third = serve_as(false, other, |at, _| {
        let mut device = drain(at, 1, b"boot", 0);
        let blocks = sent(&[(1, 0, 10), (1, 20, 5), (1, 30, 5)]);
        blocks.iter().for_each(|block| device.send(block));
        device.wait_for(3);
        drop(device);
        send(at, 2, 47, &sent(&[(1, 47, 5)]));
    });
    assert_eq!((third.totals.resumed_streams, third.totals.dropped_events), (1, 7));
    let last = serve_as(false, third.dir, |at, _| {
        send_all(at, 3, 60, &sent(&[(1, 60, 5)]), 5);
    });
    assert_eq!(last.totals.dropped_events, 3);
}

#[test]
fn a_loss_between_two_streams_is_told_once_however_often_servers_are_killed() {
    let one = killed_behind(folder(), |at| {
        send(at, 1, 0, &sent(&[(1, 0, 10)]));
    });
    let other = killed_behind(one, |at| {
        send(at, 2, 30, &sent(&[(1, 30, 10)]));
    });
    // One that ends in order has told it.
    let third = serve_events(other, |at, _| drop(send(at, 3, 45, &sent(&[(1, 45, 10)]))));
    assert_eq!(losses(&third), [(UNACKED, 10)]);
    let last = serve_events(third.dir, |at, _| send_all(at, 4, 72, &sent(&[(1, 72, 10)]), 10));
    assert_eq!(losses(&last), [(UNACKED, 10), (UNACKED, 7)]);
    let there = [0..20, 30..65, 72..92].into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(records(&last)[&1], there);
}

#[test]
fn whatever_of_the_files_beside_was_not_stored_any_more_each_event_is_there_once_or_counted() {
    let blocks = sent(&[(1, 0, 10), (2, 0, 10), (1, 20, 10)]);
    for harm in 0..4 {
        let left = killed_behind(folder(), |at| drop(send(at, 1, 0, &blocks)));
        let beside = |name: &str| left.path().join(format!("trace.stream.1.{name}"));
        match harm {
            // The slot of the last block is that of its writer's first one.
            0 => {
                let before = killed_behind(folder(), |at| drop(send(at, 1, 0, &blocks[..2])));
                fs::copy(before.path().join("trace.stream.1.writers"), beside("writers"))
                    .expect("copy");
            }
            1 => fs::remove_file(beside("writers")).expect("remove"),
            // A block was being stored that was not acknowledged.
            2 => {
                let events = fs::read(beside("0.bin")).expect("read");
                let more = [&events[..], &events[events.len() - 10 * EVENT_BYTES..]].concat();
                fs::write(beside("0.bin"), more).expect("write");
            }
            _ => {}
        }
        let next = sent(&[(1, 50, 10), (2, 20, 10)]);
        let served = serve_events(left, |at, _| send_all(at, 2, 70, &next, 20));
        let first = [0..40, 50..70].into_iter().flatten().collect();
        assert_eq!(records(&served), BTreeMap::from([(1, first), (2, (0..40).collect())]));
        assert_eq!(losses(&served), [(UNACKED, 10)], "{harm}");
    }
}

#[test]
fn a_stream_that_went_on_at_the_next_server_is_known_as_a_whole_there() {
    let blocks = sent(&[(1, 0, 10), (2, 0, 10), (1, 20, 10)]);
    let left = killed_behind(folder(), |at| drop(send(at, 1, 0, &blocks[..2])));
    let served = serve_events(left, |at, _| {
        let mut device = drain(at, 1, b"boot", 0);
        assert_eq!(device.has(), 2);
        device.send(&blocks[2]);
        device.wait_for(3);
        drop(device);
        send_all(at, 2, 60, &sent(&[(1, 35, 10), (2, 25, 10)]), 20);
    });
    let second = [0..20, 25..45].into_iter().flatten().collect();
    assert_eq!(records(&served), BTreeMap::from([(1, (0..55).collect()), (2, second)]));
    assert_eq!(losses(&served), [(UNACKED, 5)]);
    assert_eq!(cut(&served), 0);
}

/// A folder is put back from a copy while a stream goes on: what its sender was told to have arrived is in
/// no file any more.
#[test]
fn what_a_folder_put_back_from_a_copy_does_not_have_is_counted() {
    let blocks = sent(&[
        (1, 0, 10),
        (2, 0, 10),
        (1, 20, 10),
        (2, 20, 10),
        (3, 0, 10),
        (1, 40, 5),
        (3, 20, 5),
    ]);
    for unpacked in [true, false] {
        for kept in [2, 3, 5] {
            let copy = killed_as(unpacked, folder(), |at| drop(send(at, 1, 0, &blocks[..kept])));
            let served = serve_as(unpacked, copy, |at, _| {
                let mut device = drain(at, 1, b"boot", 0);
                assert_eq!(device.has(), kept as u64);
                blocks[5..].iter().for_each(|block| device.send(block));
                device.end(7, 120);
            });
            let missing = 20 * blocks[kept..5].len() as u64;
            assert_eq!(served.totals.dropped_events, missing, "{unpacked} {kept}");
            assert_eq!(served.said("are missing"), kept < 5, "{:?}", served.lines);
            if unpacked {
                let told: u64 = losses(&served).iter().map(|(_, events)| events).sum();
                assert_eq!(told, missing, "{kept}");
            }
        }
    }
}

/// As in a copy of a folder that is written to: the position is newer than the segments.
#[test]
fn a_capture_whose_last_segments_are_not_there_is_gone_on_with_and_they_are_counted() {
    let blocks = sent(&[(1, 0, 50), (1, 100, 50), (1, 200, 50), (1, 300, 50)]);
    // 100 records, and what is kept free for the last ones.
    let limits = CaptureLimits { segment_bytes: 6 << 10, budget_bytes: 0 };
    let destinations = || Destinations { unpacked: true, ..Destinations::default() };
    for gone in [1, 2] {
        let left = folder();
        run_server_on(folder(), limits, None, destinations(), |at, dir| {
            drop(send(at, 1, 0, &blocks[..3]));
            for entry in fs::read_dir(dir).expect("list") {
                let entry = entry.expect("an entry");
                fs::copy(entry.path(), left.path().join(entry.file_name())).expect("copy");
            }
        });
        let segment = |seq: usize| left.path().join(format!("trace.stream.1.{seq}.bin"));
        let segments = (0..).take_while(|seq| segment(*seq).exists()).count();
        assert!(segments > gone, "{segments} segments");
        (segments - gone..segments).for_each(|seq| fs::remove_file(segment(seq)).expect("remove"));
        let served = run_server_on(left, limits, None, destinations(), |at, _| {
            let mut device = drain(at, 1, b"boot", 0);
            assert_eq!(device.has(), 3);
            device.send(&blocks[3]);
            device.end(4, 400);
        });
        let there = records(&served)[&1].len() as u64;
        assert!((100..400).contains(&there), "{there}");
        assert_eq!(losses(&served), [(Cause::Io as u32, 400 - there)], "{gone} segments gone");
        assert!(!served.dir.path().join("trace.stream.2.0.bin").exists());
    }
}

/// Of two forms nobody could tell which records are in both.
#[test]
fn a_ring_stays_in_the_form_in_which_it_began_whatever_the_next_server_is_asked_for() {
    for unpacked in [true, false] {
        let first = sent(&[(1, 0, 10), (1, 20, 10)]);
        let left = killed_as(unpacked, folder(), |at| drop(send(at, 1, 0, &first)));
        let served = serve_as(!unpacked, left, |at, _| {
            send_all(at, 2, 20, &sent(&[(1, 20, 10), (1, 40, 10)]), 20);
            // Another ring is stored as asked for.
            let mut other = drain(at, 3, b"another boot", 0);
            other.send(&sent(&[(5, 0, 10)])[0]);
            other.end(1, 20);
        });
        assert!(served.said("as what came of its ring before"), "{:?}", served.lines);
        let is_in_chunks = |path: &std::path::PathBuf| {
            let (header, _) = FileHeader::parse(&fs::read(path).expect("read")).expect("a header");
            header.version == FILE_VERSION_CHUNKS
        };
        let forms: Vec<bool> = served.captures().iter().map(is_in_chunks).collect();
        assert_eq!(forms, [!unpacked, !unpacked, unpacked]);
        if unpacked {
            assert_eq!(events_of(&served.captures()[1]).iter().filter(|e| e.tid == 1).count(), 20);
        }
    }
}

#[test]
fn a_server_that_lives_on_stores_what_two_drains_send_once_and_tells_what_is_missing() {
    for (from, missing) in [(60, 0), (40, 0), (75, 15)] {
        let served = serve_events(folder(), |at, _| {
            let first = send(at, 1, 0, &sent(&[(1, 0, 10), (1, 20, 20)]));
            drop(first);
            let calls = (120 - from) / 2;
            send_all(at, 2, from, &sent(&[(1, from, calls)]), calls);
        });
        let behind = (60 + missing)..(120 - (from & 1));
        let there = (0..60).chain(behind).collect::<Vec<_>>();
        assert_eq!(records(&served)[&1], there, "from {from}");
        let lost: u64 = losses(&served).iter().map(|(_, events)| events).sum();
        assert_eq!((lost, served.totals.dropped_events), (missing, missing), "from {from}");
        assert_eq!(cut(&served), 0);
    }
}

#[test]
fn a_loss_that_both_drains_tell_is_told_once_in_their_captures() {
    let notes = loss_events(1, Cause::Full, 7);
    let block = |number, calls| {
        let mut writer = Writer { full: 7, next: 27, ..Writer::new(1) };
        writer.block_with(number, calls, &notes)
    };
    let first = [sent(&[(1, 0, 10)]), vec![block(2, 10)]].concat();
    for kills_server in [true, false] {
        let last = |at: SocketAddr| {
            let mut device = send(at, 2, 20, &[block(1, 20)]);
            device.send(&end(1, 47, &[(Cause::Full, 7)]));
            device.wait_for(2);
        };
        let served = match kills_server {
            true => {
                let left = killed_behind(folder(), |at| drop(send(at, 1, 0, &first)));
                serve_events(left, |at, _| last(at))
            }
            false => serve_events(folder(), |at, _| {
                drop(send(at, 1, 0, &first));
                last(at);
            }),
        };
        let there = [0..20, 27..67].into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(records(&served)[&1], there);
        assert_eq!(losses(&served), [(Cause::Full as u32, 7)], "server killed: {kills_server}");
    }
}
