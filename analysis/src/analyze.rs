//! A request → a report: the order in which everything else is called.

use std::path::PathBuf;

use callsight_format::Origin;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::assembly::Assembly;
use crate::capture::{Capture, Group};
use crate::clock::{Anchor, Clock};
use crate::code::CodeFiles;
use crate::matcher::{Life, Matched, match_calls};
use crate::modules::Finder;
use crate::naming::put_rows;
use crate::notices::Doubts;
use crate::report::{Mode, ProcessRow, Report, ThreadRow, counted};
use crate::stack::Tally;
use crate::summary::Summary;
use crate::summed::Summed;
use crate::survey::{ClockStart, Process, Survey, inherit_modules};
use crate::tables::Detail;
use crate::twice::Twice;

/// How to analyze.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Binaries to take names from instead of the paths in the capture.
    pub exes: Vec<PathBuf>,
    /// A tool to ask for names instead of reading the ELF files.
    pub addr2line: Option<PathBuf>,
    /// What to collect beside the numbers by function.
    pub detail: Detail,
    /// Take the measured cost of hooks off total and self times.
    pub subtract_overhead: bool,
}

/// Reads captures, directories or files, and reports on all of them together.
///
/// # Errors
/// Nothing to report on, or names that would be wrong; see [`Error`].
pub fn analyze(paths: &[PathBuf], options: &Options) -> Result<Report, Error> {
    let finder = Finder::new(&options.exes)?;
    let mut capture = Capture::open(paths)?;
    let mut surveys: Vec<Survey> =
        capture.groups.iter().map(Survey::of).collect::<Result<_, _>>()?;
    inherit_modules(&mut surveys);
    check_exes(&finder, &surveys)?;
    let files = CodeFiles::new(&finder);
    let mut analysis = Analysis::new(options, &finder, &surveys, &mut capture);
    for (group, survey) in capture.groups.iter().zip(&surveys) {
        analysis.add_group(group, survey, &files)?;
    }
    for path in &capture.summaries {
        analysis.add_summary(path);
    }
    analysis.finish(&capture, &finder)
}

struct Analysis<'o> {
    options: &'o Options,
    /// By the start of the clock, and by pid and start of the process: its lives share the machine's.
    anchors: FxHashMap<ClockStart, Vec<Anchor>>,
    anchors_of_processes: FxHashMap<(u32, u64), Vec<Anchor>>,
    assembly: Assembly,
    report: Report,
    doubts: Doubts,
    event_files_used: usize,
    summed: Summed,
    span: Span,
    twice: Twice,
}

