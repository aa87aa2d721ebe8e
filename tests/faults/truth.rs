//! What programs counted themselves, beside what arrived and what was lost.

use std::path::{Path, PathBuf};

use callsight_tests::Report;

/// Bytes of a thread's line: `struct line` of programs/tally.c.
const LINE_BYTES: usize = 64;

/// How many events must have been emitted at least and can have been at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// Events of calls that are over.
    pub least: u64,
    /// With those of calls that had begun.
    pub most: u64,
    /// Threads that made calls.
    pub threads: u64,
}

impl Truth {
    /// Exactly so many.
    pub fn exactly(events: u64) -> Truth {
        Truth { least: events, most: events, threads: 1 }
    }

    /// What the file of a `tally` holds; nothing where it was killed before it made one.
    pub fn read(file: &Path) -> Truth {
        let bytes = std::fs::read(file).unwrap_or_default();
        let mut truth = Truth::default();
        for line in bytes.chunks_exact(LINE_BYTES) {
            let word = |at: usize| {
                u64::from_ne_bytes(line[8 * at..8 * at + 8].try_into().expect("8 bytes"))
            };
            truth.least += 2 * word(2);
            truth.most += 2 * word(1);
            truth.threads += u64::from(word(1) > 0);
        }
        truth
    }

    /// The sum over several files.
    pub fn of_all(files: &[PathBuf]) -> Truth {
        files.iter().fold(Truth::default(), |sum, file| sum.plus(Truth::read(file)))
    }

    /// Both together.
    pub fn plus(self, other: Truth) -> Truth {
        Truth {
            least: self.least + other.least,
            most: self.most + other.most,
            threads: self.threads + other.threads,
        }
    }
}

/// Emitted = delivered + lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Events in the captures.
    pub delivered: u64,
    /// Events lost, by cause.
    pub lost: Vec<(String, u64)>,
}

impl Account {
    /// What a report says.
    pub fn of(report: &Report) -> Account {
        let lost = report.losses().into_iter().filter(|(_, events)| *events > 0);
        Account { delivered: report.number("events"), lost: lost.collect() }
    }

    /// All that was lost.
    pub fn lost_events(&self) -> u64 {
        self.lost.iter().map(|(_, events)| events).sum()
    }

    /// Lost for one cause.
    pub fn lost_for(&self, cause: &str) -> u64 {
        self.lost.iter().filter(|(name, _)| name == cause).map(|(_, events)| events).sum()
    }

    /// Asserts that everything emitted is here or counted, and nothing twice.
    #[track_caller]
    pub fn holds(&self, truth: Truth, of_what: &str) {
        let all = self.delivered + self.lost_events();
        let missing = truth.least.saturating_sub(all);
        let surplus = all.saturating_sub(truth.most);
        assert_eq!(
            (missing, surplus),
            (0, 0),
            "unaccounted (missing, surplus) of {of_what}: {self:?} beside {truth:?}"
        );
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Account) {
        self.delivered += other.delivered;
        for (cause, events) in &other.lost {
            match self.lost.iter_mut().find(|(name, _)| name == cause) {
                Some((_, sum)) => *sum += events,
                None => self.lost.push((cause.clone(), *events)),
            }
        }
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "delivered={}", self.delivered)?;
        self.lost.iter().try_for_each(|(cause, events)| write!(f, " {cause}={events}"))
    }
}
