//! How far a capture of events has got, and what it has of each writer: kept beside it for whoever goes on.

use std::io;
use std::path::PathBuf;

use callsight_format::Cause;

use super::position::{Position, PositionFile};
use super::tail::Gap;
use super::writers::WritersFile;
use crate::session::{Numbers, Part, WriterPart};
use crate::stream::StreamId;
use crate::{Batch, Content};

/// See the file's first lines.
#[derive(Default)]
pub(super) struct Reach {
    /// Where it is said; without that, a later server begins anew.
    position: Option<PositionFile>,
    writers: Option<WritersFile>,
    /// The last block.
    number: u64,
    /// What is missing between the blocks.
    numbers: Numbers,
    /// The writer of the last block with numbers, and its place in the file of writers.
    writer: Option<(usize, WriterPart)>,
    /// Of all writers.
    pub part: Part,
}

impl Reach {
    /// Goes on behind what an earlier server had.
    pub fn going_on(
        file: PositionFile,
        position: &Position,
        writers: Option<WritersFile>,
        parts: &[Option<WriterPart>],
    ) -> Reach {
        let mut reach = Reach {
            position: Some(file),
            writers,
            number: position.number,
            numbers: Numbers::going_on(parts),
            writer: position.writer,
            part: position.part,
        };
        // It may not have been stored in its own place any more.
        reach.store_last_writer();
        reach
    }

    /// Makes the files, and says in them what there is of each writer.
    pub fn begin(&mut self, stream: StreamId, position: PathBuf, writers: PathBuf) {
        self.position = PositionFile::create(position, stream).ok();
        self.writers = WritersFile::create(writers).ok();
        let all: Vec<_> = self.numbers.parts().collect();
        all.iter().for_each(|(at, writer)| self.store_writer(*at, writer));
    }

    /// Whether another server can go on.
    pub fn is_said(&self) -> bool {
        self.position.is_some()
    }

    /// Takes note of what came with a batch of events.
    pub fn count(&mut self, batch: &Batch) {
        let Part { came, again, has_raw, .. } = &mut self.part;
        *came = came.saturating_add(batch.amount().records);
        *again = again.saturating_add(batch.again().records());
        let Content::Block(header) = batch.content() else {
            *has_raw = true;
            return;
        };
        self.number = header.number;
        let again_at_front = batch.again().at_front(header);
        let writer = self.numbers.observe(header, true, again_at_front);
        self.writer = writer.or(self.writer);
    }

    /// Of which writers some are missing between what `others` have and what came here.
    pub fn gaps_behind(&self, others: &[WriterPart]) -> Vec<Gap> {
        let mut parts: Vec<_> = self.numbers.parts().map(|(_, part)| part).collect();
        parts.sort_unstable_by_key(|part| (part.from_ts, part.tid));
        let has_gap = |part: &WriterPart| {
            let of_it = others.iter().filter(|other| part.is_behind(other));
            of_it.max_by_key(|other| other.end).is_some_and(|before| {
                let dropped = part.lost_first.saturating_sub(before.lost_last);
                part.first > before.end.saturating_add(dropped)
            })
        };
        let behind = parts.iter().filter(|part| has_gap(part));
        behind.map(|part| Gap { tid: part.tid, until_ts: part.from_ts }).collect()
    }

    /// Records missing between the blocks that came here.
    pub fn missing_records(&self) -> u64 {
        self.numbers.missing_records()
    }

    /// Says `position`, and in it what is known here.
    ///
    /// # Errors
    /// It cannot be said any more. Then it is not said at all, as a later server would cut off what is
    /// behind.
    pub fn store(&mut self, position: Position) -> io::Result<()> {
        let part = Part { missing: position.lost.of(Cause::Unacked), ..self.part };
        let (number, writer) = (self.number, self.writer);
        let Some(mut file) = self.position.take() else { return Ok(()) };
        if let Err(error) = file.store(&Position { number, part, writer, ..position }) {
            file.remove();
            return Err(error);
        }
        self.position = Some(file);
        self.store_last_writer();
        Ok(())
    }

    fn store_last_writer(&mut self) {
        if let Some((at, writer)) = self.writer {
            self.store_writer(at, &writer);
        }
    }

    /// Says what came of a writer. Where that cannot be said the sums of the position have to do.
    fn store_writer(&mut self, at: usize, writer: &WriterPart) {
        if let Some(mut file) = self.writers.take() {
            match file.store(at, writer) {
                Ok(()) => self.writers = Some(file),
                Err(_) => file.remove(),
            }
        }
    }
}
