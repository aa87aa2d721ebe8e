//! A run that is streamed: the drain beside the program, and what became of the events.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::{SystemTime, UNIX_EPOCH};

use callsight_hub::local::{
    DrainEnd, DrainPlan, KeptDrain, KeptEnd, PastDrain, RingFile, RingState, sum_of,
};

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
            Ok(KeptEnd { last, drains }) => {
                sums(&self.plan, &drains).iter().for_each(|line| note(line));
                note_end(&self.plan, &last, ring_was_made);
                if let Some((ring, state)) = &last.left {
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

/// What several drains that followed one another have told, added up, and who has told nothing; no line
/// of one alone, which speaks for itself.
fn sums(plan: &DrainPlan, drains: &[PastDrain]) -> Vec<String> {
    let has_told = |drain: &PastDrain| drain.account.all.is_some();
    let drains: Vec<PastDrain> = drains
        .iter()
        .filter(|drain| has_told(drain) || drain.status.signal().is_some())
        .cloned()
        .collect();
    if drains.len() < 2 {
        return Vec::new();
    }
    let (count, told) = (drains.len(), drains.iter().filter(|drain| has_told(drain)).count());
    let line = |name, sum| format!("{name}: {sum}, told by {told} of {count} drains");
    let live = plan.live.as_ref().map(|_| line("live", sum_of(&drains, |account| &account.live)));
    let file = plan.file.as_ref().map(|_| line("file", sum_of(&drains, |account| &account.file)));
    live.into_iter().chain(file).chain(silence(plan, &drains)).collect()
}

/// Which drains were ended before they could tell what became of their events.
fn silence(plan: &DrainPlan, drains: &[PastDrain]) -> Option<String> {
    let numbered = drains.iter().zip(1..).filter(|(drain, _)| drain.account.all.is_none());
    let (silent, signals): (Vec<u32>, BTreeSet<i32>) = numbered
        .filter_map(|(drain, number): (&PastDrain, u32)| Some((number, drain.status.signal()?)))
        .unzip();
    let (drain, it) = match silent.len() {
        0 => return None,
        1 => ("drain", "it"),
        _ => ("drains", "they"),
    };
    let kept = match (&plan.live, &plan.file) {
        (Some(_), None) => "sent is in the server's report",
        (None, _) => "written is in the report",
        (Some(_), Some(_)) => "sent and written is in the reports of both",
    };
    Some(format!(
        "{drain} {} of {} ended by signal {} and told no figures: what {it} had {kept}",
        listed(silent),
        drains.len(),
        listed(signals)
    ))
}

fn listed(numbers: impl IntoIterator<Item = impl ToString>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    numbers.join(", ")
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
    use std::process::ExitStatus;

    use callsight_hub::local::{Account, Figures};

    use super::*;

    fn plan(file: bool, live: bool) -> DrainPlan {
        DrainPlan {
            command: Vec::new(),
            ring: "/r".to_owned(),
            file: file.then(|| "dir".into()),
            budget_bytes: 0,
            live: live.then(|| "h:7".parse().expect("an address")),
        }
    }

    /// A drain that ended with this status, 9 where it was killed, and delivered so much to its only sink.
    fn drain(status: i32, delivered_events: Option<u64>) -> PastDrain {
        let figures = |delivered_events| Figures { delivered_events, ..Figures::default() };
        let account = Account { all: delivered_events.map(figures), ..Account::default() };
        PastDrain { status: ExitStatus::from_raw(status), account }
    }

    #[test]
    fn several_drains_are_added_up_and_who_was_killed_is_named() {
        let drains = [drain(9, None), drain(0, Some(5)), drain(9, None), drain(0, Some(7))];
        let silent = "drains 1, 3 of 4 ended by signal 9 and told no figures: what they had sent is in \
                      the server's report";
        assert_eq!(
            sums(&plan(false, true), &drains),
            ["live: 12 delivered, 0 dropped, told by 2 of 4 drains", silent]
        );
        let all = sums(&plan(true, true), &[drain(0, Some(5)), drain(0, Some(1))]);
        let [live, file] = &all[..] else { panic!("{all:?}") };
        assert!(live.ends_with("told by 2 of 2 drains") && file.starts_with("file: "), "{all:?}");
    }

    #[test]
    fn one_drain_speaks_for_itself_and_one_that_had_nothing_to_tell_is_none() {
        for drains in [vec![drain(0, Some(5))], vec![drain(9, None)]] {
            assert!(sums(&plan(false, true), &drains).is_empty());
        }
        assert!(sums(&plan(false, true), &[drain(0, Some(5)), drain(0, None)]).is_empty());
    }

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
