//! The chunks of one stream, cut anywhere → items.
//!
//! Bytes come as the network delivers them; nothing is kept but the chunk that is under way. What
//! a chunk announces is checked before anything is allocated for it, and memory grows only with
//! bytes that really came. A breach of the protocol is an error: the stream is at its end.
//! The 64-byte handshake comes before; its owner says in which byte order the chunks are.

use callsight_format::{
    ByteOrder, CHUNK_DROPPED, CHUNK_END, CHUNK_EVENTS, CHUNK_HEADER_BYTES, CHUNK_HELLO,
    CHUNK_MAX_RAW_BYTES, CHUNK_MAX_ZSTD_BYTES, ChunkHeader, EVENT_BYTES,
};
use zstd::bulk::Decompressor;

use super::frame::inflate;
use super::{FrameError, Sender, StreamEnd};

/// What a stream carries.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// Whole events, in the sender's byte order.
    Events(&'a [u8]),
    /// Events that the sender has dropped since it began.
    Dropped {
        /// How many, over all causes.
        events: u64,
    },
    /// Who is sending.
    Sender(Sender),
    /// The sender is done; it sends nothing more.
    End(StreamEnd),
    /// A chunk of a type that this version does not know, and skipped.
    Unknown {
        /// Its type.
        kind: u32,
    },
}

/// How a stream broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// `raw_len` above the limit.
    #[error("a chunk announces {found} bytes, at most {CHUNK_MAX_RAW_BYTES} are accepted")]
    RawLength {
        /// What it states.
        found: u32,
    },
    /// `zstd_len` above the limit.
    #[error("a chunk takes {found} bytes compressed, at most {CHUNK_MAX_ZSTD_BYTES} are accepted")]
    ZstdLength {
        /// What it states.
        found: u32,
    },
    /// Events that are not whole.
    #[error("a chunk of events has {found} bytes, not a multiple of {EVENT_BYTES}")]
    PartEvent {
        /// `raw_len` of the chunk.
        found: u32,
    },
    /// A notice that is no u64.
    #[error("a notice of dropped events has {found} bytes, not 8")]
    Notice {
        /// `raw_len` of the chunk.
        found: u32,
    },
    /// The payload is not what it should be.
    #[error("a chunk of type {kind} is refused: {error}")]
    Frame {
        /// Type of the chunk.
        kind: u32,
        /// What is wrong with its payload.
        error: FrameError,
    },
}

#[derive(Clone, Copy)]
enum State {
    Header,
    Payload(ChunkHeader),
    Skip { kind: u32, left_bytes: usize },
}

/// Takes the chunks of one stream apart.
pub struct ChunkDecoder {
    order: ByteOrder,
    state: State,
    /// What has come of the header or payload under way.
    part: Vec<u8>,
    raw: Vec<u8>,
    // Its own for every stream: a decompressor shared by two streams mixes them up.
    zstd: Decompressor<'static>,
}

impl ChunkDecoder {
    /// A decoder for what follows the handshake of a sender of byte order `order`.
    pub fn new(order: ByteOrder) -> ChunkDecoder {
        ChunkDecoder {
            order,
            state: State::Header,
            part: Vec::new(),
            raw: Vec::new(),
            zstd: Decompressor::default(),
        }
    }

    /// Takes bytes off the front of `input` until an item is complete; `None` where `input` is
    /// used up first.
    ///
    /// # Errors
    /// How the stream breaks the protocol. Nothing sensible can follow.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Item<'_>>, StreamError> {
        loop {
            match self.state {
                State::Header => {
                    if !self.collect(input, CHUNK_HEADER_BYTES) {
                        return Ok(None);
                    }
                    self.begin_chunk()?;
                }
                State::Skip { kind, left_bytes } => {
                    let take = left_bytes.min(input.len());
                    *input = &input[take..];
                    if take < left_bytes {
                        self.state = State::Skip { kind, left_bytes: left_bytes - take };
                        return Ok(None);
                    }
                    self.state = State::Header;
                    return Ok(Some(Item::Unknown { kind }));
                }
                State::Payload(header) => {
                    if !self.collect(input, header.zstd_len as usize) {
                        return Ok(None);
                    }
                    self.state = State::Header;
                    return self.end_chunk(header).map(Some);
                }
            }
        }
    }

    /// Whether the last byte taken was the last of a chunk.
    pub fn is_between_chunks(&self) -> bool {
        matches!(self.state, State::Header) && self.part.is_empty()
    }

    /// Events that the chunk under way has announced and not delivered.
    pub fn announced_records(&self) -> u64 {
        match self.state {
            State::Payload(ChunkHeader { kind: CHUNK_EVENTS, raw_len, .. }) => {
                u64::from(raw_len) / EVENT_BYTES as u64
            }
            _ => 0,
        }
    }

    /// Moves input to `part` until it has `wanted` bytes; whether it has.
    fn collect(&mut self, input: &mut &[u8], wanted: usize) -> bool {
        let (taken, rest) = input.split_at(input.len().min(wanted - self.part.len()));
        self.part.extend_from_slice(taken);
        *input = rest;
        self.part.len() == wanted
    }

    fn begin_chunk(&mut self) -> Result<(), StreamError> {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes.copy_from_slice(&self.part);
        self.part.clear();
        let header = ChunkHeader::parse(bytes, self.order);
        check_lengths(&header)?;
        self.state = match header.kind {
            CHUNK_EVENTS | CHUNK_DROPPED | CHUNK_HELLO | CHUNK_END => State::Payload(header),
            kind => State::Skip { kind, left_bytes: header.zstd_len as usize },
        };
        Ok(())
    }

    fn end_chunk(&mut self, header: ChunkHeader) -> Result<Item<'_>, StreamError> {
        inflate(&mut self.zstd, &self.part, header.raw_len, &mut self.raw)
            .map_err(|error| StreamError::Frame { kind: header.kind, error })?;
        self.part.clear();
        Ok(match header.kind {
            CHUNK_EVENTS => Item::Events(&self.raw),
            CHUNK_DROPPED => Item::Dropped { events: self.order.u64(&self.raw, 0).unwrap_or(0) },
            CHUNK_HELLO => Item::Sender(Sender::parse(&self.raw)),
            _ => Item::End(StreamEnd::parse(&self.raw)),
        })
    }
}

fn check_lengths(header: &ChunkHeader) -> Result<(), StreamError> {
    let ChunkHeader { kind, raw_len: found, zstd_len } = *header;
    if found > CHUNK_MAX_RAW_BYTES {
        return Err(StreamError::RawLength { found });
    }
    if zstd_len > CHUNK_MAX_ZSTD_BYTES {
        return Err(StreamError::ZstdLength { found: zstd_len });
    }
    match kind {
        CHUNK_EVENTS if !(found as usize).is_multiple_of(EVENT_BYTES) => {
            Err(StreamError::PartEvent { found })
        }
        CHUNK_DROPPED if found != 8 => Err(StreamError::Notice { found }),
        _ => Ok(()),
    }
}
