//! The event file (2) and the summary file (2).
//!
//! `trace.<pid>.<tid>.<seq>.bin` from a process, `trace.stream.<id>.<seq>.bin` from a stream,
//! `trace.summary.<pid>.<tid>.bin` with one record a function.

use crate::{ByteOrder, EVENT_BYTES};

/// First bytes of an event file.
pub const FILE_MAGIC: [u8; 8] = *b"MLTRACE\0";
/// Version of the event file that we write; 1 is read as well.
pub const FILE_VERSION: u32 = 2;
/// Version of an event file that holds chunks as they came over the wire, from a sender that
/// packs: behind the header [`CHUNK_HELLO`](crate::CHUNK_HELLO), then any of the others,
/// [`CHUNK_SINK`](crate::CHUNK_SINK) last. Each segment begins with the first two again.
pub const FILE_VERSION_CHUNKS: u32 = 3;
/// Bytes of [`FileHeader`]. A file may state a larger `header_size`: readers skip that many.
pub const FILE_HEADER_BYTES: usize = 80;
/// Header bytes of a version 1 file: magic, version, event size. Times are in ns, no load bias.
pub const FILE_HEADER_V1_BYTES: usize = 16;
/// The `header_size` of files that the runtime maps: a multiple of an event, so that no event
/// crosses the end of a window.
pub const FILE_HEADER_MAPPED_BYTES: usize = 96;

/// Bytes of a window in a file that the runtime maps: a thread's own stretch, at a multiple of
/// this offset. 512 events, which a thread in a tight loop fills in 12 µs; larger ones gain
/// nothing measurable and waste more in programs of many short threads.
pub const FILE_WINDOW_BYTES: usize = 16 << 10;

/// Longest absolute path of the folder that a traced program makes its files in.
pub const FILE_FOLDER_MAX_BYTES: usize = 511;
/// Longest list of the names of threads that a traced program selects.
pub const THREAD_NAMES_MAX_BYTES: usize = 4095;

/// Flag: `ts` is in clock ticks; without it in nanoseconds.
pub const FLAG_TICKS: u32 = 1;
/// Flag: earlier segments were rotated away.
pub const FLAG_WRAPPED: u32 = 2;
/// Flag: the producer is big-endian.
pub const FLAG_BIG_ENDIAN: u32 = 4;

/// What the clock words mean, and where the executable was loaded; the lower half of the ring
/// header, forwarded in the handshake of a stream and stored in every file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Bit set of `FLAG_*`.
    pub flags: u32,
    /// What to subtract from an address of the executable to get its address in the ELF file.
    pub load_bias: u64,
    /// Ticks a second, as measured at the start; 0 when times are in ns.
    pub tick_hz: u64,
    /// Ticks at the opening clock anchor.
    pub t0_ticks: u64,
    /// `CLOCK_MONOTONIC` in ns at the opening clock anchor.
    pub t0_ns: u64,
    /// Measured cost of one hook, in ns.
    pub hook_ns: u64,
}

/// Header of an event file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileHeader {
    /// [`FILE_MAGIC`].
    pub magic: [u8; 8],
    /// [`FILE_VERSION`].
    pub version: u32,
    /// [`EVENT_BYTES`].
    pub event_size: u32,
    /// Where the first event stands, from the start of the file.
    pub header_size: u32,
    /// See [`Origin::flags`].
    pub flags: u32,
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
    /// Process id; the number of the stream in a streamed file.
    pub pid: u32,
    /// Number of the segment, from 0.
    pub seq: u32,
    /// 0.
    pub reserved: u64,
}

const _: () = assert!(size_of::<FileHeader>() == FILE_HEADER_BYTES);

impl FileHeader {
    /// A header for `origin` with the sizes this version writes.
    pub fn new(origin: Origin, pid: u32, seq: u32) -> FileHeader {
        FileHeader {
            magic: FILE_MAGIC,
            version: FILE_VERSION,
            event_size: EVENT_BYTES as u32,
            header_size: FILE_HEADER_BYTES as u32,
            flags: origin.flags,
            load_bias: origin.load_bias,
            tick_hz: origin.tick_hz,
            t0_ticks: origin.t0_ticks,
            t0_ns: origin.t0_ns,
            hook_ns: origin.hook_ns,
            pid,
            seq,
            reserved: 0,
        }
    }

