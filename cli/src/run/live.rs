//! A run that is streamed: the drain beside the program, and what became of the events.

use std::os::unix::process::ExitStatusExt;
use std::time::{SystemTime, UNIX_EPOCH};

use callsight_hub::local::{DrainEnd, DrainPlan, KeptDrain, RingFile, RingState};

use super::note;
use crate::drain::own_drain;
use crate::say;
use crate::sinks::Sinks;

/// The drain of a run.
pub struct Live {
    /// Name of the ring that the program records into.
    pub ring: String,
    plan: DrainPlan,
    drain: KeptDrain,
}

impl Live {
    /// Starts a drain for these sinks, without the server where it cannot be used; `None` where
    /// there is no drain, and the user is told.
    pub fn start(sinks: &Sinks, budget_bytes: u64) -> Option<Live> {
        let mut plan = DrainPlan {
            command: own_drain(),
            ring: fresh_name(),
            file: sinks.path.clone(),
            budget_bytes,
            live: sinks.live.clone(),
        };
        let drain = match KeptDrain::start(plan.clone(), say, note) {
            Err(error) if plan.file.is_some() => {
                note(&format!("stream this run: {error}; it goes on without the server"));
                plan.live = None;
                KeptDrain::start(plan.clone(), say, note)
            }
            started => started,
        };
        match drain {
            Ok(drain) => Some(Live { ring: plan.ring.clone(), plan, drain }),
            Err(error) => {
                note(&format!("start the drain: {error}; this run is not streamed"));
                None
            }
        }
    }

    /// Waits for the drain and says what became of the events.
    pub fn finish(self, ring_was_made: bool) {
        match self.drain.finish(ring_was_made) {
            Ok(end) => {
                note_end(&self.plan, &end, ring_was_made);
                if let Some((ring, state)) = &end.left {
                    settle(&self.plan, ring, state);
                }
            }
            Err(error) => note(&format!("wait for the drain: {error}")),
        }
    }
}

/// A name that no other ring has: this process's, at this moment.
fn fresh_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("/callsight-run-{}-{:x}", std::process::id(), now.as_nanos())
}

/// What the drain says.
fn say(line: &str) {
    say::note(line);
}

fn note_end(plan: &DrainPlan, end: &DrainEnd, ring_was_made: bool) {
    if end.status.signal().is_some() {
        note(&format!(
            "the drain did not end by itself ({}) and has not said what became of the last events",
            end.status
        ));
    } else if !end.status.success() {
        note(&format!("a sink did not get all ({}); the lines above say which", end.status));
    } else if !ring_was_made {
        note(
            "nothing was streamed, for the program made no ring: it called no function with a hook, \
             or keeps to files (TRACE_MODE=summary, another pid namespace), or /dev/shm has no room \
             for one (--ring-mb makes a smaller one)",
        );
    } else if let (Some(server), None, None) = (&plan.live, &plan.file, &end.left) {
        note(&format!("the events are at {server}, and the report is made there"));
    }
}

/// The drain has not finished the ring. It is of no use to anybody, unless a process of the program
/// still records into it.
fn settle(plan: &DrainPlan, ring: &RingFile, state: &RingState) {
    let name = ring.name();
    if let Some(member) = state.living().next() {
        let pid = member.id.pid;
        let target = match (&plan.live, &plan.file) {
            (Some(server), _) => format!("{name} {} {}", server.host, server.port),
            (None, Some(folder)) => format!("--file {} {name}", folder.display()),
            (None, None) => name,
        };
        note(&format!(
            "process {pid} goes on recording into a ring: `callsight drain {target}` goes on with it"
        ));
        return;
    }
    if let Some(what) = given_up(state.held_events, state.dropped_events()) {
        note(&what);
    }
    if let Err(error) = ring.remove() {
        note(&format!("{error}; `callsight rings --remove` tries again"));
    }
}

/// What goes with a ring: what is held in it, and what it alone may count.
fn given_up(held: u64, dropped: u64) -> Option<String> {
    let rest = "were dropped before, which the sinks need not have been told";
    match (held, dropped) {
        (0, 0) => None,
        (0, _) => Some(format!("the ring is given up; {dropped} events {rest}")),
        (_, 0) => Some(format!("{held} events that no sink has taken are given up with the ring")),
        _ => Some(format!(
            "{held} events that no sink has taken are given up with the ring; {dropped} {rest}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_given_up_without_a_word_only_where_it_has_nothing_to_tell() {
        assert_eq!(given_up(0, 0), None);
        for (held, dropped) in [(0, 5), (7, 0), (7, 5)] {
            let said = given_up(held, dropped).expect("a line");
            let numbers = said.split(' ').filter_map(|word| word.parse::<u64>().ok());
            assert_eq!(numbers.sum::<u64>(), held + dropped, "{said}");
        }
    }
}
