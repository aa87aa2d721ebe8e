//! What the chunks of streams say of themselves → the sums that an account is made of.
//!
//! A stream says in the end how many records its ring emitted and dropped, and how many blocks it
//! has sent; whoever stored it says what he dropped. Compared with what came, that tells what is
//! missing, also where no later number shows it.

use callsight_format::{
    ByteOrder, CAUSES, Cause, END_BLOCKS, END_DONE, END_DROPPED, END_EMITTED, END_REASON,
    END_RING_DROPPED, END_SINK_DROPPED, Fields, LossNote, SINK_DROPPED, SINK_REASON,
};
use rustc_hash::FxHashMap;

/// What the chunks of a group say, added up. In records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// That came, each once.
    pub delivered: u64,
    /// That came again, and were left out.
    pub repeated: u64,
    /// Missing by the writers' numbers, and told by no note.
    pub gaps: u64,
    /// Missing beyond those by what the ends of streams say, and by what drains had taken of the ring
    /// before the later ones: with nothing of their writers behind them.
    pub hidden: u64,
    /// Still in the ring when the last drain was told to end.
    pub left_in_ring: u64,
    /// What other drains took of the ring before the first stream that is here.
    pub taken_before: u64,
    /// Emitted, as the ends say, less all that is accounted for.
    pub unaccounted: i64,
    /// Blocks missing by the drain's numbers.
    pub missing_blocks: u64,
    /// Dropped as the ends of the streams tell, by cause, less what their own notes tell.
    pub untold: [u64; CAUSES],
    /// What notes tell for other causes than the ends of their streams: for which, and for which the
    /// ends do. A writer's own note says `full`, whatever kept it from storing.
    pub misnamed: [u64; CAUSES],
    /// See `misnamed`.
    pub named: [u64; CAUSES],
    /// Dropped in the whole life of the ring, by cause, as its last drain tells.
    pub in_ring: [u64; CAUSES],
    /// Dropped as the last blocks of the writers tell, for the causes that blocks tell.
    pub told_by_blocks: [u64; CAUSES],
    /// The same for all other causes together.
    pub others_by_blocks: u64,
    /// Dropped by those who sent and stored the streams, by cause.
    pub sinks: [Dropped; CAUSES],
    /// Whether records that have no numbers are missing: nobody knows between which of them.
    pub unnumbered_gaps: bool,
    /// Whether ends of streams, or later streams, say what was emitted of each.
    pub all_ended: bool,
    /// Whether the drain of the last stream was told to end before the ring's programs had ended.
    pub stopped: bool,
    /// Whether the last stream has neither an end nor the last word of a sink.
    pub broken_off: bool,
}

/// What a sink dropped for a cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Enters and exits.
    pub events: u64,
    /// The records that they are, with the notes among them.
    pub records: u64,
}

impl Ledger {
    /// Adds what the last block of a writer says that it had dropped: `full`, `reentrant`, `fork`,
    /// `torn`, and for all other causes.
    pub fn add_told_by_block(&mut self, lost: [u32; 4], others: u64) {
        let causes = [Cause::Full, Cause::Reentrant, Cause::Fork, Cause::Torn];
        for (cause, lost) in causes.into_iter().zip(lost) {
            self.told_by_blocks[cause as usize] += u64::from(lost);
        }
        self.others_by_blocks = self.others_by_blocks.saturating_add(others);
    }
}

