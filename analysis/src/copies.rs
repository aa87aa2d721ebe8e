//! Several captures of one stream → its chunks, each once and in order, from whichever has it.
//!
//! A block has the same number and the same bytes in each of them, so what is missing or damaged in
//! one is taken from the next. Records that came before a server had greeted have no numbers: they
//! are taken from one capture, and from none where another one has them in blocks.

use std::io;

use callsight_format::{
    ByteOrder, CHUNK_END, CHUNK_EVENTS, CHUNK_SINK, EVENT_BYTES, SINK_REASON, SINK_STOP, StopReason,
};

use crate::Error;
use crate::capture::{FileFrom, Segment};
use crate::chunks::{Chunk, Chunks};
use crate::ledger::field;
use crate::packed::open;
use crate::walk::{Visitor, Walker};

/// A capture on its way.
struct Copy<'s> {
    /// What is not read yet, the segment that is read first.
    segments: &'s [Segment],
    /// Those of that segment; the one at the front comes next.
    chunks: Option<Chunks<FileFrom>>,
    /// What its sink said last.
    said: Vec<u8>,
}

impl<'s> Copy<'s> {
    fn of(segments: &'s [Segment]) -> Copy<'s> {
        Copy { segments, chunks: None, said: Vec::new() }
    }

    fn front(&self) -> Option<Chunk<'_>> {
        self.chunks.as_ref()?.front()
    }

    /// When the next chunk is due: what says who sends and what a sink did at once, blocks by their
    /// numbers, the end behind all blocks of all captures.
    fn due(&self) -> Option<u64> {
        Some(match self.front()? {
            Chunk::Block(header, _) => header.number.saturating_add(1),
            Chunk::Other(CHUNK_EVENTS, _) => 1,
            Chunk::Other(CHUNK_END, _) => u64::MAX,
            Chunk::Other(..) => 0,
        })
    }

    fn stands_at_block(&self) -> bool {
        matches!(self.front(), Some(Chunk::Block(..)))
    }
}

/// The capture whose next chunk is due.
fn next(copies: &[Copy<'_>]) -> Option<usize> {
    let due = copies.iter().enumerate().filter_map(|(at, copy)| Some((copy.due()?, at)));
    due.min().map(|(_, at)| at)
}

/// Whether records without numbers are taken from the capture `at`: the first that has any, unless
/// another one begins with those that have.
fn takes(copies: &[Copy<'_>], at: usize, unnumbered: &mut Option<Option<usize>>) -> bool {
    let first = || (!copies.iter().any(Copy::stands_at_block)).then_some(at);
    *unnumbered.get_or_insert_with(first) == Some(at)
}

impl<V: Visitor> Walker<'_, V> {
    /// Shows the records of a stream that several captures hold.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn copies(&mut self, captures: &[&[Segment]]) -> Result<(), Error> {
        let mut copies: Vec<Copy<'_>> =
            captures.iter().map(|segments| Copy::of(segments)).collect();
        for copy in &mut copies {
            self.advance(copy)?;
        }
        let mut unnumbered = None;
        while let Some(at) = next(&copies) {
            if let (Some(chunk), [segment, ..]) = (copies[at].front(), copies[at].segments) {
                self.in_capture(segment.capture);
                match chunk {
                    Chunk::Other(CHUNK_EVENTS, events) if !takes(&copies, at, &mut unnumbered) => {
                        self.repeated((events.len() / EVENT_BYTES) as u64);
                    }
                    _ => self.chunk(&chunk, segment),
                }
            }
            self.advance(&mut copies[at])?;
        }
        // Of several sinks, what the one says that is best off.
        if let Some(copy) = copies.iter().max_by_key(|copy| how_well(&copy.said)) {
            self.sink(&copy.said);
        }
        Ok(())
    }

    /// Goes on to the next chunk of a capture, in the next segment where this one has no more.
    fn advance(&mut self, copy: &mut Copy<'_>) -> Result<(), Error> {
        while let [segment, rest @ ..] = copy.segments {
            let found = self.next_of(copy, segment);
            if found.map_err(|why| Error::Read { path: segment.path.clone(), why })? {
                return Ok(());
            }
            (copy.segments, copy.chunks) = (rest, None);
        }
        Ok(())
    }

    /// Whether a segment has another chunk, which is then at the front.
    fn next_of(&mut self, copy: &mut Copy<'_>, segment: &Segment) -> io::Result<bool> {
        if copy.chunks.is_none() {
            self.visitor.segment(segment);
        }
        let chunks = match &mut copy.chunks {
            Some(chunks) => chunks,
            none => none.insert(open(segment)?),
        };
        match chunks.next()? {
            Some(Chunk::Other(CHUNK_SINK, fields)) => copy.said = fields.to_vec(),
            Some(_) => {}
            None => {
                self.damaged(&chunks.damage);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// How well off a sink was: it had all of the stream, it had its end, it broke off, it never said.
fn how_well(said: &[u8]) -> u8 {
    let reason = field(said, SINK_REASON).and_then(|reason| ByteOrder::Little.u32(reason, 0));
    match reason.and_then(StopReason::from_number) {
        Some(StopReason::Closed) if field(said, SINK_STOP).is_none() => 3,
        Some(StopReason::Closed) => 2,
        Some(_) => 1,
        None => 0,
    }
}
