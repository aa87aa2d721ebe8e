//! Finished calls of one process → numbers by function, by path and by caller.
//!
//! The size of the tables follows from how many functions, paths and call sites there are, not
//! from how many calls. Times are in the clock's unit, addresses are run-time addresses.

use rustc_hash::FxHashMap;

use crate::code::CodeMap;
use crate::histogram::Histogram;
use crate::overhead::{hooks_in_self, hooks_in_total};
use crate::paths::PathTree;
use crate::space::{AddressSpace, Hit};
use crate::stack::{CallSink, Closed, FunctionId, OpenCall};

/// What a report needs beside the numbers by function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Self time by path, for folded stacks.
    pub paths: bool,
    /// Calls by caller and call site.
    pub callers: bool,
}

/// Numbers of one function.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Calls, of whatever kind.
    pub calls: u64,
    /// Time from enter to exit, of calls in which no other call of the function is open.
    pub total_ticks: u64,
    /// Time without callees.
    pub self_ticks: u64,
    /// Shortest and longest call, of those that no loss made doubtful.
    pub min_ticks: u64,
    /// See `min_ticks`.
    pub max_ticks: u64,
    /// Sum of the same calls, whether or not another call of the function is open.
    pub sampled_ticks: u64,
    /// Durations of the same calls.
    pub histogram: Histogram,
    /// Calls that had not returned at the end.
    pub not_returned: u64,
    /// Calls during which events were lost.
    pub uncertain: u64,
    /// Hooks in `self_ticks`.
    pub self_hooks: u64,
    /// Hooks in `total_ticks`.
    pub total_hooks: u64,
}

/// A function of a process.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Run-time address.
    pub address: u64,
    /// Number of its mapping in the address space, if it lies in one.
    pub mapping: Option<usize>,
}

/// Calls of one function from one place.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The function that was called.
    pub callee: FunctionId,
    /// The function that called it; `None` where a thread began.
    pub caller: Option<FunctionId>,
    /// Return address in the caller; 0 where there is none.
    pub site: u64,
    /// Whether there is none because the callee was inlined.
    pub inlined: bool,
    /// Time at which the first of these calls began.
    pub first_ts: u64,
    /// Calls.
    pub calls: u64,
    /// Time of those that no other call of the callee was open around.
    pub total_ticks: u64,
    /// Hooks in that.
    pub total_hooks: u64,
}

type EdgeKey = (FunctionId, Option<FunctionId>, u64, bool);

/// See the file's first lines.
pub struct Tables<'s> {
    space: &'s AddressSpace,
    code: CodeMap<'s>,
    by_address: FxHashMap<u64, FunctionId>,
    /// Functions at addresses that belonged to several modules in turn.
    by_mapping: FxHashMap<(u64, usize), FunctionId>,
    /// The last answer for such an address, and from when to when it holds.
    by_interval: FxHashMap<u64, (u64, u64, FunctionId)>,
    /// The functions, by number.
    pub functions: Vec<Function>,
    /// Their numbers.
    pub stats: Vec<Stats>,
    /// Self times by path, if asked for.
    pub paths: Option<PathTree>,
    edges: Option<FxHashMap<EdgeKey, u32>>,
    /// Calls by caller and site, if asked for.
    pub edge_list: Vec<Edge>,
    entered_ts: u64,
}

/// In `by_address`: more than one module was here, ask `by_mapping`.
const BY_TIME: FunctionId = FunctionId::MAX;

impl<'s> Tables<'s> {
    /// Empty tables of a process with this code.
    pub fn new(code: CodeMap<'s>, detail: Detail) -> Tables<'s> {
        Tables {
            space: code.space(),
            code,
            by_address: FxHashMap::default(),
            by_mapping: FxHashMap::default(),
            by_interval: FxHashMap::default(),
            functions: Vec::new(),
            stats: Vec::new(),
            paths: detail.paths.then(PathTree::default),
            edges: detail.callers.then(FxHashMap::default),
            edge_list: Vec::new(),
            entered_ts: 0,
        }
    }

    /// The modules of the process.
    pub fn space(&self) -> &'s AddressSpace {
        self.space
    }

    /// Whether a function at `address` was entered before.
    pub fn knows(&self, address: u64) -> bool {
        self.by_address.contains_key(&address)
    }

    fn add(&mut self, address: u64, mapping: Option<usize>) -> FunctionId {
        let function = self.functions.len() as FunctionId;
        self.functions.push(Function { address, mapping });
        self.stats.push(Stats::default());
        function
    }

