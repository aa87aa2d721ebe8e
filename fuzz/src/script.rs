//! Bytes of a fuzzer → chunks of the wire, so that it meets what lies behind checksums and
//! compression too.
//!
//! An input is a row of commands: a type, a length of two bytes, and as many bytes of payload. They
//! become chunks that are right but for their payload; a block gets its checksum.

use callsight_format::{BLOCK_HEADER_BYTES, ByteOrder, CHUNK_BLOCK, ChunkHeader, crc32c};

/// Most bytes of a block of a zstd frame (RFC 8878, section 3.1.1.2).
const ZSTD_BLOCK_BYTES: usize = 128 << 10;

/// The type of command that is no chunk: its payload stands there as it is.
const RAW: u8 = 255;

/// The chunks of all commands in `input`.
pub fn chunks(mut input: &[u8], order: ByteOrder) -> Vec<u8> {
    let mut out = Vec::new();
    while let [kind, low, high, rest @ ..] = input {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (payload, behind) = rest.split_at(length);
        match *kind {
            RAW => out.extend_from_slice(payload),
            kind => out.extend(chunk(u32::from(kind), payload, order)),
        }
        input = behind;
    }
    out
}

/// A chunk of `raw`.
pub fn chunk(kind: u32, raw: &[u8], order: ByteOrder) -> Vec<u8> {
    let mut raw = raw.to_vec();
    if kind == CHUNK_BLOCK && raw.len() >= BLOCK_HEADER_BYTES {
        let crc = crc32c(&raw[4..]);
        raw[..4].copy_from_slice(&crc.to_le_bytes());
    }
    let frame = frame(&raw);
    let header = ChunkHeader { kind, raw_len: raw.len() as u32, zstd_len: frame.len() as u32 };
    [&header.to_bytes(order)[..], &frame].concat()
}

/// A zstd frame of stored blocks: quick, and what is fuzzed shows in the bytes as it is.
fn frame(raw: &[u8]) -> Vec<u8> {
    // One segment; four bytes of content size.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((raw.len() as u32).to_le_bytes());
    let count = raw.len().div_ceil(ZSTD_BLOCK_BYTES).max(1);
    for block in 0..count {
        let from = block * ZSTD_BLOCK_BYTES;
        let bytes = &raw[from..raw.len().min(from + ZSTD_BLOCK_BYTES)];
        let is_last = u32::from(block + 1 == count);
        frame.extend(&((bytes.len() as u32) << 3 | is_last).to_le_bytes()[..3]);
        frame.extend(bytes);
    }
    frame
}
