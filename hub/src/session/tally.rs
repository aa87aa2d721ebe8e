//! The account of a session: what came, and what became of it at each sink.

use callsight_format::Cause;

use super::books::RingId;
use crate::Losses;

/// What became of the events a sink was offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkTally {
    /// What the sink is called.
    pub name: String,
    /// Enters and exits that came for it.
    pub emitted_events: u64,
    /// Enters and exits that arrived.
    pub delivered_events: u64,
    /// Enters and exits that did not.
    pub dropped_events: Losses,
    /// How much there is of it, for people.
    pub extent: Option<String>,
    /// What was wrong with it, for people.
    pub trouble: Option<String>,
}

impl SinkTally {
    /// What is missing in the account; 0, or callsight has miscounted.
    pub fn unaccounted(&self) -> i128 {
        let accounted = i128::from(self.delivered_events) + i128::from(self.dropped_events.sum());
        i128::from(self.emitted_events) - accounted
    }
}

/// What became of the events of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Enters and exits that came, each once.
    pub received_events: u64,
    /// Events lost before they got here: as the sender says, or as their numbers show.
    pub lost_before: Losses,
    /// Of these, those of which an earlier server of the stream had told.
    pub lost_earlier: Losses,
    /// The last block that an earlier server had; what it got is not counted here.
    pub resumed_behind: Option<u64>,
    /// Blocks that came again and were left out.
    pub duplicate_blocks: u64,
    /// Of the enters and exits that came, those that another stream of this server brought too: a
    /// drain that was restarted sends again what the one before had not given back.
    pub again_events: u64,
    /// Of what was lost, what another stream told of, too.
    pub again_lost: Losses,
    /// The ring, of a sender that packs.
    pub(super) ring: Option<RingId>,
    /// Of what was lost before it came, what never left the ring.
    pub(super) lost_in_ring: Losses,
    /// Records missing by number.
    pub(super) missing_records: u64,
    /// What came of its ring, and what drains had taken before.
    pub(super) of_ring: OfRing,
    /// Chunks of types that were not known.
    pub unknown_chunks: u64,
    /// Whether the sender said who it is: then it also says when it is done.
    pub named: bool,
    /// Whether the sender said that it is done.
    pub ended: bool,
    /// By sink.
    pub sinks: Vec<SinkTally>,
}

/// Records of a ring, markers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfRing {
    /// That drains had taken before this one.
    pub taken: u64,
    /// That drains had taken when it was done with, where its end says that.
    pub taken_in_the_end: Option<u64>,
    /// That came.
    pub came: u64,
    /// Of these, that another stream of this server brought too.
    pub again: u64,
    /// That its writers dropped in its whole life, those that found no place in it left out, as its last
    /// drain says.
    pub dropped: Option<u64>,
    /// Whether some came without numbers: nobody knows which of them another stream brought too.
    pub has_raw: bool,
    /// Whether an earlier server has a part of the stream, and nobody knows which.
    pub is_part: bool,
}

impl Tally {
    /// Enters and exits in the first sink, which is the capture.
    pub fn stored_events(&self) -> u64 {
        self.sinks.first().map_or(0, |sink| sink.delivered_events)
    }

    /// What did not reach the first sink, on the way or there.
    pub fn dropped_events(&self) -> Losses {
        self.sinks.first().map_or(self.lost_since(), |sink| self.dropped_for(sink))
    }

    fn lost_since(&self) -> Losses {
        self.lost_before.beyond(&self.lost_earlier)
    }

    /// What the writers of its ring dropped, as they say, less what another stream told of. Those that
    /// have no place in the ring number nothing.
    pub(super) fn lost_by_writers(&self) -> u64 {
        let lost = self.lost_in_ring.beyond(&self.again_lost);
        lost.sum() - lost.of(Cause::NoSlot)
    }

    fn dropped_for(&self, sink: &SinkTally) -> Losses {
        self.lost_since().plus(&sink.dropped_events)
    }

    /// The account of each sink behind the first one, for people.
    pub fn other_sinks(&self) -> impl Iterator<Item = String> + '_ {
        self.sinks.iter().skip(1).map(|sink| format!("{} ({})", sink.name, self.account(sink)))
    }

    /// `10 events, 1 segment, 7 dropped: 7 full; emitted 17, unaccounted=0`.
    fn account(&self, sink: &SinkTally) -> String {
        let extent = sink.extent.as_ref().map_or(String::new(), |extent| format!(", {extent}"));
        let dropped = self.dropped_for(sink);
        let causes =
            if dropped.sum() > 0 { format!(": {}", dropped.by_cause()) } else { "".into() };
        let events = counted(sink.delivered_events, "event");
        let emitted = sink.emitted_events + self.lost_since().sum();
        let since =
            self.resumed_behind.map_or(String::new(), |block| format!(" since block {block}"));
        format!(
            "{events}{extent}, {} dropped{causes}; emitted {emitted}, unaccounted={}{since}",
            dropped.sum(),
            sink.unaccounted()
        )
    }
}

/// For people, of the first sink: `10 events, 1 segment, 0 dropped; emitted 10, unaccounted=0`.
impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nowhere = SinkTally { emitted_events: self.received_events, ..SinkTally::default() };
        f.write_str(&self.account(self.sinks.first().unwrap_or(&nowhere)))?;
        if self.duplicate_blocks > 0 {
            write!(f, "; {} came again", counted(self.duplicate_blocks, "block"))?;
        }
        if self.again_events > 0 {
            write!(f, "; {} came in another stream, too", counted(self.again_events, "event"))?;
        }
        match self.unknown_chunks {
            0 => Ok(()),
            chunks => write!(f, "; {} of unknown type skipped", counted(chunks, "chunk")),
        }
    }
}

/// `1 event`, `2 events`.
pub(crate) fn counted(number: impl Into<u64>, what: &str) -> String {
    match number.into() {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}
