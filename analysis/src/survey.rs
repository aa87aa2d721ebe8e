//! First pass over a group: all that must be known before calls can be matched.
//!
//! Clock anchors stand at the end of a file, and a module is noted after its first calls, so notes
//! and markers are read before anything else. Calls are skipped here.

use std::collections::BTreeSet;

use callsight_format::{
    ByteOrder, CAUSES, Cause, HELLO_EXE, HELLO_PID, LossNote, MARK_BUDGET, MARK_CLOCK,
    MARK_MAX_EVENTS, MARK_NO_SPACE, MARK_WRAP, MARK_WRITE_ERROR, NOTE_LOSS, NOTE_MODULE,
    NOTE_MODULE_GONE, NOTE_PROCESS, NOTE_SEGMENT, NOTE_STOP, PROCESS_FORKED, ProcessNote,
    StopReason, wrap_frame,
};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::capture::{Group, Segment};
use crate::clock::Anchor;
use crate::ledger::{Ledger, field};
use crate::module_notes::ModuleNotes;
use crate::numbers::WriterId;
use crate::oddities::Oddities;
use crate::settle::{Account, settle, settle_files};
use crate::space::AddressSpace;
use crate::unfinished::Unfinished;
use crate::walk::{Visitor, walk};

/// Threads that may lose events before one stream: more are of a damaged file.
const MOST_LOST_BEFORE: usize = 1 << 16;

/// Whether a note tells at the end of a stream that its thread lost some before it.
pub fn is_of_before(loss: &LossNote) -> bool {
    loss.cause == Cause::Unacked as u32 && loss.last != 0
}

/// Sentences of one kind that a group may say: more are of a damaged file.
const MOST_SENTENCES: usize = 64;

/// Processes of one group that are told apart: more are of a damaged file.
pub const MOST_PROCESSES: usize = 1 << 16;

/// Start of a clock, in ticks and ns.
pub type ClockStart = (u64, u64);

fn clock_start(segment: &Segment) -> ClockStart {
    (segment.header.t0_ticks, segment.header.t0_ns)
}

/// By what a [`MARK_WRAP`] would name a segment.
fn there(segment: &Segment) -> (ClockStart, u32) {
    (clock_start(segment), wrap_frame(segment.seq))
}

/// A program that ran: what one process executed from start, fork or exec on.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Process id; the number of the stream where nobody said.
    pub pid: u32,
    /// Process id of its parent; 0 where nobody said.
    pub parent_pid: u32,
    /// Start time, in clock ticks since boot; 0 where nobody said.
    pub start: u64,
    /// Start of the clock of its files or its ring.
    pub clock_start: ClockStart,
    /// Path of its executable; may be empty.
    pub exe: Vec<u8>,
    /// Whether it came from a fork of a traced process.
    pub forked: bool,
    /// Whether it said who it is. Else it is made up, of events that nobody claimed.
    pub announced: bool,
    /// Its modules. Where it named none, one mapping of everything.
    pub space: AddressSpace,
    /// Whether it named its modules.
    pub modules_known: bool,
}

/// What the notes and markers of a group say.
#[derive(Debug, Default)]
pub struct Survey {
    /// The processes; the last one is made up.
    pub processes: Vec<Process>,
    /// The process of each process note, repeated ones too, in the order they stand in the group.
    pub announcements: Vec<usize>,
    /// The last clock anchor.
    pub last_anchor: Option<Anchor>,
    /// Events lost, by cause, as the data tells.
    pub losses: [u64; CAUSES],
    /// Events lost with causes of a later version.
    pub other_losses: u64,
    /// Events lost in threads of which nothing else came.
    pub stray_losses: u64,
    /// By stream of events, threads that lost some right before it.
    pub lost_before: FxHashMap<u32, Vec<u32>>,
    /// Events in segments that were rotated away, as far as known, and how many of these.
    pub wrapped_events: u64,
    /// See `wrapped_events`.
    pub wrapped_segments: u64,
    /// Limits that ended the recording: marker code and payload.
    pub limits: Vec<(u64, u64)>,
    /// Why something was not recorded as asked: the process and its words.
    pub stops: Vec<(StopReason, String)>,
    /// How often a stream broke off and another one took up its ring.
    pub interruptions: u64,
    /// Announcements of processes beyond [`MOST_PROCESSES`].
    pub ignored_processes: u64,
    /// Changes of modules beyond those that are followed.
    pub ignored_module_changes: u64,
    /// Modules that came where another was that had not been seen to go.
    pub replaced_modules: u64,
    /// Segments that are not there.
    pub missing_segments: u64,
    /// Segments that are shorter than they were in the end, and how many records they lack.
    pub cut_segments: u64,
    /// See `cut_segments`.
    pub cut_records: u64,
    /// What was odd in the files.
    pub oddities: Oddities,
    /// What became of the records.
    pub account: Account,
    /// What the chunks say, where there are any.
    pub ledger: Option<Ledger>,
    /// Where no record was finished yet.
    pub unfinished: Unfinished,
    /// The only process of each start of the clock; `None` where there are several.
    only: FxHashMap<ClockStart, Option<usize>>,
    /// The last process of each start of the clock and pid.
    by_pid: FxHashMap<(ClockStart, u32), usize>,
    /// The last process of each pid and start.
    by_identity: FxHashMap<(u32, u64), usize>,
}

