//! A disk that takes no more, by the limit on the size of a file: alone in its process, because
//! that limit holds for all of it.

mod common;

use callsight_format::*;
use callsight_hub::capture::{CaptureDir, CaptureLimits, CaptureSink};
use callsight_hub::{Batch, Ending, Losses, SessionMeta, Sink};
use common::*;
use rustix::process::{Resource, Rlimit, setrlimit};

#[test]
fn a_full_disk_leaves_whole_events_the_reason_and_the_count() {
    // Otherwise a write beyond the limit is a deadly signal instead of an error.
    ignore_file_size_signal();
    for limit in [70u64, 80, 100, 250, 900, 1000, 5003, 7200, 7300, 7400, 7500, 100_001] {
        setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: None }).expect("limit");
        let dir = tempfile::tempdir().expect("a folder");
        let captures = CaptureDir::open(dir.path()).expect("a folder");
        let limits = CaptureLimits { segment_bytes: 0, budget_bytes: 0 };
        let mut sink = CaptureSink::new(captures.reserve().expect("a number"), limits);
        let order = ByteOrder::Little;
        let meta = SessionMeta { id: 1, peer: String::new(), origin: origin(), order };
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
            sink.write(&Batch::new(&calls(1, 100, order), order));
            sink.write(&Batch::new(&loss_note(1, Cause::Full, 3, order), order));
            lost_before.add(Cause::Full, 3);
        }
        assert!(sink.trouble().is_some(), "{limit}");
        let tally = sink.close(&Ending { lost_before, cut: false });
        let events = events_of(&path);
        assert!(path.metadata().expect("a file").len() <= limit);
        assert_eq!(hooks(&events) as u64, tally.stored_events);
        assert_eq!(tally.stored_events + tally.dropped_events.of(Cause::Io), 10_000, "{limit}");
        if limit >= 144 {
            let last = events.last().expect("a marker");
            assert_eq!((last.func, last.call_site), (MARK_WRITE_ERROR, 27), "EFBIG");
        }
        if limit >= 300 {
            let of_cause = |cause| -> u64 {
                let notes = told(&events).into_iter().filter(|(of, _)| *of == cause as u32);
                notes.map(|(_, events)| events).sum()
            };
            assert_eq!(of_cause(Cause::Io), tally.dropped_events.sum(), "{limit}");
            assert_eq!(of_cause(Cause::Full), 150, "{limit}");
        }
    }
}

fn ignore_file_size_signal() {
    // SAFETY: nothing else in this process handles this signal, and ignoring it runs no code.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR);
}
