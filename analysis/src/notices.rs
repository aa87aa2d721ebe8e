//! Losses, truncations and doubts → sentences, one a kind.

use std::collections::{BTreeMap, BTreeSet};

use callsight_format::{
    Cause, EVENT_BYTES, FILE_WINDOW_BYTES, MARK_BUDGET, MARK_MAX_EVENTS, MARK_NO_SPACE,
    MARK_WRITE_ERROR, StopReason,
};

use crate::capture::Group;
use crate::clock::{Clock, RateSource};
use crate::matcher::{MOST_FUNCTIONS, MOST_LIVES};
use crate::oddities::Oddities;
use crate::report::{Mode, ProcessRow, Report, counted};
use crate::sentences::{Sentences, listed};
use crate::survey::{MOST_PROCESSES, Survey};

/// The rates of header and anchors may differ by this much before it is said: measuring for some
/// ms at the start of a busy process is off by 0.1 %.
const RATE_TOLERANCE: f64 = 0.02;

/// A clock may step back by this much before it is said: those of two cores may differ a little.
const STEP_TOLERANCE_NS: f64 = 1e6;

/// Adds up what all groups say about losses, and says it.
#[derive(Debug, Default)]
pub struct Doubts {
    wrapped_segments: u64,
    wrapped_events: u64,
    missing_segments: u64,
    missing_blocks: u64,
    cut_segments: u64,
    cut_records: u64,
    /// Processes whose end may be among what is missing.
    unsure: Vec<ProcessRow>,
    going_on: Vec<ProcessRow>,
    ignored_module_changes: u64,
    replaced_modules: u64,
    ignored_processes: u64,
    oddities: Oddities,
    /// What is said already; losses go ahead of it.
    pub said: Sentences,
    /// Whose header states a wrong clock rate, and the rates of these divided by the true ones.
    off_rates: (Vec<String>, Vec<f64>),
    greatest_step_back_ns: f64,
    skipped_events: u64,
    mismatches_resumed: u64,
    /// Starts of clocks, of programs that do not name themselves.
    starts: BTreeSet<(u64, u64)>,
}

impl Doubts {
    /// Doubts beside what is said already.
    pub fn new(said: Sentences) -> Doubts {
        Doubts { said, ..Doubts::default() }
    }

    /// What a group says of itself.
    pub fn add_group(
        &mut self,
        group: &Group,
        survey: &Survey,
        clock: &Clock,
        report: &mut Report,
    ) {
        for cause in Cause::all() {
            let events = survey.losses[cause as usize];
            if events > 0 {
                let sum = report.losses.entry(cause.name().to_string()).or_default();
                *sum = sum.saturating_add(events);
            }
        }
        if survey.other_losses > 0 {
            let sum = report.losses.entry("unknown".into()).or_default();
            *sum = sum.saturating_add(survey.other_losses);
        }
        if survey.wrapped_events > 0 {
            let sum = report.losses.entry("wrapped".into()).or_default();
            *sum = sum.saturating_add(survey.wrapped_events);
        }
        self.add_account(survey, &group.name(), report);
        if survey.wrapped_segments > 0 {
            // The markers of those that went first have gone as well; their events are in later ones.
            self.wrapped_segments += survey.wrapped_segments.max(group.missing_segments());
        }
        self.wrapped_events = self.wrapped_events.saturating_add(survey.wrapped_events);
        self.missing_segments += survey.missing_segments;
        self.cut_segments += survey.cut_segments;
        self.cut_records = self.cut_records.saturating_add(survey.cut_records);
        self.oddities.add(&survey.oddities);
        self.ignored_module_changes += survey.ignored_module_changes;
        self.replaced_modules += survey.replaced_modules;
        self.ignored_processes += survey.ignored_processes;
        let name = group.name();
        if group.wrapped && survey.wrapped_segments == 0 {
            self.said.say_of(
                &name,
                ": its beginning is not here: older segments were rotated away, or a drain took it",
            );
        }
        for (code, payload) in &survey.limits {
            self.said.say_of(&name, &format!(": recording stopped {}", limit(*code, *payload)));
        }
        survey.stops.iter().for_each(|(reason, text)| self.add_stop(*reason, text, &name));
        if survey.interruptions > 0 {
            self.said.count_of(
                &name,
                " broke off ",
                survey.interruptions,
                "time and went on again; events in between may be missing",
                "times and went on again; events in between may be missing",
            );
        }
        self.add_clock(clock, &name);
        if survey.processes.len() == 1 {
            self.starts.insert((group.origin.t0_ns, group.origin.t0_ticks));
        }
    }

