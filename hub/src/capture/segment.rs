//! One file of a capture: a head, then whole events or chunks, whatever the disk does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

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

/// An open segment file and how much of it is ours.
pub(super) struct Segment {
    file: File,
    bytes: u64,
}

impl Segment {
    /// A segment in an empty file.
    pub fn new(file: File) -> Segment {
        Segment { file, bytes: 0 }
    }

    /// The file of a segment that has `bytes` already; whatever is behind them goes.
    pub fn reopen(file: File, bytes: u64) -> io::Result<Segment> {
        file.set_len(bytes)?;
        Ok(Segment { file, bytes })
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends whole events: how many bytes of them now stand in the file, and what prevented
    /// the rest.
    pub fn append(&mut self, events: &[u8]) -> (usize, Option<io::Error>) {
        let mut done = 0;
        let mut failure = None;
        while done < events.len() && failure.is_none() {
            match self.file.write_at(&events[done..], self.bytes + done as u64) {
                Ok(0) => failure = Some(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => failure = Some(error),
            }
        }
        let whole = done - done % EVENT_BYTES;
        self.bytes += whole as u64;
        if whole < done {
            failure = failure.or(self.file.set_len(self.bytes).err());
        }
        (whole, failure)
    }

    /// Appends all of `bytes` or nothing.
    pub fn append_whole(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.end_with(self.bytes, bytes)
    }

    /// Puts `bytes` at byte `at`, and ends the file behind them. Where that fails the file keeps
    /// its size; what stands behind `at` may be anything.
    pub fn end_with(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        if let Err(error) = self.file.write_all_at(bytes, at) {
            self.file.set_len(self.bytes)?;
            return Err(error);
        }
        if end < self.bytes {
            self.file.set_len(end)?;
        }
        self.bytes = end;
        Ok(())
    }

    /// Ends the file at byte `at`.
    pub fn cut(&mut self, at: u64) -> io::Result<()> {
        self.file.set_len(at)?;
        self.bytes = at;
        Ok(())
    }

    /// Reads back the events from byte `at` to the end. What cannot be read is left out.
    pub fn events_from(&self, at: u64) -> Vec<u8> {
        let mut events = vec![0; self.bytes.saturating_sub(at) as usize];
        match self.file.read_exact_at(&mut events, at) {
            Ok(()) => events,
            Err(_) => Vec::new(),
        }
    }

    /// Writes `events` at byte `at`, over what stands there and beyond, and nothing or all of
    /// what goes beyond.
    pub fn replace(&mut self, at: u64, events: &[u8]) -> io::Result<()> {
        match self.file.write_all_at(events, at) {
            Ok(()) => self.bytes = self.bytes.max(at + events.len() as u64),
            Err(error) => {
                self.file.set_len(self.bytes)?;
                return Err(error);
            }
        }
        Ok(())
    }
}
