//! A segment of chunks → its records, each once and in its writer's order, and what is missing.

use std::io;

use callsight_format::{
    BlockHeader, ByteOrder, CHUNK_END, CHUNK_EVENTS, CHUNK_HELLO, CHUNK_SINK, Cause, EVENT_BYTES,
    Event, KIND_MARKER, LossNote, NOTE_LOSS, NOTE_STOP, NotePiece, OP_NOTE, OP_RECORD, SINK_REASON,
    SINK_STOP, Unpacker,
};

use crate::capture::{FileFrom, Segment};
use crate::chunks::{Chunk, Chunks, Damage};
use crate::ledger::{Ledger, field};
use crate::notebook::NoteBook;
use crate::numbers::{Heard, Numbers, WriterId};
use crate::walk::{Visitor, Walker};

/// Bytes of a literal: a record without its time.
const LITERAL_BYTES: usize = EVENT_BYTES - 8;

/// What is known of the chunks so far.
#[derive(Default)]
pub struct Packed {
    numbers: Numbers,
    unpacker: Unpacker,
    /// Notes of losses, as far as they came.
    losses: NoteBook,
}

impl Packed {
    /// A record that is in no block.
    pub fn hear_unnumbered(&mut self, event: &Event) {
        if event.tid != 0 {
            self.numbers.unnumbered(event.tid);
            self.hear(event, |numbers, loss| numbers.told(loss));
        }
    }

    /// A file of events comes next, of another stream of the ring.
    pub fn file_of_events(&mut self, segment: &Segment) {
        self.numbers.file_of_events(segment.capture);
    }

    /// The sums over all chunks.
    pub fn finish(self) -> Ledger {
        self.numbers.finish()
    }

    /// What the notes of a block say of losses, by the writer and by the drain.
    fn hear_block(&mut self, header: &BlockHeader, block: &[u8]) -> Heard {
        let mut heard = Heard::default();
        if header.literal_bytes == 0 {
            return heard;
        }
        let literals = literals_of(header, block).chunks_exact(LITERAL_BYTES);
        let ops = ops_of(header, block).iter().filter(|op| **op & OP_RECORD == OP_RECORD);
        for (op, literal) in ops.zip(literals) {
            let own = *op == OP_NOTE;
            heard.notes += u32::from(own);
            self.hear(&event_of(literal), |numbers, loss| {
                numbers.told(loss);
                match Cause::from_number(loss.cause) {
                    Some(Cause::Torn) if own => {
                        heard.torn = heard.torn.saturating_add(loss.events);
                    }
                    _ if own => heard.told_before |= numbers.told_before(header, loss),
                    _ => {}
                }
            });
        }
        heard
    }

    fn hear(&mut self, event: &Event, mut told: impl FnMut(&mut Numbers, &LossNote)) {
        let Some(piece) = NotePiece::of(event).filter(|piece| piece.code == NOTE_LOSS) else {
            return;
        };
        let numbers = &mut self.numbers;
        self.losses.push(event, &piece, |_, bytes| {
            if let Some(loss) = LossNote::parse(bytes) {
                told(numbers, &loss);
            }
        });
    }
}