impl Survey {
    /// Reads all of `group`.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(group: &Group) -> Result<Survey, Error> {
        let mut surveyor = Surveyor {
            wrapped: group.wrapped,
            there: group.segments.iter().map(there).collect(),
            ..Surveyor::default()
        };
        let walked = walk(group, &mut surveyor)?;
        surveyor.open_stream |= walked.ledger.as_ref().is_some_and(|ledger| ledger.broken_off);
        let mut survey = surveyor.finish(group);
        let account = match &walked.ledger {
            Some(ledger) => settle(ledger, &mut survey.losses),
            None => settle_files(walked.records, &survey.losses),
        };
        survey.account = account.without(walked.padding);
        survey.stray_losses = survey.stray_losses.saturating_add(survey.account.stray);
        survey.missing_segments += walked.oddities.missing_segments;
        survey.oddities = walked.oddities;
        survey.ledger = walked.ledger;
        survey.unfinished = walked.unfinished;
        Ok(survey)
    }

    /// Whether the recording was taken before its programs had ended: by a snapshot, or by a drain that
    /// was told to end.
    pub fn was_taken_early(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.stopped)
            || self.stops.iter().any(|(reason, _)| *reason == StopReason::GoesOn)
    }

    /// Whether any records without numbers may be missing.
    pub fn has_unnumbered_gaps(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.unnumbered_gaps)
    }

    /// Whether events are missing, so that what is not there may have been.
    pub fn has_gaps(&self) -> bool {
        // One that is torn stands where a thread was killed.
        let torn = Cause::Torn as usize;
        let lost = self.losses.iter().enumerate().any(|(cause, lost)| cause != torn && *lost > 0);
        let cut = self.stops.iter().any(|(reason, _)| *reason == StopReason::Cut);
        let segments = self.missing_segments + self.cut_segments;
        lost || cut || segments > 0 || self.other_losses > 0 || !self.limits.is_empty()
    }

    /// The process of a thread that never said whose it is, in files of this start of the clock.
    pub fn process_of_silent(&self, tid: u32, clock_start: ClockStart) -> usize {
        let only = self.only.get(&clock_start).copied().flatten();
        let found = only.or_else(|| self.by_pid.get(&(clock_start, tid)).copied());
        found.unwrap_or(self.processes.len() - 1)
    }

    /// The process of a thread whose blocks say whose it is.
    pub fn process_of(&self, writer: &WriterId) -> usize {
        let found = self.by_identity.get(&(writer.pid, writer.start)).copied();
        found.unwrap_or(self.processes.len() - 1)
    }
}

/// Gives the modules of their parents to forked processes that named none: those of the life of the
/// parent that had the same program, and the same clock where one had.
pub fn inherit_modules(surveys: &mut [Survey]) {
    type Lives = Vec<(ClockStart, AddressSpace)>;
    let mut known: FxHashMap<(u32, Vec<u8>), Lives> = FxHashMap::default();
    let heirs = |process: &Process| process.forked && !process.modules_known;
    let all = || surveys.iter().flat_map(|survey| &survey.processes);
    let parents: BTreeSet<u32> =
        all().filter(|process| heirs(process)).map(|process| process.parent_pid).collect();
    for process in all().filter(|process| process.modules_known && parents.contains(&process.pid)) {
        let lives = known.entry((process.pid, process.exe.clone())).or_default();
        lives.push((process.clock_start, process.space.clone()));
    }
    let processes = surveys.iter_mut().flat_map(|survey| &mut survey.processes);
    for process in processes.filter(|process| heirs(process)) {
        let Some(lives) = known.get(&(process.parent_pid, process.exe.clone())) else { continue };
        let same_clock = lives.iter().find(|(start, _)| *start == process.clock_start);
        if let Some((_, space)) = same_clock.or(lives.last()) {
            process.space = space.clone();
            process.modules_known = true;
        }
    }
}