    #[cold]
    fn new_function(&mut self, address: u64) -> FunctionId {
        let function = match self.space.find(address) {
            Hit::Nothing => self.add(address, None),
            Hit::Always(mapping) => self.add(address, Some(mapping)),
            Hit::ByTime => BY_TIME,
        };
        self.by_address.insert(address, function);
        function
    }

    #[cold]
    fn function_by_time(&mut self, address: u64, ts: u64) -> FunctionId {
        if let Some((from, to, function)) = self.by_interval.get(&address)
            && (*from..*to).contains(&ts)
        {
            return *function;
        }
        let mapping = self.space.at(address, ts);
        let key = (address, mapping.unwrap_or(usize::MAX));
        let function = match self.by_mapping.get(&key) {
            Some(function) => *function,
            None => self.add(address, mapping),
        };
        self.by_mapping.insert(key, function);
        let (from, to) = mapping.map_or((0, 0), |mapping| self.space.interval(mapping));
        self.by_interval.insert(address, (from, to, function));
        function
    }
}

impl CallSink for Tables<'_> {
    #[inline]
    fn function(&mut self, address: u64, ts: u64) -> FunctionId {
        self.entered_ts = ts;
        let function = match self.by_address.get(&address) {
            Some(function) => *function,
            None => self.new_function(address),
        };
        if function == BY_TIME { self.function_by_time(address, ts) } else { function }
    }

    fn known_function(&self, address: u64, ts: u64) -> Option<FunctionId> {
        match *self.by_address.get(&address)? {
            BY_TIME => {
                let mapping = self.space.at(address, ts);
                self.by_mapping.get(&(address, mapping.unwrap_or(usize::MAX))).copied()
            }
            function => Some(function),
        }
    }

    #[inline]
    fn caller(&mut self, site: u64) -> u64 {
        self.code.caller(site)
    }

    #[inline]
    fn opened(&mut self, call: &mut OpenCall, parent: Option<&OpenCall>) {
        if let Some(paths) = &mut self.paths {
            call.node = paths.node(parent.map(|parent| parent.node), call.function);
        }
        if let Some(edges) = &mut self.edges {
            let inlined = is_inlined(call, parent);
            let site = if inlined { 0 } else { call.site };
            let caller = parent.map(|parent| parent.function);
            let key = (call.function, caller, site, inlined);
            call.edge = *edges.entry(key).or_insert_with(|| {
                let (callee, first_ts) = (call.function, self.entered_ts);
                let (calls, total_ticks, total_hooks) = (0, 0, 0);
                self.edge_list.push(Edge {
                    callee,
                    caller,
                    site,
                    inlined,
                    first_ts,
                    calls,
                    total_ticks,
                    total_hooks,
                });
                self.edge_list.len() as u32 - 1
            });
        }
    }

    #[inline]
    fn closed(&mut self, closed: &Closed) {
        let stats = &mut self.stats[closed.call.function as usize];
        let total_ticks = if closed.outermost { closed.total_ticks } else { 0 };
        let (self_hooks, total_hooks) = (hooks_in_self(closed), hooks_in_total(closed));
        stats.calls += 1;
        stats.total_ticks = stats.total_ticks.saturating_add(total_ticks);
        stats.self_ticks = stats.self_ticks.saturating_add(closed.self_ticks);
        stats.self_hooks += self_hooks;
        stats.total_hooks += total_hooks;
        stats.not_returned += u64::from(!closed.returned);
        if closed.certain {
            let first = stats.calls - stats.uncertain == 1;
            let ticks = closed.total_ticks;
            stats.min_ticks = if first { ticks } else { stats.min_ticks.min(ticks) };
            stats.max_ticks = stats.max_ticks.max(ticks);
            stats.sampled_ticks = stats.sampled_ticks.saturating_add(ticks);
            stats.histogram.add(ticks);
        } else {
            stats.uncertain += 1;
        }
        if let Some(paths) = &mut self.paths {
            paths.add_self(closed.call.node, closed.self_ticks, self_hooks);
        }
        if self.edges.is_some() {
            let edge = &mut self.edge_list[closed.call.edge as usize];
            edge.calls += 1;
            edge.total_ticks = edge.total_ticks.saturating_add(total_ticks);
            edge.total_hooks += total_hooks;
        }
    }
}

/// Whether the compiler put the body of `call` into that of its caller: then both report the
/// place that called the caller. A place lies in one function, so another function called "from
/// there" inside a call from there was inlined; the same function only if it shares the frame.
fn is_inlined(call: &OpenCall, parent: Option<&OpenCall>) -> bool {
    parent.is_some_and(|parent| {
        let one_frame = call.frame_units != 0 && call.frame_units == parent.frame_units;
        let one_site = call.site != 0 && call.site == parent.site;
        one_site && (call.function != parent.function || one_frame)
    })
}
