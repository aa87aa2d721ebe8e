//! The chunks of one stream, cut anywhere → items.
//!
//! Bytes come as the network delivers them; nothing is kept but the chunk that is under way. What
//! a chunk announces is checked before anything is allocated for it, and memory grows only with
//! bytes that really came. A breach of the protocol is an error: the stream is at its end.
//! The 64-byte handshake comes before; its owner says in which byte order the chunks are.

use callsight_format::{
    BlockError, BlockHeader, ByteOrder, CHUNK_BLOCK, CHUNK_DROPPED, CHUNK_END, CHUNK_EVENTS,
    CHUNK_HEADER_BYTES, CHUNK_HELLO, CHUNK_MAX_RAW_BYTES, CHUNK_MAX_ZSTD_BYTES, ChunkHeader,
    EVENT_BYTES, Event, KIND_MARKER, Unpacker,
};
use zstd::bulk::Decompressor;

use super::frame::inflate;
use super::sender::without_token;
use super::{FrameError, Sender, StreamEnd};

/// A chunk and what is in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The whole chunk as it came, header and zstd frame; nothing where it was skipped. A token
    /// is a secret and left out.
    pub bytes: &'a [u8],
    /// What it says.
    pub item: Item<'a>,
}

/// What a stream carries.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// Whole events, in the sender's byte order.
    Events(&'a [u8]),
    /// Packed events of one writer.
    Block(Block<'a>),
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

/// A block, known to be whole and to make sense.
#[derive(Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// Whose it is, and how much of what.
    pub header: BlockHeader,
    /// All of it, decompressed.
    pub raw: &'a [u8],
    /// Those of its records that are markers.
    pub markers: &'a [Event],
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
    /// The block is not what it should be.
    #[error("a block of packed events is refused: {0}")]
    Block(BlockError),
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
    /// What has come of the chunk under way; or all of one that has been shown.
    part: Vec<u8>,
    is_shown: bool,
    raw: Vec<u8>,
    /// Of no use, and 70 KiB, for a sender that does not pack.
    unpacker: Option<Box<Unpacker>>,
    markers: Vec<Event>,
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
            is_shown: false,
            raw: Vec::new(),
            unpacker: None,
            markers: Vec::new(),
            zstd: Decompressor::default(),
        }
    }

    /// Takes bytes off the front of `input` until a chunk is complete; `None` where `input` is
    /// used up first.
    ///
    /// # Errors
    /// How the stream breaks the protocol. Nothing sensible can follow.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Chunk<'_>>, StreamError> {
        if std::mem::take(&mut self.is_shown) {
            self.part.clear();
        }
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
                    return Ok(Some(Chunk { bytes: &[], item: Item::Unknown { kind } }));
                }
                State::Payload(header) => {
                    if !self.collect(input, CHUNK_HEADER_BYTES + header.zstd_len as usize) {
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
        matches!(self.state, State::Header) && (self.part.is_empty() || self.is_shown)
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
        let header = ChunkHeader::parse(bytes, self.order);
        check_lengths(&header)?;
        self.state = match header.kind {
            CHUNK_EVENTS | CHUNK_DROPPED | CHUNK_HELLO | CHUNK_BLOCK | CHUNK_END => {
                State::Payload(header)
            }
            kind => {
                self.part.clear();
                State::Skip { kind, left_bytes: header.zstd_len as usize }
            }
        };
        Ok(())
    }

    fn end_chunk(&mut self, header: ChunkHeader) -> Result<Chunk<'_>, StreamError> {
        self.is_shown = true;
        let ChunkHeader { kind, raw_len, .. } = header;
        inflate(&mut self.zstd, &self.part[CHUNK_HEADER_BYTES..], raw_len, &mut self.raw)
            .map_err(|error| StreamError::Frame { kind, error })?;
        let item = match kind {
            CHUNK_EVENTS => Item::Events(&self.raw),
            CHUNK_DROPPED => Item::Dropped { events: self.order.u64(&self.raw, 0).unwrap_or(0) },
            CHUNK_HELLO => {
                if let Some(raw) = without_token(&self.raw) {
                    self.part = repacked(kind, &raw, self.order).unwrap_or_default();
                }
                Item::Sender(Sender::parse(&self.raw))
            }
            CHUNK_BLOCK => {
                let header = self.unpack().map_err(StreamError::Block)?;
                Item::Block(Block { header, raw: &self.raw, markers: &self.markers })
            }
            _ => Item::End(StreamEnd::parse(&self.raw)),
        };
        Ok(Chunk { bytes: &self.part, item })
    }

    /// Goes through the block in `raw`, once for everyone.
    fn unpack(&mut self) -> Result<BlockHeader, BlockError> {
        self.markers.clear();
        let header = self.unpacker.get_or_insert_default().unpack(&self.raw, |event| {
            if event.kind == KIND_MARKER {
                self.markers.push(*event);
            }
        })?;
        // Numbers count from 1: an acknowledgement of 0 says that nothing is there.
        if header.number == 0 { Err(BlockError::Contents) } else { Ok(header) }
    }
}

/// The chunk that says who is sending, made again.
fn repacked(kind: u32, raw: &[u8], order: ByteOrder) -> std::io::Result<Vec<u8>> {
    let frame = zstd::bulk::compress(raw, 1)?;
    let (raw_len, zstd_len) = (raw.len() as u32, frame.len() as u32);
    let header = ChunkHeader { kind, raw_len, zstd_len }.to_bytes(order);
    Ok([&header[..], &frame].concat())
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
