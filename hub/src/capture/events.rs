//! A capture of raw events: batches → files of version 2.
//!
//! A batch is with the kernel when [`Sink::write`] returns, so that whoever kills the server
//! loses nothing that was received. Whatever happens, a file ends on a whole event, and what did
//! not fit is told in the capture itself, in its last records; room for those is kept free from the
//! start. Events are stored as they came, in the sender's byte order; packed ones are unpacked.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use callsight_format::{
    ByteOrder, Cause, EVENT_BYTES, Event, FILE_HEADER_BYTES, FileHeader, KIND_MARKER, MARK_BUDGET,
    MARK_CLOCK, MARK_WRITE_ERROR, Origin, RING_CAUSES, StopReason,
};

use super::event_file::contents_of;
use super::guard::{Contents, Guard, Harm, less};
use super::position::{Position, PositionFile};
use super::reach::Reach;
use super::segment::{HEAD_BYTES, Segment, event_head};
use super::tail::{Gap, StopMark, TAIL_BYTES, Tail, to_bytes};
use super::writers::WritersFile;
use super::{
    CaptureDir, CaptureLimits, Reserved, budget_text, segments_text, stopped_before,
    write_error_text,
};
use crate::losses::WATCHED_RECORDS;
use crate::session::ring_of;
use crate::stream::{Sender, StreamId};
use crate::{Amount, Batch, Content, Ending, LossWatch, Losses, SessionMeta, Sink, Unpacking};

/// Most threads of which is told where records are missing.
const MOST_GAPS: u64 = 1024;

/// Why nothing more is stored.
struct Stop {
    cause: Cause,
    mark: StopMark,
    /// Where in the last segment its tail stands.
    at_bytes: u64,
    reason: String,
}

/// Keeps raw events.
///
/// Of a sender that packs it also says, in a file beside it, up to which block it has them, so that
/// another server can go on.
pub struct EventCapture {
    directory: CaptureDir,
    id: u32,
    limits: CaptureLimits,
    origin: Origin,
    order: ByteOrder,
    /// The first file, which is locked for as long as it is open here.
    _lock: Option<File>,
    segment: Segment,
    segments: u32,
    /// What was stored in this segment here, and what notes had told before.
    stored: Amount,
    told_before: Losses,
    guard: Guard,
    /// What others did to its files.
    harm: Option<String>,
    sender: Option<Sender>,
    stream: Option<StreamId>,
    /// How far it has got, for whoever goes on.
    reach: Reach,
    has_end: bool,
    closed: bool,
    /// The losses that notes told which another stream has, too; and of writers, what an earlier server
    /// had of such.
    left_out: LossWatch,
    told_elsewhere: u64,
    /// What an earlier server had to tell, and what notes told then.
    lost_earlier: Losses,
    told_earlier: Losses,
    /// What notes told that somebody else removed.
    told_no_more: Losses,
    /// Bytes of the segments before this one.
    closed_bytes: u64,
    stop: Option<Stop>,
    /// Why what stands beside it is not as it should be.
    unsaid: Option<String>,
    dropped_events: Losses,
    unpacking: Unpacking,
    /// The loss notes that stand in the files.
    watch: LossWatch,
    last_ts: u64,
    last_clock: Option<Event>,
}

impl EventCapture {
    /// A sink that writes to the files of `reserved`.
    pub fn new(reserved: Reserved, limits: CaptureLimits) -> EventCapture {
        let Reserved { directory, id, file } = reserved;
        let lock = file.try_clone().ok();
        EventCapture::on(directory, id, limits, lock, Segment::new(file))
    }

