//! The segments of a group → its records, one by one, each to the visitor method of its kind.
//!
//! Reads with one buffer, whatever the size of the files. A slot that holds no event yet is
//! skipped, and counted where it shows a loss. Knows nothing of functions, lives or clocks.

use std::io::{self, Read};

use callsight_format::{
    ByteOrder, Cause, EVENT_BYTES, Event, KIND_COUNTERS, KIND_ENTER, KIND_EXIT, KIND_MARKER,
    MARK_BUDGET, MARK_CLOCK, MARK_COUNTER_FIRST, MARK_COUNTER_LAST, NOTE_PADDING, NOTE_PAUSE,
    NOTE_SEGMENT, NotePiece, SEGMENT_NOTE_BYTES,
};

use crate::Error;
use crate::capture::{Group, Segment};
use crate::ledger::Ledger;
use crate::notebook::NoteBook;
use crate::numbers::WriterId;
use crate::oddities::Oddities;
use crate::packed::Packed;
use crate::unfinished::Unfinished;

/// Bytes a mapped segment is divided into: one thread's events at a time.
const WINDOW_BYTES: u64 = 16 << 10;

/// Bytes read at once: a whole number of windows, so that a window is seldom cut.
const CHUNK_BYTES: usize = 64 * WINDOW_BYTES as usize;

/// What happens with the records of a group, in order.
pub trait Visitor {
    /// Whether it looks at calls at all. Those that are packed are not unpacked for one that does
    /// not.
    const WANTS_CALLS: bool;
    /// An enter or an exit.
    fn call(&mut self, event: &Event);
    /// A marker of version 2, by its code.
    fn mark(&mut self, event: &Event);
    /// A whole note of the thread `tid`.
    fn note(&mut self, tid: u32, ts: u64, code: u64, bytes: &[u8]);
    /// Events of the thread `tid` are lost here, which no note tells.
    fn lost(&mut self, tid: u32, cause: Cause, events: u64);
    /// The next records of the thread are of a life whose beginning is lost.
    fn beheaded(&mut self, writer: &WriterId);
    /// The next blocks are of a sender that says this of itself: fields of a hello.
    fn hello(&mut self, fields: &[u8]);
    /// Segments are missing here; 0 where something else is, and nobody knows of whom.
    fn hole(&mut self, segments: u32);
    /// Records of a stream come next that have no numbers, so that nothing shows whether others are
    /// missing right before them.
    fn unnumbered(&mut self);
    /// The segment before this place lacks up to this many records that it had in the end.
    fn cut(&mut self, records: u64);
    /// The records of another file come next.
    fn segment(&mut self, segment: &Segment);
}

/// What was in the files of a group.
#[derive(Clone, Debug, Default)]
pub struct Walked {
    /// Beside the records that a visitor sees.
    pub oddities: Oddities,
    /// Records of threads in files of events.
    pub records: u64,
    /// Of these, the ones that fill what a writer left of its window.
    pub padding: u64,
    /// What chunks say, where there are any.
    pub ledger: Option<Ledger>,
    /// Slots that may be finished when the files are read again.
    pub unfinished: Unfinished,
}

/// Shows `visitor` all records of `group`.
///
/// # Errors
/// A file that cannot be read.
pub fn walk<V: Visitor>(group: &Group, visitor: &mut V) -> Result<Walked, Error> {
    walk_files(group, None, visitor)
}

/// Shows `visitor` what [`walk`] has shown, which found those slots unfinished, whatever was stored since.
///
/// # Errors
/// A file that cannot be read.
pub fn walk_again<V: Visitor>(
    group: &Group,
    unfinished: &Unfinished,
    visitor: &mut V,
) -> Result<Walked, Error> {
    walk_files(group, Some(unfinished), visitor)
}

fn walk_files<V: Visitor>(
    group: &Group,
    shown_before: Option<&Unfinished>,
    visitor: &mut V,
) -> Result<Walked, Error> {
    let mut walker = Walker {
        mapped: group.mapped,
        notes: NoteBook::default(),
        zeros: ZeroSlots::default(),
        walked: Walked::default(),
        packed: group.segments.iter().any(Segment::is_packed).then(Box::default),
        before: None,
        current: None,
        file: 0,
        shown_before,
        visitor,
    };
    for stream in group.segments.chunk_by(|a, b| a.stream == b.stream) {
        let captures: Vec<_> = stream.chunk_by(|a, b| a.capture == b.capture).collect();
        match captures[..] {
            [capture] => walker.capture(capture)?,
            _ => walker.copies(&captures)?,
        }
    }
    let mut walked = walker.walked;
    walked.oddities.broken_notes = walker.notes.broken();
    walked.ledger = walker.packed.map(|packed| packed.finish());
    Ok(walked)
}

/// On its way through the files of a group.
pub struct Walker<'v, V> {
    mapped: bool,
    notes: NoteBook,
    zeros: ZeroSlots,
    /// What was found so far.
    pub walked: Walked,
    /// What is known of chunks, in a group that has any.
    pub packed: Option<Box<Packed>>,
    /// Size of the segment that stood right before the one that is read, and of that one with its number.
    before: Option<u64>,
    current: Option<(u32, u64)>,
    /// How many files of events were begun, and what was unfinished in each when they were read before.
    file: usize,
    shown_before: Option<&'v Unfinished>,
    /// Whom to show the records.
    pub visitor: &'v mut V,
}

