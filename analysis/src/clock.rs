//! Clock anchors → a rate, and ticks → ns.
//!
//! An anchor says what `CLOCK_MONOTONIC` was at a number of ticks. The first and the last one are
//! farthest apart and give the best rate; the rate in the header was measured in a moment.
//! Durations are kept in ticks and converted last.

use callsight_format::Origin;

/// What the clock was at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Clock ticks.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC`, in ns.
    pub ns: u64,
}

/// Turns ticks into ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    zero: Anchor,
    ns_per_tick: f64,
    /// Where the rate comes from.
    pub source: RateSource,
}

/// Where the rate of a [`Clock`] comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateSource {
    /// Times are in ns already.
    Nanoseconds,
    /// From the first to the last anchor.
    Anchors {
        /// The rate of the header divided by that of the anchors; 1 where the header has none.
        header_ratio: f64,
    },
    /// From the header: no second anchor was found.
    Header,
}

impl Clock {
    /// A clock for times in ns.
    pub const NANOSECONDS: Clock = Clock {
        zero: Anchor { ticks: 0, ns: 0 },
        ns_per_tick: 1.0,
        source: RateSource::Nanoseconds,
    };

    /// The clock of a producer that counts ticks from `origin`, with the anchors that were found
    /// in all files of that origin. `None` where nothing states a rate.
    pub fn of_ticks(origin: &Origin, anchors: impl Iterator<Item = Anchor>) -> Option<Clock> {
        let zero = Anchor { ticks: origin.t0_ticks, ns: origin.t0_ns };
        let last = anchors.max_by_key(|anchor| anchor.ticks).unwrap_or(zero);
        let header_rate = (origin.tick_hz > 0).then(|| 1e9 / origin.tick_hz as f64);
        if last.ticks > zero.ticks && last.ns > zero.ns {
            let ns_per_tick = (last.ns - zero.ns) as f64 / (last.ticks - zero.ticks) as f64;
            let header_ratio = header_rate.map_or(1.0, |rate| rate / ns_per_tick);
            return Some(Clock { zero, ns_per_tick, source: RateSource::Anchors { header_ratio } });
        }
        Some(Clock { zero, ns_per_tick: header_rate?, source: RateSource::Header })
    }

    /// A duration in ns.
    pub fn duration_ns(&self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// A time on `CLOCK_MONOTONIC`, in ns.
    pub fn time_ns(&self, ticks: u64) -> f64 {
        // The difference first: a double holds it exactly, and not both times.
        let since = i128::from(ticks) - i128::from(self.zero.ticks);
        self.zero.ns as f64 + since as f64 * self.ns_per_tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(tick_hz: u64) -> Origin {
        Origin { tick_hz, t0_ticks: 1000, t0_ns: 50, ..Origin::default() }
    }

    fn ns_per_1000_ticks(tick_hz: u64, anchors: &[(u64, u64)]) -> Option<f64> {
        let anchors = anchors.iter().map(|(ticks, ns)| Anchor { ticks: *ticks, ns: *ns });
        Some(Clock::of_ticks(&origin(tick_hz), anchors)?.duration_ns(1000))
    }

    #[test]
    fn the_last_anchor_decides() {
        assert_eq!(ns_per_1000_ticks(1, &[(3000, 1050), (2000, 40)]), Some(500.0));
    }

    #[test]
    fn without_an_anchor_the_header_decides() {
        assert_eq!(ns_per_1000_ticks(2_000_000_000, &[]), Some(500.0));
    }

    #[test]
    fn an_anchor_before_the_start_is_no_rate() {
        assert_eq!(ns_per_1000_ticks(1_000_000_000, &[(900, 7), (1001, 50)]), Some(1000.0));
    }

    #[test]
    fn no_anchor_and_no_rate_is_no_clock() {
        assert_eq!(ns_per_1000_ticks(0, &[]), None);
    }

    #[test]
    fn times_before_the_start_are_times_too() {
        let clock = Clock::of_ticks(&origin(1_000_000_000), std::iter::empty()).expect("a clock");
        assert_eq!(clock.time_ns(990), 40.0);
    }
}
