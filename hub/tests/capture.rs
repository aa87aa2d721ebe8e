//! The capture sink and the session, without sockets: what stands in the files.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use callsight_format::*;
use callsight_hub::capture::{CaptureDir, CaptureLimits, EventCapture};
use callsight_hub::stream::{Chunk, Item, Sender, StreamEnd};
use callsight_hub::{Batch, Session, SessionMeta, Sink, SinkTally, Tally};
use common::*;

const ORDER: ByteOrder = ByteOrder::Big;
const NO_LIMITS: CaptureLimits = CaptureLimits { segment_bytes: 0, budget_bytes: 0 };

fn meta(id: u32) -> SessionMeta {
    SessionMeta::new(id, "test", origin(), ORDER)
}

/// Runs a capture over batches of events.
fn capture(dir: &Path, limits: CaptureLimits, batches: &[Vec<u8>]) -> SinkTally {
    let items = batches.iter().map(|batch| Item::Events(batch)).collect();
    session_within(dir, limits, items).0.sinks.remove(0)
}

/// Runs a session with a capture over items.
fn session(dir: &Path, items: Vec<Item<'_>>) -> (Tally, Vec<String>) {
    session_within(dir, NO_LIMITS, items)
}

fn session_within(dir: &Path, limits: CaptureLimits, items: Vec<Item<'_>>) -> (Tally, Vec<String>) {
    let captures = CaptureDir::open(dir).expect("a folder");
    let reserved = captures.reserve().expect("a number");
    let meta = meta(reserved.id());
    let sink = EventCapture::new(reserved, limits);
    let said = Mutex::new(Vec::new());
    let say = |line: &str| said.lock().expect("lines").push(line.to_owned());
    let mut session = Session::start(&meta, vec![Box::new(sink)]);
    for item in items {
        session.take(&Chunk { bytes: &[], item }, &say);
    }
    let tally = session.finish(0, &say);
    (tally, said.into_inner().expect("lines"))
}

/// The enters and exits in the bytes of a capture.
fn hook_bytes(capture: &[u8]) -> Vec<u8> {
    let records = capture[FILE_HEADER_BYTES..].chunks_exact(EVENT_BYTES);
    records.filter(|record| record[28] <= KIND_EXIT).flatten().copied().collect()
}

/// The notes of a capture, in order.
fn notes_of(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut assembler = NoteAssembler::default();
    let events = events_of(path);
    let pieces = events.iter().filter_map(NotePiece::of);
    let whole = |piece| assembler.push(&piece).map(|(code, note)| (code, note.to_vec()));
    pieces.filter_map(whole).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let path = |seq| dir.join(format!("trace.stream.1.{seq}.bin"));
    (0..).map(path).take_while(|path| path.exists()).collect()
}

#[test]
fn a_capture_has_the_handshakes_words_in_the_senders_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let sent = calls(3, 1000, ORDER);
    let tally = capture(dir.path(), NO_LIMITS, &[sent.clone(), sent.clone()]);
    assert_eq!((tally.delivered_events, tally.unaccounted()), (4000, 0));
    assert_eq!(tally.extent.as_deref(), Some("1 segment"));
    let bytes = std::fs::read(dir.path().join("trace.stream.1.0.bin")).expect("a file");
    let header = FileHeader::new(origin(), 1, 0);
    assert_eq!(FileHeader::parse(&bytes), Ok((header, ORDER)));
    assert!(bytes[FILE_HEADER_BYTES..].len().is_multiple_of(EVENT_BYTES));
    assert_eq!(hook_bytes(&bytes), [&sent[..], &sent].concat());
}

#[test]
fn segments_rotate_on_whole_events_and_lose_none() {
    let dir = tempfile::tempdir().expect("a folder");
    let limits = CaptureLimits { segment_bytes: 10_000, budget_bytes: 0 };
    let batches: Vec<_> = (0..40).map(|_| calls(3, 100, ORDER)).collect();
    let tally = capture(dir.path(), limits, &batches);
    let files = segments(dir.path());
    assert_eq!(tally.delivered_events, 8000);
    assert_eq!(tally.extent, Some(format!("{} segments", files.len())));
    assert!(files.len() > 25, "{} segments", files.len());
    let mut all = Vec::new();
    let mut bytes_before = 0;
    for (seq, path) in files.iter().enumerate() {
        let bytes = std::fs::read(path).expect("a file");
        assert!(bytes.len() <= 10_000);
        let (header, _) = FileHeader::parse(&bytes).expect("a header");
        assert_eq!(header.seq as usize, seq);
        let notes = notes_of(path);
        let (code, before) = notes.first().expect("a note");
        assert_eq!((*code, &before[..]), (NOTE_SEGMENT, &u64::to_le_bytes(bytes_before)[..]));
        bytes_before = bytes.len() as u64;
        all.extend_from_slice(&hook_bytes(&bytes));
    }
    assert_eq!(all, batches.concat());
}

