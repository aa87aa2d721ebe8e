//! The drain: `drain/stream/look.h`, `move.h`, `pages.h` and `pool.h`, function by function. Where C
//! copies plain bytes of a header there are relaxed loads here. A sink has at once what is taken.

use callsight_format::PAGE_RETIRED;
use loom::sync::atomic::Ordering::*;

use crate::ring::{Ring, SLOTS, is_retired};
use crate::writer::Writer;

/// `struct page`.
#[derive(Clone, Copy, Default)]
struct Page {
    known: bool,
    slot: usize,
    pid: u32,
    first: u64,
    lost_total: u64,
    read: usize,
    look: u64,
    retired: bool,
    over: bool,
}

/// `struct slot`.
#[derive(Clone, Copy, Default)]
struct Slot {
    known: bool,
    next: u64,
    lost_total: u64,
    newest_first: u64,
}

/// `struct pool`, and what was delivered.
pub struct Drain {
    pages: Vec<Page>,
    slots: Vec<Slot>,
    order: Vec<usize>,
    look: u64,
    out_of_step: bool,
    /// Slot, number, and what the record says.
    delivered: Vec<(usize, u64, u64)>,
    torn: Vec<u64>,
}

impl Drain {
    pub fn new(ring: &Ring) -> Drain {
        Drain {
            pages: vec![Page::default(); ring.pages.len()],
            slots: vec![Slot::default(); ring.writers.len()],
            order: Vec::new(),
            look: 0,
            out_of_step: false,
            delivered: Vec::new(),
            torn: vec![0; ring.writers.len()],
        }
    }

    /// `pool_pass`.
    pub fn pass(&mut self, ring: &Ring, at_all: bool) {
        self.look += 1;
        self.out_of_step = false;
        self.look(ring, at_all, false);
        if self.out_of_step {
            self.look(ring, true, true);
        }
        let pages = &self.pages;
        self.order.sort_by_key(|index| (pages[*index].slot, pages[*index].first));
        let mut waiting = None;
        for index in std::mem::take(&mut self.order) {
            let slot = self.pages[index].slot;
            if waiting != Some(slot) && !self.page_move(ring, index) {
                waiting = Some(slot);
            }
        }
        for index in 0..self.pages.len() {
            self.give_back(ring, index);
        }
    }

    /// `look`.
    fn look(&mut self, ring: &Ring, at_all: bool, second: bool) {
        self.order.clear();
        let free = ring.free.load(Acquire);
        for index in 0..self.pages.len() {
            if !at_all && !self.pages[index].known && free >> index & 1 != 0 {
                continue;
            }
            if self.page_look(ring, index)
                && self.page_counts(index, second)
                && !self.pages[index].over
            {
                self.order.push(index);
            }
        }
    }

    /// `page_look`.
    fn page_look(&mut self, ring: &Ring, index: usize) -> bool {
        let (header, page) = (&ring.pages[index], &mut self.pages[index]);
        let owner = header.owner.load(Acquire);
        if owner == 0 {
            page.known = false;
            return false;
        }
        let slot = (owner & !PAGE_RETIRED) as usize - 1;
        let pid = header.pid.load(Acquire);
        if page.known {
            let same =
                page.slot == slot && page.pid == pid && page.first == header.first.load(Acquire);
            page.known = same;
        }
        page.slot = slot;
        if !page.known && pid == 0 {
            return false;
        }
        if !page.known {
            self.page_meet(ring, index, pid);
        }
        self.pages[index].retired = is_retired(owner);
        true
    }

    /// `page_meet`.
    fn page_meet(&mut self, ring: &Ring, index: usize, pid: u32) {
        let header = &ring.pages[index];
        let slot = self.pages[index].slot;
        let page = Page {
            known: true,
            slot,
            pid,
            first: header.first.load(Relaxed),
            lost_total: header.lost_total.load(Relaxed),
            read: header.read.load(Relaxed) as usize,
            ..Page::default()
        };
        self.pages[index] = page;
        let known = &self.slots[slot];
        let due = known.next + (page.lost_total - known.lost_total);
        if page.first != 0 && (!known.known || page.first != due) {
            self.out_of_step = true;
        }
    }

