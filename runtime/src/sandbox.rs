//! Threads without a clock: strict seccomp takes `rdtsc` away, and leaves no system call but
//! `read`, `write` and the end.
//!
//! Such a thread records nothing more. Its calls are counted as lost, in place, so that even a
//! program that never comes to its destructors leaves exact numbers.

use core::sync::atomic::Ordering::Relaxed;

use callsight_format::{Cause, EVENT_BYTES, LossNote};

use crate::process::{self, Sink};
use crate::sys::SignalsBlocked;
use crate::threads::{self, GENERATIONS, Thread, UNWANTED};
use crate::{file, notes, recorder, ring, stream, summary};

/// [`Thread::generation`] of a thread in a sandbox.
const SANDBOXED: u32 = GENERATIONS - 1;

/// The calling thread is about to lose its clock and its system calls.
pub fn enter() {
    recorder::with_ready_thread(|thread| {
        match process::sink() {
            Sink::File => prepare_count(thread),
            Sink::Stream => stream::hand_over(thread),
            Sink::Ring | Sink::Summary => {}
        }
        thread.set_up_for(SANDBOXED);
    });
}

/// The kernel has refused, or the clock is back.
pub fn leave() {
    if holds_caller() {
        // SAFETY: the block is this thread's own.
        unsafe { (*threads::current()).set_up_for(process::generation()) };
    }
}

/// Whether the calling thread is in a sandbox.
pub fn holds_caller() -> bool {
    // SAFETY: once a process has a generation the thread pointer is set.
    process::generation() != 0 && holds(unsafe { &*threads::current() })
}

/// Whether `thread` is in a sandbox.
pub fn holds(thread: &Thread) -> bool {
    thread.is_of(SANDBOXED)
}

/// Counts an event of a thread that is in a sandbox, with no system call and no clock.
pub fn count_loss(thread: &Thread, kind: u8) {
    if thread.flags & UNWANTED != 0 {
        return;
    }
    match process::sink() {
        Sink::File if thread.sandbox_word != 0 => {
            thread.sandbox_lost.fetch_add(1, Relaxed);
            file::write_count(thread.sandbox_word, Cause::Stopped, &thread.sandbox_lost);
        }
        Sink::File => {
            file::count_shared_loss(Cause::Stopped, 1);
        }
        Sink::Ring => ring::count_loss(thread, Cause::Stopped, thread.anchored),
        Sink::Stream => stream::count_loss(thread, 1, thread.anchored),
        Sink::Summary => summary::count_loss(thread, kind),
    }
}

/// Makes a loss note of no events, whose count is raised later: in the thread's window, which stays
/// mapped as long as the thread lives, or where recording has stopped in the reserve.
fn prepare_count(thread: &mut Thread) {
    let _blocked = SignalsBlocked::new();
    thread.sandbox_lost.store(0, Relaxed);
    thread.sandbox_word = note_in_window(thread)
        .or_else(|| file::begin_note(thread, Cause::Stopped, 0, 0))
        .unwrap_or(0);
}

fn note_in_window(thread: &mut Thread) -> Option<usize> {
    let note_bytes = notes::LOSS_RECORDS * EVENT_BYTES;
    let (padding, nothing) = notes::PADDING;
    let window_bytes = process::window_mask() + 1;
    // Its records have to stand in one window.
    let has_room = |cursor: usize| {
        let used = cursor & process::window_mask();
        used != 0 && window_bytes - used >= note_bytes
    };
    while !has_room(thread.cursor) {
        recorder::store_note(thread, padding, nothing).then_some(())?;
    }
    let at = thread.cursor;
    let note = LossNote { cause: Cause::Stopped as u32, events: 0, first: 0, last: 0 };
    let stored = notes::loss(&note, &mut |func, site| recorder::store_note(thread, func, site));
    stored.then_some(at + file::NOTE_COUNT_OFFSET)
}
