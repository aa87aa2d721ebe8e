//! What a device sends, made by hand: events, chunks, whole streams.

#![allow(dead_code, reason = "every test file takes what it needs")]

pub mod packed;
#[allow(unused_imports, reason = "its own tests are none under another harness")]
#[path = "../../../runtime/format/tests/packer.rs"]
pub mod packer;
pub mod server;

use std::path::Path;

use callsight_format::*;
use callsight_hub::stream::{ChunkDecoder, StreamError};

/// What a decoder makes of `pieces`: its items as text, so that they outlive it, then what stopped it;
/// or whether it is between two chunks, and how many records are announced.
pub fn decode<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    order: ByteOrder,
) -> (Vec<String>, Result<(bool, u64), StreamError>) {
    let mut decoder = ChunkDecoder::new(order);
    let mut items = Vec::new();
    for mut piece in pieces {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(chunk)) => items.push(format!("{chunk:?}")),
                Ok(None) => break,
                Err(error) => return (items, Err(error)),
            }
        }
        assert!(piece.is_empty(), "bytes were left lying");
    }
    (items, Ok((decoder.is_between_chunks(), decoder.announced_records())))
}

/// The clock words of every stream here.
pub fn origin() -> Origin {
    Origin { flags: FLAG_TICKS, tick_hz: 1_000_000_000, t0_ticks: 5, t0_ns: 5, ..Origin::default() }
}

/// `count` calls of thread `tid`: enter, exit, enter, exit.
pub fn calls(tid: u32, count: u64, order: ByteOrder) -> Vec<u8> {
    let event = |number: u64| Event {
        ts: 10 + number,
        func: 0x1000 + (number / 2 % 7) * 16,
        call_site: 0x2000 + number,
        tid,
        kind: (number % 2) as u8,
        frame: [0; 3],
    };
    (0..2 * count).flat_map(|number| event(number).to_bytes(order)).collect()
}

/// A marker.
pub fn marker(func: u64, call_site: u64, ts: u64, order: ByteOrder) -> Vec<u8> {
    let event = Event { ts, func, call_site, kind: KIND_MARKER, ..Event::default() };
    event.to_bytes(order).to_vec()
}

/// A loss note of thread `tid`.
pub fn loss_note(tid: u32, cause: Cause, events: u64, order: ByteOrder) -> Vec<u8> {
    let note = LossNote { cause: cause as u32, events, first: 0, last: 0 }.to_bytes();
    let len = (note.len() as u16).to_le_bytes();
    let bytes = [&len[..], &note].concat();
    let record = |index| {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let (func, call_site) = note_words(NOTE_LOSS, index, byte);
        let kind = KIND_MARKER;
        Event { ts: 11, func, call_site, tid, kind, frame: [0; 3] }.to_bytes(order)
    };
    (0..note_records(note.len())).flat_map(record).collect()
}

/// The same as the records of a block.
pub fn loss_events(tid: u32, cause: Cause, events: u64) -> Vec<Event> {
    let order = ByteOrder::Little;
    let note = loss_note(tid, cause, events, order);
    note.chunks(EVENT_BYTES).map(|event| Event::parse(event, order).expect("a note")).collect()
}

/// A chunk with a header that says the truth.
pub fn chunk(kind: u32, raw: &[u8], order: ByteOrder) -> Vec<u8> {
    let payload = zstd::bulk::compress(raw, 1).expect("compress");
    let (raw_len, zstd_len) = (raw.len() as u32, payload.len() as u32);
    let header = ChunkHeader { kind, raw_len, zstd_len }.to_bytes(order);
    [&header[..], &payload].concat()
}

/// A payload of fields.
pub fn fields(fields: &[(u16, &[u8])]) -> Vec<u8> {
    let field = |(key, value): &(u16, &[u8])| {
        [&key.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
    };
    fields.iter().flat_map(field).collect()
}

/// One loss of an end of stream.
pub fn end_loss(cause: Cause, events: u64) -> Vec<u8> {
    [&(cause as u32).to_le_bytes()[..], &events.to_le_bytes()].concat()
}

/// All events of a capture file, which must be whole.
pub fn events_of(path: &Path) -> Vec<Event> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (header, order) = FileHeader::parse(&bytes).expect("a header");
    let events = &bytes[header.header_size as usize..];
    assert_eq!(events.len() % EVENT_BYTES, 0, "{} ends within an event", path.display());
    events.chunks(EVENT_BYTES).map(|e| Event::parse(e, order).expect("an event")).collect()
}

/// The enters and exits of a capture.
pub fn calls_of(path: &Path) -> Vec<Event> {
    let mut events = events_of(path);
    events.retain(|event| event.kind <= KIND_EXIT);
    events
}

/// The calls' events among `events`.
pub fn hooks(events: &[Event]) -> usize {
    events.iter().filter(|event| event.kind <= KIND_EXIT).count()
}

/// The losses that notes tell, over all causes, with the number of notes.
pub fn told(events: &[Event]) -> Vec<(u32, u64)> {
    let mut assembler = NoteAssembler::default();
    let pieces = events.iter().filter_map(NotePiece::of).filter(|piece| piece.code == NOTE_LOSS);
    let mut told = Vec::new();
    for piece in pieces {
        if let Some((_, note)) = assembler.push(&piece) {
            let loss = LossNote::parse(note).expect("a loss");
            told.push((loss.cause, loss.events));
        }
    }
    told
}