    fn on(
        directory: CaptureDir,
        id: u32,
        limits: CaptureLimits,
        lock: Option<File>,
        segment: Segment,
    ) -> EventCapture {
        EventCapture {
            directory,
            id,
            limits,
            origin: Origin::default(),
            order: ByteOrder::NATIVE,
            _lock: lock,
            segment,
            segments: 1,
            stored: Amount::default(),
            told_before: Losses::default(),
            guard: Guard::default(),
            harm: None,
            sender: None,
            stream: None,
            reach: Reach::default(),
            has_end: false,
            closed: false,
            left_out: LossWatch::default(),
            told_elsewhere: 0,
            lost_earlier: Losses::default(),
            told_earlier: Losses::default(),
            told_no_more: Losses::default(),
            closed_bytes: 0,
            stop: None,
            unsaid: None,
            dropped_events: Losses::default(),
            unpacking: Unpacking::default(),
            watch: LossWatch::default(),
            last_ts: 0,
            last_clock: None,
        }
    }

    /// A sink that goes on where an earlier server ended, as its position says; `None` where the files
    /// are not as that says.
    pub(super) fn resume(
        directory: CaptureDir,
        id: u32,
        limits: CaptureLimits,
        lock: File,
        (file, position): (PositionFile, Position),
    ) -> Option<EventCapture> {
        let Position { seq, .. } = position;
        let last = directory.open_segment(id, seq).ok()?;
        let mut head = [0; FILE_HEADER_BYTES];
        last.read_exact_at(&mut head, 0).ok()?;
        let (header, order) = FileHeader::parse(&head).ok()?;
        let len = last.metadata().ok()?.len().checked_sub(HEAD_BYTES)?;
        let whole = HEAD_BYTES + len - len % EVENT_BYTES as u64;
        // What stands behind was not acknowledged; behind a stop it is the last records, which are
        // replaced on a disk that may be full.
        let kept = if position.stop.is_some() { whole } else { position.bytes.min(whole) };
        let segment = Segment::reopen(last, kept).ok()?;
        for later in directory.segments(id).into_iter().filter(|later| *later > seq) {
            directory.discard_segment(id, later);
        }
        let closed_bytes = directory.bytes_before(id, seq);
        let parts = directory.writers_behind(id, &position);
        let writers = WritersFile::open(directory.writers_path(id)).ok();
        let mut capture = EventCapture::on(directory, id, limits, Some(lock), segment);
        (capture.origin, capture.order) = (header.origin(), order);
        (capture.segments, capture.closed_bytes) = (seq + 1, closed_bytes);
        capture.reach = Reach::going_on(file, &position, writers, &parts);
        capture.take_up(&position, whole);
        Some(capture)
    }

    /// Goes on behind `position`; the last segment has `whole` bytes of whole events.
    fn take_up(&mut self, position: &Position, whole: u64) {
        let Position { bytes, last_ts, clock, stop, told, lost, part, .. } = *position;
        (self.last_ts, self.last_clock) = (last_ts, clock);
        self.told_elsewhere = in_ring(&told).saturating_sub(part.lost);
        self.lost_earlier = lost;
        // The disk lost some, as where the machine stopped: most are events.
        self.lost_earlier.add(Cause::Io, bytes.saturating_sub(whole) / EVENT_BYTES as u64);
        self.stop = stop.map(|mark| {
            let (cause, reason) = stopped_before(mark);
            Stop { cause, mark, at_bytes: bytes.min(whole), reason }
        });
        // The last notes may be taken back, or not be at their end yet.
        let recent = (WATCHED_RECORDS + 8) * EVENT_BYTES as u64;
        let from = bytes.saturating_sub(recent).max(HEAD_BYTES);
        let events = self.segment.events_from(from);
        let before_tail = bytes.min(whole).saturating_sub(from) as usize;
        self.watch.observe(&events[..before_tail.min(events.len())], self.order);
        self.told_earlier = told.beyond(&self.watch.told());
        self.told_before = self.watch.told();
    }

    fn header(&self, seq: u32) -> FileHeader {
        FileHeader::new(self.origin, self.id, seq)
    }

