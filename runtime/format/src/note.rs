//! Notes: our own markers, codes from 256, each carrying bytes over as many records as it needs.
//!
//! A note is a string of bytes cut into pieces of [`NOTE_PIECE_BYTES`]. Piece `i` is one marker
//! event of the writer the note speaks of:
//!
//! ```text
//! func      = code (bits 0..16) | i (bits 16..32) | bytes 0..4 of the piece (bits 32..64)
//! call_site = bytes 4..12 of the piece
//! ```
//!
//! both little-endian *in value*, so the bytes survive a producer of either byte order. Piece 0
//! starts with the length of the note as a `u16`. A writer's pieces follow one another in its own
//! order; other writers' events may stand between them. An incomplete note is ignored.
//!
//! Integers inside a note are little-endian.

use crate::{Event, KIND_MARKER};

/// Payload bytes of one note record.
pub const NOTE_PIECE_BYTES: usize = 12;
/// The longest note, its two length bytes not counted.
pub const NOTE_MAX_BYTES: usize = 4608;

/// Note: which process this thread belongs to. Fields: [`ProcessNote`].
pub const NOTE_PROCESS: u64 = 256;
/// Note: name of the thread, at most 15 bytes, no terminator.
pub const NOTE_THREAD_NAME: u64 = 257;
/// Note: a module is mapped. Fields: [`ModuleNote`]. It holds from the moment the same addresses
/// were last given up (or from the start), because a load is noticed only afterwards.
pub const NOTE_MODULE: u64 = 258;
/// Note: a module was unmapped: base u64, size u64.
pub const NOTE_MODULE_GONE: u64 = 259;
/// Note: this writer lost events here. Fields: [`LossNote`].
pub const NOTE_LOSS: u64 = 260;
/// Note: recording ended or could not be done as asked: reason u32 ([`StopReason`]), then UTF-8.
pub const NOTE_STOP: u64 = 261;
/// Note without meaning: fills slots of a window that will not be used. One record, no length.
pub const NOTE_PADDING: u64 = 262;
/// Note: at the head of a segment, what the one before it was in the end. Bytes: its size in bytes
/// u64. The first segment of a stream has it too, with size 0: from a server that says
/// [`StopReason::Closed`] or [`StopReason::Cut`] when it is done with a stream.
pub const NOTE_SEGMENT: u64 = 263;
/// Bytes of a [`NOTE_SEGMENT`].
pub const SEGMENT_NOTE_BYTES: usize = 8;
/// Note: recording is paused here, or was before this place: calls that the writer made then are not in
/// the data, which is no loss. May come twice for one pause. No bytes.
pub const NOTE_PAUSE: u64 = 264;

/// Why events are missing. The numbers are the wire's and the ring's.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// No free page in the ring.
    Full = 0,
    /// No writer slot for the thread.
    NoSlot = 1,
    /// A hook ran while this thread's recording was being set up.
    Reentrant = 2,
    /// Left behind by a fork.
    Fork = 3,
    /// Being written when its writer was killed or jumped away; at most one a nested hook.
    Torn = 4,
    /// A disk budget or an event limit was reached.
    Budget = 5,
    /// The file system took no more (no space, no such directory, file size limit).
    Io = 6,
    /// The recording was stopped by command, or this thread was not yet one that is wanted.
    Stopped = 7,
    /// A sink did not keep up, and its queue was full.
    Queue = 8,
    /// Sent, or taken out of the ring, and never acknowledged.
    Unacked = 9,
    /// A sink that had failed.
    SinkDead = 10,
    /// Refused by the server: it was damaged on the way, or against its limits.
    Rejected = 11,
}

/// How many values [`Cause`] has.
pub const CAUSES: usize = 12;
/// How many of them a ring counts, the first ones.
pub const RING_CAUSES: usize = 8;

impl Cause {
    /// All causes, in the order of their numbers.
    pub const fn all() -> [Cause; CAUSES] {
        use Cause::*;
        [
            Full, NoSlot, Reentrant, Fork, Torn, Budget, Io, Stopped, Queue, Unacked, SinkDead,
            Rejected,
        ]
    }

