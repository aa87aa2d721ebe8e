//! What a ring holds, who uses it, and what was dropped.
//!
//! In: bytes of a ring whose sizes hold, copied. Out: what they say, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::path::PathBuf;

use callsight_format::{
    COMMAND_CLOSED, COMMAND_PAUSE, COMMAND_RECORD, COMMAND_STOP, Cause, EVENT_BYTES, KIND_ENTER,
    KIND_EXIT, PAGE_HEADER_BYTES, PAGE_RETIRED, PROCESS_ATTACHED, PROCESS_FREE, PageHeader,
    RING_CONTROL_OFFSET, RING_HEADER_BYTES, RING_PROCESS_BYTES, RING_PROCESSES,
    RING_PROCESSES_OFFSET, RING_VERSION, RING_VERSION_STREAM, RingControl, RingHeader, RingProcess,
};

use super::counts::Counts;
use super::process::ProcessId;
use super::ring::{Bytes, RingError, RingFile, stored};

/// What a ring is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingCommand {
    /// Record.
    Record,
    /// Record nothing until told otherwise; that is no loss.
    Pause,
    /// Record nothing until told otherwise; that is a loss.
    Stop,
    /// It is finished.
    Closed,
}

impl RingCommand {
    /// The command with this number, if there is one.
    pub fn from_number(number: u32) -> Option<RingCommand> {
        match number {
            COMMAND_RECORD => Some(RingCommand::Record),
            COMMAND_PAUSE => Some(RingCommand::Pause),
            COMMAND_STOP => Some(RingCommand::Stop),
            COMMAND_CLOSED => Some(RingCommand::Closed),
            _ => None,
        }
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            RingCommand::Record => "record",
            RingCommand::Pause => "pause",
            RingCommand::Stop => "stop",
            RingCommand::Closed => "closed",
        }
    }

    /// Its number in the ring.
    pub fn number(self) -> u32 {
        match self {
            RingCommand::Record => COMMAND_RECORD,
            RingCommand::Pause => COMMAND_PAUSE,
            RingCommand::Stop => COMMAND_STOP,
            RingCommand::Closed => COMMAND_CLOSED,
        }
    }
}

/// A process that is named in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which one.
    pub id: ProcessId,
    /// Whether it has not yet ended its recording.
    pub is_attached: bool,
    /// Whether it still runs; `None` in a ring of another pid namespace, where that is not known.
    pub is_alive: Option<bool>,
}

impl Member {
    /// The file that it runs, where it still runs and that may be known.
    pub fn executable(&self) -> Option<PathBuf> {
        (self.is_alive == Some(true)).then(|| self.id.executable()).flatten()
    }
}

/// What a ring holds and who uses it, at a moment.
#[derive(Clone, Debug)]
pub struct RingState {
    /// 2 or 3.
    pub version: u32,
    /// Bytes that hold events.
    pub capacity: u32,
    /// What it is told to do; `None` in version 2, and for what is no command.
    pub command: Option<RingCommand>,
    /// The traced processes it names; none in version 2, which names nobody.
    pub processes: Vec<Member>,
    /// The drain it names.
    pub drain: Option<Member>,
    /// Bytes that are not free.
    pub used_bytes: u64,
    /// Enters and exits that no drain has taken.
    pub held_events: u64,
    /// Events dropped, by cause; in version 2 all as [`Cause::Full`].
    pub dropped: BTreeMap<Cause, u64>,
}

impl RingFile {
    /// The traced processes that it names; none in version 2.
    pub(super) fn processes(&self) -> Result<Vec<Member>, RingError> {
        match self.version() {
            RING_VERSION => Ok(self.members(&self.read(0, self.layout().pages_offset as usize)?)),
            _ => Ok(Vec::new()),
        }
    }

    /// What it tells its programs to do now; `None` in version 2, and for what is no command.
    pub(super) fn command(&self) -> Result<Option<RingCommand>, RingError> {
        let word = self.read((RING_CONTROL_OFFSET + offset_of!(RingControl, command)) as u64, 4)?;
        Ok(RingCommand::from_number(word.u32(0)).filter(|_| self.version() == RING_VERSION))
    }

    /// Looks at all of it.
    ///
    /// # Errors
    /// Why it cannot be read any more.
    pub fn state(&self) -> Result<RingState, RingError> {
        match self.version() {
            RING_VERSION => self.state_of_pages(),
            _ => self.state_of_stream(),
        }
    }

