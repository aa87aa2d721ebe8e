//! Tables of all processes → rows by function, callers and paths of the report.
//!
//! The same function of several processes is one row: the same build of a module and the same
//! address in it. Ticks become ns here, because each process has a clock of its own. Names come
//! later.

use rustc_hash::FxHashMap;

use crate::capture::Group;
use crate::clock::Clock;
use crate::histogram::Distribution;
use crate::modules::{Module, ModuleId, ModuleKey, Modules};
use crate::overhead::{Overhead, Part};
use crate::paths::{DEEPER, Node};
use crate::space::{Hit, Mapping};
use crate::stack::FunctionId;
use crate::summary::{Summary, SummaryFunction};
use crate::survey::Process;
use crate::tables::{Edge, Stats, Tables};

/// A function before it has a name.
#[derive(Debug, Default)]
pub struct RowSum {
    /// Its module.
    pub module: ModuleId,
    /// Its address in the module's file.
    pub address: u64,
    /// Calls.
    pub calls: u64,
    /// Time from enter to exit, of outermost calls, in ns.
    pub total_ns: f64,
    /// Time without callees, in ns.
    pub self_ns: f64,
    /// Sum of the durations in `durations`, in ns.
    pub sampled_ns: f64,
    /// Durations of single calls, in ns.
    pub durations: Distribution,
    /// Calls that had not returned at the end.
    pub not_returned: u64,
    /// Calls during which events were lost.
    pub uncertain: u64,
}

/// A call site before it has a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeKey {
    /// Row of the called function.
    pub callee: usize,
    /// Row of the calling function.
    pub caller: Option<usize>,
    /// Module and address in its file of the return address, where there is one.
    pub site: Option<(ModuleId, u64)>,
    /// Whether there is none because the callee was inlined.
    pub inlined: bool,
}

/// A path of rows.
#[derive(Clone, Copy, Debug)]
pub struct PathSum {
    /// The path without its last function.
    pub parent: Option<usize>,
    /// Its last function; `None` for all that lies deeper.
    pub row: Option<usize>,
    /// Self time, in ns.
    pub self_ns: f64,
}

/// Rows of all processes so far.
#[derive(Debug, Default)]
pub struct Assembly {
    /// Whether to take the cost of hooks off.
    subtract_overhead: bool,
    /// Whether one named binary stands for all programs that do not name themselves.
    one_program: bool,
    /// The modules.
    pub modules: Modules,
    /// The functions.
    pub rows: Vec<RowSum>,
    /// Calls and total ns by call site.
    pub edges: FxHashMap<EdgeKey, (u64, f64)>,
    /// The paths; one stands behind the one it continues.
    pub paths: Vec<PathSum>,
    /// Calls that lie beyond the bounds of `paths`.
    pub cut_calls: u64,
    row_of: FxHashMap<(ModuleId, u64), usize>,
    path_of: FxHashMap<(Option<usize>, Option<usize>), usize>,
    processes: usize,
}

/// What a process adds to.
struct Target<'a> {
    group: &'a Group,
    process: &'a Process,
    /// Number of the process in the whole report.
    number: usize,
}

impl Assembly {
    /// Nothing yet.
    pub fn new(subtract_overhead: bool, one_program: bool) -> Assembly {
        Assembly { subtract_overhead, one_program, ..Assembly::default() }
    }

    /// Adds the tables of one process.
    pub fn add_process(
        &mut self,
        group: &Group,
        process: &Process,
        clock: &Clock,
        tables: &Tables<'_>,
    ) {
        self.processes += 1;
        let hook_ns = if self.subtract_overhead { group.origin.hook_ns as f64 } else { 0.0 };
        let overhead = Overhead { clock, hook_ns };
        let target = Target { group, process, number: self.processes };
        let functions = tables.functions.iter().zip(&tables.stats);
        let rows: Vec<usize> = functions
            .map(|(function, stats)| {
                let mapping = function.mapping.map(|at| &tables.space().mappings()[at]);
                let row = self.row(&target, mapping, function.address);
                self.rows[row].add(stats, &overhead);
                row
            })
            .collect();
        self.add_edges(&target, tables, &overhead, &rows);
        self.add_paths(tables, &overhead, &rows);
    }

    /// Adds the functions of a summary file.
    pub fn add_summary(&mut self, summary: &Summary, clock: &Clock) {
        let unnamed = unnamed(self.one_program, &summary.origin, summary.pid);
        let module = self.modules.add(Module {
            key: ModuleKey::Unnamed(unnamed),
            path: Vec::new(),
            main: true,
            assumed: true,
        });
        for function in &summary.functions {
            let address = function.address.wrapping_sub(summary.origin.load_bias);
            let row = self.row_at(module, address);
            self.rows[row].add_summary(function, clock);
        }
    }

    fn row(&mut self, target: &Target<'_>, mapping: Option<&Mapping>, address: u64) -> usize {
        let module = self.module(target, mapping);
        let bias = mapping.map_or(0, |mapping| mapping.bias);
        self.row_at(module, address.wrapping_sub(bias))
    }

    fn row_at(&mut self, module: ModuleId, address: u64) -> usize {
        let rows = &mut self.rows;
        *self.row_of.entry((module, address)).or_insert_with(|| {
            rows.push(RowSum { module, address, ..RowSum::default() });
            rows.len() - 1
        })
    }

