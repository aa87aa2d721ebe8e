//! The two functions the compiler calls.
//!
//! The hot path: one load tells that the process records directly, one that this thread's window
//! has room; clock, a reservation that a signal handler cannot tear, four stores. All else is
//! [`slow`].

use core::sync::atomic::Ordering::Relaxed;

use callsight_format::{EVENT_BYTES, KIND_ENTER, KIND_EXIT};

use crate::bytes::Shared;
use crate::process::{self, Sink};
use crate::recorder::{has_become_wanted, leave_out, owes_notes, pay_notes, start_thread};
use crate::threads::{self, UNWANTED};
use crate::window::{count_loss, late, meta, put, store, turn_page};
use crate::{arch, clock, filter, sandbox, summary};

arch::hook! {
    /// Called on entry of every function with hooks.
    ///
    /// # Safety
    /// None beyond a stack: any values are stored as they are.
    __cyg_profile_func_enter, KIND_ENTER, record_enter
}

arch::hook! {
    /// Called before every function with hooks returns.
    ///
    /// # Safety
    /// None beyond a stack: any values are stored as they are.
    __cyg_profile_func_exit, KIND_EXIT, record_exit
}

/// The hot path where [`arch`] has no instructions of its own for it. The clock is read before the
/// slot is reserved: whatever a signal handler records in between then stands before this event, in
/// slots as in time.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub unsafe fn record(func: usize, call_site: usize, kind: u8) {
    // Not before this says so: thread-local storage may not exist yet.
    let generation = process::PAGE.direct.load(Relaxed);
    let stack_pointer = arch::stack_pointer();
    if generation == 0 {
        if process::is_off() {
            return;
        }
        // SAFETY: the block is this thread's, and is there where this or the parent process was set up.
        if process::is_paused() && process::is_left_out(unsafe { (*threads::current()).generation })
        {
            return;
        }
        // SAFETY: as for this function.
        return unsafe { aside(func, call_site, kind, stack_pointer) };
    }
    let thread = threads::current();
    let mask = process::window_mask();
    // SAFETY: the block is this thread's; a window it holds is mapped for writing; a slot
    // reserved is this hook's alone.
    unsafe {
        if (*thread).generation != generation {
            return slow(func, call_site, kind, stack_pointer);
        }
        // Not before this: a thread in a sandbox has no clock.
        let ts = arch::ticks();
        let mut at = (*thread).cursor;
        loop {
            if at & mask == 0 {
                return slow(func, call_site, kind, stack_pointer);
            }
            let found = arch::swap_if_same(&raw mut (*thread).cursor, at, at + EVENT_BYTES);
            if found == at {
                break;
            }
            at = found;
        }
        put(at, ts, func as u64, call_site as u64, (*thread).word | meta(kind, stack_pointer));
    }
}

/// What may not be stored directly: calls that are summed up, else the slow way.
#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
unsafe fn aside(func: usize, call_site: usize, kind: u8, stack_pointer: usize) {
    let generation = process::PAGE.summing.load(Relaxed);
    // SAFETY: as for the hooks; the block is this thread's, and there is one when calls are summed.
    unsafe {
        if generation == 0 || (*threads::current()).generation != generation {
            return slow(func, call_site, kind, stack_pointer);
        }
        let sheet = (*threads::current()).cursor as *mut summary::Sheet;
        if kind == KIND_ENTER {
            summary::record_enter(func, call_site, sheet, stack_pointer);
        } else {
            summary::record_exit(func, call_site, sheet, stack_pointer);
        }
    }
}

/// Everything but the usual. The next page of a ring comes first, since a hook that turns a page may not
/// take more than 400 instructions.
///
/// # Safety
/// As for the hooks.
#[cold]
#[inline(never)]
pub unsafe extern "C" fn slow(func: usize, call_site: usize, kind: u8, stack_pointer: usize) {
    if !turned_page(func, call_site, kind, stack_pointer) {
        record_slowly(func, call_site, kind, stack_pointer);
    }
}

