//! A batch: one immutable buffer of a stream, shared by every sink.
//!
//! Buffers come from the bounded pool of a session and go back to it with the last reference.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use callsight_format::{
    BlockError, BlockHeader, ByteOrder, CHUNK_HEADER_BYTES, CHUNK_MAX_RAW_BYTES, ChunkHeader,
    EVENT_BYTES, Event, OP_NOTE, Unpacker,
};
use zstd::bulk::Decompressor;

use crate::Amount;
use crate::stream::{Sender, StreamEnd, inflate};

/// Most bytes of raw events in a batch.
pub const BATCH_BYTES: usize = 256 << 10;
/// Bytes of all batches of a session that are in use at a time. Queues bound them already; this
/// stops a sink that keeps what it was given.
const POOL_BYTES: usize = 64 << 20;
/// How many buffers are kept for later, and how many bytes of them.
const SPARE_BUFFERS: usize = 32;
const SPARE_BYTES: usize = 1 << 20;

/// What the bytes of a batch are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Whole events, in the sender's byte order.
    Events,
    /// A chunk of events as it came, of a sender that packs.
    EventChunk,
    /// A chunk with a block of packed events, as it came.
    Block(BlockHeader),
    /// The chunk that says who is sending.
    Sender(Sender),
    /// The chunk that says that the sender is done.
    End(StreamEnd),
}

/// What of a block another stream of its ring brought, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Again {
    numbers: Vec<Range<u64>>,
    /// All of it, the drain's own notes too.
    whole: bool,
}

impl Again {
    /// These numbers; and where a block has none, all of it if another stream told its losses.
    pub fn of(header: &BlockHeader, numbers: Vec<Range<u64>>, told_before: bool) -> Again {
        let again = Again { numbers, whole: false };
        let whole = match header.numbered {
            0 => told_before && header.calls == 0,
            all => again.records() == u64::from(all),
        };
        Again { whole, ..again }
    }

    /// How many records that are.
    pub fn records(&self) -> u64 {
        self.numbers.iter().map(|range| range.end - range.start).sum()
    }

    /// How many of them stand at the front of the block.
    pub fn at_front(&self, header: &BlockHeader) -> u64 {
        let end = |front: u64, range: &Range<u64>| match range.contains(&front) {
            true => range.end,
            false => front,
        };
        self.numbers.iter().fold(header.first, end) - header.first
    }

    fn has(&self, number: u64) -> bool {
        self.whole || self.numbers.iter().any(|range| range.contains(&number))
    }

    fn is_nothing(&self) -> bool {
        !self.whole && self.numbers.is_empty()
    }
}

/// Bytes of a stream, with what they are. Shared by reference count, and never changed.
#[derive(Debug)]
pub struct Batch {
    content: Content,
    order: ByteOrder,
    amount: Amount,
    again: Again,
    bytes: Vec<u8>,
    pool: Option<Pool>,
}

impl Batch {
    /// Whole events, without a part of an event at the end. For tests of sinks; the batches of a
    /// session come from its pool.
    pub fn of_events(bytes: &[u8], order: ByteOrder) -> Batch {
        let bytes = bytes[..bytes.len() - bytes.len() % EVENT_BYTES].to_vec();
        let amount = Amount::of_events(&bytes);
        let again = Again::default();
        Batch { content: Content::Events, order, amount, again, bytes, pool: None }
    }

    /// What the bytes are.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// The bytes; of all but [`Content::Events`] a chunk, header and zstd frame.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The byte order of raw events and of chunk headers.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// How many enters and exits there are.
    pub fn hook_events(&self) -> u64 {
        self.amount.events
    }

    /// How much there is of what sinks are to keep.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// What of it another stream of its ring brought, too.
    pub(crate) fn again(&self) -> &Again {
        &self.again
    }

    /// The number that a sender which packs wants to hear when the batch is where it belongs; the
    /// end has the one behind the last block.
    pub fn number(&self) -> Option<u64> {
        match &self.content {
            Content::Block(header) => Some(header.number),
            Content::End(end) => end.blocks.map(|blocks| blocks.saturating_add(1)),
            _ => None,
        }
    }

    /// Whether it is no events: such batches are never dropped for want of room.
    pub fn is_control(&self) -> bool {
        matches!(self.content, Content::Sender(_) | Content::End(_))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.take_back(std::mem::take(&mut self.bytes));
        }
    }
}

/// Where the batches of a session come from. Clones are the same pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Arc<PoolState>);

#[derive(Debug, Default)]
struct PoolState {
    used_bytes: AtomicUsize,
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// A batch of a copy of `bytes`; `None` for events where too much is in use.
    pub fn batch(
        &self,
        content: Content,
        bytes: &[u8],
        amount: Amount,
        again: Again,
        order: ByteOrder,
    ) -> Option<Arc<Batch>> {
        let used = self.0.used_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        if used + bytes.len() > POOL_BYTES && amount != Amount::default() {
            self.0.used_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
            return None;
        }
        let mut buffer = self.spare().pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        let pool = Some(self.clone());
        Some(Arc::new(Batch { content, order, amount, again, bytes: buffer, pool }))
    }

