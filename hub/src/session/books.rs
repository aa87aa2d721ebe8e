//! All blocks that the streams of a server bring → what came twice, and what no stream has.
//!
//! A drain that goes on for another one begins a stream of its own, and sends again what that one
//! had sent and not given back. Only the numbers of the writers show it, over all streams; in which
//! order they come makes no difference.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use callsight_format::{BlockHeader, Cause};

use super::lives::{Life, MAX_SPANS, life_of};
use super::part::{Part, WriterPart};
use super::tally::{OfRing, Tally};

/// Most writers that are followed, and most losses whose notes are: those beyond are believed. 64 and
/// 48 bytes each.
const MAX_WRITERS: usize = 1 << 16;

/// Which ring of which machine.
pub(crate) type RingId = u64;

/// A thread: which ring, process, start of that, thread.
type WriterId = (RingId, u32, u64, u32);

/// A loss that a note tells: of whom, when, why, how much.
type Told = (WriterId, u64, Cause, u64);

/// See the file's first lines.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    writers: HashMap<WriterId, Vec<Life>>,
    /// Losses by their notes, and the session that told of them first.
    told: HashMap<Told, u32>,
    /// Rings whose first stream came here: what there is of them came here or is missing.
    whole: HashSet<RingId>,
    /// What the sessions' own accounts say, by ring.
    by_sessions: HashMap<RingId, Counted>,
    /// Rings of which it is known what earlier servers had.
    known: HashSet<RingId>,
    begun: HashMap<RingId, Begun>,
}

impl State {
    /// What no session counts of these rings. For each, since another one may have losses that no block
    /// tells.
    fn beyond(&self, wanted: impl Fn(RingId) -> bool) -> HashMap<RingId, u64> {
        let mut rings: HashMap<RingId, Sums> = HashMap::new();
        for ((ring, ..), lives) in self.writers.iter().filter(|((ring, ..), _)| wanted(*ring)) {
            let sums = rings.entry(*ring).or_default();
            lives.iter().for_each(|life| sums.add(life.lost(), life.missing()));
        }
        for ring in self.by_sessions.keys().filter(|ring| wanted(**ring)) {
            rings.entry(*ring).or_default();
        }
        let beyond = rings.into_iter().map(|(ring, all)| {
            let counted = self.by_sessions.get(&ring).cloned().unwrap_or_default();
            let all = counted.of_all(all);
            let missing = all.missing.saturating_sub(counted.sums.missing);
            (ring, missing.saturating_add(all.lost.saturating_sub(counted.sums.lost)))
        });
        beyond.collect()
    }
}

/// The sessions of a ring that have begun: the last one, and how many have not ended.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    last: u32,
    open: u32,
}

/// What the sessions of a ring say, all in all.
#[derive(Clone, Debug, Default)]
struct Counted {
    sums: Sums,
    /// Records that drains had taken of the ring: before the first of these sessions, and in the end.
    first_taken: Option<u64>,
    last_taken: u64,
    /// Records that came, each once.
    came: u64,
    /// What its writers dropped, as its last drain says.
    dropped: Option<u64>,
    has_raw: bool,
    /// Whether an earlier server has a part of it, and nobody knows which.
    is_part: bool,
    /// Whether a stream was begun here behind another one.
    has_later: bool,
    /// What no session counts, and a capture tells: one of this server, or of an earlier one.
    told: u64,
    told_earlier: u64,
    /// What became of events that several sessions had, in their order.
    shared: Vec<Shared>,
}

/// What became of some events of a session.
#[derive(Clone, Copy, Debug)]
struct Shared {
    session: u32,
    /// Stored though another one had them.
    again: u64,
    /// Not stored, which are the last ones of its stream.
    dropped: u64,
}

impl Counted {
    fn add(&mut self, tally: &Tally) {
        let OfRing { taken, taken_in_the_end, came, again, dropped, has_raw, is_part } =
            tally.of_ring;
        self.sums.add(tally.lost_by_writers(), tally.missing_records);
        self.first_taken = Some(self.first_taken.map_or(taken, |first| first.min(taken)));
        let end = taken.saturating_add(came).saturating_add(tally.missing_records);
        self.last_taken = self.last_taken.max(end).max(taken_in_the_end.unwrap_or(0));
        self.came = self.came.saturating_add(came.saturating_sub(again));
        self.dropped = self.dropped.max(dropped);
        self.has_raw |= has_raw;
        self.is_part |= is_part;
        self.has_later |= taken > 0 && !is_part;
    }