    /// Decodes the start of an event file of version 1 to 3, in either byte order.
    ///
    /// # Errors
    /// What is wrong with it, in terms a person can act on.
    pub fn parse(bytes: &[u8]) -> Result<(FileHeader, ByteOrder), HeaderError> {
        let magic = bytes.get(..8).ok_or(HeaderError::Short { found: bytes.len() })?;
        if magic != FILE_MAGIC {
            return Err(HeaderError::Magic);
        }
        let word = bytes.get(8..12).and_then(|w| w.try_into().ok());
        let short = HeaderError::Short { found: bytes.len() };
        let order = ByteOrder::of_version(word.ok_or(short)?);
        let u32_at = |at| order.u32(bytes, at).ok_or(short);
        let u64_at = |at| order.u64(bytes, at).ok_or(short);
        let (version, event_size) = (u32_at(8)?, u32_at(12)?);
        if event_size as usize != EVENT_BYTES {
            return Err(HeaderError::EventSize { found: event_size });
        }
        let mut header =
            FileHeader { magic: FILE_MAGIC, version, event_size, ..Default::default() };
        match version {
            1 => header.header_size = FILE_HEADER_V1_BYTES as u32,
            FILE_VERSION | FILE_VERSION_CHUNKS => {
                header.header_size = u32_at(16)?;
                header.flags = u32_at(20)?;
                header.load_bias = u64_at(24)?;
                header.tick_hz = u64_at(32)?;
                header.t0_ticks = u64_at(40)?;
                header.t0_ns = u64_at(48)?;
                header.hook_ns = u64_at(56)?;
                header.pid = u32_at(64)?;
                header.seq = u32_at(68)?;
                header.reserved = u64_at(72)?;
                if (header.header_size as usize) < FILE_HEADER_BYTES {
                    return Err(HeaderError::HeaderSize { found: header.header_size });
                }
            }
            found => return Err(HeaderError::Version { found }),
        }
        Ok((header, order))
    }

    /// The 80 bytes of the header in byte order `order`.
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.magic);
        let words = [self.version, self.event_size, self.header_size, self.flags];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 + 4 * at..12 + 4 * at].copy_from_slice(&order.put_u32(word));
        }
        let longs = [self.load_bias, self.tick_hz, self.t0_ticks, self.t0_ns, self.hook_ns];
        for (at, long) in longs.into_iter().enumerate() {
            bytes[24 + 8 * at..32 + 8 * at].copy_from_slice(&order.put_u64(long));
        }
        bytes[64..68].copy_from_slice(&order.put_u32(self.pid));
        bytes[68..72].copy_from_slice(&order.put_u32(self.seq));
        bytes
    }

    /// The clock and load words of the header.
    pub fn origin(&self) -> Origin {
        Origin {
            flags: self.flags,
            load_bias: self.load_bias,
            tick_hz: self.tick_hz,
            t0_ticks: self.t0_ticks,
            t0_ns: self.t0_ns,
            hook_ns: self.hook_ns,
        }
    }
}

/// Why the start of a file or stream is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    Short {
        /// How many there were.
        found: usize,
    },
    /// Another kind of file.
    Magic,
    /// A version this code does not know.
    Version {
        /// The version it states.
        found: u32,
    },
    /// Events of another size.
    EventSize {
        /// The size it states, in bytes.
        found: u32,
    },
    /// A header size smaller than the header.
    HeaderSize {
        /// The size it states, in bytes.
        found: u32,
    },
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            HeaderError::Short { found } => write!(f, "only {found} bytes, too short for a header"),
            HeaderError::Magic => write!(f, "not a callsight capture (another first word)"),
            HeaderError::Version { found } => {
                write!(f, "written in format {found}, this callsight reads 1 to 3")
            }
            HeaderError::EventSize { found } => {
                write!(f, "events of {found} bytes, this callsight reads {EVENT_BYTES}")
            }
            HeaderError::HeaderSize { found } => {
                write!(f, "a header of {found} bytes, at least {FILE_HEADER_BYTES} are needed")
            }
        }
    }
}

impl core::error::Error for HeaderError {}

/// First bytes of a summary file.
pub const SUMMARY_MAGIC: [u8; 8] = *b"MLSUMRY\0";
/// Version of the summary file that we write; 1 is read as well.
pub const SUMMARY_VERSION: u32 = 2;
/// Bytes of [`SummaryHeader`]; 96 in version 1.
pub const SUMMARY_HEADER_BYTES: usize = 192;
/// Header bytes of a version 1 summary file: it ends before the counters.
pub const SUMMARY_HEADER_V1_BYTES: usize = 96;
/// Bytes of [`SummaryRecord`]; 688 in version 1.
pub const SUMMARY_RECORD_BYTES: usize = 744;
/// Record bytes of a version 1 summary file: it ends before the counters.
pub const SUMMARY_RECORD_V1_BYTES: usize = 688;
/// Buckets of the histogram: durations 0 to 7 have one each, then four an octave.
pub const SUMMARY_BUCKETS: usize = 160;

