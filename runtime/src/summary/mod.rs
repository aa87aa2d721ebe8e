//! The summary (`TRACE_MODE=summary`): each call adds to the numbers of its function, and is gone.
//!
//! In: enters and exits of a thread. Out: its file `trace.summary.<pid>.<tid>.bin`, right at any
//! moment, since every call changes it in place: one record a function. Memory does not grow with
//! the calls, only with functions and depth, and both have an end ([`sheet`]); calls beyond it are
//! counted in the header.
//!
//! A call counts when it begins, its time when it ends. Time in a function that called itself counts
//! once. A call is over with its exit, or when another begins nearer to the start of the same stack
//! or in its place, as after `longjmp` or an exception: then it ended with the last event inside it.
//!
//! Signal handlers may come between any two instructions here. They leave the stack as deep as they
//! found it, but have written above: hence [`Sheet::top`], which also counts the changes, and
//! numbers that change by one instruction each.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

use callsight_format::{KIND_ENTER, KIND_EXIT, SummaryHeader, SummaryRecord};

mod calls;
mod sheet;

use calls::{Call, depth_of, end_all, enter, enter_slowly, exit, exit_slowly, last_ts};
use sheet::NO_FUNCTION;
pub use sheet::Sheet;

use crate::arch;
use crate::process::{self, Sink};
use crate::threads::{self, OWES_PROCESS, Slot, Thread};
use crate::{clock, filter, hook};

/// A header in a mapped file, for the calls of threads that have none; 0 without one.
static SHARED: AtomicUsize = AtomicUsize::new(0);
/// That of the parent, or of one before it: a forked child counts there what it cannot make a file for.
static PARENTS: AtomicUsize = AtomicUsize::new(0);

/// A forked child starts files of its own; the parent's mappings stay, unused.
pub fn after_fork() {
    let header = SHARED.swap(0, Relaxed);
    if header != 0 {
        PARENTS.store(header, Relaxed);
    }
    sheet::after_fork();
}

/// The end of the map that holds `address`, if that is one of a summary file. Called in a handler
/// of a signal.
pub fn end_of_map(address: usize) -> Option<usize> {
    if process::sink() != Sink::Summary {
        return None;
    }
    let files = threads::slots().map(|slot| {
        let sheet = slot.window.load(Acquire) as *const Sheet;
        // SAFETY: null, or a sheet, which stays mapped while a place names it.
        unsafe { sheet.as_ref() }.map_or(0, |sheet| sheet.file)
    });
    let shared = [SHARED.load(Acquire), PARENTS.load(Relaxed)];
    files.chain(shared).find_map(|file| sheet::end_of_map(file, address))
}

/// Gives a thread its sheet: that of the thread whose place it took, or a new one. 0 when there is
/// no memory or no file for it. Signals are blocked.
pub fn start(slot: &Slot, tid: u32) -> usize {
    if filter::forbids(filter::LOOK | filter::MAKE) {
        return 0;
    }
    let mut sheet = slot.window.swap(0, AcqRel) as *mut Sheet;
    if sheet.is_null() {
        let Some(new) = Sheet::new() else { return 0 };
        sheet = new;
    } else {
        // SAFETY: the thread it was of is gone.
        unsafe {
            if (*sheet).file != 0 {
                end_all(sheet, last_ts(sheet));
            }
            Sheet::clear(sheet, SHARED.load(Relaxed));
        }
    }
    slot.window.store(sheet as usize, Release);
    // SAFETY: an empty sheet of the calling thread.
    if unsafe { !Sheet::open_file(sheet, tid) } {
        return 0;
    }
    // SAFETY: as above.
    let header = unsafe { (*sheet).file };
    if SHARED.compare_exchange(0, header, SeqCst, Relaxed).is_ok() {
        process::settle_early_events();
    }
    sheet as usize
}

/// The usual enter: of a function that is known, with nothing odd about it. Called by the hook.
///
/// # Safety
/// `sheet` is the calling thread's, or null.
pub unsafe extern "C" fn record_enter(
    func: usize,
    call_site: usize,
    sheet: *mut Sheet,
    stack_pointer: usize,
) {
    // SAFETY: the sheet is this thread's.
    unsafe {
        if !sheet.is_null()
            && let Some(number) = Sheet::find(sheet, func)
            && enter(sheet, Call { func, site: call_site, stack_pointer, number }, arch::ticks())
        {
            return count_call(sheet, number);
        }
        hook::slow(func, call_site, KIND_ENTER, stack_pointer);
    }
}

