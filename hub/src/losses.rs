//! Lost events by cause, and the losses that a stream of events tells of itself.

use std::collections::{HashMap, VecDeque};
use std::mem::offset_of;

use callsight_format::{
    BlockHeader, ByteOrder, CAUSES, Cause, EVENT_BYTES, Event, KIND_ENTER, KIND_EXIT, KIND_MARKER,
    LossNote, NOTE_LOSS, NoteAssembler, NotePiece,
};

/// Events lost, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses([u64; CAUSES]);

impl Losses {
    /// Counts `events` more for `cause`.
    pub fn add(&mut self, cause: Cause, events: u64) {
        let count = &mut self.0[cause as usize];
        *count = count.saturating_add(events);
    }

    /// As a note tells it: writers up to 0.1 could tell a loss twice, and take it back in their next
    /// note, below zero.
    pub fn add_told(&mut self, cause: Cause, events: i64) {
        let count = &mut self.0[cause as usize];
        *count = count.saturating_add_signed(events);
    }

    /// Events lost for `cause`.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// Events lost for any cause.
    pub fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, events| sum.saturating_add(*events))
    }

    /// The causes that lost events, and how many.
    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::all().into_iter().zip(self.0).filter(|(_, events)| *events > 0)
    }

    /// For people: `5 full, 2 torn`.
    pub fn by_cause(&self) -> String {
        let causes: Vec<String> =
            self.iter().map(|(cause, events)| format!("{events} {}", cause.name())).collect();
        causes.join(", ")
    }

    /// Both together.
    pub fn plus(mut self, other: &Losses) -> Losses {
        other.iter().for_each(|(cause, events)| self.add(cause, events));
        self
    }

    /// These, raised to the sum of `stated`, whose causes count where both name others for the same
    /// events: see [`Cause::keeps_its_name`].
    pub fn raised_to(&self, stated: &Losses) -> Losses {
        let (mut told, mut stated) = (*self, *stated);
        let mut kept = Losses::default();
        for cause in Cause::all().into_iter().filter(|cause| cause.keeps_its_name()) {
            kept.add(cause, told.take(cause).max(stated.take(cause)));
        }
        let missing = stated.sum().saturating_sub(told.sum());
        let raised = told.plus(&stated.beyond(&told).up_to(missing));
        let misnamed = raised.beyond(&stated);
        let named = stated.beyond(&raised).up_to(misnamed.sum());
        raised.beyond(&misnamed.up_to(named.sum())).plus(&named).plus(&kept)
    }

    fn take(&mut self, cause: Cause) -> u64 {
        std::mem::take(&mut self.0[cause as usize])
    }

    /// The first of these, `most` events.
    pub fn up_to(&self, most: u64) -> Losses {
        let mut left = most;
        Losses(self.0.map(|events| {
            let kept = events.min(left);
            left -= kept;
            kept
        }))
    }

    /// What is in here beyond what is in `other`, cause by cause.
    pub fn beyond(&self, other: &Losses) -> Losses {
        Losses(std::array::from_fn(|at| self.0[at].saturating_sub(other.0[at])))
    }
}

/// What a batch holds, or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Enters and exits.
    pub events: u64,
    /// With the notes among them: what the numbers of writers count.
    pub records: u64,
}

impl Amount {
    /// Of raw events.
    pub fn of_events(events: &[u8]) -> Amount {
        // Markers and counters are about the others.
        let is_call =
            |event: &&[u8]| matches!(event[offset_of!(Event, kind)], KIND_ENTER | KIND_EXIT);
        let events = events.chunks_exact(EVENT_BYTES);
        Amount { records: events.len() as u64, events: events.filter(is_call).count() as u64 }
    }

    /// Of a block. The records of a ring of version 2, which does not say when a process started,
    /// have no numbers; elsewhere those without are notes that the drain added.
    pub fn of_block(header: &BlockHeader) -> Amount {
        let unnumbered = header.numbered == 0 && header.start == 0;
        let records = if unnumbered { header.records } else { header.numbered };
        Amount { events: header.calls.into(), records: records.into() }
    }

    /// Both together.
    pub fn plus(self, other: Amount) -> Amount {
        Amount {
            events: self.events.saturating_add(other.events),
            records: self.records.saturating_add(other.records),
        }
    }
}

/// What did not reach a sink, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Enters and exits.
    pub events: Losses,
    /// The records that they are, with the notes among them.
    pub records: Losses,
}

impl Dropped {
    /// Counts `amount` more for `cause`.
    pub fn add(&mut self, cause: Cause, amount: Amount) {
        self.events.add(cause, amount.events);
        self.records.add(cause, amount.records);
    }

    /// What was dropped for `cause`.
    pub fn of(&self, cause: Cause) -> Amount {
        Amount { events: self.events.of(cause), records: self.records.of(cause) }
    }

