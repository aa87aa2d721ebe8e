//! A traced thread: `runtime/src/ring/mod.rs` and `window.rs`, function by function.

use callsight_format::PAGE_RETIRED;
use loom::sync::atomic::Ordering::*;

use crate::ring::{Page, Ring, SLOTS, owner_of};

/// The process is gone.
#[derive(Debug)]
pub struct Killed;

/// A thread that records numbers: each record says the number it should have.
pub struct Writer {
    pub slot: usize,
    pub was_killed: bool,
    /// How many records it has begun.
    pub begun: u64,
    /// Stores before it is killed.
    steps: usize,
    /// `Thread::cursor`: a page and the next slot in it.
    cursor: Option<(usize, usize)>,
}

impl Writer {
    pub fn new(slot: usize, steps: usize) -> Writer {
        Writer { slot, was_killed: false, begun: 0, steps, cursor: None }
    }

    /// Before every store.
    fn step(&mut self) -> Result<(), Killed> {
        self.steps = self.steps.checked_sub(1).ok_or(Killed)?;
        Ok(())
    }

    /// `window::store`, and `window::count_loss` where it has no room.
    pub fn record(&mut self, ring: &Ring) -> Result<(), Killed> {
        let says = self.begun;
        self.begun += 1;
        if self.cursor.is_none_or(|(_, next)| next == SLOTS) {
            match self.try_claim(ring)? {
                Some(page) => self.opened(ring, page)?,
                None => {
                    self.leave(ring)?;
                    return self.count_loss(ring);
                }
            }
        }
        let (page, next) = self.cursor.expect("a page");
        self.cursor = Some((page, next + 1));
        self.put(&ring.pages[page], next, says)
    }

    /// `ring::try_claim`.
    fn try_claim(&mut self, ring: &Ring) -> Result<Option<usize>, Killed> {
        let Some(index) = self.take_free_page(ring)? else { return Ok(None) };
        let writer = &ring.writers[self.slot];
        let lost = writer.dropped.load(Relaxed);
        let first = match self.cursor {
            None => writer.stored.load(Relaxed) + lost,
            Some((previous, _)) => {
                let previous = &ring.pages[previous];
                let lost_before = previous.lost_total.load(Relaxed);
                previous.first.load(Relaxed) + SLOTS as u64 + (lost - lost_before)
            }
        };
        self.fill_page_header(&ring.pages[index], first, lost)?;
        Ok(Some(index))
    }

    /// `ring::take_free_page`.
    fn take_free_page(&mut self, ring: &Ring) -> Result<Option<usize>, Killed> {
        let mut free = ring.free.load(Relaxed);
        while free != 0 {
            let index = free.trailing_zeros() as usize;
            free &= free - 1;
            self.step()?;
            let owner = &ring.pages[index].owner;
            let claimed = owner.compare_exchange(0, owner_of(self.slot), AcqRel, Relaxed).is_ok();
            self.step()?;
            ring.free.fetch_and(!(1 << index), AcqRel);
            if claimed {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// `ring::fill_page_header`.
    fn fill_page_header(&mut self, page: &Page, first: u64, lost: u64) -> Result<(), Killed> {
        self.step()?;
        page.first.store(first, Relaxed);
        self.step()?;
        page.lost_total.store(lost, Relaxed);
        self.step()?;
        page.pid.store(self.slot as u32 + 1, Release);
        Ok(())
    }

    /// `ring::opened`, behind the swap of the cursor.
    fn opened(&mut self, ring: &Ring, index: usize) -> Result<(), Killed> {
        let previous = self.cursor.replace((index, 0));
        let writer = &ring.writers[self.slot];
        self.step()?;
        writer.page.store(index as u32 + 1, Relaxed);
        if let Some((previous, _)) = previous {
            self.step()?;
            writer.stored.fetch_add(SLOTS as u64, Relaxed);
            self.step()?;
            ring.pages[previous].owner.fetch_or(PAGE_RETIRED, Release);
        }
        Ok(())
    }

    /// `ring::leave`.
    fn leave(&mut self, ring: &Ring) -> Result<(), Killed> {
        let Some((page, _)) = self.cursor else { return Ok(()) };
        let writer = &ring.writers[self.slot];
        self.step()?;
        writer.stored.fetch_add(SLOTS as u64, Relaxed);
        self.cursor = None;
        self.step()?;
        writer.page.store(0, Relaxed);
        self.step()?;
        ring.pages[page].owner.fetch_or(PAGE_RETIRED, Release);
        Ok(())
    }

    /// `ring::count_loss`.
    fn count_loss(&mut self, ring: &Ring) -> Result<(), Killed> {
        let writer = &ring.writers[self.slot];
        self.step()?;
        writer.dropped.fetch_add(1, Relaxed);
        Ok(())
    }

    /// `window::put`. A time is never 0.
    fn put(&mut self, page: &Page, at: usize, says: u64) -> Result<(), Killed> {
        self.step()?;
        page.slots[at].write(says + 1);
        self.step()?;
        page.slots[at].ts.store(says + 1, Release);
        Ok(())
    }

    /// `ring::adopt` with `retire_inherited`: the next thread, in the place of this one.
    pub fn adopt(mut self, ring: &Ring) -> Result<Writer, Killed> {
        let writer = &ring.writers[self.slot];
        let held = writer.page.load(Relaxed);
        if held != 0 {
            let page = &ring.pages[held as usize - 1];
            let mine = owner_of(self.slot);
            if page.owner.load(Acquire) == mine {
                let unwritten = |slot: &&crate::ring::Slot| slot.ts.load(Relaxed) == 0;
                let used = SLOTS - page.slots.iter().rev().take_while(unwritten).count();
                self.step()?;
                writer.stored.fetch_add(used as u64, Relaxed);
                self.step()?;
                writer.page.store(0, Relaxed);
                self.step()?;
                let _ = page.owner.compare_exchange(mine, mine | PAGE_RETIRED, AcqRel, Relaxed);
            }
        }
        self.cursor = None;
        Ok(self)
    }
}
