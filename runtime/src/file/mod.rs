//! The file sink: windows cut from mapped segment files, shared by all threads of the process.
//!
//! `<dir>/trace.<pid>.<tid>.<seq>.bin`. Blocks are reserved before a window is handed out, so a
//! store never meets a full disk; no descriptor is kept open. One window stays in reserve for
//! what must be said when no more can be stored: why, and what each thread lost from then on,
//! counted in place, so that even a killed process leaves exact numbers.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use callsight_format::{
    Cause, EVENT_BYTES, FILE_WINDOW_BYTES, LossNote, MARK_CLOCK, MARK_MAX_EVENTS, StopReason,
};

mod segment;
mod state;

use segment::{NO_SEGMENT, count_in_window, start_of_window};
use state::{State, Stop};

pub use state::{has_space, make_directories};

use crate::bytes::{Held, Lock, Shared};
use crate::sys;
use crate::threads::{self, OWES_NAME, Slot, Thread};
use crate::window::{self, Window};
use crate::{clock, config, notes};

/// Bytes of a window.
pub const WINDOW_BYTES: usize = FILE_WINDOW_BYTES;
/// First and largest step by which a segment grows.
const FIRST_STEP_BYTES: usize = 2 * WINDOW_BYTES;
const LARGEST_STEP_BYTES: usize = 1 << 20;
/// Address space of a segment where its size is not limited.
const UNLIMITED_SEGMENT_BYTES: u64 = 4 << 30;
/// Segments whose mappings are remembered; the events of older ones are all in place.
const REMEMBERED: usize = 64;
/// A filled segment stays mapped until this many more were begun: a hook that a signal handler
/// interrupted may still have to store into it.
const KEPT_MAPPED: usize = 4;
/// Most records that [`close`] adds: what was stored in vain, the end, the clock.
const CLOSING_RECORDS: usize = 3;

static STATE: Shared<State> = Shared::new(State {
    segments: [NO_SEGMENT; REMEMBERED],
    count: 0,
    next_seq: 0,
    total_bytes: 0,
    wrapped: false,
    stored_in_vain: 0,
    reserve: 0,
    reserve_end: 0,
    closed_end: 0,
});
/// Guards [`STATE`].
static LOCK: Lock = Lock::new();
/// Where the count stands in a loss note: `call_site` of its first record, see
/// [`notes::loss_count_word`].
pub const NOTE_COUNT_OFFSET: usize = core::mem::offset_of!(callsight_format::Event, call_site);
/// [`close`] is done.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// Nothing more is stored.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// The file of a segment is shorter than what is stored in its map.
static SEGMENT_CUT: AtomicBool = AtomicBool::new(false);
/// Cause of losses since then.
static STOP_CAUSE: AtomicU32 = AtomicU32::new(0);
/// Losses of threads without a place of their own, and where they are counted.
static SHARED_LOST: AtomicU64 = AtomicU64::new(0);
static SHARED_LOSS_WORD: AtomicU64 = AtomicU64::new(0);
/// Where the count stands in the loss note at the head of the current segment, for losses that have no
/// other place. A forked child finds its parent's until it has a segment of its own, and
/// counts there what it loses if it cannot make one.
static HEAD_LOSS_WORD: AtomicUsize = AtomicUsize::new(0);

struct Locked {
    _held: Held<'static>,
}

impl Locked {
    /// Callers have blocked signals.
    fn take() -> Locked {
        Locked { _held: LOCK.take() }
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held, and the borrow ends with it.
        unsafe { &mut *STATE.get() }
    }
}
/// A forked child starts files of its own; the parent's mappings stay, unused.
pub fn after_fork() {
    LOCK.reset();
    // SAFETY: a freshly forked process has one thread.
    let state = unsafe { &mut *STATE.get() };
    state.count = 0;
    state.next_seq = 0;
    state.total_bytes = 0;
    state.wrapped = false;
    state.stored_in_vain = 0;
    state.reserve = 0;
    state.reserve_end = 0;
    state.closed_end = 0;
    STOPPED.store(false, Relaxed);
    SEGMENT_CUT.store(false, Relaxed);
    CLOSED.store(false, Relaxed);
    SHARED_LOST.store(0, Relaxed);
    SHARED_LOSS_WORD.store(0, Relaxed);
}

/// Why nothing is stored any more; `None` while it is. Asked before signals are blocked for a claim:
/// whoever has no file for the rest of its life should not pay a system call a hook.
pub fn is_stopped() -> Option<Cause> {
    STOPPED.load(Acquire).then(stop_cause)
}

fn stop_cause() -> Cause {
    Cause::from_number(STOP_CAUSE.load(Relaxed)).unwrap_or(Cause::Io)
}

