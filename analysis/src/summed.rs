//! What the summary files of a report add to it beside rows: threads, calls, losses and doubts.

use std::collections::BTreeMap;
use std::path::Path;

use crate::analyze::Options;
use crate::notices::Doubts;
use crate::report::{Report, ThreadRow, counted};
use crate::summary::Summary;

/// Of losses of which their file tells no cause.
const NO_CAUSE: &str = "unknown";

/// Adds up what the files say.
#[derive(Debug, Default)]
pub struct Summed {
    /// How many there are.
    pub files: usize,
    /// Calls in their records, and those that are in none.
    calls: u64,
    left_out: u64,
    /// Calls that had not returned, by process.
    not_returned: BTreeMap<u32, u64>,
    /// Files that may count every level of a recursion.
    of_all_levels: u64,
}

impl Summed {
    /// Another file, whose thread saw events during `span_ns`.
    pub fn add(
        &mut self,
        path: &Path,
        summary: &Summary,
        span_ns: u64,
        doubts: &mut Doubts,
        report: &mut Report,
    ) {
        let Summary { pid, tid, truncated_calls, missing_records, .. } = *summary;
        let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0, u64::saturating_add);
        let functions = || summary.functions.iter();
        self.files += 1;
        let calls = sum(&mut functions().map(|function| function.calls));
        let open = sum(&mut functions().map(|function| function.not_returned));
        self.calls = self.calls.saturating_add(calls);
        self.left_out = self.left_out.saturating_add(truncated_calls);
        self.of_all_levels += u64::from(!summary.counts_recursion_once);
        let of_process = self.not_returned.entry(pid).or_default();
        *of_process = of_process.saturating_add(open);
        report.span_ns = report.span_ns.max(span_ns);
        report.threads.push(ThreadRow { pid, tid, name: String::new(), events: 0, span_ns });
        if truncated_calls > 0 {
            let rest = "counted in its summary, but for no function: too deep, of more functions \
                        than it has room for, or of a thread that could have no file; it does not \
                        say which";
            doubts.said.count_of(
                &format!("thread {tid} of process {pid}"),
                ": ",
                truncated_calls,
                &format!("call is {rest}"),
                &format!("calls are {rest}"),
            );
        }
        if missing_records > 0 {
            doubts.said.count_of(
                &path.display().to_string(),
                ": ",
                missing_records,
                "function is missing, the file is cut",
                "functions are missing, the file is cut",
            );
        }
    }

    /// Puts the sums into a report of which all files are read.
    pub fn finish(self, options: &Options, doubts: &mut Doubts, report: &mut Report) {
        if self.files == 0 {
            return;
        }
        report.summed_calls = self.calls;
        let identity = &mut report.identity;
        let emitted = self.calls.saturating_add(self.left_out);
        identity.emitted = identity.emitted.saturating_add(emitted);
        identity.delivered = identity.delivered.saturating_add(self.calls);
        if self.left_out > 0 {
            let lost = report.losses.entry(NO_CAUSE.to_string()).or_default();
            *lost = lost.saturating_add(self.left_out);
        }
        for (pid, calls) in self.not_returned.into_iter().filter(|(_, calls)| *calls > 0) {
            let totals = &mut report.totals;
            totals.unclosed_enters = totals.unclosed_enters.saturating_add(calls);
            let rest = "not returned when its summary was left, as in threads that were not done \
                        when it ended, or were killed; this time is in no total or self time";
            doubts.said.count_of(
                &format!("process {pid}"),
                ": ",
                calls,
                &format!("call had {rest}"),
                &format!("calls had {rest}"),
            );
        }
        doubts.say("percentiles from summary files are at most 13 % off".into());
        if self.of_all_levels > 0 {
            let files = counted(self.of_all_levels, "summary file", "summary files");
            doubts.say(format!(
                "{files} may count every level of a recursion for the total of a function: of C \
                 callsight, which does"
            ));
        }
        say_what_is_asked_in_vain(options, doubts);
    }
}

/// What event files have and summary files have not.
fn say_what_is_asked_in_vain(options: &Options, doubts: &mut Doubts) {
    let asked = [
        (
            options.detail.paths,
            "no stacks of their calls, only sums by function: they are not in this output",
        ),
        (options.detail.callers, "no callers, only sums by function: they are not in this output"),
        (
            options.subtract_overhead,
            "no count of the hooks in a time: nothing is taken off their times",
        ),
    ];
    for (_, words) in asked.into_iter().filter(|(is_asked, _)| *is_asked) {
        doubts.say(format!("summary files have {words}"));
    }
}
