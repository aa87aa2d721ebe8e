//! The wire: client to server over TCP.
//!
//! A [`Handshake`] of 64 bytes (2), then chunks: a [`ChunkHeader`] and `zstd_len` bytes, one zstd
//! frame that holds its content size.
//!
//! | type | payload |
//! |---|---|
//! | 0 | raw events (2), appended to the capture as they are |
//! | 1 | u64 events dropped so far (2) |
//! | 2 | who is sending: fields, see [`HELLO_HOSTNAME`] |
//! | 3 | packed events of one writer: a block, see [`BlockHeader`](crate::BlockHeader) |
//! | 5 | end of the stream: fields, see [`END_REASON`] |
//! | 6 | in captures only: what became of the stream there, see [`SINK_DROPPED`] |
//!
//! Type 4 is kept for pongs. A receiver skips types it does not know.
//!
//! A sender that hears a greeting ([`REPLY_GREETING`](crate::REPLY_GREETING)), at any moment, sends
//! type 3 instead of type 0 from then on, and keeps each block until it is acknowledged: whoever
//! connects again sends the blocks that are not, and a receiver leaves out those it has.
//! Integers of the handshake, chunk headers, events and the notice are in the producer's order;
//! fields ([`Fields`]) are little-endian.

use crate::{ByteOrder, EVENT_BYTES, HeaderError, Origin};

/// First bytes of a stream (2).
pub const STREAM_MAGIC: [u8; 8] = *b"TKSTREAM";
/// Version of the stream (2).
pub const STREAM_VERSION: u32 = 2;
/// Bytes of [`Handshake`] (2).
pub const HANDSHAKE_BYTES: usize = 64;
/// Bytes of [`ChunkHeader`] (2).
pub const CHUNK_HEADER_BYTES: usize = 12;
/// Most bytes a chunk may hold uncompressed.
pub const CHUNK_MAX_RAW_BYTES: u32 = 1 << 20;
/// Most bytes a chunk may take compressed: the bound of zstd for [`CHUNK_MAX_RAW_BYTES`].
pub const CHUNK_MAX_ZSTD_BYTES: u32 = CHUNK_MAX_RAW_BYTES + (CHUNK_MAX_RAW_BYTES >> 8) + 64;
/// Largest zstd window a chunk may ask for, in bytes.
pub const CHUNK_MAX_WINDOW_BYTES: u32 = 8 << 20;
/// Bytes of raw events the drain puts in a chunk (2).
pub const CHUNK_RAW_BYTES: u32 = 64 << 10;
/// Seconds a peer has to send its handshake.
pub const HANDSHAKE_DEADLINE_S: u32 = 5;
/// The port of device ingest.
pub const STREAM_PORT: u16 = 9001;

/// [`ChunkHeader::kind`]: raw events (2).
pub const CHUNK_EVENTS: u32 = 0;
/// [`ChunkHeader::kind`]: events dropped so far, u64 (2).
pub const CHUNK_DROPPED: u32 = 1;
/// [`ChunkHeader::kind`]: who is sending.
pub const CHUNK_HELLO: u32 = 2;
/// [`ChunkHeader::kind`]: packed events of one writer.
pub const CHUNK_BLOCK: u32 = 3;
/// [`ChunkHeader::kind`]: end of the stream.
pub const CHUNK_END: u32 = 5;
/// [`ChunkHeader::kind`]: what became of the stream in this capture; the last chunk of it.
pub const CHUNK_SINK: u32 = 6;

/// First bytes of a stream: what its clock words mean.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// [`STREAM_MAGIC`].
    pub magic: [u8; 8],
    /// [`STREAM_VERSION`].
    pub version: u32,
    /// [`EVENT_BYTES`].
    pub event_size: u32,
    /// See [`Origin::flags`].
    pub flags: u32,
    /// 0.
    pub pad: u32,
    /// See [`Origin::load_bias`].
    pub load_bias: u64,
    /// See [`Origin::tick_hz`].
    pub tick_hz: u64,
    /// See [`Origin::t0_ticks`].
    pub t0_ticks: u64,
    /// See [`Origin::t0_ns`].
    pub t0_ns: u64,
    /// See [`Origin::hook_ns`].
    pub hook_ns: u64,
}

