//! The last lines of a drain → what became of the events, as it told; and the sums over several drains.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitStatus;

/// Events of a sink, or of a whole drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// What arrived.
    pub delivered_events: u64,
    /// What did not.
    pub dropped_events: u64,
    /// The same by cause.
    pub dropped_by_cause: BTreeMap<String, u64>,
}

impl Figures {
    /// From `5 delivered, 2 dropped (full 2), ...`, with these words in place of `delivered`.
    fn parse(text: &str, delivered: &str) -> Option<Figures> {
        let (delivered_events, rest) = text.split_once(delivered)?;
        let (dropped_events, rest) = rest.strip_prefix(", ")?.split_once(" dropped")?;
        let causes = rest.strip_prefix(" (").and_then(|rest| rest.split_once(')'));
        let by_cause = |cause: &str| {
            let (name, events) = cause.rsplit_once(' ')?;
            Some((name.to_owned(), events.parse().ok()?))
        };
        Some(Figures {
            delivered_events: delivered_events.parse().ok()?,
            dropped_events: dropped_events.parse().ok()?,
            dropped_by_cause: causes
                .map_or("", |(causes, _)| causes)
                .split(", ")
                .filter_map(by_cause)
                .collect(),
        })
    }

    fn add(&mut self, other: &Figures) {
        self.delivered_events = self.delivered_events.saturating_add(other.delivered_events);
        self.dropped_events = self.dropped_events.saturating_add(other.dropped_events);
        for (cause, events) in &other.dropped_by_cause {
            let sum = self.dropped_by_cause.entry(cause.clone()).or_default();
            *sum = sum.saturating_add(*events);
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} delivered, {} dropped", self.delivered_events, self.dropped_events)?;
        let causes =
            self.dropped_by_cause.iter().map(|(cause, events)| format!("{cause} {events}"));
        match causes.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => Ok(()),
            causes => write!(f, " ({causes})"),
        }
    }
}

/// What a drain has told of all that it took, and of each of its sinks that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Its last line.
    pub all: Option<Figures>,
    /// The line of its server, where it has one.
    pub live: Option<Figures>,
    /// The line of its file, where it has one.
    pub file: Option<Figures>,
}

impl Account {
    /// Takes note of a line of a drain, if it tells figures.
    pub(super) fn hear(&mut self, line: &str) {
        let Some(said) = line.strip_prefix("trace_stream: ") else { return };
        let (who, delivered) = match said.split_once([':', ',']) {
            Some(("live", rest)) => {
                (&mut self.live, Figures::parse(rest.trim_start(), " delivered"))
            }
            Some(("file", rest)) => {
                (&mut self.file, Figures::parse(rest.trim_start(), " delivered"))
            }
            Some(("done" | "stopped", rest)) => {
                (&mut self.all, Figures::parse(rest.trim_start(), " events forwarded"))
            }
            _ => return,
        };
        *who = delivered.or(who.take());
    }
}

/// A drain of several that followed one another, and how it ended.
#[derive(Clone, Debug)]
pub struct PastDrain {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it told.
    pub account: Account,
}

/// Adds up what these have told of a sink; a drain that names none has one alone, which has all.
pub fn sum_of(drains: &[PastDrain], sink: impl Fn(&Account) -> &Option<Figures>) -> Figures {
    let mut sum = Figures::default();
    for drain in drains {
        let account = &drain.account;
        let only =
            account.all.as_ref().filter(|_| account.live.is_none() && account.file.is_none());
        sink(account).as_ref().or(only).into_iter().for_each(|figures| sum.add(figures));
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn drain(lines: &[&str]) -> PastDrain {
        let mut account = Account::default();
        lines.iter().for_each(|line| account.hear(line));
        PastDrain { status: ExitStatus::from_raw(0), account }
    }

    #[test]
    fn the_figures_of_drains_add_up_by_sink_and_by_cause() {
        let drains = [
            drain(&[
                "trace_stream: connected",
                "trace_stream: live: 5 delivered, 4 dropped (full 3, unacked 1), unaccounted=0",
                "trace_stream: file: 9 delivered, 0 dropped, unaccounted=0",
                "trace_stream: done, 9 events forwarded, 0 dropped, unaccounted=0",
            ]),
            drain(&["trace_stream: live: nobody is there"]),
            drain(&[
                "trace_stream: stopped, 7 events forwarded, 2 dropped (full 2), left_in_ring=1",
            ]),
        ];
        let live = sum_of(&drains, |account| &account.live);
        assert_eq!(live.to_string(), "12 delivered, 6 dropped (full 5, unacked 1)");
        assert_eq!(
            sum_of(&drains, |account| &account.file).to_string(),
            "16 delivered, 2 dropped (full 2)"
        );
        assert_eq!(
            (&drains[1].account, drains[2].account.all.is_some()),
            (&Account::default(), true)
        );
    }
}
