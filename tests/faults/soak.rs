//! F23: faults one after the other for a long time, beside a stream that none of them may touch.

use std::time::{Duration, Instant};

use crate::ROWS;
use crate::job::{descriptors, status_kib};
use crate::outcome::{Outcome, Plan};
use crate::scene::{Scene, ended_well, tally};
use crate::truth::Truth;

/// The faults that come again and again.
const FAULTS: [&str; 10] = ["F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F21"];

/// What a process needed at a moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f64,
    server_kib: f64,
    drain_kib: f64,
    descriptors: usize,
}

/// F23, see above.
pub fn soak(plan: &Plan) -> Outcome {
    let length = plan.soak.unwrap_or(Duration::from_secs(plan.either(30, 1800)));
    let mut chance = plan.chance("F23");
    let scene = Scene::new(4 << 20);
    let server = scene.server();
    let drain = scene.drain(server.port);
    let file = scene.path("tally");
    // Slow enough that nothing of it is lost while faults take the machine.
    let words = [file.to_str().expect("a path"), "1", "0", "50000"];
    let steady = scene.program(tally(), &words);
    let begin = Instant::now();
    let mut samples = Vec::new();
    let mut done = Vec::new();
    while begin.elapsed() < length {
        let name = chance.pick(&FAULTS);
        let (_, fault) = ROWS.iter().find(|(row, _)| row == &name).expect("a row of the table");
        let seed = chance.next();
        let short = Plan { seed, short: true, soak: None };
        eprintln!("F23: {name} with seed {seed}");
        if let Outcome::Holds(_) = fault(&short) {
            done.push(name);
        }
        samples.push(Sample {
            seconds: begin.elapsed().as_secs_f64(),
            server_kib: status_kib(server.job.pid(), "VmRSS") as f64,
            drain_kib: status_kib(drain.pid(), "VmRSS") as f64,
            descriptors: descriptors(server.job.pid()) + descriptors(drain.pid()),
        });
    }
    drop(steady.kill());
    let drained = drain.end();
    ended_well(&drained);
    server.stop();
    let account = scene.account();
    account.holds(Truth::read(&file), &format!("the stream beside {done:?}: {drained}"));
    let slopes =
        [|s: &Sample| s.server_kib, |s: &Sample| s.drain_kib].map(|of| slope(&samples, of));
    // A slope needs time to show; what a process takes at its start is none.
    if length >= Duration::from_secs(600) {
        for kib in slopes {
            assert!(kib < 1024.0, "memory grows by {kib:.0} KiB in 10 minutes: {samples:?}");
        }
    }
    let open = samples.last().map_or(0, |sample| sample.descriptors);
    let first = samples.first().map_or(0, |sample| sample.descriptors);
    assert!(open <= first, "descriptors grow from {first} to {open}: {samples:?}");
    Outcome::Holds(format!(
        "{} s, {} faults, server {:+.0} and drain {:+.0} KiB in 10 minutes, {open} descriptors, \
         {account} unaccounted=0",
        length.as_secs(),
        done.len(),
        slopes[0],
        slopes[1]
    ))
}

/// KiB in 10 minutes, by least squares over the last three quarters.
fn slope(samples: &[Sample], of: fn(&Sample) -> f64) -> f64 {
    let late = &samples[samples.len() / 4..];
    let count = late.len() as f64;
    let mean = |f: &dyn Fn(&Sample) -> f64| late.iter().map(f).sum::<f64>() / count;
    let (mean_seconds, mean_kib) = (mean(&|s| s.seconds), mean(&of));
    let spread: f64 = late.iter().map(|s| (s.seconds - mean_seconds).powi(2)).sum();
    let together: f64 = late.iter().map(|s| (s.seconds - mean_seconds) * (of(s) - mean_kib)).sum();
    if spread > 0.0 { together / spread * 600.0 } else { 0.0 }
}
