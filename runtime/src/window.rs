//! Events into windows: the way of a record to its place, whatever the sink, and to the next window
//! when one is full.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use callsight_format::{
    Cause, EVENT_BYTES, KIND_MARKER, LossNote, MARK_CLOCK, MARK_MAX_EVENTS, MARK_WRAP, wrap_frame,
};

use crate::notes::{self, Again};
use crate::process::{self, Sink};
use crate::recorder;
use crate::sys::SignalsBlocked;
use crate::threads::{OWES_NAME, OWES_PROCESS, Thread};
use crate::{arch, clock, config, file, ring, stream};

/// Stores an event in this thread's window, or in the next one.
///
/// # Errors
/// Why there is no room; `None` when there need not be any, because recording is paused.
pub fn store(
    thread: &mut Thread,
    mut ts: u64,
    func: u64,
    call_site: u64,
    tail: u64,
) -> Result<(), Option<Cause>> {
    let cursor = &raw mut thread.cursor;
    loop {
        // SAFETY: the cursor is this thread's; handlers of signals change it too, hence volatile.
        let at = unsafe { cursor.read_volatile() };
        if at & process::window_mask() != 0 {
            // SAFETY: as above; the slot is then reserved, in a window this thread holds.
            unsafe {
                if arch::swap_if_same(cursor, at, at + EVENT_BYTES) == at {
                    put(at, ts, func, call_site, tail);
                    return Ok(());
                }
            }
            continue;
        }
        if let Some(slot) = open_window(thread, at, ts)? {
            // SAFETY: it is reserved for this event.
            unsafe { put(slot, ts, func, call_site, tail) };
            return Ok(());
        }
        // What a signal handler recorded meanwhile stands before this event.
        ts = clock::now();
    }
}

/// A window a sink offers: where its events start and end.
pub struct Window {
    /// First slot.
    pub first: usize,
    /// Behind the last slot.
    pub end: usize,
}

/// Whether the next window is a page of a ring with nothing at its head but perhaps the time.
fn owes_only_anchors(thread: &Thread) -> bool {
    process::sink() == Sink::Ring
        && !recorder::owes_notes(thread)
        && !process::is_limited()
        && !ring::has_untold(thread)
}

/// What [`open_window`] does, where [`owes_only_anchors`] holds, in half the instructions: a hook may
/// take 400, and one reading of the clock is a hundred. `None` when there is other work: more is owed, or
/// a signal handler was quicker.
#[inline(always)]
pub fn turn_page(thread: &mut Thread, ts: u64) -> Option<Result<usize, Option<Cause>>> {
    // SAFETY: see `store`.
    let at = unsafe { (&raw const thread.cursor).read_volatile() };
    if at & process::window_mask() != 0 || !owes_only_anchors(thread) {
        return None;
    }
    let anchor_is_due = clock::is_anchor_due(ts, thread.anchored);
    let anchor = if anchor_is_due { clock::passing_anchor() } else { None };
    let window = match ring::claim(thread, at) {
        Ok(window) => window,
        Err(cause) => return Some(Err(cause)),
    };
    let slot = window.first + if anchor.is_some() { EVENT_BYTES } else { 0 };
    // SAFETY: see `store`.
    if unsafe { arch::swap_if_same(&raw mut thread.cursor, at, slot + EVENT_BYTES) } != at {
        ring::give_back(window.first);
        return None;
    }
    ring::opened(thread, at, window.first);
    if let Some(anchor) = anchor {
        put_anchor(thread, window.first, ts, anchor);
    }
    Some(Ok(slot))
}

fn put_anchor(thread: &mut Thread, at: usize, ts: u64, (ticks, ns): (u64, u64)) {
    thread.anchored = ts;
    // SAFETY: the slot was reserved together with the event's.
    unsafe { put(at, ticks, MARK_CLOCK, ns, thread.word | meta(KIND_MARKER, 0)) };
}

