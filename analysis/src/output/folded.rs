//! Self time by path, a line each: `outermost;...;innermost SELF_NS`, as flame graph tools read it.
//!
//! The last blank separates the number and `;` the functions, so a `;` in a name becomes `:`.

use std::io::{self, Write};

use super::limit;
use crate::report::Report;

/// Stands for calls that are too deep for a path of their own.
const DEEPER: &str = "[deeper]";

impl Report {
    /// Writes the paths, greatest self time first, `top` of them (0 for all). Needs
    /// [`Detail::paths`](crate::Detail).
    ///
    /// # Errors
    /// What `out` gives.
    pub fn write_folded(&self, out: &mut impl Write, top: usize) -> io::Result<()> {
        let names: Vec<String> =
            self.rows.iter().map(|row| row.function.replace(';', ":")).collect();
        let mut calls_others = vec![false; self.paths.len()];
        self.paths.iter().filter_map(|path| path.parent).for_each(|path| calls_others[path] = true);
        let mut order: Vec<usize> = (0..self.paths.len()).collect();
        // A call within one step of the clock has no time, but it was there.
        order.retain(|path| self.paths[*path].self_ns > 0 || !calls_others[*path]);
        order.sort_by_key(|path| std::cmp::Reverse(self.paths[*path].self_ns));
        for path in &order[..limit(top, order.len())] {
            writeln!(out, "{} {}", self.frames(*path, &names), self.paths[*path].self_ns)?;
        }
        Ok(())
    }

    fn frames(&self, path: usize, names: &[String]) -> String {
        let mut frames = Vec::new();
        let mut next = Some(path);
        while let Some(path) = next {
            frames.push(self.paths[path].row.map_or(DEEPER, |row| &names[row]));
            next = self.paths[path].parent;
        }
        frames.reverse();
        frames.join(";")
    }
}
