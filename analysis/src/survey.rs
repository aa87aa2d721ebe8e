//! First pass over a group: all that must be known before calls can be matched.
//!
//! Clock anchors stand at the end of a file, and a module is noted after its first calls, so notes
//! and markers are read before anything else. Calls are skipped here.

use callsight_format::{
    CAUSES, Cause, LossNote, MARK_BUDGET, MARK_CLOCK, MARK_MAX_EVENTS, MARK_NO_SPACE, MARK_WRAP,
    MARK_WRITE_ERROR, ModuleNote, NOTE_LOSS, NOTE_MODULE, NOTE_MODULE_GONE, NOTE_PROCESS,
    NOTE_SEGMENT, NOTE_STOP, PROCESS_FORKED, ProcessNote, StopReason,
};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::capture::{Group, Segment};
use crate::clock::Anchor;
use crate::space::{AddressSpace, Mapping, ModuleEvent};
use crate::walk::{Oddities, Visitor, walk};

/// Sentences of one kind that a group may say: more are of a damaged file.
const MOST_SENTENCES: usize = 64;

/// Changes of modules that are followed in one process. Repeated notes are no changes.
const MOST_MODULE_CHANGES: usize = 1 << 16;

/// Processes of one group that are told apart: more are of a damaged file.
pub const MOST_PROCESSES: usize = 1 << 16;

/// Start of a clock, in ticks and ns.
type ClockStart = (u64, u64);

/// A program that ran: what one process executed from start, fork or exec on.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Process id; the number of the stream where nobody said.
    pub pid: u32,
    /// Process id of its parent; 0 where nobody said.
    pub parent_pid: u32,
    /// Start time, in clock ticks since boot; 0 where nobody said.
    pub start: u64,
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
    /// Segments that are not there.
    pub missing_segments: u64,
    /// Segments that are shorter than they were in the end, and how many records they lack.
    pub cut_segments: u64,
    /// See `cut_segments`.
    pub cut_records: u64,
    /// What was odd in the files.
    pub oddities: Oddities,
    /// The only process of each start of the clock; `None` where there are several.
    only: FxHashMap<ClockStart, Option<usize>>,
    /// The last process of each start of the clock and pid.
    by_pid: FxHashMap<(ClockStart, u32), usize>,
}

impl Survey {
    /// Reads all of `group`.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(group: &Group) -> Result<Survey, Error> {
        let mut surveyor = Surveyor { wrapped: group.wrapped, ..Surveyor::default() };
        let oddities = walk(group, &mut surveyor)?;
        let mut survey = surveyor.finish(group);
        survey.oddities = oddities;
        Ok(survey)
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
}

/// Gives the modules of their parents to forked processes that named none.
pub fn inherit_modules(surveys: &mut [Survey]) {
    let mut known: FxHashMap<u32, AddressSpace> = FxHashMap::default();
    for process in surveys.iter().flat_map(|survey| &survey.processes) {
        if process.modules_known {
            known.insert(process.pid, process.space.clone());
        }
    }
    for process in surveys.iter_mut().flat_map(|survey| &mut survey.processes) {
        if let (true, false, Some(space)) =
            (process.forked, process.modules_known, known.get(&process.parent_pid))
        {
            process.space = space.clone();
            process.modules_known = true;
        }
    }
}

#[derive(Default)]
struct Surveyor {
    survey: Survey,
    modules: Vec<Vec<(u64, ModuleEvent)>>,
    /// Module events of threads that had not said whose they are.
    orphans: Vec<(u64, ModuleEvent)>,
    current: FxHashMap<u32, usize>,
    /// What was last said of the module at an address: each segment says all of them again.
    told: FxHashMap<(usize, u64), Mapping>,
    /// The process of each pid, start, executable and start of the clock.
    known: FxHashMap<(u32, u64, Vec<u8>, ClockStart), usize>,
    clock_start: ClockStart,
    wrapped: bool,
    /// A stream of which its server has not yet said how it ended.
    open_stream: bool,
}

impl Visitor for Surveyor {
    fn call(&mut self, _event: &callsight_format::Event) {}

    fn mark(&mut self, event: &callsight_format::Event) {
        let survey = &mut self.survey;
        match event.func {
            MARK_CLOCK => {
                let anchor = Anchor { ticks: event.ts, ns: event.call_site };
                if survey.last_anchor.is_none_or(|last| last.ticks < anchor.ticks) {
                    survey.last_anchor = Some(anchor);
                }
            }
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
            NOTE_MODULE => {
                if let Some(note) = ModuleNote::parse(bytes) {
                    let end = note.base.saturating_add(note.size);
                    let path = unescaped(note.path);
                    let mapping = Mapping::new(note.base, end, note.bias, note.build_id, &path);
                    self.module(tid, ts, ModuleEvent::Loaded(mapping));
                }
            }
            NOTE_MODULE_GONE => {
                let word = |at| callsight_format::ByteOrder::Little.u64(bytes, at);
                if let (Some(base), Some(size)) = (word(0), word(8)) {
                    let end = base.saturating_add(size);
                    self.module(tid, ts, ModuleEvent::Gone { base, end });
                }
            }
            NOTE_LOSS => self.loss(tid, LossNote::parse(bytes)),
            NOTE_STOP => self.stop(bytes),
            // The first segment of a stream, whose server will say how it ended.
            NOTE_SEGMENT => self.open_stream |= bytes.iter().all(|byte| *byte == 0),
            _ => {}
        }
    }

