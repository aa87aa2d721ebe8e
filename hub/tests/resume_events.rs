//! Captures of events of a server that was killed: taken up behind the last block that was acknowledged.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use callsight_format::*;
use callsight_hub::capture::{CaptureDir, CaptureLimits, EventCapture};
use callsight_hub::ingest::Destinations;
use callsight_hub::stream::{ChunkDecoder, StreamId};
use callsight_hub::{Losses, Session, SessionMeta, Sink, Tally};
use common::packed::*;
use common::server::*;
use common::*;

fn id() -> StreamId {
    StreamId::parse(&stream_id(1)).expect("an id")
}

fn meta(id_of_capture: u32) -> SessionMeta {
    SessionMeta { stream: Some(id()), ..SessionMeta::new(id_of_capture, "test", origin(), LE) }
}

fn take(session: &mut Session, chunks: &[Vec<u8>]) {
    let mut decoder = ChunkDecoder::new(LE);
    for chunk in chunks {
        let chunk = decoder.next(&mut &chunk[..]).expect("honest").expect("whole");
        session.take(&chunk, &|_: &str| {});
    }
}

/// A session of these chunks whose capture has all of them.
fn begin(dir: &Path, limits: CaptureLimits, chunks: &[Vec<u8>]) -> Session {
    let captures = CaptureDir::open(dir).expect("a folder");
    let reserved = captures.reserve().expect("a number");
    let meta = meta(reserved.id());
    let capture: Box<dyn Sink> = Box::new(EventCapture::new(reserved, limits));
    let mut session = Session::start(&meta, vec![capture]);
    take(&mut session, chunks);
    while session.acknowledged() < session.taken() {
        std::thread::yield_now();
    }
    session
}

/// What a server leaves behind that is killed when it has these chunks.
fn killed_behind(limits: CaptureLimits, chunks: &[Vec<u8>]) -> tempfile::TempDir {
    let (running, left) = (folder(), folder());
    let session = begin(running.path(), limits, chunks);
    for entry in fs::read_dir(running.path()).expect("list") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), left.path().join(entry.file_name())).expect("copy");
    }
    drop(session);
    left
}

/// Takes the capture up as another server would; its last block, and whether it goes on.
fn resume(dir: &Path, limits: CaptureLimits, chunks: &[Vec<u8>]) -> Option<(u64, Option<Tally>)> {
    let captures = CaptureDir::open(dir).expect("a folder");
    let resumed = captures.resume(id(), limits)?;
    let rest = resumed.capture.map(|capture| {
        let sinks = vec![capture];
        let mut session = Session::resume(&meta(resumed.id), sinks, resumed.last_block);
        take(&mut session, chunks);
        session.finish(0, &|_: &str| {})
    });
    Some((resumed.last_block, rest))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let paths = (0..).map(|seq| dir.join(format!("trace.stream.1.{seq}.bin")));
    paths.take_while(|path| path.exists()).collect()
}

fn stored(dir: &Path) -> Vec<Event> {
    segments(dir).iter().flat_map(|path| events_of(path)).collect()
}

fn stored_calls(dir: &Path) -> Vec<Event> {
    stored(dir).into_iter().filter(|event| event.kind <= KIND_EXIT).collect()
}

/// Hello, `count` blocks of 10 enters and exits, and the end.
fn stream(count: u64) -> Vec<Vec<u8>> {
    [vec![hello(1, LE)], blocks(count, 5), vec![end(count, 10 * count, &[])]].concat()
}

fn all_calls(chunks: &[Vec<u8>]) -> Vec<Event> {
    let dir = folder();
    begin(dir.path(), NO_LIMITS, chunks).finish(0, &|_: &str| {});
    stored_calls(dir.path())
}