    fn add_account(&mut self, survey: &Survey, name: &str, report: &mut Report) {
        let account = &survey.account;
        let beside = survey.other_losses.saturating_add(survey.wrapped_events);
        let sum = &mut report.identity;
        sum.emitted = sum.emitted.saturating_add(account.emitted).saturating_add(beside);
        sum.delivered += account.delivered;
        sum.left_in_ring = sum.left_in_ring.saturating_add(account.left_in_ring);
        sum.unaccounted = sum.unaccounted.saturating_add(account.unaccounted);
        if account.unaccounted != 0 {
            let than = if account.unaccounted > 0 { "more" } else { "fewer" };
            let rest = "emitted than are here or were dropped; its last chunks are damaged?";
            self.said.count_of(
                name,
                ": unaccounted: its end says that ",
                account.unaccounted.unsigned_abs(),
                &format!("record {than} was {rest}"),
                &format!("records {than} were {rest}"),
            );
        }
        let taken = survey.ledger.as_ref().map_or(0, |ledger| ledger.taken_before);
        if taken > 0 {
            let rest = "of its ring before it; to see them too, analyze both captures together";
            self.said.count_of(
                name,
                ": another drain had taken ",
                taken,
                &format!("record {rest}"),
                &format!("records {rest}"),
            );
        }
        if account.left_in_ring > 0 {
            let rest = "still in the ring when its drain was told to end; start it again to fetch \
                        what is there";
            self.said.count_of(
                name,
                ": ",
                account.left_in_ring,
                &format!("record was {rest}"),
                &format!("records were {rest}"),
            );
        }
        if let Some(ledger) = &survey.ledger {
            report.identity.repeated += ledger.repeated;
            self.missing_blocks = self.missing_blocks.saturating_add(ledger.missing_blocks);
        }
    }

    fn add_stop(&mut self, reason: StopReason, text: &str, name: &str) {
        let text = if text.is_empty() { "no reason given" } else { text };
        match reason {
            StopReason::RingUnusable => self.said.say_of(
                name,
                &format!(": the ring of TRACE_SHM could not be used, events went to files: {text}"),
            ),
            StopReason::NoModules => {
                self.said.say_of(name, &format!(": its modules are unknown: {text}"));
            }
            StopReason::Cut => self.said.say_of(
                name,
                &format!(" broke off before its end; what came later is missing: {text}"),
            ),
            StopReason::End | StopReason::Closed | StopReason::GoesOn => {}
        }
    }

    fn add_clock(&mut self, clock: &Clock, name: &str) {
        match clock.source {
            RateSource::Header => self.said.say_of(
                name,
                ": no closing clock anchor; times use the rate that was measured at its start",
            ),
            RateSource::Anchors { header_ratio } if (header_ratio - 1.0).abs() > RATE_TOLERANCE => {
                self.off_rates.0.push(name.to_string());
                self.off_rates.1.push(header_ratio);
            }
            _ => {}
        }
    }

    /// The farthest step back of a thread's clock.
    pub fn add_step_back(&mut self, ns: f64) {
        self.greatest_step_back_ns = self.greatest_step_back_ns.max(ns);
    }

    /// A process of which nothing says how it ended, because something is missing.
    pub fn add_unsure(&mut self, process: ProcessRow) {
        self.unsure.push(process);
    }

    /// A process that had not ended when its events were taken.
    pub fn add_going_on(&mut self, process: ProcessRow) {
        self.going_on.push(process);
    }

    /// What does not match because a drain was away.
    pub fn add_resumed(&mut self, mismatches: u64) {
        self.mismatches_resumed += mismatches;
    }

    /// Blocks that are whole, and contradict themselves.
    pub fn add_bad_blocks(&mut self, blocks: u64) {
        self.oddities.bad_blocks += blocks;
    }

    /// Events that lie beyond what is followed.
    pub fn add_skipped(&mut self, events: u64) {
        self.skipped_events += events;
    }

    /// Says a sentence, once.
    pub fn say(&mut self, line: String) {
        self.said.say(line);
    }

    /// Says how many there are of what is said in the singular and the plural; nothing of none.
    fn say_counted(&mut self, count: u64, one: &str, many: &str) {
        if count > 0 {
            self.say(counted(count, one, many));
        }
    }

