//! The block: the payload of a chunk of type 3, the records of one writer as columns.
//!
//! ```text
//! BlockHeader   112 bytes
//! ops           one byte a record: OP_*
//! times         one byte a record: the time since the record before, or how it is told
//! time bytes    what did not fit into one byte
//! ids           numbers of functions and pairs, LEB128
//! names         functions and call sites that are new, LEB128, zigzag from a near one
//! frames        steps of frames that were not foreseen, 3 bytes each
//! literals      records that are no call: 24 bytes each, the record without its time
//! ```
//!
//! All of it is little-endian, and all of a block can be read without any other block. Both sides
//! keep the same books while they go through the records, so that what is foreseen takes no byte:
//!
//! - a **stack** of open calls: an exit is foreseen as that of the call on top, or of one below;
//! - **pairs** of function and call site, numbered as they come. When [`PACK_PAIRS`] are known they
//!   are forgotten, and numbers begin anew; **functions** likewise;
//! - what **came next** the last time behind an enter of a pair, and behind an exit of it;
//! - for each pair, and for each function as a first guess for its pairs, the **step** of the frame
//!   from the caller's to its own.
//!
//! An exit known from the stack and a call known from what came before are what return stacks and
//! branch target buffers of processors do.

use crate::ByteOrder;

/// Bytes of [`BlockHeader`].
pub const BLOCK_HEADER_BYTES: usize = 112;
/// Most records of a block.
pub const BLOCK_MAX_RECORDS: u32 = 16 << 10;
/// Pairs of function and call site that are known at a time.
pub const PACK_PAIRS: usize = 1024;
/// Functions that are known at a time.
pub const PACK_FUNCTIONS: usize = 1024;
/// Open calls that are known; deeper ones take the place of the outermost.
pub const PACK_STACK: usize = 256;
/// How far below the top of the stack the call of an exit is looked for.
pub const PACK_BELOW: u32 = 32;

/// Op: an exit of the call on top of the stack.
pub const OP_EXIT: u8 = 0;
/// Op: an enter of what was called here the last time.
pub const OP_ENTER: u8 = 1;
/// Op: an enter of a known pair, whose number is in `ids`.
pub const OP_ENTER_PAIR: u8 = 2;
/// Op: an enter of a new pair: the function's number plus one in `ids`, 0 for a new function,
/// whose distance from the last new one is in `names`; then the distance of the call site from
/// the caller's function in `names`.
pub const OP_ENTER_NEW: u8 = 3;
/// Op: an exit of the call that is as far below the top of the stack as the byte in `ids` says;
/// those above it are gone.
pub const OP_EXIT_BELOW: u8 = 4;
/// Op: an exit of a known pair that is not on the stack; its frame is in `frames`.
pub const OP_EXIT_PAIR: u8 = 5;
/// Op: the same of a new pair.
pub const OP_EXIT_NEW: u8 = 6;
/// Op: no call; the record is in `literals`.
pub const OP_RECORD: u8 = 7;
/// Bit of an op that is an enter: the step of the frame is in `frames`.
pub const OP_FRAME: u8 = 8;
/// Op: a note that the drain made about the writer, in `literals`; it has no number.
pub const OP_NOTE: u8 = 15;

/// Time byte: below this, the time itself; from here on, one more byte, and what is above it.
pub const TIME_LONGER: u8 = 240;
/// Time byte: the time less [`TIME_LONGER`] in four more bytes.
pub const TIME_4_BYTES: u8 = 254;
/// Time byte: the time less [`TIME_LONGER`] in eight more bytes, also one that runs backwards.
pub const TIME_8_BYTES: u8 = 255;

/// Start of a block. Little-endian.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHeader {
    /// CRC-32C (RFC 3720, appendix B.4) of all that follows in the block.
    pub crc: u32,
    /// [`BLOCK_HEADER_BYTES`]; readers skip what they do not know.
    pub header_bytes: u16,
    /// 0.
    pub flags: u16,
    /// Number of the block in its stream, from 1.
    pub number: u64,
    /// The writer: start time of its process (field 22 of `/proc/PID/stat`).
    pub start: u64,
    /// Number of the first record, in the writer's numbering.
    pub first: u64,
    /// The writer: its process.
    pub pid: u32,
    /// The writer: its thread.
    pub tid: u32,
    /// How many records there are.
    pub records: u32,
    /// How many of them are enters and exits.
    pub calls: u32,
    /// How many of them have numbers, from `first` on. Those of a version 2 ring have none.
    pub numbered: u32,
    /// 0.
    pub pad: u32,
    /// Time of the first record.
    pub first_ts: u64,
    /// Events the writer had dropped before this block, of any cause.
    pub lost_total: u64,
    /// Of these, by cause: `full`, `reentrant`, `fork`, `torn`, the low 32 bits each.
    pub lost: [u32; 4],
    /// Frame of the first record.
    pub frame: u32,
    /// Bytes of the columns behind `ops` and `times`, in order.
    pub time_bytes: u32,
    /// See `time_bytes`.
    pub id_bytes: u32,
    /// See `time_bytes`.
    pub name_bytes: u32,
    /// See `time_bytes`.
    pub frame_bytes: u32,
    /// See `time_bytes`.
    pub literal_bytes: u32,
}