/// Opens the next window and reserves a slot in it. `Ok(None)` when a signal handler of this
/// thread was quicker and the thread has a window again.
#[cold]
#[inline(never)]
fn open_window(thread: &mut Thread, at: usize, ts: u64) -> Result<Option<usize>, Option<Cause>> {
    let sink = process::sink();
    if let (Sink::File, Some(cause)) = (sink, file::is_stopped()) {
        return Err(Some(cause));
    }
    // A ring page is claimed without a lock, and handlers may come in between; what takes the
    // lock of the file sink must not be interrupted by a hook that wants it too.
    let _blocked = (sink != Sink::Ring).then(SignalsBlocked::new);
    let cursor = &raw mut thread.cursor;
    // SAFETY: see `store`.
    if unsafe { cursor.read_volatile() } != at {
        return Ok(None);
    }
    let window = match sink {
        Sink::File => file::claim(thread)?,
        Sink::Ring => ring::claim(thread, at)?,
        Sink::Stream => stream::claim(thread, at)?,
        Sink::Summary => return Err(None),
    };
    let owed = owes_anything(thread, sink, ts).then(|| Owed::of(thread, sink, ts));
    let prelude = owed.as_ref().map_or(0, Owed::records);
    let slots = (window.end - window.first) / EVENT_BYTES;
    let quota = process::take_quota(slots.saturating_sub(prelude), thread.windows);
    if quota == 0 {
        return Err(end_at_limit(thread, at, window, ts));
    }
    let start = window.end - EVENT_BYTES * (prelude + quota).min(slots);
    let slot = start + EVENT_BYTES * prelude;
    // SAFETY: see `store`.
    if unsafe { arch::swap_if_same(cursor, at, slot + EVENT_BYTES) } != at {
        process::return_quota(quota);
        ring::give_back(window.first);
        return Ok(None);
    }
    thread.windows = thread.windows.wrapping_add(1);
    if sink != Sink::Ring && (2..=4).contains(&thread.windows) {
        // Threads get their names after their first hooks. For those of a ring the drain asks:
        // there no hook makes a system call once its thread has begun.
        thread.flags |= OWES_NAME;
    }
    match sink {
        Sink::Ring => ring::opened(thread, at, window.first),
        Sink::Stream => stream::opened(thread, window.first),
        Sink::File | Sink::Summary => {}
    }
    if start > window.first {
        pad(window.first, start, ts, thread.word | meta(KIND_MARKER, 0));
    }
    if let Some(owed) = owed {
        owed.pay(thread, ts, start);
    }
    Ok(Some(slot))
}

/// Whether the thread's next window has to begin with anything but its event.
fn owes_anything(thread: &Thread, sink: Sink, ts: u64) -> bool {
    thread.flags & OWES_PROCESS != 0
        || thread.has_left_out()
        || clock::is_anchor_due(ts, thread.anchored)
        || has_untold_loss(thread, sink)
}

/// What a window begins with beside its event. Most have nothing of it. Places for notes: what they
/// tell is known when the thread has the window, since a signal handler that came before may have
/// told it in another one.
struct Owed {
    process: bool,
    pause: bool,
    missed: bool,
    loss: bool,
    anchor: Option<(u64, u64)>,
}

impl Owed {
    #[cold]
    #[inline(never)]
    fn of(thread: &Thread, sink: Sink, ts: u64) -> Owed {
        let process = thread.flags & OWES_PROCESS != 0;
        let is_anchor_due = clock::is_anchor_due(ts, thread.anchored);
        Owed {
            process,
            pause: thread.has_left_out(),
            missed: process && thread.skipped > 0,
            loss: has_untold_loss(thread, sink),
            anchor: if is_anchor_due { clock::passing_anchor() } else { None },
        }
    }

    /// How many slots it takes.
    fn records(&self) -> usize {
        (usize::from(self.loss) + usize::from(self.missed)) * notes::LOSS_RECORDS
            + if self.process { notes::process_records() } else { 0 }
            + if self.pause { notes::PAUSE_RECORDS } else { 0 }
            + usize::from(self.anchor.is_some())
    }

    /// Stores it from `start` on, in slots that were reserved for it.
    #[cold]
    #[inline(never)]
    fn pay(&self, thread: &mut Thread, ts: u64, start: usize) {
        let marker_tail = thread.word | meta(KIND_MARKER, 0);
        let mut next = start;
        let mut put_next = |func, site| {
            // SAFETY: these slots were reserved together with the event's.
            unsafe { put(next, ts, func, site, marker_tail) };
            next += EVENT_BYTES;
            true
        };
        if self.process {
            thread.flags &= !OWES_PROCESS;
            notes::process(Again::No, &mut put_next);
        }
        if self.pause {
            notes::pause(&mut put_next);
            recorder::told_pause(thread);
        }
        if self.missed {
            notes::loss_or_padding(take_missed(thread).as_ref(), &mut put_next);
        }
        if self.loss {
            let loss = ring::take_untold(thread);
            notes::loss_or_padding(loss.as_ref(), &mut put_next);
            ring::told(thread, loss.map_or(0, |loss| loss.events));
        }
        if let Some(anchor) = self.anchor {
            put_anchor(thread, next, ts, anchor);
        }
    }
}

/// What the thread missed before it was recorded, for the caller to tell.
fn take_missed(thread: &mut Thread) -> Option<LossNote> {
    let note = recorder::missed(thread)?;
    // SAFETY: the number is this thread's.
    let skipped = unsafe { AtomicU32::from_ptr(&raw mut thread.skipped) };
    let events = skipped.swap(0, Relaxed).into();
    (events > 0).then_some(LossNote { events, ..note })
}