    /// `page_counts`.
    fn page_counts(&mut self, index: usize, second: bool) -> bool {
        let page = &mut self.pages[index];
        let slot = &mut self.slots[page.slot];
        if second {
            return page.look == self.look || page.first < slot.newest_first;
        }
        slot.newest_first = slot.newest_first.max(page.first);
        page.look = self.look;
        true
    }

    /// `page_move`.
    fn page_move(&mut self, ring: &Ring, index: usize) -> bool {
        let dead = ring.writers[self.pages[index].slot].is_dead();
        self.pages[index].retired = is_retired(ring.pages[index].owner.load(Acquire));
        while !self.pages[index].over {
            self.take_events(ring, index);
            if self.pages[index].read == SLOTS {
                break;
            }
            let torn = self.torn_slots(ring, index, dead);
            if torn == 0 {
                break;
            }
            self.pages[index].read += torn;
            self.torn[self.pages[index].slot] += torn as u64;
        }
        let page = &mut self.pages[index];
        page.over |= page.read == SLOTS && (page.retired || dead);
        if page.over {
            self.page_end(index);
        }
        let page = &self.pages[index];
        page.over || page.read == SLOTS
    }

    /// `take_events`.
    fn take_events(&mut self, ring: &Ring, index: usize) {
        let page = &mut self.pages[index];
        for slot in &ring.pages[index].slots[page.read..] {
            let ts = slot.ts.load(Acquire);
            if ts == 0 {
                break;
            }
            let says = slot.read();
            assert_eq!(says, ts, "a record of two halves");
            self.delivered.push((page.slot, page.first + page.read as u64, says - 1));
            page.read += 1;
        }
    }

    /// `torn_slots`. No time passes here: what would be given up after a second is not.
    fn torn_slots(&mut self, ring: &Ring, index: usize, dead: bool) -> usize {
        let page = self.pages[index];
        let rest = &ring.pages[index].slots[page.read..];
        let gap = rest.iter().take_while(|slot| slot.ts.load(Acquire) == 0).count();
        if gap < rest.len() {
            return if dead { gap } else { 0 };
        }
        if !dead && !page.retired {
            return 0;
        }
        let reserved = self.reserved_last(ring, index, dead);
        if reserved > 0 && !dead {
            return 0;
        }
        self.pages[index].over = true;
        reserved
    }

    /// `reserved_last`, with `half_stored`.
    fn reserved_last(&self, ring: &Ring, index: usize, dead: bool) -> usize {
        let page = &self.pages[index];
        let rest = &ring.pages[index].slots[page.read..];
        let put = self.records_put(ring, page);
        if put > page.read {
            return (put - page.read).min(rest.len());
        }
        let half_stored = || rest.iter().take_while(|slot| slot.read() != 0).count();
        if dead && !page.retired { half_stored() } else { 0 }
    }

    /// `records_put`.
    fn records_put(&self, ring: &Ring, page: &Page) -> usize {
        let behind = ring.pages.iter().filter_map(|header| {
            let owner = header.owner.load(Acquire);
            let pid = header.pid.load(Acquire);
            let first = header.first.load(Relaxed);
            let lost_total = header.lost_total.load(Relaxed);
            let is_theirs = (owner & !PAGE_RETIRED) as usize == page.slot + 1 && pid == page.pid;
            (is_theirs && first > page.first).then_some((first, lost_total))
        });
        let next = behind.min();
        next.map_or(0, |(first, lost)| (first - page.first - (lost - page.lost_total)) as usize)
    }

