//! A segment: one file of the capture, and where it is mapped.

use core::sync::atomic::Ordering::Acquire;

use callsight_format::{
    EVENT_BYTES, Event, FILE_HEADER_MAPPED_BYTES, KIND_ENTER, KIND_EXIT, KIND_MARKER, MARK_WRAP,
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
        path.push(config::get().directory.as_bytes()).push(b"/trace.");
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

    /// Enters and exits in it, and those that its own markers say went before.
    pub(super) fn count_events(&self) -> u64 {
        count_events(self.base + FILE_HEADER_MAPPED_BYTES, self.base + self.next)
    }
}

/// Enters and exits in `from..to`, and those that wrap markers there stand for.
pub(super) fn count_events(from: usize, to: usize) -> u64 {
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
