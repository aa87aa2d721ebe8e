//! A thread that records: how it begins, when it is wanted, and what it owes the data beside its calls.

use core::sync::atomic::Ordering::Acquire;

use callsight_format::{Cause, EVENT_BYTES, KIND_MARKER, LossNote, MARK_CLOCK, StopReason};

use crate::notes::{self, Again};
use crate::process::{self, Sink};
use crate::sys::{self, SignalsBlocked};
use crate::threads::{self, EARLY, OWES_NAME, OWES_PROCESS, TELLS, Thread, UNWANTED};
use crate::window::{meta, store, tid_word};
use crate::{clock, config, file, filter, ring, sandbox, summary};

/// The first hook of a thread, of a forked child's thread, or after libc zeroed the block. `false` for the
/// child of a `vfork`, of whose calls [`process::count_unbegun`] is told.
#[must_use]
pub fn start_thread(thread: &mut Thread) -> bool {
    let _blocked = SignalsBlocked::new();
    if process::is_run_by_guest() {
        return false;
    }
    if has_begun(thread) {
        return true;
    }
    let tid = sys::gettid();
    let me = process::identity();
    thread.cursor = 0;
    thread.word = tid_word(tid);
    thread.flags = OWES_PROCESS | OWES_NAME;
    thread.windows = 0;
    thread.skipped = 0;
    thread.anchored = clock::start_ticks();
    thread.slot = core::ptr::null_mut();
    thread.set_up_for(process::generation());
    if !config::get().wants_thread(name_of(&sys::thread_name())) {
        // Without a window every hook comes the slow way.
        thread.flags |= UNWANTED;
        return true;
    }
    thread.skipped = process::take_early_events();
    if thread.skipped > 0 {
        thread.flags |= EARLY;
    }
    take_place(thread, me.pid, tid);
    if goes_on_in_a_window(thread) {
        // From here on handlers of signals may store there.
        tell_process(thread);
    }
    true
}

/// Whether the thread goes on in what another one left of a window. In a ring each begins with a page, and a
/// summary has none.
fn goes_on_in_a_window(thread: &Thread) -> bool {
    matches!(process::sink(), Sink::File | Sink::Stream)
        && thread.cursor & process::window_mask() != 0
}

/// Whether the handler of a signal was quicker to begin this thread.
fn has_begun(thread: &Thread) -> bool {
    // SAFETY: the block is this thread's; handlers of signals change it too, hence volatile.
    let (generation, flags) = unsafe {
        ((&raw const thread.generation).read_volatile(), (&raw const thread.flags).read_volatile())
    };
    generation & threads::GENERATIONS == process::generation() && flags & UNWANTED == 0
}

/// Gives the calling thread what it needs to store events, if there is any left.
fn take_place(thread: &mut Thread, pid: u32, tid: u32) {
    let Some(slot) = threads::take_slot(pid, tid) else { return };
    thread.slot = core::ptr::from_ref(slot).cast_mut();
    match process::sink() {
        Sink::Ring => {
            ring::adopt(slot, tid);
            if ring::is_pause_untold(thread) {
                // By who had the place before.
                thread.leave_out();
            }
        }
        Sink::File | Sink::Stream => thread.cursor = end_of_events(slot),
        Sink::Summary => thread.cursor = summary::start(slot, tid),
    }
}

fn name_of(name: &[u8; 16]) -> &[u8] {
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    name.get(..len).unwrap_or(&[])
}

/// Where the thread that had this place before stopped writing; 0 when it had no window.
fn end_of_events(slot: &threads::Slot) -> usize {
    let window = slot.window.load(Acquire);
    if window == 0 {
        return 0;
    }
    let mut end = window + file::WINDOW_BYTES;
    // SAFETY: windows stay mapped while a place names them.
    while end > window && unsafe { *((end - EVENT_BYTES) as *const u64) } == 0 {
        end -= EVENT_BYTES;
    }
    end
}

