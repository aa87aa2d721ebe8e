//! The words that both sides share: `RingHeader`, `RingControl`, `RingWriter`, `PageHeader`, as far
//! as pages go. Of the fields that name a writer only the pid is here, which is stored last.

use callsight_format::PAGE_RETIRED;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Slots of a page.
pub const SLOTS: usize = 2;

/// A page of slots.
#[derive(Default)]
pub struct Page {
    pub owner: Word,
    pub pid: AtomicU32,
    pub first: AtomicU64,
    pub lost_total: AtomicU64,
    /// Slots that the drain has consumed.
    pub read: AtomicU32,
    pub slots: [Slot; SLOTS],
}

/// An event: what it says may be read and written by one side at a time, and loom tells if it is not.
#[derive(Default)]
pub struct Slot {
    pub ts: AtomicU64,
    pub says: UnsafeCell<u64>,
}

impl Slot {
    /// Nobody else has the slot; loom finds out if somebody does.
    pub fn write(&self, says: u64) {
        // SAFETY: loom checks that no other thread is at it.
        self.says.with_mut(|place| unsafe { *place = says });
    }

    /// As [`Slot::write`].
    pub fn read(&self) -> u64 {
        // SAFETY: loom checks that no other thread is writing it.
        self.says.with(|place| unsafe { *place })
    }
}

/// A writer's slot of the ring.
#[derive(Default)]
pub struct RingWriter {
    pub page: AtomicU32,
    pub stored: AtomicU64,
    /// Of one cause: full.
    pub dropped: AtomicU64,
    dead: AtomicBool,
}

impl RingWriter {
    /// Its process ends. The kernel says so to whoever asks, and all that it stored is stored.
    pub fn die(&self) {
        self.dead.store(true, Release);
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Acquire)
    }
}

/// A 64-bit word with what both sides do to it.
#[derive(Default)]
pub struct Word(pub AtomicU64);

impl std::ops::Deref for Word {
    type Target = AtomicU64;
    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

impl Word {
    /// When no other thread is left.
    pub fn unsync_load(&self) -> u64 {
        self.0.load(Acquire)
    }
}

/// The ring.
pub struct Ring {
    pub free: Word,
    pub pages: Vec<Page>,
    pub writers: Vec<RingWriter>,
}

impl Ring {
    /// With all pages free.
    pub fn new(pages: usize, writers: usize) -> Ring {
        Ring {
            free: Word(AtomicU64::new((1 << pages) - 1)),
            pages: (0..pages).map(|_| Page::default()).collect(),
            writers: (0..writers).map(|_| RingWriter::default()).collect(),
        }
    }
}

/// `owner` of a page of this slot.
pub fn owner_of(slot: usize) -> u64 {
    slot as u64 + 1
}

/// Whether the writer of a page has left it.
pub fn is_retired(owner: u64) -> bool {
    owner & PAGE_RETIRED != 0
}