const _: () = assert!(size_of::<BlockHeader>() == BLOCK_HEADER_BYTES);

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// It ends before its header or a column does.
    Short,
    /// Its bytes are not those that were written.
    Checksum,
    /// Its columns contradict each other.
    Contents,
}

impl core::fmt::Display for BlockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BlockError::Short => "it is cut short",
            BlockError::Checksum => "its checksum is not that of its bytes",
            BlockError::Contents => "its columns contradict each other",
        })
    }
}

impl core::error::Error for BlockError {}

impl BlockHeader {
    /// Events that its writer had dropped before it for causes that it does not tell. Those that it
    /// does tell are modulo 2^32, so of a greater sum nothing is known: 0.
    pub fn lost_for_other_causes(&self) -> u64 {
        match u32::try_from(self.lost_total) {
            Ok(total) => self.lost.into_iter().fold(total, u32::saturating_sub).into(),
            Err(_) => 0,
        }
    }

    /// Reads the header of a block and checks the checksum over all of it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(block: &[u8]) -> Result<BlockHeader, BlockError> {
        let le = ByteOrder::Little;
        let u16_at = |at| le.u16(block, at).ok_or(BlockError::Short);
        let u32_at = |at| le.u32(block, at).ok_or(BlockError::Short);
        let u64_at = |at| le.u64(block, at).ok_or(BlockError::Short);
        let header = BlockHeader {
            crc: u32_at(0)?,
            header_bytes: u16_at(4)?,
            flags: u16_at(6)?,
            number: u64_at(8)?,
            start: u64_at(16)?,
            first: u64_at(24)?,
            pid: u32_at(32)?,
            tid: u32_at(36)?,
            records: u32_at(40)?,
            calls: u32_at(44)?,
            numbered: u32_at(48)?,
            pad: u32_at(52)?,
            first_ts: u64_at(56)?,
            lost_total: u64_at(64)?,
            lost: [u32_at(72)?, u32_at(76)?, u32_at(80)?, u32_at(84)?],
            frame: u32_at(88)?,
            time_bytes: u32_at(92)?,
            id_bytes: u32_at(96)?,
            name_bytes: u32_at(100)?,
            frame_bytes: u32_at(104)?,
            literal_bytes: u32_at(108)?,
        };
        if crc32c(block.get(4..).unwrap_or_default()) != header.crc {
            return Err(BlockError::Checksum);
        }
        let whole = usize::from(header.header_bytes) >= BLOCK_HEADER_BYTES
            && header.records <= BLOCK_MAX_RECORDS
            && header.calls.max(header.numbered) <= header.records;
        if whole { Ok(header) } else { Err(BlockError::Contents) }
    }
}

/// Table of [`crc32c`]: the remainder of each byte (polynomial 0x1EDC6F41, reflected), and of each
/// byte with one to seven zero bytes behind it.
static CRC_TABLE: [[u32; 256]; 8] = {
    let mut table = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ 0x82f6_3b78 } else { rest >> 1 };
            bit += 1;
        }
        table[0][byte] = rest;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = table[zeros - 1][byte];
            table[zeros][byte] = before >> 8 ^ table[0][before as usize & 0xff];
            byte += 1;
        }
        zeros += 1;
    }
    table
};

/// CRC-32C of `bytes` (RFC 3720, appendix B.4), eight bytes at a time.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        crc = 0;
        let mut at = 0;
        while at < 8 {
            crc ^= CRC_TABLE[7 - at][(word >> (8 * at)) as usize & 0xff];
            at += 1;
        }
    }
    for byte in rest {
        crc = crc >> 8 ^ CRC_TABLE[0][(crc as usize ^ usize::from(*byte)) & 0xff];
    }
    !crc
}
