//! What must hold when things go wrong: one fault a row, F1 to F23.
//!
//! `tests/faults/run` builds this and calls it with rows, or `--short` or `--all`, and a seed. Each
//! row makes its fault again and again on a schedule that follows from the seed, compares what
//! arrived and what was counted as lost with what the programs counted themselves, and prints one
//! line. A row that finds something unaccounted fails, and says how to see it again.

mod code;
mod crowds;
mod damage;
mod hostile;
mod job;
mod kills;
mod network;
mod outcome;
mod relay;
mod restarts;
mod rings;
mod ringview;
mod scene;
mod seed;
mod sinks;
mod soak;
mod stepper;
mod truth;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use outcome::{Outcome, Plan, judge};

/// Name of a row, and what makes its fault.
type Row = (&'static str, fn(&Plan) -> Outcome);

const ROWS: &[Row] = &[
    ("F1", kills::killed_targets),
    ("F2", kills::killed_at_points),
    ("F3", restarts::killed_drains),
    ("F4", restarts::killed_servers),
    ("F5", sinks::stopped),
    ("F6", sinks::slow_reader),
    ("F7", network::half_open),
    ("F8", network::bad_weather),
    ("F9", sinks::full_disks),
    ("F10", sinks::budgets),
    ("F11", damage::damaged_files),
    ("F12", hostile::hostile_chunks),
    ("F13", rings::hostile_rings),
    ("F14", kills::held_by_the_dead),
    ("F15", crowds::threads),
    ("F16", crowds::forks),
    ("F17", code::signals),
    ("F18", code::leaps),
    ("F19", code::clocks),
    ("F20", rings::races),
    ("F21", crowds::connections),
    ("F22", hostile::hostile_names),
    ("F23", soak::soak),
];

const USAGE: &str = "usage: tests/faults/run [--short | --all] [--seed N] [--soak SECONDS] [ROW...]

Prints one line a row (F1 to F23), and exits with 1 if one of them failed.
--short   few rounds of each, for CI; the default
--all     as many rounds as the table of faults asks for
--seed N  the schedule; the same seed makes the same one
--soak N  how long F23 lasts: 30 s in --short, 1800 s in --all unless told otherwise";

/// What was asked for.
struct Request {
    plan: Plan,
    rows: Vec<Row>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let request = match parse(&words) {
        Ok(request) => request,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}", request.plan.seed);
    let failed = request.rows.iter().filter(|(name, row)| !judge(name, *row, &request.plan));
    match failed.count() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn parse(words: &[String]) -> Result<Request, String> {
    let mut plan = Plan { seed: 1, short: true, soak: None };
    let mut rows = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse().ok());
            value.ok_or_else(|| format!("{word} wants a number"))
        };
        match word.as_str() {
            "--short" => plan.short = true,
            "--all" => plan.short = false,
            "--seed" => plan.seed = number()?,
            "--soak" => plan.soak = Some(Duration::from_secs(number()?)),
            name => match ROWS.iter().find(|(row, _)| *row == name) {
                Some(row) => rows.push(*row),
                None => return Err(format!("there is no row {name}")),
            },
        }
    }
    if rows.is_empty() {
        rows = ROWS.to_vec();
    }
    Ok(Request { plan, rows })
}
