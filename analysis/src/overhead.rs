//! What hooks add to the times they measure → those times without it, by one rule for all tables.
//!
//! A measured call holds about one of its own two hooks; its caller's self time the other, and both
//! of each call made in it.

use crate::clock::Clock;
use crate::stack::{Closed, FunctionId};

/// Hooks in the self time of a call.
pub fn hooks_in_self(call: &Closed) -> u64 {
    1 + call.direct_callees
}

/// Hooks in the total time of a call, where that counts.
pub fn hooks_in_total(call: &Closed) -> u64 {
    if call.outermost { 1 + 2 * call.all_callees } else { 0 }
}

/// Takes the hooks of one process off its times.
#[derive(Clone, Copy, Debug)]
pub struct Overhead<'c> {
    /// The clock of the process.
    pub clock: &'c Clock,
    /// What a hook costs; 0 leaves times as they are.
    pub hook_ns: f64,
}

/// A part of the time of a function: that of one path, or of calls from one place.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The function; `None` for several.
    pub function: Option<FunctionId>,
    /// Its time.
    pub ticks: u64,
    /// Hooks in that.
    pub hooks: u64,
}

impl Overhead<'_> {
    /// A time in ns without the hooks in it.
    pub fn less(&self, ticks: u64, hooks: u64) -> f64 {
        (self.clock.duration_ns(ticks) - hooks as f64 * self.hook_ns).max(0.0)
    }

    /// The same of parts of functions: those of one sum up to no more than `wholes` has for it, which
    /// several of them may, as none is less than nothing.
    pub fn less_of_parts(
        self,
        parts: impl Iterator<Item = Part> + Clone,
        wholes: impl Iterator<Item = f64>,
    ) -> impl Iterator<Item = f64> {
        let mut shares: Vec<f64> = wholes.collect();
        let mut sums = vec![0.0; shares.len()];
        for part in parts.clone() {
            if let Some(function) = part.function {
                sums[function as usize] += self.less(part.ticks, part.hooks);
            }
        }
        for (share, sum) in shares.iter_mut().zip(sums) {
            // Without a cost they differ by rounding alone.
            *share = if self.hook_ns > 0.0 && sum > *share { *share / sum } else { 1.0 };
        }
        parts.map(move |part| {
            let share = part.function.map_or(1.0, |function| shares[function as usize]);
            share * self.less(part.ticks, part.hooks)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_sum_up_to_the_whole_also_where_one_is_shorter_than_its_hooks() {
        let overhead = Overhead { clock: &Clock::NANOSECONDS, hook_ns: 10.0 };
        let part = |ticks, hooks| Part { function: Some(0), ticks, hooks };
        let whole = overhead.less(105, 4);
        let parts = [part(100, 2), part(5, 2)].into_iter();
        let parts: Vec<f64> = overhead.less_of_parts(parts, [whole].into_iter()).collect();
        assert_eq!((whole, parts), (65.0, vec![65.0, 0.0]));
    }
}