#[derive(Default)]
struct Surveyor {
    survey: Survey,
    modules: ModuleNotes,
    current: FxHashMap<u32, usize>,
    /// The process of each pid, start, executable and start of the clock.
    known: FxHashMap<(u32, u64, Vec<u8>, ClockStart), usize>,
    clock_start: ClockStart,
    /// The stream of the segment that is read.
    stream: u32,
    wrapped: bool,
    /// The segments that are there, as markers name those that were rotated away.
    there: BTreeSet<(ClockStart, u32)>,
    /// Pid and start of processes of which the beginning of some thread is lost.
    beheaded: BTreeSet<(u32, u64)>,
    /// Of the first process of each ring, as its drain says, by pid.
    executables: FxHashMap<u32, Vec<u8>>,
    /// A stream of which its server has not yet said how it ended.
    open_stream: bool,
}

impl Visitor for Surveyor {
    const WANTS_CALLS: bool = false;

    fn call(&mut self, _event: &callsight_format::Event) {}

    fn mark(&mut self, event: &callsight_format::Event) {
        let is_there = self.there.contains(&(self.clock_start, event.frame_units()));
        let survey = &mut self.survey;
        match event.func {
            MARK_CLOCK => {
                let anchor = Anchor { ticks: event.ts, ns: event.call_site };
                if survey.last_anchor.is_none_or(|last| last.ticks < anchor.ticks) {
                    survey.last_anchor = Some(anchor);
                }
            }
            // Its process was killed before it removed the file.
            MARK_WRAP if is_there => {}
            MARK_WRAP => {
                survey.wrapped_segments += 1;
                survey.wrapped_events = survey.wrapped_events.saturating_add(event.call_site);
            }
            MARK_BUDGET | MARK_NO_SPACE | MARK_WRITE_ERROR | MARK_MAX_EVENTS
                if survey.limits.len() < MOST_SENTENCES =>
            {
                survey.limits.push((event.func, event.call_site));
            }
            _ => {}
        }
    }

    fn note(&mut self, tid: u32, ts: u64, code: u64, bytes: &[u8]) {
        match code {
            NOTE_PROCESS => self.process(tid, ProcessNote::parse(bytes)),
            NOTE_MODULE => self.modules.loaded(self.current.get(&tid).copied(), ts, bytes),
            NOTE_MODULE_GONE => self.modules.gone(self.current.get(&tid).copied(), ts, bytes),
            NOTE_LOSS => self.loss(tid, LossNote::parse(bytes)),
            NOTE_STOP => self.stop(bytes),
            // The first segment of a stream, whose server will say how it ended.
            NOTE_SEGMENT => self.open_stream |= bytes.iter().all(|byte| *byte == 0),
            _ => {}
        }
    }

    fn lost(&mut self, _tid: u32, cause: Cause, events: u64) {
        // What numbers show to be missing is in the ledger.
        if cause == Cause::Torn {
            self.survey.losses[cause as usize] += events;
        }
    }

    fn beheaded(&mut self, writer: &WriterId) {
        let identity = (writer.pid, writer.start);
        match self.survey.by_identity.get(&identity) {
            Some(index) => self.current.insert(writer.tid, *index),
            None => self.current.remove(&writer.tid),
        };
        if self.beheaded.len() < MOST_PROCESSES {
            self.beheaded.insert(identity);
        }
    }

    fn hello(&mut self, fields: &[u8]) {
        let pid = field(fields, HELLO_PID).and_then(|pid| ByteOrder::Little.u32(pid, 0));
        let (Some(pid), Some(exe)) = (pid, field(fields, HELLO_EXE)) else { return };
        if self.executables.len() < MOST_SENTENCES {
            self.executables.insert(pid, exe.to_vec());
        }
    }

    fn hole(&mut self, segments: u32) {
        // Of rotated traces that is said already.
        if !self.wrapped {
            self.survey.missing_segments += u64::from(segments);
        }
    }

    fn unnumbered(&mut self) {}

    fn cut(&mut self, records: u64) {
        self.survey.cut_segments += 1;
        self.survey.cut_records = self.survey.cut_records.saturating_add(records);
    }

