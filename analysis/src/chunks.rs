//! A capture of version 3 → its chunks, one by one, each whole and as its sender made it.
//!
//! What is damaged is skipped up to the next chunk that is whole, and counted in bytes. Nothing is
//! allocated before the limits of the wire are checked. Knows nothing of what is in a chunk, but
//! that a block has a checksum.

use std::io::{self, Read};

use callsight_format::{
    BlockHeader, ByteOrder, CHUNK_BLOCK, CHUNK_DROPPED, CHUNK_END, CHUNK_EVENTS,
    CHUNK_HEADER_BYTES, CHUNK_HELLO, CHUNK_MAX_RAW_BYTES, CHUNK_MAX_ZSTD_BYTES, CHUNK_SINK,
    ChunkHeader, EVENT_BYTES,
};
use zstd::bulk::Decompressor;

/// First bytes of a zstd frame (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes read at once: about what the second level of a cache holds.
const READ_BYTES: usize = 256 << 10;

/// Chunk types up to this one may be of a later version; more are damage.
const MOST_KIND: u32 = 255;

/// A chunk.
#[derive(Clone, Copy)]
pub enum Chunk<'a> {
    /// Packed events.
    Block(BlockHeader, &'a [u8]),
    /// Any other type that is known, and its payload.
    Other(u32, &'a [u8]),
}

/// What was found beside whole chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Bytes that were skipped.
    pub bytes: u64,
    /// Stretches of them.
    pub places: u64,
    /// Whether a chunk is cut by the end of the file, which is not among them.
    pub cut: bool,
    /// Chunks of types this code does not know.
    pub unknown: u64,
}

/// See the file's first lines.
pub struct Chunks<R> {
    source: R,
    order: ByteOrder,
    /// Bytes of the source; those at `at..end` are not consumed.
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// Whether the source has no more.
    at_end: bool,
    zstd: Decompressor<'static>,
    raw: Vec<u8>,
    /// Type of the chunk in `raw`, and the header of a block.
    front: Option<(u32, Option<BlockHeader>)>,
    /// What was skipped so far.
    pub damage: Damage,
}

/// A whole chunk at the front: its type, the header of a block, and its size.
type Found = (u32, Option<BlockHeader>, usize);

impl<R: Read> Chunks<R> {
    /// The chunks of `source`, which stands behind the header of its file.
    ///
    /// # Errors
    /// No memory.
    pub fn new(source: R, order: ByteOrder) -> io::Result<Chunks<R>> {
        Ok(Chunks {
            source,
            order,
            buffer: vec![0; READ_BYTES],
            at: 0,
            end: 0,
            at_end: false,
            zstd: Decompressor::new()?,
            raw: Vec::with_capacity(CHUNK_MAX_RAW_BYTES as usize),
            front: None,
            damage: Damage::default(),
        })
    }

