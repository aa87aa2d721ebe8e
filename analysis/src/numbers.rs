//! The numbers of blocks and records → what came twice, and what never came.
//!
//! A writer numbers its records, those it drops too, and says in each block how many it had
//! dropped: what is missing beyond these was lost on the way. A drain numbers its blocks. Streams
//! of one ring go on with the writers' numbers, and may hold again what an earlier one has.

use std::collections::hash_map::Entry;

use callsight_format::{
    BlockHeader, ByteOrder, HELLO_STREAM, HELLO_TAKEN, LossNote, STREAM_ID_BYTES,
};
use rustc_hash::FxHashMap;

use crate::ledger::{Ledger, Stream, field};

/// Writers, and streams, that are told apart: more are of a damaged file.
const MOST_WRITERS: usize = 1_000_000;

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriterId {
    /// Its process.
    pub pid: u32,
    /// Start time of its process.
    pub start: u64,
    /// The thread.
    pub tid: u32,
}

impl WriterId {
    /// The writer of a block.
    pub fn of(block: &BlockHeader) -> WriterId {
        WriterId { pid: block.pid, start: block.start, tid: block.tid }
    }
}

/// What the notes in a block say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// How many of its records are the drain's own notes.
    pub notes: u32,
    /// How many torn records these tell.
    pub torn: u64,
    /// Whether these tell what another drain has told.
    pub told_before: bool,
}

/// What a block brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// How many of its numbered records came before.
    pub repeated: u64,
    /// Records lost right before it, that no note tells.
    pub lost: u64,
    /// Whether it is the first that came of a life whose beginning did not.
    pub beheaded: bool,
    /// Whether blocks without numbers of records are missing right before it.
    pub uncertain: bool,
}

/// One thread from its start to its end.
#[derive(Clone, Copy, Default)]
struct Life {
    /// Number of the record that comes next.
    next: u64,
    /// Time of its first record, where that came.
    begun: Option<u64>,
    lost_total: u64,
    lost: [u32; 4],
    /// Of these, before the first block that is here, where other drains took those before it.
    lost_before: [u32; 4],
    /// Both for causes that blocks do not tell.
    others: u64,
    others_before: u64,
    /// The last stream with a block of it, and the number behind that block.
    stream: usize,
    sent: u64,
    /// Torn records told by the drain, not yet found missing.
    torn: u64,
}

impl Life {
    /// What its last block says that it had dropped, less what belongs to other captures.
    fn lost_here(&self) -> [u32; 4] {
        std::array::from_fn(|at| self.lost[at].saturating_sub(self.lost_before[at]))
    }

    /// The same for causes that blocks do not tell.
    fn others_here(&self) -> u64 {
        self.others.saturating_sub(self.others_before)
    }
}

/// See the file's first lines.
#[derive(Default)]
pub struct Numbers {
    /// A program that replaces itself (`exec`) begins another life of the same writer.
    lives: FxHashMap<WriterId, Vec<Life>>,
    life_count: usize,
    streams: Vec<Stream>,
    by_id: FxHashMap<[u8; STREAM_ID_BYTES], usize>,
    by_file: FxHashMap<u32, usize>,
    /// The stream that the next chunk is of.
    current: usize,
    /// Records of each thread that came without numbers.
    unnumbered: FxHashMap<u32, u64>,
    /// The last losses of writers that drains told, and in which stream that was first.
    last_losses: FxHashMap<(WriterId, [u64; 4]), usize>,
    ledger: Ledger,
}

impl Numbers {
    /// The chunks of another capture come next, or of the same again.
    pub fn file(&mut self, number: u32) {
        self.current = match self.by_file.get(&number) {
            Some(stream) => *stream,
            None => self.add_stream(number),
        };
    }

    /// Records without numbers come next, in a file that says itself how its stream ended.
    pub fn file_of_events(&mut self, number: u32) {
        self.file(number);
        if let Some(stream) = self.streams.get_mut(self.current) {
            stream.is_file_of_events = true;
        }
    }

    fn add_stream(&mut self, file: u32) -> usize {
        if self.streams.len() < MOST_WRITERS {
            self.streams.push(Stream::default());
        }
        self.by_file.insert(file, self.streams.len() - 1);
        self.streams.len() - 1
    }