/// The usual exit: of the call on top.
///
/// # Safety
/// As [`record_enter`].
pub unsafe extern "C" fn record_exit(
    func: usize,
    call_site: usize,
    sheet: *mut Sheet,
    stack_pointer: usize,
) {
    // SAFETY: the sheet is this thread's.
    unsafe {
        if sheet.is_null() || !exit(sheet, func, arch::ticks()) {
            hook::slow(func, call_site, KIND_EXIT, stack_pointer);
        }
    }
}

/// The first call of a function, another clock, something odd, or a thread without a sheet.
pub fn record_slowly(
    thread: &mut Thread,
    func: usize,
    site: usize,
    kind: u8,
    stack_pointer: usize,
) {
    if thread.flags & OWES_PROCESS != 0 {
        thread.flags &= !OWES_PROCESS;
        // What it did before its name was one that is wanted: an enter and an exit each.
        let missed = core::mem::take(&mut thread.skipped);
        count_missing(thread, u64::from(missed.div_ceil(2)));
    }
    let sheet = thread.cursor as *mut Sheet;
    if sheet.is_null() {
        return count_loss(thread, kind);
    }
    // SAFETY: the sheet is this thread's.
    unsafe {
        if kind != KIND_ENTER {
            return exit_slowly(sheet, func, stack_pointer);
        }
        let known = Sheet::find(sheet, func).or_else(|| Sheet::add_function(sheet, func));
        let number = known.unwrap_or(NO_FUNCTION);
        let has_frame = enter_slowly(sheet, Call { func, site, stack_pointer, number });
        if has_frame && number != NO_FUNCTION {
            count_call(sheet, number);
        } else {
            count_missing(thread, 1);
        }
    }
}

#[inline(always)]
unsafe fn count_call(sheet: *mut Sheet, number: u32) {
    // SAFETY: the sheet is this thread's, and the function has a record.
    unsafe {
        let record = Sheet::record(sheet, number).cast::<u8>();
        arch::add::<{ offset_of!(SummaryRecord, calls) }>(record, 1);
    }
}

/// Counts an event of a thread that can store none; what counts are calls.
pub fn count_loss(thread: &Thread, kind: u8) {
    count_missing(thread, u64::from(kind == KIND_ENTER));
}

/// Counts calls of one that cannot begin; whether there is a file to count them in.
pub fn count_unbegun(calls: u32) -> bool {
    count_missing_in(0, calls.into())
}

fn count_missing(thread: &Thread, calls: u64) {
    let sheet = thread.cursor as *mut Sheet;
    // SAFETY: null, or this thread's.
    count_missing_in(unsafe { sheet.as_ref() }.map_or(0, |sheet| sheet.file), calls);
}

/// Counts calls in the header at `own`, or where that is 0 in one that is shared; whether there is one.
fn count_missing_in(own: usize, calls: u64) -> bool {
    let headers = [own, SHARED.load(Acquire), PARENTS.load(Relaxed)];
    let Some(header) = headers.into_iter().find(|&header| header != 0) else { return false };
    let header = header as *mut SummaryHeader;
    if calls > 0 {
        // SAFETY: a header in a mapped file; several threads may share it.
        unsafe { AtomicU64::from_ptr(&raw mut (*header).truncated) }.fetch_add(calls, Relaxed);
    }
    true
}

/// Ends the open calls of the calling thread and of those that are gone: the process ends, and what
/// goes on in the others until then nobody knows.
pub fn close(pid: u32, tid: u32) {
    // SAFETY: a process that sums calls up has thread-local storage.
    let thread = unsafe { &*threads::current() };
    count_missing(thread, u64::from(process::take_early_events() / 2));
    for slot in threads::slots() {
        let sheet = slot.window.load(Acquire) as *mut Sheet;
        let of = slot.tid.load(Relaxed);
        // SAFETY: a sheet that a place names stays mapped.
        if sheet.is_null() || unsafe { depth_of((*sheet).top) } == 0 {
            continue;
        }
        // SAFETY: its thread is the caller or gone.
        unsafe {
            if of == tid {
                end_all(sheet, clock::now());
            } else if crate::sys::thread_is_gone(pid, of) {
                end_all(sheet, last_ts(sheet));
            }
        }
    }
}