#[test]
fn whatever_stands_behind_the_last_block_acknowledged_no_event_is_missing_and_none_there_twice() {
    let chunks = stream(6);
    let truth = all_calls(&chunks);
    assert_eq!(truth.len(), 60);
    for segment_bytes in [0, 1500] {
        let limits = CaptureLimits { segment_bytes, budget_bytes: 0 };
        let ahead = killed_behind(limits, &chunks[..6]);
        for behind in 0..400 {
            // The position is that of a block before, and some bytes of the next are there.
            let left = killed_behind(limits, &chunks[..4]);
            let last = segments(left.path()).pop().expect("a segment");
            let more =
                fs::read(ahead.path().join(last.file_name().expect("a name"))).expect("read");
            let bytes = fs::metadata(&last).expect("a file").len() as usize;
            fs::write(&last, &more[..more.len().min(bytes + behind)]).expect("write");
            let (number, tally) = resume(left.path(), limits, &chunks[1..]).expect("a capture");
            assert_eq!(number, 3, "{behind} bytes");
            assert_eq!(stored_calls(left.path()), truth, "{behind} bytes");
            let tally = tally.expect("it goes on");
            assert_eq!((tally.duplicate_blocks, tally.stored_events()), (3, 30));
            assert_eq!(tally.dropped_events(), Losses::default());
            assert_eq!(told(&stored(left.path())), [], "{behind} bytes");
            if behind > 40 && segment_bytes > 0 {
                break;
            }
        }
    }
}

#[test]
fn a_segment_that_was_begun_and_not_acknowledged_is_begun_again() {
    let limits = CaptureLimits { segment_bytes: 1500, budget_bytes: 0 };
    let chunks = stream(9);
    for head in [0, 40, 200] {
        let left = killed_behind(limits, &chunks[..6]);
        let next = segments(left.path()).len();
        fs::write(left.path().join(format!("trace.stream.1.{next}.bin")), vec![7; head])
            .expect("write");
        resume(left.path(), limits, &chunks[1..]).expect("a capture");
        assert_eq!(stored_calls(left.path()), all_calls(&chunks), "{head} bytes");
    }
}

#[test]
fn losses_that_were_told_before_are_not_told_again_by_the_end() {
    let mut writer = Writer::new(1);
    let note = loss_events(1, Cause::Full, 7);
    let mut chunks = vec![hello(1, LE), writer.block(1, 5), writer.block_with(2, 5, &note)];
    (writer.next, writer.full) = (writer.next + 7, 7);
    chunks
        .extend([writer.block(3, 5), end(3, 30 + 7 + 4, &[(Cause::Full, 7), (Cause::NoSlot, 4)])]);
    for killed in 1..chunks.len() - 1 {
        let left = killed_behind(NO_LIMITS, &chunks[..=killed]);
        resume(left.path(), NO_LIMITS, &chunks[1..]).expect("a capture");
        let told = told(&stored(left.path()));
        let wanted = [(Cause::Full as u32, 7), (Cause::NoSlot as u32, 4)];
        assert_eq!(told, wanted, "killed behind chunk {killed}");
    }
}

#[test]
fn blocks_that_were_missing_before_the_kill_stay_counted() {
    let mut chunks = stream(9);
    // Block 4, of the writer whose blocks 1 and 7 came.
    chunks.remove(4);
    let left = killed_behind(NO_LIMITS, &chunks[..8]);
    resume(left.path(), NO_LIMITS, &chunks[1..]).expect("a capture");
    assert_eq!(told(&stored(left.path())), [(Cause::Unacked as u32, 10)]);
}

#[test]
fn a_capture_that_was_full_stays_full_and_tells_all_that_it_does_not_have() {
    let limits = CaptureLimits { segment_bytes: 0, budget_bytes: 2400 };
    let chunks = stream(12);
    for killed in [3, 6, 9, 11] {
        let left = killed_behind(limits, &chunks[..=killed]);
        resume(left.path(), limits, &chunks[1..]).expect("a capture");
        let calls = stored_calls(left.path()).len() as u64;
        assert!((1..120).contains(&calls), "{calls}");
        assert_eq!(told(&stored(left.path())), [(Cause::Budget as u32, 120 - calls)]);
        assert!(fs::metadata(&segments(left.path())[0]).expect("a file").len() <= 2400);
    }
}

