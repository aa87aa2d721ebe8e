//! One file of a capture: a header, then whole events, whatever the disk does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use callsight_format::{EVENT_BYTES, FILE_HEADER_BYTES};

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

    /// Writes the header.
    pub fn begin(&mut self, header: &[u8; FILE_HEADER_BYTES]) -> io::Result<()> {
        self.file.write_all_at(header, 0)?;
        self.bytes = header.len() as u64;
        Ok(())
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether anything stands behind the header.
    pub fn has_events(&self) -> bool {
        self.bytes > FILE_HEADER_BYTES as u64
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
