//! The open calls of a thread: how one begins, how one ends, and what is added to its function then.
//!
//! Every function takes the sheet of the calling thread, or one whose thread is gone.

use core::mem::offset_of;
use core::sync::atomic::{Ordering::SeqCst, compiler_fence};

use callsight_format::{SUMMARY_BUCKETS, SummaryRecord};

use super::sheet::{Frame, NO_FUNCTION, STACK, Sheet};
use crate::{arch, clock};

/// How far apart two frames of one stack may be for the older one to count as gone: beyond that the
/// thread is on another stack (a signal's, a coroutine's).
const NEAR_BYTES: usize = 256 << 10;
/// How many calls of another stack are looked through.
const LOOKED_AT: usize = 64;
/// More frames of one function in one place than a compiler makes.
const MOST_INLINED: usize = 16;
/// In [`Sheet::top`], one change.
const CHANGE: u64 = 1 << 32;

pub fn depth_of(top: u64) -> usize {
    top as u32 as usize
}

/// Changes [`Sheet::top`] if nobody has; whether it did. What is written before stands when a handler
/// sees the change, and not what is written after.
#[inline(always)]
unsafe fn change(sheet: *mut Sheet, old: u64, new: u64) -> bool {
    compiler_fence(SeqCst);
    // SAFETY: the caller's sheet is its own.
    let found =
        unsafe { arch::swap_if_same((&raw mut (*sheet).top).cast(), old as usize, new as usize) };
    compiler_fence(SeqCst);
    found == old as usize
}

#[inline(always)]
unsafe fn top_of(sheet: *mut Sheet) -> u64 {
    // SAFETY: the caller's sheet is its own; handlers of signals change it too, hence volatile.
    unsafe { (&raw const (*sheet).top).read_volatile() }
}

#[inline(always)]
unsafe fn frame(sheet: *mut Sheet, depth: usize) -> *mut Frame {
    // SAFETY: depths are at most STACK, and there is one frame more.
    unsafe { (&raw mut (*sheet).frames).cast::<Frame>().add(depth) }
}

/// A call to be.
#[derive(Clone, Copy)]
pub struct Call {
    pub func: usize,
    pub site: usize,
    pub stack_pointer: usize,
    /// Of its function.
    pub number: u32,
}

/// A call begins inside the one on top. `false` when that has to be found out, or when a signal
/// handler came in between.
#[inline(always)]
pub unsafe fn enter(sheet: *mut Sheet, call: Call, ts: u64) -> bool {
    // SAFETY: the sheet is this thread's, and what is in it is addressed by checked numbers.
    unsafe {
        let top = top_of(sheet);
        if depth_of(top) >= (*sheet).limit {
            return false;
        }
        let last = frame(sheet, depth_of(top));
        let deeper = (*last).stack_pointer.wrapping_sub(call.stack_pointer);
        let is_inside =
            deeper.wrapping_sub(1) < NEAR_BYTES - 1 || deeper == 0 && (*last).site == call.site;
        is_inside && push(sheet, top, call, ts)
    }
}

/// `false` when a signal handler came in between.
#[inline(always)]
unsafe fn push(sheet: *mut Sheet, top: u64, call: Call, ts: u64) -> bool {
    let Call { func, site, stack_pointer, number } = call;
    // SAFETY: as for `enter`; the caller has seen that there is a frame.
    unsafe {
        let open = (&raw mut (*sheet).open).cast::<u8>().add(number as usize);
        let outermost = *open == 0;
        let call = Frame { func, site, stack_pointer, entered: ts, children: 0, number, outermost };
        frame(sheet, depth_of(top) + 1).write(call);
        if !change(sheet, top, top.wrapping_add(CHANGE + 1)) {
            return false;
        }
        *open = 1;
        true
    }
}