    fn add_shared(&mut self, session: u32, tally: &Tally) {
        let dropped = tally.sinks.first().map_or(0, |sink| sink.dropped_events.sum());
        let again = tally.again_events.min(tally.stored_events());
        if (again > 0 || dropped > 0) && self.shared.len() < MAX_SPANS {
            self.shared.push(Shared { session, again, dropped });
        }
    }

    /// Events that a session did not store, and a later one did.
    fn stored_later(&self) -> u64 {
        let mut shared = self.shared.clone();
        shared.sort_by_key(|of| of.session);
        let (mut dropped, mut stored) = (0u64, 0u64);
        for of in shared {
            let later = of.again.min(dropped);
            stored = stored.saturating_add(later);
            dropped = (dropped - later).saturating_add(of.dropped);
        }
        stored
    }

    /// The same of a stream that an earlier server had.
    fn add_part(&mut self, part: &Part) {
        let Part { taken, came, again, missing, lost, between, has_raw, .. } = *part;
        self.sums.add(lost, missing);
        self.first_taken = Some(self.first_taken.map_or(taken, |first| first.min(taken)));
        self.last_taken = self.last_taken.max(part.end());
        self.came = self.came.saturating_add(came.saturating_sub(again));
        self.has_raw |= has_raw;
        self.told = self.told.saturating_add(between);
        self.told_earlier = self.told_earlier.saturating_add(between);
    }

    /// What drains had taken of the ring and no stream brought, and what its writers dropped; `writers`
    /// is what the numbers of these show, which is less exact: threads that have ended show nothing, and
    /// what several streams bring comes in no order.
    fn of_all(&self, writers: Sums) -> Sums {
        let (Some(first_taken), false) = (self.first_taken, self.is_part) else { return writers };
        let missing = self.last_taken.saturating_sub(first_taken).saturating_sub(self.came);
        let missing = if self.has_raw { missing.max(writers.missing) } else { missing };
        let lost = self.dropped.filter(|_| first_taken == 0).unwrap_or(writers.lost);
        Sums { lost, missing }
    }
}

/// Of a ring: what its writers dropped, and records that are missing by number.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    lost: u64,
    missing: u64,
}

impl Sums {
    fn add(&mut self, lost: u64, missing: u64) {
        self.lost = self.lost.saturating_add(lost);
        self.missing = self.missing.saturating_add(missing);
    }
}

impl Books {
    /// Takes note of a block of a ring; which of its numbers had come before. `late` where its stream
    /// is not the first of its ring that there was.
    pub fn add(&self, ring: RingId, block: &BlockHeader, late: bool) -> Vec<Range<u64>> {
        // A block of nothing but a drain's notes tells what its writer dropped behind all it stored.
        if block.numbered == 0 && (block.first == 0 || block.lost_total == 0) {
            return Vec::new();
        }
        let mut state = self.lock();
        let id = (ring, block.pid, block.start, block.tid);
        if state.writers.len() >= MAX_WRITERS && !state.writers.contains_key(&id) {
            return Vec::new();
        }
        if !late && state.whole.len() < MAX_WRITERS {
            state.whole.insert(ring);
        }
        let late = !state.whole.contains(&ring);
        let lives = state.writers.entry(id).or_default();
        life_of(lives, block, late).add(block, late)
    }

    /// Learns what earlier servers had of a ring, unless it is known.
    pub fn learn(&self, ring: RingId, read: impl FnOnce() -> Vec<(Part, Vec<WriterPart>)>) {
        let mut state = self.lock();
        if state.known.len() >= MAX_WRITERS || !state.known.insert(ring) {
            return;
        }
        for (part, writers) in read() {
            state.by_sessions.entry(ring).or_default().add_part(&part);
            if part.taken == 0 {
                state.whole.insert(ring);
            }
            let late = !state.whole.contains(&ring);
            for writer in writers.iter().filter(|writer| writer.end > 0) {
                let id = (ring, writer.pid, writer.start, writer.tid);
                let WriterPart { first, from_ts: first_ts, .. } = *writer;
                let begins = BlockHeader { first, first_ts, ..BlockHeader::default() };
                let lives = state.writers.entry(id).or_default();
                life_of(lives, &begins, late).add_part(writer, late);
            }
        }
    }

    /// Rings whose streams began here behind another one that was not here, as far as is known.
    pub fn behind_others(&self) -> Vec<RingId> {
        let state = self.lock();
        let rings = state.by_sessions.iter().filter(|(_, counted)| {
            counted.has_later && (counted.is_part || counted.first_taken != Some(0))
        });
        rings.map(|(ring, _)| *ring).collect()
    }

