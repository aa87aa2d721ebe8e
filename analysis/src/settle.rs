//! What notes told, what numbers show and what the ends of streams say → one account.
//!
//! Emitted = delivered + dropped by cause. What is missing by the numbers of records and blocks,
//! and what nobody says he has dropped, was lost on the way. Numbers count records; what sinks say
//! they dropped counts in enters and exits, as all other losses.

use callsight_format::{CAUSES, Cause};

use crate::ledger::{Dropped, Ledger, add_to, sum, up_to};

/// What became of the records of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// By all writers, as far as anybody knows.
    pub emitted: u64,
    /// Those that are here.
    pub delivered: u64,
    /// Of those emitted: still in the ring when the drain was told to end.
    pub left_in_ring: u64,
    /// Emitted, less all of these and those dropped.
    pub unaccounted: i64,
    /// Lost by writers of which nothing else came.
    pub stray: u64,
}

impl Account {
    /// Without records that fill places and mean nothing.
    pub fn without(self, padding: u64) -> Account {
        let padding = padding.min(self.delivered).min(self.emitted);
        Account { emitted: self.emitted - padding, delivered: self.delivered - padding, ..self }
    }
}

/// The account of a group of files of events: what they do not tell, nobody knows.
pub fn settle_files(records: u64, losses: &[u64; CAUSES]) -> Account {
    let emitted = records.saturating_add(sum(losses));
    Account { emitted, delivered: records, ..Account::default() }
}

/// The account of a group with chunks. `losses` are those that notes told, and become those of
/// the account.
pub fn settle(ledger: &Ledger, losses: &mut [u64; CAUSES]) -> Account {
    let mut missing = ledger.gaps.saturating_add(ledger.hidden);
    rename(losses, &ledger.misnamed, &ledger.named);
    rename_by_blocks(ledger, losses);
    let in_blocks = beyond_notes(ledger, losses);
    let untold = beyond_all(ledger, losses, &in_blocks);
    // Of what two sinks of a stream dropped, one may have what the other has not.
    let mut most = if ledger.all_ended { missing } else { u64::MAX };
    for (cause, lost) in losses.iter_mut().enumerate() {
        let Dropped { events, records } = ledger.sinks[cause];
        let in_sinks = records.min(most);
        most -= in_sinks;
        missing = missing.saturating_sub(in_sinks);
        let told = [ledger.untold[cause], in_blocks[cause], untold[cause]]
            .into_iter()
            .fold(*lost, u64::saturating_add);
        // The notes that are missing with the events count nothing.
        *lost = told.saturating_add(events.min(in_sinks));
    }
    let unacked = &mut losses[Cause::Unacked as usize];
    *unacked = unacked.saturating_add(missing);
    let known = settle_files(ledger.delivered, losses).emitted;
    Account {
        emitted: known
            .saturating_add(ledger.left_in_ring)
            .saturating_add_signed(ledger.unaccounted),
        delivered: ledger.delivered,
        left_in_ring: ledger.left_in_ring,
        unaccounted: ledger.unaccounted,
        stray: ledger.hidden.min(missing),
    }
}

/// The causes that blocks tell, but for torn records, which are always told as such.
const BY_BLOCKS: [Cause; 3] = [Cause::Full, Cause::Reentrant, Cause::Fork];
/// Other causes of a thread that has a place in the ring.
const OTHERS: [Cause; 3] = [Cause::Stopped, Cause::Budget, Cause::Io];

fn sum_of(causes: [Cause; 3], events: &[u64; CAUSES]) -> u64 {
    causes.iter().fold(0, |sum, cause| sum.saturating_add(events[*cause as usize]))
}

/// Gives what was told for some causes to others, as far as it was told.
fn rename(losses: &mut [u64; CAUSES], from: &[u64; CAUSES], to: &[u64; CAUSES]) {
    let mut renamed = 0;
    for (lost, from) in losses.iter_mut().zip(from) {
        let taken = (*from).min(*lost);
        *lost -= taken;
        renamed += taken;
    }
    add_to(losses, &up_to(to, renamed));
}

/// What notes and ends tell, by cause.
fn told(ledger: &Ledger, losses: &[u64; CAUSES]) -> [u64; CAUSES] {
    std::array::from_fn(|cause| losses[cause].saturating_add(ledger.untold[cause]))
}

