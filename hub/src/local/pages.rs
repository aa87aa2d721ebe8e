//! The pages of one process in a ring, copied while their writers and a drain go on.
//!
//! In: a ring that others change meanwhile. Out: for each thread its pages by number, with what is
//! whole in them. Nothing is changed; a page that has changed hands while it was copied is read
//! again.

use std::collections::BTreeMap;
use std::mem::offset_of;

use callsight_format::{EVENT_BYTES, Event, PAGE_HEADER_BYTES, PAGE_RETIRED, PageHeader};

use super::process::ProcessId;
use super::ring::{Bytes, RingError, RingFile, stored};

/// How often a page is read that changes hands all the time, or fills while it is copied.
const TRIES: usize = 4;

/// Whose pages: a slot of the ring, and the thread that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriterKey {
    pub tid: u32,
    pub slot: u64,
}

/// What stood in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Number of its first record.
    pub first: u64,
    /// What its writer had dropped before it.
    pub lost_total: u64,
    /// Its slots up to the last that is whole; `None` for one that is not.
    pub slots: Vec<Option<Event>>,
}

impl Page {
    fn parse(header: &Bytes, body: &[u8]) -> Page {
        let mut slots: Vec<_> = body.chunks_exact(EVENT_BYTES).map(stored).collect();
        slots.truncate(slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        Page {
            first: header.u64(offset_of!(PageHeader, first)),
            lost_total: header.u64(offset_of!(PageHeader, lost_total)),
            slots,
        }
    }

    /// How many of its slots at the front are empty: what a drain gives back it empties from there.
    pub fn given_back(&self) -> usize {
        self.slots.iter().take_while(|slot| slot.is_none()).count()
    }

    /// How many slots behind those are not whole.
    pub fn holes(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_none()).count() - self.given_back()
    }

    /// The records in it.
    pub fn records(&self) -> impl Iterator<Item = &Event> {
        self.slots.iter().flatten()
    }

    /// Number of the first record that is still in it.
    pub fn begin(&self) -> u64 {
        self.first.wrapping_add(self.given_back() as u64)
    }

    /// Number of the record behind its last.
    pub fn end(&self) -> u64 {
        self.first.wrapping_add(self.slots.len() as u64)
    }
}

/// Pages of one writer by the number of their first record.
pub(super) type Pages = BTreeMap<u64, Page>;

/// How many records are missing between two pages that follow each other, and were not dropped.
pub(super) fn missing_between(before: &Page, next: &Page) -> u64 {
    let dropped = next.lost_total.saturating_sub(before.lost_total);
    next.begin().saturating_sub(before.end()).saturating_sub(dropped)
}

/// Keeps the latest pages that follow each other: what stood between them and those before, a drain has
/// taken while it was copied, and those before as well.
pub(super) fn keep_latest(pages: &mut Pages) {
    let mut pairs = pages.values().zip(pages.values().skip(1));
    let behind = pairs.rfind(|(before, next)| missing_between(before, next) > 0);
    if let Some(first) = behind.map(|(_, next)| next.first) {
        *pages = pages.split_off(&first);
    }
}

/// Copies what the ring holds of `process`.
pub(super) fn pages_of(
    ring: &RingFile,
    process: ProcessId,
) -> Result<BTreeMap<WriterKey, Pages>, RingError> {
    let mut writers: BTreeMap<WriterKey, Pages> = BTreeMap::new();
    for index in 0..ring.layout().page_count {
        if let Some((writer, page)) = copy_page(ring, index, process)? {
            writers.entry(writer).or_default().insert(page.first, page);
        }
    }
    // Behind the first look a page may have been claimed and left whose successor was seen. Those
    // that come after all that was seen are of a later moment.
    let newest: BTreeMap<_, _> =
        writers.iter().filter_map(|(w, pages)| Some((*w, *pages.last_key_value()?.0))).collect();
    for index in 0..ring.layout().page_count {
        let Some((writer, page)) = copy_page(ring, index, process)? else { continue };
        if newest.get(&writer).is_some_and(|newest| page.first < *newest) {
            let pages = writers.entry(writer).or_default();
            let known = pages.entry(page.first).or_insert_with(|| page.clone());
            if known.slots.len() < page.slots.len() {
                *known = page;
            }
        }
    }
    Ok(writers)
}

/// A page, if `process` has it: as it was while it had one owner.
fn copy_page(
    ring: &RingFile,
    index: u32,
    process: ProcessId,
) -> Result<Option<(WriterKey, Page)>, RingError> {
    let offset = ring.layout().page_offset(index);
    let mut found = None;
    for _ in 0..TRIES {
        let before = ring.read(offset, PAGE_HEADER_BYTES)?;
        let Some(writer) = writer_of(&before, process) else { return Ok(found) };
        let copy = ring.read(offset, ring.layout().page_bytes as usize)?;
        let after = ring.read(offset, PAGE_HEADER_BYTES)?;
        let is_same = [&copy, &after].iter().all(|other| {
            writer_of(other, process) == Some(writer) && identity(other) == identity(&before)
        });
        if let (true, Some(body)) = (is_same, copy.0.get(PAGE_HEADER_BYTES..)) {
            let page = Page::parse(&after, body);
            // Most slots that seem to be passed over were stored behind the look at them.
            let is_whole = page.holes() == 0;
            found = Some((writer, page));
            if is_whole {
                break;
            }
        }
    }
    Ok(found)
}

fn identity(header: &Bytes) -> (u64, u64) {
    (header.u64(offset_of!(PageHeader, first)), header.u64(offset_of!(PageHeader, lost_total)))
}

/// The writer of a page, if it is a thread of `process`.
fn writer_of(header: &Bytes, process: ProcessId) -> Option<WriterKey> {
    let slot = (header.u64(offset_of!(PageHeader, owner)) & !PAGE_RETIRED).checked_sub(1)?;
    let owner = ProcessId {
        pid: header.u32(offset_of!(PageHeader, pid)),
        start: header.u64(offset_of!(PageHeader, start)),
    };
    (owner == process).then(|| WriterKey { tid: header.u32(offset_of!(PageHeader, tid)), slot })
}
