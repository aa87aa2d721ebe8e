//! The segments of a group → its records, one by one, each to the visitor method of its kind.
//!
//! Reads with one buffer, whatever the size of the files. A slot that holds no event yet is
//! skipped, and counted where it shows a loss. Knows nothing of functions, lives or clocks.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use callsight_format::{
    ByteOrder, EVENT_BYTES, Event, KIND_COUNTERS, KIND_ENTER, KIND_EXIT, KIND_MARKER, MARK_BUDGET,
    MARK_CLOCK, MARK_COUNTER_FIRST, MARK_COUNTER_LAST, NOTE_PADDING, NOTE_SEGMENT, NoteAssembler,
    NotePiece, SEGMENT_NOTE_BYTES,
};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::capture::{Group, Segment};

/// Bytes a mapped segment is divided into: one thread's events at a time.
const WINDOW_BYTES: u64 = 16 << 10;

/// Bytes read at once: a whole number of windows, so that a window is seldom cut.
const CHUNK_BYTES: usize = 64 * WINDOW_BYTES as usize;

/// What happens with the records of a group, in order.
pub trait Visitor {
    /// An enter or an exit.
    fn call(&mut self, event: &Event);
    /// A marker of version 2, by its code.
    fn mark(&mut self, event: &Event);
    /// A whole note of the thread `tid`.
    fn note(&mut self, tid: u32, ts: u64, code: u64, bytes: &[u8]);
    /// Events of the thread `tid` that were never finished.
    fn torn(&mut self, tid: u32, events: u64);
    /// Segments are missing here.
    fn hole(&mut self, segments: u32);
    /// The segment before this place lacks up to this many records that it had in the end.
    fn cut(&mut self, records: u64);
    /// The records of another file come next.
    fn segment(&mut self, segment: &Segment);
}

/// What was in the files beside the records that a visitor sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Records of a kind this code does not know.
    pub unknown_kinds: u64,
    /// Markers and notes this code does not know.
    pub unknown_markers: u64,
    /// Records about hardware counters.
    pub counter_records: u64,
    /// Notes of which a piece is missing.
    pub broken_notes: u64,
    /// Files that end within a record.
    pub cut_files: u64,
    /// Whether the last file ends in slots that were never written.
    pub unwritten_end: bool,
}

/// Shows `visitor` all records of `group`.
///
/// # Errors
/// A file that cannot be read.
pub fn walk<V: Visitor>(group: &Group, visitor: &mut V) -> Result<Oddities, Error> {
    let mut walker = Walker {
        mapped: group.mapped,
        notes: NoteBook::default(),
        zeros: ZeroSlots::default(),
        oddities: Oddities::default(),
        before: None,
        current: None,
        visitor,
    };
    for segment in &group.segments {
        if segment.missing_before > 0 {
            walker.visitor.hole(segment.missing_before);
        }
        walker.visitor.segment(segment);
        walker.segment(segment).map_err(|why| Error::Read { path: segment.path.clone(), why })?;
    }
    walker.oddities.broken_notes = walker.notes.started - walker.notes.completed;
    Ok(walker.oddities)
}

struct Walker<'v, V> {
    mapped: bool,
    notes: NoteBook,
    zeros: ZeroSlots,
    oddities: Oddities,
    /// Number and size of the segment before the one that is read, and of that one.
    before: Option<(u32, u64)>,
    current: Option<(u32, u64)>,
    visitor: &'v mut V,
}

