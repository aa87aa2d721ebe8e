//! Second pass over a group: every call of every thread into the tables of its process.
//!
//! A *life* is one thread from its start to its end: a thread id is handed out again, and events
//! of several processes share a stream. Files without process notes (made by other tools) are one
//! process.

use callsight_format::{
    Cause, Event, KIND_ENTER, LossNote, MARK_CLOCK, NOTE_LOSS, NOTE_PAUSE, NOTE_PROCESS, NOTE_STOP,
    NOTE_THREAD_NAME, PROCESS_AGAIN, ProcessNote, StopReason,
};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::capture::{Group, Segment};
use crate::code::{CodeFiles, CodeMap};
use crate::numbers::WriterId;
use crate::stack::{Stack, Tally};
use crate::survey::{Survey, is_of_before};
use crate::tables::{Detail, Tables};
use crate::twice::OVERLAP_TOLERANCE_NS;
use crate::walk::{Visitor, walk_again};

/// Threads of one group that are followed: more are of a damaged or foreign file.
pub const MOST_LIVES: usize = 1_000_000;

/// Functions of all processes of one group that are told apart: more are of a damaged or foreign
/// file.
pub const MOST_FUNCTIONS: usize = 1_500_000;

/// What the second pass makes of a group.
pub struct Matched<'s> {
    /// The threads, in the order they appear.
    pub lives: Vec<Life>,
    /// Tables of each process of the survey.
    pub tables: Vec<Tables<'s>>,
    /// Whether each process ended its recording in order.
    pub ended: Vec<bool>,
    /// Enters and exits beyond [`MOST_LIVES`] and [`MOST_FUNCTIONS`], which are left out.
    pub skipped_events: u64,
    /// Blocks that are whole, and contradict themselves.
    pub bad_blocks: u64,
}

/// One thread, from its start to its end.
#[derive(Debug, Default)]
pub struct Life {
    /// Number of its process in the survey.
    pub process: usize,
    /// Kernel thread id.
    pub tid: u32,
    /// Its last name; empty where nobody said.
    pub name: String,
    /// Enters and exits.
    pub events: u64,
    /// Time of its first event.
    pub first_ticks: u64,
    /// Time of its last event, or of its end while it was inside a function.
    pub last_ticks: u64,
    /// The last stream that it went on in.
    pub stream: u32,
    /// What its matching found odd.
    pub tally: Tally,
    stack: Stack,
    /// Events lost since its last call: perhaps those of the next life under its thread id.
    lost_since_call: u64,
    /// Time of the last clock anchor, while it may be the one an orderly end leaves: the others
    /// stand before an event whose clock was read first.
    closing_anchor: Option<u64>,
    /// Places where events of any thread may be missing, as far as its stack knows.
    doubts: u64,
}

/// Matches all calls of `group`.
///
/// # Errors
/// A file that cannot be read.
pub fn match_calls<'s>(
    group: &Group,
    survey: &'s Survey,
    files: &'s CodeFiles<'s>,
    detail: Detail,
) -> Result<Matched<'s>, Error> {
    match_up_to((MOST_LIVES, MOST_FUNCTIONS), group, survey, files, detail)
}

/// The same with other limits, of lives and of functions.
fn match_up_to<'s>(
    most: (usize, usize),
    group: &Group,
    survey: &'s Survey,
    files: &'s CodeFiles<'s>,
    detail: Detail,
) -> Result<Matched<'s>, Error> {
    let processes = survey.processes.iter();
    let tables = processes.map(|process| Tables::new(CodeMap::new(process, files), detail));
    let mut matcher = Matcher {
        survey,
        // Of rotated traces the beginning is missing: any exit may be of a call begun there.
        lost_before: if group.wrapped || survey.wrapped_segments > 0 { u64::MAX } else { 0 },
        lost_early: FxHashMap::default(),
        announced: 0,
        clock_start: (0, 0),
        stream: 0,
        overlap_ticks: overlap_ticks(group),
        by_tid: FxHashMap::default(),
        current: None,
        functions: 0,
        most,
        doubts: 0,
        resumed: false,
        matched: Matched {
            lives: Vec::new(),
            tables: tables.collect(),
            ended: vec![false; survey.processes.len()],
            skipped_events: 0,
            bad_blocks: 0,
        },
    };
    let bad_blocks = walk_again(group, &survey.unfinished, &mut matcher)?.oddities.bad_blocks;
    Ok(Matched { bad_blocks, ..matcher.finish() })
}