    /// The events of a batch as the sender stored or would have stored them.
    fn raw_events<'a>(&mut self, batch: &'a Batch) -> io::Result<Cow<'a, [u8]>> {
        if *batch.content() == Content::Events {
            return Ok(Cow::Borrowed(batch.bytes()));
        }
        let order = self.order;
        let (mut events, mut left_out) = (Vec::new(), Vec::new());
        self.unpacking
            .events_once(batch, |event, again| {
                let to = if again { &mut left_out } else { &mut events };
                to.extend_from_slice(&event.to_bytes(order));
            })
            .map_err(io::Error::other)?;
        self.left_out.observe(&left_out, order);
        Ok(Cow::Owned(events))
    }

    fn write_events(&mut self, events: &[u8]) {
        self.remember_clock(events);
        if self.stop.is_none()
            && let Err(stop) = self.mend()
        {
            self.stop(stop);
        }
        let mut rest = events;
        while !rest.is_empty() && self.stop.is_none() {
            let (stored, stop) = self.store(rest);
            rest = &rest[stored..];
            if let Some(stop) = stop {
                self.stop(stop);
            }
        }
        if let Some(stop) = &self.stop {
            self.dropped_events.add(stop.cause, Amount::of_events(rest).events);
        }
    }

    /// Bytes that a capture of this size may still grow by, its tail left free; `limit` 0 is none.
    fn room(limit: u64, size: u64) -> u64 {
        let limit = if limit == 0 { u64::MAX } else { limit };
        let room = limit.saturating_sub(size).saturating_sub(TAIL_BYTES);
        room - room % EVENT_BYTES as u64
    }

    /// Stores from the front of `events` what the limits and the disk take: how many bytes, and
    /// why no more will be. Neither means that another segment was begun.
    fn store(&mut self, events: &[u8]) -> (usize, Option<Stop>) {
        let size = self.closed_bytes + self.segment.bytes();
        let budget_room = Self::room(self.limits.budget_bytes, size);
        let segment_room = Self::room(self.limits.segment_bytes, self.segment.bytes());
        let rotate = segment_room == 0 && self.segment.bytes() > HEAD_BYTES;
        // A segment without room for one event would only be a head.
        let least = EVENT_BYTES as u64 + if rotate { HEAD_BYTES } else { 0 };
        if budget_room < least {
            return (0, Some(self.budget_reached()));
        }
        if rotate {
            return (0, self.rotate().err().map(|error| self.write_failed(&error)));
        }
        let room = budget_room.min(segment_room.max(EVENT_BYTES as u64));
        let fits = (events.len() as u64).min(room) as usize;
        let (stored, failure) = self.segment.append(&events[..fits]);
        self.stored = self.stored.plus(Amount::of_events(&events[..stored]));
        self.watch.observe(&events[..stored], self.order);
        self.remember_last(&events[..stored]);
        (stored, failure.map(|error| self.write_failed(&error)))
    }

    /// Goes on in the next segment; the one before stays open until that has its header.
    fn rotate(&mut self) -> io::Result<()> {
        let (contents, bytes) = (self.contents(), self.segment.bytes());
        let before = self.begin_next(bytes)?;
        self.closed_bytes += bytes;
        self.guard.close(self.segments - 2, &before, contents);
        Ok(())
    }

    /// Begins the next segment, whose head says how long the one before is; that one.
    fn begin_next(&mut self, bytes_before: u64) -> io::Result<Segment> {
        let seq = self.segments;
        let head = event_head(&self.header(seq), self.order, bytes_before);
        let next = self.directory.create_segment(self.id, seq, &head)?;
        self.segments += 1;
        self.stored = Amount::default();
        self.told_before = self.watch.told();
        Ok(std::mem::replace(&mut self.segment, next))
    }

    fn contents(&self) -> Contents {
        Contents { amount: self.stored, told: self.watch.told().beyond(&self.told_before) }
    }

    /// Where somebody has removed this segment or cut it short, what is not there any more is lost, and
    /// the next one is begun: behind a cut stand no events.
    fn mend(&mut self) -> Result<(), Stop> {
        let (seq, order) = (self.segments - 1, self.order);
        let count = move |file: &File, from, to| contents_of(file, order, from, to);
        let Some(harm) = Harm::of(seq, &self.segment, self.contents(), &count) else {
            return Ok(());
        };
        self.lose(&harm);
        self.stored = Amount::default();
        self.told_before = self.watch.told();
        let left = harm.left.bytes();
        if let Err(error) = self.begin_next(left) {
            // There is nothing that last records could take the place of.
            return Err(Stop { at_bytes: self.segment.bytes(), ..self.write_failed(&error) });
        }
        self.closed_bytes += left;
        if let Some(stop) = &mut self.stop {
            stop.at_bytes = self.segment.bytes();
        }
        if let Some(sender) = &self.sender {
            let _ = self.directory.write_sender(self.id, sender);
        }
        if self.reach.is_said() {
            self.begin_reach();
        }
        Ok(())
    }

    fn lose(&mut self, harm: &Harm) {
        let Contents { amount, told } = harm.lost;
        self.dropped_events.add(Cause::Io, amount.events);
        self.told_no_more = self.told_no_more.plus(&told);
        self.harm = Some(harm.text(self.id));
    }

    /// Looks whether the segments before this one are as they were.
    fn look_back(&mut self) {
        let order = self.order;
        let count = move |file: &File, from, to| contents_of(file, order, from, to);
        let mut guard = std::mem::take(&mut self.guard);
        for harm in guard.look(&self.directory, self.id, &count) {
            self.lose(&harm);
        }
    }

    /// Begins to say how far it has got.
    fn begin_reach(&mut self) {
        let Some(stream) = self.stream else { return };
        let (position, writers) =
            (self.directory.position_path(self.id), self.directory.writers_path(self.id));
        self.reach.begin(stream, position, writers);
        self.store_reach(self.end_of_events(), self.lost_so_far());
    }

    /// Says how far it has got: behind the events that it speaks of.
    fn store_reach(&mut self, bytes: u64, lost: Losses) {
        let stored = self.reach.store(Position {
            ended: self.closed && self.has_end,
            closed: self.closed,
            seq: self.segments - 1,
            bytes,
            last_ts: self.last_ts,
            clock: self.last_clock,
            stop: self.stop.as_ref().map(|stop| stop.mark),
            told: self.told(),
            lost,
            ..Position::default()
        });
        if let Err(error) = stored {
            self.unsaid = Some(format!(
                "how far it has got cannot be stored ({error}): another server would begin anew"
            ));
        }
    }

    /// Where the last event ends.
    fn end_of_events(&self) -> u64 {
        self.stop.as_ref().map_or(self.segment.bytes(), |stop| stop.at_bytes)
    }

    /// What the capture has to tell so far, for the case that nobody lives to close it.
    fn lost_so_far(&self) -> Losses {
        let torn = self.told().of(Cause::Torn);
        let mut lost = self.lost_here();
        lost.add(Cause::Unacked, self.reach.missing_records().saturating_sub(torn));
        lost
    }

    /// What it did not keep, here or at an earlier server.
    fn lost_here(&self) -> Losses {
        self.lost_earlier.plus(&self.dropped_events)
    }

    /// What notes in its files tell, or in those of another stream.
    fn told(&self) -> Losses {
        let told = self.told_earlier.plus(&self.watch.told()).beyond(&self.told_no_more);
        told.plus(&self.left_out.told())
    }

    /// What the writers dropped, of what is told: what another stream tells left out.
    fn lost_in_ring(&self, told: &Losses) -> u64 {
        let elsewhere = self.told_elsewhere.saturating_add(in_ring(&self.left_out.told()));
        in_ring(told).saturating_sub(elsewhere)
    }

    fn remember_last(&mut self, events: &[u8]) {
        let last = events.len().saturating_sub(EVENT_BYTES);
        if let Some(event) = Event::parse(&events[last..], self.order) {
            self.last_ts = self.last_ts.max(event.ts);
        }
    }

    /// Keeps the latest clock anchor, also of events that are not stored any more.
    fn remember_clock(&mut self, events: &[u8]) {
        let clock = events
            .rchunks_exact(EVENT_BYTES)
            .filter(|bytes| bytes[std::mem::offset_of!(Event, kind)] == KIND_MARKER)
            .filter_map(|bytes| Event::parse(bytes, self.order))
            .find(is_clock);
        self.last_clock = clock.or(self.last_clock);
    }

    fn budget_reached(&self) -> Stop {
        let budget = self.limits.budget_bytes;
        Stop {
            cause: Cause::Budget,
            mark: StopMark { code: MARK_BUDGET, payload: budget },
            at_bytes: self.segment.bytes(),
            reason: budget_text(budget),
        }
    }

    fn write_failed(&self, error: &io::Error) -> Stop {
        let errno = error.raw_os_error().unwrap_or(0) as u64;
        Stop {
            cause: Cause::Io,
            mark: StopMark { code: MARK_WRITE_ERROR, payload: errno },
            // Nothing more fits on the disk, so the tail takes the place of the last events.
            at_bytes: self.segment.bytes().saturating_sub(TAIL_BYTES).max(HEAD_BYTES),
            reason: write_error_text(error),
        }
    }

    fn stop(&mut self, stop: Stop) {
        let replaced = self.segment.events_from(stop.at_bytes);
        let amount = Amount::of_events(&replaced);
        self.dropped_events.add(stop.cause, amount.events);
        self.stored = less(self.stored, amount);
        let replaced_bytes = self.segment.bytes().saturating_sub(stop.at_bytes);
        self.watch.forget_last(replaced_bytes / EVENT_BYTES as u64);
        self.stop = Some(stop);
        // For the case that nobody lives to call `close`.
        let _ = self.write_tail(&Losses::default(), None);
    }

    /// What the last records must tell: every loss, here or before, but those that notes tell.
    fn untold(&self, ending: &Ending) -> Losses {
        let untold = ending.lost_before.beyond(&self.told());
        let mut untold = untold.plus(&self.lost_here()).plus(&ending.not_given.events);
        untold.add(Cause::Unacked, self.reach.part.between);
        untold
    }

    /// Where records are missing before those that came, as far as that is known and there is room to
    /// tell it.
    fn gaps(&self) -> Vec<Gap> {
        let size = self.closed_bytes + self.segment.bytes();
        let room = Self::room(self.limits.budget_bytes, size)
            .min(Self::room(self.limits.segment_bytes, self.segment.bytes()));
        let mut gaps =
            self.reach.gaps_behind(&self.directory.parts_but(self.reach.part.ring, self.id));
        gaps.truncate((room / Gap::BYTES).min(MOST_GAPS) as usize);
        gaps
    }

    /// Writes the last records; where they stand depends on whether storing was stopped.
    fn write_tail(&mut self, losses: &Losses, end: Option<StopReason>) -> io::Result<()> {
        let tail = Tail {
            losses: *losses,
            gaps: if self.stop.is_none() { self.gaps() } else { Vec::new() },
            end,
            // Some readers know the closing anchor only as the last record.
            clock: self.last_clock,
            stop: self.stop.as_ref().map(|stop| stop.mark),
            ts: self.last_ts.max(1),
        };
        let end_bytes = self.segment.bytes();
        let (at_bytes, records) = match &self.stop {
            None => (end_bytes, tail.records()),
            Some(Stop { cause: Cause::Io, at_bytes, .. }) => {
                let slots = (end_bytes.saturating_sub(*at_bytes)) as usize / EVENT_BYTES;
                // Of a segment that was just begun nothing can be replaced.
                let records = match slots {
                    0 => tail.records(),
                    slots => tail.records_filling(slots),
                };
                (*at_bytes, records)
            }
            Some(Stop { at_bytes, .. }) => (*at_bytes, tail.records()),
        };
        self.segment.replace(at_bytes, &to_bytes(&records, self.order))
    }
}