    /// Learns what an earlier server had of a ring, whose blocks were added.
    pub fn add_left(&self, part: &Part) {
        let state = &mut *self.lock();
        state.by_sessions.entry(part.ring).or_default().add_part(part);
        if state.whole.contains(&part.ring) {
            let of_ring = state.writers.iter_mut().filter(|((ring, ..), _)| *ring == part.ring);
            of_ring.flat_map(|(_, lives)| lives).for_each(|life| life.late = false);
        }
    }

    /// So much of what no session counts of a ring is the business of earlier servers.
    pub fn told_earlier(&self, ring: RingId, lost: u64) {
        let mut state = self.lock();
        let counted = state.by_sessions.entry(ring).or_default();
        counted.told_earlier = counted.told_earlier.saturating_add(lost);
    }

    /// A session has a stream of this ring.
    pub fn begin(&self, ring: RingId, session: u32) {
        let mut state = self.lock();
        if state.begun.len() < MAX_WRITERS || state.begun.contains_key(&ring) {
            let begun = state.begun.entry(ring).or_default();
            begun.last = session.max(begun.last);
            begun.open += 1;
        }
    }

    /// Whether another session has a later stream of this ring.
    pub fn goes_on(&self, ring: RingId, session: u32) -> bool {
        self.lock().begun.get(&ring).is_some_and(|begun| begun.last > session)
    }

    /// A note of `session` tells a loss: whether one of another session has told it.
    pub fn told_before(
        &self,
        session: u32,
        (ring, block): (RingId, &BlockHeader),
        (ts, cause, events): (u64, Cause, u64),
    ) -> bool {
        let mut state = self.lock();
        let key = ((ring, block.pid, block.start, block.tid), ts, cause, events);
        if state.told.len() >= MAX_WRITERS && !state.told.contains_key(&key) {
            return false;
        }
        *state.told.entry(key).or_insert(session) != session
    }

    /// What sinks did of a session of a ring that has ended.
    pub fn count_stored(&self, session: u32, tally: &Tally) {
        let Some(ring) = tally.ring else { return };
        if let Some(counted) = self.lock().by_sessions.get_mut(&ring) {
            counted.add_shared(session, tally);
        }
    }

    /// Events that came twice of these rings, and were stored the second time alone.
    pub fn stored_later(&self, is_of: impl Fn(RingId) -> bool) -> u64 {
        let state = self.lock();
        let rings = state.by_sessions.iter().filter(|(ring, _)| is_of(**ring));
        rings.fold(0, |sum, (_, counted)| sum.saturating_add(counted.stored_later()))
    }

    /// A session has ended. One without blocks has nothing of what is in here.
    pub fn count(&self, tally: &Tally) {
        let Some(ring) = tally.ring else { return };
        let mut state = self.lock();
        if let Some(begun) = state.begun.get_mut(&ring) {
            begun.open = begun.open.saturating_sub(1);
        }
        if state.by_sessions.len() < MAX_WRITERS || state.by_sessions.contains_key(&ring) {
            state.by_sessions.entry(ring).or_default().add(tally);
        }
    }

    /// What no session counts: lost between two streams of a ring, and the losses whose notes were;
    /// without what captures of earlier servers tell.
    pub fn lost_between(&self) -> u64 {
        let state = self.lock();
        let beyond = state.beyond(|_| true).into_iter().map(|(ring, beyond)| {
            let told = state.by_sessions.get(&ring).map_or(0, |counted| counted.told_earlier);
            beyond.saturating_sub(told)
        });
        beyond.fold(0, u64::saturating_add)
    }