    /// Both together.
    pub fn plus(self, other: &Dropped) -> Dropped {
        Dropped {
            events: self.events.plus(&other.events),
            records: self.records.plus(&other.records),
        }
    }

    /// Counts what a field of [`SINK_DROPPED`](callsight_format::SINK_DROPPED) or
    /// [`END_SINK_DROPPED`](callsight_format::END_SINK_DROPPED) tells. A cause that is not known
    /// counts as [`Cause::Full`], so that it stays in the sum.
    pub fn add_field(&mut self, value: &[u8]) {
        let le = ByteOrder::Little;
        let cause = le.u32(value, 0).and_then(Cause::from_number).unwrap_or(Cause::Full);
        let events = le.u64(value, 4).unwrap_or(0);
        let records = le.u64(value, 12).unwrap_or(0).max(events);
        self.add(cause, Amount { events, records });
    }
}

/// Most writers whose loss notes are put together at once: a note's pieces come close together,
/// and a hostile stream could name four billion writers, at 4.6 KiB each.
const MAX_OPEN_NOTES: usize = 64;

/// How many of the last records [`LossWatch::forget_last`] can take back.
pub(crate) const WATCHED_RECORDS: u64 = 64;

/// Reads the loss notes out of events that pass by.
#[derive(Debug, Default)]
pub struct LossWatch {
    open: HashMap<u32, Box<NoteAssembler>>,
    told: Losses,
    /// Records that have passed by.
    records: u64,
    /// The notes that ended lately: in which record, and what they told.
    recent: VecDeque<(u64, Cause, i64)>,
}

impl LossWatch {
    /// Looks at whole events.
    pub fn observe(&mut self, events: &[u8], order: ByteOrder) {
        for bytes in events.chunks_exact(EVENT_BYTES) {
            self.records += 1;
            // Kind first: nearly every event is none of our business.
            if bytes[offset_of!(Event, kind)] != KIND_MARKER {
                continue;
            }
            if let Some(event) = Event::parse(bytes, order) {
                self.observe_marker(&event);
            }
        }
    }

    /// Looks at one marker.
    pub(crate) fn observe_marker(&mut self, event: &Event) {
        if let Some(piece) = NotePiece::of(event).filter(|piece| piece.code == NOTE_LOSS) {
            self.take(event.tid, &piece);
        }
    }

    /// What the notes so far have told.
    pub fn told(&self) -> Losses {
        self.told
    }

    /// Takes back what the notes told that ended in the last `records` records, at most
    /// [`WATCHED_RECORDS`]: something else stands in their place.
    pub(crate) fn forget_last(&mut self, records: u64) {
        let kept = self.records.saturating_sub(records);
        let taken_back = self.recent.partition_point(|(at, ..)| *at <= kept);
        for (_, cause, events) in self.recent.drain(taken_back..) {
            self.told.add_told(cause, events.saturating_neg());
        }
        self.records = kept;
        self.open.clear();
    }

    fn take(&mut self, tid: u32, piece: &NotePiece) {
        if piece.index == 0 {
            if self.open.len() >= MAX_OPEN_NOTES {
                self.open.clear();
            }
            self.open.entry(tid).or_default();
        }
        let Some(assembler) = self.open.get_mut(&tid) else { return };
        let Some((_, note)) = assembler.push(piece) else { return };
        if let Some(loss) = LossNote::parse(note) {
            let cause = Cause::from_number(loss.cause).unwrap_or(Cause::Full);
            let events = loss.events.cast_signed();
            self.told.add_told(cause, events);
            let kept = self.records.saturating_sub(WATCHED_RECORDS);
            self.recent.drain(..self.recent.partition_point(|(at, ..)| *at <= kept));
            self.recent.push_back((self.records, cause, events));
        }
        self.open.remove(&tid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::note_events;

    fn loss_note(tid: u32, cause: Cause, events: u64, order: ByteOrder) -> Vec<[u8; 32]> {
        let note = LossNote { cause: cause as u32, events, first: 0, last: 0 }.to_bytes();
        note_events(NOTE_LOSS, &note, 9, tid).map(|event| event.to_bytes(order)).collect()
    }

    #[test]
    fn notes_of_two_writers_are_read_when_their_pieces_mix_and_batches_cut_them() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mine = loss_note(1, Cause::Full, 1 << 40, order);
            let yours = loss_note(2, Cause::Torn, 3, order);
            let call = Event { ts: 9, func: NOTE_LOSS, ..Event::default() }.to_bytes(order);
            let mut watch = LossWatch::default();
            for (a, b) in mine.iter().zip(&yours) {
                watch.observe(&[*a, call, *b].concat(), order);
            }
            assert_eq!(watch.told().of(Cause::Full), 1 << 40);
            assert_eq!(watch.told().of(Cause::Torn), 3);
            assert!(watch.open.is_empty());
        }
    }