struct Matcher<'s> {
    survey: &'s Survey,
    lost_before: u64,
    /// Events lost by threads that are not seen yet.
    lost_early: FxHashMap<u32, u64>,
    announced: usize,
    clock_start: (u64, u64),
    stream: u32,
    /// Streams that follow one another may overlap by this much.
    overlap_ticks: u64,
    by_tid: FxHashMap<u32, usize>,
    /// Thread of the last call and its life: events come in runs of one thread.
    current: Option<(u32, usize)>,
    /// Functions of all processes so far.
    functions: usize,
    /// Lives and functions at most.
    most: (usize, usize),
    /// Places so far where events of any thread may be missing.
    doubts: u64,
    /// Whether this is not the first stream of the group.
    resumed: bool,
    matched: Matched<'s>,
}

impl Visitor for Matcher<'_> {
    const WANTS_CALLS: bool = true;

    #[inline]
    fn call(&mut self, event: &Event) {
        let index = match self.current {
            Some((tid, index)) if tid == event.tid => index,
            _ => match self.life_at(event) {
                Some(index) => index,
                None => return self.matched.skipped_events += 1,
            },
        };
        let life = &mut self.matched.lives[index];
        let tables = &mut self.matched.tables[life.process];
        if self.functions >= self.most.1 && !tables.knows(event.func) {
            self.matched.skipped_events += 1;
            return;
        }
        let functions_before = tables.functions.len();
        if life.events == 0 {
            life.first_ticks = event.ts;
        }
        life.events += 1;
        if life.closing_anchor.is_some_and(|anchor| event.ts <= anchor) {
            life.closing_anchor = None;
        }
        life.lost_since_call = 0;
        match event.kind {
            KIND_ENTER => life.stack.enter(event, tables),
            _ => life.stack.exit(event, tables),
        }
        life.last_ticks = life.stack.now();
        self.functions += tables.functions.len() - functions_before;
    }

    fn mark(&mut self, event: &Event) {
        // Servers write markers too, as nobody's. An anchor may be all that is left of the thread
        // that ended the process.
        if event.func == MARK_CLOCK && event.tid != 0 {
            let Some(index) = self.life_of(event.tid) else { return };
            let life = &mut self.matched.lives[index];
            life.stack.alive(event.ts);
            life.closing_anchor = Some(event.ts);
        }
    }

    fn note(&mut self, tid: u32, ts: u64, code: u64, bytes: &[u8]) {
        match code {
            NOTE_PROCESS => self.process(tid, bytes),
            NOTE_THREAD_NAME => {
                if let Some(index) = self.life_of(tid) {
                    self.matched.lives[index].name = printable(bytes);
                }
            }
            NOTE_LOSS => {
                let note = LossNote::parse(bytes).filter(|note| !is_of_before(note));
                self.lose(tid, note.map_or(0, |note| note.events));
            }
            NOTE_PAUSE => {
                if let Some(index) = self.life_of(tid) {
                    self.matched.lives[index].stack.paused();
                }
            }
            NOTE_STOP if is_end(bytes) => {
                // It may be all that is left of the thread that ended the process.
                let Some(index) = self.life_of(tid) else { return };
                let life = &mut self.matched.lives[index];
                life.stack.alive(ts);
                self.matched.ended[life.process] = true;
            }
            _ => {}
        }
    }

    fn lost(&mut self, tid: u32, _cause: Cause, events: u64) {
        self.lose(tid, events);
    }

    fn hello(&mut self, _fields: &[u8]) {}

    fn beheaded(&mut self, writer: &WriterId) {
        let process = self.survey.process_of(writer);
        let lost_before = self.end_life_of(writer.tid);
        self.add_life(writer.tid, process, lost_before);
        self.current = None;
    }

    fn segment(&mut self, segment: &Segment) {
        self.clock_start = (segment.header.t0_ticks, segment.header.t0_ns);
        if self.stream != segment.stream {
            (self.stream, self.current) = (segment.stream, None);
        }
        if segment.resumed && !segment.is_packed() {
            self.resumed = true;
            self.matched.lives.iter_mut().for_each(|life| life.stack.resumed());
            let lost_before = self.survey.lost_before.get(&segment.stream).into_iter().flatten();
            lost_before.for_each(|tid| self.lose(*tid, u64::MAX));
        }
    }

    fn unnumbered(&mut self) {
        if self.survey.has_unnumbered_gaps() {
            self.doubts += 1;
            self.lost_before = u64::MAX;
            self.current = None;
        }
    }

    fn cut(&mut self, _records: u64) {
        self.hole(1);
    }

    fn hole(&mut self, _segments: u32) {
        self.lost_before = u64::MAX;
        self.matched.lives.iter_mut().for_each(|life| life.stack.lost(u64::MAX));
    }
}