/// `TRACE_THREADS` is compared again at each of the first 64 hooks, then at every 64th: threads
/// are often named after they started.
pub fn has_become_wanted(thread: &mut Thread, kind: u8) -> bool {
    thread.skipped = thread.skipped.saturating_add(1);
    let ask = thread.skipped <= 64 || thread.skipped.is_multiple_of(64);
    if !ask || !config::get().wants_thread(name_of(&sys::thread_name())) {
        return false;
    }
    // This hook is not among those that were missed.
    let missed = thread.skipped - 1;
    if !start_thread(thread) {
        thread.skipped = missed;
        process::count_unbegun(kind);
        return false;
    }
    thread.skipped = thread.skipped.saturating_add(missed);
    thread.flags & UNWANTED == 0
}

/// What a thread did before its name was one that is wanted, or before anything could be stored: the
/// only hooks that are lost for coming inside of others or too early, since handlers of signals
/// find the work of a hook done or not begun.
pub fn missed(thread: &Thread) -> Option<LossNote> {
    let events = u64::from(thread.skipped);
    let is_early = thread.flags & EARLY != 0;
    let cause = if is_early { Cause::Reentrant } else { Cause::Stopped } as u32;
    (events > 0).then_some(LossNote { cause, events, first: 0, last: 0 })
}

/// Whether [`pay_notes`] has anything to do.
pub fn owes_notes(thread: &Thread) -> bool {
    thread.flags & (OWES_PROCESS | OWES_NAME) != 0
        || thread.has_left_out()
        || process::owes_modules()
}

/// A call while recording is paused. The first of a thread tells it at once, since nothing else may be
/// heard of the thread, however it ends; so does the next record of it, which may be all that has room.
#[cold]
#[inline(never)]
pub fn leave_out() {
    process::pause();
    let mut told = false;
    with_ready_thread(|thread| {
        told = has_room_for_pause(thread)
            && notes::pause(&mut |func, site| store_note(thread, func, site));
        pay_notes(thread);
    });
    // SAFETY: the thread pointer is set where a process has a ring.
    let thread = unsafe { &mut *threads::current() };
    if !told && thread.is_of(process::generation()) {
        ring::set_pause_untold(thread, true);
    }
    thread.leave_out();
}

/// Whether the note of a pause may be stored now: what comes behind a pause must not find the ring full of
/// pages with nothing else in them. The first of a process has more to tell: what program it is of.
fn has_room_for_pause(thread: &Thread) -> bool {
    thread.cursor & process::window_mask() != 0
        || process::owes_modules()
        || ring::has_pages_to_spare()
}

/// The data of this thread tells now of what it has left out.
pub fn told_pause(thread: &mut Thread) {
    thread.told_pause();
    ring::set_pause_untold(thread, false);
}

/// Stores what this thread owes the data before its next event; what finds no room stays owed.
pub fn pay_notes(thread: &mut Thread) {
    if thread.cursor & process::window_mask() == 0 {
        // When there is a next window: in the first one `open_window` itself says who the process
        // is.
        return;
    }
    if thread.flags & OWES_PROCESS != 0 && !tell_process(thread) {
        return;
    }
    // Until it is told, hooks of signal handlers come here too, and tell it first.
    if thread.has_left_out() && notes::pause(&mut |func, site| store_note(thread, func, site)) {
        told_pause(thread);
    }
    if process::take_duty_to_tell_modules()
        && !notes::modules(true, &mut |func, site| store_note(thread, func, site))
    {
        process::give_back_duty_to_tell_modules();
    }
    if thread.flags & OWES_NAME != 0 {
        thread.flags &= !OWES_NAME;
        if !notes::thread_name(&mut |func, site| store_note(thread, func, site)) {
            thread.flags |= OWES_NAME;
        }
    }
}