    #[test]
    fn what_a_note_takes_back_is_told_no_more() {
        let order = ByteOrder::NATIVE;
        let mut watch = LossWatch::default();
        let taken_back = loss_note(1, Cause::Full, 0u64.wrapping_sub(3), order).concat();
        watch.observe(&loss_note(1, Cause::Full, 10, order).concat(), order);
        watch.observe(&taken_back, order);
        assert_eq!(watch.told().of(Cause::Full), 7);
        watch.forget_last(1);
        assert_eq!(watch.told().of(Cause::Full), 10);
    }

    #[test]
    fn a_hundred_thousand_half_notes_cost_no_memory() {
        let mut watch = LossWatch::default();
        for tid in 0..100_000 {
            let first = loss_note(tid, Cause::Full, 1, ByteOrder::NATIVE)[0];
            watch.observe(&first, ByteOrder::NATIVE);
        }
        assert!(watch.open.len() <= MAX_OPEN_NOTES);
        let whole = loss_note(7, Cause::Full, 5, ByteOrder::NATIVE).concat();
        watch.observe(&whole, ByteOrder::NATIVE);
        assert_eq!(watch.told().sum(), 5);
    }

    #[test]
    fn what_writers_number_in_a_block_is_no_note_of_the_drain() {
        let of = |start, numbered| {
            let header =
                BlockHeader { start, numbered, records: 9, calls: 4, ..Default::default() };
            Amount::of_block(&header)
        };
        assert_eq!(of(7, 6), Amount { events: 4, records: 6 });
        assert_eq!(of(7, 0), Amount { events: 4, records: 0 });
        // All of them are records of a ring of version 2.
        assert_eq!(of(0, 0), Amount { events: 4, records: 9 });
    }

    #[test]
    fn a_count_without_records_is_one_of_records_too() {
        let mut dropped = Dropped::default();
        let value = [&8u32.to_le_bytes()[..], &5u64.to_le_bytes(), &7u64.to_le_bytes()].concat();
        dropped.add_field(&value);
        dropped.add_field(&value[..12]);
        dropped.add_field(&value[..3]);
        assert_eq!(dropped.of(Cause::Queue), Amount { events: 10, records: 12 });
        assert_eq!(dropped.records.sum(), 12);
    }

    #[test]
    fn what_is_beyond_never_goes_below_zero() {
        let (mut some, mut more) = (Losses::default(), Losses::default());
        some.add(Cause::Full, 5);
        some.add(Cause::Io, 1);
        more.add(Cause::Full, 7);
        assert_eq!(more.beyond(&some).by_cause(), "2 full");
        assert_eq!(some.beyond(&more).by_cause(), "1 io");
        assert_eq!(some.plus(&more).by_cause(), "12 full, 1 io");
    }

    #[test]
    fn a_loss_that_is_told_and_stated_for_another_cause_is_one() {
        let (mut told, mut stated) = (Losses::default(), Losses::default());
        told.add(Cause::Full, 5);
        stated.add(Cause::Stopped, 5);
        assert_eq!(told.raised_to(&stated).by_cause(), "5 stopped");
        stated.add(Cause::NoSlot, 3);
        stated.add(Cause::Full, 4);
        assert_eq!(told.raised_to(&stated), stated);
        // More was told than is stated, and none of it of those without a slot.
        told.add(Cause::Full, 9);
        assert_eq!(told.raised_to(&stated).by_cause(), "9 full, 3 no_slot, 5 stopped");
        let mut torn = Losses::default();
        torn.add(Cause::Torn, 2);
        assert_eq!(torn.raised_to(&stated).of(Cause::Torn), 2);
    }

    #[test]
    fn notes_whose_last_record_is_replaced_are_told_no_more() {
        let order = ByteOrder::NATIVE;
        let notes = [loss_note(1, Cause::Full, 5, order), loss_note(2, Cause::Torn, 3, order)];
        let whole = notes.concat();
        for replaced in 0..=whole.len() {
            let mut watch = LossWatch::default();
            for number in 0..1000 {
                watch.observe(&loss_note(number, Cause::Io, 1, order).concat(), order);
            }
            watch.observe(&whole.concat(), order);
            watch.forget_last(replaced as u64);
            let left = whole.len() - replaced;
            let told = u64::from(left >= notes[0].len()) * 5 + u64::from(left == whole.len()) * 3;
            assert_eq!(watch.told().sum(), 1000 + told, "{replaced} replaced");
            assert!(watch.recent.len() <= WATCHED_RECORDS as usize);
        }
    }
}