impl<'s> Matcher<'s> {
    fn lose(&mut self, tid: u32, events: u64) {
        if events == 0 {
            return;
        }
        match self.by_tid.get(&tid) {
            Some(index) => {
                let life = &mut self.matched.lives[*index];
                life.stack.lost(events);
                life.lost_since_call = life.lost_since_call.saturating_add(events);
            }
            None => {
                let early = self.lost_early.entry(tid).or_default();
                *early = early.saturating_add(events);
            }
        }
    }

    /// The life that a call is of: another one where this stream has the time again that an earlier one
    /// has of the thread.
    fn life_at(&mut self, event: &Event) -> Option<usize> {
        let mut index = self.life_of(event.tid)?;
        let life = &self.matched.lives[index];
        if life.stream != self.stream {
            let tolerance = self.overlap_ticks.min((life.last_ticks - life.first_ticks) / 2);
            if life.events > 0 && event.ts.saturating_add(tolerance) < life.last_ticks {
                let process = life.process;
                self.end_life_of(event.tid);
                index = self.add_life(event.tid, process, 0)?;
            }
            self.matched.lives[index].stream = self.stream;
        }
        self.current = Some((event.tid, index));
        Some(index)
    }

    /// The life of a thread, begun where it did not say so itself; `None` beyond [`MOST_LIVES`].
    fn life_of(&mut self, tid: u32) -> Option<usize> {
        let index = match self.by_tid.get(&tid) {
            Some(index) => *index,
            None => {
                let process = self.survey.process_of_silent(tid, self.clock_start);
                let index = self.add_life(tid, process, self.lost_before)?;
                if self.resumed {
                    self.matched.lives[index].stack.resumed();
                }
                index
            }
        };
        let life = &mut self.matched.lives[index];
        if life.doubts != self.doubts {
            // Where nothing is missing, the next event comes right behind the last one.
            life.doubts = self.doubts;
            life.stack.lost(u64::MAX);
        }
        Some(index)
    }

    /// A process note begins a life, unless it only repeats for a new file whose that file is.
    fn process(&mut self, tid: u32, note: &[u8]) {
        let made_up = self.survey.processes.len() - 1;
        let process = self.survey.announcements.get(self.announced).copied();
        self.announced += 1;
        if ProcessNote::parse(note).is_some_and(|note| note.flags & PROCESS_AGAIN != 0) {
            return;
        }
        let process = process.unwrap_or(made_up).min(made_up);
        if let Some(index) = self.by_tid.get(&tid) {
            let before = &self.matched.lives[*index];
            let is_main = self.survey.processes[process].pid == tid;
            if is_main && before.process == process && !before.stack.is_open() {
                // The main thread says it again: libc has zeroed what it knew of itself.
                return;
            }
        }
        let lost_before = self.end_life_of(tid);
        self.add_life(tid, process, lost_before);
        self.current = None;
    }

    /// Ends the life that a thread id has; gives what was lost since its last call.
    fn end_life_of(&mut self, tid: u32) -> u64 {
        let Some(index) = self.by_tid.remove(&tid) else { return 0 };
        self.matched.end_life(index);
        self.matched.lives[index].lost_since_call
    }

    fn add_life(&mut self, tid: u32, process: usize, lost_before: u64) -> Option<usize> {
        if self.matched.lives.len() >= self.most.0 {
            return None;
        }
        let of = &self.survey.processes[process];
        // The thread that forked is the first of the child, and alone has calls that were open then.
        let mut stack = Stack::new(of.forked && of.pid == tid);
        let lost_before = lost_before.saturating_add(self.lost_early.remove(&tid).unwrap_or(0));
        if lost_before > 0 {
            stack.lost(lost_before);
        }
        let (doubts, stream) = (self.doubts, self.stream);
        self.matched.lives.push(Life { process, tid, stream, stack, doubts, ..Life::default() });
        let index = self.matched.lives.len() - 1;
        self.by_tid.insert(tid, index);
        Some(index)
    }