/// The next window for `thread`, which is done with the one before. Callers have blocked signals.
///
/// # Errors
/// Why nothing more is stored.
#[inline(never)]
pub fn claim(thread: &mut Thread) -> Result<Window, Option<Cause>> {
    let stopped = || Some(stop_cause());
    let mut lock = Locked::take();
    if STOPPED.load(Acquire) {
        return Err(stopped());
    }
    if lock.state().closed_end != 0 {
        return Err(None);
    }
    if SEGMENT_CUT.swap(false, AcqRel) {
        lock.state().stop_after_cut(thread.tid());
        return Err(stopped());
    }
    let window = lock.state().next_window(thread.tid()).map_err(|stop| {
        lock.state().stop(thread.tid(), &stop);
        stopped()
    })?;
    if !lock.state().has_in_current(thread.cursor) {
        // The segment that has its name may be rotated away before this one.
        thread.flags |= OWES_NAME;
    }
    // Whoever rotates segments away, under the same lock, looks which windows threads have.
    if let Some(slot) = slot_of(thread) {
        lock.state().stored_in_vain += leave_evicted(slot);
        slot.window.store(window.first & !(WINDOW_BYTES - 1), Release);
    }
    Ok(window)
}

/// How many events were stored into the slot's window after its segment was rotated away.
fn leave_evicted(slot: &Slot) -> u64 {
    match slot.evicted.swap(0, AcqRel) {
        0 => 0,
        counted => {
            count_in_window(slot.window.load(Acquire)).saturating_sub(u64::from(counted) - 1)
        }
    }
}

fn slot_of(thread: &Thread) -> Option<&'static Slot> {
    // SAFETY: a place in a static table, or null.
    unsafe { thread.slot.as_ref() }
}
/// Counts an event that `thread` could not store.
pub fn count_loss(thread: &Thread, cause: Cause, ts: u64) {
    let slot = slot_of(thread);
    if let Some(slot) = slot {
        let lost = slot.lost.fetch_add(1, Relaxed) + 1;
        let word = slot.loss_word.load(Relaxed);
        if word != 0 {
            write_count(word, cause, &slot.lost);
            return;
        }
        if lost > 1 {
            // No room in the reserve: among the shared ones, below.
            slot.lost.fetch_sub(1, Relaxed);
        } else if let Some(word) = begin_note(thread, cause, 1, ts) {
            slot.loss_word.store(word, Relaxed);
            return;
        }
    }
    count_shared_loss(cause, 1);
}

/// Counts events among those of threads without a place of their own; whether there is a segment to count
/// them in. No system call.
pub fn count_shared_loss(cause: Cause, events: u32) -> bool {
    let word = SHARED_LOSS_WORD.load(Relaxed) as usize;
    if word != 0 {
        SHARED_LOST.fetch_add(events.into(), Relaxed);
        write_count(word, cause, &SHARED_LOST);
        return true;
    }
    let word = HEAD_LOSS_WORD.load(SeqCst) as *const AtomicU64;
    // SAFETY: null, or in a segment that stays mapped: the current one, or in a forked child the one
    // that its parent had then.
    let word = unsafe { word.as_ref() };
    if let Some(word) = word {
        // By addition: several processes may count here.
        word.fetch_add(notes::ONE_LOST * u64::from(events), Relaxed);
    }
    word.is_some()
}

/// Raises a count in place: one store, whole at any moment. Asks again, because a signal handler or
/// another thread may have counted and written in between.
pub fn write_count(word: usize, cause: Cause, lost: &AtomicU64) {
    let mut written = 0;
    while written != lost.load(Relaxed) {
        written = lost.load(Relaxed);
        let note = LossNote { cause: cause as u32, events: written, first: 0, last: 0 };
        let count = notes::loss_count_word(&note);
        // SAFETY: in a mapped segment, or 0, which callers exclude.
        unsafe { (*(word as *const AtomicU64)).store(count, Relaxed) };
    }
}

/// Makes a loss note of `events` in the reserve, where recording has stopped; where its count is.
pub fn begin_note(thread: &Thread, cause: Cause, events: u64, ts: u64) -> Option<usize> {
    let _blocked = sys::SignalsBlocked::new();
    let mut lock = Locked::take();
    let state = lock.state();
    let tid = thread.tid();
    // The first loss also makes the shared note, so that there is room for it.
    if SHARED_LOSS_WORD.load(Relaxed) == 0 {
        let none = LossNote { cause: cause as u32, events: 0, first: 0, last: 0 };
        let word = state.begin_loss_note(tid, &none).unwrap_or(0);
        SHARED_LOSS_WORD.store(word as u64, Relaxed);
    }
    let note = LossNote { cause: cause as u32, events, first: ts, last: 0 };
    state.begin_loss_note(tid, &note)
}

/// A store into a segment met no file. Called in a handler of a signal; whoever asks for the next
/// window brings it to the data.
pub fn segment_was_cut() {
    SEGMENT_CUT.store(true, Release);
}

