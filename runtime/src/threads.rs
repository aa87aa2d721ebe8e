//! A thread's own 64 bytes, and the table in which the process keeps its threads.
//!
//! No libc function tells us when a thread ends. The table makes up for it: a new thread looks at
//! a few others with a harmless signal and takes over the place of one that is gone, with what is
//! left of its window.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use crate::arch;
use crate::sys;

/// Most threads that have a place in the table at a time.
const SLOTS: usize = 4096;
/// How many others a new thread looks at: one is enough when threads come one after the other.
const LOOK_AT: u32 = 4;

/// [`Thread::flags`]: notes that this thread still owes its stream.
pub const OWES_PROCESS: u32 = 1;
/// See [`OWES_PROCESS`].
pub const OWES_NAME: u32 = 2;
/// [`Thread::flags`]: `TRACE_THREADS` does not want this thread.
pub const UNWANTED: u32 = 4;

/// [`Thread::flags`]: what it skipped came before the process could store anything.
pub const EARLY: u32 = 8;
/// [`Thread::flags`]: it tells notes, which are stored while recording is paused too.
pub const TELLS: u32 = 16;

/// Largest [`crate::process::generation`] and the bits of one.
pub const GENERATIONS: u32 = 0x00ff_ffff;
/// [`Thread::generation`]: the thread has left out calls in a pause. Until its data tells that where it
/// goes on, no hook of the thread stores directly.
pub const LEFT_OUT: u32 = 1 << 24;

/// What a thread has for itself. Zero until its first hook; libc may zero it again after an early
/// one (before `main`), and it is copied into a forked child: `generation` tells.
#[repr(C)]
pub struct Thread {
    /// The next slot; at a window boundary (or 0) there is none.
    pub cursor: usize,
    /// Bits 0 to 31 the tid, the rest 0: the last word of an enter without its frame.
    pub word: u64,
    /// [`crate::process::generation`] of the process this block was set up for, and [`LEFT_OUT`].
    pub generation: u32,
    /// `OWES_*`, [`UNWANTED`], [`EARLY`], [`TELLS`].
    pub flags: u32,
    /// Its place in the table; null when the table was full.
    pub slot: *mut Slot,
    /// Windows opened so far.
    pub windows: u32,
    /// Hooks that were not recorded because `TRACE_THREADS` did not want the thread's name, or
    /// because they came too early.
    pub skipped: u32,
    /// Time of the last clock anchor this thread put into the data.
    pub anchored: u64,
    /// Where the count stands of what it loses in a sandbox; 0 for none. See [`crate::sandbox`].
    pub sandbox_word: usize,
    /// That count.
    pub sandbox_lost: AtomicU64,
}

const _: () = assert!(size_of::<Thread>() == 64);

impl Thread {
    /// Kernel thread id.
    pub fn tid(&self) -> u32 {
        if cfg!(target_endian = "big") { (self.word >> 32) as u32 } else { self.word as u32 }
    }

    /// Whether this block was set up for the process of that generation.
    pub fn is_of(&self, generation: u32) -> bool {
        self.generation & GENERATIONS == generation
    }

    /// Sets the block up for the process of that generation; what it has left out stays.
    pub fn set_up_for(&mut self, generation: u32) {
        self.generation = generation | self.generation & LEFT_OUT;
    }

    /// Leaves out a call in a pause.
    pub fn leave_out(&mut self) {
        self.generation |= LEFT_OUT;
    }

    /// Whether it has left out calls that its data does not tell of.
    pub fn has_left_out(&self) -> bool {
        self.generation & LEFT_OUT != 0
    }

    /// Its data tells now of what it has left out.
    pub fn told_pause(&mut self) {
        self.generation &= !LEFT_OUT;
    }
}

