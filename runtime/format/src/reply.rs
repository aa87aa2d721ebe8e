//! What a server says to a sender: frames, each 8 bytes of header and a payload.
//!
//! Little-endian, whatever the sender is. A server greets a connection as soon as its first chunk,
//! a hello with [`HELLO_STREAM`](crate::HELLO_STREAM), shows that its sender reads replies, and says
//! nothing to others; one of version 2 of the wire never speaks. A sender skips kinds that it does
//! not know.

/// Bytes before each payload: kind u32, payload bytes u32.
pub const REPLY_HEADER_BYTES: usize = 8;
/// Most bytes of a payload; a sender closes a connection that announces more.
pub const REPLY_MAX_BYTES: u32 = 4096;

/// Reply: who this is, before any other. [`GREETING_MAGIC`], then [`GREETING_VERSION`]
/// u32, then flags u32 (0).
pub const REPLY_GREETING: u32 = 1;
/// Reply: every block of this stream up to this number (u64) is stored, or dropped and counted.
/// Comes once behind the sender's [`HELLO_STREAM`](crate::HELLO_STREAM), 0 for a stream that is
/// new, and again when the number has grown.
pub const REPLY_ACKNOWLEDGE: u32 = 2;
/// Reply: asks for a pong. Sequence number u64, the server's clock in ns u64.
pub const REPLY_PING: u32 = 3;
/// Reply: what the traced processes should do from now on: u32, one of `COMMAND_*`.
pub const REPLY_COMMAND: u32 = 4;

/// First bytes of a greeting.
pub const GREETING_MAGIC: [u8; 8] = *b"TKSERVE\0";
/// Version of the greeting.
pub const GREETING_VERSION: u32 = 1;
/// Bytes of a greeting's payload.
pub const GREETING_BYTES: usize = 16;

/// A reply with its header.
pub fn reply<const N: usize>(kind: u32, payload: [u8; N]) -> ([u8; REPLY_HEADER_BYTES], [u8; N]) {
    let mut header = [0; REPLY_HEADER_BYTES];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[4..].copy_from_slice(&(N as u32).to_le_bytes());
    (header, payload)
}

/// The payload of a greeting.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut payload = [0; GREETING_BYTES];
    payload[..8].copy_from_slice(&GREETING_MAGIC);
    payload[8..12].copy_from_slice(&GREETING_VERSION.to_le_bytes());
    payload
}
