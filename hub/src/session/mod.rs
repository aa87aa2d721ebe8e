//! One stream from its handshake to its end: chunks → sinks, and an account of every event.
//!
//! Free of sockets. What a person should see at once goes to the [`Host`].

mod books;
mod lanes;
mod lives;
mod numbers;
mod part;
mod tally;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use callsight_format::{
    ByteOrder, Cause, END_DONE, EVENT_BYTES, KIND_ENTER, KIND_EXIT, Origin, Unpacker,
};

use crate::batch::{Again, BATCH_BYTES, Pool, with_numbers};
use crate::sink::Closing;
use crate::stream::{Block, Chunk, Item, Sender, StreamEnd, StreamId};
use crate::{Amount, Content, Dropped, Ending, LossWatch, Losses, SessionMeta, Sink};
pub(crate) use books::{Books, RingId};
use lanes::Lanes;
pub(crate) use lanes::give_up;
pub(crate) use numbers::Numbers;
use part::ReadHad;
pub(crate) use part::{Earlier, Had, Part, WriterPart};
use tally::OfRing;
pub(crate) use tally::counted;
pub use tally::{SinkTally, Tally};

/// How often growing losses are told while a stream runs.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// How long the sinks have to end.
const CLOSE_TIME: Duration = Duration::from_secs(2);
/// How often a session that waits for room asks whether it should.
const ROOM_POLL: Duration = Duration::from_millis(50);

/// Who runs a session.
pub trait Host {
    /// Shows a line to people.
    fn say(&self, line: &str);

    /// Whether to wait until a sink has room; where not, what comes is dropped and counted.
    fn waits(&self) -> bool {
        true
    }

    /// Whether it ends its sessions, whatever their senders do.
    fn stops(&self) -> bool {
        false
    }
}

impl<F: Fn(&str)> Host for F {
    fn say(&self, line: &str) {
        self(line);
    }
}

/// A running session.
pub struct Session {
    id: u32,
    order: ByteOrder,
    origin: Origin,
    stream: Option<StreamId>,
    lanes: Lanes,
    pool: Pool,
    closing: Closing,
    watch: LossWatch,
    numbers: Numbers,
    /// What all streams of this server bring.
    books: Arc<Books>,
    /// What an earlier server had of the stream, as far as that is known.
    earlier: Option<Part>,
    /// Finds out the rest of that.
    read_earlier: Option<ReadHad>,
    /// Whether that is done in a moment.
    earlier_is_small: bool,
    has_begun: bool,
    /// What writers had dropped by then.
    lost_by_then: Option<u64>,
    /// Records that it had, where blocks behind them are missing.
    had_records: Option<u64>,
    /// What tells the sender's ring from others.
    ring: RingId,
    /// Other drains, or an earlier server, had what came before of the same ring.
    late: bool,
    /// Number of the last block taken, here or by an earlier server.
    last_block: u64,
    /// Records received of a ring, markers included: raw ones are what
    /// [`StreamEnd::delivered_records`] counts, all are part of [`StreamEnd::emitted_records`].
    raw_records: u64,
    packed_records: u64,
    /// Of these, what other streams brought too.
    again_records: u64,
    /// Records that other drains had taken of the ring.
    taken_before: u64,
    noticed_events: u64,
    next_notice: Option<Instant>,
    end: Option<StreamEnd>,
    tally: Tally,
}

impl Session {
    /// Starts a session with all of `sinks`, each on a thread of its own.
    pub fn start(meta: &SessionMeta, sinks: Vec<Box<dyn Sink>>) -> Session {
        Session::begin(meta, sinks, 0)
    }

    /// The same for a stream whose first sink has its blocks up to `last_block` already.
    pub fn resume(meta: &SessionMeta, sinks: Vec<Box<dyn Sink>>, last_block: u64) -> Session {
        let tally = Tally { resumed_behind: Some(last_block), ..Tally::default() };
        Session { tally, late: true, ..Session::begin(meta, sinks, last_block) }
    }

    /// One of several, of which the others may bring the same.
    pub(crate) fn among(self, books: &Arc<Books>) -> Session {
        Session { books: Arc::clone(books), ..self }
    }

