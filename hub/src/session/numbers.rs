//! Losses by arithmetic: the records of a writer are numbered, and so are those it dropped.

use std::collections::HashMap;

use callsight_format::BlockHeader;

use super::part::WriterPart;

/// Most writers that are followed; those beyond are believed. 96 bytes each.
const MAX_WRITERS: usize = 1 << 14;

/// What is known of a writer.
struct Writer {
    /// How many were known before it.
    at: usize,
    /// Time of its first record: another one under the same name is another thread.
    born_ts: u64,
    first: u64,
    next: u64,
    lost_first: u64,
    lost_total: u64,
    missing: u64,
    /// Of these, for causes that blocks do not tell: before its first block here, and in all.
    others_before: u64,
    others: u64,
}

impl Writer {
    fn beginning_with(header: &BlockHeader, at: usize) -> Writer {
        let others = header.lost_for_other_causes();
        Writer {
            at,
            born_ts: header.first_ts,
            first: header.first,
            next: header.first.saturating_add(header.numbered.into()),
            lost_first: header.lost_total,
            lost_total: header.lost_total,
            missing: 0,
            others_before: if header.first == 0 { 0 } else { others },
            others,
        }
    }

    /// As it was before another server went on; only the first blocks of a stream tell other causes.
    fn going_on(part: &WriterPart, at: usize) -> Writer {
        Writer {
            at,
            born_ts: part.from_ts,
            first: part.first,
            next: part.end,
            lost_first: part.lost_first,
            lost_total: part.lost_last,
            missing: part.missing,
            others_before: 0,
            others: 0,
        }
    }

    fn part(&self, (pid, start, tid): (u32, u64, u32)) -> WriterPart {
        WriterPart {
            pid,
            start,
            tid,
            from_ts: self.born_ts,
            first: self.first,
            end: self.next,
            lost_first: self.lost_first,
            lost_last: self.lost_total,
            missing: self.missing,
        }
    }

    fn others_here(&self) -> u64 {
        self.others.saturating_sub(self.others_before)
    }
}

/// Follows the writers of a stream.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Those of one name, one after the other: a thread id is used again, and a program that replaces
    /// itself (`exec`) keeps its own.
    writers: HashMap<(u32, u64, u32), Vec<Writer>>,
    writer_count: usize,
    missing_records: u64,
}

impl Numbers {
    /// As they were behind what an earlier server had.
    pub fn going_on(parts: &[Option<WriterPart>]) -> Numbers {
        let mut numbers = Numbers { writer_count: parts.len(), ..Numbers::default() };
        for (at, part) in parts.iter().enumerate() {
            let Some(part) = part else { continue };
            let writers = numbers.writers.entry((part.pid, part.start, part.tid)).or_default();
            writers.push(Writer::going_on(part, at));
        }
        numbers
    }

    /// Looks at the next block of a stream. Numbers that are passed over, less what the writer
    /// says it has dropped since, are missing. In a `late` stream others may have had what comes
    /// before the first block of a writer. Says what came of that writer, without what is `left_out` at
    /// the front of its first block, and how many were known before it.
    pub fn observe(
        &mut self,
        header: &BlockHeader,
        late: bool,
        left_out: u64,
    ) -> Option<(usize, WriterPart)> {
        let id = (header.pid, header.start, header.tid);
        let writers = self.writers.entry(id).or_default();
        let known = match header.first {
            0 => writers.iter_mut().rfind(|writer| writer.born_ts == header.first_ts),
            _ => {
                let at = writers.iter().rposition(|writer| writer.born_ts <= header.first_ts);
                at.or(writers.len().checked_sub(1)).and_then(|at| writers.get_mut(at))
            }
        };
        if let Some(writer) = known {
            let passed_over = header.first.saturating_sub(writer.next);
            let dropped = header.lost_total.saturating_sub(writer.lost_total);
            let missing = passed_over.saturating_sub(dropped);
            self.missing_records = self.missing_records.saturating_add(missing);
            writer.missing = writer.missing.saturating_add(missing);
            let next = header.first.saturating_add(header.numbered.into());
            writer.next = writer.next.max(next);
            writer.lost_total = writer.lost_total.max(header.lost_total);
            writer.others = writer.others.max(header.lost_for_other_causes());
            Some((writer.at, writer.part(id)))
        } else if self.writer_count < MAX_WRITERS {
            let at = self.writer_count;
            self.writer_count += 1;
            let is_former = late || !writers.is_empty();
            let before = if is_former { 0 } else { header.first.saturating_sub(header.lost_total) };
            self.missing_records = self.missing_records.saturating_add(before);
            let mut writer = Writer::beginning_with(header, at);
            writer.first = writer.first.saturating_add(left_out);
            let part = writer.part(id);
            writers.push(writer);
            Some((at, part))
        } else {
            None
        }
    }

    /// What the writers dropped here for causes that blocks do not tell, at least.
    pub fn lost_for_other_causes(&self) -> u64 {
        let lost = self.writers.values().flatten().map(Writer::others_here);
        lost.fold(0, u64::saturating_add)
    }

    /// What came of each writer, and how many were known before it.
    pub fn parts(&self) -> impl Iterator<Item = (usize, WriterPart)> + '_ {
        let all = self.writers.iter();
        all.flat_map(|(id, writers)| writers.iter().map(|writer| (writer.at, writer.part(*id))))
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
        missing_in(false, blocks)
    }

    fn missing_in(late: bool, blocks: &[(u32, u64, u32, u64, u64)]) -> u64 {
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
            numbers.observe(&header, late, 0);
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
        let late_start = [(1, 700, 10, 5, 3), (1, 710, 10, 99, 3)];
        assert_eq!(missing_in(true, &late_start), 0);
        // Where nobody else had the beginning, it is.
        assert_eq!(missing_in(false, &late_start), 697);
    }

    #[test]
    fn what_a_program_stored_before_it_replaced_itself_may_come_behind_what_came_since() {
        let blocks = [(1, 0, 10, 5, 0), (1, 0, 10, 99, 0), (1, 10, 500, 6, 0), (1, 10, 7, 100, 0)];
        assert_eq!(missing(&blocks), 0);
        assert_eq!(missing(&[&blocks[..], &[(1, 520, 1, 7, 0)]].concat()), 10);
    }

    #[test]
    fn numbers_that_came_before_are_no_gap() {
        let again = [(1, 10, 10, 5, 0), (1, 12, 4, 6, 0), (1, 20, 1, 7, 0)];
        assert_eq!(missing_in(true, &again), 0);
    }

    #[test]
    fn what_an_earlier_server_had_of_a_writer_is_gone_on_with() {
        let header = |tid, first, numbered| BlockHeader {
            tid,
            first,
            numbered,
            first_ts: 5,
            ..BlockHeader::default()
        };
        let mut numbers = Numbers::default();
        numbers.observe(&header(1, 0, 10), true, 4);
        numbers.observe(&header(2, 0, 10), true, 0);
        let mut parts: Vec<_> = numbers.parts().collect();
        parts.sort_by_key(|(at, _)| *at);
        let parts: Vec<_> = parts.into_iter().map(|(_, part)| Some(part)).collect();
        let mut next = Numbers::going_on(&parts);
        let (at, part) = next.observe(&header(1, 13, 7), true, 0).expect("a writer");
        assert_eq!((at, part.first, part.end, part.missing), (0, 4, 20, 3));
        assert_eq!(next.observe(&header(3, 0, 1), true, 0).map(|(at, _)| at), Some(2));
        assert_eq!(next.missing_records(), 3);
    }
}
