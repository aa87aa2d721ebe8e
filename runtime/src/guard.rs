//! Files that are cut short under their maps: a store there raises SIGBUS, and the program would
//! die of what it never did.
//!
//! Where SIGBUS has its default action, a handler of ours puts memory in the file's place and lets
//! the store go on: what it belongs to records nothing more. Any other SIGBUS ends the program as
//! it would have without us. A handler that the program installs wins, whenever it does.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

use crate::{arch, file, process, summary, sys};

/// What a map holds.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Holds {
    /// A ring, of either version.
    Ring = 0,
    /// A segment file.
    Segment = 1,
}

/// A map of ours; `start` is 0 for none.
struct Map {
    start: AtomicUsize,
    bytes: AtomicUsize,
    holds: AtomicU32,
}

/// Rings and segments remembered: more than are mapped unless threads hold on to very old ones.
const REMEMBERED: usize = 128;
static MAPS: [Map; REMEMBERED] = [const {
    Map { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0), holds: AtomicU32::new(0) }
}; REMEMBERED];
/// Whose turn it is when all are in use.
static HAND: AtomicUsize = AtomicUsize::new(0);
/// The handler was installed; the program may have replaced it since.
static INSTALLED: AtomicBool = AtomicBool::new(false);

const SIGBUS: usize = 7;
/// The bit of a signal set.
const SIGBUS_BIT: u64 = 1 << (SIGBUS - 1);
const SIG_DFL: usize = 0;
const SA_SIGINFO: usize = 4;
const SA_ONSTACK: usize = 0x0800_0000;
const SA_RESTART: usize = 0x1000_0000;
const SA_NODEFER: usize = 0x4000_0000;

/// `si_code` of faults of the thread's own instruction: `BUS_ADRALN` to `BUS_MCEERR_AR`.
const OWN_FAULTS: core::ops::RangeInclusive<i32> = 1..=4;

/// The head of the kernel's `siginfo_t` for a fault.
#[repr(C)]
struct FaultInfo {
    signal: i32,
    errno: i32,
    code: i32,
    address: usize,
}

/// A map to protect, from its first use on. One thread at a time: the one that sets the process up,
/// or the holder of the file sink's lock.
pub fn cover(start: usize, bytes: usize, holds: Holds) {
    install();
    let free = MAPS.iter().find(|map| map.start.load(Relaxed) == 0);
    let oldest = || MAPS.get(HAND.fetch_add(1, Relaxed) % REMEMBERED);
    if let Some(map) = free.or_else(oldest) {
        map.start.store(0, Release);
        map.bytes.store(bytes, Release);
        map.holds.store(holds as u32, Release);
        map.start.store(start, Release);
    }
}

/// Unmaps such a map.
pub fn unmap(start: usize, bytes: usize) {
    for map in MAPS.iter().filter(|map| map.start.load(Relaxed) == start) {
        map.start.store(0, Release);
    }
    sys::unmap(start, bytes);
}

/// Takes SIGBUS over where it has its default action.
pub fn install() {
    if INSTALLED.load(Relaxed) || action() != Some(SIG_DFL) {
        return;
    }
    let flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER | arch::SA_RESTORER;
    let handler = on_bus_error as unsafe extern "C" fn(usize, *const FaultInfo) as usize;
    // Every other signal waits: a hook in its handler would meet the fault half mended.
    let (restorer, mask) = (arch::signal_restorer(), !SIGBUS_BIT);
    let ours = sys::SignalAction { handler, flags, restorer, mask };
    INSTALLED.store(sys::set_signal_action(SIGBUS, &ours), Relaxed);
}

/// The handler of SIGBUS.
fn action() -> Option<usize> {
    sys::signal_action(SIGBUS).map(|action| action.handler)
}

/// The signals that work on the data keeps away: all, but for a SIGBUS that is for us. One that
/// comes of a store while it is blocked ends the program, whatever its handler.
pub fn signals_to_block() -> u64 {
    let handler = on_bus_error as unsafe extern "C" fn(usize, *const FaultInfo) as usize;
    let is_ours = INSTALLED.load(Relaxed) && action() == Some(handler);
    if is_ours { !SIGBUS_BIT } else { u64::MAX }
}

/// # Safety
/// Called by the kernel alone.
unsafe extern "C" fn on_bus_error(signal: usize, info: *const FaultInfo) {
    // SAFETY: with `SA_SIGINFO` the kernel passes what it knows; null from a handler that called
    // this one as a plain one.
    let fault = unsafe { info.as_ref() }.filter(|info| OWN_FAULTS.contains(&info.code));
    if fault.is_some_and(|fault| mend(fault.address)) {
        return;
    }
    let default = sys::SignalAction { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    sys::set_signal_action(signal, &default);
    if fault.is_none() {
        // Sent by somebody; a fault comes again by itself.
        sys::send_to_self(signal);
    }
}

/// Puts memory in the place of the file from the page of `address` on, if that is in a map of ours:
/// what the file still has before it stays. Other threads may do the same at the same time, which
/// is as good.
fn mend(address: usize) -> bool {
    let mut found = None;
    if let Some(end) = summary::end_of_map(address) {
        // Its thread sums up in memory that nobody reads; the others have files of their own.
        found = Some(end);
    }
    for map in &MAPS {
        let (start, bytes) = (map.start.load(Acquire), map.bytes.load(Acquire));
        if start == 0 || address.wrapping_sub(start) >= bytes {
            continue;
        }
        found = Some(start + bytes);
        if map.holds.load(Acquire) == Holds::Segment as u32 {
            file::segment_was_cut();
        } else {
            process::turn_off();
        }
    }
    let page = address & !(arch::PAGE_BYTES - 1);
    // One page alone where address space has to be paid for: the next one faults as well.
    found.is_some_and(|end| {
        sys::replace_by_memory(page, end - page) || sys::replace_by_memory(page, arch::PAGE_BYTES)
    })
}
