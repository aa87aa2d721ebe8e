//! What a ring holds of one process now → a capture, without stopping anything.
//!
//! The capture is of version 2, one file: the records of each thread in its own order. What a drain
//! has taken before is not in it, and counted; so is what was on its way while it was copied.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use callsight_format::{
    ByteOrder, Cause, Event, FLAG_WRAPPED, FileHeader, KIND_ENTER, KIND_EXIT, KIND_MARKER,
    LossNote, NOTE_LOSS, NOTE_MODULE, NOTE_PROCESS, NOTE_STOP, NotePiece, PROCESS_AGAIN,
    ProcessNote, RING_VERSION, StopReason, note_records, note_words,
};

use super::modules::{Module, modules_of};
use super::pages::{Page, Pages, WriterKey, pages_of, untold};
use super::process::ProcessId;
use super::ring::{RingError, RingFile};
use super::rings::{Found, rings_here};
use crate::stream::in_one_line;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Nobody knows the process.
    #[error(
        "take a snapshot of process {pid}: no ring of yours names it; it must have been started \
         with TRACE_ENABLE=1 and TRACE_SHM=/NAME (`callsight rings` lists the rings)"
    )]
    NoRing {
        /// Its pid.
        pid: u32,
    },
    /// It has left nothing.
    #[error(
        "take a snapshot of process {pid}: its ring {} holds no record of it now; a drain has \
         taken all, or it has called no function with a hook",
        in_one_line(ring)
    )]
    Empty {
        /// Its pid.
        pid: u32,
        /// Name of its ring.
        ring: String,
    },
    /// The ring cannot be read.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The file cannot be written.
    #[error("write the snapshot {}: {error}; --out names another folder", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The folder of shared memory cannot be read.
    #[error("look for rings in /dev/shm: {0}")]
    Look(io::Error),
}

/// What a snapshot has, and what not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the ring.
    pub ring: String,
    /// The capture.
    pub file: PathBuf,
    /// Threads in it.
    pub threads: usize,
    /// Enters and exits in it.
    pub events: u64,
    /// Threads of which a drain has taken the beginning.
    pub beheaded: usize,
    /// Records that were left out: not whole yet, or taken away while they were copied.
    pub left_out: u64,
    /// Events that the process dropped and its records do not tell of yet.
    pub untold: u64,
}

/// Writes what the ring of process `pid` holds of it into a new file in `directory`.
///
/// # Errors
/// Why it could not be done.
pub fn snapshot(pid: u32, directory: &Path) -> Result<Snapshot, SnapshotError> {
    let (ring, process) = ring_of(pid)?;
    // Of a process that is gone the ring may still have its own notes.
    let modules = if process.is_alive() { modules_of(pid).unwrap_or_default() } else { Vec::new() };
    let modules = modules.iter().map(Module::note).collect();
    let mut image = Image { process, modules, ..Image::default() };
    let writers = pages_of(&ring, process)?;
    image.start_ts = writers.values().filter_map(first_ts).min().unwrap_or(1);
    for (writer, pages) in &writers {
        let untold = untold(&ring, *writer)?;
        image.add_writer(*writer, pages, untold);
    }
    if let Some(last) = image.threads.last().copied().filter(|_| process.is_alive()) {
        image.note(NOTE_STOP, &(StopReason::GoesOn as u32).to_le_bytes(), last);
    }
    if image.counts.events == 0 {
        return Err(SnapshotError::Empty { pid, ring: ring.name() });
    }
    let file = directory.join(format!("trace.{pid}.{pid}.0.bin"));
    image
        .write(&ring, &file)
        .map_err(|error| SnapshotError::Write { path: file.clone(), error })?;
    Ok(Snapshot { ring: ring.name(), file, threads: image.threads.len(), ..image.counts })
}

/// The ring that names a process of this pid: the one that runs, if there is a choice.
fn ring_of(pid: u32) -> Result<(RingFile, ProcessId), SnapshotError> {
    let mut found = None;
    for ring in rings_here().map_err(SnapshotError::Look)? {
        let Found::Ring(ring) = ring else { continue };
        if ring.version() != RING_VERSION || ring.is_foreign() {
            continue;
        }
        for member in ring.processes()? {
            if member.id.pid == pid && (member.is_alive == Some(true) || found.is_none()) {
                found = Some((RingFile::open_path(ring.path())?, member.id));
            }
        }
    }
    found.ok_or(SnapshotError::NoRing { pid })
}