    /// One whose beginning an earlier server had, and left this.
    pub(crate) fn behind(self, earlier: Earlier) -> Session {
        let Earlier { part, is_small: earlier_is_small, read } = earlier;
        Session { earlier: part, read_earlier: Some(read), earlier_is_small, ..self }
    }

    fn begin(meta: &SessionMeta, sinks: Vec<Box<dyn Sink>>, last_block: u64) -> Session {
        Session {
            id: meta.id,
            order: meta.order,
            origin: meta.origin,
            stream: meta.stream,
            lanes: Lanes::start(meta, sinks, last_block),
            pool: Pool::default(),
            closing: meta.closing.clone(),
            watch: LossWatch::default(),
            numbers: Numbers::default(),
            books: Arc::default(),
            earlier: None,
            read_earlier: None,
            earlier_is_small: false,
            has_begun: false,
            lost_by_then: None,
            had_records: None,
            ring: 0,
            late: false,
            last_block,
            raw_records: 0,
            packed_records: 0,
            again_records: 0,
            taken_before: 0,
            noticed_events: 0,
            next_notice: None,
            end: None,
            tally: Tally::default(),
        }
    }

    /// Takes what a stream carries. Waits while no sink has room, for as long as `host` does.
    pub fn take(&mut self, chunk: &Chunk<'_>, host: &dyn Host) {
        let bytes = chunk.bytes;
        match &chunk.item {
            Item::Events(events) => self.take_events(events, bytes, host),
            Item::Block(block) => self.take_block(block, bytes, host),
            Item::Dropped { events } => self.take_notice(*events, host),
            Item::Sender(sender) => self.take_sender(sender, bytes, host),
            Item::End(end) => self.take_end(end, bytes, host),
            Item::Unknown { .. } => self.tally.unknown_chunks += 1,
        }
        self.tell_troubles(host);
    }

    /// What its first sink is called.
    pub fn name(&self) -> String {
        self.lanes.first_name()
    }

    /// The number up to which the first sink is done with the blocks of a stream, and the one
    /// behind the last block when it also has the end.
    pub fn acknowledged(&self) -> u64 {
        self.lanes.done_number()
    }

    /// Number of the last block taken, and the one behind it once the end is there.
    pub fn taken(&self) -> u64 {
        let end = self.end.as_ref().and_then(|end| end.blocks);
        end.map_or(self.last_block, |blocks| blocks.saturating_add(1))
    }

    /// Whether the sender has said that it is done.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether another stream goes on with its ring: then its drain is no more.
    pub(crate) fn is_taken_up(&self) -> bool {
        self.stream.is_some() && self.books.goes_on(self.ring, self.id)
    }

    /// Ends every sink and gives the account. `cut_records` were announced and did not come.
    pub fn finish(mut self, cut_records: u64, host: &dyn Host) -> Tally {
        let (mut lost_before, lost_in_ring, missing) = self.lost_before();
        self.tally.ring = self.stream.map(|_| self.ring);
        (self.tally.lost_in_ring, self.tally.missing_records) = (lost_in_ring, missing);
        self.tally.lost_earlier = self.lost_earlier(&lost_in_ring);
        self.tally.of_ring = OfRing {
            taken: self.earlier.map_or(self.taken_before, |part| part.end()),
            taken_in_the_end: self.taken_in_the_end(),
            came: self.raw_records.saturating_add(self.packed_records),
            again: self.again_records,
            dropped: self.dropped_in_ring(),
            has_raw: self.raw_records > 0,
            is_part: self.tally.resumed_behind.is_some() && self.earlier.is_none(),
        };
        if self.stream.is_none() {
            lost_before.add(Cause::Torn, cut_records);
        }
        self.tally.lost_before = lost_before;
        self.tally.ended = self.end.is_some();
        self.say_how_it_ended(host);
        // A sender of version 2 never says that it is done; in the middle of a chunk it was not.
        let cut = self.end.is_none() && (self.tally.named || cut_records > 0);
        self.books.count(&self.tally);
        self.closing.set();
        let ending = Ending {
            lost_before,
            lost_between: self.stream.map_or(0, |_| self.books.tell_lost_between(self.ring)),
            taken_up: self.raw_records == 0 && self.is_taken_up(),
            cut,
            ..Ending::default()
        };
        self.tally.sinks = self.lanes.finish(ending, CLOSE_TIME);
        self.books.count_stored(self.id, &self.tally);
        self.tell_troubles(host);
        self.tally
    }

