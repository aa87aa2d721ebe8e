//! A capture in the making: what was copied of a process, and what is told of it beside.
//!
//! In: pages of its threads, and numbers. Out: the bytes of a capture of version 2 in one file. It
//! looks at nothing itself.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use callsight_format::{
    ByteOrder, Cause, Event, FLAG_WRAPPED, FileHeader, KIND_ENTER, KIND_EXIT, KIND_MARKER,
    LossNote, NOTE_LOSS, NOTE_MODULE, NOTE_PAUSE, NOTE_PROCESS, NOTE_STOP, NOTE_THREAD_NAME,
    NotePiece, Origin, PROCESS_AGAIN, PROCESS_FORKED, ProcessNote, StopReason, note_records,
    note_words,
};

use super::own_notes::Program;
use super::pages::{Page, Pages, missing_between};
use super::process::ProcessId;
use crate::losses::Losses;

/// What is in a capture, and what not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Threads in it.
    pub threads: usize,
    /// Enters and exits in it.
    pub events: u64,
    /// Threads of which a drain has taken the beginning.
    pub beheaded: usize,
    /// Records that were left out: not whole yet, or taken away while they were copied.
    pub left_out: u64,
    /// Events that the process dropped, and that none of the pages in it tells.
    pub untold: u64,
    /// Of these, by threads that the ring does not name (any more): perhaps of other processes.
    pub of_nobody: u64,
}

/// What a thread lost, beside what its pages here tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Untold {
    /// Before the first of its pages.
    pub before: Losses,
    /// Behind the last.
    pub since: Losses,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Image {
    process: ProcessId,
    /// Why a record is not there whose slot is not whole.
    why_not_whole: Cause,
    start_ts: u64,
    threads: BTreeSet<u32>,
    bytes: Vec<u8>,
    amounts: Amounts,
    /// Time of the last record.
    last_ts: u64,
    /// The latest time of a record.
    end_ts: u64,
}

impl Image {
    /// Of a process whose first record here is of this time. A slot of one that is over stays as it is.
    pub fn of(process: ProcessId, start_ts: u64, is_over: bool) -> Image {
        Image {
            process,
            why_not_whole: if is_over { Cause::Torn } else { Cause::Unacked },
            start_ts,
            threads: BTreeSet::new(),
            bytes: Vec::new(),
            amounts: Amounts::default(),
            last_ts: start_ts,
            end_ts: start_ts,
        }
    }

    /// Says which process this is, what it runs, and the notes of its modules.
    pub fn begin(&mut self, program: &Program, modules: &[Vec<u8>]) {
        let pid = self.process.pid;
        self.note_process(pid, PROCESS_AGAIN, program);
        for module in modules {
            self.note(NOTE_MODULE, module, pid);
        }
    }

    /// Adds what a thread of `program` stored, with what it lost beside.
    pub fn add_thread(&mut self, tid: u32, program: &Program, pages: &Pages, untold: &Untold) {
        self.last_ts = self.start_ts;
        // Of a thread id that was used again, the second life ends the first.
        let again = if self.threads.insert(tid) { PROCESS_AGAIN } else { 0 };
        self.note_process(tid, again, program);
        self.add_untold(tid, &untold.before);
        let mut before = None;
        for page in pages.values() {
            match before {
                None => self.amounts.beheaded += usize::from(!begins_life(page)),
                Some(before) => {
                    self.leave_out(missing_between(before, page), self.why_not_whole, tid);
                }
            }
            self.add_slots(&page.slots[page.given_back()..], tid);
            before = Some(page);
        }
        self.add_untold(tid, &untold.since);
    }

    fn add_slots(&mut self, slots: &[Option<Event>], tid: u32) {
        for run in slots.chunk_by(|last, next| last.is_none() == next.is_none()) {
            let count = run.iter().filter(|slot| slot.is_none()).count() as u64;
            self.leave_out(count, self.why_not_whole, tid);
            run.iter().flatten().for_each(|event| self.push(&Event { tid, ..*event }));
        }
    }

    /// Tells losses of a thread that are told nowhere else.
    pub fn add_untold(&mut self, tid: u32, losses: &Losses) {
        self.amounts.untold = self.amounts.untold.saturating_add(losses.sum());
        losses.iter().for_each(|(cause, events)| self.note_loss(cause, events, tid));
    }

    /// Tells losses of threads that nobody knows.
    pub fn add_untold_of_nobody(&mut self, losses: &Losses) {
        self.amounts.of_nobody = losses.sum();
        self.add_untold(0, losses);
    }

    /// Names a thread.
    pub fn name(&mut self, tid: u32, name: &[u8]) {
        self.note(NOTE_THREAD_NAME, name, tid);
    }

    /// A thread is told to record nothing for now.
    pub fn pause(&mut self, tid: u32) {
        self.note(NOTE_PAUSE, &[], tid);
    }

    /// Says how the process goes on or ended, where that is known.
    pub fn end(&mut self, reason: StopReason) {
        let pid = self.process.pid;
        let known = self.threads.get(&pid).or_else(|| self.threads.last());
        self.last_ts = self.end_ts;
        self.note(NOTE_STOP, &(reason as u32).to_le_bytes(), known.copied().unwrap_or(pid));
    }

    /// What is in it.
    pub fn amounts(&self) -> Amounts {
        Amounts { threads: self.threads.len(), ..self.amounts }
    }

    fn push(&mut self, event: &Event) {
        self.last_ts = event.ts;
        self.end_ts = self.end_ts.max(event.ts);
        self.amounts.events += u64::from(matches!(event.kind, KIND_ENTER | KIND_EXIT));
        self.bytes.extend_from_slice(&event.to_bytes(ByteOrder::NATIVE));
    }

    fn note_process(&mut self, tid: u32, again: u32, program: &Program) {
        let ProcessId { pid, start } = self.process;
        let Program { exe, parent_pid, is_forked } = program;
        let flags = again | if *is_forked { PROCESS_FORKED } else { 0 };
        let parent_pid = *parent_pid;
        let note = ProcessNote { pid, parent_pid, start, flags, exe: &[] };
        self.note(NOTE_PROCESS, &[&note.head()[..], exe].concat(), tid);
    }

    fn leave_out(&mut self, records: u64, cause: Cause, tid: u32) {
        if records > 0 {
            self.amounts.left_out += records;
            self.note_loss(cause, records, tid);
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
    pub fn write(&self, origin: Origin, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut header = FileHeader::new(origin, self.process.pid, 0);
        if self.amounts.beheaded > 0 {
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

/// Whether a page begins as that of a new thread does: by saying of which process it is.
fn begins_life(page: &Page) -> bool {
    let first = page.slots.first().and_then(Option::as_ref).and_then(NotePiece::of);
    first.is_some_and(|piece| (piece.code, piece.index) == (NOTE_PROCESS, 0))
}