    fn take_back(&self, mut buffer: Vec<u8>) {
        self.0.used_bytes.fetch_sub(buffer.len(), Ordering::Relaxed);
        buffer.clear();
        let mut spare = self.spare();
        let kept: usize = spare.iter().map(Vec::capacity).sum();
        if spare.len() < SPARE_BUFFERS && kept + buffer.capacity() <= SPARE_BYTES {
            spare.push(buffer);
        }
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the events out of batches, for sinks that want them one by one.
#[derive(Default)]
pub struct Unpacking {
    raw: Vec<u8>,
    zstd: Decompressor<'static>,
    unpacker: Box<Unpacker>,
}

impl Unpacking {
    /// Shows every event of a batch, in order; none of one that is no events.
    ///
    /// # Errors
    /// What is wrong with it, which nothing is with a batch that a session made.
    pub fn events(
        &mut self,
        batch: &Batch,
        mut show: impl FnMut(&Event),
    ) -> Result<(), BlockError> {
        match batch.content {
            Content::Events => show_all(batch.bytes(), batch.order, show),
            Content::EventChunk => {
                self.inflate(&batch.bytes, batch.order)?;
                show_all(&self.raw, batch.order, show);
            }
            Content::Block(_) => {
                self.inflate(&batch.bytes, batch.order)?;
                self.unpacker.unpack(&self.raw, &mut show)?;
            }
            Content::Sender(_) | Content::End(_) => {}
        }
        Ok(())
    }

    /// The same, and whether another stream of the ring brought the event, too.
    pub(crate) fn events_once(
        &mut self,
        batch: &Batch,
        mut show: impl FnMut(&Event, bool),
    ) -> Result<(), BlockError> {
        let again = batch.again();
        match batch.content {
            Content::Block(header) if !again.is_nothing() => {
                self.inflate(&batch.bytes, batch.order)?;
                with_numbers(&mut self.unpacker, &header, &self.raw, |event, number, _| {
                    show(event, again.has(number));
                })
            }
            _ => self.events(batch, |event| show(event, false)),
        }
    }

    /// The events of a chunk with a block, as their sender would have sent them raw.
    pub(crate) fn raw_events(
        &mut self,
        chunk: &[u8],
        order: ByteOrder,
    ) -> Result<Vec<u8>, BlockError> {
        let mut events = Vec::new();
        self.inflate(chunk, order)?;
        self.unpacker.unpack(&self.raw, |event| events.extend(event.to_bytes(order)))?;
        Ok(events)
    }

    fn inflate(&mut self, chunk: &[u8], order: ByteOrder) -> Result<(), BlockError> {
        let (header, frame) =
            chunk.split_first_chunk::<CHUNK_HEADER_BYTES>().ok_or(BlockError::Short)?;
        let ChunkHeader { raw_len, .. } = ChunkHeader::parse(*header, order);
        if raw_len > CHUNK_MAX_RAW_BYTES {
            return Err(BlockError::Contents);
        }
        inflate(&mut self.zstd, frame, raw_len, &mut self.raw).map_err(|_| BlockError::Contents)
    }
}

/// Shows the events of a block, with the number of the record that is next and whether it is this one:
/// notes of the drain have none.
pub(crate) fn with_numbers(
    unpacker: &mut Unpacker,
    header: &BlockHeader,
    raw: &[u8],
    mut show: impl FnMut(&Event, u64, bool),
) -> Result<(), BlockError> {
    let ops = raw.get(usize::from(header.header_bytes)..).unwrap_or_default();
    let (mut ops, mut number) = (ops.iter(), header.first);
    unpacker.unpack_checked(header, raw, |event| {
        let numbered = ops.next().is_some_and(|op| *op != OP_NOTE);
        show(event, number, numbered);
        number += u64::from(numbered);
    })
}

fn show_all(events: &[u8], order: ByteOrder, mut show: impl FnMut(&Event)) {
    let parsed = events.chunks_exact(EVENT_BYTES).filter_map(|bytes| Event::parse(bytes, order));
    parsed.for_each(|event| show(&event));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_goes_back_with_the_last_reference_and_an_exhausted_pool_gives_nothing() {
        let pool = Pool::default();
        let some = Amount { events: 1, records: 1 };
        let take = || {
            let (bytes, order) = ([7; BATCH_BYTES], ByteOrder::NATIVE);
            pool.batch(Content::Events, &bytes, some, Again::default(), order)
        };
        let batches: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!(batches.len() * BATCH_BYTES, POOL_BYTES);
        let shared = Arc::clone(&batches[0]);
        drop(batches);
        assert_eq!(shared.bytes(), [7; BATCH_BYTES]);
        assert_eq!(pool.0.used_bytes.load(Ordering::Relaxed), BATCH_BYTES);
        drop(shared);
        assert_eq!(pool.0.used_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(pool.spare().len() * BATCH_BYTES, SPARE_BYTES);
    }
}
