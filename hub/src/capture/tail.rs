//! The last records of a capture: what was lost, the clock, and why it stopped.
//!
//! They speak of the stream as a whole, so their thread id is 0, which no thread has; but for those of a
//! gap before the records of one thread.

use callsight_format::{
    ByteOrder, CAUSES, Cause, EVENT_BYTES, Event, KIND_MARKER, LOSS_NOTE_BYTES, LossNote,
    NOTE_LOSS, NOTE_PADDING, NOTE_STOP, StopReason, note_records, note_words,
};

use crate::Losses;

/// Room that the longest tail takes: a loss note of every cause, the note of how the stream ended, the
/// clock, the stop marker.
pub(super) const TAIL_BYTES: u64 =
    ((CAUSES * note_records(LOSS_NOTE_BYTES) + note_records(4) + 2) * EVENT_BYTES) as u64;

/// A marker of format version 2 that says why a capture ends early.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StopMark {
    pub code: u64,
    pub payload: u64,
}

/// Records of a thread are in no stream of the ring, right before the first one that is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub tid: u32,
    /// Time of that first record.
    pub until_ts: u64,
}

impl Gap {
    /// Bytes of its note.
    pub const BYTES: u64 = (note_records(LOSS_NOTE_BYTES) * EVENT_BYTES) as u64;

    fn note(&self) -> LossNote {
        LossNote { cause: Cause::Unacked as u32, events: 0, first: 0, last: self.until_ts }
    }
}

/// What the last records say.
pub(super) struct Tail {
    pub losses: Losses,
    /// Where some are missing, whoever counts them.
    pub gaps: Vec<Gap>,
    /// How the stream ended: in order or cut; `None` while it goes on.
    pub end: Option<StopReason>,
    /// The latest clock anchor, again.
    pub clock: Option<Event>,
    pub stop: Option<StopMark>,
    /// Time of the tail: of the last event stored.
    pub ts: u64,
}

impl Tail {
    /// The records, the stop marker last.
    pub fn records(&self) -> Vec<Event> {
        let gaps = self.gaps.iter().map(|gap| (gap.tid, gap.note()));
        let losses = self.losses.iter().map(|(cause, events)| {
            (0, LossNote { cause: cause as u32, events, first: 0, last: 0 })
        });
        let notes = gaps.chain(losses).flat_map(|(tid, note)| {
            note_events(NOTE_LOSS, &note.to_bytes(), self.ts, tid).collect::<Vec<_>>()
        });
        let end = self.end.map(|reason| (reason as u32).to_le_bytes());
        let end = end.iter().flat_map(|reason| note_events(NOTE_STOP, reason, self.ts, 0));
        let stop = self.stop.map(|mark| self.marker(mark.code, mark.payload));
        notes.chain(end).chain(self.clock).chain(stop).collect()
    }

    /// The records in exactly `slots` slots: padding before them, or without the first ones.
    pub fn records_filling(&self, slots: usize) -> Vec<Event> {
        let records = self.records();
        let padding = slots.saturating_sub(records.len());
        let skipped = records.len().saturating_sub(slots);
        let filler = std::iter::repeat_n(self.marker(NOTE_PADDING, 0), padding);
        filler.chain(records.into_iter().skip(skipped)).collect()
    }

    fn marker(&self, func: u64, call_site: u64) -> Event {
        Event { ts: self.ts, func, call_site, kind: KIND_MARKER, ..Event::default() }
    }
}

/// Records as the sender would have stored them.
pub(super) fn to_bytes(records: &[Event], order: ByteOrder) -> Vec<u8> {
    records.iter().flat_map(|record| record.to_bytes(order)).collect()
}

/// The records of a note of thread `tid` at time `ts`.
pub(crate) fn note_events(
    code: u64,
    note: &[u8],
    ts: u64,
    tid: u32,
) -> impl Iterator<Item = Event> + '_ {
    let len = (note.len() as u16).to_le_bytes();
    let byte = move |at: usize| match at {
        0 | 1 => len[at],
        _ => note.get(at - 2).copied().unwrap_or(0),
    };
    (0..note_records(note.len())).map(move |index| {
        let (func, call_site) = note_words(code, index, byte);
        Event { ts, func, call_site, tid, kind: KIND_MARKER, frame: [0; 3] }
    })
}