/// A thread's place in the table.
pub struct Slot {
    /// Kernel thread id, 0 while never used.
    pub tid: AtomicU32,
    /// Its writer slot in the ring plus one; 0 for none.
    pub ring_slot: AtomicU32,
    /// Address of that slot.
    pub ring_writer: AtomicUsize,
    /// All that slot has dropped, and, while the thread has no page, all it has stored: else its page's
    /// header tells that. The number of a page's first record is their sum: read once, both are right
    /// whatever a signal handler adds.
    pub ring_lost: AtomicU64,
    /// See `ring_lost`.
    pub ring_stored: AtomicU64,
    /// Of `ring_lost`, what its notes tell, with one that is being written.
    pub ring_told: AtomicU64,
    /// Number of its first record there, and what that slot had dropped before.
    pub ring_begin: AtomicU64,
    /// See `ring_begin`.
    pub ring_begin_lost: AtomicU64,
    /// Start of the window it writes to; 0 for none.
    pub window: AtomicUsize,
    /// One more than the events its window held when its segment was rotated away; 0 before.
    pub evicted: AtomicU32,
    /// Events it lost in a sink that has no slot of its own for that.
    pub lost: AtomicU64,
    /// Of these, how many the data tells.
    pub told: AtomicU64,
    /// Time of the first event lost and not told.
    pub first_lost: AtomicU64,
    /// Time of the last event lost.
    pub last_lost: AtomicU64,
    /// Where the count of its loss note stands in a segment file; 0 for none.
    pub loss_word: AtomicUsize,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        tid: AtomicU32::new(0),
        ring_slot: AtomicU32::new(0),
        ring_writer: AtomicUsize::new(0),
        ring_lost: AtomicU64::new(0),
        ring_stored: AtomicU64::new(0),
        ring_told: AtomicU64::new(0),
        ring_begin: AtomicU64::new(0),
        ring_begin_lost: AtomicU64::new(0),
        window: AtomicUsize::new(0),
        evicted: AtomicU32::new(0),
        lost: AtomicU64::new(0),
        told: AtomicU64::new(0),
        first_lost: AtomicU64::new(0),
        last_lost: AtomicU64::new(0),
        loss_word: AtomicUsize::new(0),
    }
}; SLOTS];
/// How many places were ever used.
static USED: AtomicU32 = AtomicU32::new(0);
/// Where the next new thread starts to look.
static HAND: AtomicU32 = AtomicU32::new(0);

/// The calling thread's block.
#[inline(always)]
pub fn current() -> *mut Thread {
    arch::tls_block() as *mut Thread
}

/// The places in use or used before.
pub fn slots() -> impl Iterator<Item = &'static Slot> {
    TABLE.iter().take(USED.load(Acquire) as usize)
}

/// How many threads share what is limited.
pub fn count() -> u32 {
    USED.load(Relaxed).max(1)
}

/// Whether a thread other than `tid` that has a place still runs.
pub fn others_live(pid: u32, tid: u32) -> bool {
    slots().any(|slot| {
        let other = slot.tid.load(Acquire);
        other != 0 && other != tid && !sys::thread_is_gone(pid, other)
    })
}

/// Gives `tid` a place: that of a thread that is gone, else a new one; `None` when all are taken.
pub fn take_slot(pid: u32, tid: u32) -> Option<&'static Slot> {
    let used = USED.load(Acquire);
    for _ in 0..LOOK_AT.min(used) {
        let index = HAND.fetch_add(1, Relaxed).checked_rem(used).unwrap_or(0);
        let Some(slot) = TABLE.get(index as usize) else { continue };
        let other = slot.tid.load(Acquire);
        // The kernel gives a tid again only when its thread is gone.
        let gone = other != 0 && (other == tid || sys::thread_is_gone(pid, other));
        if gone && slot.tid.compare_exchange(other, tid, AcqRel, Relaxed).is_ok() {
            return Some(slot);
        }
    }
    let mut index = used;
    while (index as usize) < SLOTS {
        match USED.compare_exchange_weak(index, index + 1, AcqRel, Acquire) {
            Ok(_) => {
                let slot = TABLE.get(index as usize)?;
                slot.tid.store(tid, Release);
                return Some(slot);
            }
            Err(now) => index = now,
        }
    }
    None
}

/// A forked child has one thread and none of the parent's places.
pub fn after_fork() {
    for slot in slots() {
        slot.tid.store(0, Relaxed);
        slot.ring_slot.store(0, Relaxed);
        slot.ring_writer.store(0, Relaxed);
        slot.window.store(0, Relaxed);
        slot.evicted.store(0, Relaxed);
        slot.lost.store(0, Relaxed);
        slot.told.store(0, Relaxed);
        slot.first_lost.store(0, Relaxed);
        slot.loss_word.store(0, Relaxed);
    }
    USED.store(0, Release);
}