    fn take_events(&mut self, events: &[u8], chunk: &[u8], host: &dyn Host) {
        self.watch.observe(events, self.order);
        self.raw_records += (events.len() / EVENT_BYTES) as u64;
        if self.stream.is_some() {
            return self.offer(Content::EventChunk, chunk, Amount::of_events(events), host);
        }
        for part in events.chunks(BATCH_BYTES) {
            self.offer(Content::Events, part, Amount::of_events(part), host);
        }
    }

    fn take_block(&mut self, block: &Block<'_>, chunk: &[u8], host: &dyn Host) {
        let header = block.header;
        if header.number <= self.last_block {
            self.tally.duplicate_blocks += 1;
            return;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.go_on(header.number, host);
        }
        self.last_block = header.number;
        // What came before the greeting has no numbers.
        let late = self.late || self.raw_records > 0;
        self.numbers.observe(&header, late, 0);
        let again = self.books.add(self.ring, &header, late);
        self.tally.again_events += calls_among(block, &again);
        let told_before = self.hear(block);
        let again = Again::of(&header, again, told_before);
        self.again_records += again.records();
        let amount = Amount::of_block(&header);
        self.packed_records += amount.records;
        self.offer_with(Content::Block(header), chunk, amount, again, host);
    }

    /// Goes on where an earlier server had blocks of the stream: the first one that comes shows whether all
    /// of them are here.
    fn go_on(&mut self, number: u64, host: &dyn Host) {
        let next = self.last_block.saturating_add(1);
        if number == next || self.read_earlier.is_none() {
            return;
        }
        let Some(had) = self.read_had() else { return };
        self.numbers = Numbers::going_on(&had.writers);
        self.had_records = Some(had.records);
        host.say(&format!(
            "blocks {next} to {} are missing: dropped by their sender, or {} was put back from a \
             copy older than they are",
            number - 1,
            self.lanes.first_name(),
        ));
    }

    /// Reads what an earlier server had of the stream.
    fn read_had(&mut self) -> Option<Had> {
        let had = self.read_earlier.take()?();
        let is_first = self.taken_before == 0;
        let lost = had.writers.iter().flatten().map(|writer| writer.lost_here(is_first));
        self.lost_by_then = Some(lost.fold(0, u64::saturating_add));
        Some(had)
    }

    /// Of what writers dropped, as the end says, that of which an earlier server had told.
    fn lost_earlier(&mut self, in_ring: &Losses) -> Losses {
        if self.end.is_some() && self.earlier.is_none() && self.earlier_is_small {
            self.read_had();
        }
        let by_then = self.earlier.map(|part| part.lost).or(self.lost_by_then).unwrap_or(0);
        let told_here = self.watch.told().sum();
        in_ring.up_to(by_then.min(in_ring.sum().saturating_sub(told_here)))
    }

    /// Reads the losses that the notes in a block tell, and which of them another stream told; whether
    /// there are such.
    fn hear(&mut self, block: &Block<'_>) -> bool {
        let mut told_before = false;
        for marker in block.markers {
            let before = self.watch.told();
            self.watch.observe_marker(marker);
            for (cause, events) in self.watch.told().beyond(&before).iter() {
                let writer = (self.ring, &block.header);
                if self.books.told_before(self.id, writer, (marker.ts, cause, events)) {
                    self.tally.again_lost.add(cause, events);
                    told_before = true;
                }
            }
        }
        told_before
    }

    fn take_notice(&mut self, events: u64, host: &dyn Host) {
        if events <= self.noticed_events {
            return;
        }
        self.noticed_events = events;
        if self.next_notice.is_none_or(|at| Instant::now() >= at) {
            self.next_notice = Some(Instant::now() + NOTICE_INTERVAL);
            host.say(&format!("the sender has dropped {events} events so far (its ring was full)"));
        }
    }

