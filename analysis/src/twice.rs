//! The threads of all traces → which processes two traces have at the same time, so that calls count twice.
//!
//! Numbered records that come again were left out before: these are threads that were matched apart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rustc_hash::FxHashMap;

use crate::capture::Group;
use crate::sentences::Sentences;
use crate::survey::{ClockStart, Process};

/// Traces that follow one another may overlap by this much: the clocks of two cores may differ a little.
pub const OVERLAP_TOLERANCE_NS: f64 = 1e6;

/// A thread, wherever it was recorded.
type Thread = (u32, u64, ClockStart, u32);

/// When a trace has events of a thread.
#[derive(Clone, Copy)]
struct Stretch {
    first_ns: f64,
    last_ns: f64,
    trace: usize,
}

impl Stretch {
    fn overlaps(&self, other: &Stretch) -> bool {
        let overlap = self.last_ns.min(other.last_ns) - self.first_ns.max(other.first_ns);
        let shorter = (self.last_ns - self.first_ns).min(other.last_ns - other.first_ns);
        self.trace != other.trace && overlap > OVERLAP_TOLERANCE_NS.min(shorter / 2.0)
    }
}

/// A stream of a group.
struct Trace {
    path: PathBuf,
    is_packed: bool,
}

impl Trace {
    fn form(&self) -> &'static str {
        if self.is_packed { "chunks" } else { "events" }
    }

    /// Whether another one is of the same sink, as far as can be seen: then it goes on with this one.
    fn is_with(&self, other: &Trace) -> bool {
        self.is_packed == other.is_packed && self.path.parent() == other.path.parent()
    }
}

/// See the file's first lines.
#[derive(Default)]
pub struct Twice {
    threads: FxHashMap<Thread, Vec<Stretch>>,
    traces: Vec<Trace>,
    /// Those of the group at hand, by stream.
    here: FxHashMap<u32, usize>,
}

impl Twice {
    /// The next threads are of this group.
    pub fn group(&mut self, group: &Group) {
        self.here.clear();
        for segment in &group.segments {
            self.here.entry(segment.stream).or_insert_with(|| {
                let (path, is_packed) = (segment.path.clone(), segment.is_packed());
                self.traces.push(Trace { path, is_packed });
                self.traces.len() - 1
            });
        }
    }

    /// A thread of a process in a stream of the group. One of which nobody said whose it is may be any.
    pub fn thread(
        &mut self,
        process: &Process,
        tid: u32,
        stream: u32,
        (first_ns, last_ns): (f64, f64),
    ) {
        let Some(trace) = self.here.get(&stream).copied().filter(|_| process.start > 0) else {
            return;
        };
        let thread = (process.pid, process.start, process.clock_start, tid);
        self.threads.entry(thread).or_default().push(Stretch { first_ns, last_ns, trace });
    }

    /// Says who is in which two traces.
    pub fn say(self, said: &mut Sentences) {
        let mut pairs: BTreeMap<(usize, usize), BTreeSet<u32>> = BTreeMap::new();
        for ((pid, ..), mut stretches) in self.threads {
            stretches.sort_by(|a, b| a.first_ns.total_cmp(&b.first_ns).then(a.trace.cmp(&b.trace)));
            for pair in overlaps(&stretches) {
                pairs.entry(pair).or_default().insert(pid);
            }
        }
        for ((one, other), pids) in pairs {
            let (one, other) = (&self.traces[one], &self.traces[other]);
            if one.is_with(other) {
                continue;
            }
            let shown = |trace: &Trace| format!("{} ({})", trace.path.display(), trace.form());
            let help = match one.is_packed == other.is_packed {
                true => "one of the two folders",
                false => "the files of events or those of chunks",
            };
            let twice = format!(
                ": in two traces, {} and {}: calls are added up; analyze {help} alone",
                shown(one),
                shown(other)
            );
            pids.iter().for_each(|pid| said.say_of(&format!("process {pid}"), &twice));
        }
    }
}

/// The traces of stretches that overlap, of each with the one that reaches farthest so far.
fn overlaps(stretches: &[Stretch]) -> Vec<(usize, usize)> {
    let Some((first, rest)) = stretches.split_first() else { return Vec::new() };
    let (mut farthest, mut pairs) = (first, Vec::new());
    for stretch in rest {
        if stretch.overlaps(farthest) {
            let (a, b) = (farthest.trace, stretch.trace);
            pairs.push((a.min(b), a.max(b)));
        }
        if stretch.last_ns > farthest.last_ns {
            farthest = stretch;
        }
    }
    pairs
}