/// The same as [`enter`] whatever is open. `false` when there is no frame for the call.
pub unsafe fn enter_slowly(sheet: *mut Sheet, call: Call) -> bool {
    // SAFETY: as for `enter`.
    unsafe {
        let last = last_ts(sheet);
        loop {
            let top = top_of(sheet);
            let depth = depth_of(top);
            let kept = calls_kept(sheet, depth, call);
            if kept < depth {
                end_top(sheet, top, last);
            } else if depth >= STACK {
                if change(sheet, top, top.wrapping_add(CHANGE + 1)) {
                    return false;
                }
            } else {
                if depth == 0 {
                    // The next call from here is inside.
                    (*frame(sheet, 0)).stack_pointer = call.stack_pointer + 1;
                }
                (*sheet).limit = (*sheet).limit.max(2 * depth).min(STACK);
                if push(sheet, top, call, clock::now()) {
                    return true;
                }
            }
        }
    }
}

/// How many calls are still open when `call` begins: those above are over that lie deeper in the
/// same stack, or at the same place and were called from elsewhere. What shares place and site is
/// inlined, unless it is one function again and again.
unsafe fn calls_kept(sheet: *mut Sheet, depth: usize, call: Call) -> usize {
    // SAFETY: as for `enter`.
    let at = |depth: usize| unsafe { *frame(sheet, depth) };
    let here = call.stack_pointer;
    if depth > STACK {
        // Those without a frame are over when the last one with a frame is.
        return if here > at(STACK).stack_pointer { STACK } else { depth };
    }
    let is_near = |open: &Frame| open.stack_pointer.abs_diff(here) < NEAR_BYTES;
    let is_over = |open: &Frame| {
        let is_elsewhere = open.stack_pointer == here && open.site != call.site;
        is_near(open) && (open.stack_pointer < here || is_elsewhere)
    };
    // Calls of another stack may stand above: of a signal handler that jumped out of it.
    let lowest = depth.saturating_sub(LOOKED_AT);
    let nearest = (lowest + 1..=depth).rev().find(|&depth| is_near(&at(depth)));
    let Some(mut kept) = nearest else { return depth };
    if !is_over(&at(kept)) {
        let is_again = |open: &Frame| {
            (open.stack_pointer, open.site, open.func) == (here, call.site, call.func)
        };
        let same = (1..=depth).rev().take_while(|&depth| is_again(&at(depth))).count();
        // No compiler inlines a function that often into itself: `longjmp` ended them all.
        return if same >= MOST_INLINED { depth - same } else { depth };
    }
    while kept > 0 && is_over(&at(kept)) {
        kept -= 1;
    }
    kept
}

/// The call on top ends, if it is one of the function at `func`. `false` when it is not, or when a
/// signal handler came in between.
#[inline(always)]
pub unsafe fn exit(sheet: *mut Sheet, func: usize, ts: u64) -> bool {
    // SAFETY: as for `enter`.
    unsafe {
        let top = top_of(sheet);
        let depth = depth_of(top);
        // Never that of the frame below the first one: its function is none.
        if depth > STACK || (*frame(sheet, depth)).func != func || !end_top(sheet, top, ts) {
            return false;
        }
        let span = ts.wrapping_sub((*sheet).first_ts);
        (&raw mut (*Sheet::header(sheet)).span).write_volatile(span);
        true
    }
}

/// The same as [`exit`] whatever is open.
pub unsafe fn exit_slowly(sheet: *mut Sheet, func: usize, stack_pointer: usize) {
    // SAFETY: as for `enter`.
    unsafe {
        let last = last_ts(sheet);
        while !exit(sheet, func, clock::now()) {
            let top = top_of(sheet);
            let depth = depth_of(top);
            if depth > STACK {
                let is_without_frame = stack_pointer <= (*frame(sheet, STACK)).stack_pointer;
                if end_top(sheet, top, last) && is_without_frame {
                    return;
                }
            } else if (*frame(sheet, depth)).func != func {
                if !is_open(sheet, depth, func) {
                    // Its enter was before a fork, or before the recording.
                    return;
                }
                end_top(sheet, top, last);
            }
        }
    }
}

unsafe fn is_open(sheet: *mut Sheet, depth: usize, func: usize) -> bool {
    // SAFETY: as for `enter`.
    unsafe {
        let may_be = Sheet::find(sheet, func).is_none_or(|number| {
            *(&raw const (*sheet).open).cast::<u8>().add(number as usize) != 0
        });
        may_be && (1..=depth).any(|at| (*frame(sheet, at)).func == func)
    }
}