    /// The next whole chunk; `None` at the end of the file.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn next(&mut self) -> io::Result<Option<Chunk<'_>>> {
        self.advance()?;
        Ok(self.front())
    }

    /// The chunk that was found last; `None` behind the last one.
    pub fn front(&self) -> Option<Chunk<'_>> {
        self.front.map(|(kind, header)| match header {
            Some(header) => Chunk::Block(header, &self.raw),
            None => Chunk::Other(kind, &self.raw),
        })
    }

    fn advance(&mut self) -> io::Result<()> {
        let mut skipped = 0;
        let found = loop {
            if let Some((kind, header, bytes)) = self.look(skipped > 0)? {
                self.at += bytes;
                if is_known(kind) {
                    break Some((kind, header));
                }
                self.damage.unknown += 1;
            } else if self.at == self.end {
                break None;
            } else {
                if skipped == 0 {
                    self.damage.places += 1;
                    self.damage.cut = self.is_cut();
                }
                skipped += self.skip_to_candidate()?;
            }
        };
        match (&found, self.damage.cut) {
            (None, true) => self.damage.places -= 1,
            _ => (self.damage.bytes, self.damage.cut) = (self.damage.bytes + skipped, false),
        }
        self.front = found;
        Ok(())
    }

    /// The chunk at the front. Behind damage only one of a known type counts.
    fn look(&mut self, behind_damage: bool) -> io::Result<Option<Found>> {
        self.fill(CHUNK_HEADER_BYTES + ZSTD_MAGIC.len())?;
        let Some(header) = plausible(&self.buffer[self.at..self.end], self.order) else {
            return Ok(None);
        };
        let bytes = CHUNK_HEADER_BYTES + header.zstd_len as usize;
        self.fill(bytes)?;
        let Some(chunk) = self.buffer[self.at..self.end].get(..bytes) else { return Ok(None) };
        if !is_known(header.kind) {
            return Ok((!behind_damage).then_some((header.kind, None, bytes)));
        }
        self.raw.clear();
        let unpacked = self.zstd.decompress_to_buffer(&chunk[CHUNK_HEADER_BYTES..], &mut self.raw);
        if unpacked.ok() != Some(header.raw_len as usize) {
            return Ok(None);
        }
        let block = match header.kind {
            CHUNK_BLOCK => match BlockHeader::parse(&self.raw) {
                Ok(block) => Some(block),
                Err(_) => return Ok(None),
            },
            CHUNK_EVENTS if !self.raw.len().is_multiple_of(EVENT_BYTES) => return Ok(None),
            _ => None,
        };
        Ok(Some((header.kind, block, bytes)))
    }

    /// Whether the file ends before the chunk at the front does.
    fn is_cut(&self) -> bool {
        let left = self.end - self.at;
        match plausible(&self.buffer[self.at..self.end], self.order) {
            Some(header) => CHUNK_HEADER_BYTES + header.zstd_len as usize > left,
            None => left < CHUNK_HEADER_BYTES + ZSTD_MAGIC.len(),
        }
    }

    /// Skips at least one byte, up to where the next frame may have its chunk header.
    fn skip_to_candidate(&mut self) -> io::Result<u64> {
        self.fill(READ_BYTES / 2)?;
        let left = &self.buffer[self.at..self.end];
        let frames = left.get(CHUNK_HEADER_BYTES + 1..).unwrap_or_default();
        let next = frames.windows(ZSTD_MAGIC.len()).position(|window| window == ZSTD_MAGIC);
        let more = CHUNK_HEADER_BYTES + ZSTD_MAGIC.len();
        let skip = match next {
            Some(position) => position + 1,
            // What follows may complete a frame's first bytes.
            None if left.len() >= READ_BYTES / 2 => left.len() - more,
            None => left.len(),
        };
        self.at += skip;
        Ok(skip as u64)
    }

    /// Reads on until `want` bytes stand at the front, or the source has no more.
    fn fill(&mut self, want: usize) -> io::Result<()> {
        if self.end - self.at >= want || self.at_end {
            return Ok(());
        }
        self.buffer.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        if self.buffer.len() < want {
            self.buffer.resize(want + READ_BYTES, 0);
        }
        while self.end < want {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.at_end = true;
                    break;
                }
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether bytes behind the header of a file begin with a chunk.
pub fn begins_with_chunk(bytes: &[u8], order: ByteOrder) -> bool {
    plausible(bytes, order).is_some_and(|header| header.kind == CHUNK_HELLO)
}

/// The header of the chunk that `bytes` may begin with.
fn plausible(bytes: &[u8], order: ByteOrder) -> Option<ChunkHeader> {
    let header = ChunkHeader::parse(*bytes.first_chunk()?, order);
    let magic = bytes.get(CHUNK_HEADER_BYTES..)?.starts_with(&ZSTD_MAGIC);
    let within = header.kind <= MOST_KIND
        && header.raw_len <= CHUNK_MAX_RAW_BYTES
        && header.zstd_len <= CHUNK_MAX_ZSTD_BYTES;
    (magic && within).then_some(header)
}

fn is_known(kind: u32) -> bool {
    let known = [CHUNK_EVENTS, CHUNK_DROPPED, CHUNK_HELLO, CHUNK_BLOCK, CHUNK_END, CHUNK_SINK];
    known.contains(&kind)
}

#[cfg(test)]
mod tests {
    use callsight_format::BLOCK_HEADER_BYTES;

    use super::*;

    fn chunk(kind: u32, raw_len: u32, zstd_len: u32, frame: &[u8]) -> Vec<u8> {
        let header = ChunkHeader { kind, raw_len, zstd_len };
        [&header.to_bytes(ByteOrder::Little)[..], frame].concat()
    }

    fn packed(kind: u32, raw: &[u8]) -> Vec<u8> {
        let frame = zstd::bulk::compress(raw, 1).expect("a frame");
        chunk(kind, raw.len() as u32, frame.len() as u32, &frame)
    }

    /// Types of the chunks found in `bytes`, and the damage.
    fn found(bytes: &[u8]) -> (Vec<u32>, Damage) {
        let mut chunks = Chunks::new(bytes, ByteOrder::Little).expect("memory");
        let mut kinds = Vec::new();
        while let Some(chunk) = chunks.next().expect("no I/O") {
            kinds.push(match chunk {
                Chunk::Block(..) => CHUNK_BLOCK,
                Chunk::Other(kind, _) => kind,
            });
        }
        assert!(chunks.raw.capacity() <= CHUNK_MAX_RAW_BYTES as usize, "no more memory than that");
        assert!(chunks.buffer.len() <= CHUNK_MAX_ZSTD_BYTES as usize + 2 * READ_BYTES);
        (kinds, chunks.damage)
    }

    /// What comes between two whole chunks is skipped, each byte of it.
    #[track_caller]
    fn check_skipped(between: &[u8]) {
        let hello = packed(CHUNK_HELLO, b"hello");
        let (kinds, damage) = found(&[&hello, between, &hello].concat());
        assert_eq!(kinds, [CHUNK_HELLO, CHUNK_HELLO]);
        let expected = Damage { bytes: between.len() as u64, places: 1, ..Damage::default() };
        assert_eq!(damage, expected);
    }

    #[test]
    fn lengths_that_lie_cost_their_chunk() {
        let frame = zstd::bulk::compress(&[7; 1000], 1).expect("a frame");
        let len = frame.len() as u32;
        for (raw_len, zstd_len) in [
            (999, len),
            (1001, len),
            (0, len),
            (u32::MAX, len),
            (1000, len - 1),
            (1000, len + 1),
            (1000, 0),
            (1000, u32::MAX),
            (1000, CHUNK_MAX_ZSTD_BYTES),
        ] {
            check_skipped(&chunk(CHUNK_END, raw_len, zstd_len, &frame));
        }
    }

    #[test]
    fn a_bomb_is_no_chunk() {
        // 64 MiB of zeros in 4 KiB; said to be 1 MiB, and what it is.
        let mut bomb = Vec::new();
        let mut encoder = zstd::Encoder::new(&mut bomb, 1).expect("an encoder");
        io::copy(&mut io::repeat(0).take(64 << 20), &mut encoder).expect("written");
        encoder.finish().expect("a frame");
        for raw_len in [CHUNK_MAX_RAW_BYTES, 64 << 20] {
            check_skipped(&chunk(CHUNK_END, raw_len, bomb.len() as u32, &bomb));
        }
    }

    #[test]
    fn a_window_of_2_gib_takes_no_memory() {
        // A frame that asks for the largest window, and holds one byte.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 9, 0, 0, 7];
        let bytes = chunk(CHUNK_END, 1, frame.len() as u32, &frame);
        assert!(found(&bytes).0.len() <= 1);
    }

    #[test]
    fn a_block_with_another_checksum_is_damage() {
        check_skipped(&packed(CHUNK_BLOCK, &[1; BLOCK_HEADER_BYTES]));
        check_skipped(&packed(CHUNK_EVENTS, &[1; EVENT_BYTES + 1]));
    }

    #[test]
    fn unknown_types_are_skipped_and_counted() {
        let later = packed(77, b"what a later version says");
        let hello = packed(CHUNK_HELLO, b"hello");
        let (kinds, damage) = found(&[&hello[..], &later, &hello].concat());
        assert_eq!((kinds.len(), damage), (2, Damage { unknown: 1, ..Damage::default() }));
    }

    #[test]
    fn a_large_chunk_is_read_whole() {
        let mut state = 1u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(CHUNK_MAX_RAW_BYTES as usize)
        .collect();
        let large = packed(CHUNK_EVENTS, &noise);
        let (kinds, damage) = found(&[&large[..], &large, &large].concat());
        assert_eq!((kinds, damage), (vec![CHUNK_EVENTS; 3], Damage::default()));
    }
}
