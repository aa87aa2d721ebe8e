//! A capture of raw events: batches → files of version 2.
//!
//! A batch is with the kernel when [`Sink::write`] returns, so that whoever kills the server
//! loses nothing that was received. Whatever happens, a file ends on a whole event, and what did
//! not fit is told in the capture itself, in its last records; room for those is kept free from the
//! start. Events are stored as they came, in the sender's byte order; packed ones are unpacked.

use std::borrow::Cow;
use std::io;

use callsight_format::{
    ByteOrder, Cause, EVENT_BYTES, Event, FileHeader, KIND_MARKER, MARK_BUDGET, MARK_CLOCK,
    MARK_WRITE_ERROR, Origin, StopReason,
};

use super::segment::{HEAD_BYTES, Segment, event_head};
use super::tail::{StopMark, TAIL_BYTES, Tail, to_bytes};
use super::{CaptureDir, CaptureLimits, Reserved, budget_text, segments_text, write_error_text};
use crate::losses::WATCHED_RECORDS;
use crate::{Amount, Batch, Content, Ending, LossWatch, Losses, SessionMeta, Sink, Unpacking};

/// Why nothing more is stored.
struct Stop {
    cause: Cause,
    mark: StopMark,
    /// Where in the last segment its tail stands.
    at_bytes: u64,
    reason: String,
}

/// Keeps raw events.
pub struct EventCapture {
    directory: CaptureDir,
    id: u32,
    limits: CaptureLimits,
    origin: Origin,
    order: ByteOrder,
    segment: Segment,
    segments: u32,
    /// Bytes of the segments before this one.
    closed_bytes: u64,
    stop: Option<Stop>,
    /// Why it does not say who is sending.
    unnamed: Option<String>,
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
        EventCapture {
            directory,
            id,
            limits,
            origin: Origin::default(),
            order: ByteOrder::NATIVE,
            segment: Segment::new(file),
            segments: 1,
            closed_bytes: 0,
            stop: None,
            unnamed: None,
            dropped_events: Losses::default(),
            unpacking: Unpacking::default(),
            watch: LossWatch::default(),
            last_ts: 0,
            last_clock: None,
        }
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
        let mut events = Vec::new();
        self.unpacking
            .events(batch, |event| events.extend_from_slice(&event.to_bytes(order)))
            .map_err(io::Error::other)?;
        Ok(Cow::Owned(events))
    }

    fn write_events(&mut self, events: &[u8]) {
        self.remember_clock(events);
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
        self.watch.observe(&events[..stored], self.order);
        self.remember_last(&events[..stored]);
        (stored, failure.map(|error| self.write_failed(&error)))
    }

    /// Goes on in the next segment; the one before stays open until that has its header.
    fn rotate(&mut self) -> io::Result<()> {
        let seq = self.segments;
        let before = self.segment.bytes();
        let head = event_head(&self.header(seq), self.order, before);
        let next = self.directory.create_segment(self.id, seq, &head)?;
        self.closed_bytes += self.segment.bytes();
        self.segment = next;
        self.segments += 1;
        Ok(())
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
        self.dropped_events.add(stop.cause, Amount::of_events(&replaced).events);
        let replaced_bytes = self.segment.bytes().saturating_sub(stop.at_bytes);
        self.watch.forget_last(replaced_bytes / EVENT_BYTES as u64);
        self.stop = Some(stop);
        // For the case that nobody lives to call `close`.
        let _ = self.write_tail(&Losses::default(), None);
    }

    /// What the last records must tell: every loss, here or before, but those that notes tell.
    fn untold(&self, ending: &Ending) -> Losses {
        let untold = ending.lost_before.beyond(&self.watch.told());
        untold.plus(&self.dropped_events).plus(&ending.not_given.events)
    }

    /// Writes the last records; where they stand depends on whether storing was stopped.
    fn write_tail(&mut self, losses: &Losses, end: Option<StopReason>) -> io::Result<()> {
        let tail = Tail {
            losses: *losses,
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
                (*at_bytes, tail.records_filling(slots))
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
        self.origin = meta.origin;
        self.order = meta.order;
        self.last_ts = meta.origin.t0_ticks;
        let head = event_head(&self.header(0), self.order, 0);
        let begun = self.segment.append_whole(&head);
        begun.inspect_err(|_| self.directory.discard_segment(self.id, 0))
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        match batch.content() {
            Content::Sender(sender) => {
                let stored = self.directory.write_sender(self.id, sender);
                let text = |error| format!("who is sending could not be stored ({error})");
                self.unnamed = stored.err().map(text);
            }
            Content::End(_) => {}
            _ => {
                let events = self.raw_events(batch)?;
                self.write_events(&events);
            }
        }
        Ok(())
    }

    fn dropped(&self) -> Losses {
        self.dropped_events
    }

    fn trouble(&self) -> Option<&str> {
        self.stop.as_ref().map(|stop| &stop.reason).or(self.unnamed.as_ref()).map(String::as_str)
    }

    fn extent(&self) -> Option<String> {
        Some(segments_text(self.segments))
    }

    fn close(&mut self, ending: &Ending) {
        let losses = self.untold(ending);
        let end = Some(if ending.cut { StopReason::Cut } else { StopReason::Closed });
        if let (Err(error), None) = (self.write_tail(&losses, end), &self.stop) {
            self.stop(self.write_failed(&error));
            let losses = self.untold(ending);
            let _ = self.write_tail(&losses, end);
        }
    }
}

const _: () = assert!(TAIL_BYTES <= WATCHED_RECORDS * EVENT_BYTES as u64);

fn is_clock(event: &Event) -> bool {
    event.kind == KIND_MARKER && event.func == MARK_CLOCK
}