#[test]
fn a_budget_ends_the_capture_with_its_marker_and_the_rest_is_counted() {
    for budget_bytes in [1, 81, 1000, 1024, 5000, 64_000, 100_000] {
        let dir = tempfile::tempdir().expect("a folder");
        let limits = CaptureLimits { segment_bytes: 20_000, budget_bytes };
        let batches: Vec<_> = (0..40).map(|_| calls(3, 100, ORDER)).collect();
        let tally = capture(dir.path(), limits, &batches);
        let files = segments(dir.path());
        let bytes: u64 = files.iter().map(|path| path.metadata().expect("a file").len()).sum();
        // One header and the last records are the least a capture takes.
        assert!(bytes <= budget_bytes.max(1000), "{bytes} of {budget_bytes}");
        assert_eq!(tally.delivered_events + tally.dropped_events.of(Cause::Budget), 8000);
        assert_eq!(tally.dropped_events.sum(), tally.dropped_events.of(Cause::Budget));
        let all: Vec<Event> = files.iter().flat_map(|path| events_of(path)).collect();
        assert_eq!(hooks(&all) as u64, tally.delivered_events);
        assert_eq!(told(&all), [(Cause::Budget as u32, tally.dropped_events.sum())]);
        let last = all.last().expect("a marker");
        assert_eq!((last.func, last.call_site), (MARK_BUDGET, budget_bytes));
    }
}

#[test]
fn a_budget_marker_stands_in_the_file_before_the_stream_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let captures = CaptureDir::open(dir.path()).expect("a folder");
    let limits = CaptureLimits { segment_bytes: 0, budget_bytes: 4000 };
    let mut sink = EventCapture::new(captures.reserve().expect("a number"), limits);
    sink.init(&meta(1)).expect("a header");
    sink.write(&Batch::of_events(&calls(3, 1000, ORDER), ORDER)).expect("a budget is no failure");
    assert!(sink.trouble().expect("a reason").contains("budget"));
    let events = events_of(&dir.path().join("trace.stream.1.0.bin"));
    assert_eq!(events.last().map(|event| event.func), Some(MARK_BUDGET));
}

#[test]
fn the_clock_anchor_is_again_the_last_record_when_something_is_told_after_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let anchor = marker(MARK_CLOCK, 99, 50, ORDER);
    let (tally, _) = session(
        dir.path(),
        vec![
            Item::Events(&[calls(1, 2, ORDER), anchor].concat()),
            Item::Dropped { events: 30 },
            Item::Dropped { events: 20 },
        ],
    );
    assert_eq!(tally.dropped_events().of(Cause::Full), 30);
    let events = events_of(&dir.path().join("trace.stream.1.0.bin"));
    assert_eq!(told(&events), [(Cause::Full as u32, 30)]);
    let clocks = events.iter().filter(|event| event.func == MARK_CLOCK).count();
    assert_eq!((clocks, events.last().map(|event| event.func)), (2, Some(MARK_CLOCK)));
}

#[test]
fn losses_that_notes_tell_are_not_told_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let events = [
        calls(1, 2, ORDER),
        loss_note(1, Cause::Full, 40, ORDER),
        loss_note(2, Cause::Torn, 1, ORDER),
        calls(2, 2, ORDER),
    ]
    .concat();
    let mut end = StreamEnd { reason: END_DONE, ..StreamEnd::default() };
    end.dropped_events.add(Cause::Full, 40);
    end.dropped_events.add(Cause::Torn, 1);
    end.dropped_events.add(Cause::NoSlot, 7);
    let items = vec![Item::Events(&events), Item::Dropped { events: 41 }, Item::End(end)];
    let (tally, _) = session(dir.path(), items);
    assert_eq!(tally.dropped_events().by_cause(), "40 full, 7 no_slot, 1 torn");
    let stored = events_of(&dir.path().join("trace.stream.1.0.bin"));
    let causes = [(Cause::Full, 40), (Cause::Torn, 1), (Cause::NoSlot, 7)];
    assert_eq!(told(&stored), causes.map(|(cause, events)| (cause as u32, events)));
}

/// All that a capture tells of lost events.
fn sum_told(events: &[Event]) -> u64 {
    told(events).iter().map(|(_, events)| events).sum()
}