/// Ends the call on top at `ts`; `false` when a signal handler came in between.
#[inline(always)]
unsafe fn end_top(sheet: *mut Sheet, top: u64, ts: u64) -> bool {
    // SAFETY: as for `enter`.
    unsafe {
        let depth = depth_of(top);
        if depth > STACK {
            return change(sheet, top, top.wrapping_add(CHANGE - 1));
        }
        let Frame { entered, children, number, outermost, .. } = *frame(sheet, depth);
        let total = ts.saturating_sub(entered);
        let own = total.saturating_sub(children);
        if outermost {
            // First, so that the calls of a handler count their own time from here on.
            *(&raw mut (*sheet).open).cast::<u8>().add(number as usize) = 0;
        }
        if !change(sheet, top, top.wrapping_add(CHANGE - 1)) {
            return false;
        }
        let caller = frame(sheet, depth - 1).cast::<u8>();
        arch::add::<{ offset_of!(Frame, children) }>(caller, total);
        if number != NO_FUNCTION {
            add_time(sheet, number, [total, own, if outermost { total } else { 0 }]);
        }
        true
    }
}

/// Adds the time of a call to its function: all of it, its own, and what counts of all functions.
#[inline(always)]
unsafe fn add_time(sheet: *mut Sheet, number: u32, [total, own, inclusive]: [u64; 3]) {
    // SAFETY: as for `enter`.
    unsafe {
        let record = Sheet::record(sheet, number);
        let bucket = record.cast::<u32>().add(bucket_of(total));
        arch::count::<{ offset_of!(SummaryRecord, histogram) }>(bucket.cast());
        arch::add::<{ offset_of!(SummaryRecord, own) }>(record.cast(), own);
        arch::add::<{ offset_of!(SummaryRecord, inclusive) }>(record.cast(), inclusive);
        let sampled = (&raw mut (*sheet).sampled).cast::<u8>().add(number as usize);
        let is_first = *sampled == 0;
        *sampled = 1;
        let (min, max) = (&raw mut (*record).min, &raw mut (*record).max);
        replace_if(min, total, |old| total < old || is_first);
        replace_if(max, total, |old| total > old);
    }
}

/// What `callsight_format::summary_bucket` says, in half as many instructions.
#[inline(always)]
fn bucket_of(total: u64) -> usize {
    let top_bit = arch::top_bit(total | 4);
    (4 * top_bit - 8 + (total >> (top_bit - 2)) as usize).min(SUMMARY_BUCKETS - 1)
}

#[inline(always)]
unsafe fn replace_if(place: *mut u64, new: u64, better: impl Fn(u64) -> bool) {
    loop {
        // SAFETY: a number of a record of this thread.
        unsafe {
            let old = place.read_volatile();
            let place = place.cast::<usize>();
            if !better(old) || arch::swap_if_same(place, old as usize, new as usize) == old as usize
            {
                return;
            }
        }
    }
}

/// Ends all open calls.
pub unsafe fn end_all(sheet: *mut Sheet, ts: u64) {
    // SAFETY: the caller is alone with the sheet.
    unsafe {
        while depth_of(top_of(sheet)) > 0 {
            end_top(sheet, top_of(sheet), ts);
        }
    }
}

/// The time of the last event in the call on top: its enter, or the exit of one that it made.
pub unsafe fn last_ts(sheet: *mut Sheet) -> u64 {
    // SAFETY: as for `enter`.
    unsafe {
        let last_exit = (*sheet).first_ts.wrapping_add((*Sheet::header(sheet)).span);
        last_exit.max((*frame(sheet, depth_of(top_of(sheet)).min(STACK))).entered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_the_one_that_the_format_says() {
        let near_powers =
            (0..64).flat_map(|bit| (0..4).map(move |less| (1u64 << bit).wrapping_sub(less)));
        let quarters = (3..62).flat_map(|bit| (5..8).map(move |part| (part << bit) / 4));
        for total in (0..5000).chain(near_powers).chain(quarters).chain([u64::MAX]) {
            assert_eq!(bucket_of(total), callsight_format::summary_bucket(total), "{total}");
        }
    }
}
