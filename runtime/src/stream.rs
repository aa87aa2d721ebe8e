//! The ring, version 2, for drains that know no other: a byte stream behind a spinlock.
//!
//! Windows are private memory here; a full one is copied into the ring in one go. What does not
//! fit, or does not get the lock in bounded time, is dropped and counted: in the header, and by a note
//! in front of the next events of its thread. A version 2 ring cannot be quick about quiet threads,
//! and a killed process loses its windows: use version 3.

use core::mem::offset_of;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use callsight_format::{Cause, EVENT_BYTES, Event, KIND_EXIT, LossNote, RING_HEADER_BYTES};

use crate::bytes::Lock;
use crate::file::WINDOW_BYTES;
use crate::ring::{self, Mapped};
use crate::threads::{self, Slot, Thread};
use crate::window::{Window, put_marker};
use crate::{clock, notes, sys};

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
    let slot = slot_of(thread).ok_or(Some(Cause::NoSlot))?;
    if at != 0 {
        let window = at - WINDOW_BYTES;
        let sent = send(slot, window, at);
        if sent == at {
            return Ok(Window { first: clear(window), end: at });
        }
        // A hook that was interrupted still has to store here.
        give_up(slot, sent, at);
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

/// Sends the whole events of `from..to`, up to the first slot that is not written; returns where that is.
fn send(slot: &Slot, from: usize, to: usize) -> usize {
    let mut end = from;
    // SAFETY: the window is readable memory of this process.
    while end < to && unsafe { *(end as *const u64) } != 0 {
        end += EVENT_BYTES;
    }
    if end > from {
        // SAFETY: as above.
        unsafe { send_bytes(Some(slot), from as *const u8, end - from) };
    }
    end
}

/// Counts what is left of a window, from a slot on that is reserved and not written.
fn give_up(slot: &Slot, from: usize, to: usize) {
    let mut calls = 0;
    for at in (from..to).step_by(EVENT_BYTES) {
        // SAFETY: the window is readable memory of this process.
        let is_written = unsafe { *(at as *const u64) } != 0;
        // What is not there yet is most likely a call.
        // SAFETY: as above.
        calls += if is_written { unsafe { count_calls(at as *const u8, EVENT_BYTES) } } else { 1 };
    }
    let now = clock::now();
    lose(Some(slot), calls, now, now);
}

/// Where the ring has room, while its lock is held.
struct Room {
    data: usize,
    capacity: usize,
    at: usize,
    bytes: usize,
}

impl Room {
    /// Copies what fits of whole events; returns how many bytes.
    ///
    /// # Safety
    /// `bytes` bytes at `from` can be read.
    unsafe fn put(&mut self, from: *const u8, bytes: usize) -> usize {
        let fits = bytes.min(self.bytes);
        for index in 0..fits {
            // SAFETY: `at` stays below the capacity, which was checked against the file.
            unsafe { ((self.data + self.at) as *mut u8).write(*from.add(index)) };
            self.at += 1;
            if self.at == self.capacity {
                self.at = 0;
            }
        }
        self.bytes -= fits;
        fits
    }
}

/// Copies whole events, one at least, into the ring; the newest that do not fit are dropped. In front
/// of them stands what the thread of `slot` has lost before, else a reader would take it that these
/// follow what it has.
///
/// # Safety
/// `bytes` bytes at `from` can be read.
unsafe fn send_bytes(slot: Option<&Slot>, from: *const u8, bytes: usize) {
    let base = BASE.load(Relaxed);
    let capacity = CAPACITY.load(Relaxed);
    let (lock, [head, tail, _]) = ring::stream_words(base);
    let mut tries = 0;
    while lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        tries += 1;
        if tries == LOCK_TRIES {
            // SAFETY: as for this function.
            unsafe { drop_events(slot, from, bytes) };
            return;
        }
        sys::yield_now();
    }
    let start = head.load(Relaxed);
    let used = start.wrapping_sub(tail.load(Acquire)) as usize;
    let mut room = Room {
        data: base + RING_HEADER_BYTES,
        capacity,
        at: start.checked_rem(capacity as u64).unwrap_or(0) as usize,
        bytes: capacity.saturating_sub(used) / EVENT_BYTES * EVENT_BYTES,
    };
    // SAFETY: as for this function.
    let note = unsafe { put_loss(slot, from, &mut room) };
    // SAFETY: as above.
    let fits = if note.is_some() { unsafe { room.put(from, bytes) } } else { 0 };
    head.store(start + (note.unwrap_or(0) + fits) as u64, Release);
    // SAFETY: as above.
    unsafe { drop_events(slot, from.add(fits), bytes - fits) };
    lock.store(0, Release);
}