impl<'o> Analysis<'o> {
    fn new(
        options: &'o Options,
        finder: &Finder,
        surveys: &[Survey],
        capture: &mut Capture,
    ) -> Analysis<'o> {
        let doubts = Doubts::new(std::mem::take(&mut capture.notices));
        let mut analysis = Analysis {
            options,
            anchors: FxHashMap::default(),
            anchors_of_processes: FxHashMap::default(),
            assembly: Assembly::new(options.subtract_overhead, finder.has_exe()),
            report: Report::default(),
            doubts,
            event_files_used: 0,
            summed: Summed::default(),
            span: Span::default(),
            twice: Twice::default(),
        };
        for (group, survey) in capture.groups.iter().zip(surveys) {
            analysis.add_anchor(group, survey);
        }
        analysis
    }

    fn add_anchor(&mut self, group: &Group, survey: &Survey) {
        let Some(anchor) = survey.last_anchor else { return };
        let Origin { t0_ticks, t0_ns, .. } = group.origin;
        self.anchors.entry((t0_ticks, t0_ns)).or_default().push(anchor);
        for process in lives(group, survey) {
            let anchors = self.anchors_of_processes.entry(process).or_default();
            anchors.push(anchor);
        }
    }

    fn clock(&self, origin: &Origin, in_ticks: bool, lives: &[(u32, u64)]) -> Option<Clock> {
        if !in_ticks {
            return Some(Clock::NANOSECONDS);
        }
        let same_start = self.anchors.get(&(origin.t0_ticks, origin.t0_ns));
        let same_process =
            lives.iter().filter_map(|process| self.anchors_of_processes.get(process));
        Clock::of_ticks(origin, same_start.into_iter().chain(same_process).flatten().copied())
    }

    fn add_group(
        &mut self,
        group: &Group,
        survey: &Survey,
        files: &CodeFiles<'_>,
    ) -> Result<(), Error> {
        let lives: Vec<(u32, u64)> = lives(group, survey).collect();
        let Some(clock) = self.clock(&group.origin, group.in_ticks(), &lives) else {
            let name = group.name();
            let why = "its times are clock ticks, and neither its header nor an anchor says how \
                       long a tick is";
            self.doubts.said.leave_out(&name, &format!("{name}: {why}"));
            return Ok(());
        };
        let matched = match_calls(group, survey, files, self.options.detail)?;
        self.event_files_used += group.segments.len();
        for (process, tables) in survey.processes.iter().zip(&matched.tables) {
            self.assembly.add_process(group, process, &clock, tables);
        }
        self.add_threads(group, survey, &clock, &matched);
        self.add_processes(group, survey, &matched);
        self.report.hook_ns = self.report.hook_ns.max(group.origin.hook_ns);
        self.doubts.add_group(group, survey, &clock, &mut self.report);
        self.doubts.add_skipped(matched.skipped_events);
        self.doubts.add_bad_blocks(matched.bad_blocks);
        Ok(())
    }

    fn add_threads(
        &mut self,
        group: &Group,
        survey: &Survey,
        clock: &Clock,
        matched: &Matched<'_>,
    ) {
        let unmatched_before = self.report.totals.unmatched_exits;
        let mut span = Span::default();
        self.twice.group(group);
        for life in &matched.lives {
            self.add_tally(&life.tally, clock);
            if life.events == 0 {
                continue;
            }
            let process = &survey.processes[life.process];
            let (from, to) = (clock.time_ns(life.first_ticks), clock.time_ns(life.last_ticks));
            span.add(from, to);
            self.twice.thread(process, life.tid, life.stream, (from, to));
            self.report.events += life.events;
            self.report.threads.push(thread_row(life, process, clock));
        }
        // Losses of which nobody knows the thread explain exits of any.
        let totals = &mut self.report.totals;
        let explained = survey.stray_losses.min(totals.unmatched_exits - unmatched_before);
        totals.unmatched_exits -= explained;
        totals.exits_after_loss += explained;
        // Processes that wrote here share a clock; a stream has that of its own machine.
        match group.streamed {
            true => self.report.span_ns = self.report.span_ns.max(span.length_ns()),
            false => self.span.join(&span),
        }
    }

    fn add_tally(&mut self, tally: &Tally, clock: &Clock) {
        let totals = &mut self.report.totals;
        totals.unmatched_exits += tally.unmatched_exits;
        totals.unclosed_enters += tally.unclosed_enters;
        totals.exits_after_loss += tally.exits_after_loss;
        totals.inherited_exits += tally.inherited_exits;
        totals.skipped_calls += tally.skipped_calls;
        totals.calls_cut_by_loss += tally.calls_cut_by_loss;
        totals.uncertain_calls += tally.uncertain_calls;
        totals.pauses += tally.pauses;
        totals.paused_threads += u64::from(tally.pauses > 0);
        let gap_ns = clock.duration_ns(tally.gap_ticks).round() as u64;
        totals.gap_ns = totals.gap_ns.saturating_add(gap_ns);
        self.doubts.add_resumed(tally.mismatches_resumed);
        self.doubts.add_step_back(clock.duration_ns(tally.greatest_step_back));
    }

    fn add_processes(&mut self, group: &Group, survey: &Survey, matched: &Matched<'_>) {
        let mut lived = vec![false; survey.processes.len()];
        matched.lives.iter().for_each(|life| lived[life.process] |= life.events > 0);
        for (index, process) in survey.processes.iter().enumerate() {
            if !lived[index] && !process.announced {
                continue;
            }
            let mut row = ProcessRow {
                pid: process.pid,
                start: process.start,
                exe: String::from_utf8_lossy(&process.exe).into_owned(),
                forked: process.forked,
                ended: ended(group, survey, matched, index),
            };
            if row.ended != Some(true) && survey.was_taken_early() {
                row.ended = None;
                self.doubts.add_going_on(row.clone());
            } else if row.ended == Some(false) && survey.has_gaps() {
                row.ended = None;
                self.doubts.add_unsure(row.clone());
            }
            self.report.processes.push(row);
        }
    }

    fn add_summary(&mut self, path: &std::path::Path) {
        let summary = match Summary::read(path) {
            Ok(summary) => summary,
            Err(error) => {
                let path = path.display().to_string();
                return self.doubts.said.leave_out(&path, &error.to_string());
            }
        };
        let Some(clock) = self.clock(&summary.origin, summary.in_ticks(), &[]) else {
            let path = path.display().to_string();
            let why = format!("{path}: it does not say how long a tick is");
            return self.doubts.said.leave_out(&path, &why);
        };
        self.assembly.add_summary(&summary, &clock);
        let span_ns = clock.duration_ns(summary.span).round() as u64;
        self.summed.add(path, &summary, span_ns, &mut self.doubts, &mut self.report);
    }

    fn finish(mut self, capture: &Capture, finder: &Finder) -> Result<Report, Error> {
        let mut report = self.report;
        report.mode = match [self.event_files_used, self.summed.files] {
            [0, 0] => {
                let files = capture.groups.iter().map(|group| group.segments.len()).sum::<usize>()
                    + capture.summaries.len();
                self.doubts.finish(&mut report);
                let first = report.notices.into_iter().next().unwrap_or_default();
                return Err(Error::NothingUsable { files, first });
            }
            [_, 0] => Mode::Events,
            [0, _] => Mode::Summary,
            [events, summaries] => {
                let events = counted(events as u64, "event file", "event files");
                let summaries = counted(summaries as u64, "summary file", "summary files");
                self.doubts.say(format!("{events} and {summaries} are added up here"));
                Mode::Mixed
            }
        };
        if report.mode == Mode::Events && report.events == 0 {
            self.doubts.say("there is no enter and no exit in these files".into());
        }
        self.twice.say(&mut self.doubts.said);
        self.summed.finish(self.options, &mut self.doubts, &mut report);
        if self.assembly.cut_calls > 0 {
            let most = crate::paths::MAX_DEPTH;
            self.doubts.say(counted(
                self.assembly.cut_calls,
                &format!("call is deeper than {most} frames; its path is cut there"),
                &format!("calls are deeper than {most} frames; their paths are cut there"),
            ));
        }
        report.overhead_subtracted = self.options.subtract_overhead && report.hook_ns > 0;
        if report.overhead_subtracted {
            self.doubts.say(format!(
                "{} ns a hook are taken off total and self times; p50 to max are as measured",
                report.hook_ns
            ));
        } else if self.options.subtract_overhead && self.event_files_used > 0 {
            self.doubts.say(
                "nothing is taken off total and self times: these files do not say what a hook costs"
                    .into(),
            );
        }
        report.span_ns = report.span_ns.max(self.span.length_ns());
        report.threads.sort_by_key(|thread| (thread.pid, thread.tid));
        let tool = self.options.addr2line.as_deref();
        put_rows(self.assembly, finder, tool, &mut report)?;
        self.doubts.finish(&mut report);
        Ok(report)
    }
}