    /// The word used for it in reports, JSON and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Full => "full",
            Cause::NoSlot => "no_slot",
            Cause::Reentrant => "reentrant",
            Cause::Fork => "fork",
            Cause::Torn => "torn",
            Cause::Budget => "budget",
            Cause::Io => "io",
            Cause::Stopped => "stopped",
            Cause::Queue => "queue",
            Cause::Unacked => "unacked",
            Cause::SinkDead => "sink_dead",
            Cause::Rejected => "rejected",
        }
    }

    /// Whether a loss of this cause is never told as one of another. What a writer tells in a note of its own
    /// is `full` whatever kept it from storing, and its ring names the cause; only a torn record is always
    /// told as one, and who found no slot has no notes.
    pub fn keeps_its_name(self) -> bool {
        matches!(self, Cause::Torn | Cause::NoSlot)
    }

    /// The cause with this number, if there is one.
    pub fn from_number(number: u32) -> Option<Cause> {
        Cause::all().get(number as usize).copied()
    }
}

/// Why recording stopped, or was not done as asked ([`NOTE_STOP`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The ring of `TRACE_SHM` could not be used; files were written instead. Text: why.
    RingUnusable = 1,
    /// The process ended its recording in order.
    End = 2,
    /// `/proc` could not be read: modules are unknown.
    NoModules = 3,
    /// A stream broke off before its end; written by the server that received it.
    Cut = 4,
    /// A stream was received to its end; written by the server.
    Closed = 5,
    /// The process had not ended when its events were taken; written into a snapshot.
    GoesOn = 6,
}

impl StopReason {
    /// The reason with this number, if there is one.
    pub fn from_number(number: u32) -> Option<StopReason> {
        use StopReason::*;
        [RingUnusable, End, NoModules, Cut, Closed, GoesOn]
            .into_iter()
            .find(|r| *r as u32 == number)
    }
}

/// Fields of [`NOTE_PROCESS`].
///
/// Bytes: pid u32, parent pid u32, start time u64 (field 22 of `/proc/PID/stat`, clock ticks since
/// boot), flags u32 ([`PROCESS_FORKED`]), then the path of the executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessNote<'a> {
    /// Process id, in the namespace of the process.
    pub pid: u32,
    /// Process id of its parent.
    pub parent_pid: u32,
    /// Start time in clock ticks since boot: with `pid`, unique while the machine runs.
    pub start: u64,
    /// Bit set of `PROCESS_*`.
    pub flags: u32,
    /// Path of the executable as the kernel shows it; may be empty.
    pub exe: &'a [u8],
}

/// [`ProcessNote::flags`]: the process came from a fork of a traced process and may leave
/// functions it never entered.
pub const PROCESS_FORKED: u32 = 1;
/// [`ProcessNote::flags`]: said again so that a segment file can be read alone. Without it the
/// note is the first record of a thread's life, and ends what went before under the same tid.
pub const PROCESS_AGAIN: u32 = 2;
/// Bytes of a [`ProcessNote`] before its path.
pub const PROCESS_NOTE_BYTES: usize = 20;

impl<'a> ProcessNote<'a> {
    /// Decodes a whole note.
    pub fn parse(note: &'a [u8]) -> Option<ProcessNote<'a>> {
        let le = crate::ByteOrder::Little;
        Some(ProcessNote {
            pid: le.u32(note, 0)?,
            parent_pid: le.u32(note, 4)?,
            start: le.u64(note, 8)?,
            flags: le.u32(note, 16)?,
            exe: note.get(PROCESS_NOTE_BYTES..)?,
        })
    }

    /// The bytes before the path.
    pub fn head(&self) -> [u8; PROCESS_NOTE_BYTES] {
        let mut head = [0; PROCESS_NOTE_BYTES];
        head[0..4].copy_from_slice(&self.pid.to_le_bytes());
        head[4..8].copy_from_slice(&self.parent_pid.to_le_bytes());
        head[8..16].copy_from_slice(&self.start.to_le_bytes());
        head[16..20].copy_from_slice(&self.flags.to_le_bytes());
        head
    }
}

/// Fields of [`NOTE_MODULE`].
///
/// Bytes: base u64, size u64, bias u64, build-id length u8, build-id, then the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleNote<'a> {
    /// Lowest mapped address.
    pub base: u64,
    /// Bytes from `base` to the end of the highest mapping.
    pub size: u64,
    /// What to subtract from a run-time address to get the address the ELF file speaks of.
    pub bias: u64,
    /// GNU build-id; empty where the module has none.
    pub build_id: &'a [u8],
    /// Path of the file as the kernel shows it.
    pub path: &'a [u8],
}