#[test]
fn a_server_that_ended_in_order_and_the_next_one_tell_what_both_lost() {
    let chunks = stream(9);
    let dir = folder();
    begin(dir.path(), NO_LIMITS, &chunks[..5]).finish(0, &|_: &str| {});
    let (number, _) = resume(dir.path(), NO_LIMITS, &chunks[1..]).expect("a capture");
    assert_eq!((number, stored_calls(dir.path())), (4, all_calls(&chunks)));
    // It has all of it now.
    assert_eq!(resume(dir.path(), NO_LIMITS, &[]), Some((9, None)));
}

#[test]
fn what_the_disk_lost_of_a_capture_is_counted() {
    let chunks = stream(9);
    let left = killed_behind(NO_LIMITS, &chunks[..5]);
    let path = &segments(left.path())[0];
    let bytes = fs::metadata(path).expect("a file").len();
    let file = fs::OpenOptions::new().write(true).open(path).expect("open");
    file.set_len(bytes - 70).expect("cut");
    resume(left.path(), NO_LIMITS, &chunks[1..]).expect("a capture");
    assert_eq!(stored_calls(left.path()).len(), 87);
    // Of the third event 26 bytes are left, which are none.
    assert_eq!(told(&stored(left.path())), [(Cause::Io as u32, 3)]);
}

#[test]
fn a_capture_that_somebody_writes_to_is_not_taken_up() {
    let dir = folder();
    let session = begin(dir.path(), NO_LIMITS, &stream(3)[..3]);
    assert!(resume(dir.path(), NO_LIMITS, &[]).is_none());
    drop(session);
}

/// What a server that is started with other flags makes of a stream whose beginning is there.
#[test]
fn a_stream_goes_on_in_the_form_in_which_it_began_whatever_the_next_server_is_told() {
    for unpacked in [false, true] {
        let dir = folder();
        let destinations = |unpacked| Destinations { unpacked, ..Destinations::default() };
        let sent = blocks(9, 5);
        let first = run_server_on(dir, NO_LIMITS, None, destinations(unpacked), |at, _| {
            let mut device = Device::connect(at, 1);
            sent[..5].iter().for_each(|block| device.send(block));
            device.wait_for(5);
        });
        let second = run_server_on(first.dir, NO_LIMITS, None, destinations(!unpacked), |at, _| {
            let mut device = Device::connect(at, 1);
            assert_eq!(device.has(), 5);
            sent[5..].iter().for_each(|block| device.send(block));
            device.end(9, 90);
        });
        let form = if unpacked { "events" } else { "chunks" };
        let line = format!("behind block 5, in {form}, as it began");
        assert!(second.said(&line), "{:?}", second.lines);
        let captures = second.captures();
        assert_eq!(captures.len(), 1);
        assert_eq!((second.totals.dropped_events, second.totals.unaccounted), (0, 0));
        match unpacked {
            true => assert_eq!(stored_calls(second.dir.path()).len(), 90),
            false => assert_eq!(numbers_of(&captures[0]), (1..=9).collect::<Vec<_>>()),
        }
    }
}

#[test]
fn a_server_of_events_acknowledges_again_where_the_one_before_it_was() {
    let dir = folder();
    let destinations = || Destinations { unpacked: true, ..Destinations::default() };
    let first = run_server_on(dir, NO_LIMITS, None, destinations(), |at, _| {
        let mut device = Device::connect(at, 1);
        blocks(5, 5).iter().for_each(|block| device.send(block));
        device.wait_for(5);
    });
    let second = run_server_on(first.dir, NO_LIMITS, None, destinations(), |at, _| {
        let device = Device::connect(at, 1);
        assert_eq!(device.has(), 5);
        device.end(5, 50);
    });
    assert_eq!(stored_calls(second.dir.path()).len(), 50);
    run_server_on(second.dir, NO_LIMITS, None, destinations(), |at, _| {
        assert_eq!(Device::connect(at, 1).has(), 6);
    });
}
