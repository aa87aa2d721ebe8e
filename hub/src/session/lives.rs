//! What came of the threads of a ring, over all its streams: pieces of lives, and what is missing between them.

use std::ops::Range;

use callsight_format::BlockHeader;

use super::part::WriterPart;

/// Most pieces of a life between which something is missing; the oldest are then taken for one.
pub(super) const MAX_SPANS: usize = 32;

/// One thread from its start to its end; other lives of its id have other times.
#[derive(Debug)]
pub(super) struct Life {
    from_ts: u64,
    /// Its first record came.
    begun: bool,
    /// What came before its first span is other drains' business, or an earlier server's.
    pub late: bool,
    pub spans: Vec<Span>,
    /// Missing between spans that are one now.
    missing: u64,
}

/// Records that came, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    first: u64,
    end: u64,
    /// What the writer had dropped before its first block, and before the last.
    lost_first: u64,
    lost_last: u64,
}

impl Span {
    fn of(block: &BlockHeader) -> Span {
        let end = block.first.saturating_add(block.numbered.into());
        let lost = block.lost_total;
        Span { first: block.first, end, lost_first: lost, lost_last: lost }
    }

    fn overlap(&self, other: &Span) -> Range<u64> {
        self.first.max(other.first)..self.end.min(other.end)
    }

    /// This one and a later one, which may begin in it.
    fn joined(self, later: Span) -> Span {
        let lost_last = self.lost_last.max(later.lost_last);
        Span { end: self.end.max(later.end), lost_last, ..self }
    }
}

/// What is missing between the end of a span and the next, less what the writer dropped there.
fn missing_between(span: &Span, next: &Span) -> u64 {
    let dropped = next.lost_first.saturating_sub(span.lost_last);
    next.first.saturating_sub(span.end).saturating_sub(dropped)
}

impl Life {
    fn beginning_with(block: &BlockHeader, late: bool) -> Life {
        let (from_ts, begun) = (block.first_ts, block.first == 0);
        Life { from_ts, begun, late, spans: Vec::new(), missing: 0 }
    }

    /// Adds a block; which of its numbers had come before.
    pub fn add(&mut self, block: &BlockHeader, late: bool) -> Vec<Range<u64>> {
        let new = Span::of(block);
        if block.numbered == 0 && self.spans.last().is_some_and(|last| last.end > new.first) {
            return Vec::new();
        }
        self.add_span(new, late)
    }

    /// Adds what an earlier server had.
    pub fn add_part(&mut self, part: &WriterPart, late: bool) {
        let WriterPart { first, end, lost_first, lost_last, missing, .. } = *part;
        self.add_span(Span { first, end, lost_first, lost_last }, late);
        self.missing = self.missing.saturating_add(missing);
    }

    fn add_span(&mut self, mut new: Span, late: bool) -> Vec<Range<u64>> {
        let at = self.spans.partition_point(|span| span.first <= new.first);
        if at == 0 {
            self.late = late;
        }
        let again = self.spans.iter().map(|span| span.overlap(&new));
        let again = again.filter(|numbers| !numbers.is_empty()).collect();
        let from = at - usize::from(at > 0 && self.spans[at - 1].end >= new.first);
        let to = self.spans.partition_point(|span| span.first <= new.end).max(at);
        for span in self.spans.drain(from..to) {
            new = if span.first <= new.first { span.joined(new) } else { new.joined(span) };
        }
        self.spans.insert(from, new);
        if self.spans.len() > MAX_SPANS {
            let oldest = self.spans.remove(0);
            self.missing += missing_between(&oldest, &self.spans[0]);
            self.spans[0] = oldest.joined(self.spans[0]);
        }
        again
    }

    pub fn missing(&self) -> u64 {
        let first = self.spans.first().filter(|_| !self.late);
        let before = first.map_or(0, |span| span.first.saturating_sub(span.lost_first));
        let gaps = self.spans.windows(2).map(|pair| missing_between(&pair[0], &pair[1]));
        gaps.fold(self.missing.saturating_add(before), u64::saturating_add)
    }

    pub fn lost(&self) -> u64 {
        let before = self.spans.first().filter(|_| self.late).map_or(0, |span| span.lost_first);
        self.spans.last().map_or(0, |span| span.lost_last.saturating_sub(before))
    }
}

/// The life that a block is of; a new one where it is of none of these, which stand by time.
pub(super) fn life_of<'a>(
    lives: &'a mut Vec<Life>,
    block: &BlockHeader,
    late: bool,
) -> &'a mut Life {
    let ts = block.first_ts;
    let later = lives.partition_point(|life| life.from_ts <= ts);
    let earlier = later.checked_sub(1);
    let beginning = lives.get(later).filter(|life| !life.begun).map(|_| later);
    let known = match block.first {
        0 => earlier.filter(|at| lives[*at].begun && lives[*at].from_ts == ts).or(beginning),
        _ => earlier.or(beginning),
    };
    let at = known.unwrap_or_else(|| {
        lives.insert(later, Life::beginning_with(block, late));
        later
    });
    let life = &mut lives[at];
    life.begun |= block.first == 0;
    life.from_ts = life.from_ts.min(ts);
    life
}