impl<V: Visitor> Walker<'_, V> {
    fn segment(&mut self, segment: &Segment) -> io::Result<()> {
        self.before = self.current.take().filter(|_| !segment.resumed);
        self.current = Some((segment.seq, segment.bytes));
        let mut file = File::open(&segment.path)?;
        let mut offset = u64::from(segment.header.header_size);
        file.seek(SeekFrom::Start(offset))?;
        let mut buffer = vec![0; CHUNK_BYTES];
        // The first read ends at the end of a window, and so do all others then.
        let mut want = CHUNK_BYTES - (offset % WINDOW_BYTES) as usize;
        let mut kept = 0;
        loop {
            let read = read_full(&mut file, &mut buffer[kept..want])?;
            let whole = (kept + read) / EVENT_BYTES * EVENT_BYTES;
            self.records(&buffer[..whole], offset, segment);
            let end = kept + read;
            if end < want {
                self.oddities.cut_files += u64::from(whole != end);
                self.oddities.unwritten_end = self.zeros.count > 0;
                self.zeros = ZeroSlots::default();
                return Ok(());
            }
            buffer.copy_within(whole..end, 0);
            kept = end - whole;
            offset += whole as u64;
            want = CHUNK_BYTES;
        }
    }

    fn records(&mut self, bytes: &[u8], offset: u64, segment: &Segment) {
        for (index, record) in bytes.chunks_exact(EVENT_BYTES).enumerate() {
            let Some(event) = Event::parse(record, segment.order) else { continue };
            let at = offset + (index * EVENT_BYTES) as u64;
            if event.ts == 0 && is_unfinished(&event) {
                self.unfinished(&event, at);
                continue;
            }
            if self.zeros.count > 0 {
                self.settle_zeros(at, event.tid);
            }
            match event.kind {
                KIND_ENTER | KIND_EXIT => self.visitor.call(&event),
                KIND_MARKER => self.marker(&event),
                KIND_COUNTERS => self.oddities.counter_records += 1,
                _ => self.oddities.unknown_kinds += 1,
            }
        }
    }

    fn unfinished(&mut self, event: &Event, at: u64) {
        let window = self.window(at);
        if self.zeros.window != window {
            self.zeros = ZeroSlots { window, count: 0 };
        }
        match *event == Event::default() {
            true => self.zeros.count += 1,
            false => self.visitor.torn(event.tid, 1),
        }
    }

    /// An event of `tid` stands at `at`, behind slots that were left zero: torn if in one window.
    fn settle_zeros(&mut self, at: u64, tid: u32) {
        if self.window(at) == self.zeros.window {
            self.visitor.torn(tid, self.zeros.count);
        }
        self.zeros.count = 0;
    }

    /// Files that are not mapped windows have no unwritten slots: one window each.
    fn window(&self, offset: u64) -> u64 {
        if self.mapped { offset / WINDOW_BYTES } else { 0 }
    }

    fn compare_segment_before(&mut self, piece: &NotePiece) {
        let (Some((number, found)), Some((seq, _))) = (self.before, self.current) else { return };
        let told = told_bytes(piece).unwrap_or(0);
        if number.checked_add(1) == Some(seq) && found < told {
            self.visitor.cut((told - found).div_ceil(EVENT_BYTES as u64));
        }
    }

    fn marker(&mut self, event: &Event) {
        if let Some(piece) = NotePiece::of(event) {
            match piece.code {
                NOTE_PADDING => {}
                NOTE_SEGMENT => {
                    self.compare_segment_before(&piece);
                    self.notes.push(event, &piece, self.visitor);
                }
                code if code > NOTE_SEGMENT => self.oddities.unknown_markers += 1,
                _ => self.notes.push(event, &piece, self.visitor),
            }
            return;
        }
        match event.func {
            MARK_BUDGET..=MARK_CLOCK => self.visitor.mark(event),
            MARK_COUNTER_FIRST..=MARK_COUNTER_LAST => self.oddities.counter_records += 1,
            _ => self.oddities.unknown_markers += 1,
        }
    }
}

/// What a segment says of the one before it, in one record: its size.
fn told_bytes(piece: &NotePiece) -> Option<u64> {
    let note = piece.bytes.get(2..2 + SEGMENT_NOTE_BYTES)?;
    (piece.index == 0).then(|| ByteOrder::Little.u64(note, 0)).flatten()
}

/// Slots of one window that are zero so far.
#[derive(Default)]
struct ZeroSlots {
    window: u64,
    count: u64,
}

/// Whether a record whose first word is 0 is a slot in which no event was finished: counter
/// records and the set-up of counters carry other things in that word.
fn is_unfinished(event: &Event) -> bool {
    let counters = event.kind == KIND_COUNTERS
        || event.kind == KIND_MARKER
            && (MARK_COUNTER_FIRST..=MARK_COUNTER_LAST).contains(&event.func);
    !counters
}

fn read_full(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Most threads whose notes are put together at once. Pieces of a note come close together, and
/// damaged files could name four billion threads.
const MAX_OPEN_NOTES: usize = 4096;

/// Notes of which some pieces have come. An assembler is 4.6 KiB, so only threads in the middle
/// of a note have one.
#[derive(Default)]
struct NoteBook {
    open: FxHashMap<u32, Box<NoteAssembler>>,
    spare: Option<Box<NoteAssembler>>,
    started: u64,
    completed: u64,
}

impl NoteBook {
    fn push<V: Visitor>(&mut self, event: &Event, piece: &NotePiece, visitor: &mut V) {
        let open = self.open.remove(&event.tid);
        let mut assembler = match piece.index {
            0 => {
                self.started += 1;
                open.or_else(|| self.spare.take()).unwrap_or_default()
            }
            _ => match open {
                Some(assembler) => assembler,
                None => return,
            },
        };
        match assembler.push(piece) {
            Some((code, bytes)) => {
                self.completed += 1;
                visitor.note(event.tid, event.ts, code, bytes);
                self.spare = Some(assembler);
            }
            None => {
                if self.open.len() >= MAX_OPEN_NOTES {
                    self.open.clear();
                }
                self.open.insert(event.tid, assembler);
            }
        }
    }
}
