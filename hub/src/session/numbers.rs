//! Losses by arithmetic: the records of a writer are numbered, and so are those it dropped.

use std::collections::HashMap;

use callsight_format::BlockHeader;

/// Most writers that are followed; those beyond are believed. 64 bytes each.
const MAX_WRITERS: usize = 1 << 14;

/// What is known of a writer.
struct Writer {
    /// Time of its first record: another one under the same name is another thread.
    born_ts: u64,
    next: u64,
    lost_total: u64,
}

/// Follows the writers of a stream.
#[derive(Default)]
pub(super) struct Numbers {
    writers: HashMap<(u32, u64, u32), Writer>,
    missing_records: u64,
}

impl Numbers {
    /// Looks at the next block of a stream. Numbers that are passed over, less what the writer
    /// says it has dropped since, are missing.
    pub fn observe(&mut self, header: &BlockHeader) {
        let key = (header.pid, header.start, header.tid);
        let next = header.first.saturating_add(header.numbered.into());
        let lost_total = header.lost_total;
        let full = self.writers.len() >= MAX_WRITERS;
        match self.writers.get_mut(&key) {
            Some(writer) if header.first > 0 || header.first_ts == writer.born_ts => {
                let passed_over = header.first.saturating_sub(writer.next);
                let dropped = lost_total.saturating_sub(writer.lost_total);
                self.missing_records =
                    self.missing_records.saturating_add(passed_over.saturating_sub(dropped));
                writer.next = writer.next.max(next);
                writer.lost_total = writer.lost_total.max(lost_total);
            }
            Some(writer) => *writer = Writer { born_ts: header.first_ts, next, lost_total },
            None if full => {}
            None => {
                let born_ts = header.first_ts;
                self.writers.insert(key, Writer { born_ts, next, lost_total });
            }
        }
    }

    /// Records that were passed over and that nobody has dropped.
    pub fn missing_records(&self) -> u64 {
        self.missing_records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks as (tid, first, numbered, first time, lost before) → what is missing.
    fn missing(blocks: &[(u32, u64, u32, u64, u64)]) -> u64 {
        let mut numbers = Numbers::default();
        for &(tid, first, numbered, first_ts, lost_total) in blocks {
            let header = BlockHeader {
                tid,
                first,
                numbered,
                first_ts,
                lost_total,
                ..BlockHeader::default()
            };
            numbers.observe(&header);
        }
        numbers.missing_records()
    }

    #[test]
    fn a_gap_that_its_writer_did_not_drop_is_missing() {
        assert_eq!(missing(&[(1, 0, 10, 5, 0), (2, 0, 10, 5, 0), (1, 10, 5, 6, 0)]), 0);
        assert_eq!(missing(&[(1, 0, 10, 5, 0), (1, 30, 5, 6, 0)]), 20);
        assert_eq!(missing(&[(1, 0, 10, 5, 0), (1, 30, 5, 6, 15)]), 5);
        assert_eq!(missing(&[(1, 0, 10, 5, 0), (1, 30, 5, 6, 20), (1, 35, 1, 7, 20)]), 0);
    }

    #[test]
    fn a_thread_id_that_is_used_again_begins_anew_and_a_late_start_is_no_gap() {
        assert_eq!(missing(&[(1, 0, 10, 5, 0), (1, 0, 10, 99, 0), (1, 10, 1, 100, 0)]), 0);
        assert_eq!(missing(&[(1, 700, 10, 5, 3), (1, 710, 10, 99, 3)]), 0);
    }

    #[test]
    fn numbers_that_came_before_are_no_gap() {
        assert_eq!(missing(&[(1, 10, 10, 5, 0), (1, 12, 4, 6, 0), (1, 20, 1, 7, 0)]), 0);
    }
}