/// Whether a full page was all that kept an event from being stored directly: it is stored in the next
/// one then, or counted.
#[inline(always)]
fn turned_page(func: usize, call_site: usize, kind: u8, stack_pointer: usize) -> bool {
    let generation = process::PAGE.direct.load(Relaxed);
    if generation == 0 {
        return false;
    }
    // SAFETY: where events are stored directly the thread pointer is set.
    let thread = unsafe { &mut *threads::current() };
    if thread.generation != generation || thread.flags & UNWANTED != 0 {
        return false;
    }
    let ts = arch::ticks();
    let Some(turned) = turn_page(thread, ts) else { return false };
    match turned {
        Ok(slot) => {
            let tail = thread.word | meta(kind, stack_pointer);
            // SAFETY: the slot is this hook's.
            unsafe { put(slot, ts, func as u64, call_site as u64, tail) };
        }
        Err(Some(cause)) => count_loss(thread, cause, ts),
        Err(None) => leave_out(),
    }
    true
}

/// The rest: first hooks, full windows, other clocks, unwanted threads, the end.
#[inline(never)]
fn record_slowly(func: usize, call_site: usize, kind: u8, stack_pointer: usize) {
    if !process::ensure_ready(kind) || process::is_off() {
        if filter::forbids(filter::BEGIN) && !process::is_off() && !process::is_paused() {
            process::count_unbegun(kind);
        }
        return;
    }
    if process::is_paused() {
        return leave_out();
    }
    process::resume();
    // SAFETY: the thread pointer is set: the process is ready.
    let thread = unsafe { &mut *threads::current() };
    if sandbox::holds(thread) {
        return sandbox::count_loss(thread, kind);
    }
    if !thread.is_of(process::generation()) {
        if filter::forbids(filter::BEGIN) {
            return process::count_unbegun(kind);
        }
        if !start_thread(thread) {
            return process::count_unbegun(kind);
        }
    }
    if thread.flags & UNWANTED != 0 && !has_become_wanted(thread, kind) {
        return;
    }
    if process::sink() == Sink::Summary {
        return summary::record_slowly(thread, func, call_site, kind, stack_pointer);
    }
    let tail = thread.word | meta(kind, stack_pointer);
    let (func, call_site) = (func as u64, call_site as u64);
    if process::is_late() {
        late(thread, [clock::now(), func, call_site, tail]);
        return;
    }
    // The next window tells what is owed without one.
    if thread.cursor & process::window_mask() != 0 {
        pay_notes(thread);
    }
    let ts = clock::now();
    match store(thread, ts, func, call_site, tail) {
        // A new window has room for what is still owed.
        Ok(()) if owes_notes(thread) => pay_notes(thread),
        Ok(()) => {}
        Err(Some(cause)) => count_loss(thread, cause, ts),
        // Closed between the question above and the answer.
        Err(None) if process::is_late() => late(thread, [ts, func, call_site, tail]),
        Err(None) if process::sink() == Sink::Ring => leave_out(),
        Err(None) => {}
    }
}

/// What one hook costs, in the clock's unit: the hot path into a window of its own, before recording starts.
pub fn measure_cost() -> u64 {
    const EVENTS: usize = 64;
    #[repr(align(2048))]
    struct Scratch {
        _bytes: [u8; EVENTS * EVENT_BYTES],
    }
    static WINDOW: Shared<Scratch> = Shared::new(Scratch { _bytes: [0; EVENTS * EVENT_BYTES] });
    if !clock::is_ticks() {
        let before = clock::now();
        for _ in 0..EVENTS {
            clock::now();
        }
        return (clock::now() - before) / EVENTS as u64;
    }
    let thread = threads::current();
    let calls = EVENTS - 1;
    const TRIAL: u32 = u32::MAX;
    let mut best = u64::MAX;
    for _ in 0..3 {
        // SAFETY: only this thread stores directly while the process is being set up: others
        // have no window, and wait in `ensure_ready`.
        unsafe {
            (*thread).cursor = WINDOW.get() as usize + EVENT_BYTES;
            (*thread).generation = TRIAL;
            process::set_trial(EVENTS * EVENT_BYTES, TRIAL);
            let before = clock::now();
            for call in 0..calls {
                __cyg_profile_func_enter(call, 0);
            }
            best = best.min(clock::now() - before);
            process::set_trial(EVENTS * EVENT_BYTES, 0);
            (*thread).cursor = 0;
            (*thread).generation = 0;
        }
    }
    best / calls as u64
}