    fn take_sender(&mut self, sender: &Sender, chunk: &[u8], host: &dyn Host) {
        if !std::mem::replace(&mut self.tally.named, true) {
            host.say(&sender.to_string());
            self.ring = ring_of(sender, &self.origin);
            self.taken_before = sender.taken;
            self.late |= sender.taken > 0;
            self.books.begin(self.ring, self.id);
            self.offer(Content::Sender(sender.clone()), chunk, Amount::default(), host);
        }
    }

    fn take_end(&mut self, end: &StreamEnd, chunk: &[u8], host: &dyn Host) {
        if self.end.is_none() {
            self.end = Some(end.clone());
            self.offer(Content::End(end.clone()), chunk, Amount::default(), host);
        }
    }

    fn offer(&mut self, content: Content, bytes: &[u8], amount: Amount, host: &dyn Host) {
        self.offer_with(content, bytes, amount, Again::default(), host);
    }

    fn offer_with(
        &mut self,
        content: Content,
        bytes: &[u8],
        amount: Amount,
        again: Again,
        host: &dyn Host,
    ) {
        self.tally.received_events += amount.events;
        while !self.lanes.wait_for_room(ROOM_POLL) && host.waits() {
            self.tell_troubles(host);
        }
        let number = match &content {
            Content::Block(header) => Some(header.number),
            _ => None,
        };
        match self.pool.batch(content, bytes, amount, again, self.order) {
            Some(batch) => self.lanes.offer(&batch),
            None => self.lanes.refuse(amount, number),
        }
    }

    fn tell_troubles(&self, host: &dyn Host) {
        for (sink, trouble) in self.lanes.troubles() {
            host.say(&format!("{sink}: {trouble}"));
        }
    }

    /// What was lost before it came: all of it, and of that what never left the ring. What is missing by
    /// number is records; where the sender says that it did not send them, it says how many events they
    /// were.
    ///
    /// The last one is the number of the records missing by number.
    fn lost_before(&self) -> (Losses, Losses, u64) {
        let in_ring = self.lost_in_ring();
        let not_sent = self.end.as_ref().map_or(Dropped::default(), |end| end.not_sent);
        let missing = self.missing_records(&in_ring).max(not_sent.records.sum());
        let mut lost = in_ring.plus(&not_sent.events);
        lost.add(Cause::Unacked, missing - not_sent.records.sum());
        (lost, in_ring, missing)
    }

    /// A sender that says who it is tells its losses in the events and at its end: what it has not told
    /// yet, the next sender of its ring will, so its notices count nothing. For others they do. The
    /// total of a notice has no cause; what goes beyond the causes known is for want of room in the
    /// ring, the only loss of a version 2 sender.
    fn lost_in_ring(&self) -> Losses {
        let told = self.watch.told();
        let mut stated = self.end.as_ref().map_or(told, |end| end.dropped_events);
        if !self.tally.named {
            stated.add(Cause::Full, self.noticed_events.saturating_sub(stated.sum()));
        }
        self.named_by_blocks(told.raised_to(&stated))
    }

    /// A loss that a writer's note tells as `full`, and its blocks for a cause that they do not tell,
    /// was not for want of room: where no end says it, that is known by this alone.
    fn named_by_blocks(&self, lost: Losses) -> Losses {
        let known = [Cause::Stopped, Cause::Budget, Cause::Io].map(|cause| lost.of(cause));
        let others = self.numbers.lost_for_other_causes();
        let misnamed = others.saturating_sub(known.iter().sum()).min(lost.of(Cause::Full));
        let (mut full, mut stopped) = (Losses::default(), Losses::default());
        full.add(Cause::Full, misnamed);
        stopped.add(Cause::Stopped, misnamed);
        lost.beyond(&full).plus(&stopped)
    }