/// What came of a stream, and what its end says of it.
#[derive(Default)]
pub struct Stream {
    /// Number of its last block.
    pub last: u64,
    /// Numbers of blocks that did not come; and of these, those right before the last block.
    pub missing_blocks: u64,
    /// See `missing_blocks`.
    pub missed: u64,
    /// Records that came in it, also those that another stream has.
    pub came: u64,
    /// Of these, in chunks without numbers.
    pub unnumbered: u64,
    /// Records that its own missing blocks explain.
    pub gaps: u64,
    /// Records missing before what came first of writers in it, behind missing blocks: some of these had
    /// them, or a drain before.
    pub gaps_before: u64,
    /// How many records of its ring other drains had taken before it.
    pub taken: u64,
    /// Whether it is no stream of chunks: its records have no numbers, and say themselves how it
    /// ended.
    pub is_file_of_events: bool,
    /// Dropped as its notes tell, by cause.
    told: [u64; CAUSES],
    end: Option<End>,
    /// What was dropped where it was sent and where it was stored, in each file.
    sinks: FxHashMap<(u32, u16), [Dropped; CAUSES]>,
    /// Whether who stored it is done with it.
    closed: bool,
}

/// The counts of the end of a stream: of the ring, less what earlier streams of it have and told.
struct End {
    done: bool,
    emitted: Option<u64>,
    dropped: [u64; CAUSES],
    in_ring: [u64; CAUSES],
}

impl Stream {
    /// Whether nothing has come of it.
    pub fn is_empty(&self) -> bool {
        self.last == 0 && self.came == 0 && self.end.is_none() && self.sinks.is_empty()
    }