    fn module(&mut self, target: &Target<'_>, mapping: Option<&Mapping>) -> ModuleId {
        let Some(mapping) = mapping else {
            let key = match target.process.modules_known {
                true => ModuleKey::Unnoticed(target.number),
                false => ModuleKey::None(target.number),
            };
            return self.modules.add(Module { key, path: Vec::new(), main: false, assumed: false });
        };
        let module = Module::of(mapping, target.process).unwrap_or_else(|| {
            let group = target.group;
            let unnamed = unnamed(self.one_program, &group.origin, group.id);
            let key = ModuleKey::Unnamed(unnamed);
            Module { key, path: Vec::new(), main: true, assumed: true }
        });
        self.modules.add(module)
    }

    fn add_edges(
        &mut self,
        target: &Target<'_>,
        tables: &Tables<'_>,
        overhead: &Overhead<'_>,
        rows: &[usize],
    ) {
        let wholes = tables.stats.iter();
        let wholes = wholes.map(|stats| overhead.less(stats.total_ticks, stats.total_hooks));
        let less = overhead.less_of_parts(tables.edge_list.iter().map(edge_part), wholes);
        for (edge, total_ns) in tables.edge_list.iter().zip(less) {
            self.add_edge(target, tables, edge, total_ns, rows);
        }
    }

    fn add_edge(
        &mut self,
        target: &Target<'_>,
        tables: &Tables<'_>,
        edge: &Edge,
        total_ns: f64,
        rows: &[usize],
    ) {
        let site = (edge.site != 0).then(|| {
            let space = tables.space();
            let mapping = match space.find(edge.site) {
                Hit::Nothing => None,
                Hit::Always(mapping) => Some(mapping),
                Hit::ByTime => space.at(edge.site, edge.first_ts),
            };
            let mapping = mapping.map(|at| &space.mappings()[at]);
            let bias = mapping.map_or(0, |mapping| mapping.bias);
            (self.module(target, mapping), edge.site.wrapping_sub(bias))
        });
        let row = |function: FunctionId| rows[function as usize];
        let (callee, inlined) = (row(edge.callee), edge.inlined);
        let key = EdgeKey { callee, caller: edge.caller.map(row), site, inlined };
        let sum = self.edges.entry(key).or_default();
        sum.0 += edge.calls;
        sum.1 += total_ns;
    }

    fn add_paths(&mut self, tables: &Tables<'_>, overhead: &Overhead<'_>, rows: &[usize]) {
        let Some(paths) = &tables.paths else { return };
        let wholes = tables.stats.iter();
        let wholes = wholes.map(|stats| overhead.less(stats.self_ticks, stats.self_hooks));
        let less = overhead.less_of_parts(paths.nodes().iter().map(path_part), wholes);
        self.cut_calls += paths.cut_calls;
        let mut merged: Vec<usize> = Vec::with_capacity(paths.nodes().len());
        for (node, self_ns) in paths.nodes().iter().zip(less) {
            let parent = node.parent.map(|parent| merged[parent as usize]);
            let row = (node.function != DEEPER).then(|| rows[node.function as usize]);
            let list = &mut self.paths;
            let index = *self.path_of.entry((parent, row)).or_insert_with(|| {
                list.push(PathSum { parent, row, self_ns: 0.0 });
                list.len() - 1
            });
            self.paths[index].self_ns += self_ns;
            merged.push(index);
        }
    }
}

fn edge_part(edge: &Edge) -> Part {
    Part { function: Some(edge.callee), ticks: edge.total_ticks, hooks: edge.total_hooks }
}

fn path_part(node: &Node) -> Part {
    let function = (node.function != DEEPER).then_some(node.function);
    Part { function, ticks: node.self_ticks, hooks: node.self_hooks }
}

/// Programs that do not name themselves are told apart by when their clocks started.
fn unnamed(one_program: bool, origin: &callsight_format::Origin, id: u32) -> u64 {
    match (one_program, origin.t0_ns ^ origin.t0_ticks) {
        (true, _) => 0,
        (false, 0) => u64::from(id),
        (false, start) => start,
    }
}

impl RowSum {
    fn add(&mut self, stats: &Stats, overhead: &Overhead<'_>) {
        let clock = overhead.clock;
        self.calls += stats.calls;
        self.total_ns += overhead.less(stats.total_ticks, stats.total_hooks);
        self.self_ns += overhead.less(stats.self_ticks, stats.self_hooks);
        self.sampled_ns += clock.duration_ns(stats.sampled_ticks);
        self.not_returned += stats.not_returned;
        self.uncertain += stats.uncertain;
        let scale = clock.duration_ns(1);
        let values = stats.histogram.values().map(|(ticks, count)| (ticks * scale, count));
        let (min, max) = (clock.duration_ns(stats.min_ticks), clock.duration_ns(stats.max_ticks));
        self.durations.extend(values, min, max);
    }

    fn add_summary(&mut self, function: &SummaryFunction, clock: &Clock) {
        let scale = clock.duration_ns(1);
        self.calls = self.calls.saturating_add(function.calls);
        self.total_ns += clock.duration_ns(function.total_ticks);
        self.self_ns += clock.duration_ns(function.self_ticks);
        self.not_returned = self.not_returned.saturating_add(function.not_returned);
        self.sampled_ns += function.sampled_ticks * scale;
        let values = function.durations.iter().map(|(ticks, count)| (ticks * scale, *count));
        let min = clock.duration_ns(function.min_ticks);
        let max = clock.duration_ns(function.max_ticks).max(min);
        self.durations.extend(values, min, max);
    }
}