/// A loss that notes tell as `full`, and blocks for a cause that they do not tell, was not for want of
/// room: where no end says it, that is known by this alone.
fn rename_by_blocks(ledger: &Ledger, losses: &mut [u64; CAUSES]) {
    let told = told(ledger, losses);
    let others = ledger.others_by_blocks.saturating_sub(sum_of(OTHERS, &told));
    let surplus =
        sum_of(BY_BLOCKS, &told).saturating_sub(sum_of(BY_BLOCKS, &ledger.told_by_blocks));
    let (mut from, mut to) = ([0; CAUSES], [0; CAUSES]);
    from[Cause::Full as usize] = others.min(surplus);
    to[Cause::Stopped as usize] = others.min(surplus);
    rename(losses, &from, &to);
}

/// What the last blocks of the writers tell beyond notes and ends, by cause. They may name another
/// cause than those, where one thread took over the counters of another, so that only the sums
/// compare; but a torn record is always told as one.
fn beyond_notes(ledger: &Ledger, losses: &[u64; CAUSES]) -> [u64; CAUSES] {
    let told = told(ledger, losses);
    let mut beyond: [u64; CAUSES] =
        std::array::from_fn(|cause| ledger.told_by_blocks[cause].saturating_sub(told[cause]));
    let torn = std::mem::take(&mut beyond[Cause::Torn as usize]);
    beyond[Cause::Stopped as usize] = ledger.others_by_blocks.saturating_sub(sum_of(OTHERS, &told));
    let by_blocks =
        sum_of(BY_BLOCKS, &ledger.told_by_blocks).saturating_add(ledger.others_by_blocks);
    let by_notes = sum_of(BY_BLOCKS, &told).saturating_add(sum_of(OTHERS, &told));
    beyond = up_to(&beyond, by_blocks.saturating_sub(by_notes));
    beyond[Cause::Torn as usize] = torn;
    beyond
}

