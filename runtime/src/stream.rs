//! The ring, version 2, for drains that know no other: a byte stream behind a spinlock.
//!
//! Windows are private memory here; a full one is copied into the ring in one go. What does not
//! fit, or does not get the lock in bounded time, is dropped and counted. A version 2 ring cannot
//! be quick about quiet threads, and a killed process loses its windows: use version 3.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use callsight_format::{Cause, EVENT_BYTES, Event, KIND_EXIT, RING_HEADER_BYTES};

use crate::bytes::Lock;
use crate::clock;
use crate::file::WINDOW_BYTES;
use crate::ring::{self, Mapped};
use crate::sys;
use crate::threads::{self, Slot, Thread};
use crate::window::Window;

/// Windows taken from the kernel at a time.
const POOL_WINDOWS: usize = 64;
/// How often the lock is tried, with a yield each: its holder copies at most a window.
const LOCK_TRIES: u32 = 4096;

static BASE: AtomicUsize = AtomicUsize::new(0);
static CAPACITY: AtomicUsize = AtomicUsize::new(0);
/// Private memory not yet cut into windows.
static POOL: AtomicUsize = AtomicUsize::new(0);
static POOL_END: AtomicUsize = AtomicUsize::new(0);
/// Held while a window is cut from the pool.
static POOL_LOCK: Lock = Lock::new();

/// Uses a mapped version 2 ring.
pub fn attach(mapped: &Mapped) {
    BASE.store(mapped.base, Relaxed);
    CAPACITY.store(mapped.capacity as usize, Relaxed);
    ring::write_origin(mapped.base, &clock::origin());
    ring::writers(mapped.base).fetch_add(1, AcqRel);
}

/// Attaches a forked child to the ring of its parent where none is found by name. Such a ring
/// does not say whether it is still read.
pub fn attach_again() -> bool {
    let base = BASE.load(Relaxed);
    if base != 0 {
        ring::writers(base).fetch_add(1, AcqRel);
    }
    base != 0
}

/// A forked child's windows are its own copies; it starts with none.
pub fn after_fork() {
    POOL.store(0, Relaxed);
    POOL_END.store(0, Relaxed);
    POOL_LOCK.reset();
}

fn slot_of(thread: &Thread) -> Option<&'static Slot> {
    // SAFETY: a place in a static table, or null.
    unsafe { thread.slot.as_ref() }
}

/// Sends the window that ends at `at` and gives an empty one.
///
/// # Errors
/// No memory, or nothing that would remember the window of this thread until it is sent.
#[inline(never)]
pub fn claim(thread: &Thread, at: usize) -> Result<Window, Option<Cause>> {
    slot_of(thread).ok_or(Some(Cause::NoSlot))?;
    if at != 0 {
        let window = at - WINDOW_BYTES;
        let whole = send(window, at);
        if whole {
            return Ok(Window { first: clear(window), end: at });
        }
        // A hook that was interrupted still has to store here: leave it to `close`.
    }
    let first = new_window().ok_or(Some(Cause::NoSlot))?;
    Ok(Window { first, end: first + WINDOW_BYTES })
}

/// The thread has the window at `first`.
pub fn opened(thread: &Thread, first: usize) {
    if let Some(slot) = slot_of(thread) {
        slot.window.store(first, Release);
    }
}

fn clear(window: usize) -> usize {
    let mut at = window;
    while at < window + WINDOW_BYTES {
        // SAFETY: the window is this thread's, signals are blocked.
        unsafe { (at as *mut u64).write_volatile(0) };
        at += EVENT_BYTES;
    }
    window
}

fn new_window() -> Option<usize> {
    let _lock = POOL_LOCK.take();
    let mut window = POOL.load(Relaxed);
    if window == POOL_END.load(Relaxed) {
        let bytes = POOL_WINDOWS * WINDOW_BYTES;
        window = sys::private_memory(bytes, WINDOW_BYTES).unwrap_or(0);
        POOL_END.store(if window == 0 { 0 } else { window + bytes }, Relaxed);
    }
    POOL.store(if window == 0 { 0 } else { window + WINDOW_BYTES }, Relaxed);
    (window != 0).then_some(window)
}