/// Fills `from..to` with records that mean nothing.
pub fn pad(from: usize, to: usize, ts: u64, marker_tail: u64) {
    let (func, site) = notes::PADDING;
    let mut at = from;
    while at < to {
        // SAFETY: callers own the slots.
        unsafe { put(at, ts, func, site, marker_tail) };
        at += EVENT_BYTES;
    }
}

/// The last word of a marker of thread `tid`.
pub fn marker_tail(tid: u32) -> u64 {
    tid_word(tid) | meta(KIND_MARKER, 0)
}

/// Stores a marker that `events` are gone, with the file of `segment` or without one; the slot at `at`
/// is the caller's.
pub fn put_wrap_marker(at: usize, tid: u32, ts: u64, segment: Option<u32>, events: u64) {
    // As a frame: in units of 16 bytes.
    let segment = segment.map_or(0, wrap_frame) as usize * 16;
    let tail = tid_word(tid) | meta(KIND_MARKER, segment);
    // SAFETY: the caller owns the slot.
    unsafe { put(at, ts, MARK_WRAP, events, tail) };
}

/// The tid where the last word of an event has it.
pub fn tid_word(tid: u32) -> u64 {
    if cfg!(target_endian = "big") { u64::from(tid) << 32 } else { u64::from(tid) }
}

/// Stores a marker of thread `tid`; the slot at `at` is the caller's.
pub fn put_marker(at: usize, tid: u32, ts: u64, func: u64, site: u64) {
    // SAFETY: the caller owns the slot.
    unsafe { put(at, ts, func, site, marker_tail(tid)) };
}

/// `TRACE_MAX` is used up: the first thread to find out leaves the marker in its window.
#[cold]
#[inline(never)]
fn end_at_limit(thread: &mut Thread, at: usize, window: Window, ts: u64) -> Option<Cause> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let told = process::sink() != Sink::Ring || TOLD.swap(true, AcqRel);
    if process::sink() == Sink::File {
        pad(window.first, window.end, ts, marker_tail(thread.tid()));
        file::stop_at_limit(thread);
    } else if told {
        ring::give_back(window.first);
    } else {
        let tail = thread.word | meta(KIND_MARKER, 0);
        let cursor = &raw mut thread.cursor;
        // SAFETY: see `store`; the window is this thread's until it is retired.
        unsafe {
            if arch::swap_if_same(cursor, at, window.end) == at {
                ring::opened(thread, at, window.first);
                put(window.first, ts, MARK_MAX_EVENTS, config::get().max_events, tail);
                pad(window.first + EVENT_BYTES, window.end, ts, tail);
            }
        }
    }
    Some(Cause::Budget)
}

/// Whether the ring has a loss to tell. A segment file's losses come at its end, where they are
/// counted in place, and those of a version 2 ring with the window that is sent next.
fn has_untold_loss(thread: &Thread, sink: Sink) -> bool {
    sink == Sink::Ring && ring::has_untold(thread)
}

/// Counts an event for which there was no room.
pub fn count_loss(thread: &Thread, cause: Cause, ts: u64) {
    match process::sink() {
        Sink::Ring => ring::count_loss(thread, cause, ts),
        Sink::File => file::count_loss(thread, cause, ts),
        Sink::Stream => stream::count_loss(thread, 1, ts),
        Sink::Summary => {}
    }
}

/// An event after the capture was closed.
pub fn late(thread: &mut Thread, event: [u64; 4]) {
    let _blocked = SignalsBlocked::new();
    match process::sink() {
        Sink::File => file::append_late(thread, event),
        Sink::Stream => stream::append_late(thread, event),
        Sink::Ring | Sink::Summary => {}
    }
}

/// The last word of an event but for its tid: kind and frame.
#[inline(always)]
pub fn meta(kind: u8, stack_pointer: usize) -> u64 {
    // Bits 4 to 27 of the stack pointer become bits 40 to 63; in memory, on either byte order,
    // the word is tid, kind, frame.
    let (kind, frame) = (u64::from(kind), stack_pointer as u64 >> 4);
    if cfg!(target_endian = "big") {
        let frame = frame as u32 & 0xff_ffff;
        (kind << 24) | u64::from(frame.swap_bytes() >> 8)
    } else {
        (kind << 32) | (frame << 40)
    }
}

/// Stores an event; `ts` last, so that a reader sees whole events only.
///
/// # Safety
/// The 32 bytes at `at` are the caller's and can be written.
#[inline(always)]
pub unsafe fn put(at: usize, ts: u64, func: u64, call_site: u64, tail: u64) {
    let slot = at as *mut u64;
    // SAFETY: the caller owns the 32 bytes at `at`, aligned to 32.
    unsafe {
        slot.add(1).write(func);
        slot.add(2).write(call_site);
        slot.add(3).write(tail);
        (*(slot as *const AtomicU64)).store(ts, Release);
    }
}
