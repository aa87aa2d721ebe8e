//! The report for people: one line of totals, what is doubtful, then tables.

use std::io::{self, Write};

use super::labels::Labels;
use super::{duration, limit};
use crate::report::{Mode, Report, Row, counted};

impl Report {
    /// Writes the report for people, with `top` lines a table (0 for all).
    ///
    /// # Errors
    /// What `out` gives.
    pub fn write_text(&self, out: &mut impl Write, top: usize) -> io::Result<()> {
        writeln!(out, "{}", self.headline())?;
        writeln!(out, "{}", self.identity_line())?;
        self.write_notices(out)?;
        let labels = Labels::of(self);
        let by_self: Vec<&Row> = self.rows.iter().collect();
        let mut by_total = by_self.clone();
        by_total.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        write_table(out, "self time", &by_self, top, &labels)?;
        write_table(out, "total time", &by_total, top, &labels)?;
        self.write_threads(out, top)
    }

    /// Writes the line of totals alone, as the text report begins.
    pub fn headline(&self) -> String {
        let summed = match self.mode {
            Mode::Events => String::new(),
            Mode::Summary | Mode::Mixed => format!(" summed_calls={}", self.summed_calls),
        };
        format!(
            "events={} threads={} functions={} span={:.3}ms unmatched_exits={} unclosed_enters={}\
             {summed}",
            self.events,
            self.threads.len(),
            self.rows.len(),
            self.span_ns as f64 / 1e6,
            self.totals.unmatched_exits,
            self.totals.unclosed_enters,
        )
    }

    /// The counting identity in one line.
    pub fn identity_line(&self) -> String {
        let what = match self.mode {
            Mode::Events => "records",
            Mode::Summary => "calls",
            Mode::Mixed => "records and calls",
        };
        format!(
            "{what} emitted={} delivered={} dropped={} unaccounted={}",
            self.identity.emitted,
            self.identity.delivered,
            self.lost_events(),
            self.identity.unaccounted,
        )
    }

    /// Writes what is lost, cut or doubtful, a line each.
    ///
    /// # Errors
    /// What `out` gives.
    pub fn write_notices(&self, out: &mut impl Write) -> io::Result<()> {
        for notice in &self.notices {
            let notice = notice.replace(char::is_control, " ");
            writeln!(out, "! {notice}")?;
        }
        Ok(())
    }

    fn write_threads(&self, out: &mut impl Write, top: usize) -> io::Result<()> {
        let mut threads: Vec<_> = self.threads.iter().collect();
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.events));
        let shown = limit(top, threads.len());
        writeln!(out, "\n{}", title(shown, threads.len(), ["thread", "threads"], "events"))?;
        writeln!(out, "{:>8} {:>8}  {:<15} {:>12} {:>10}", "pid", "tid", "name", "events", "span")?;
        for thread in &threads[..shown] {
            let name = if thread.name.is_empty() { "-" } else { &thread.name };
            writeln!(
                out,
                "{:>8} {:>8}  {:<15} {:>12} {:>10}",
                thread.pid,
                thread.tid,
                name,
                thread.events,
                duration(thread.span_ns)
            )?;
        }
        Ok(())
    }
}

fn title(shown: usize, all: usize, [one, many]: [&str; 2], by: &str) -> String {
    let all_of_them = counted(all as u64, one, many);
    match shown == all {
        true => format!("{all_of_them} by {by}"),
        false => format!("{shown} of {all_of_them} by {by}"),
    }
}

fn write_table(
    out: &mut impl Write,
    by: &str,
    rows: &[&Row],
    top: usize,
    labels: &Labels,
) -> io::Result<()> {
    let shown = limit(top, rows.len());
    writeln!(out, "\n{}", title(shown, rows.len(), ["function", "functions"], by))?;
    writeln!(
        out,
        "{:>12} {:>10} {:>10} {:>10} {:>10} {:>10}  function",
        "calls", "total", "self", "p50", "p99", "max"
    )?;
    for row in &rows[..shown] {
        let [p50, p99, max] = match &row.durations {
            Some(d) => [d.p50_ns, d.p99_ns, d.max_ns].map(duration),
            None => ["-"; 3].map(String::from),
        };
        writeln!(
            out,
            "{:>12} {:>10} {:>10} {p50:>10} {p99:>10} {max:>10}  {}{}",
            row.calls,
            duration(row.total_ns),
            duration(row.self_ns),
            labels.function(row),
            remarks(row)
        )?;
    }
    Ok(())
}

fn remarks(row: &Row) -> String {
    let mut remarks = String::new();
    if row.not_returned > 0 {
        remarks += &format!(", {} not returned", row.not_returned);
    }
    if row.uncertain > 0 {
        remarks += &format!(", {} open during a loss", row.uncertain);
    }
    remarks
}