/// Sends the whole events of `from..to`, up to the first slot that is not written. Whether all
/// were written.
fn send(from: usize, to: usize) -> bool {
    let mut end = from;
    // SAFETY: the window is readable memory of this process.
    while end < to && unsafe { *(end as *const u64) } != 0 {
        end += EVENT_BYTES;
    }
    // SAFETY: as above.
    unsafe { send_bytes(from as *const u8, end - from) };
    end == to
}

/// Copies whole events into the ring; the newest that do not fit are dropped.
///
/// # Safety
/// `bytes` bytes at `from` can be read.
unsafe fn send_bytes(from: *const u8, bytes: usize) {
    let base = BASE.load(Relaxed);
    let capacity = CAPACITY.load(Relaxed);
    let (lock, [head, tail, dropped]) = ring::stream_words(base);
    let mut tries = 0;
    while lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        tries += 1;
        if tries == LOCK_TRIES {
            // SAFETY: as for this function.
            dropped.fetch_add(unsafe { count_calls(from, bytes) }, Relaxed);
            return;
        }
        sys::yield_now();
    }
    let start = head.load(Relaxed);
    let at = start.checked_rem(capacity as u64).unwrap_or(0) as usize;
    let used = start.wrapping_sub(tail.load(Acquire)) as usize;
    let room = capacity.saturating_sub(used) / EVENT_BYTES * EVENT_BYTES;
    let fits = bytes.min(room);
    let data = base + RING_HEADER_BYTES;
    let mut at = at;
    for index in 0..fits {
        // SAFETY: `at` stays below the capacity, which was checked against the file.
        unsafe { ((data + at) as *mut u8).write(*from.add(index)) };
        at += 1;
        if at == capacity {
            at = 0;
        }
    }
    head.store(start + fits as u64, Release);
    // SAFETY: as for this function.
    dropped.fetch_add(unsafe { count_calls(from.add(fits), bytes - fits) }, Relaxed);
    lock.store(0, Release);
}

/// Enters and exits among the events at `from`: a dropped note is no loss.
///
/// # Safety
/// `bytes` bytes at `from` can be read.
unsafe fn count_calls(from: *const u8, bytes: usize) -> u64 {
    let kind_at = core::mem::offset_of!(Event, kind);
    let mut calls = 0;
    for event in 0..bytes / EVENT_BYTES {
        // SAFETY: inside the bytes.
        calls += u64::from(unsafe { *from.add(event * EVENT_BYTES + kind_at) } <= KIND_EXIT);
    }
    calls
}

/// Counts events for which there was no window.
pub fn count_loss(_thread: &Thread, events: u64, _ts: u64) {
    let (_, [_, _, dropped]) = ring::stream_words(BASE.load(Relaxed));
    dropped.fetch_add(events, Relaxed);
}

/// Sends what `thread` still holds.
pub fn hand_over(thread: &Thread) {
    let window = slot_of(thread).map_or(0, |slot| slot.window.swap(0, AcqRel));
    if window != 0 {
        send(window, window + WINDOW_BYTES);
    }
}

/// Sends what every thread still holds, and detaches.
pub fn close() {
    for slot in threads::slots() {
        let window = slot.window.swap(0, AcqRel);
        if window != 0 {
            send(window, window + WINDOW_BYTES);
        }
    }
    ring::writers(BASE.load(Relaxed)).fetch_sub(1, AcqRel);
}

/// Sends an event after the close.
pub fn append_late(_thread: &Thread, event: [u64; 4]) {
    // SAFETY: the bytes of an array.
    unsafe { send_bytes(event.as_ptr().cast(), EVENT_BYTES) };
}