/// Bytes of a [`ModuleNote`] before its build-id.
pub const MODULE_NOTE_BYTES: usize = 25;

impl<'a> ModuleNote<'a> {
    /// Decodes a whole note.
    pub fn parse(note: &'a [u8]) -> Option<ModuleNote<'a>> {
        let le = crate::ByteOrder::Little;
        let id_bytes = *note.get(24)? as usize;
        Some(ModuleNote {
            base: le.u64(note, 0)?,
            size: le.u64(note, 8)?,
            bias: le.u64(note, 16)?,
            build_id: note.get(MODULE_NOTE_BYTES..MODULE_NOTE_BYTES + id_bytes)?,
            path: note.get(MODULE_NOTE_BYTES + id_bytes..)?,
        })
    }

    /// The bytes before the build-id.
    pub fn head(&self) -> [u8; MODULE_NOTE_BYTES] {
        let mut head = [0; MODULE_NOTE_BYTES];
        head[0..8].copy_from_slice(&self.base.to_le_bytes());
        head[8..16].copy_from_slice(&self.size.to_le_bytes());
        head[16..24].copy_from_slice(&self.bias.to_le_bytes());
        head[24] = self.build_id.len() as u8;
        head
    }
}

/// Fields of [`NOTE_LOSS`]: cause u32, events u64, first and last time u64 (same clock as `ts`).
///
/// A last time with [`Cause::Unacked`] is that of the writer's first record in a stream of events: some
/// were lost right before it, between that stream and the one before; how many is told elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossNote {
    /// A [`Cause`] by number.
    pub cause: u32,
    /// How many events the writer lost.
    pub events: u64,
    /// Time of the first lost event, 0 where unknown.
    pub first: u64,
    /// Time of the last lost event, 0 where unknown.
    pub last: u64,
}

/// Bytes of a [`LossNote`].
pub const LOSS_NOTE_BYTES: usize = 28;

impl LossNote {
    /// Decodes a whole note.
    pub fn parse(note: &[u8]) -> Option<LossNote> {
        let le = crate::ByteOrder::Little;
        Some(LossNote {
            cause: le.u32(note, 0)?,
            events: le.u64(note, 4)?,
            first: le.u64(note, 12)?,
            last: le.u64(note, 20)?,
        })
    }

    /// The note as bytes.
    pub fn to_bytes(&self) -> [u8; LOSS_NOTE_BYTES] {
        let mut bytes = [0; LOSS_NOTE_BYTES];
        bytes[0..4].copy_from_slice(&self.cause.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.events.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.first.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.last.to_le_bytes());
        bytes
    }
}

/// How many records a note of `bytes` bytes takes.
pub const fn note_records(bytes: usize) -> usize {
    (bytes + 2).div_ceil(NOTE_PIECE_BYTES)
}

/// `func` and `call_site` of piece `index` of note `code`.
///
/// `byte(i)` is byte `i` of the note's stream, whose first two bytes are the length; it is asked
/// for bytes beyond the end too and answers 0 there.
pub fn note_words(code: u64, index: usize, mut byte: impl FnMut(usize) -> u8) -> (u64, u64) {
    let start = index * NOTE_PIECE_BYTES;
    let (mut high, mut site) = (0u64, 0u64);
    let mut at = 0;
    while at < 4 {
        high |= u64::from(byte(start + at)) << (8 * at);
        at += 1;
    }
    while at < NOTE_PIECE_BYTES {
        site |= u64::from(byte(start + at)) << (8 * (at - 4));
        at += 1;
    }
    ((code & 0xffff) | ((index as u64 & 0xffff) << 16) | (high << 32), site)
}

/// One record of a note, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotePiece {
    /// One of `NOTE_*`, or a code of a later version.
    pub code: u64,
    /// Number of the piece within its note.
    pub index: usize,
    /// The bytes it carries.
    pub bytes: [u8; NOTE_PIECE_BYTES],
}

impl NotePiece {
    /// The piece in `event`; `None` where it is no marker or one of version 2 (codes below 256).
    pub fn of(event: &Event) -> Option<NotePiece> {
        let code = event.func & 0xffff;
        if event.kind != KIND_MARKER || code < NOTE_PROCESS {
            return None;
        }
        let mut bytes = [0; NOTE_PIECE_BYTES];
        bytes[..4].copy_from_slice(&((event.func >> 32) as u32).to_le_bytes());
        bytes[4..].copy_from_slice(&event.call_site.to_le_bytes());
        Some(NotePiece { code, index: (event.func >> 16) as usize & 0xffff, bytes })
    }
}