const _: () = assert!(size_of::<Handshake>() == HANDSHAKE_BYTES);

impl Handshake {
    /// Decodes and checks the 64 bytes, in the order their version word shows.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<(Origin, ByteOrder), HeaderError> {
        let short = HeaderError::Short { found: bytes.len() };
        if bytes.get(..8).ok_or(short)? != STREAM_MAGIC {
            return Err(HeaderError::Magic);
        }
        let word = bytes.get(8..12).and_then(|w| w.try_into().ok()).ok_or(short)?;
        let order = ByteOrder::of_version(word);
        let u32_at = |at| order.u32(bytes, at).ok_or(short);
        let u64_at = |at| order.u64(bytes, at).ok_or(short);
        match (u32_at(8)?, u32_at(12)?) {
            (STREAM_VERSION, size) if size as usize == EVENT_BYTES => {}
            (STREAM_VERSION, found) => return Err(HeaderError::EventSize { found }),
            (found, _) => return Err(HeaderError::Version { found }),
        }
        let origin = Origin {
            flags: u32_at(16)?,
            load_bias: u64_at(24)?,
            tick_hz: u64_at(32)?,
            t0_ticks: u64_at(40)?,
            t0_ns: u64_at(48)?,
            hook_ns: u64_at(56)?,
        };
        Ok((origin, order))
    }

    /// The 64 bytes a producer of byte order `order` sends for `origin`.
    pub fn to_bytes(origin: &Origin, order: ByteOrder) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = [0; HANDSHAKE_BYTES];
        bytes[..8].copy_from_slice(&STREAM_MAGIC);
        let words = [STREAM_VERSION, EVENT_BYTES as u32, origin.flags, 0];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 + 4 * at..12 + 4 * at].copy_from_slice(&order.put_u32(word));
        }
        let longs =
            [origin.load_bias, origin.tick_hz, origin.t0_ticks, origin.t0_ns, origin.hook_ns];
        for (at, long) in longs.into_iter().enumerate() {
            bytes[24 + 8 * at..32 + 8 * at].copy_from_slice(&order.put_u64(long));
        }
        bytes
    }
}

/// What stands before each chunk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkHeader {
    /// One of `CHUNK_*`.
    pub kind: u32,
    /// Bytes of the payload once decompressed.
    pub raw_len: u32,
    /// Bytes of the payload as sent.
    pub zstd_len: u32,
}

const _: () = assert!(size_of::<ChunkHeader>() == CHUNK_HEADER_BYTES);

impl ChunkHeader {
    /// Decodes 12 bytes. The lengths are not checked.
    pub fn parse(bytes: [u8; CHUNK_HEADER_BYTES], order: ByteOrder) -> ChunkHeader {
        let word = |at| order.u32(&bytes, at).unwrap_or(0);
        ChunkHeader { kind: word(0), raw_len: word(4), zstd_len: word(8) }
    }

    /// The 12 bytes a producer of byte order `order` sends.
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        for (at, word) in [self.kind, self.raw_len, self.zstd_len].into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&order.put_u32(word));
        }
        bytes
    }
}

/// Field of [`CHUNK_HELLO`]: host name, UTF-8.
pub const HELLO_HOSTNAME: u16 = 1;
/// Field of [`CHUNK_HELLO`]: operating system and release, UTF-8.
pub const HELLO_OS: u16 = 2;
/// Field of [`CHUNK_HELLO`]: machine architecture as `uname -m` says it.
pub const HELLO_ARCH: u16 = 3;
/// Field of [`CHUNK_HELLO`]: what tells two runs of a machine apart: the kernel's boot id.
pub const HELLO_CLOCK: u16 = 4;
/// Field of [`CHUNK_HELLO`]: pid of the first traced process, u32.
pub const HELLO_PID: u16 = 5;
/// Field of [`CHUNK_HELLO`]: path of its executable.
pub const HELLO_EXE: u16 = 6;
/// Field of [`CHUNK_HELLO`]: its GNU build-id, raw bytes.
pub const HELLO_BUILD_ID: u16 = 7;
/// Field of [`CHUNK_HELLO`]: name of the service on that machine, UTF-8.
pub const HELLO_SERVICE_ID: u16 = 8;
/// Field of [`CHUNK_HELLO`]: what the server wants to see, opaque.
pub const HELLO_TOKEN: u16 = 9;
/// Field of [`CHUNK_HELLO`]: which stream this is, 16 random bytes: the same on every connection
/// of a sender that can pack.
pub const HELLO_STREAM: u16 = 10;
/// Bytes of [`HELLO_STREAM`].
pub const STREAM_ID_BYTES: usize = 16;
/// Field of [`CHUNK_HELLO`]: how many records of its ring other drains have taken before, u64. What
/// the writers number below the first record of this stream is theirs.
pub const HELLO_TAKEN: u16 = 11;