    /// The same of a ring as far as no capture tells it; one will, now. As long as another session may
    /// bring it, none.
    pub fn tell_lost_between(&self, ring: RingId) -> u64 {
        let mut state = self.lock();
        if state.begun.get(&ring).is_some_and(|begun| begun.open > 0) {
            return 0;
        }
        let beyond = state.beyond(|other| other == ring).remove(&ring).unwrap_or(0);
        let Some(counted) = state.by_sessions.get_mut(&ring) else { return 0 };
        let untold = beyond.saturating_sub(counted.told);
        counted.told = counted.told.saturating_add(untold);
        untold
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks as (first, numbered, first time, lost before).
    type Blocks<'a> = &'a [(u64, u32, u64, u64)];

    fn add(books: &Books, late: bool, blocks: Blocks<'_>) -> Vec<u64> {
        let add = |&(first, numbered, first_ts, lost_total): &(u64, u32, u64, u64)| {
            let (pid, tid) = (7, 1);
            let header = BlockHeader {
                pid,
                tid,
                first,
                numbered,
                first_ts,
                lost_total,
                ..Default::default()
            };
            books.add(0, &header, late).into_iter().map(|range| range.end - range.start).sum()
        };
        blocks.iter().map(add).collect()
    }

    #[test]
    fn what_a_second_drain_sends_again_is_known_in_whatever_order_it_comes() {
        let one: Blocks<'_> = &[(0, 10, 5, 0), (10, 10, 6, 0), (20, 10, 7, 0)];
        let other: Blocks<'_> = &[(10, 15, 6, 0), (25, 15, 8, 0)];
        for (first, second) in [(one, other), (other, one)] {
            let books = Books::default();
            assert_eq!(add(&books, false, first).iter().sum::<u64>(), 0);
            assert_eq!(add(&books, false, second).iter().sum::<u64>(), 20);
            assert_eq!(books.lost_between(), 0);
        }
    }

    #[test]
    fn what_is_missing_between_two_streams_is_no_loss_of_the_writer() {
        let books = Books::default();
        add(&books, false, &[(0, 10, 5, 0)]);
        add(&books, true, &[(40, 10, 9, 25), (50, 1, 10, 25)]);
        // 5 records that no stream has, and 25 that the writer dropped.
        assert_eq!(books.lost_between(), 30);
        books.count(&Tally { ring: Some(0), missing_records: 5, ..Tally::default() });
        assert_eq!(books.lost_between(), 25);
    }

    #[test]
    fn a_loss_that_a_session_counts_is_none_between_two_whatever_its_cause() {
        for cause in [Cause::Full, Cause::Stopped, Cause::Budget, Cause::Io, Cause::Torn] {
            let books = Books::default();
            add(&books, false, &[(0, 10, 5, 0), (50, 0, 9, 40)]);
            let mut tally = Tally { ring: Some(0), ..Tally::default() };
            tally.lost_in_ring.add(cause, 40);
            books.count(&tally);
            assert_eq!(books.lost_between(), 0, "{cause:?}");
        }
    }

    #[test]
    fn what_another_ring_lost_explains_nothing_here() {
        let books = Books::default();
        add(&books, false, &[(0, 10, 5, 0), (50, 0, 9, 40)]);
        for ring in [Some(1), None] {
            let mut tally = Tally { ring, missing_records: 90, ..Tally::default() };
            tally.lost_in_ring.add(Cause::Full, 90);
            books.count(&tally);
        }
        assert_eq!(books.lost_between(), 40);
    }

    #[test]
    fn what_a_writer_dropped_behind_its_last_record_is_known_by_the_note_of_a_drain() {
        let books = Books::default();
        add(&books, false, &[(0, 10, 5, 0), (50, 0, 9, 40)]);
        assert_eq!(books.lost_between(), 40);
        // One that tells less, of before.
        assert_eq!(add(&books, true, &[(5, 0, 9, 2)]), [0]);
        assert_eq!(books.lost_between(), 40);
    }

    #[test]
    fn what_a_killed_drain_lost_of_the_beginning_of_a_thread_is_missing() {
        let books = Books::default();
        add(&books, false, &[(0, 10, 5, 0)]);
        let of_another = BlockHeader {
            pid: 7,
            tid: 2,
            first: 400,
            numbered: 10,
            first_ts: 9,
            lost_total: 25,
            ..Default::default()
        };
        books.add(0, &of_another, true);
        assert_eq!(books.lost_between(), 400);
        // Of another ring, whose first drain had another server, nobody knows.
        books.add(1, &of_another, true);
        assert_eq!(books.lost_between(), 400);
    }

    #[test]
    fn what_a_killed_drain_held_of_threads_that_had_ended_is_missing() {
        let session = |taken, came, again, dropped| Tally {
            ring: Some(0),
            of_ring: OfRing { taken, came, again, dropped: Some(dropped), ..OfRing::default() },
            ..Tally::default()
        };
        let books = Books::default();
        books.count(&session(0, 100, 0, 0));
        books.count(&session(170, 50, 20, 30));
        // Of 220 records, 130 came; and nobody told of 30 that were dropped.
        assert_eq!(books.lost_between(), 90 + 30);
        // An earlier server has a part of it, or another drain had.
        let mut part = session(0, 9, 0, 0);
        part.of_ring.is_part = true;
        for other in [part, session(7, 9, 0, 5)] {
            let books = Books::default();
            books.count(&other);
            assert_eq!(books.lost_between(), 0);
        }
    }

    /// 60 records of the one thread came at an earlier server, of which 10 are missing.
    fn earlier() -> (Part, Vec<WriterPart>) {
        let writer = WriterPart {
            pid: 7,
            tid: 1,
            from_ts: 5,
            end: 60,
            missing: 10,
            ..WriterPart::default()
        };
        (Part { came: 50, missing: 10, between: 4, ..Part::default() }, vec![writer])
    }

    #[test]
    fn what_an_earlier_server_had_is_known_once() {
        let books = Books::default();
        (0..2).for_each(|_| books.learn(0, || vec![earlier()]));
        assert_eq!(add(&books, true, &[(40, 30, 9, 0), (80, 10, 12, 0)]), [20, 0]);
        // 70 to 79, and 10 that are told; the other server told 4 more.
        let of_ring = OfRing { taken: 40, came: 40, again: 20, ..OfRing::default() };
        let tally = Tally { ring: Some(0), of_ring, missing_records: 10, ..Tally::default() };
        books.count(&tally);
        assert_eq!(books.lost_between(), 0);
        let of_ring = OfRing { taken: 120, came: 5, ..OfRing::default() };
        books.count(&Tally { ring: Some(0), of_ring, ..Tally::default() });
        // Of 125 records 75 came, 20 are told as missing by the sessions, and 4 between them.
        assert_eq!(books.lost_between(), 26);
        assert_eq!([0; 2].map(|ring| books.tell_lost_between(ring)), [26, 0]);
    }

    #[test]
    fn nothing_between_two_streams_is_told_while_one_of_them_may_bring_it() {
        let books = Books::default();
        [1, 2].into_iter().for_each(|session| books.begin(0, session));
        assert_eq!([1, 2].map(|session| books.goes_on(0, session)), [true, false]);
        let count = |taken| {
            let of_ring = OfRing { taken, came: 20, ..OfRing::default() };
            books.count(&Tally { ring: Some(0), of_ring, ..Tally::default() });
            books.tell_lost_between(0)
        };
        assert_eq!([count(50), count(0)], [0, 30]);
    }

    #[test]
    fn what_seems_to_be_missing_of_a_writer_is_not_where_all_of_the_ring_came() {
        let books = Books::default();
        add(&books, false, &[(0, 10, 50, 0)]);
        // It begins with a note that is older than the writer: taken for another life.
        add(&books, true, &[(10, 10, 5, 0)]);
        assert_eq!(books.lost_between(), 10);
        let of_ring = OfRing { came: 20, ..OfRing::default() };
        books.count(&Tally { ring: Some(0), of_ring, ..Tally::default() });
        assert_eq!(books.lost_between(), 0);
    }

    #[test]
    fn what_other_drains_had_before_the_first_stream_is_not_missed() {
        let books = Books::default();
        add(&books, true, &[(400, 10, 9, 25), (410, 10, 10, 25)]);
        assert_eq!(books.lost_between(), 0);
    }

    #[test]
    fn a_thread_id_that_is_used_again_is_another_writer() {
        let books = Books::default();
        let lives: Blocks<'_> = &[(0, 10, 5, 0), (0, 10, 99, 0), (10, 5, 100, 0)];
        assert_eq!(add(&books, false, lives), [0, 0, 0]);
        // The end of the former life again, then the later one.
        assert_eq!(add(&books, true, &[(5, 5, 8, 0), (0, 10, 99, 0)]), [5, 10]);
        assert_eq!(books.lost_between(), 0);
    }

    #[test]
    fn a_writer_that_drops_all_the_time_costs_no_memory() {
        let books = Books::default();
        let blocks: Vec<_> = (0..10_000).map(|at| (at * 10, 4, at, at * 6)).collect();
        add(&books, false, &blocks);
        assert_eq!(books.lost_between(), 9_999 * 6);
        assert!(books.lock().writers.values().flatten().all(|life| life.spans.len() <= MAX_SPANS));
    }

    #[test]
    fn a_loss_that_two_streams_tell_is_one() {
        let books = Books::default();
        let block = BlockHeader { pid: 7, tid: 1, ..Default::default() };
        let told = |session, ts| books.told_before(session, (0, &block), (ts, Cause::Full, 5));
        assert_eq!([told(1, 9), told(1, 9), told(2, 9), told(2, 10)], [false, false, true, false]);
    }
}
