//! One zstd frame → the bytes it was made of, or why it is refused.
//!
//! Everything a frame states about itself is compared with the limits before it is decompressed,
//! and it is decompressed in one go into room for exactly what its chunk announced: no window is
//! allocated, and a frame that would grow beyond that costs nothing.

use callsight_format::{ByteOrder, CHUNK_MAX_WINDOW_BYTES};
use zstd::bulk::Decompressor;

/// First four bytes of a zstd frame, as a little-endian number.
const FRAME_MAGIC: u32 = 0xfd2f_b528;

/// Why a frame is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another kind of data, or a frame header that is cut off.
    #[error("its payload is not a zstd frame")]
    NotAFrame,
    /// A window beyond what any sender needs.
    #[error("its zstd window is {found} bytes, at most {CHUNK_MAX_WINDOW_BYTES} are accepted")]
    Window {
        /// The window the frame asks for, in bytes.
        found: u64,
    },
    /// The frame and the chunk state different lengths.
    #[error("it states {stated} bytes, but its zstd frame {found}")]
    Length {
        /// `raw_len` of the chunk.
        stated: u32,
        /// Content size of the frame, or what came out of it.
        found: u64,
    },
    /// Something stands behind the frame, or the frame is not complete.
    #[error("its payload is not exactly one zstd frame")]
    NotOneFrame,
    /// zstd could not make sense of it.
    #[error("its zstd frame does not decompress: {0}")]
    Damaged(String),
}

/// What a frame header says that has to be within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameHeader {
    window_bytes: u64,
    content_bytes: Option<u64>,
}

impl FrameHeader {
    /// Reads the header at the start of a frame (RFC 8878, section 3.1.1.1).
    fn parse(frame: &[u8]) -> Option<FrameHeader> {
        let le = ByteOrder::Little;
        if le.u32(frame, 0)? != FRAME_MAGIC {
            return None;
        }
        let descriptor = *frame.get(4)?;
        let single_segment = descriptor & 0x20 != 0;
        let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let mut at = 5;
        let mut window_bytes = 0;
        if !single_segment {
            let window = *frame.get(at)?;
            let base = 1u64 << (10 + (window >> 3));
            window_bytes = base + base / 8 * u64::from(window & 7);
            at += 1;
        }
        at += dictionary_bytes;
        let content_bytes = match descriptor >> 6 {
            0 if single_segment => Some(u64::from(*frame.get(at)?)),
            0 => None,
            1 => Some(u64::from(le.u16(frame, at)?) + 256),
            2 => Some(u64::from(le.u32(frame, at)?)),
            _ => Some(le.u64(frame, at)?),
        };
        if single_segment {
            window_bytes = content_bytes?;
        }
        Some(FrameHeader { window_bytes, content_bytes })
    }
}

/// Decompresses `frame` into `raw`, which then holds exactly `raw_len` bytes.
pub(crate) fn inflate(
    zstd: &mut Decompressor<'_>,
    frame: &[u8],
    raw_len: u32,
    raw: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let header = FrameHeader::parse(frame).ok_or(FrameError::NotAFrame)?;
    if let Some(found) = header.content_bytes.filter(|&found| found != u64::from(raw_len)) {
        return Err(FrameError::Length { stated: raw_len, found });
    }
    if header.window_bytes > u64::from(CHUNK_MAX_WINDOW_BYTES) {
        return Err(FrameError::Window { found: header.window_bytes });
    }
    match zstd::zstd_safe::find_frame_compressed_size(frame) {
        Ok(bytes) if bytes == frame.len() => {}
        _ => return Err(FrameError::NotOneFrame),
    }
    raw.resize(raw_len as usize, 0);
    let found = zstd
        .decompress_to_buffer(frame, &mut raw[..])
        .map_err(|error| FrameError::Damaged(error.to_string()))?;
    if found != raw_len as usize {
        return Err(FrameError::Length { stated: raw_len, found: found as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn packed(raw: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(raw, 1).expect("compress")
    }

    fn check(frame: &[u8], raw_len: u32) -> Result<Vec<u8>, FrameError> {
        let mut raw = Vec::new();
        let mut zstd = Decompressor::new().expect("a decompressor");
        inflate(&mut zstd, frame, raw_len, &mut raw).map(|()| raw)
    }

    /// A frame with a window descriptor: one empty raw block that is the last.
    fn with_window(descriptor: u8) -> Vec<u8> {
        let mut frame = FRAME_MAGIC.to_le_bytes().to_vec();
        frame.extend([0, descriptor, 1, 0, 0]);
        frame
    }

    #[test]
    fn a_frame_gives_back_what_was_put_in() {
        for len in [0usize, 1, 255, 256, 65_535, 65_536, 1 << 20] {
            let raw: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
            assert_eq!(check(&packed(&raw), len as u32), Ok(raw));
        }
    }

    #[test]
    fn a_frame_of_another_length_than_announced_is_refused_either_way() {
        let frame = packed(&[7; 1000]);
        for stated in [0, 999, 1001, u32::MAX] {
            assert_eq!(check(&frame, stated), Err(FrameError::Length { stated, found: 1000 }));
        }
    }

    #[test]
    fn a_frame_that_hides_its_length_cannot_grow_beyond_what_was_announced() {
        let mut packer = zstd::stream::Encoder::new(Vec::new(), 1).expect("an encoder");
        std::io::copy(&mut std::io::repeat(0).take(64 << 20), &mut packer).expect("compress");
        let bomb = packer.finish().expect("finish");
        assert!(matches!(check(&bomb, 1 << 20), Err(FrameError::Damaged(_))), "too long");
        let short = zstd::stream::encode_all(&[1u8; 64][..], 1).expect("compress");
        assert_eq!(check(&short, 64), Ok(vec![1; 64]));
        assert!(matches!(check(&short, 96), Err(FrameError::Length { stated: 96, found: 64 })));
    }

    #[test]
    fn windows_above_8_mib_are_refused() {
        assert_eq!(check(&with_window(13 << 3), 0), Ok(Vec::new()));
        let next = FrameError::Window { found: 9 << 20 };
        assert_eq!(check(&with_window(13 << 3 | 1), 0), Err(next));
        let two_gib = FrameError::Window { found: 2 << 30 };
        assert_eq!(check(&with_window(21 << 3), 0), Err(two_gib));
    }

    #[test]
    fn what_is_not_exactly_one_frame_is_refused() {
        let frame = packed(b"0123456789abcdef0123456789abcdef");
        for len in 0..frame.len() {
            assert!(check(&frame[..len], 32).is_err(), "cut at {len}");
        }
        let twice = [&frame[..], &frame[..]].concat();
        assert_eq!(check(&twice, 32), Err(FrameError::NotOneFrame));
        assert_eq!(check(b"GET / HTTP/1.1", 32), Err(FrameError::NotAFrame));
    }

    #[test]
    fn no_flipped_bit_in_a_frame_makes_more_than_was_announced() {
        let raw: Vec<u8> = (0..512u32).flat_map(|n| (n * n).to_le_bytes()).collect();
        let frame = packed(&raw);
        for bit in 0..frame.len() * 8 {
            let mut bent = frame.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            if let Ok(out) = check(&bent, raw.len() as u32) {
                assert_eq!(out.len(), raw.len(), "bit {bit}");
            }
        }
    }
}