    /// Who sends: the same stream may have come in several files.
    pub fn hello(&mut self, file: u32, fields: &[u8]) {
        let taken = field(fields, HELLO_TAKEN).and_then(|taken| ByteOrder::Little.u64(taken, 0));
        if let (Some(taken), Some(stream)) = (taken, self.streams.get_mut(self.current)) {
            stream.taken = taken;
        }
        let id = field(fields, HELLO_STREAM).and_then(|id| id.try_into().ok());
        let Some(id) = id else { return };
        match self.by_id.entry(id) {
            Entry::Occupied(known) if *known.get() != self.current => {
                // What was begun for the file is no stream.
                self.streams.pop_if(|stream| stream.is_empty());
                self.current = *known.get();
                self.by_file.insert(file, self.current);
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(new) => {
                new.insert(self.current);
            }
        }
    }

    /// A record came without a number: before the server had greeted.
    pub fn unnumbered(&mut self, tid: u32) {
        self.ledger.delivered += 1;
        if let Some(stream) = self.streams.get_mut(self.current) {
            stream.came += 1;
            stream.unnumbered += 1;
        }
        if self.unnumbered.len() < MOST_WRITERS || self.unnumbered.contains_key(&tid) {
            *self.unnumbered.entry(tid).or_default() += 1;
        }
    }

    /// Records came that others have with numbers.
    pub fn repeated(&mut self, records: u64) {
        self.ledger.repeated += records;
    }

    /// A note of losses came, perhaps again.
    pub fn told(&mut self, loss: &LossNote) {
        if let Some(stream) = self.streams.get_mut(self.current) {
            stream.told(loss);
        }
    }

    /// Whether another drain has told this last loss of a writer, and was killed or stopped before
    /// it could take note of that.
    pub fn told_before(&mut self, block: &BlockHeader, loss: &LossNote) -> bool {
        if self.last_losses.len() >= MOST_WRITERS {
            return false;
        }
        let key = (WriterId::of(block), [loss.cause.into(), loss.events, loss.first, loss.last]);
        *self.last_losses.entry(key).or_insert(self.current) != self.current
    }

    /// Whether a block of this number came in this stream, or a later one. Else this is it.
    pub fn came_before(&mut self, block: &BlockHeader) -> bool {
        let Some(stream) = self.streams.get_mut(self.current) else { return true };
        if block.number <= stream.last {
            self.ledger.repeated += u64::from(block.numbered);
            return true;
        }
        stream.block(block.number);
        false
    }

    /// Where a block belongs that has not come before; `None` when all that is in it has.
    pub fn place(&mut self, block: &BlockHeader, heard: &Heard) -> Option<Placed> {
        let records = u64::from(block.records.saturating_sub(heard.notes));
        let stream = self.streams.get_mut(self.current)?;
        stream.came += records;
        let uncertain = stream.missed > 0 && block.numbered == 0 && block.calls > 0;
        let mut placed = Placed { uncertain, ..Placed::default() };
        if block.numbered > 0 || self.is_behind_life(block) {
            placed = self.place_in_life(block, heard.torn);
            self.ledger.repeated += placed.repeated;
            self.ledger.gaps = self.ledger.gaps.saturating_add(placed.lost);
        }
        self.ledger.delivered += records.saturating_sub(placed.repeated);
        let all_repeated = block.numbered > 0 && placed.repeated == u64::from(block.numbered);
        let all_told = records == 0 && heard.told_before;
        (!all_repeated && !all_told).then_some(placed)
    }

    /// Whether a block with nothing but notes of the drain tells losses behind the last record of
    /// its writer: there may be no later block of it.
    fn is_behind_life(&self, block: &BlockHeader) -> bool {
        let lives = self.lives.get(&WriterId::of(block)).map_or(&[][..], Vec::as_slice);
        let is_of_it = |at: usize| {
            let life = &lives[at];
            life.begun.is_none_or(|begun| begun <= block.first_ts)
                && life.next <= block.first
                && life.lost_total < block.lost_total
        };
        block.first > 0
            && block.lost_total > 0
            && life_of(lives, block, self.current).map_or(lives.is_empty(), is_of_it)
    }

    fn place_in_life(&mut self, block: &BlockHeader, torn: u64) -> Placed {
        let lives = self.lives.entry(WriterId::of(block)).or_default();
        let known = life_of(lives, block, self.current);
        let fresh = known.is_none();
        if fresh && self.life_count >= MOST_WRITERS {
            return Placed::default();
        }
        let at = known.unwrap_or_else(|| {
            self.life_count += 1;
            lives.push(Life { stream: usize::MAX, ..Life::default() });
            lives.len() - 1
        });
        let life = &mut lives[at];
        let goes_on = if fresh { self.current == 0 } else { life.stream == self.current };
        life.stream = self.current;
        if block.first == 0 {
            life.begun = Some(block.first_ts);
        }
        // Those that the writer's own count has come to hold explain their gaps there.
        let counted = block.lost[3].saturating_sub(life.lost[3]);
        life.torn = life.torn.saturating_add(torn).saturating_sub(counted.into());
        let end = block.first.saturating_add(u64::from(block.numbered));
        let repeated = life.next.saturating_sub(block.first).min(u64::from(block.numbered));
        // What other drains took before the first stream that is here is not ours to miss.
        let taken = fresh && self.current == 0 && self.streams[0].taken > 0;
        if taken {
            (life.next, life.lost_total) = (block.first, block.lost_total);
            (life.lost, life.lost_before) = (block.lost, block.lost);
            life.others = block.lost_for_other_causes();
            life.others_before = life.others;
        }
        let gap = block.first.saturating_sub(life.next);
        let told = block.lost_total.saturating_sub(life.lost_total);
        let mut lost = gap.saturating_sub(told);
        let torn = lost.min(life.torn);
        life.torn -= torn;
        lost -= torn;
        // Those without numbers that came meanwhile, as of a drain that nobody greeted in time.
        let before = match fresh || lost > 0 {
            true => self.unnumbered.remove(&block.tid).unwrap_or(0),
            false => 0,
        };
        lost = lost.saturating_sub(before);
        // A gap between two streams is of the drain that was killed, as long as this one's blocks
        // have all come.
        let stream = &mut self.streams[self.current];
        if goes_on {
            stream.gaps = stream.gaps.saturating_add(lost);
        } else if stream.missing_blocks > 0 {
            stream.gaps_before = stream.gaps_before.saturating_add(lost);
        }
        life.sent = end;
        if end > life.next {
            life.next = end;
            life.lost_total = block.lost_total;
            life.lost = block.lost;
            life.others = block.lost_for_other_causes();
        }
        let beheaded = fresh && block.first > 0 && before == 0;
        Placed { repeated, lost, beheaded, uncertain: false }
    }

    /// A stream is at its end, as this file has it.
    pub fn end(&mut self, file: u32, fields: &[u8]) {
        if let Some(stream) = self.streams.get_mut(self.current) {
            stream.end(file, fields);
        }
    }

    /// What became of the stream of a file where it was stored, so far or in the end.
    pub fn sink(&mut self, file: u32, fields: &[u8]) {
        if let Some(stream) = self.streams.get_mut(self.current) {
            stream.sink(file, fields);
        }
    }

    /// The sums, once all chunks of a group were seen.
    pub fn finish(self) -> Ledger {
        let mut ledger = self.ledger;
        for life in self.lives.into_values().flatten() {
            ledger.add_told_by_block(life.lost_here(), life.others_here());
        }
        ledger.taken_before = self.streams.first().map_or(0, |stream| stream.taken);
        let mut captures = vec![0; self.streams.len()];
        for stream in self.by_file.values() {
            captures.get_mut(*stream).into_iter().for_each(|count| *count += 1);
        }
        let mut taken = 0;
        for (stream, captures) in self.streams.iter().zip(captures) {
            taken = stream.settle(captures, taken, &mut ledger);
        }
        ledger.all_ended = is_bounded(&self.streams);
        // What a drain held that was killed, or sent without numbers to a server that never got it: of
        // a thread that goes on its later numbers show it, of one that has ended nothing but the sum.
        let known = [ledger.delivered, ledger.gaps, ledger.hidden]
            .into_iter()
            .fold(ledger.taken_before, u64::saturating_add);
        let missing = taken.saturating_sub(known);
        let unnumbered = self.streams.iter().any(|stream| stream.unnumbered > 0);
        ledger.unnumbered_gaps |= missing > 0 && unnumbered;
        ledger.hidden = ledger.hidden.saturating_add(missing);
        ledger
    }
}

/// Whether what is missing is all that can be: an end says what was emitted, and of a stream without one
/// the next stream of its ring says what had been taken, which holds for records with numbers alone.
fn is_bounded(streams: &[Stream]) -> bool {
    let Some((last, before)) = streams.split_last() else { return true };
    let has_numbers = |stream: &Stream| stream.unnumbered == 0 && !stream.is_file_of_events;
    last.says_what_was_emitted()
        && before.iter().all(|stream| stream.says_what_was_emitted() || has_numbers(stream))
}

/// The life that a block is of; `None` for another one than these, which stand as they were met. Within
/// a stream the numbers of a life only grow, and no record is sent twice but in a block of the same
/// number; a drain that goes on for another one may begin with what that one has sent, in any number of
/// blocks, and with lives that were over by then.
fn life_of(lives: &[Life], block: &BlockHeader, stream: usize) -> Option<usize> {
    let is_sent = |life: &Life| life.stream == stream && life.sent > 0;
    if block.first == 0 {
        let same_start = |life: &Life| life.begun.is_none_or(|ts| ts == block.first_ts);
        return lives.iter().rposition(|life| same_start(life) && !is_sent(life));
    }
    let is_begun = |life: &Life| life.begun.is_none_or(|ts| ts <= block.first_ts);
    let at = lives.iter().rposition(is_begun).or(lives.len().checked_sub(1))?;
    let begins_anew = block.first < lives[at].sent && lives[at].stream == stream;
    (!begins_anew).then_some(at)
}
