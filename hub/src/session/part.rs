//! What there is of a stream in a capture of events, for whoever goes on for its server.
//!
//! Events have no numbers: which of its ring's records a capture has is known by this alone.

use callsight_format::ByteOrder;

use super::books::RingId;

const LE: ByteOrder = ByteOrder::Little;

/// Records of a ring that a capture has or told of, markers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Which ring, 0 where nobody said.
    pub ring: RingId,
    /// That drains had taken before its stream.
    pub taken: u64,
    /// That came.
    pub came: u64,
    /// Of these, those that another stream has.
    pub again: u64,
    /// Missing among them, and told as that.
    pub missing: u64,
    /// Dropped by the writers, and told.
    pub lost: u64,
    /// Missing or dropped between its ring's streams, and told here.
    pub between: u64,
    /// Whether some came without numbers.
    pub has_raw: bool,
}

impl Part {
    /// Bytes of its numbers.
    pub const BYTES: usize = 8 * 8;

    /// How many records drains had taken of the ring behind it.
    pub fn end(&self) -> u64 {
        self.taken.saturating_add(self.came).saturating_add(self.missing)
    }

    /// How it is stored.
    pub fn to_bytes(self) -> [u8; Part::BYTES] {
        let Part { ring, taken, came, again, missing, lost, between, has_raw } = self;
        from_words([ring, taken, came, again, missing, lost, between, has_raw.into()])
    }

    /// As it was stored; `None` where these are too few bytes.
    pub fn parse(bytes: &[u8]) -> Option<Part> {
        let [ring, taken, came, again, missing, lost, between, has_raw] = words(bytes)?;
        let has_raw = has_raw != 0;
        Some(Part { ring, taken, came, again, missing, lost, between, has_raw })
    }
}

/// What a capture has of a stream, for the session that goes on.
pub(crate) struct Earlier {
    /// Of its ring, where that is known.
    pub part: Option<Part>,
    /// Whether the rest is found out in a moment.
    pub is_small: bool,
    /// Finds out the rest; may read all of the capture.
    pub read: ReadHad,
}

/// See [`Earlier::read`].
pub(crate) type ReadHad = Box<dyn FnOnce() -> Had + Send>;

/// What a capture has of a stream, or counts as missing there.
pub(crate) struct Had {
    /// Records, markers included.
    pub records: u64,
    /// Of each writer; `None` where that is not known of one.
    pub writers: Vec<Option<WriterPart>>,
}

/// What a stream brought of one thread, from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriterPart {
    /// The thread: its process, when that was started, its id.
    pub pid: u32,
    /// See `pid`.
    pub start: u64,
    /// See `pid`.
    pub tid: u32,
    /// Time of the first record.
    pub from_ts: u64,
    /// Numbers of the first record, and of the one behind the last.
    pub first: u64,
    /// See `first`.
    pub end: u64,
    /// What the thread had dropped before its first block here, and before the last one.
    pub lost_first: u64,
    /// See `lost_first`.
    pub lost_last: u64,
    /// Records missing in between.
    pub missing: u64,
}

impl WriterPart {
    /// Bytes of its numbers.
    pub const BYTES: usize = 8 * 8;

    /// Whether the other one is of the same thread, and earlier.
    pub fn is_behind(&self, other: &WriterPart) -> bool {
        let thread = |part: &WriterPart| (part.pid, part.start, part.tid);
        thread(self) == thread(other) && self.first > 0 && other.from_ts <= self.from_ts
    }

    /// What the thread dropped here; `is_first` where no other stream had what comes before.
    pub fn lost_here(&self, is_first: bool) -> u64 {
        let before = if is_first || self.first == 0 { 0 } else { self.lost_first };
        self.lost_last.saturating_sub(before)
    }

    /// How it is stored.
    pub fn to_bytes(self) -> [u8; WriterPart::BYTES] {
        let WriterPart { start, from_ts, first, end, lost_first, lost_last, missing, .. } = self;
        let thread = u64::from(self.pid) << 32 | u64::from(self.tid);
        from_words([thread, start, from_ts, first, end, lost_first, lost_last, missing])
    }

    /// As it was stored; `None` where these are too few bytes.
    pub fn parse(bytes: &[u8]) -> Option<WriterPart> {
        let [thread, start, from_ts, first, end, lost_first, lost_last, missing] = words(bytes)?;
        let (pid, tid) = ((thread >> 32) as u32, thread as u32);
        Some(WriterPart { pid, start, tid, from_ts, first, end, lost_first, lost_last, missing })
    }
}

fn from_words(words: [u64; 8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (at, word) in bytes.chunks_exact_mut(8).zip(words) {
        at.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn words(bytes: &[u8]) -> Option<[u64; 8]> {
    let mut words = [0; 8];
    for (at, word) in words.iter_mut().enumerate() {
        *word = LE.u64(bytes, 8 * at)?;
    }
    Some(words)
}
