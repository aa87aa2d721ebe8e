//! Captures of a server that was killed: taken up at whatever byte they end.

mod common;

use std::path::Path;

use callsight_format::*;
use callsight_hub::capture::{CaptureDir, CaptureLimits, ChunkCapture};
use callsight_hub::stream::{ChunkDecoder, StreamId};
use callsight_hub::{Amount, Ending, Session, SessionMeta, Sink, Tally};
use common::packed::*;
use common::*;

const NO_LIMITS: CaptureLimits = CaptureLimits { segment_bytes: 0, budget_bytes: 0 };

fn meta(id: u32) -> SessionMeta {
    let stream = StreamId::parse(&stream_id(1));
    SessionMeta { stream, ..SessionMeta::new(id, "test", origin(), LE) }
}

/// Runs a session over chunks, into a new capture.
fn store(dir: &Path, limits: CaptureLimits, chunks: &[Vec<u8>]) -> Tally {
    let captures = CaptureDir::open(dir).expect("a folder");
    let reserved = captures.reserve().expect("a number");
    let meta = meta(reserved.id());
    let capture: Box<dyn Sink> = Box::new(ChunkCapture::new(reserved, limits));
    run(Session::start(&meta, vec![capture]), chunks)
}

fn run(mut session: Session, chunks: &[Vec<u8>]) -> Tally {
    let say = |_: &str| {};
    let mut decoder = ChunkDecoder::new(LE);
    for chunk in chunks {
        let chunk = decoder.next(&mut &chunk[..]).expect("honest").expect("whole");
        session.take(&chunk, &say);
    }
    session.finish(0, &say)
}

/// Takes the capture of the stream up as another server would; its last block, and whether it goes
/// on.
fn resume(dir: &Path, limits: CaptureLimits, more: &[Vec<u8>]) -> Option<(u64, Option<Tally>)> {
    let captures = CaptureDir::open(dir).expect("a folder");
    let resumed = captures.resume(StreamId::parse(&stream_id(1)).expect("an id"), limits)?;
    let run = |capture| {
        let sinks = vec![capture];
        run(Session::resume(&meta(resumed.id), sinks, resumed.last_block), more)
    };
    Some((resumed.last_block, resumed.capture.map(run)))
}

/// Hello, then `count` blocks.
fn stream(count: u64) -> Vec<Vec<u8>> {
    [vec![hello(1, LE)], blocks(count, 5)].concat()
}

fn file_of(dir: &Path, seq: u32) -> std::path::PathBuf {
    dir.join(format!("trace.stream.1.{seq}.bin"))
}

#[test]
fn a_capture_cut_at_every_byte_goes_on_behind_its_last_whole_block() {
    let chunks = stream(4);
    let dir = tempfile::tempdir().expect("a folder");
    store(dir.path(), NO_LIMITS, &chunks);
    let path = file_of(dir.path(), 0);
    let whole = std::fs::read(&path).expect("read");
    let mut ends = vec![FILE_HEADER_BYTES];
    chunks.iter().for_each(|chunk| ends.push(ends.last().expect("one") + chunk.len()));
    for cut in 0..whole.len() {
        std::fs::write(&path, &whole[..cut]).expect("write");
        let wanted = ends.iter().filter(|end| **end <= cut).count().checked_sub(2);
        let resumed = resume(dir.path(), NO_LIMITS, &chunks[1..]);
        assert_eq!(
            resumed.as_ref().map(|(last, _)| *last),
            wanted.map(|n| n as u64),
            "cut at {cut}"
        );
        if let Some((last, tally)) = resumed {
            assert_eq!(numbers_of(&path), [1, 2, 3, 4], "cut at {cut}");
            let tally = tally.expect("it goes on");
            assert_eq!((tally.duplicate_blocks, tally.stored_events()), (last, (4 - last) * 10));
        }
    }
}

#[test]
fn a_segment_whose_head_was_not_written_is_begun_again() {
    let limits = CaptureLimits { segment_bytes: 1300, budget_bytes: 0 };
    let chunks = stream(9);
    for cut in [0, 40, 80, 100] {
        let dir = tempfile::tempdir().expect("a folder");
        store(dir.path(), limits, &chunks[..8]);
        let last = (0..).take_while(|seq| file_of(dir.path(), *seq).exists()).last().expect("one");
        let path = file_of(dir.path(), last);
        let lost = numbers_of(&path).len() as u64;
        assert!(last > 0 && lost > 0);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, &whole[..cut]).expect("write");
        let (number, _) = resume(dir.path(), limits, &chunks[1..]).expect("a capture");
        assert_eq!(number, 7 - lost, "cut at {cut}");
        let segments = (0..).map(|seq| file_of(dir.path(), seq)).take_while(|path| path.exists());
        let numbers: Vec<u64> = segments.flat_map(|path| numbers_of(&path)).collect();
        assert_eq!(numbers, (1..=9).collect::<Vec<_>>(), "cut at {cut}");
    }
}