/// What the ring counts beyond notes, ends and blocks, by cause: of writers that have ended, told by a
/// drain that was killed. Only the sums compare, as above. What other captures have is not ours to miss.
fn beyond_all(ledger: &Ledger, losses: &[u64; CAUSES], in_blocks: &[u64; CAUSES]) -> [u64; CAUSES] {
    if ledger.taken_before > 0 {
        return [0; CAUSES];
    }
    let told = told(ledger, losses);
    let told: [u64; CAUSES] =
        std::array::from_fn(|cause| told[cause].saturating_add(in_blocks[cause]));
    let beyond: [u64; CAUSES] =
        std::array::from_fn(|cause| ledger.in_ring[cause].saturating_sub(told[cause]));
    up_to(&beyond, sum(&ledger.in_ring).saturating_sub(sum(&told)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: usize = Cause::Full as usize;
    const UNACKED: usize = Cause::Unacked as usize;
    const STOPPED: usize = Cause::Stopped as usize;

    /// 90 delivered, 5 told as `full`, and what `change` makes of it.
    fn settled(change: impl FnOnce(&mut Ledger)) -> (Account, [u64; CAUSES]) {
        let mut ledger = Ledger { delivered: 90, ..Ledger::default() };
        change(&mut ledger);
        let mut losses = [0; CAUSES];
        losses[FULL] = 5;
        (settle(&ledger, &mut losses), losses)
    }

    #[test]
    fn what_is_missing_and_nobody_has_dropped_is_unacked() {
        let (account, losses) = settled(|ledger| (ledger.gaps, ledger.hidden) = (2, 3));
        assert_eq!((account.emitted, account.unaccounted, account.stray), (100, 0, 3));
        assert_eq!((losses[FULL], losses[UNACKED]), (5, 5));
    }

    #[test]
    fn a_note_that_was_lost_is_told_at_the_end_or_by_the_next_block() {
        for (at_end, by_blocks) in [(3, 0), (0, 8), (3, 8)] {
            let (account, losses) = settled(|ledger| {
                (ledger.untold[FULL], ledger.told_by_blocks[FULL]) = (at_end, by_blocks);
            });
            assert_eq!((account.emitted, losses[FULL]), (98, 8));
        }
    }

    #[test]
    fn what_a_block_tells_for_another_cause_than_its_note_is_told_once() {
        let (account, losses) = settled(|ledger| {
            ledger.told_by_blocks[Cause::Reentrant as usize] = 5;
        });
        assert_eq!((account.emitted, losses[FULL], sum(&losses)), (95, 5, 5));
        let (account, losses) = settled(|ledger| {
            ledger.told_by_blocks[Cause::Reentrant as usize] = 7;
        });
        assert_eq!((account.emitted, losses[FULL], sum(&losses)), (97, 5, 7));
    }

    #[test]
    fn what_a_note_calls_full_and_the_end_stopped_is_told_once_as_the_end_has_it() {
        let (account, losses) = settled(|ledger| {
            (ledger.misnamed[FULL], ledger.named[STOPPED]) = (5, 5);
            ledger.others_by_blocks = 5;
        });
        assert_eq!((account.emitted, losses[FULL], losses[STOPPED]), (95, 0, 5));
        // The note was in a block that is missing.
        let (account, losses) = settled(|ledger| {
            (ledger.misnamed[FULL], ledger.named[STOPPED]) = (9, 9);
        });
        assert_eq!((account.emitted, losses[FULL], losses[STOPPED]), (95, 0, 5));
    }

    #[test]
    fn where_no_end_tells_a_cause_that_is_not_in_blocks_their_sums_do() {
        let (account, losses) = settled(|ledger| ledger.others_by_blocks = 5);
        assert_eq!((account.emitted, losses[FULL], losses[STOPPED]), (95, 0, 5));
        let (account, losses) = settled(|ledger| {
            (ledger.others_by_blocks, ledger.told_by_blocks[FULL]) = (7, 3);
        });
        assert_eq!((account.emitted, losses[FULL], losses[STOPPED]), (100, 3, 7));
    }

    #[test]
    fn what_a_sink_dropped_explains_the_gaps_it_left() {
        let (account, losses) = settled(|ledger| {
            (ledger.gaps, ledger.hidden) = (8, 4);
            ledger.sinks[Cause::Queue as usize] = Dropped { events: 7, records: 10 };
        });
        assert_eq!((losses[Cause::Queue as usize], losses[UNACKED]), (7, 2));
        assert_eq!((account.emitted, account.unaccounted, account.stray), (104, 0, 2));
    }

    #[test]
    fn what_one_sink_dropped_and_another_has_is_no_loss() {
        for (all_ended, queue) in [(true, 3), (false, 10)] {
            let (account, losses) = settled(|ledger| {
                (ledger.hidden, ledger.all_ended) = (3, all_ended);
                ledger.sinks[Cause::Queue as usize] = Dropped { events: 10, records: 10 };
            });
            assert_eq!((losses[Cause::Queue as usize], losses[UNACKED]), (queue, 0));
            assert_eq!(account.emitted, 95 + queue);
        }
    }

    #[test]
    fn what_the_ring_counts_and_no_stream_tells_is_lost() {
        let in_ring = |full| [full, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
        for (full, taken_before, lost) in [(20, 0, [20, 3]), (2, 0, [5, 0]), (20, 7, [5, 0])] {
            let (account, losses) = settled(|ledger| {
                (ledger.in_ring, ledger.taken_before) = (in_ring(full), taken_before);
            });
            assert_eq!([losses[FULL], losses[STOPPED]], lost);
            assert_eq!(account.emitted, 90 + lost[0] + lost[1]);
        }
    }

    #[test]
    fn what_a_stopped_drain_left_in_the_ring_is_no_loss() {
        let (account, losses) = settled(|ledger| ledger.left_in_ring = 5);
        assert_eq!((account.emitted, account.left_in_ring, losses[UNACKED]), (100, 5, 0));
    }

    #[test]
    fn what_nothing_explains_is_unaccounted() {
        for (unaccounted, emitted) in [(-2, 93), (3, 98)] {
            let (account, losses) = settled(|ledger| ledger.unaccounted = unaccounted);
            assert_eq!((account.emitted, account.unaccounted), (emitted, unaccounted));
            assert_eq!(losses[UNACKED], 0);
        }
    }
}
