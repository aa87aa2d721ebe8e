//! What has become of the segments of a capture, which others may remove, replace or cut short.

use std::fs::File;

use super::CaptureDir;
use super::segment::{Facts, Left, Segment};
use crate::session::counted;
use crate::{Amount, Losses};

/// What stands in a segment, or did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub amount: Amount,
    /// Losses that its notes tell.
    pub told: Losses,
}

impl Contents {
    fn without(self, kept: &Contents) -> Contents {
        let amount = less(self.amount, kept.amount);
        Contents { amount, told: self.told.beyond(&kept.told) }
    }
}

/// The one without the other.
pub(super) fn less(all: Amount, some: Amount) -> Amount {
    let events = all.events.saturating_sub(some.events);
    Amount { events, records: all.records.saturating_sub(some.records) }
}

/// Reads what stands in a file from the one byte to the other.
pub(super) type Count<'a> = &'a dyn Fn(&File, u64, u64) -> Contents;

/// What a segment does not have any more.
pub(super) struct Harm {
    seq: u32,
    pub lost: Contents,
    /// What is left of its file.
    pub left: Left,
}

impl Harm {
    /// What is wrong with segment `seq`, in which `contents` were stored; `None` where nothing is.
    pub fn of(seq: u32, segment: &Segment, contents: Contents, count: Count<'_>) -> Option<Harm> {
        let left = segment.facts.left(&segment.file)?;
        Some(Harm::found(seq, &segment.file, &segment.facts, contents, left, count))
    }

    fn found(
        seq: u32,
        file: &File,
        facts: &Facts,
        contents: Contents,
        left: Left,
        count: Count<'_>,
    ) -> Harm {
        let kept = match left {
            Left::Bytes(bytes) => count(file, facts.from, bytes),
            Left::Nothing => Contents::default(),
        };
        Harm { seq, lost: contents.without(&kept), left }
    }

    /// For people.
    pub fn text(&self, capture: u32) -> String {
        let seq = self.seq;
        let how = match self.left {
            Left::Bytes(_) => "cut short",
            Left::Nothing => "removed or replaced",
        };
        let events = counted(self.lost.amount.events, "event");
        format!(
            "somebody else has {how} trace.stream.{capture}.{seq}.bin: {events} in it lost, and counted"
        )
    }
}

/// A segment that is done with.
struct Closed {
    seq: u32,
    facts: Facts,
    contents: Contents,
}

/// The segments of a capture that are done with.
#[derive(Default)]
pub(super) struct Guard(Vec<Closed>);

impl Guard {
    /// Looks after this one from now on.
    pub fn close(&mut self, seq: u32, segment: &Segment, contents: Contents) {
        self.0.push(Closed { seq, facts: segment.facts, contents });
    }

    /// Those with which something is wrong, each once.
    pub fn look(&mut self, directory: &CaptureDir, id: u32, count: Count<'_>) -> Vec<Harm> {
        let look = |Closed { seq, facts, contents }: &Closed| {
            let Ok(file) = directory.open_segment(id, *seq) else {
                return Some(Harm { seq: *seq, lost: *contents, left: Left::Nothing });
            };
            let left = facts.left(&file)?;
            Some(Harm::found(*seq, &file, facts, *contents, left, count))
        };
        let harms: Vec<Harm> = self.0.iter().filter_map(look).collect();
        self.0.retain(|closed| harms.iter().all(|harm| harm.seq != closed.seq));
        harms
    }
}