/// Whether a page begins as that of a new thread does: by saying of which process it is.
fn begins_life(page: &Page) -> bool {
    let first = page.slots.first().and_then(Option::as_ref).and_then(NotePiece::of);
    first.is_some_and(|piece| (piece.code, piece.index) == (NOTE_PROCESS, 0))
}

fn first_ts(pages: &Pages) -> Option<u64> {
    pages.values().flat_map(|page| &page.slots).flatten().map(|event| event.ts).next()
}

/// A capture in the making.
#[derive(Default)]
struct Image {
    process: ProcessId,
    /// Notes of its modules, until they are told.
    modules: Vec<Vec<u8>>,
    start_ts: u64,
    threads: BTreeSet<u32>,
    bytes: Vec<u8>,
    counts: Snapshot,
    /// Time of the last record.
    last_ts: u64,
}

impl Image {
    fn add_writer(&mut self, writer: WriterKey, pages: &Pages, untold: u64) {
        self.last_ts = self.start_ts;
        // Of a thread id that was used again, the second life ends the first.
        let again = if self.threads.insert(writer.tid) { PROCESS_AGAIN } else { 0 };
        self.note_process(writer.tid, again);
        for module in std::mem::take(&mut self.modules) {
            self.note(NOTE_MODULE, &module, writer.tid);
        }
        let mut next = None;
        for page in pages.values() {
            // What a drain gives back it empties from the front.
            let given_back = page.slots.iter().take_while(|slot| slot.is_none()).count();
            let begin = page.first.wrapping_add(given_back as u64);
            match next {
                None => self.counts.beheaded += usize::from(!begins_life(page)),
                Some((end, lost)) => {
                    let told = page.lost_total.saturating_sub(lost);
                    self.note_gap(begin.saturating_sub(end).saturating_sub(told), writer.tid);
                }
            }
            for slot in &page.slots[given_back..] {
                match slot {
                    Some(event) => self.push(&Event { tid: writer.tid, ..*event }),
                    None => self.counts.left_out += 1,
                }
            }
            next = Some((page.end(), page.lost_total));
        }
        if untold > 0 {
            self.counts.untold += untold;
            self.note_loss(Cause::Full, untold, writer.tid);
        }
    }

    fn push(&mut self, event: &Event) {
        self.last_ts = event.ts;
        self.counts.events += u64::from(matches!(event.kind, KIND_ENTER | KIND_EXIT));
        self.bytes.extend_from_slice(&event.to_bytes(ByteOrder::NATIVE));
    }

    fn note_process(&mut self, tid: u32, flags: u32) {
        let ProcessId { pid, start } = self.process;
        let exe = self.process.is_alive().then(|| self.process.executable()).flatten();
        let exe = exe.unwrap_or_default();
        let parent_pid = self.process.parent();
        let note = ProcessNote { pid, parent_pid, start, flags, exe: &[] };
        let bytes = [&note.head()[..], exe.as_os_str().as_encoded_bytes()].concat();
        self.note(NOTE_PROCESS, &bytes, tid);
    }

    fn note_gap(&mut self, records: u64, tid: u32) {
        if records > 0 {
            self.counts.left_out += records;
            self.note_loss(Cause::Unacked, records, tid);
        }
    }

    fn note_loss(&mut self, cause: Cause, events: u64, tid: u32) {
        let note = LossNote { cause: cause as u32, events, first: 0, last: 0 };
        self.note(NOTE_LOSS, &note.to_bytes(), tid);
    }

    fn note(&mut self, code: u64, note: &[u8], tid: u32) {
        let length = (note.len() as u16).to_le_bytes();
        let byte = |at: usize| length.iter().chain(note).nth(at).copied().unwrap_or(0);
        for index in 0..note_records(note.len()) {
            let (func, call_site) = note_words(code, index, byte);
            let (ts, kind, frame) = (self.last_ts, KIND_MARKER, [0; 3]);
            self.push(&Event { ts, func, call_site, tid, kind, frame });
        }
    }

    /// Writes the file, or leaves none.
    fn write(&self, ring: &RingFile, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut header = FileHeader::new(ring.origin(), self.process.pid, 0);
        if self.counts.beheaded > 0 {
            header.flags |= FLAG_WRAPPED;
        }
        let mut file = File::create_new(path)?;
        let written = file
            .write_all(&header.to_bytes(ByteOrder::NATIVE))
            .and_then(|()| file.write_all(&self.bytes));
        written.inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }
}