impl Sink for EventCapture {
    fn name(&self) -> String {
        format!("trace.stream.{}.*.bin", self.id)
    }

    fn init(&mut self, meta: &SessionMeta) -> io::Result<()> {
        self.stream = meta.stream;
        if self.segment.bytes() > 0 {
            return Ok(()); // it goes on
        }
        self.origin = meta.origin;
        self.order = meta.order;
        self.last_ts = meta.origin.t0_ticks;
        let head = event_head(&self.header(0), self.order, 0);
        let begun = self.segment.append_whole(&head);
        begun.inspect_err(|_| self.directory.discard_segment(self.id, 0))?;
        if let Some(stream) = meta.stream {
            self.begin_reach();
            self.directory.remember(stream, self.id);
        }
        Ok(())
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        match batch.content() {
            Content::Sender(sender) => {
                let stored = self.directory.write_sender(self.id, sender);
                let text = |error| format!("who is sending could not be stored ({error})");
                self.unsaid = stored.err().map(text);
                self.reach.part.ring = ring_of(sender, &self.origin);
                self.reach.part.taken = sender.taken;
                self.sender = Some(sender.clone());
            }
            Content::End(_) => self.has_end = true,
            _ => {
                let events = self.raw_events(batch)?;
                self.write_events(&events);
                self.reach.part.lost = self.lost_in_ring(&self.told());
                self.reach.count(batch);
                self.store_reach(self.end_of_events(), self.lost_so_far());
            }
        }
        Ok(())
    }

