//! The last chunk of a capture: what it did not take, and how the stream ended here.
//!
//! Always of the same size, so that one that is there can be replaced on a disk that is full: every
//! cause is told, also those of no event, in a zstd frame whose one block is not compressed.

use callsight_format::{
    ByteOrder, CAUSES, CHUNK_HEADER_BYTES, CHUNK_SINK, Cause, ChunkHeader, Fields, SINK_DROPPED,
    SINK_REASON, SINK_STOP, StopReason,
};

use super::tail::StopMark;
use crate::{Amount, Dropped};

/// Bytes of the fields: key, length and value of each.
const RAW_BYTES: usize = CAUSES * (4 + 20) + (4 + 4) + (4 + 16);
/// What a zstd frame with one block that is not compressed has before its content (RFC 8878).
const FRAME_HEAD_BYTES: usize = 4 + 1 + 2 + 3;
/// Bytes of the chunk.
pub(super) const FINAL_BYTES: usize = CHUNK_HEADER_BYTES + FRAME_HEAD_BYTES + RAW_BYTES;

/// Least bytes of a frame that says its size in two bytes, which are those above these.
const SIZE_BASE: usize = 256;

const _: () = assert!(RAW_BYTES >= SIZE_BASE && RAW_BYTES - SIZE_BASE <= u16::MAX as usize);

/// What the chunk says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct FinalChunk {
    pub dropped: Dropped,
    /// How the stream ended; `None` while it goes on.
    pub reason: Option<StopReason>,
    pub stop: Option<StopMark>,
}

impl FinalChunk {
    /// The chunk.
    pub fn to_bytes(self, order: ByteOrder) -> Vec<u8> {
        let raw = self.fields();
        let zstd_len = (FRAME_HEAD_BYTES + RAW_BYTES) as u32;
        let header = ChunkHeader { kind: CHUNK_SINK, raw_len: RAW_BYTES as u32, zstd_len };
        let mut bytes = header.to_bytes(order).to_vec();
        bytes.extend([0x28, 0xb5, 0x2f, 0xfd]);
        bytes.push(0x60); // a single segment, of this size:
        bytes.extend(((RAW_BYTES - SIZE_BASE) as u16).to_le_bytes());
        bytes.extend(&(1 | (RAW_BYTES as u32) << 3).to_le_bytes()[..3]); // the last block, raw
        bytes.extend(raw);
        bytes
    }

    fn fields(&self) -> Vec<u8> {
        let mut raw = Vec::with_capacity(RAW_BYTES);
        let mut field = |key: u16, value: &[&[u8]]| {
            let value = value.concat();
            raw.extend(key.to_le_bytes());
            raw.extend((value.len() as u16).to_le_bytes());
            raw.extend(value);
        };
        for cause in Cause::all() {
            let Amount { events, records } = self.dropped.of(cause);
            let number = (cause as u32).to_le_bytes();
            field(SINK_DROPPED, &[&number, &events.to_le_bytes(), &records.to_le_bytes()]);
        }
        field(SINK_REASON, &[&self.reason.map_or(0, |reason| reason as u32).to_le_bytes()]);
        let StopMark { code, payload } = self.stop.unwrap_or(StopMark { code: 0, payload: 0 });
        field(SINK_STOP, &[&code.to_le_bytes(), &payload.to_le_bytes()]);
        raw
    }

    /// Reads the payload of such a chunk.
    pub fn parse(payload: &[u8]) -> FinalChunk {
        let le = ByteOrder::Little;
        let mut last = FinalChunk::default();
        for (key, value) in Fields(payload) {
            match key {
                SINK_DROPPED => last.dropped.add_field(value),
                SINK_REASON => {
                    last.reason = le.u32(value, 0).and_then(StopReason::from_number);
                }
                SINK_STOP => {
                    let (code, payload) = (le.u64(value, 0), le.u64(value, 8));
                    let mark = StopMark { code: code.unwrap_or(0), payload: payload.unwrap_or(0) };
                    last.stop = Some(mark).filter(|mark| mark.code != 0);
                }
                _ => {}
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::inflate;

    #[test]
    fn it_is_one_zstd_frame_of_always_the_same_size() {
        let mut full = FinalChunk {
            reason: Some(StopReason::Cut),
            stop: Some(StopMark { code: 3, payload: 28 }),
            ..FinalChunk::default()
        };
        full.dropped.add(Cause::Io, Amount { events: 7, records: u64::MAX });
        for (last, order) in [(FinalChunk::default(), ByteOrder::Little), (full, ByteOrder::Big)] {
            let bytes = last.to_bytes(order);
            assert_eq!(bytes.len(), FINAL_BYTES);
            let (header, frame) = bytes.split_first_chunk().expect("a header");
            let header = ChunkHeader::parse(*header, order);
            assert_eq!((header.kind, header.zstd_len as usize), (CHUNK_SINK, frame.len()));
            let mut raw = Vec::new();
            let mut zstd = zstd::bulk::Decompressor::default();
            inflate(&mut zstd, frame, header.raw_len, &mut raw).expect("a zstd frame");
            assert_eq!(FinalChunk::parse(&raw), last);
        }
    }
}
