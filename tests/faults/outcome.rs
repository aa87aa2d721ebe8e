//! A row's plan, and the line it ends with.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::seed::Chance;

/// How much is to be done, and in which order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where every choice comes from.
    pub seed: u64,
    /// Few rounds.
    pub short: bool,
    /// How long F23 lasts.
    pub soak: Option<Duration>,
}

impl Plan {
    /// A number for the short run, another for the whole one.
    pub fn either<T>(&self, short: T, whole: T) -> T {
        if self.short { short } else { whole }
    }

    /// The choices of a row.
    pub fn chance(&self, row: &str) -> Chance {
        Chance::of(self.seed, row)
    }
}

/// How a row ended; one that does not hold panics.
#[derive(Debug)]
pub enum Outcome {
    /// It holds: with which figures.
    Holds(String),
    /// It cannot be made here: why.
    Skipped(String),
}

/// Where the panic of a row, or of a thread of it, leaves its words.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Runs a row and prints its line; whether it did not fail.
pub fn judge(name: &str, row: fn(&Plan) -> Outcome, plan: &Plan) -> bool {
    std::panic::set_hook(Box::new(|panic| {
        let mut last = LAST_PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_empty() {
            *last = panic.to_string();
        }
    }));
    let begin = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| row(plan)));
    let took = begin.elapsed().as_secs_f64();
    let said =
        std::mem::take(&mut *LAST_PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    match &ended {
        Ok(Outcome::Holds(figures)) => println!("{name}  ok  {figures}  ({took:.1} s)"),
        Ok(Outcome::Skipped(reason)) => println!("{name}  skipped: {}", one_line(reason)),
        Err(_) => {
            let size = if plan.short { "--short" } else { "--all" };
            let again = format!("tests/faults/run {size} --seed {} {name}", plan.seed);
            println!("{name}  FAILED: {}; again: {again}", one_line(&said));
            eprintln!("{name}: {said}\n");
        }
    }
    ended.is_ok()
}

/// The beginning of a text of many lines.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(500) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}
