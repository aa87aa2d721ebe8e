//! A disk that takes no more, by the limit on the size of a file: alone in its process, because
//! that limit holds for all of it.

mod common;

use callsight_format::*;
use callsight_hub::capture::{CaptureDir, CaptureLimits, ChunkCapture, EventCapture};
use callsight_hub::stream::{ChunkDecoder, StreamId};
use callsight_hub::{Batch, Ending, Losses, Session, SessionMeta, Sink};
use common::*;
use rustix::process::{Resource, Rlimit, setrlimit};

#[test]
fn a_full_disk_leaves_a_whole_capture_the_reason_and_the_count() {
    // Otherwise a write beyond the limit is a deadly signal instead of an error.
    ignore_file_size_signal();
    a_full_disk_leaves_whole_events_the_reason_and_the_count();
    a_full_disk_leaves_whole_chunks_the_reason_and_the_count();
}

fn a_full_disk_leaves_whole_events_the_reason_and_the_count() {
    for limit in [70u64, 80, 100, 250, 900, 1000, 5003, 7200, 7300, 7400, 7500, 100_001] {
        setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: None }).expect("limit");
        let dir = tempfile::tempdir().expect("a folder");
        let captures = CaptureDir::open(dir.path()).expect("a folder");
        let limits = CaptureLimits { segment_bytes: 0, budget_bytes: 0 };
        let mut sink = EventCapture::new(captures.reserve().expect("a number"), limits);
        let order = ByteOrder::Little;
        let meta = SessionMeta::new(1, "test", origin(), order);
        let path = dir.path().join("trace.stream.1.0.bin");
        // A header and the note of what the segment before was.
        if limit < (FILE_HEADER_BYTES + EVENT_BYTES) as u64 {
            sink.init(&meta).expect_err("no room for a head");
            assert!(!path.exists(), "a part of a head was left");
            continue;
        }
        sink.init(&meta).expect("a header");
        let mut lost_before = Losses::default();
        for _ in 0..50 {
            for events in [calls(1, 100, order), loss_note(1, Cause::Full, 3, order)] {
                sink.write(&Batch::of_events(&events, order)).expect("told, not failed");
            }
            lost_before.add(Cause::Full, 3);
        }
        assert!(sink.trouble().is_some(), "{limit}");
        sink.close(&Ending { lost_before, ..Ending::default() });
        let dropped = sink.dropped();
        let events = events_of(&path);
        assert!(path.metadata().expect("a file").len() <= limit);
        assert_eq!(hooks(&events) as u64 + dropped.of(Cause::Io), 10_000, "{limit}");
        if limit >= 144 {
            let last = events.last().expect("a marker");
            assert_eq!((last.func, last.call_site), (MARK_WRITE_ERROR, 27), "EFBIG");
        }
        if limit >= 300 {
            let of_cause = |cause| -> u64 {
                let notes = told(&events).into_iter().filter(|(of, _)| *of == cause as u32);
                notes.map(|(_, events)| events).sum()
            };
            assert_eq!(of_cause(Cause::Io), dropped.sum(), "{limit}");
            assert_eq!(of_cause(Cause::Full), 150, "{limit}");
        }
    }
}

/// The same of a capture of chunks.
fn a_full_disk_leaves_whole_chunks_the_reason_and_the_count() {
    let sent = [vec![packed::hello(1, ByteOrder::Little)], packed::blocks(40, 50)].concat();
    for limit in (70..1500).step_by(17).chain([4000, 5000]) {
        setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: None }).expect("limit");
        let dir = tempfile::tempdir().expect("a folder");
        let captures = CaptureDir::open(dir.path()).expect("a folder");
        let reserved = captures.reserve().expect("a number");
        let stream = StreamId::parse(&packed::stream_id(1));
        let meta = SessionMeta { stream, ..SessionMeta::new(1, "test", origin(), packed::LE) };
        let capture: Box<dyn Sink> = Box::new(ChunkCapture::new(
            reserved,
            CaptureLimits { segment_bytes: 0, budget_bytes: 0 },
        ));
        let mut session = Session::start(&meta, vec![capture]);
        let mut decoder = ChunkDecoder::new(packed::LE);
        let say = |_: &str| {};
        for chunk in sent.iter().chain([&packed::end(40, 4000, &[])]) {
            let chunk = decoder.next(&mut &chunk[..]).expect("honest").expect("whole");
            session.take(&chunk, &say);
        }
        let tally = session.finish(0, &say);
        let path = dir.path().join("trace.stream.1.0.bin");
        if limit < FILE_HEADER_BYTES as u64 {
            assert!(!path.exists(), "a part of a head was left");
            assert_eq!(tally.sinks[0].dropped_events.of(Cause::SinkDead), 4000);
            continue;
        }
        let stored = packed::packed_hooks(&path);
        assert!(path.metadata().expect("a file").len() <= limit);
        assert_eq!((tally.stored_events(), tally.sinks[0].unaccounted()), (stored, 0), "{limit}");
        assert_eq!(stored + tally.sinks[0].dropped_events.of(Cause::Io), 4000, "{limit}");
        if limit >= 500 {
            let last = packed::last_of(&path);
            assert_eq!(last.dropped, [(Cause::Io as u32, 4000 - stored)], "{limit}");
            let (closed, too_large) = (StopReason::Closed as u32, (MARK_WRITE_ERROR, 27));
            assert_eq!((last.reason, last.stop), (closed, too_large), "{limit}");
        }
    }
}

fn ignore_file_size_signal() {
    // SAFETY: nothing else in this process handles this signal, and ignoring it runs no code.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR);
}