    /// Puts the sentences into `report`, losses first.
    pub fn finish(mut self, report: &mut Report) {
        let said = std::mem::take(&mut self.said);
        self.say_losses(report);
        let mut lines = std::mem::take(&mut self.said).into_lines();
        lines.extend(said.into_lines());
        self.say_rates();
        self.say_matching(report);
        self.say_processes(report);
        self.say_oddities();
        let own = std::mem::take(&mut report.notices);
        lines.extend(self.said.into_lines());
        lines.extend(own);
        report.notices = lines;
    }

    fn say_losses(&mut self, report: &Report) {
        if !report.losses.is_empty() {
            let (one, many) = match report.mode {
                Mode::Summary => ("call was left out", "calls were left out"),
                Mode::Mixed => ("event or call was lost", "events and calls were lost"),
                Mode::Events => ("event was lost", "events were lost"),
            };
            let lost = counted(report.lost_events(), one, many);
            self.say(format!("{lost}: {}", list(&report.losses)));
        }
        if self.wrapped_segments > 0 {
            let events = counted(self.wrapped_events, "event", "events");
            let were = counted(
                self.wrapped_segments,
                &format!("segment with {events} was"),
                &format!("segments with {events} were"),
            );
            self.say(format!("{were} rotated away (TRACE_FULL=wrap); the beginning is missing"));
        }
        if self.missing_segments > 0 {
            let are = counted(self.missing_segments, "segment is", "segments are");
            self.say(format!("{are} not here; their events are missing"));
        }
        self.say_damage();
        if self.cut_segments > 0 {
            let are = counted(self.cut_segments, "segment was", "segments were");
            let events = counted(self.cut_records, "event", "events");
            self.say(format!("{are} cut short later: up to {events} of it are missing"));
        }
        if self.mismatches_resumed > 0 {
            let not_matching =
                counted(self.mismatches_resumed, "call or exit does", "calls or exits do");
            let known = match report.losses.is_empty() {
                true => "how many is unknown",
                false => "and counted above as far as anybody knows of them",
            };
            self.say(format!(
                "{not_matching} not match across a restart of the drain: events in between are \
                 lost, {known}"
            ));
        }
        if self.ignored_processes > 0 {
            let are = counted(self.ignored_processes, "process is", "processes are");
            self.say(format!(
                "{are} not told apart: one capture has more than {MOST_PROCESSES}; its file is \
                 damaged"
            ));
        }
        if self.skipped_events > 0 {
            let were = counted(self.skipped_events, "event was", "events were");
            self.say(format!(
                "{were} skipped: one capture has more than {MOST_LIVES} threads or \
                 {MOST_FUNCTIONS} functions; its file is damaged or of another tool"
            ));
        }
        if report.totals.pauses > 0 {
            let times = counted(report.totals.pauses, "time", "times");
            let threads = counted(report.totals.paused_threads, "thread", "threads");
            self.say(format!(
                "recording was paused {times} in {threads}; calls of that time are not in this \
                 trace, which is no loss"
            ));
        }
        if report.totals.gap_ns > 0 {
            let (what, _) = missing_words(report);
            self.say(format!(
                "{what} during {:.3} ms (over all threads); that time is in no function's total or \
                 self time",
                report.totals.gap_ns as f64 / 1e6
            ));
        }
    }

    /// What is wrong with files. The events in them are among the lost.
    fn say_damage(&mut self) {
        self.oddities.damage().into_iter().for_each(|line| self.say(line));
        self.say_counted(
            self.missing_blocks,
            "block is missing: damaged, dropped or never stored; what was in it is among the lost \
             events",
            "blocks are missing: damaged, dropped or never stored; what was in them is among the \
             lost events",
        );
    }

    fn say_rates(&mut self) {
        let (names, ratios) = std::mem::take(&mut self.off_rates);
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let factor = match ratios.len() {
            0 => return,
            1 => format!("a factor of {most:.3}"),
            _ => format!("factors of {least:.3} to {most:.3}"),
        };
        self.say(format!(
            "{}: its header states a clock rate that is off by {factor}; the clock anchors are used",
            listed(&names, names.len())
        ));
    }