impl<V: Visitor> Walker<'_, V> {
    /// Shows the records in the chunks of `segment`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn chunks(&mut self, segment: &Segment) -> io::Result<()> {
        let mut chunks = open(segment)?;
        self.in_capture(segment.capture);
        while let Some(chunk) = chunks.next()? {
            self.chunk(&chunk, segment);
            if let Chunk::Other(CHUNK_SINK, fields) = chunk {
                self.sink(fields);
            }
        }
        self.damaged(&chunks.damage);
        Ok(())
    }

    /// The next chunks are of this capture.
    pub fn in_capture(&mut self, capture: u32) {
        if let Some(packed) = &mut self.packed {
            packed.numbers.file(capture);
        }
    }

    /// Shows what is in a chunk, but for what a sink says at its end.
    pub fn chunk(&mut self, chunk: &Chunk<'_>, segment: &Segment) {
        if let Chunk::Other(CHUNK_EVENTS, events) = chunk {
            self.visitor.unnumbered();
            return self.records(events, 0, segment);
        }
        let Some(mut packed) = self.packed.take() else { return };
        let (numbers, capture) = (&mut packed.numbers, segment.capture);
        match chunk {
            Chunk::Block(header, block) => self.block(&mut packed, header, block),
            Chunk::Other(CHUNK_HELLO, fields) => {
                numbers.hello(capture, fields);
                self.visitor.hello(fields);
            }
            Chunk::Other(CHUNK_END, fields) => numbers.end(capture, fields),
            Chunk::Other(CHUNK_SINK, fields) => numbers.sink(capture, fields),
            Chunk::Other(..) => {}
        }
        self.packed = Some(packed);
    }

    /// Records without numbers came again, which other captures have with theirs.
    pub fn repeated(&mut self, records: u64) {
        if let Some(packed) = &mut self.packed {
            packed.numbers.repeated(records);
        }
    }

    /// A file was read to its end.
    pub fn damaged(&mut self, damage: &Damage) {
        let odd = &mut self.walked.oddities;
        odd.cut_files += u64::from(damage.cut);
        odd.damaged_places += damage.places;
        odd.damaged_bytes += damage.bytes;
        odd.unknown_chunks += damage.unknown;
    }

    fn block(&mut self, packed: &mut Packed, header: &BlockHeader, block: &[u8]) {
        if packed.numbers.came_before(header) {
            return;
        }
        let heard = packed.hear_block(header, block);
        let Some(placed) = packed.numbers.place(header, &heard) else { return };
        if placed.beheaded {
            self.visitor.beheaded(&WriterId::of(header));
        }
        if placed.uncertain {
            self.visitor.hole(0);
        }
        if placed.lost > 0 {
            self.visitor.lost(header.tid, Cause::Unacked, placed.lost);
        }
        if !V::WANTS_CALLS && header.calls == header.records {
            return;
        }
        let unpacked = match placed.repeated {
            0 => packed.unpacker.unpack_checked(header, block, |event| self.record(event)),
            mut repeated => {
                let mut ops = ops_of(header, block).iter();
                packed.unpacker.unpack_checked(header, block, |event| {
                    let numbered = ops.next().is_some_and(|op| *op != OP_NOTE);
                    match repeated {
                        0 => self.record(event),
                        _ => repeated -= u64::from(numbered),
                    }
                })
            }
        };
        if unpacked.is_err() {
            self.walked.oddities.bad_blocks += 1;
            self.visitor.lost(header.tid, Cause::Rejected, u64::MAX);
        }
    }

    /// Shows what a sink said at its end as what servers of version 2 files write for it.
    pub fn sink(&mut self, fields: &[u8]) {
        let le = ByteOrder::Little;
        if let Some(stop) = field(fields, SINK_STOP)
            && let (Some(func), Some(call_site)) = (le.u64(stop, 0), le.u64(stop, 8))
        {
            self.visitor.mark(&Event { func, call_site, kind: KIND_MARKER, ..Event::default() });
        }
        if let Some(reason) = field(fields, SINK_REASON) {
            self.visitor.note(0, 0, NOTE_STOP, reason);
        }
    }
}

/// The chunks of a segment.
///
/// # Errors
/// The file cannot be read.
pub fn open(segment: &Segment) -> io::Result<Chunks<FileFrom>> {
    let file = segment.read_from(u64::from(segment.header.header_size))?;
    Chunks::new(file, segment.order)
}

fn ops_of<'a>(header: &BlockHeader, block: &'a [u8]) -> &'a [u8] {
    let behind = block.get(usize::from(header.header_bytes)..).unwrap_or_default();
    behind.get(..header.records as usize).unwrap_or_default()
}

/// The last column of a block.
fn literals_of<'a>(header: &BlockHeader, block: &'a [u8]) -> &'a [u8] {
    let start = block.len().saturating_sub(header.literal_bytes as usize);
    &block[start..]
}

fn event_of(literal: &[u8]) -> Event {
    let mut bytes = [0; EVENT_BYTES];
    bytes[8..].copy_from_slice(literal);
    Event::parse(&bytes, ByteOrder::Little).unwrap_or_default()
}
