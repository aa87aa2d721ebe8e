//! The report for programs. Keys that the public C callsight 0.5.0 has keep their names.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::limit;
use crate::report::{self, Report, Row};

#[derive(Serialize)]
struct Document<'r> {
    tool: &'static str,
    version: &'static str,
    mode: &'static str,
    events: u64,
    summed_calls: u64,
    threads: usize,
    functions: usize,
    span_ms: f64,
    unmatched_exits: u64,
    unclosed_enters: u64,
    inherited_exits: u64,
    exits_after_loss: u64,
    skipped_calls: u64,
    calls_cut_by_loss: u64,
    uncertain_calls: u64,
    pauses: u64,
    gap_ms: f64,
    lost_events: u64,
    identity: Identity<'r>,
    losses: &'r BTreeMap<String, u64>,
    hook_ns: u64,
    overhead_subtracted: bool,
    notices: &'r [String],
    pids: Vec<u32>,
    processes: Vec<Process<'r>>,
    rows: Vec<Function<'r>>,
    per_thread: Vec<Thread<'r>>,
}

#[derive(Serialize)]
struct Identity<'r> {
    emitted: u64,
    delivered: u64,
    dropped: &'r BTreeMap<String, u64>,
    left_in_ring: u64,
    unaccounted: i64,
    repeated: u64,
}

#[derive(Serialize)]
struct Process<'r> {
    pid: u32,
    start: u64,
    exe: &'r str,
    forked: bool,
    ended: Option<bool>,
}

#[derive(Serialize)]
struct Thread<'r> {
    pid: u32,
    tid: u32,
    name: &'r str,
    events: u64,
    span_ms: f64,
}

#[derive(Serialize)]
struct Function<'r> {
    function: &'r str,
    location: String,
    module: &'r str,
    build_id: &'r str,
    address: String,
    calls: u64,
    incl_ms: f64,
    self_ms: f64,
    max_ms: Option<f64>,
    min_ns: Option<u64>,
    mean_ns: Option<u64>,
    max_ns: Option<u64>,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    not_returned: u64,
    uncertain: u64,
}

impl Report {
    /// Writes the report as one JSON object, with `top` functions (0 for all).
    ///
    /// # Errors
    /// What `out` gives.
    pub fn write_json(&self, out: &mut impl Write, top: usize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, &self.document(top))?;
        writeln!(out)
    }

    fn document(&self, top: usize) -> Document<'_> {
        let totals = &self.totals;
        Document {
            tool: "callsight",
            version: env!("CARGO_PKG_VERSION"),
            mode: self.mode.name(),
            events: self.events,
            summed_calls: self.summed_calls,
            threads: self.threads.len(),
            functions: self.rows.len(),
            span_ms: ms(self.span_ns),
            unmatched_exits: totals.unmatched_exits,
            unclosed_enters: totals.unclosed_enters,
            inherited_exits: totals.inherited_exits,
            exits_after_loss: totals.exits_after_loss,
            skipped_calls: totals.skipped_calls,
            calls_cut_by_loss: totals.calls_cut_by_loss,
            uncertain_calls: totals.uncertain_calls,
            pauses: totals.pauses,
            gap_ms: ms(totals.gap_ns),
            lost_events: self.lost_events(),
            identity: self.identity(),
            losses: &self.losses,
            hook_ns: self.hook_ns,
            overhead_subtracted: self.overhead_subtracted,
            notices: &self.notices,
            pids: self.pids(),
            processes: self.process_list(),
            rows: self.rows[..limit(top, self.rows.len())].iter().map(function).collect(),
            per_thread: self.thread_list(),
        }
    }

    fn identity(&self) -> Identity<'_> {
        let report::Identity { emitted, delivered, left_in_ring, unaccounted, repeated } =
            self.identity;
        let dropped = &self.losses;
        Identity { emitted, delivered, dropped, left_in_ring, unaccounted, repeated }
    }

    fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.threads.iter().map(|thread| thread.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn process_list(&self) -> Vec<Process<'_>> {
        let list = self.processes.iter().map(|process| Process {
            pid: process.pid,
            start: process.start,
            exe: &process.exe,
            forked: process.forked,
            ended: process.ended,
        });
        list.collect()
    }

    fn thread_list(&self) -> Vec<Thread<'_>> {
        let list = self.threads.iter().map(|thread| Thread {
            pid: thread.pid,
            tid: thread.tid,
            name: &thread.name,
            events: thread.events,
            span_ms: ms(thread.span_ns),
        });
        list.collect()
    }
}

fn function(row: &Row) -> Function<'_> {
    let durations = row.durations.as_ref();
    Function {
        function: &row.function,
        location: row
            .location
            .as_ref()
            .map_or_else(String::new, |location| format!("{}:{}", location.file, location.line)),
        module: &row.module,
        build_id: &row.build_id,
        address: format!("{:#x}", row.address),
        calls: row.calls,
        incl_ms: ms(row.total_ns),
        self_ms: ms(row.self_ns),
        max_ms: durations.map(|d| ms(d.max_ns)),
        min_ns: durations.map(|d| d.min_ns),
        mean_ns: durations.map(|d| d.mean_ns),
        max_ns: durations.map(|d| d.max_ns),
        p50_ns: durations.map(|d| d.p50_ns),
        p90_ns: durations.map(|d| d.p90_ns),
        p99_ns: durations.map(|d| d.p99_ns),
        p999_ns: durations.map(|d| d.p999_ns),
        not_returned: row.not_returned,
        uncertain: row.uncertain,
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