    /// Whether its end is here and says that.
    pub fn says_what_was_emitted(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.emitted.is_some())
    }

    /// A note of losses came.
    pub fn told(&mut self, loss: &LossNote) {
        if let Some(cause) = Cause::from_number(loss.cause) {
            // Below zero where a note takes back what one before it told twice; see `survey`.
            let sum = &mut self.told[cause as usize];
            *sum = sum.saturating_add_signed(loss.events.cast_signed());
        }
    }

    /// The next block came, which has a greater number than the last one.
    pub fn block(&mut self, number: u64) {
        self.missed = number - self.last - 1;
        self.missing_blocks = self.missing_blocks.saturating_add(self.missed);
        self.last = number;
    }

    /// The end came, in a file. One in which not all blocks are that came is none, and of several
    /// the first one counts, but for what each file does not have.
    pub fn end(&mut self, file: u32, fields: &[u8]) {
        let le = ByteOrder::Little;
        let word = |key| field(fields, key).and_then(|value| le.u64(value, 0));
        let blocks = word(END_BLOCKS).unwrap_or(self.last);
        if blocks < self.last {
            return;
        }
        self.sinks.insert((file, END_SINK_DROPPED), dropped_by_sink(fields, END_SINK_DROPPED));
        if self.end.is_some() {
            return;
        }
        self.missing_blocks = self.missing_blocks.saturating_add(blocks - self.last);
        self.last = blocks;
        let reason = field(fields, END_REASON).and_then(|value| le.u32(value, 0));
        self.end = Some(End {
            done: reason == Some(END_DONE),
            emitted: word(END_EMITTED),
            dropped: dropped(fields, END_DROPPED),
            in_ring: dropped(fields, END_RING_DROPPED),
        });
    }

    /// What became of it in a file, so far or in the end.
    pub fn sink(&mut self, file: u32, fields: &[u8]) {
        let reason = field(fields, SINK_REASON).and_then(|value| ByteOrder::Little.u32(value, 0));
        self.closed |= reason.is_some_and(|reason| reason != 0);
        self.sinks.insert((file, SINK_DROPPED), dropped_by_sink(fields, SINK_DROPPED));
    }

    /// Adds what is known of it, to the sums over the streams before it, which had what was `taken` of the
    /// ring by then. It came in so many `captures`. Returns how many records drains had taken of the ring
    /// when it was at its end, at least.
    pub fn settle(&self, captures: usize, taken: u64, ledger: &mut Ledger) -> u64 {
        let Ledger { delivered, gaps, hidden, .. } = *ledger;
        let beyond = self.settle_end(captures, taken > 0, ledger);
        // Less notes of the drain and torn records, which were found to be no records of the ring.
        let came = self.came - (delivered - ledger.delivered);
        let missing = self.own_gaps().saturating_sub(gaps - ledger.gaps);
        let taken_here = [came, missing, ledger.hidden - hidden, beyond];
        taken_here.into_iter().fold(self.taken, u64::saturating_add).max(taken)
    }

    /// Behind another stream of its ring, what its end says to be missing may be what that one had and this
    /// one was to bring again: it is returned, and is for the sum over the streams to find.
    fn settle_end(&self, captures: usize, is_later: bool, ledger: &mut Ledger) -> u64 {
        let gaps = self.own_gaps();
        ledger.missing_blocks = ledger.missing_blocks.saturating_add(self.blocks_not_here());
        ledger.broken_off = !self.is_file_of_events && !self.closed && self.end.is_none();
        match self.end {
            // Then what is missing tells how much of it no capture has.
            Some(_) => self.sinks.values().for_each(|sink| add(&mut ledger.sinks, sink)),
            None => self
                .least_dropped(captures)
                .into_iter()
                .for_each(|sink| add(&mut ledger.sinks, sink)),
        }
        let dropped = self.sinks.values().flatten().any(|dropped| dropped.records > 0);
        ledger.unnumbered_gaps |= self.unnumbered > 0 && (dropped || gaps > 0);
        ledger.left_in_ring = 0;
        ledger.stopped = self.end.as_ref().is_some_and(|end| !end.done);
        let Some(End { done, emitted: Some(emitted), dropped, in_ring }) = &self.end else {
            return 0;
        };
        ledger.in_ring = *in_ring;
        self.match_notes(dropped, ledger);
        let torn = Cause::Torn as usize;
        let untold_torn = dropped[torn].saturating_sub(self.told[torn]);
        let known = self.came.saturating_add(sum(dropped)).saturating_add(gaps);
        let (missing, surplus) = (emitted.saturating_sub(known), known.saturating_sub(*emitted));
        match (done, self.misses_nothing()) {
            (true, true) => {
                ledger.unaccounted = ledger.unaccounted.saturating_add_unsigned(missing);
            }
            (true, false) if is_later => {}
            (true, false) => {
                ledger.hidden = ledger.hidden.saturating_add(missing);
                ledger.unnumbered_gaps |= self.unnumbered > 0 && missing > 0;
            }
            // What is not here is in the ring still, but for what was dropped on the way.
            (false, _) => {
                let sinks = self.sinks.values().flatten().map(|dropped| dropped.records);
                let dropped = sinks.fold(0, u64::saturating_add).saturating_sub(gaps);
                let dropped = dropped.min(missing);
                ledger.hidden = ledger.hidden.saturating_add(dropped);
                ledger.left_in_ring = missing - dropped;
            }
        }
        if *done {
            // The drain's own notes are among the records without numbers.
            let notes = surplus.min(self.unnumbered);
            ledger.delivered -= notes;
            // A gap may be of torn records, of which the drain told in a block that is missing.
            let torn = untold_torn.min(gaps).min(surplus - notes);
            ledger.gaps -= torn;
            ledger.unaccounted = ledger.unaccounted.saturating_sub_unsigned(surplus - notes - torn);
        }
        if *done && is_later && !self.misses_nothing() { missing } else { 0 }
    }

    /// What its own missing blocks had, as far as that is known: its end says how much it can be.
    fn own_gaps(&self) -> u64 {
        let Some(End { emitted: Some(emitted), dropped, .. }) = &self.end else { return self.gaps };
        let known = self.came.saturating_add(sum(dropped)).saturating_add(self.gaps);
        self.gaps.saturating_add(self.gaps_before.min(emitted.saturating_sub(known)))
    }

    /// What the capture lacks that lacks least, where each says that of itself.
    fn least_dropped(&self, captures: usize) -> Option<&[Dropped; CAUSES]> {
        let records = |sink: &[Dropped; CAUSES]| {
            sink.iter().fold(0u64, |sum, dropped| sum.saturating_add(dropped.records))
        };
        let least = self.sinks.values().min_by_key(|sink| records(sink));
        least.filter(|_| self.sinks.len() >= captures)
    }

    /// Compares what its notes tell with what its end does: what is told for another cause is the
    /// same loss, but for those of [`Cause::keeps_its_name`].
    fn match_notes(&self, dropped: &[u64; CAUSES], ledger: &mut Ledger) {
        let beyond = |some: &[u64; CAUSES], others: &[u64; CAUSES]| -> [u64; CAUSES] {
            std::array::from_fn(|cause| some[cause].saturating_sub(others[cause]))
        };
        let mut untold = beyond(dropped, &self.told);
        let mut misnamed = beyond(&self.told, dropped);
        let keep = Cause::all().into_iter().filter(|cause| cause.keeps_its_name());
        for cause in keep.map(|cause| cause as usize) {
            misnamed[cause] = 0;
            let untold = std::mem::take(&mut untold[cause]);
            ledger.untold[cause] = ledger.untold[cause].saturating_add(untold);
        }
        let same = sum(&untold).min(sum(&misnamed));
        let named = up_to(&untold, same);
        add_to(&mut ledger.misnamed, &up_to(&misnamed, same));
        add_to(&mut ledger.named, &named);
        add_to(&mut ledger.untold, &beyond(&untold, &named));
    }

    /// Blocks whose records are not here. A server that greeted late was sent some without numbers, for
    /// which a file beside it has blocks.
    fn blocks_not_here(&self) -> u64 {
        let all_came = match &self.end {
            Some(End { done: true, emitted: Some(emitted), dropped, .. }) => {
                self.came.saturating_add(sum(dropped)) >= *emitted
            }
            _ => false,
        };
        if self.unnumbered > 0 && all_came { 0 } else { self.missing_blocks }
    }

    /// Whether each chunk of it came; those without numbers may have been any.
    fn misses_nothing(&self) -> bool {
        self.missing_blocks == 0 && self.unnumbered == 0
    }
}