    fn say_matching(&mut self, report: &Report) {
        let totals = &report.totals;
        let (while_so, because) = missing_words(report);
        self.say_counted(
            totals.exits_after_loss,
            &format!("exit has no enter because of {because}"),
            &format!("exits have no enter because of {because}"),
        );
        self.say_counted(
            totals.calls_cut_by_loss,
            &format!("call has no exit because of {because}"),
            &format!("calls have no exit because of {because}"),
        );
        self.say_counted(
            totals.uncertain_calls,
            &format!("call was open while {while_so}; it counts, but not for p50 to max"),
            &format!("calls were open while {while_so}; they count, but not for p50 to max"),
        );
        self.say_counted(
            totals.skipped_calls,
            "frame was skipped (longjmp, exception or thread cancel); it ends at the last event \
             inside it",
            "frames were skipped (longjmp, exception or thread cancel); they end at the last event \
             inside them",
        );
        self.say_counted(
            totals.inherited_exits,
            "exit is of a function that a forked process had entered before the fork",
            "exits are of functions that a forked process had entered before the fork",
        );
        if self.greatest_step_back_ns > STEP_TOLERANCE_NS {
            let ms = self.greatest_step_back_ns / 1e6;
            self.say(format!(
                "the clock of a thread stepped back by {ms:.3} ms; durations across that are too \
                 short"
            ));
        }
    }

    fn say_processes(&mut self, report: &Report) {
        let broken = report.processes.iter().filter(|process| process.ended == Some(false));
        let broken: Vec<&ProcessRow> = broken.collect();
        if !broken.is_empty() {
            self.say(format!(
                "{} did not end in order (killed, _exit or exec), or had not ended yet: the trace \
                 stops there",
                names(&broken)
            ));
            if self.wrapped_segments > 0 {
                self.say(format!(
                    "what a thread stored into a window that was rotated away under it is in no count \
                     then: at most {} events of each",
                    FILE_WINDOW_BYTES / EVENT_BYTES
                ));
            }
        }
        if !self.going_on.is_empty() {
            let going_on: Vec<&ProcessRow> = self.going_on.iter().collect();
            self.say(format!("{} had not ended when this was taken", names(&going_on)));
        }
        if !self.unsure.is_empty() {
            let unsure: Vec<&ProcessRow> = self.unsure.iter().collect();
            self.say(format!(
                "how {} ended is not known: what would say so is among the lost",
                names(&unsure)
            ));
        }
        let runs: Vec<&ProcessRow> = report
            .processes
            .iter()
            .filter(|process| !process.forked && process.start > 0)
            .collect();
        let count = runs.len() + self.starts.len();
        if count > 1 {
            let who = if runs.is_empty() { String::new() } else { format!(": {}", names(&runs)) };
            self.say(format!("{count} runs are added up here{who}"));
        }
    }

    fn say_oddities(&mut self) {
        self.oddities.skipped().into_iter().for_each(|line| self.say(line));
        self.say_counted(
            self.ignored_module_changes,
            "module that came or went is not followed; functions may have a wrong module",
            "modules that came or went are not followed; functions may have a wrong module",
        );
        self.say_counted(
            self.replaced_modules,
            "module came where another was that was not seen to go; calls there just before may have a wrong one",
            "modules came where others were that were not seen to go; calls there just before may have a wrong one",
        );
    }
}

/// Where or why recording stopped.
fn limit(code: u64, payload: u64) -> String {
    let mib = payload as f64 / 1048576.0;
    match code {
        MARK_BUDGET => format!("at the disk budget of {mib:.1} MiB"),
        MARK_NO_SPACE => format!("because less than {mib:.1} MiB of disk were free"),
        MARK_WRITE_ERROR => {
            let error = std::io::Error::from_raw_os_error(payload as i32);
            format!("because writing failed: {error}")
        }
        MARK_MAX_EVENTS => format!("at the limit of {}", counted(payload, "event", "events")),
        other => format!("(marker {other})"),
    }
}

/// What kept events from the trace: as what happened meanwhile, and as a cause.
fn missing_words(report: &Report) -> (&'static str, &'static str) {
    match (report.lost_events() > 0, report.totals.pauses > 0) {
        (false, true) => ("recording was paused", "a pause"),
        (true, true) => {
            ("events were lost or recording was paused", "the lost events or of a pause")
        }
        (true, false) => ("events were lost", "the lost events"),
        (false, false) => ("events are missing here", "events that are not here"),
    }
}

fn list(losses: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = losses.iter().map(|(cause, n)| format!("{n} {cause}")).collect();
    parts.join(", ")
}

fn names(processes: &[&ProcessRow]) -> String {
    let name = |process: &&ProcessRow| match process.exe.is_empty() {
        true => format!("process {}", process.pid),
        false => format!("process {} ({})", process.pid, process.exe),
    };
    let names: Vec<String> = processes.iter().map(name).collect();
    listed(&names, names.len())
}