/// Puts the pieces of one writer's notes together again.
#[derive(Clone, Debug)]
pub struct NoteAssembler {
    bytes: [u8; NOTE_MAX_BYTES],
    code: u64,
    wanted: usize,
    filled: usize,
    next_index: usize,
}

impl Default for NoteAssembler {
    fn default() -> Self {
        NoteAssembler { bytes: [0; NOTE_MAX_BYTES], code: 0, wanted: 0, filled: 0, next_index: 0 }
    }
}

impl NoteAssembler {
    /// Takes the writer's next piece; gives `(code, bytes)` when it completes a note.
    ///
    /// A piece out of order drops the note it would have belonged to.
    pub fn push(&mut self, piece: &NotePiece) -> Option<(u64, &[u8])> {
        if piece.code == NOTE_PADDING {
            return None;
        }
        let mut from = 0;
        if piece.index == 0 {
            self.code = piece.code;
            self.wanted = u16::from_le_bytes([piece.bytes[0], piece.bytes[1]]) as usize;
            self.filled = 0;
            self.next_index = 0;
            from = 2;
        }
        let fits = piece.code == self.code
            && piece.index == self.next_index
            && self.wanted <= NOTE_MAX_BYTES;
        if !fits {
            self.code = 0;
            return None;
        }
        self.next_index += 1;
        let take = (NOTE_PIECE_BYTES - from).min(self.wanted - self.filled);
        self.bytes[self.filled..self.filled + take]
            .copy_from_slice(&piece.bytes[from..from + take]);
        self.filled += take;
        if self.filled < self.wanted {
            return None;
        }
        let code = core::mem::take(&mut self.code);
        Some((code, &self.bytes[..self.wanted]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through_records(code: u64, note: &[u8]) -> Option<(u64, usize)> {
        let mut assembler = NoteAssembler::default();
        let len = (note.len() as u16).to_le_bytes();
        let mut done = None;
        for index in 0..note_records(note.len()) {
            let (func, call_site) = note_words(code, index, |i| match i {
                0 | 1 => len[i],
                _ => note.get(i - 2).copied().unwrap_or(0),
            });
            let event = Event { ts: 1, func, call_site, kind: KIND_MARKER, ..Event::default() };
            let piece = NotePiece::of(&event).expect("a note record");
            if let Some((code, bytes)) = assembler.push(&piece) {
                assert_eq!(bytes, note);
                done = Some((code, bytes.len()));
            }
        }
        done
    }

    #[test]
    fn a_note_of_any_length_survives_its_records() {
        let text: [u8; NOTE_MAX_BYTES] = core::array::from_fn(|i| i as u8);
        for len in (0..64).chain([1000, NOTE_MAX_BYTES]) {
            assert_eq!(through_records(NOTE_MODULE, &text[..len]), Some((NOTE_MODULE, len)));
        }
    }

    #[test]
    fn a_missing_piece_drops_only_its_own_note() {
        let mut assembler = NoteAssembler::default();
        let piece = |index, bytes| NotePiece { code: NOTE_MODULE, index, bytes };
        let mut first = [0; NOTE_PIECE_BYTES];
        first[0] = 30;
        assert_eq!(assembler.push(&piece(0, first)), None);
        assert_eq!(assembler.push(&piece(2, [9; NOTE_PIECE_BYTES])), None);
        let mut short = [7; NOTE_PIECE_BYTES];
        (short[0], short[1]) = (10, 0);
        assert_eq!(assembler.push(&piece(0, short)), Some((NOTE_MODULE, &[7u8; 10][..])));
    }

    #[test]
    fn fields_survive_their_bytes() {
        let process = ProcessNote { pid: 1, parent_pid: 2, start: 3, flags: 1, exe: b"" };
        assert_eq!(ProcessNote::parse(&process.head()), Some(process));
        let loss = LossNote { cause: 4, events: 1 << 40, first: 5, last: 6 };
        assert_eq!(LossNote::parse(&loss.to_bytes()), Some(loss));
        let module = ModuleNote { base: 1, size: 2, bias: 3, build_id: b"", path: b"" };
        assert_eq!(ModuleNote::parse(&module.head()), Some(module));
        assert_eq!(ModuleNote::parse(&module.head()[..24]), None);
    }
}