#[test]
fn a_block_that_was_damaged_in_the_file_is_asked_for_again() {
    let chunks = stream(4);
    let dir = tempfile::tempdir().expect("a folder");
    store(dir.path(), NO_LIMITS, &chunks);
    let path = file_of(dir.path(), 0);
    let mut bytes = std::fs::read(&path).expect("read");
    let at = FILE_HEADER_BYTES + chunks[..4].concat().len() + chunks[4].len() / 2;
    bytes[at] ^= 0x40;
    std::fs::write(&path, bytes).expect("write");
    assert_eq!(resume(dir.path(), NO_LIMITS, &chunks[1..]).expect("a capture").0, 3);
    assert_eq!(numbers_of(&path), [1, 2, 3, 4]);
}

#[test]
fn a_capture_that_is_damaged_within_is_left_as_it_is() {
    let chunks = stream(4);
    let dir = tempfile::tempdir().expect("a folder");
    store(dir.path(), NO_LIMITS, &chunks);
    let path = file_of(dir.path(), 0);
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[FILE_HEADER_BYTES + chunks[..2].concat().len() + 7] = 0xff; // the length of a block
    std::fs::write(&path, &bytes).expect("write");
    assert!(resume(dir.path(), NO_LIMITS, &[]).is_none());
    assert_eq!(std::fs::read(&path).expect("read"), bytes);
}

#[test]
fn a_capture_that_somebody_writes_to_is_not_taken_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let captures = CaptureDir::open(dir.path()).expect("a folder");
    let reserved = captures.reserve().expect("a number");
    let mut capture = ChunkCapture::new(reserved, NO_LIMITS);
    capture.init(&meta(1)).expect("a head");
    std::fs::write(file_of(dir.path(), 0), stream(1).concat()).expect("write");
    assert!(resume(dir.path(), NO_LIMITS, &[]).is_none());
}

#[test]
fn what_an_earlier_server_dropped_stays_counted_and_a_full_capture_full() {
    let limits = CaptureLimits { segment_bytes: 0, budget_bytes: 1800 };
    let chunks = stream(12);
    let dir = tempfile::tempdir().expect("a folder");
    let first = store(dir.path(), limits, &chunks[..10]);
    let (last, second) = resume(dir.path(), limits, &chunks[10..]).expect("a capture");
    let stored = first.stored_events();
    assert_eq!(last * 10, stored);
    let dropped = 11 * 10 - stored;
    assert_eq!(last_of(&file_of(dir.path(), 0)).dropped, [(Cause::Budget as u32, dropped + 10)]);
    let second = second.expect("it goes on");
    assert_eq!((second.stored_events(), second.dropped_events().sum()), (0, 30));
}

#[test]
fn an_end_is_known_to_another_server() {
    let chunks = [stream(3), vec![end(3, 30, &[])]].concat();
    let dir = tempfile::tempdir().expect("a folder");
    store(dir.path(), NO_LIMITS, &chunks);
    let before = std::fs::read(file_of(dir.path(), 0)).expect("read");
    assert_eq!(resume(dir.path(), NO_LIMITS, &[]), Some((3, None)));
    assert_eq!(std::fs::read(file_of(dir.path(), 0)).expect("read"), before);
}

#[test]
fn what_a_capture_was_not_given_stands_in_its_last_chunk_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let captures = CaptureDir::open(dir.path()).expect("a folder");
    let mut capture = ChunkCapture::new(captures.reserve().expect("a number"), NO_LIMITS);
    capture.init(&meta(1)).expect("a head");
    let mut ending = Ending { cut: true, ..Ending::default() };
    ending.not_given.add(Cause::Queue, Amount { events: 70, records: 73 });
    capture.close(&ending);
    let dropped = vec![(Cause::Queue as u32, 70)];
    let last = Last { dropped, records: 73, reason: StopReason::Cut as u32, ..Last::default() };
    assert_eq!(last_of(&file_of(dir.path(), 0)), last);
}

#[test]
fn a_budget_holds_whatever_its_size_and_every_event_is_stored_or_told() {
    let chunks = [stream(40), vec![end(40, 400, &[])]].concat();
    for segment_bytes in [0, 1000, 3000] {
        for budget_bytes in (1..9000).step_by(211) {
            let limits = CaptureLimits { segment_bytes, budget_bytes };
            let dir = tempfile::tempdir().expect("a folder");
            let tally = store(dir.path(), limits, &chunks);
            let paths = (0..).map(|seq| file_of(dir.path(), seq));
            let segments: Vec<_> = paths.take_while(|path| path.exists()).collect();
            let bytes: u64 =
                segments.iter().map(|path| path.metadata().expect("a file").len()).sum();
            // One header and the last two chunks are the least a capture takes.
            assert!(bytes <= budget_bytes.max(500), "{bytes} of {budget_bytes}");
            let stored: u64 = segments.iter().map(|path| packed_hooks(path)).sum();
            assert_eq!(tally.stored_events(), stored, "{limits:?}");
            let last = last_of(segments.last().expect("a segment"));
            let dropped = vec![(Cause::Budget as u32, 400 - stored)];
            let is_whole = stored == 400 && last.dropped.is_empty();
            assert!(is_whole || last.dropped == dropped, "{limits:?}: {last:?}");
            assert_eq!(last.records, 400 - stored, "{limits:?}: {last:?}");
            assert_eq!(last.reason, StopReason::Closed as u32, "{limits:?}");
        }
    }
}