/// Header of a summary file.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryHeader {
    /// [`SUMMARY_MAGIC`].
    pub magic: [u8; 8],
    /// [`SUMMARY_VERSION`].
    pub version: u32,
    /// Bytes of one record.
    pub record_size: u32,
    /// Where the first record stands.
    pub header_size: u32,
    /// See [`Origin::flags`].
    pub flags: u32,
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
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// How many records follow.
    pub records: u64,
    /// Last time minus first time, in the clock's unit.
    pub span: u64,
    /// Calls deeper than the shadow stack, which are not in any record.
    pub truncated: u64,
    /// Number of hardware counters.
    pub counter_n: u32,
    /// 0.
    pub pad: u32,
    /// perf type of each counter.
    pub counter_type: [u32; 3],
    /// 0.
    pub pad2: u32,
    /// perf configuration of each counter.
    pub counter_config: [u64; 3],
    /// What a hook adds to each counter.
    pub counter_self: [u64; 3],
    /// ns a counter read costs.
    pub counter_read_ns: u64,
    /// Calls whose counters were not read.
    pub counter_skipped: u64,
    /// Reads that were multiplexed.
    pub counter_mux: u64,
}

const _: () = assert!(size_of::<SummaryHeader>() == SUMMARY_HEADER_BYTES);

/// One function of one thread in a summary file.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryRecord {
    /// Run-time address of the function.
    pub func: u64,
    /// Calls.
    pub calls: u64,
    /// Inclusive time, in the clock's unit.
    pub inclusive: u64,
    /// Self time, in the clock's unit.
    pub own: u64,
    /// Shortest call, in the clock's unit.
    pub min: u64,
    /// Longest call, in the clock's unit.
    pub max: u64,
    /// Calls by duration; see [`summary_bucket`].
    pub histogram: [u32; SUMMARY_BUCKETS],
    /// Calls whose counters were read.
    pub counter_calls: u64,
    /// Sums of the counters over those calls.
    pub counter_inclusive: [u64; 3],
    /// The same without callees.
    pub counter_own: [u64; 3],
}

const _: () = assert!(size_of::<SummaryRecord>() == SUMMARY_RECORD_BYTES);

/// The bucket of a duration in a summary histogram: the duration itself below 8, then four
/// buckets an octave.
pub fn summary_bucket(duration: u64) -> usize {
    if duration < 8 {
        return duration as usize;
    }
    let top_bit = 63 - duration.leading_zeros() as usize;
    ((top_bit - 3) * 4 + ((duration >> (top_bit - 2)) & 3) as usize + 8).min(SUMMARY_BUCKETS - 1)
}

/// The shortest duration of a bucket; the inverse of [`summary_bucket`].
pub fn summary_bucket_start(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let (octave, quarter) = ((bucket - 8) / 4, (bucket - 8) % 4);
    (4 + quarter as u64) << (octave + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_both_byte_orders() {
        let origin =
            Origin { flags: 1, load_bias: 2, tick_hz: 3, t0_ticks: 4, t0_ns: 5, hook_ns: 6 };
        let header = FileHeader::new(origin, 7, 8);
        for order in [ByteOrder::Little, ByteOrder::Big] {
            assert_eq!(FileHeader::parse(&header.to_bytes(order)), Ok((header, order)));
        }
        assert_eq!(header.origin(), origin);
    }

    #[test]
    fn a_version_1_header_ends_after_16_bytes() {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&FILE_MAGIC);
        bytes[8] = 1;
        bytes[12] = 32;
        let (header, _) = FileHeader::parse(&bytes).expect("version 1");
        assert_eq!((header.version, header.header_size, header.flags), (1, 16, 0));
    }

    #[test]
    fn every_cut_of_a_header_is_refused() {
        let bytes = FileHeader::new(Origin::default(), 1, 0).to_bytes(ByteOrder::Little);
        for len in 0..bytes.len() {
            assert_eq!(FileHeader::parse(&bytes[..len]), Err(HeaderError::Short { found: len }));
        }
    }

    #[test]
    fn bucket_starts_are_in_their_own_buckets() {
        for bucket in 0..SUMMARY_BUCKETS {
            assert_eq!(summary_bucket(summary_bucket_start(bucket)), bucket);
            if bucket > 0 {
                assert_eq!(summary_bucket(summary_bucket_start(bucket) - 1), bucket - 1);
            }
        }
    }
}
