//! A capture of a sender that packs: chunks as they came → files of version 3.
//!
//! Every segment begins with its header and the chunk that says who is sending. The last chunk tells
//! what is not in the capture ([`FinalChunk`]); room for it is kept free in the budget, and on a full
//! disk the last blocks make room for it, and count as dropped.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use callsight_format::{
    ByteOrder, Cause, FILE_HEADER_BYTES, FILE_VERSION_CHUNKS, FileHeader, MARK_BUDGET,
    MARK_WRITE_ERROR, Origin, StopReason,
};

use super::final_chunk::{FINAL_BYTES, FinalChunk};
use super::guard::{Contents, Guard, Harm, less};
use super::resume::contents_of;
use super::segment::Segment;
use super::tail::StopMark;
use super::{
    CaptureDir, CaptureLimits, Reserved, budget_text, segments_text, stopped_before,
    write_error_text,
};
use crate::stream::Sender;
use crate::{Amount, Batch, Content, Dropped, Ending, Losses, SessionMeta, Sink};

/// Most bytes of a chunk that ends a stream: 540 bytes of fields where every cause dropped something.
const END_BYTES: usize = 640;
/// Room that is kept free in the budget: for that chunk, and for ours.
const TAIL_BYTES: u64 = (END_BYTES + FINAL_BYTES) as u64;

/// Why nothing more is stored.
struct Stop {
    cause: Cause,
    mark: StopMark,
    reason: String,
}

/// Keeps chunks as they came.
pub struct ChunkCapture {
    directory: CaptureDir,
    pub(super) id: u32,
    limits: CaptureLimits,
    pub(super) origin: Origin,
    pub(super) order: ByteOrder,
    /// Who is sending, and the chunk that says it.
    sender: Option<Sender>,
    pub(super) hello: Vec<u8>,
    /// The chunk that ends the stream.
    end_chunk: Vec<u8>,
    /// The first file, which is locked for as long as it is open here.
    _lock: Option<File>,
    pub(super) segment: Segment,
    pub(super) segments: u32,
    /// What was stored in this segment here.
    stored: Amount,
    guard: Guard,
    /// What others did to its files.
    harm: Option<String>,
    /// Bytes of the segments before this one.
    pub(super) closed_bytes: u64,
    /// The last chunks of this segment: where each begins, and what is in it.
    pub(super) last_chunks: VecDeque<(u64, Amount)>,
    /// Where the last chunk of all begins, or will.
    pub(super) end: u64,
    stop: Option<Stop>,
    dropped: Dropped,
    /// What an earlier server did not take of the same stream.
    pub(super) dropped_earlier: Dropped,
}

impl ChunkCapture {
    /// A sink that writes to the files of `reserved`.
    pub fn new(reserved: Reserved, limits: CaptureLimits) -> ChunkCapture {
        let Reserved { directory, id, file } = reserved;
        let lock = file.try_clone().ok();
        ChunkCapture::on(directory, id, limits, lock, Segment::new(file))
    }

    /// A sink whose last segment is `segment`.
    pub(super) fn on(
        directory: CaptureDir,
        id: u32,
        limits: CaptureLimits,
        lock: Option<File>,
        segment: Segment,
    ) -> ChunkCapture {
        ChunkCapture {
            directory,
            id,
            limits,
            origin: Origin::default(),
            order: ByteOrder::NATIVE,
            sender: None,
            hello: Vec::new(),
            end_chunk: Vec::new(),
            _lock: lock,
            end: segment.bytes(),
            segment,
            segments: 1,
            stored: Amount::default(),
            guard: Guard::default(),
            harm: None,
            closed_bytes: 0,
            last_chunks: VecDeque::new(),
            stop: None,
            dropped: Dropped::default(),
            dropped_earlier: Dropped::default(),
        }
    }

    /// Goes on having stopped, as it had before.
    pub(super) fn stay_stopped(&mut self, mark: StopMark) {
        let (cause, reason) = stopped_before(mark);
        self.stop = Some(Stop { cause, mark, reason });
    }

    fn head(&self, seq: u32) -> Vec<u8> {
        let version = FILE_VERSION_CHUNKS;
        let header = FileHeader { version, ..FileHeader::new(self.origin, self.id, seq) };
        [&header.to_bytes(self.order)[..], &self.hello].concat()
    }