    fn dropped(&self) -> Losses {
        self.dropped_events
    }

    fn trouble(&self) -> Option<&str> {
        let stopped = self.stop.as_ref().map(|stop| &stop.reason);
        stopped.or(self.harm.as_ref()).or(self.unsaid.as_ref()).map(String::as_str)
    }

    fn extent(&self) -> Option<String> {
        Some(segments_text(self.segments))
    }

    fn close(&mut self, ending: &Ending) {
        self.look_back();
        if let (Err(stop), None) = (self.mend(), &self.stop) {
            self.stop(stop);
        }
        self.reach.part.between = self.reach.part.between.saturating_add(ending.lost_between);
        let told = self.told();
        let lost_in_ring = in_ring(&ending.lost_before).max(in_ring(&told));
        let told_elsewhere = in_ring(&told).saturating_sub(self.lost_in_ring(&told));
        self.reach.part.lost = lost_in_ring.saturating_sub(told_elsewhere);
        let losses = self.untold(ending);
        let bytes = self.end_of_events();
        let cut = ending.cut && !ending.taken_up;
        let end = Some(if cut { StopReason::Cut } else { StopReason::Closed });
        if let (Err(error), None) = (self.write_tail(&losses, end), &self.stop) {
            self.stop(self.write_failed(&error));
            let losses = self.untold(ending);
            let _ = self.write_tail(&losses, end);
        }
        // The end states the others once more.
        let mut lost = self.lost_here().plus(&ending.not_given.events);
        lost.add(Cause::Unacked, ending.lost_before.of(Cause::Unacked));
        let bytes = bytes.min(self.end_of_events());
        self.closed = true;
        self.store_reach(bytes, lost);
    }
}

const _: () = assert!(TAIL_BYTES <= WATCHED_RECORDS * EVENT_BYTES as u64);

/// What writers dropped that have a place in the ring: others number nothing.
fn in_ring(losses: &Losses) -> u64 {
    let of_writers = losses
        .iter()
        .filter(|(cause, _)| *cause != Cause::NoSlot && (*cause as usize) < RING_CAUSES);
    of_writers.fold(0, |sum, (_, events)| sum.saturating_add(events))
}

fn is_clock(event: &Event) -> bool {
    event.kind == KIND_MARKER && event.func == MARK_CLOCK
}