    fn finish(mut self) -> Matched<'s> {
        self.keep_main_threads_alive();
        let last: Vec<usize> = self.by_tid.into_values().collect();
        last.into_iter().for_each(|index| self.matched.end_life(index));
        // Others' files close with a clock anchor; ours have one now and then, and say the end.
        for life in self.matched.lives.iter().filter(|life| life.closing_anchor.is_some()) {
            if !self.survey.processes[life.process].announced {
                self.matched.ended[life.process] = true;
            }
        }
        self.matched
    }

    /// A process lives as long as its main thread, which often only waits for the others. Of
    /// these nobody knows: one may have ended inside its functions (`pthread_exit`).
    fn keep_main_threads_alive(&mut self) {
        let processes = &self.survey.processes;
        let mut ends = vec![0; processes.len()];
        for life in &self.matched.lives {
            ends[life.process] = life.last_ticks.max(ends[life.process]);
        }
        for life in &mut self.matched.lives {
            let process = &processes[life.process];
            if process.announced && process.pid == life.tid {
                life.stack.alive(ends[life.process]);
            }
        }
    }
}

impl Matched<'_> {
    fn end_life(&mut self, index: usize) {
        let life = &mut self.lives[index];
        let mut stack = std::mem::take(&mut life.stack);
        let inside = stack.is_open();
        stack.finish(&mut self.tables[life.process]);
        if inside {
            // Whoever is still inside a function is there until the trace ends.
            life.last_ticks = stack.now();
        }
        life.tally = stack.tally;
    }
}

fn overlap_ticks(group: &Group) -> u64 {
    let rate = if group.in_ticks() { group.origin.tick_hz as f64 } else { 1e9 };
    (OVERLAP_TOLERANCE_NS * rate / 1e9) as u64
}

fn is_end(note: &[u8]) -> bool {
    callsight_format::ByteOrder::Little.u32(note, 0) == Some(StopReason::End as u32)
}

fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|char| !char.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use callsight_format::{ByteOrder, FileHeader, KIND_EXIT, Origin};

    use super::*;
    use crate::capture::Capture;
    use crate::modules::Finder;

    /// Lives, functions and skipped events of 100 calls, each in a thread and of a function as
    /// `place` numbers them, where 10 of each are followed.
    fn followed(place: fn(u64) -> (u32, u64)) -> (usize, usize, u64) {
        let header = FileHeader::new(Origin::default(), 7, 0);
        let mut bytes = header.to_bytes(ByteOrder::Little).to_vec();
        for call in 0..100 {
            let (tid, func) = place(call);
            for kind in [KIND_ENTER, KIND_EXIT] {
                let ts = 1000 + 2 * call + u64::from(kind);
                let event = Event { ts, func, tid, kind, ..Event::default() };
                bytes.extend(event.to_bytes(ByteOrder::Little));
            }
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("trace.7.7.0.bin");
        std::fs::write(&path, bytes).expect("write a capture");
        let capture = Capture::open(&[path]).expect("a capture");
        let survey = Survey::of(&capture.groups[0]).expect("a survey");
        let finder = Finder::new(&[]).expect("a finder");
        let files = CodeFiles::new(&finder);
        let matched = match_up_to((10, 10), &capture.groups[0], &survey, &files, Detail::default())
            .expect("calls");
        let functions = matched.tables.iter().map(|tables| tables.functions.len()).sum();
        (matched.lives.len(), functions, matched.skipped_events)
    }

    #[test]
    fn threads_beyond_the_limit_are_skipped_and_counted() {
        assert_eq!(followed(|call| (call as u32 + 1, 16)), (10, 1, 180));
        assert_eq!(followed(|call| (call as u32 % 10 + 1, 16)), (10, 1, 0));
    }

    #[test]
    fn functions_beyond_the_limit_are_skipped_and_counted() {
        assert_eq!(followed(|call| (7, 16 * call)), (1, 10, 180));
        assert_eq!(followed(|call| (7, 16 * (call % 10))), (1, 10, 0));
    }
}
