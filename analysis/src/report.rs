//! What an analysis found out, as plain data. The writers beside this file print it.

use std::collections::BTreeMap;

use crate::elf::Location;

/// The answer to a request.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Enters and exits in all event files.
    pub events: u64,
    /// Calls in all summary files, but for those left out.
    pub summed_calls: u64,
    /// From the first to the last event, in ns.
    pub span_ns: u64,
    /// What the matching could not pair, by reason.
    pub totals: Totals,
    /// What became of the records of all writers.
    pub identity: Identity,
    /// Events lost, by cause. Empty where nothing was lost.
    pub losses: BTreeMap<String, u64>,
    /// Every loss, truncation and doubt, a sentence each.
    pub notices: Vec<String>,
    /// The functions, greatest self time first.
    pub rows: Vec<Row>,
    /// The threads, in the order of process and thread id.
    pub threads: Vec<ThreadRow>,
    /// The processes.
    pub processes: Vec<ProcessRow>,
    /// Calls by caller and place, greatest total first; empty unless asked for.
    pub callers: Vec<CallerRow>,
    /// Self times by path; empty unless asked for. A path stands behind the one it continues.
    pub paths: Vec<PathRow>,
    /// Kind of the files read.
    pub mode: Mode,
    /// Greatest measured cost of a hook, in ns.
    pub hook_ns: u64,
    /// Whether the cost of hooks was taken off total and self times.
    pub overhead_subtracted: bool,
}

/// The counting identity: emitted = delivered + dropped by cause ([`Report::losses`]). In records:
/// enters, exits, markers and notes, but that a sink which dropped some tells only how many enters
/// and exits there were. What is of summary files: in calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// By all writers, as far as the captures tell.
    pub emitted: u64,
    /// Those in the captures.
    pub delivered: u64,
    /// Of those emitted: left in their rings by drains that were told to end. Not a loss.
    pub left_in_ring: u64,
    /// What is left over. Not 0 means that counts in the captures contradict each other.
    pub unaccounted: i64,
    /// Records that came more than once, and count once.
    pub repeated: u64,
}

/// Kind of the files of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Event files.
    #[default]
    Events,
    /// Summary files.
    Summary,
    /// Both.
    Mixed,
}

impl Mode {
    /// The word for it in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Events => "events",
            Mode::Summary => "summary",
            Mode::Mixed => "mixed",
        }
    }
}

/// What the matching found odd, over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Exits without an enter that nothing explains.
    pub unmatched_exits: u64,
    /// Calls that had not returned when their thread's trace or summary ended.
    pub unclosed_enters: u64,
    /// Exits whose enter is among lost events, or was not recorded in a pause.
    pub exits_after_loss: u64,
    /// Exits of calls that a forked process had inherited.
    pub inherited_exits: u64,
    /// Calls left without an exit and closed: longjmp, an exception, a cancelled thread.
    pub skipped_calls: u64,
    /// Calls whose exit is among lost events, or was not recorded in a pause.
    pub calls_cut_by_loss: u64,
    /// Calls during which events were lost or recording was paused.
    pub uncertain_calls: u64,
    /// How often recording was paused, over all threads, and how many of these it was.
    pub pauses: u64,
    /// See `pauses`.
    pub paused_threads: u64,
    /// Time in which events were lost or recording was paused, over all threads, in ns.
    pub gap_ns: u64,
}

/// One function of one module.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its name; its module and its address in that, in hexadecimal, where it has none.
    pub function: String,
    /// Whether `function` is a name.
    pub named: bool,
    /// Where it is defined, if known.
    pub location: Option<Location>,
    /// Path of its module; empty where unknown.
    pub module: String,
    /// Build-id of its module in hexadecimal; empty where unknown.
    pub build_id: String,
    /// Whether its module is the program itself.
    pub in_main_module: bool,
    /// Its address in the module; the run-time address where the module is unknown.
    pub address: u64,
    /// Calls.
    pub calls: u64,
    /// Time from enter to exit, of outermost calls, in ns.
    pub total_ns: u64,
    /// Time without callees, in ns.
    pub self_ns: u64,
    /// Durations of single calls; `None` where a loss makes all of them doubtful.
    pub durations: Option<Durations>,
    /// Calls that had not returned at the end.
    pub not_returned: u64,
    /// Calls during which events were lost.
    pub uncertain: u64,
}

/// Durations of single calls, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The shortest.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: u64,
    /// Half of the calls took no longer.
    pub p50_ns: u64,
    /// 90 % took no longer.
    pub p90_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// One thread, from its start to its end.
#[derive(Clone, Debug, Default)]
pub struct ThreadRow {
    /// Process id, or the number of the stream where the capture does not say.
    pub pid: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Its name; empty where unknown.
    pub name: String,
    /// Enters and exits.
    pub events: u64,
    /// From its first to its last event, in ns.
    pub span_ns: u64,
}

/// One process, or one program of a process that went on with exec.
#[derive(Clone, Debug, Default)]
pub struct ProcessRow {
    /// Process id, or the number of the stream where the capture does not say.
    pub pid: u32,
    /// Start time in clock ticks since boot; 0 where unknown.
    pub start: u64,
    /// Path of its executable; empty where unknown.
    pub exe: String,
    /// Whether it came from a fork of a traced process.
    pub forked: bool,
    /// Whether its recording ended in order; `None` where the files cannot tell.
    pub ended: Option<bool>,
}

/// Calls of one function from one place.
#[derive(Clone, Debug)]
pub struct CallerRow {
    /// Index of the called function in [`Report::rows`].
    pub callee: usize,
    /// Index of the calling function; `None` where a thread began.
    pub caller: Option<usize>,
    /// The line of the call, if known.
    pub location: Option<Location>,
    /// Whether the compiler put the callee into the caller, so that there is no place.
    pub inlined: bool,
    /// Calls.
    pub calls: u64,
    /// Time of those that are outermost calls of the callee, in ns.
    pub total_ns: u64,
}

/// Self time of one path.
#[derive(Clone, Copy, Debug)]
pub struct PathRow {
    /// Index of the path without its last function.
    pub parent: Option<usize>,
    /// Index of its last function in [`Report::rows`]; `None` for all that lies deeper.
    pub row: Option<usize>,
    /// Self time, in ns.
    pub self_ns: u64,
}

impl Report {
    /// How many events are lost, whatever the cause.
    pub fn lost_events(&self) -> u64 {
        self.losses.values().fold(0, |sum, events| sum.saturating_add(*events))
    }

    /// Calls of all functions with this name, which is what most tests ask.
    pub fn calls_of(&self, function: &str) -> u64 {
        self.rows.iter().filter(|row| row.function == function).map(|row| row.calls).sum()
    }
}

/// A number with what it counts: `1 thread`, `2 threads`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_not_many() {
        let said = [0, 1, 2].map(|count| counted(count, "thread", "threads"));
        assert_eq!(said, ["0 threads", "1 thread", "2 threads"]);
    }
}