    fn torn(&mut self, _tid: u32, events: u64) {
        self.survey.losses[Cause::Torn as usize] += events;
    }

    fn hole(&mut self, segments: u32) {
        // Of rotated traces that is said already.
        if !self.wrapped {
            self.survey.missing_segments += u64::from(segments);
        }
    }

    fn cut(&mut self, records: u64) {
        self.survey.cut_segments += 1;
        self.survey.cut_records = self.survey.cut_records.saturating_add(records);
    }

    fn segment(&mut self, segment: &Segment) {
        self.clock_start = (segment.header.t0_ticks, segment.header.t0_ns);
        if segment.resumed {
            self.survey.interruptions += u64::from(std::mem::take(&mut self.open_stream));
            let stops = &mut self.survey.stops;
            let before = stops.len();
            stops.retain(|(reason, _)| *reason != StopReason::Cut);
            self.survey.interruptions += (before - stops.len()) as u64;
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
        self.survey
            .only
            .entry(self.clock_start)
            .and_modify(|only| *only = None)
            .or_insert(Some(index));
        self.survey.processes.push(Process {
            pid: note.pid,
            parent_pid: note.parent_pid,
            start: note.start,
            exe: note.exe.to_vec(),
            forked: note.flags & PROCESS_FORKED != 0,
            announced: true,
            ..Process::default()
        });
        self.modules.push(Vec::new());
        index
    }

    fn module(&mut self, tid: u32, ts: u64, event: ModuleEvent) {
        let process = self.current.get(&tid).copied();
        if process.is_some_and(|process| self.is_repeated(process, &event)) {
            return;
        }
        let events = match process {
            Some(process) => &mut self.modules[process],
            None => &mut self.orphans,
        };
        if events.len() >= MOST_MODULE_CHANGES {
            self.survey.ignored_module_changes += 1;
            return;
        }
        events.push((ts, event));
    }

    fn is_repeated(&mut self, process: usize, event: &ModuleEvent) -> bool {
        match event {
            ModuleEvent::Loaded(mapping) => {
                let before = self.told.insert((process, mapping.base), mapping.clone());
                before.as_ref() == Some(mapping)
            }
            ModuleEvent::Gone { base, .. } => {
                self.told.remove(&(process, *base));
                false
            }
        }
    }

    fn loss(&mut self, tid: u32, note: Option<LossNote>) {
        let Some(note) = note else { return };
        let count = match Cause::from_number(note.cause) {
            Some(cause) => &mut self.survey.losses[cause as usize],
            None => &mut self.survey.other_losses,
        };
        *count = count.saturating_add(note.events);
        if tid == 0 {
            self.survey.stray_losses = self.survey.stray_losses.saturating_add(note.events);
        }
    }

    fn stop(&mut self, bytes: &[u8]) {
        let Some(number) = callsight_format::ByteOrder::Little.u32(bytes, 0) else { return };
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
        let bias = group.origin.load_bias;
        let mut survey = self.survey;
        if self.open_stream {
            let why = "its server was killed, or is receiving it still";
            survey.stops.push((StopReason::Cut, why.to_owned()));
        }
        // With one process there is no doubt whose the orphans are.
        if let [only] = &mut self.modules[..] {
            only.append(&mut self.orphans);
        }
        survey.processes.push(Process { pid: group.id, ..Process::default() });
        self.modules.push(self.orphans);
        for (process, events) in survey.processes.iter_mut().zip(self.modules) {
            process.space = AddressSpace::build(events);
            process.modules_known = !process.space.is_empty();
            if !process.modules_known {
                process.space = AddressSpace::whole(bias, &process.exe);
            }
        }
        survey
    }
}

/// A path as it is: `/proc/self/maps` writes a newline as `\012`, and nothing else in such a way.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let newline = rest.strip_prefix(br"\012");
        plain.push(if newline.is_some() { b'\n' } else { *first });
        rest = newline.unwrap_or(behind);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::unescaped;

    #[test]
    fn a_newline_in_a_path_is_a_newline_again() {
        assert_eq!(unescaped(br"/a\012b/c\012"), b"/a\nb/c\n");
        assert_eq!(unescaped(br"/a\01/b\"), br"/a\01/b\");
    }
}
