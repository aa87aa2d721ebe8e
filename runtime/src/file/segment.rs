//! A segment: one file of the capture, and where it is mapped.

use core::sync::atomic::Ordering::{Acquire, Release};

use callsight_format::{
    EVENT_BYTES, Event, FILE_HEADER_MAPPED_BYTES, FILE_MAGIC, KIND_ENTER, KIND_EXIT, KIND_MARKER,
    MARK_WRAP,
};

use super::{LARGEST_STEP_BYTES, WINDOW_BYTES};
use crate::bytes::Text;
use crate::guard::{self, Holds};
use crate::sys::{self, Fd, O_NOFOLLOW, O_RDWR};
use crate::{config, process, threads};

#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) seq: u32,
    pub(super) opener_tid: u32,
    /// Where it is mapped; 0 when it no longer is.
    pub(super) base: usize,
    /// Bytes of the mapping: the most it may grow to.
    pub(super) limit: usize,
    /// Bytes of the file.
    pub(super) allocated: usize,
    /// Offset of the next window to hand out.
    pub(super) next: usize,
}

pub(super) const NO_SEGMENT: Segment =
    Segment { seq: 0, opener_tid: 0, base: 0, limit: 0, allocated: 0, next: 0 };
impl Segment {
    pub(super) fn path(&self) -> Text<640> {
        let mut path = Text::new();
        path.push_text(&config::get().directory).push(b"/trace.");
        path.push_number(u64::from(process::identity().pid)).push(b".");
        path.push_number(u64::from(self.opener_tid)).push(b".");
        path.push_number(u64::from(self.seq)).push(b".bin");
        path
    }

    pub(super) fn reopen(&self) -> Result<Fd, isize> {
        let mut path = self.path();
        Fd::open(path.terminated().ok_or(sys::ENOENT)?, O_RDWR | O_NOFOLLOW, 0)
    }

    /// Maps the file to the whole of its limit; less where address space is scarce.
    pub(super) fn map(&mut self, file: &Fd) -> Result<(), isize> {
        loop {
            let mapped = sys::reserve_addresses(self.limit, WINDOW_BYTES)
                .and_then(|base| file.map(base, self.limit, 0));
            match mapped {
                Ok(base) => {
                    guard::cover(base, self.limit, Holds::Segment);
                    self.base = base;
                    return Ok(());
                }
                Err(_) if self.limit > LARGEST_STEP_BYTES => {
                    self.limit = (self.limit / 2) & !(WINDOW_BYTES - 1);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.allocated + WINDOW_BYTES > self.limit
    }

    pub(super) fn holds(&self, address: usize) -> bool {
        self.base != 0 && (self.base..self.base + self.limit).contains(&address)
    }

    /// Whether a thread's window lies in it.
    pub(super) fn is_written(&self) -> bool {
        threads::slots().any(|slot| self.holds(slot.window.load(Acquire)))
    }

    /// Counts what goes with its file: enters and exits in it, and those that its own markers say went
    /// before. Of a window that a thread still has, what is there now; what the thread goes on to
    /// store is counted when it leaves that window.
    pub(super) fn count_leaving(&self) -> u64 {
        let mut events = 0;
        let mut is_written = false;
        for slot in threads::slots() {
            let window = slot.window.load(Acquire);
            if self.holds(window) {
                let counted = count_in_window(window);
                slot.evicted.store(counted as u32 + 1, Release);
                events += counted;
                is_written = true;
            }
        }
        let has_thread =
            |window| is_written && threads::slots().any(|slot| slot.window.load(Acquire) == window);
        let end = self.base + self.next;
        let windows = (self.base..end).step_by(WINDOW_BYTES);
        // The last one may be cut behind what is told there.
        let count = |window| count_events(start_of_window(window), end.min(window + WINDOW_BYTES));
        events + windows.filter(|window| !has_thread(*window)).map(count).sum::<u64>()
    }

    /// Takes [`Segment::count_leaving`] back: its file stays.
    pub(super) fn stays(&self) {
        for slot in threads::slots().filter(|slot| self.holds(slot.window.load(Acquire))) {
            slot.evicted.store(0, Release);
        }
    }
}

/// Enters and exits in a window, and those that wrap markers there stand for.
pub(super) fn count_in_window(window: usize) -> u64 {
    count_events(start_of_window(window), window + WINDOW_BYTES)
}

/// Where the first record of a window is.
pub(super) fn start_of_window(window: usize) -> usize {
    // SAFETY: the window is mapped and has blocks.
    let first_word = unsafe { *(window as *const u64) };
    let is_first_of_file = first_word == u64::from_ne_bytes(FILE_MAGIC);
    window + if is_first_of_file { FILE_HEADER_MAPPED_BYTES } else { 0 }
}

fn count_events(from: usize, to: usize) -> u64 {
    let mut events = 0;
    let mut at = from;
    while at < to {
        // SAFETY: callers pass what is mapped and has blocks.
        let event = unsafe { (at as *const Event).read() };
        events += match event.kind {
            KIND_ENTER | KIND_EXIT if event.ts != 0 => 1,
            KIND_MARKER if event.func == MARK_WRAP => event.call_site,
            _ => 0,
        };
        at += EVENT_BYTES;
    }
    events
}