/// Tells that the thread begins, and what it missed before; whether there was room for it. In a window of
/// another thread no handler of a signal may store before that: readers would take what it stores for
/// another life of the thread.
fn tell_process(thread: &mut Thread) -> bool {
    let blocks = goes_on_in_a_window(thread) && !filter::forbids(filter::BEGIN);
    let _blocked = blocks.then(SignalsBlocked::new);
    // SAFETY: as in `has_begun`.
    let flags = unsafe { (&raw const thread.flags).read_volatile() };
    if flags & OWES_PROCESS == 0 {
        return true;
    }
    thread.flags = flags & !OWES_PROCESS;
    if !notes::process(Again::No, &mut |func, site| store_note(thread, func, site)) {
        thread.flags |= OWES_PROCESS;
        return false;
    }
    if let Some(note) = missed(thread) {
        thread.skipped = 0;
        notes::loss(&note, &mut |func, site| store_note(thread, func, site));
    }
    true
}

/// Stores one record of a note. It takes nothing from `TRACE_MAX` and is no loss when dropped.
pub fn store_note(thread: &mut Thread, func: u64, site: u64) -> bool {
    let tail = thread.word | meta(KIND_MARKER, 0);
    let stored = store(thread, clock::now(), func, site, tail).is_ok();
    if stored {
        process::return_quota(1);
    }
    stored
}

/// Tells the data what changed in the module map; used around `dlclose`.
pub fn tell_modules() {
    if process::sink() == Sink::Summary {
        return;
    }
    with_ready_thread(|thread| {
        if !notes::modules(false, &mut |func, site| store_note(thread, func, site)) {
            process::give_back_duty_to_tell_modules();
        }
    });
}

/// The last notes of the process: modules that came since, the end, and the closing anchor; in
/// files the latter two are the last records, which [`file::close`] writes.
pub fn tell_modules_and_end() {
    with_ready_thread(|thread| {
        tell_early_events(thread);
        if process::sink() == Sink::File {
            notes::modules(false, &mut |func, site| store_note(thread, func, site));
        } else if thread.flags & UNWANTED == 0 {
            tell_end(thread);
        } else if !filter::forbids(filter::BEGIN) {
            tell_end_unrecorded(thread);
        }
    });
}

/// What nobody has told, since no thread has begun since.
fn tell_early_events(thread: &mut Thread) {
    let events = u64::from(process::take_early_events());
    if events > 0 && thread.flags & UNWANTED == 0 {
        let note = LossNote { cause: Cause::Reentrant as u32, events, first: 0, last: 0 };
        notes::loss(&note, &mut |func, site| store_note(thread, func, site));
    }
}

fn tell_end(thread: &mut Thread) {
    notes::modules(false, &mut |func, site| store_note(thread, func, site));
    notes::stop(StopReason::End, b"", &mut |func, site| store_note(thread, func, site));
    let (ticks, ns) = clock::anchor();
    if clock::is_ticks() {
        let tail = thread.word | meta(KIND_MARKER, 0);
        let _ = store(thread, ticks, MARK_CLOCK, ns, tail);
    }
}

/// The same by a thread that `TRACE_THREADS` does not select: of its calls, nothing is stored and none
/// is a loss.
fn tell_end_unrecorded(thread: &mut Thread) {
    let _blocked = SignalsBlocked::new();
    let missed = core::mem::take(&mut thread.skipped);
    take_place(thread, process::identity().pid, thread.tid());
    tell_end(thread);
    // As before, without a window.
    thread.cursor = 0;
    thread.skipped = missed;
}

/// Does `work` if the calling thread may record, and sets it up for that where it must be.
pub fn with_ready_thread(work: impl FnOnce(&mut Thread)) {
    if process::is_off() || process::generation() == 0 || process::is_late() {
        return;
    }
    if !process::ensure_ready(KIND_MARKER) || process::is_off() {
        return;
    }
    // SAFETY: the thread pointer is set: the process is ready.
    let thread = unsafe { &mut *threads::current() };
    if sandbox::holds(thread) {
        return;
    }
    if !thread.is_of(process::generation()) {
        if filter::forbids(filter::BEGIN) {
            return;
        }
        if !start_thread(thread) {
            return;
        }
    }
    // A handler of a signal may have come in between.
    let tells_already = thread.flags & TELLS;
    thread.flags |= TELLS;
    pay_notes(thread);
    work(thread);
    thread.flags = thread.flags & !TELLS | tells_already;
}
