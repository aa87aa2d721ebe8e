//! What a ring holds of one process now → a capture, without stopping anything.
//!
//! The capture is of version 2, one file: the records of each thread in its own order. What a drain
//! has taken before is not in it, and counted; so is what was on its way while it was copied.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use callsight_format::{RING_VERSION, StopReason};

use super::counts::{Counts, WriterCount};
use super::image::{Amounts, Image, Untold};
use super::modules::{Module, modules_of};
use super::own_notes::{OwnNotes, Program, is_of};
use super::pages::{Page, Pages, WriterKey, keep_latest, pages_of};
use super::ring::{RingError, RingFile};
use super::rings::{Found, rings_here};
use super::state::{Member, RingCommand};
use crate::losses::Losses;
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

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the ring.
    pub ring: String,
    /// The capture.
    pub file: PathBuf,
    /// What it has, and what not.
    pub amounts: Amounts,
}

/// Writes what the ring of process `pid` holds of it into a new file in `directory`.
///
/// # Errors
/// Why it could not be done.
pub fn snapshot(pid: u32, directory: &Path) -> Result<Snapshot, SnapshotError> {
    let (ring, member) = ring_of(pid)?;
    let image = Look::at(&ring, member)?.image();
    let amounts = image.amounts();
    if (amounts.events, amounts.untold) == (0, 0) {
        return Err(SnapshotError::Empty { pid, ring: ring.name() });
    }
    let file = directory.join(format!("trace.{pid}.{pid}.0.bin"));
    image
        .write(ring.origin(), &file)
        .map_err(|error| SnapshotError::Write { path: file.clone(), error })?;
    Ok(Snapshot { ring: ring.name(), file, amounts })
}

/// The ring that names a process of this pid. If there is a choice: the one of the process that runs,
/// that it has mapped; others are of what it ran before an exec.
fn ring_of(pid: u32) -> Result<(RingFile, Member), SnapshotError> {
    let mut best: Option<(_, RingFile, Member)> = None;
    for ring in rings_here().map_err(SnapshotError::Look)? {
        let Found::Ring(ring) = ring else { continue };
        if ring.version() != RING_VERSION || ring.is_foreign() {
            continue;
        }
        for member in ring.processes()?.into_iter().filter(|member| member.id.pid == pid) {
            let is_alive = member.is_alive == Some(true);
            let rank = (is_alive, is_alive && is_in(&ring, pid), member.is_attached);
            if best.as_ref().is_none_or(|(most, ..)| *most < rank) {
                best = Some((rank, RingFile::open_path(ring.path())?, member));
            }
        }
    }
    best.map(|(_, ring, member)| (ring, member)).ok_or(SnapshotError::NoRing { pid })
}

/// Whether a process that lives has the ring, as far as that may be known: not any more once it runs
/// something else.
fn is_in(ring: &RingFile, pid: u32) -> bool {
    ring.is_mapped_by(pid) != Some(false)
}

/// What there is of a process, at a moment.
pub(super) struct Look {
    member: Member,
    /// It lives, and uses the ring.
    is_here: bool,
    is_paused: bool,
    threads: BTreeMap<WriterKey, (Pages, OwnNotes)>,
    writers: Vec<WriterCount>,
    of_nobody: Losses,
}

impl Look {
    pub fn at(ring: &RingFile, member: Member) -> Result<Look, SnapshotError> {
        let process = member.id;
        let is_here = process.is_alive() && is_in(ring, process.pid);
        let pages = pages_of(ring, process)?;
        // Behind the pages: what those tell is counted by now.
        let counts = Counts::read(ring)?;
        let of_nobody = counts.of_nobody(is_here);
        let is_paused = ring.command()? == Some(RingCommand::Pause);
        let is_ours = |writer: &WriterCount| writer.process == process;
        let writers = counts.writers.into_iter().filter(is_ours).collect();
        // Else a slot that was passed over was never stored.
        let is_drained = is_here && ring.taken_bytes() > 0;
        let threads = pages.into_iter().map(|(writer, mut pages)| {
            if is_drained {
                keep_latest(&mut pages);
            }
            let notes = OwnNotes::of(pages.values());
            (writer, (pages, notes))
        });
        Ok(Look { member, is_here, is_paused, threads: threads.collect(), writers, of_nobody })
    }