#[test]
fn a_loss_told_after_the_budget_is_reached_stands_in_the_capture_too() {
    let batch = |number: u64| {
        let note = loss_note(3, Cause::Full, 1000 + number, ORDER);
        [calls(3, 20, ORDER), note, calls(3, 5, ORDER)].concat()
    };
    let batches: Vec<_> = (0..40).map(batch).collect();
    let lost: u64 = (0..40).map(|number| 1000 + number).sum();
    let mut end = StreamEnd { reason: END_DONE, ..StreamEnd::default() };
    end.dropped_events.add(Cause::Full, lost);
    end.dropped_events.add(Cause::NoSlot, 7);
    // At every place of a note, and in whole numbers of events between.
    for budget_bytes in (2000..8000).step_by(EVENT_BYTES) {
        let dir = tempfile::tempdir().expect("a folder");
        let limits = CaptureLimits { segment_bytes: 3000, budget_bytes };
        let mut items = vec![Item::Sender(Sender::default())];
        items.extend(batches.iter().map(|batch| Item::Events(batch)));
        items.push(Item::End(end.clone()));
        let (tally, _) = session_within(dir.path(), limits, items);
        let files = segments(dir.path());
        let all: Vec<Event> = files.iter().flat_map(|path| events_of(path)).collect();
        let (stored, told) = (hooks(&all) as u64, sum_told(&all));
        assert_eq!(stored + told, 2000 + lost + 7, "budget {budget_bytes}");
        assert_eq!((tally.stored_events(), tally.dropped_events().sum()), (stored, told));
    }
}

#[test]
fn a_sender_that_says_who_it_is_is_not_accounted_by_its_notices() {
    let note = loss_note(1, Cause::Full, 4, ORDER);
    let ended = |events| {
        let mut end = StreamEnd { reason: END_STOPPED, ..StreamEnd::default() };
        end.dropped_events.add(Cause::Full, events);
        Item::End(end)
    };
    for (end, lost) in [(None, 4), (Some(ended(4)), 4), (Some(ended(6)), 6)] {
        let dir = tempfile::tempdir().expect("a folder");
        let sender = Item::Sender(Sender::default());
        let notice = Item::Dropped { events: 900 };
        let items = [sender, notice, Item::Events(&note)].into_iter().chain(end);
        let (tally, said) = session(dir.path(), items.collect());
        assert_eq!(tally.dropped_events().sum(), lost);
        assert_eq!(sum_told(&events_of(&segments(dir.path())[0])), lost);
        assert!(said.iter().any(|line| line.contains("dropped 900 events")), "{said:?}");
    }
}

#[test]
fn a_stream_without_its_end_counts_what_notices_say_beyond_the_notes() {
    let dir = tempfile::tempdir().expect("a folder");
    let note = loss_note(1, Cause::Torn, 4, ORDER);
    let (tally, said) = session(dir.path(), vec![Item::Dropped { events: 9 }, Item::Events(&note)]);
    assert_eq!(tally.dropped_events().by_cause(), "5 full, 4 torn");
    assert_eq!(said, ["the sender has dropped 9 events so far (its ring was full)"]);
}

#[test]
fn who_is_sending_is_said_once_and_stored_and_a_missing_end_is_noticed() {
    let dir = tempfile::tempdir().expect("a folder");
    let sender =
        Sender { host: "board".to_owned(), exe: "/bin/app".to_owned(), ..Sender::default() };
    let again = Sender { host: "other".to_owned(), ..Sender::default() };
    let items = vec![Item::Sender(sender), Item::Sender(again), Item::Unknown { kind: 8 }];
    let (tally, said) = session(dir.path(), items);
    assert_eq!((tally.unknown_chunks, tally.named, tally.ended), (1, true, false));
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[0], "/bin/app on board");
    assert!(said[1].contains("cut off"), "{said:?}");
    let json = std::fs::read_to_string(dir.path().join("trace.stream.1.json")).expect("JSON");
    assert!(json.contains(r#""host": "board""#), "{json}");
}

#[test]
fn a_stream_that_broke_off_says_so_in_its_capture() {
    let reasons = |items: Vec<Item<'_>>| -> Vec<u32> {
        let dir = tempfile::tempdir().expect("a folder");
        session(dir.path(), items);
        let notes = notes_of(&segments(dir.path())[0]);
        let stops = notes.iter().filter(|(code, _)| *code == NOTE_STOP);
        stops.filter_map(|(_, note)| ByteOrder::Little.u32(note, 0)).collect()
    };
    let sent = calls(3, 10, ORDER);
    let sender = || Item::Sender(Sender::default());
    assert_eq!(reasons(vec![sender(), Item::Events(&sent)]), [StopReason::Cut as u32]);
    let whole = vec![sender(), Item::Events(&sent), Item::End(StreamEnd::default())];
    assert_eq!(reasons(whole), [StopReason::Closed as u32]);
    // An old sender never says that it is done.
    assert_eq!(reasons(vec![Item::Events(&sent)]), [StopReason::Closed as u32]);
}
