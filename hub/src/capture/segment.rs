//! One file of a capture: a head, then whole events or chunks, whatever the disk does.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use callsight_format::{
    ByteOrder, EVENT_BYTES, FILE_HEADER_BYTES, FileHeader, NOTE_SEGMENT, SEGMENT_NOTE_BYTES,
    note_records,
};

use super::tail::{note_events, to_bytes};

/// Bytes of the head of a segment of events: the header, and the note of what the segment before was.
pub(super) const HEAD_BYTES: u64 =
    (FILE_HEADER_BYTES + note_records(SEGMENT_NOTE_BYTES) * EVENT_BYTES) as u64;

/// The head of a segment of events. The segment before it has `bytes_before`, 0 where there is
/// none.
pub(super) fn event_head(header: &FileHeader, order: ByteOrder, bytes_before: u64) -> Vec<u8> {
    let note = bytes_before.to_le_bytes();
    let note: Vec<_> = note_events(NOTE_SEGMENT, &note, header.t0_ticks.max(1), 0).collect();
    [&header.to_bytes(order)[..], &to_bytes(&note, order)].concat()
}

/// What is known of a segment beside its file.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    /// Device and inode.
    identity: (u64, u64),
    /// Whether it has a name: some file systems count none.
    is_linked: bool,
    /// What is before was stored by an earlier server.
    pub from: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What somebody else has left of a segment, where that is not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// So many bytes.
    Bytes(u64),
    /// Nobody finds its file any more.
    Nothing,
}

impl Left {
    /// How many that is.
    pub fn bytes(self) -> u64 {
        match self {
            Left::Bytes(bytes) => bytes,
            Left::Nothing => 0,
        }
    }
}

impl Facts {
    fn of(file: &File, bytes: u64) -> Facts {
        let meta = file.metadata().ok();
        let identity = meta.as_ref().map_or((0, 0), |meta| (meta.dev(), meta.ino()));
        let is_linked = meta.is_some_and(|meta| meta.nlink() > 0);
        Facts { identity, is_linked, from: bytes, bytes }
    }

    /// What is left of it in `file`, which was found under its name or is still open. Nobody writes to a
    /// segment but its sink, so that it is never shorter by itself.
    pub fn left(&self, file: &File) -> Option<Left> {
        let meta = file.metadata().ok()?;
        let is_removed = self.is_linked && meta.nlink() == 0;
        if is_removed || (meta.dev(), meta.ino()) != self.identity {
            return Some(Left::Nothing);
        }
        (meta.len() < self.bytes).then_some(Left::Bytes(meta.len()))
    }
}

/// An open segment file and how much of it is ours.
pub(super) struct Segment {
    pub file: File,
    pub facts: Facts,
}

impl Segment {
    /// A segment in an empty file.
    pub fn new(file: File) -> Segment {
        Segment { facts: Facts::of(&file, 0), file }
    }

    /// The file of a segment that has `bytes` already; whatever is behind them goes.
    pub fn reopen(file: File, bytes: u64) -> io::Result<Segment> {
        file.set_len(bytes)?;
        Ok(Segment { facts: Facts::of(&file, bytes), file })
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.facts.bytes
    }

    /// Appends whole events: how many bytes of them now stand in the file, and what prevented
    /// the rest.
    pub fn append(&mut self, events: &[u8]) -> (usize, Option<io::Error>) {
        let mut done = 0;
        let mut failure = None;
        while done < events.len() && failure.is_none() {
            match self.file.write_at(&events[done..], self.facts.bytes + done as u64) {
                Ok(0) => failure = Some(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => failure = Some(error),
            }
        }
        let whole = done - done % EVENT_BYTES;
        self.facts.bytes += whole as u64;
        if whole < done {
            failure = failure.or(self.file.set_len(self.facts.bytes).err());
        }
        (whole, failure)
    }

    /// Appends all of `bytes` or nothing.
    pub fn append_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.end_with(self.facts.bytes, bytes)
    }

    /// Puts `bytes` at byte `at`, and ends the file behind them. Where that fails the file keeps
    /// its size; what stands behind `at` may be anything.
    pub fn end_with(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        if let Err(error) = self.file.write_all_at(bytes, at) {
            self.file.set_len(self.facts.bytes)?;
            return Err(error);
        }
        if end < self.facts.bytes {
            self.file.set_len(end)?;
        }
        self.facts.bytes = end;
        Ok(())
    }

    /// Ends the file at byte `at`.
    pub fn cut(&mut self, at: u64) -> io::Result<()> {
        self.file.set_len(at)?;
        self.facts.bytes = at;
        Ok(())
    }

    /// Reads back the events from byte `at` to the end. What cannot be read is left out.
    pub fn events_from(&self, at: u64) -> Vec<u8> {
        let mut events = vec![0; self.facts.bytes.saturating_sub(at) as usize];
        match self.file.read_exact_at(&mut events, at) {
            Ok(()) => events,
            Err(_) => Vec::new(),
        }
    }

    /// Writes `events` at byte `at`, over what stands there and beyond, and nothing or all of
    /// what goes beyond.
    pub fn replace(&mut self, at: u64, events: &[u8]) -> io::Result<()> {
        match self.file.write_all_at(events, at) {
            Ok(()) => self.facts.bytes = self.facts.bytes.max(at + events.len() as u64),
            Err(error) => {
                self.file.set_len(self.facts.bytes)?;
                return Err(error);
            }
        }
        Ok(())
    }
}