/// The sum over all causes.
pub fn sum(dropped: &[u64; CAUSES]) -> u64 {
    dropped.iter().fold(0, |sum, events| sum.saturating_add(*events))
}

/// The first of these, `most` in sum.
pub fn up_to(dropped: &[u64; CAUSES], most: u64) -> [u64; CAUSES] {
    let mut left = most;
    dropped.map(|events| {
        let kept = events.min(left);
        left -= kept;
        kept
    })
}

/// Adds up cause by cause.
pub fn add_to(sums: &mut [u64; CAUSES], more: &[u64; CAUSES]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

fn add(sums: &mut [Dropped; CAUSES], more: &[Dropped; CAUSES]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        sum.events = sum.events.saturating_add(more.events);
        sum.records = sum.records.saturating_add(more.records);
    }
}

/// The counts by cause that stand under `key`.
fn dropped(fields: &[u8], key: u16) -> [u64; CAUSES] {
    dropped_by_sink(fields, key).map(|dropped| dropped.events)
}

/// The same with their records, where these are told; else they are as many.
fn dropped_by_sink(fields: &[u8], key: u16) -> [Dropped; CAUSES] {
    let le = ByteOrder::Little;
    let mut dropped = [Dropped::default(); CAUSES];
    for (_, value) in Fields(fields).filter(|(found, _)| *found == key) {
        let cause = le.u32(value, 0).and_then(Cause::from_number);
        if let (Some(cause), Some(events)) = (cause, le.u64(value, 4)) {
            // Writers of a ring of version 2 number none.
            let records = le.u64(value, 12).unwrap_or(0).max(events);
            dropped[cause as usize] = Dropped { events, records };
        }
    }
    dropped
}

/// The first field under `key`.
pub fn field(fields: &[u8], key: u16) -> Option<&[u8]> {
    Fields(fields).find(|(found, _)| *found == key).map(|(_, value)| value)
}