/// Field of [`CHUNK_END`]: u32, one of `END_*`.
pub const END_REASON: u16 = 1;
/// Field of [`CHUNK_END`]: records emitted by all writers, u64.
pub const END_EMITTED: u16 = 2;
/// Field of [`CHUNK_END`]: records of the rings sent in chunks of type 0, u64.
pub const END_DELIVERED: u16 = 3;
/// Field of [`CHUNK_END`]: u32 cause ([`Cause`](crate::Cause)), then u64 events; once a cause.
/// After [`END_DONE`] all that was lost and no earlier drain's stream told; after [`END_STOPPED`]
/// what the notes of this stream told, for the rest is still in the ring.
pub const END_DROPPED: u16 = 4;
/// Field of [`CHUNK_END`]: number of the last block, u64.
pub const END_BLOCKS: u16 = 5;
/// Field of [`CHUNK_END`]: what the sender did not send on this way, up to the end; the value is
/// that of [`SINK_DROPPED`]. The end in a capture that its own sender stored need not have it: the
/// capture's [`CHUNK_SINK`] tells the same.
pub const END_SINK_DROPPED: u16 = 6;
/// Field of [`CHUNK_END`]: as [`END_DROPPED`], but of the ring's whole life: all that its writers lost,
/// whoever told it. After [`END_DONE`], from a drain that was not the ring's first: what a drain that was
/// killed had told may be in no stream.
pub const END_RING_DROPPED: u16 = 7;
/// [`END_REASON`]: every traced process is gone and the ring is empty.
pub const END_DONE: u32 = 1;
/// [`END_REASON`]: the drain was told to end.
pub const END_STOPPED: u32 = 2;

/// Field of [`CHUNK_SINK`]: u32 cause ([`Cause`](crate::Cause)), then how many enters and exits did
/// not get into this capture (u64), and of how many records they are (u64), which are what gaps in
/// the numbers of writers count. Once a cause. Where the value has only 12 bytes, the second count
/// is the first.
pub const SINK_DROPPED: u16 = 1;
/// Field of [`CHUNK_SINK`]: how the stream ended here, u32, a
/// [`StopReason`](crate::StopReason).
pub const SINK_REASON: u16 = 2;
/// Field of [`CHUNK_SINK`]: why nothing more was stored: marker code u64 (`MARK_*`), payload u64.
pub const SINK_STOP: u16 = 3;

/// The fields of a [`CHUNK_HELLO`], [`CHUNK_END`] or [`CHUNK_SINK`] payload: each u16 key, u16 length, bytes.
///
/// Ends at the first field that does not fit; a reader skips keys it does not know.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let key = ByteOrder::Little.u16(self.0, 0)?;
        let len = ByteOrder::Little.u16(self.0, 2)? as usize;
        let value = self.0.get(4..4 + len)?;
        self.0 = &self.0[4 + len..];
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_survives_both_byte_orders() {
        let origin =
            Origin { flags: 5, load_bias: 1, tick_hz: 2, t0_ticks: 3, t0_ns: 4, hook_ns: 9 };
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let bytes = Handshake::to_bytes(&origin, order);
            assert_eq!(Handshake::parse(&bytes), Ok((origin, order)));
            for len in 0..bytes.len() {
                assert!(Handshake::parse(&bytes[..len]).is_err());
            }
        }
    }

    #[test]
    fn fields_end_where_they_no_longer_fit() {
        let bytes = [1, 0, 2, 0, b'h', b'i', 2, 0, 9, 0, b'x'];
        let mut fields = Fields(&bytes);
        assert_eq!(fields.next(), Some((1, &b"hi"[..])));
        assert_eq!(fields.next(), None);
    }
}