impl<V: Visitor> Walker<'_, V> {
    fn capture(&mut self, segments: &[Segment]) -> Result<(), Error> {
        for segment in segments {
            if segment.is_packed() {
                self.walked.oddities.missing_segments += u64::from(segment.missing_before);
            } else if segment.missing_before > 0 {
                self.visitor.hole(segment.missing_before);
            }
            self.visitor.segment(segment);
            let read = match segment.is_packed() {
                true => self.chunks(segment),
                false => {
                    if let Some(packed) = &mut self.packed {
                        packed.file_of_events(segment);
                    }
                    self.segment(segment)
                }
            };
            read.map_err(|why| Error::Read { path: segment.path.clone(), why })?;
        }
        Ok(())
    }

    fn segment(&mut self, segment: &Segment) -> io::Result<()> {
        // Others of the same process may have the numbers in between.
        let follows = |number: u32| number < segment.seq && segment.missing_before == 0;
        let before = self.current.take().filter(|_| !segment.resumed);
        self.before = before.and_then(|(number, bytes)| follows(number).then_some(bytes));
        self.current = Some((segment.seq, segment.bytes));
        self.file += 1;
        let mut offset = u64::from(segment.header.header_size);
        let mut file = segment.read_from(offset)?;
        let mut buffer = vec![0; CHUNK_BYTES];
        // The first read ends at the end of a window, and so do all others then.
        let mut want = CHUNK_BYTES - (offset % WINDOW_BYTES) as usize;
        let mut kept = 0;
        loop {
            let read = read_full(&mut file, &mut buffer[kept..want])?;
            let whole = (kept + read) / EVENT_BYTES * EVENT_BYTES;
            if let Some(unfinished) = self.shown_before {
                unfinished.blank(self.file, offset, &mut buffer[..whole]);
            }
            self.records(&buffer[..whole], offset, segment);
            let end = kept + read;
            if end < want {
                self.walked.oddities.cut_files += u64::from(whole != end);
                self.walked.oddities.unwritten_end = self.zeros.count > 0;
                self.zeros = ZeroSlots::default();
                return Ok(());
            }
            buffer.copy_within(whole..end, 0);
            kept = end - whole;
            offset += whole as u64;
            want = CHUNK_BYTES;
        }
    }

    /// Shows the records in `bytes`, which stand at `offset` in the file.
    pub fn records(&mut self, bytes: &[u8], offset: u64, segment: &Segment) {
        for (index, record) in bytes.chunks_exact(EVENT_BYTES).enumerate() {
            let Some(event) = Event::parse(record, segment.order) else { continue };
            let at = offset + (index * EVENT_BYTES) as u64;
            if event.ts == 0 && is_unfinished(&event) {
                if self.shown_before.is_none() && !segment.is_packed() {
                    self.walked.unfinished.add(self.file, at);
                }
                self.unfinished(&event, at);
                continue;
            }
            if self.zeros.count > 0 {
                self.settle_zeros(at, event.tid);
            }
            self.walked.records += u64::from(event.tid != 0);
            if let Some(packed) = &mut self.packed {
                packed.hear_unnumbered(&event);
            }
            self.record(&event);
        }
    }

    /// Shows a record.
    #[inline]
    pub fn record(&mut self, event: &Event) {
        match event.kind {
            KIND_ENTER | KIND_EXIT => self.visitor.call(event),
            KIND_MARKER => self.marker(event),
            KIND_COUNTERS => self.walked.oddities.counter_records += 1,
            _ => self.walked.oddities.unknown_kinds += 1,
        }
    }

    fn unfinished(&mut self, event: &Event, at: u64) {
        let window = self.window(at);
        if self.zeros.window != window {
            self.zeros = ZeroSlots { window, count: 0 };
        }
        match *event == Event::default() {
            true => self.zeros.count += 1,
            false => self.visitor.lost(event.tid, Cause::Torn, 1),
        }
    }

    /// An event of `tid` stands at `at`, behind slots that were left zero: torn if in one window.
    fn settle_zeros(&mut self, at: u64, tid: u32) {
        if self.window(at) == self.zeros.window {
            self.visitor.lost(tid, Cause::Torn, self.zeros.count);
        }
        self.zeros.count = 0;
    }

    /// Files that are not mapped windows have no unwritten slots: one window each.
    fn window(&self, offset: u64) -> u64 {
        if self.mapped { offset / WINDOW_BYTES } else { 0 }
    }

    fn compare_segment_before(&mut self, piece: &NotePiece) {
        let Some(found) = self.before else { return };
        let told = told_bytes(piece).unwrap_or(0);
        if found < told {
            self.visitor.cut((told - found).div_ceil(EVENT_BYTES as u64));
        }
    }

    fn note(&mut self, event: &Event, piece: &NotePiece) {
        let visitor = &mut *self.visitor;
        self.notes.push(event, piece, |code, bytes| {
            visitor.note(event.tid, event.ts, code, bytes);
        });
    }

    fn marker(&mut self, event: &Event) {
        if let Some(piece) = NotePiece::of(event) {
            match piece.code {
                // A server's own fill places that are not counted as records.
                NOTE_PADDING => self.walked.padding += u64::from(event.tid != 0),
                NOTE_SEGMENT => {
                    self.compare_segment_before(&piece);
                    self.note(event, &piece);
                }
                code if code > NOTE_PAUSE => self.walked.oddities.unknown_markers += 1,
                _ => self.note(event, &piece),
            }
            return;
        }
        match event.func {
            MARK_BUDGET..=MARK_CLOCK => self.visitor.mark(event),
            MARK_COUNTER_FIRST..=MARK_COUNTER_LAST => self.walked.oddities.counter_records += 1,
            _ => self.walked.oddities.unknown_markers += 1,
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

fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
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
