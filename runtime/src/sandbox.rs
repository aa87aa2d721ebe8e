//! Threads without a clock: strict seccomp takes `rdtsc` away, and leaves no system call but
//! `read`, `write` and the end.
//!
//! Such a thread records nothing more. Its calls are counted as lost, in place, so that even a
//! program that never comes to its destructors leaves exact numbers.

use callsight_format::{Cause, EVENT_BYTES, LossNote};

use crate::process::{self, Sink};
use crate::threads::{self, Thread};
use crate::{file, hook, notes, ring, stream};

/// [`Thread::generation`] of a thread in a sandbox.
const SANDBOXED: u32 = u32::MAX - 1;

/// The calling thread is about to lose its clock and its system calls.
pub fn enter() {
    hook::with_ready_thread(|thread| {
        match process::sink() {
            Sink::File => prepare_count(thread),
            Sink::Stream => stream::hand_over(thread),
            Sink::Ring => {}
        }
        thread.generation = SANDBOXED;
    });
}

/// The kernel has refused.
pub fn leave() {
    if holds_caller() {
        // SAFETY: the block is this thread's own.
        unsafe { (*threads::current()).generation = process::generation() };
    }
}

/// Whether the calling thread is in a sandbox.
pub fn holds_caller() -> bool {
    // SAFETY: once a process has a generation the thread pointer is set.
    process::generation() != 0 && holds(unsafe { &*threads::current() })
}

/// Whether `thread` is in a sandbox.
pub fn holds(thread: &Thread) -> bool {
    thread.generation == SANDBOXED
}

/// Counts an event of a thread that is in a sandbox, with no system call and no clock.
pub fn count_loss(thread: &Thread) {
    match process::sink() {
        Sink::File => file::count_loss_in_place(thread, Cause::Stopped),
        Sink::Ring => ring::count_loss(thread, Cause::Stopped, thread.anchored),
        Sink::Stream => stream::count_loss(thread, 1, thread.anchored),
    }
}

/// Puts a loss note of no events into the thread's window: its count is raised there.
fn prepare_count(thread: &mut Thread) {
    let note_bytes = notes::LOSS_RECORDS * EVENT_BYTES;
    let (padding, nothing) = notes::PADDING;
    let window_bytes = process::window_mask() + 1;
    let is_whole = |cursor: usize| {
        let used = cursor & process::window_mask();
        used != 0 && window_bytes - used >= note_bytes
    };
    while !is_whole(thread.cursor) {
        if !hook::store_note(thread, padding, nothing) {
            return;
        }
    }
    let at = thread.cursor;
    let note = LossNote { cause: Cause::Stopped as u32, events: 0, first: 0, last: 0 };
    let stored = notes::loss(&note, &mut |func, site| hook::store_note(thread, func, site));
    // A signal handler may have stored in between; then the shared count does.
    if stored && thread.cursor == at + note_bytes {
        file::count_at(thread, at);
    }
}