    fn describe(&mut self, batch: &Batch) -> Result<(), Stop> {
        if self.hello.is_empty() {
            self.store(batch.bytes(), Amount::default())?;
            self.hello = batch.bytes().to_vec();
            // It stays whatever comes.
            self.last_chunks.clear();
        }
        Ok(())
    }

    /// Stores a chunk, in this segment or the next.
    fn store(&mut self, chunk: &[u8], amount: Amount) -> Result<(), Stop> {
        let CaptureLimits { segment_bytes, budget_bytes } = self.limits;
        let head_bytes = (FILE_HEADER_BYTES + self.hello.len()) as u64;
        let with_chunk = self.segment.bytes() + chunk.len() as u64;
        let rotates = segment_bytes != 0
            && with_chunk + TAIL_BYTES > segment_bytes
            && self.segment.bytes() > head_bytes;
        let more = if rotates { head_bytes } else { 0 };
        if budget_bytes != 0 && self.closed_bytes + with_chunk + more + TAIL_BYTES > budget_bytes {
            return Err(self.budget_reached());
        }
        if rotates {
            self.rotate().map_err(|error| write_failed(&error))?;
        }
        self.append(chunk, amount)
    }

    fn append(&mut self, chunk: &[u8], amount: Amount) -> Result<(), Stop> {
        let at = self.segment.bytes();
        self.segment.append_whole(chunk).map_err(|error| write_failed(&error))?;
        self.end = self.segment.bytes();
        self.stored = self.stored.plus(amount);
        self.last_chunks.push_back((at, amount));
        let needed = |(second, _): &(u64, Amount)| self.end - second < FINAL_BYTES as u64;
        if self.last_chunks.get(1).is_some_and(|second| !needed(second)) {
            self.last_chunks.pop_front();
        }
        Ok(())
    }

    /// Goes on in the next segment; the one before stays open until that has its head.
    fn rotate(&mut self) -> io::Result<()> {
        let contents = self.contents();
        let before = self.begin_next()?;
        self.closed_bytes += before.bytes();
        self.guard.close(self.segments - 2, &before, contents);
        Ok(())
    }

    /// Begins the next segment; the one before.
    fn begin_next(&mut self) -> io::Result<Segment> {
        let next =
            self.directory.create_segment(self.id, self.segments, &self.head(self.segments))?;
        let before = std::mem::replace(&mut self.segment, next);
        self.end = self.segment.bytes();
        self.segments += 1;
        self.stored = Amount::default();
        self.last_chunks.clear();
        Ok(before)
    }

    fn contents(&self) -> Contents {
        Contents { amount: self.stored, ..Contents::default() }
    }

    /// Where somebody has removed this segment or cut it short, what is not there any more is lost, and
    /// the next one is begun: what is written behind a cut nobody could read.
    fn mend(&mut self) -> Result<(), Stop> {
        let seq = self.segments - 1;
        let Some(harm) = Harm::of(seq, &self.segment, self.contents(), &contents_of) else {
            return Ok(());
        };
        self.lose(&harm);
        self.closed_bytes += harm.left.bytes();
        self.stored = Amount::default();
        self.last_chunks.clear();
        self.begin_next().map_err(|error| write_failed(&error))?;
        if let Some(sender) = &self.sender {
            let _ = self.directory.write_sender(self.id, sender);
        }
        let end = std::mem::take(&mut self.end_chunk);
        if end.is_empty() { Ok(()) } else { self.store_end(&end) }
    }

    fn lose(&mut self, harm: &Harm) {
        self.dropped.add(Cause::Io, harm.lost.amount);
        self.harm = Some(harm.text(self.id));
    }

    fn budget_reached(&self) -> Stop {
        let budget = self.limits.budget_bytes;
        let mark = StopMark { code: MARK_BUDGET, payload: budget };
        Stop { cause: Cause::Budget, mark, reason: budget_text(budget) }
    }

    /// Takes no more. The last chunk is written at once, for the case that nobody lives to do so
    /// at the end; the chunks it takes the place of are dropped.
    fn stop(&mut self, stop: Stop) {
        let cause = stop.cause;
        if cause == Cause::Io {
            while self.segment.bytes() - self.end < FINAL_BYTES as u64 {
                let Some((at, amount)) = self.last_chunks.pop_back() else { break };
                self.end = at;
                self.dropped.add(cause, amount);
                self.stored = less(self.stored, amount);
            }
        }
        self.stop = Some(stop);
        self.write_last(&Dropped::default(), None);
    }