    fn state_of_stream(&self) -> Result<RingState, RingError> {
        let header = self.read(0, RING_HEADER_BYTES)?;
        let tail = header.u64(offset_of!(RingHeader, tail));
        let capacity = header.u32(offset_of!(RingHeader, capacity));
        let held = header.u64(offset_of!(RingHeader, head)).wrapping_sub(tail);
        let used_bytes = if held <= u64::from(capacity) { held } else { 0 };
        let dropped = header.u64(offset_of!(RingHeader, dropped));
        Ok(RingState {
            version: RING_VERSION_STREAM,
            capacity,
            command: None,
            processes: Vec::new(),
            drain: None,
            used_bytes,
            held_events: used_bytes / EVENT_BYTES as u64,
            dropped: (dropped > 0).then_some((Cause::Full, dropped)).into_iter().collect(),
        })
    }

    fn state_of_pages(&self) -> Result<RingState, RingError> {
        let start = self.read(0, self.layout().pages_offset as usize)?;
        let control = |at: usize| RING_CONTROL_OFFSET + at;
        let drain = ProcessId {
            pid: start.u32(control(offset_of!(RingControl, drain_pid))),
            start: start.u64(control(offset_of!(RingControl, drain_start))),
        };
        let (used_pages, held_events) = self.count_pages()?;
        Ok(RingState {
            version: RING_VERSION,
            capacity: self.layout().capacity,
            command: RingCommand::from_number(start.u32(control(offset_of!(RingControl, command)))),
            processes: self.members(&start),
            drain: (drain.pid != 0).then(|| self.member(drain, true)),
            used_bytes: used_pages * u64::from(self.layout().page_bytes),
            held_events,
            dropped: Counts::of(&start, self.layout().slot_count).dropped().iter().collect(),
        })
    }

    /// The processes in its table, and those that only their writers name: they found it full.
    fn members(&self, start: &Bytes) -> Vec<Member> {
        let mut all: Vec<_> =
            listed(start).map(|(id, state)| self.member(id, state == PROCESS_ATTACHED)).collect();
        let mut known: BTreeSet<_> = all.iter().map(|member| member.id).collect();
        for writer in Counts::of(start, self.layout().slot_count).writers {
            if known.insert(writer.process) {
                all.push(self.member(writer.process, true));
            }
        }
        all
    }

    fn member(&self, id: ProcessId, is_attached: bool) -> Member {
        let is_alive = (!self.is_foreign()).then(|| id.is_alive());
        Member { id, is_attached, is_alive }
    }

    /// How many pages have an owner, and how many enters and exits in them nobody has taken.
    fn count_pages(&self) -> Result<(u64, u64), RingError> {
        let (mut used, mut held) = (0, 0);
        let page_bytes = self.layout().page_bytes as usize;
        for index in 0..self.layout().page_count {
            let offset = self.layout().page_offset(index);
            let header = self.read(offset, PAGE_HEADER_BYTES)?;
            if header.u64(offset_of!(PageHeader, owner)) & !PAGE_RETIRED == 0 {
                continue;
            }
            used += 1;
            let read = header.u32(offset_of!(PageHeader, read)) as usize;
            let from = read.clamp(PAGE_HEADER_BYTES, page_bytes);
            let rest = self.read(offset + from as u64, page_bytes - from)?;
            let events = rest.0.chunks(EVENT_BYTES).filter_map(stored);
            held += events.filter(|event| matches!(event.kind, KIND_ENTER | KIND_EXIT)).count();
        }
        Ok((used, held as u64))
    }

    /// Whether nobody who lives has anything to do with it: no process that it names, no drain, and
    /// none that has it mapped. Of one of another pid namespace that is not known.
    pub fn is_abandoned(&self, state: &RingState) -> bool {
        let no_drain = self.lock_out_drains();
        if no_drain {
            // Only asked for; a drain that comes meanwhile tries for longer than this takes.
            self.let_drains_in();
        }
        no_drain && !self.is_foreign() && !state.is_used() && self.mapped_by().is_empty()
    }
}

impl RingState {
    /// Events dropped, over all causes.
    pub fn dropped_events(&self) -> u64 {
        self.dropped.values().fold(0, |sum, events| sum.saturating_add(*events))
    }

    /// The traced processes that still run.
    pub fn living(&self) -> impl Iterator<Item = &Member> {
        self.processes.iter().filter(|member| member.is_alive == Some(true))
    }

    /// Whether a process that it names still runs, its drain included, or may run.
    pub fn is_used(&self) -> bool {
        self.processes.iter().chain(&self.drain).any(|member| member.is_alive != Some(false))
    }
}

/// The table of processes, with their states.
fn listed(start: &Bytes) -> impl Iterator<Item = (ProcessId, u32)> + '_ {
    (0..RING_PROCESSES).filter_map(|index| {
        let at = RING_PROCESSES_OFFSET + index * RING_PROCESS_BYTES;
        let state = start.u32(at + offset_of!(RingProcess, state));
        let pid = start.u32(at + offset_of!(RingProcess, pid));
        let id = ProcessId { pid, start: start.u64(at + offset_of!(RingProcess, start)) };
        (state != PROCESS_FREE).then_some((id, state))
    })
}