    /// `page_end`.
    fn page_end(&mut self, index: usize) {
        let page = &self.pages[index];
        let slot = &mut self.slots[page.slot];
        let next = page.first + page.read as u64;
        if !slot.known || next > slot.next {
            (slot.known, slot.next, slot.lost_total) = (true, next, page.lost_total);
        }
    }

    /// `give_back`.
    fn give_back(&mut self, ring: &Ring, index: usize) {
        let page = self.pages[index];
        if page.known {
            ring.pages[index].read.store(page.read as u32, Release);
        }
        if page.known && page.over {
            if ring.writers[page.slot].is_dead() {
                self.add_up(ring, index);
            }
            self.page_free(ring, index);
        }
    }

    /// `add_up`.
    fn add_up(&self, ring: &Ring, index: usize) {
        let page = &self.pages[index];
        let writer = &ring.writers[page.slot];
        let stored = page.first - page.lost_total + page.read as u64;
        if writer.stored.load(Relaxed) < stored {
            writer.stored.store(stored, Relaxed);
        }
    }

    /// `page_free`.
    fn page_free(&mut self, ring: &Ring, index: usize) {
        let header = &ring.pages[index];
        header.owner.fetch_or(PAGE_RETIRED, AcqRel);
        header.pid.store(0, Release);
        for slot in &header.slots {
            slot.write(0);
            slot.ts.store(0, Relaxed);
        }
        header.first.store(0, Relaxed);
        header.read.store(0, Relaxed);
        header.lost_total.store(0, Relaxed);
        header.owner.store(0, Release);
        Drain::set_free_bit(ring, index);
        self.pages[index] = Page::default();
    }

    fn set_free_bit(ring: &Ring, index: usize) {
        ring.free.fetch_or(1 << index, AcqRel);
        if ring.pages[index].owner.load(Acquire) != 0 {
            ring.free.fetch_and(!(1 << index), AcqRel);
        }
    }

    /// `free_orphans`.
    pub fn free_orphans(&mut self, ring: &Ring) {
        for index in 0..self.pages.len() {
            let header = &ring.pages[index];
            let owner = header.owner.load(Acquire);
            if owner == 0 && ring.free.load(Acquire) >> index & 1 == 0 {
                Drain::set_free_bit(ring, index);
            }
            if self.pages[index].known || owner == 0 || header.pid.load(Acquire) != 0 {
                continue;
            }
            let is_dead = ring.writers[(owner & !PAGE_RETIRED) as usize - 1].is_dead();
            // Behind the question above it may have filled and left the page, and died.
            let is_as_before =
                || header.owner.load(Acquire) == owner && header.pid.load(Acquire) == 0;
            if is_retired(owner) || (is_dead && is_as_before()) {
                self.page_free(ring, index);
            }
        }
    }

    /// Every record has the number that it says, once, in order; and all numbers are told for.
    pub fn check(&self, ring: &Ring, writer: &Writer) {
        let of_it = self.delivered.iter().filter(|(slot, ..)| *slot == writer.slot);
        let numbers: Vec<u64> = of_it.clone().map(|(_, number, _)| *number).collect();
        assert!(of_it.clone().all(|(_, number, says)| number == says), "{:?}", self.delivered);
        assert!(numbers.is_sorted_by(|before, behind| before < behind), "{numbers:?}");
        let ring_writer = &ring.writers[writer.slot];
        let dropped = ring_writer.dropped.load(Relaxed);
        let emitted = ring_writer.stored.load(Relaxed) + dropped;
        let torn = self.torn[writer.slot];
        let accounted = numbers.len() as u64 + dropped + torn;
        assert_eq!(accounted, emitted, "{numbers:?}, {dropped} dropped, {torn} torn");
        if writer.was_killed {
            assert!(torn <= 1 && emitted <= writer.begun, "{torn} torn, {emitted} emitted");
            // Whatever was whole before the last one has come.
            assert!(emitted + 1 >= writer.begun, "{emitted} of {}", writer.begun);
        } else {
            assert_eq!((torn, emitted), (0, writer.begun));
        }
    }
}
