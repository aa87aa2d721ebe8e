//! Calls → self time by path: the functions that were open, outermost first.
//!
//! A tree with one node a path. Bounded in depth and in size: what lies beyond is summed in one
//! node below the last path that fits, and counted.

use rustc_hash::FxHashMap;

use crate::stack::FunctionId;

/// Frames of a path at most. Printing paths is quadratic in their depth: a recursion of 200,000
/// calls would be 100 GB of text.
pub const MAX_DEPTH: u32 = 512;

/// Paths at most, 32 bytes and an index entry each.
const MAX_PATHS: usize = 4 << 20;

/// The function of a node that stands for all deeper calls.
pub const DEEPER: FunctionId = FunctionId::MAX;

const NO_PARENT: u32 = u32::MAX;

/// One path.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The path without its last function; `None` for a thread's first function.
    pub parent: Option<u32>,
    /// Its last function, or [`DEEPER`].
    pub function: FunctionId,
    /// Self time of the last function, in the clock's unit.
    pub self_ticks: u64,
    /// Hooks in that.
    pub self_hooks: u64,
    depth: u32,
}

/// Paths and their self times.
#[derive(Debug, Default)]
pub struct PathTree {
    nodes: Vec<Node>,
    index: FxHashMap<(u32, FunctionId), u32>,
    /// Calls that lie beyond the bounds.
    pub cut_calls: u64,
}

impl PathTree {
    /// The path `parent` and then `function`.
    pub fn node(&mut self, parent: Option<u32>, function: FunctionId) -> u32 {
        let above = parent.map(|parent| self.nodes[parent as usize]);
        if let (Some(parent), Some(Node { function: DEEPER, .. })) = (parent, above) {
            self.cut_calls += 1;
            return parent;
        }
        let depth = above.map_or(0, |above| above.depth) + 1;
        if let Some(node) = self.index.get(&(parent.unwrap_or(NO_PARENT), function)) {
            return *node;
        }
        if depth <= MAX_DEPTH && self.nodes.len() < MAX_PATHS {
            return self.add(parent, function, depth);
        }
        self.cut_calls += 1;
        match self.index.get(&(parent.unwrap_or(NO_PARENT), DEEPER)) {
            Some(node) => *node,
            None => self.add(parent, DEEPER, depth),
        }
    }

    fn add(&mut self, parent: Option<u32>, function: FunctionId, depth: u32) -> u32 {
        let node = self.nodes.len() as u32;
        self.nodes.push(Node { parent, function, self_ticks: 0, self_hooks: 0, depth });
        self.index.insert((parent.unwrap_or(NO_PARENT), function), node);
        node
    }

    /// Adds to the self time of a path, with the hooks in it.
    pub fn add_self(&mut self, node: u32, ticks: u64, hooks: u64) {
        let own = &mut self.nodes[node as usize];
        own.self_ticks = own.self_ticks.saturating_add(ticks);
        own.self_hooks += hooks;
    }

    /// All paths; a path stands behind the one it continues.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_node_however_often_it_is_taken() {
        let mut paths = PathTree::default();
        let a = paths.node(None, 1);
        let ab = paths.node(Some(a), 2);
        assert_eq!((paths.node(None, 1), paths.node(Some(a), 2)), (a, ab));
        assert_eq!(paths.nodes().len(), 2);
    }

    #[test]
    fn a_recursion_is_cut_at_its_depth_and_the_cut_is_counted() {
        let mut paths = PathTree::default();
        let mut node = None;
        for _ in 0..200_000 {
            node = Some(paths.node(node, 7));
        }
        assert_eq!(paths.nodes().len(), MAX_DEPTH as usize + 1);
        assert_eq!(paths.cut_calls, 200_000 - u64::from(MAX_DEPTH));
        assert_eq!(paths.nodes().last().map(|node| node.function), Some(DEEPER));
    }
}