    /// Records that a sender which packs took out of its ring and that never came: numbers that
    /// were passed over, and at its end all that it cannot account for.
    fn missing_records(&self, lost: &Losses) -> u64 {
        // Numbers of torn records are passed over, too.
        let passed_over = self.numbers.missing_records().saturating_sub(lost.of(Cause::Torn));
        let resumed = self.tally.resumed_behind.is_some();
        let emitted = match &self.end {
            // What it misses may be what a stream before it had and it was to bring again: the sum over
            // all streams tells.
            Some(_) if self.is_behind_another() => None,
            Some(end) if end.reason == END_DONE && (!resumed || self.had_records.is_some()) => {
                end.emitted_records
            }
            _ => None,
        };
        let came = self.packed_records.saturating_add(self.raw_records);
        let came = came.saturating_add(self.had_records.unwrap_or(0));
        match (self.stream, emitted) {
            (None, _) => 0,
            (_, None) => passed_over,
            (_, Some(emitted)) => {
                let missing = emitted.saturating_sub(came.saturating_add(lost.sum()));
                // Notes of the drain's own are among what came without numbers.
                if self.raw_records > 0 { passed_over.max(missing) } else { missing }
            }
        }
    }

    /// Whether other drains had taken some of its ring before, and it brings numbers alone.
    fn is_behind_another(&self) -> bool {
        self.taken_before > 0 && self.raw_records == 0
    }

    /// Records that drains had taken of its ring when it was done with, where its end says that.
    fn taken_in_the_end(&self) -> Option<u64> {
        let end = self.end.as_ref().filter(|end| end.reason == END_DONE)?;
        let stored = end.emitted_records?.saturating_sub(end.dropped_events.sum());
        self.is_behind_another().then(|| self.taken_before.saturating_add(stored))
    }

    /// What its writers dropped in the whole life of a ring that is done with, but for those that found no
    /// place in it.
    fn dropped_in_ring(&self) -> Option<u64> {
        let end = self.end.as_ref().filter(|end| end.reason == END_DONE)?;
        let here = end.dropped_events.sum() - end.dropped_events.of(Cause::NoSlot);
        match end.ring_dropped {
            0 => (self.taken_before == 0).then_some(here),
            all => Some(all),
        }
    }

    fn say_how_it_ended(&self, host: &dyn Host) {
        let came = self.raw_records;
        match &self.end {
            None if self.tally.named && self.stream.is_some() && host.stops() => host.say(
                "this server stops before the end of the stream; what its sender had not delivered is \
                 with that or in its ring, for the next server",
            ),
            None if self.tally.named && self.stream.is_some() => host.say(
                "the stream was cut off: its sender never said that it is done; what it had not \
                 delivered is for the next drain, if its ring is still there",
            ),
            None if self.tally.named => host.say(
                "the stream was cut off: its sender never said that it is done, \
                 so what it still held is lost and not counted",
            ),
            Some(StreamEnd { delivered_records: Some(sent), .. })
                if *sent > came && self.stream.is_none() =>
            {
                host.say(&format!("its sender counts {sent} records sent, but {came} came"));
            }
            _ => {}
        }
    }
}

/// What tells the ring of a sender from others: its machine, and when its clock was started. Of a
/// machine that does not say which clock it has nobody knows whether another stream is of the same, so
/// it has a ring of its own.
pub(crate) fn ring_of(sender: &Sender, origin: &Origin) -> RingId {
    match (sender.clock.is_empty(), sender.stream) {
        (true, Some(stream)) => hash(&[stream.bytes()]),
        _ => {
            let (ns, ticks) = (origin.t0_ns.to_le_bytes(), origin.t0_ticks.to_le_bytes());
            hash(&[sender.host.as_bytes(), &[0], sender.clock.as_bytes(), &ns, &ticks])
        }
    }
}

/// FNV-1a of 64 bits (Fowler, Noll, Vo): it is stored, so it has to be the same in every build.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// How many enters and exits of a block have these numbers.
fn calls_among(block: &Block<'_>, numbers: &[Range<u64>]) -> u64 {
    let header = &block.header;
    let all = numbers.iter().map(|range| range.end - range.start).sum::<u64>();
    if all == 0 || all == u64::from(header.numbered) {
        return if all == 0 { 0 } else { header.calls.into() };
    }
    let mut calls = 0;
    // The decoder has found it whole.
    let _ = with_numbers(
        &mut Box::<Unpacker>::default(),
        header,
        block.raw,
        |event, number, numbered| {
            let is_call = numbered && matches!(event.kind, KIND_ENTER | KIND_EXIT);
            calls += u64::from(is_call && numbers.iter().any(|range| range.contains(&number)));
        },
    );
    calls
}