/// `TRACE_MAX` is used up: recording stops.
pub fn stop_at_limit(thread: &Thread) {
    if STOPPED.load(Acquire) {
        return;
    }
    let payload = config::get().max_events;
    let stop = Stop { marker: MARK_MAX_EVENTS, payload, cause: Cause::Budget };
    let mut lock = Locked::take();
    lock.state().stop(thread.tid(), &stop);
}

/// Puts the files into the form that any reader takes: no unused slot before the end, the
/// closing anchor as the last record. Signals are blocked and hooks go the slow way.
pub fn close() {
    let mut lock = Locked::take();
    if close_segments(lock.state()).is_err() {
        lock.state().stop_after_cut(sys::gettid());
        let _ = close_segments(lock.state());
    }
    // The reserve is cut off: what is lost from now on is counted in the notes that are there.
    lock.state().reserve = 0;
    CLOSED.store(true, Release);
}

/// The current segment's file is shorter than it was made.
struct CutShort;

fn close_segments(state: &mut State) -> Result<(), CutShort> {
    let tid = sys::gettid();
    let (ticks, ns) = clock::anchor();
    let Some(current) = state.current().copied() else { return Ok(()) };
    let mut end = current.base + current.next;
    for slot in threads::slots() {
        let window = slot.window.load(Acquire);
        let owned = state.segments.iter().take(state.count).any(|segment| segment.holds(window));
        if window != 0 && owned {
            let used = end_of_window(window);
            // Only a window that nobody stores into any more can lose its end.
            if window + WINDOW_BYTES == end && slot.tid.load(Relaxed) == tid {
                end = used;
            } else {
                window::pad(used, window + WINDOW_BYTES, ticks, window::marker_tail(tid));
            }
        }
    }
    if state.reserve != 0 && state.reserve_end == end {
        end = state.reserve;
    }
    let in_vain: u64 = threads::slots().map(leave_evicted).sum();
    let in_vain = in_vain + core::mem::take(&mut state.stored_in_vain);
    let Some(segment) = state.current() else { return Ok(()) };
    if end + CLOSING_RECORDS * EVENT_BYTES > segment.base + segment.allocated {
        return Ok(());
    }
    if in_vain > 0 {
        window::put_wrap_marker(end, tid, ticks, None, in_vain);
        end += EVENT_BYTES;
    }
    notes::stop(StopReason::End, b"", &mut |func, site| {
        window::put_marker(end, tid, ticks, func, site);
        end += EVENT_BYTES;
        true
    });
    if clock::is_ticks() {
        window::put_marker(end, tid, ticks, MARK_CLOCK, ns);
        end += EVENT_BYTES;
    }
    let bytes = end - segment.base;
    let Ok(file) = segment.reopen() else { return Ok(()) };
    if file.stat().is_ok_and(|stat| stat.size < segment.allocated as u64) {
        // Lengthened again it would look whole.
        return Err(CutShort);
    }
    if file.truncate(bytes).is_ok() {
        segment.allocated = bytes;
        state.closed_end = bytes;
    }
    Ok(())
}

/// Behind the last event of a window.
fn end_of_window(window: usize) -> usize {
    let mut end = window + WINDOW_BYTES;
    let floor = start_of_window(window);
    // SAFETY: the window is mapped and has blocks.
    while end > floor && unsafe { *((end - EVENT_BYTES) as *const u64) } == 0 {
        end -= EVENT_BYTES;
    }
    end
}

/// Stores an event behind the closing anchor's place, and the anchor anew behind it.
pub fn append_late(thread: &Thread, event: [u64; 4]) {
    // The process says that it is late a moment before it has closed.
    while !CLOSED.load(Acquire) {
        sys::yield_now();
    }
    let mut lock = Locked::take();
    let stored = !STOPPED.load(Acquire) && append(lock.state(), thread.tid(), event).is_some();
    drop(lock);
    if !stored {
        count_loss(thread, Cause::Io, event[0]);
    }
}

fn append(state: &mut State, tid: u32, event: [u64; 4]) -> Option<()> {
    let end = Some(state.closed_end).filter(|end| *end != 0)?;
    let file = state.current()?.reopen().ok()?;
    let anchored = clock::is_ticks();
    let at = if anchored { end - EVENT_BYTES } else { end };
    let (ticks, ns) = clock::anchor();
    let records = [event, [ticks, MARK_CLOCK, ns, window::marker_tail(tid)]];
    let bytes = if anchored { 2 * EVENT_BYTES } else { EVENT_BYTES };
    // SAFETY: two records are 64 bytes.
    let raw = unsafe { core::slice::from_raw_parts(records.as_ptr().cast::<u8>(), bytes) };
    file.write_at(raw, at).ok()?;
    state.closed_end = at + bytes;
    Some(())
}