    /// Writes the last chunk behind the others; where there is no room for it, nothing.
    fn write_last(&mut self, not_given: &Dropped, reason: Option<StopReason>) {
        let last = self.final_chunk(not_given, reason);
        if self.segment.end_with(self.end, &last).is_err() {
            let _ = self.segment.cut(self.end);
        }
    }

    fn final_chunk(&self, not_given: &Dropped, reason: Option<StopReason>) -> Vec<u8> {
        let dropped = self.dropped_earlier.plus(&self.dropped).plus(not_given);
        let stop = self.stop.as_ref().map(|stop| stop.mark);
        FinalChunk { dropped, reason, stop }.to_bytes(self.order)
    }

    /// The chunk that ends the stream. It is not needed to know what was lost, so where there is
    /// no room for it any more it is left out.
    fn store_end(&mut self, chunk: &[u8]) -> Result<(), Stop> {
        self.end_chunk = chunk.to_vec();
        match &self.stop {
            None if chunk.len() <= END_BYTES => return self.append(chunk, Amount::default()),
            None => return self.store(chunk, Amount::default()),
            Some(_) if chunk.len() > END_BYTES => return Ok(()),
            Some(_) => {}
        }
        let last = self.final_chunk(&Dropped::default(), None);
        match self.segment.end_with(self.end, &[chunk, &last].concat()) {
            Ok(()) => self.end += chunk.len() as u64,
            Err(_) => self.write_last(&Dropped::default(), None),
        }
        Ok(())
    }
}

impl Sink for ChunkCapture {
    fn name(&self) -> String {
        format!("trace.stream.{}.*.bin", self.id)
    }

    fn init(&mut self, meta: &SessionMeta) -> io::Result<()> {
        if self.segment.bytes() > 0 {
            return Ok(()); // it goes on
        }
        self.origin = meta.origin;
        self.order = meta.order;
        if let Some(stream) = meta.stream {
            self.directory.remember(stream, self.id);
        }
        let begun = self.segment.append_whole(&self.head(0));
        self.end = self.segment.bytes();
        begun.inspect_err(|_| self.directory.discard_segment(self.id, 0))
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        if self.stop.is_none()
            && let Err(stop) = self.mend()
        {
            self.stop(stop);
        }
        let stored = match (batch.content(), &self.stop) {
            (Content::Sender(sender), _) => {
                // The capture says the same.
                let _ = self.directory.write_sender(self.id, sender);
                self.sender = Some(sender.clone());
                self.describe(batch)
            }
            (Content::End(_), _) => self.store_end(batch.bytes()),
            (_, None) => self.store(batch.bytes(), batch.amount()),
            (_, Some(_)) => Ok(()),
        };
        if let Err(stop) = stored {
            self.stop(stop);
        }
        if let Some(stop) = &self.stop {
            self.dropped.add(stop.cause, batch.amount());
        }
        Ok(())
    }

    fn dropped(&self) -> Losses {
        self.dropped.events
    }

    fn trouble(&self) -> Option<&str> {
        self.stop.as_ref().map(|stop| &stop.reason).or(self.harm.as_ref()).map(String::as_str)
    }

    fn extent(&self) -> Option<String> {
        Some(segments_text(self.segments))
    }

    fn close(&mut self, ending: &Ending) {
        for harm in self.guard.look(&self.directory, self.id, &contents_of) {
            self.lose(&harm);
        }
        if let (Err(stop), None) = (self.mend(), &self.stop) {
            self.stop(stop);
        }
        let reason = Some(if ending.cut { StopReason::Cut } else { StopReason::Closed });
        let last = self.final_chunk(&ending.not_given, reason);
        if self.stop.is_none()
            && let Err(error) = self.segment.end_with(self.end, &last)
        {
            self.stop(write_failed(&error));
        }
        if self.stop.is_some() {
            self.write_last(&ending.not_given, reason);
        }
    }
}

fn write_failed(error: &io::Error) -> Stop {
    let errno = error.raw_os_error().unwrap_or(0) as u64;
    let mark = StopMark { code: MARK_WRITE_ERROR, payload: errno };
    Stop { cause: Cause::Io, mark, reason: write_error_text(error) }
}