    /// The capture of it.
    pub fn image(&self) -> Image {
        let process = self.member.id;
        let mut image = Image::of(process, self.start_ts(), !self.is_here);
        // Of a process that is gone the ring may still have its own notes.
        let modules = if self.is_here { modules_of(process.pid) } else { Ok(Vec::new()) };
        let modules: Vec<_> = modules.unwrap_or_default().iter().map(Module::note).collect();
        let program = self.program_now();
        image.begin(&program, &modules);
        let untold = self.untold();
        for (writer, (pages, notes)) in &self.threads {
            let own = notes.program.as_ref().map_or(&program, |(_, program)| program);
            image.add_thread(
                writer.tid,
                own,
                pages,
                untold.get(writer).unwrap_or(&Untold::default()),
            );
            self.tell_name(&mut image, writer.tid);
        }
        for writer in &self.writers {
            if self.threads_of(writer.slot).next().is_none() {
                image.add_untold(writer.tid, &writer.dropped);
            }
            if writer.owes_pause || self.is_paused_now(writer.tid) {
                image.pause(writer.tid);
            }
        }
        image.add_untold_of_nobody(&self.of_nobody);
        if self.is_here {
            image.end(StopReason::GoesOn);
        } else if !self.member.is_attached && !self.has_end() && !self.threads.is_empty() {
            image.end(StopReason::End);
        }
        image
    }

    /// Tells what a thread that lives is called now: its own note is of when it began, and a drain may have
    /// taken it.
    fn tell_name(&self, image: &mut Image, tid: u32) {
        let name = self.is_here.then(|| self.member.id.thread_name(tid)).flatten();
        name.iter().for_each(|name| image.name(tid, name));
    }

    fn start_ts(&self) -> u64 {
        let pages = self.threads.values().flat_map(|(pages, _)| pages.values());
        pages.filter_map(|page| page.records().next()).map(|event| event.ts).min().unwrap_or(1)
    }

    fn has_end(&self) -> bool {
        self.threads.values().any(|(_, notes)| notes.has_end)
    }

    /// What it runs: as its own notes have it, so that it is one and the same with theirs. Those of what
    /// ran before an exec are older.
    fn program_now(&self) -> Program {
        let notes = self.threads.values().filter_map(|(_, notes)| notes.program.as_ref());
        let mut noted: Vec<_> = notes.collect();
        noted.sort();
        let mut noted = noted.into_iter().rev().map(|(_, program)| program);
        let process = self.member.id;
        let Some(shown) = self.is_here.then(|| process.executable()).flatten() else {
            return noted.next().cloned().unwrap_or_default();
        };
        let same = noted.find(|program| is_of(&program.exe, shown.as_os_str()));
        same.cloned().unwrap_or_else(|| Program {
            exe: shown.as_os_str().as_bytes().to_vec(),
            parent_pid: process.parent(),
            is_forked: false,
        })
    }

    /// Whether a thread is in a pause: whatever it calls is not here. Of one that was killed in it that is
    /// the last word.
    fn is_paused_now(&self, tid: u32) -> bool {
        let is_told = !self.is_here && (self.has_end() || !self.member.is_attached);
        let has_ended = self.is_here && !self.member.id.has_thread(tid);
        self.is_paused && !is_told && !has_ended
    }

    fn threads_of(&self, slot: u64) -> impl Iterator<Item = (&WriterKey, &(Pages, OwnNotes))> {
        self.threads.iter().filter(move |(writer, _)| writer.slot == slot)
    }

    /// What each slot counts beyond what the pages here tell: of threads that have some.
    fn untold(&self) -> BTreeMap<WriterKey, Untold> {
        let mut untold: BTreeMap<WriterKey, Untold> = BTreeMap::new();
        for WriterCount { slot, dropped, .. } in &self.writers {
            let told = self.threads_of(*slot).map(|(_, (_, notes))| &notes.losses);
            let told = told.fold(Losses::default(), Losses::plus);
            let rest = dropped.beyond(&told).up_to(dropped.sum().saturating_sub(told.sum()));
            let first_number = |(_, (pages, _)): &(&WriterKey, &(Pages, OwnNotes))| {
                pages.first_key_value().map_or(0, |(number, _)| *number)
            };
            let first = self.threads_of(*slot).min_by_key(first_number);
            let last = self.threads_of(*slot).max_by_key(first_number);
            let (Some((first, (pages, _))), Some((last, _))) = (first, last) else { continue };
            let before = rest.up_to(pages.values().next().map_or(0, lost_before));
            untold.entry(*first).or_default().before = before;
            untold.entry(*last).or_default().since = rest.beyond(&before);
        }
        untold
    }
}

/// What its writer had dropped before a page, and does not tell at the head of it.
fn lost_before(page: &Page) -> u64 {
    page.lost_total.saturating_sub(OwnNotes::of([page]).losses.sum())
}