    fn segment(&mut self, segment: &Segment) {
        self.clock_start = clock_start(segment);
        self.stream = segment.stream;
        if segment.resumed {
            let stops = &mut self.survey.stops;
            let before = stops.len();
            stops.retain(|(reason, _)| *reason != StopReason::Cut);
            let cut = (before - stops.len()) as u64;
            let interruptions = cut + u64::from(std::mem::take(&mut self.open_stream));
            // The numbers of records tell what is missing in between.
            if !segment.is_packed() {
                self.survey.interruptions += interruptions;
            }
        }
    }
}

impl Surveyor {
    fn process(&mut self, tid: u32, note: Option<ProcessNote<'_>>) {
        // An announcement that cannot be read still begins a life, of whom nobody knows.
        let index = match note {
            Some(note) => self.find_or_add(&note),
            None => usize::MAX,
        };
        self.survey.announcements.push(index);
        match index {
            usize::MAX => self.current.remove(&tid),
            _ => self.current.insert(tid, index),
        };
    }

    fn find_or_add(&mut self, note: &ProcessNote<'_>) -> usize {
        let key = (note.pid, note.start, note.exe.to_vec(), self.clock_start);
        if let Some(index) = self.known.get(&key) {
            return *index;
        }
        if self.survey.processes.len() >= MOST_PROCESSES {
            // As good as a note that cannot be read.
            self.survey.ignored_processes += 1;
            return usize::MAX;
        }
        let index = self.add(note);
        self.known.insert(key, index);
        index
    }

    fn add(&mut self, note: &ProcessNote<'_>) -> usize {
        let index = self.survey.processes.len();
        self.survey.by_pid.insert((self.clock_start, note.pid), index);
        self.survey.by_identity.insert((note.pid, note.start), index);
        self.survey
            .only
            .entry(self.clock_start)
            .and_modify(|only| *only = None)
            .or_insert(Some(index));
        self.survey.processes.push(Process {
            pid: note.pid,
            parent_pid: note.parent_pid,
            start: note.start,
            clock_start: self.clock_start,
            exe: note.exe.to_vec(),
            forked: note.flags & PROCESS_FORKED != 0,
            announced: true,
            ..Process::default()
        });
        self.modules.add_process();
        index
    }

    fn loss(&mut self, tid: u32, note: Option<LossNote>) {
        let Some(note) = note else { return };
        let count = match Cause::from_number(note.cause) {
            Some(cause) => &mut self.survey.losses[cause as usize],
            None => &mut self.survey.other_losses,
        };
        // Writers up to 0.1 could tell a loss twice, and take it back in their next note, below zero.
        *count = count.saturating_add_signed(note.events.cast_signed());
        if tid == 0 {
            self.survey.stray_losses = self.survey.stray_losses.saturating_add(note.events);
        } else if is_of_before(&note) {
            let lost_before = self.survey.lost_before.entry(self.stream).or_default();
            if lost_before.len() < MOST_LOST_BEFORE {
                lost_before.push(tid);
            }
        }
    }

    fn stop(&mut self, bytes: &[u8]) {
        let Some(number) = ByteOrder::Little.u32(bytes, 0) else { return };
        let Some(reason) = StopReason::from_number(number) else { return };
        if matches!(reason, StopReason::Cut | StopReason::Closed) {
            self.open_stream = false;
        }
        if self.survey.stops.len() < MOST_SENTENCES {
            let text = String::from_utf8_lossy(&bytes[4..]).into_owned();
            self.survey.stops.push((reason, text));
        }
    }

    fn finish(mut self, group: &Group) -> Survey {
        for (pid, start) in std::mem::take(&mut self.beheaded) {
            if !self.survey.by_identity.contains_key(&(pid, start)) {
                let exe = self.executables.remove(&pid).unwrap_or_default();
                self.add(&ProcessNote { pid, parent_pid: 0, start, flags: 0, exe: &exe });
            }
        }
        let bias = group.origin.load_bias;
        let mut survey = self.survey;
        if survey.wrapped_segments > 0 {
            // That they are not there is said already.
            survey.missing_segments = 0;
        }
        if self.open_stream {
            let why = "its server was killed, or is receiving it still";
            survey.stops.push((StopReason::Cut, why.to_owned()));
        }
        survey.processes.push(Process { pid: group.id, ..Process::default() });
        survey.ignored_module_changes = self.modules.ignored;
        for (process, space) in survey.processes.iter_mut().zip(self.modules.finish()) {
            survey.replaced_modules += space.replaced();
            process.space = space;
            process.modules_known = !process.space.is_empty();
            if !process.modules_known {
                process.space = AddressSpace::whole(bias, &process.exe);
            }
        }
        survey
    }
}