/// The processes whose lives may have left other files here: `exec` leaves no closing anchor, and the
/// clock goes on.
fn lives(group: &Group, survey: &Survey) -> impl Iterator<Item = (u32, u64)> {
    let in_ticks_of_files = group.in_ticks() && group.mapped;
    let processes =
        survey.processes.iter().filter(move |process| in_ticks_of_files && process.start > 0);
    processes.map(|process| (process.pid, process.start))
}

/// Whether a process ended its recording in order; `None` where its files cannot tell.
fn ended(group: &Group, survey: &Survey, matched: &Matched<'_>, index: usize) -> Option<bool> {
    if group.in_ticks() {
        return Some(matched.ended[index]);
    }
    // Without ticks there is no closing anchor, but our own files are cut to their last record.
    let last = index + 2 == survey.processes.len() && group.mapped;
    matched.ended[index].then_some(true).or(last.then_some(!survey.oddities.unwritten_end))
}

fn thread_row(life: &Life, process: &Process, clock: &Clock) -> ThreadRow {
    let span_ns = clock.duration_ns(life.last_ticks - life.first_ticks).round() as u64;
    let (tid, events) = (life.tid, life.events);
    ThreadRow { pid: process.pid, tid, name: life.name.clone(), events, span_ns }
}

fn check_exes(finder: &Finder, surveys: &[Survey]) -> Result<(), Error> {
    let (mut mains, mut libraries) = (Vec::new(), Vec::new());
    for process in surveys.iter().flat_map(|survey| &survey.processes) {
        for mapping in process.space.mappings() {
            match mapping.path == process.exe || !process.modules_known {
                true if process.announced || !mapping.path.is_empty() => {
                    mains.push(&mapping.build_id[..]);
                }
                true => {}
                false => libraries.push(&mapping.build_id[..]),
            }
        }
    }
    finder.check_exes(&mains, &libraries)
}

/// Earliest and latest time.
#[derive(Debug, Default)]
struct Span(Option<(f64, f64)>);

impl Span {
    fn add(&mut self, from: f64, to: f64) {
        let (first, last) = self.0.unwrap_or((from, to));
        self.0 = Some((first.min(from), last.max(to)));
    }

    fn join(&mut self, other: &Span) {
        if let Some((from, to)) = other.0 {
            self.add(from, to);
        }
    }

    fn length_ns(&self) -> u64 {
        self.0.map_or(0, |(first, last)| (last - first).round() as u64)
    }
}