/// Tells what the thread of `slot` has lost, if anything, in front of its next event; returns the bytes
/// of that, `None` where there is no room for both.
///
/// # Safety
/// An event at `next` can be read.
unsafe fn put_loss(slot: Option<&Slot>, next: *const u8, room: &mut Room) -> Option<usize> {
    const BYTES: usize = notes::LOSS_RECORDS * EVENT_BYTES;
    let Some(slot) = slot else { return Some(0) };
    let lost = slot.lost.load(Relaxed);
    let events = lost.wrapping_sub(slot.told.load(Relaxed));
    if events == 0 {
        return Some(0);
    }
    if room.bytes <= BYTES {
        return None;
    }
    let first = slot.first_lost.swap(0, Relaxed);
    let last = slot.last_lost.load(Relaxed);
    let note = LossNote { cause: Cause::Full as u32, events, first, last };
    // SAFETY: as for this function.
    let (ts, tid) =
        unsafe { (time_of(next), next.add(offset_of!(Event, tid)).cast::<u32>().read()) };
    let mut records = [0u64; BYTES / 8];
    let mut at = records.as_mut_ptr() as usize;
    notes::loss(&note, &mut |func, site| {
        put_marker(at, tid, ts, func, site);
        at += EVENT_BYTES;
        true
    });
    slot.told.store(lost, Relaxed);
    // SAFETY: the bytes of an array.
    Some(unsafe { room.put(records.as_ptr().cast(), BYTES) })
}

/// # Safety
/// An event at `event` can be read.
unsafe fn time_of(event: *const u8) -> u64 {
    // SAFETY: events are aligned.
    unsafe { event.add(offset_of!(Event, ts)).cast::<u64>().read() }
}

/// Counts events that are not in the ring, of the thread that has `slot`.
///
/// # Safety
/// `bytes` bytes at `from` can be read.
unsafe fn drop_events(slot: Option<&Slot>, from: *const u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: as for this function.
        let (calls, first, last) = unsafe {
            let last = from.add(bytes - EVENT_BYTES);
            (count_calls(from, bytes), time_of(from), time_of(last))
        };
        lose(slot, calls, first, last);
    }
}

fn lose(slot: Option<&Slot>, calls: u64, first: u64, last: u64) {
    let (_, [_, _, dropped]) = ring::stream_words(BASE.load(Relaxed));
    dropped.fetch_add(calls, Relaxed);
    if let Some(slot) = slot.filter(|_| calls > 0) {
        let _ = slot.first_lost.compare_exchange(0, first.max(1), Relaxed, Relaxed);
        slot.last_lost.store(last, Relaxed);
        slot.lost.fetch_add(calls, Relaxed);
    }
}

/// Enters and exits among the events at `from`: a dropped note is no loss.
///
/// # Safety
/// `bytes` bytes at `from` can be read.
unsafe fn count_calls(from: *const u8, bytes: usize) -> u64 {
    let kind_at = offset_of!(Event, kind);
    let mut calls = 0;
    for event in 0..bytes / EVENT_BYTES {
        // SAFETY: inside the bytes.
        calls += u64::from(unsafe { *from.add(event * EVENT_BYTES + kind_at) } <= KIND_EXIT);
    }
    calls
}

/// Counts events for which there was no window.
pub fn count_loss(thread: &Thread, events: u64, ts: u64) {
    lose(slot_of(thread), events, ts, ts);
}

/// Sends what `thread` still holds.
pub fn hand_over(thread: &Thread) {
    if let Some(slot) = slot_of(thread) {
        send_rest(slot);
    }
}

/// Sends what every thread still holds, and detaches.
pub fn close() {
    threads::slots().for_each(send_rest);
    ring::writers(BASE.load(Relaxed)).fetch_sub(1, AcqRel);
}

fn send_rest(slot: &Slot) {
    let window = slot.window.swap(0, AcqRel);
    if window != 0 {
        send(slot, window, window + WINDOW_BYTES);
    }
}

/// Sends an event after the close.
pub fn append_late(thread: &Thread, event: [u64; 4]) {
    // SAFETY: the bytes of an array.
    unsafe { send_bytes(slot_of(thread), event.as_ptr().cast(), EVENT_BYTES) };
}
