//! What was odd in files → sentences, one a kind.

use crate::report::counted;

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
    /// Files that end within a record, or a chunk.
    pub cut_files: u64,
    /// Whether the last file ends in slots that were never written.
    pub unwritten_end: bool,
    /// Bytes of damaged chunks, and how many stretches of them there are.
    pub damaged_bytes: u64,
    /// See `damaged_bytes`.
    pub damaged_places: u64,
    /// Chunks of a type this code does not know.
    pub unknown_chunks: u64,
    /// Blocks that are whole, and contradict themselves.
    pub bad_blocks: u64,
    /// Segments of chunks that are not there; the numbers in the others tell what is lost.
    pub missing_segments: u64,
}

impl Oddities {
    /// Adds what was odd in other files.
    pub fn add(&mut self, more: &Oddities) {
        self.unknown_kinds += more.unknown_kinds;
        self.unknown_markers += more.unknown_markers;
        self.counter_records += more.counter_records;
        self.broken_notes += more.broken_notes;
        self.cut_files += more.cut_files;
        self.damaged_bytes += more.damaged_bytes;
        self.damaged_places += more.damaged_places;
        self.unknown_chunks += more.unknown_chunks;
        self.bad_blocks += more.bad_blocks;
    }

    /// What is damaged, so that events are lost.
    pub fn damage(&self) -> Vec<String> {
        let places = counted(self.damaged_places, "place", "places");
        said(&[
            (
                self.damaged_bytes,
                &format!("byte at {places} is damaged; it was skipped"),
                &format!("bytes at {places} are damaged; they were skipped"),
            ),
            (
                self.bad_blocks,
                "block contradicts itself; what is behind the place where it does is missing",
                "blocks contradict themselves; what is behind the places where they do is missing",
            ),
        ])
    }

    /// What was skipped beside that.
    pub fn skipped(&self) -> Vec<String> {
        said(&[
            (
                self.cut_files,
                "file ends within an event or a chunk; the part is left out",
                "files end within an event or a chunk; the part is left out",
            ),
            (
                self.unknown_kinds,
                "record of an unknown kind was skipped",
                "records of an unknown kind were skipped",
            ),
            (
                self.unknown_chunks,
                "chunk of an unknown type was skipped",
                "chunks of an unknown type were skipped",
            ),
            (
                self.unknown_markers,
                "marker of an unknown meaning was skipped",
                "markers of an unknown meaning were skipped",
            ),
            (
                self.broken_notes,
                "note is incomplete and was skipped",
                "notes are incomplete and were skipped",
            ),
            (
                self.counter_records,
                "record of hardware counters was skipped",
                "records of hardware counters were skipped",
            ),
        ])
    }
}

/// A sentence for each count that is not 0, in the singular or the plural.
fn said(counts: &[(u64, &str, &str)]) -> Vec<String> {
    let found = counts.iter().filter(|(count, ..)| *count > 0);
    found.map(|(count, one, many)| counted(*count, one, many)).collect()
}
