//! The ring: events in POSIX shared memory, between traced processes and one drain.
//!
//! # Version 3, the default
//!
//! ```text
//! 0               RingHeader    96 bytes, the header of version 2
//! 96              RingControl   160 bytes
//! 256             free bits     RING_BITMAP_WORDS words of 64, one bit a page, 1 = free
//! 512             RingProcess   RING_PROCESSES of 32 bytes
//! 4096            RingWriter    `slot_count` of 128 bytes
//! pages_offset    pages         `page_count` of `page_bytes`, together `capacity` bytes
//! ```
//!
//! Every number but the capacity follows from the capacity ([`RingLayout::of`]); a header that
//! states another one is refused by both sides.
//!
//! **A page** starts with a [`PageHeader`]; the rest is event slots. Its owner stores events in
//! slot order, `ts` last with release order. A slot with `ts` 0 is unwritten.
//!
//! **Claiming.** A writer looks for a set free bit, and changes [`PageHeader::owner`] from 0 to
//! its slot number plus one with one compare-and-swap, acquire. The bits are a hint only: whoever
//! finds a bit set for an owned page clears it and looks on. The owner clears the bit, fills the
//! header (`pid` last, with release), and puts the page's number plus one into
//! [`RingWriter::page`].
//!
//! **Leaving.** A writer that has filled its page sets [`PAGE_RETIRED`] in `owner`, with release,
//! and claims another. With none free the event is dropped: `emitted` and `dropped[cause]` of its
//! slot grow by one.
//!
//! **Reading.** The drain reads owned pages from `read` on as far as `ts` is not 0 (acquire), at
//! any time, and advances `read`. A retired page that is read to its end is zeroed (events, then
//! header), its `owner` set to 0 with release, its free bit set. A zero slot in a retired page or
//! in one of a dead writer, with something behind it, is a torn event: skipped and counted.
//!
//! **Numbers.** A writer numbers the records it emits (events and markers, dropped ones too).
//! [`PageHeader::first`] is the number of the first record of a page, so a reader finds a loss by
//! arithmetic. What a writer dropped it also tells in the data, by a loss note at the head of its
//! next page ([`crate::NOTE_LOSS`]), and adds to `told`; what is not yet told when it ends
//! (`dropped` minus `told`) the drain tells in its place; likewise that it has left out calls in a pause
//! (`pause_untold`).
//!
//! **Attaching.** Under `lock` (the owner's pid; free is 0; bounded, yielding, taken over when
//! the owner is dead) a process takes a [`RingProcess`] entry and adds 1 to `writers`; the process
//! that finds `t0_ns` 0 fills the lower half of the header. Detaching sets the entry to
//! [`PROCESS_DETACHED`] and takes 1 off; events after that are still stored. The drain frees
//! entries of dead processes, and takes 1 off for each that never detached. A process that finds no
//! free entry attaches without one: whoever is named by a writer and by no entry is attached until it
//! is dead. When nothing is left the drain sets `command` to [`COMMAND_CLOSED`] under the lock and unlinks the name; a process that
//! finds a closed ring makes a new one.
//!
//! A dead process is one whose pid has no process or one of another start time. That can be told in
//! one pid namespace only, so a ring is for the processes and drains of one
//! ([`RingControl::pid_namespace`]): those of another do not use it, and leave it as it is.
//!
//! # Version 2
//!
//! `capacity` bytes behind the 96-byte header are one byte stream of whole events: byte `n` of the
//! stream stands at `n % capacity`. A writer takes `lock` (0 free, test-and-set, bounded and
//! yielding), copies what fits of its batch to `head`, adds the rest to `dropped`, and unlocks. Ours also
//! tells what a thread lost by a loss note in front of its next event.

use crate::RING_CAUSES;

/// First bytes of a ring, zero-filled to eight.
pub const RING_MAGIC: [u8; 8] = *b"TKSHM\0\0\0";
/// Inode of the pid namespace that a machine starts with: [`RingControl::pid_namespace`].
pub const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;
/// The ring of pages.
pub const RING_VERSION: u32 = 3;
/// The ring that is one byte stream (2).
pub const RING_VERSION_STREAM: u32 = 2;
/// How the name of a ring begins that is not whole yet; its maker's pid follows, or in another pid
/// namespace than the machine's first a number that no process has. It gets its own name when it is.
pub const RING_UNBORN_PREFIX: &str = ".callsight-";
/// A ring NAME that a drain has made in advance is named this and NAME, until the first process that
/// wants it gives it that name.
pub const RING_SPARE_PREFIX: &str = ".callsight-spare-";
/// Bytes of [`RingHeader`] (2).
pub const RING_HEADER_BYTES: usize = 96;
/// Ring bytes where nobody said otherwise (2).
pub const RING_DEFAULT_BYTES: u64 = 16 << 20;
/// The smallest ring (2); a smaller size asked for gives the default.
pub const RING_MIN_BYTES: u64 = 4096;

/// Header of the shared memory object, the same in versions 2 and 3.
///
/// From `flags` on it is written once, by the first traced process, and forwarded by the drain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingHeader {
    /// [`RING_MAGIC`].
    pub magic: [u8; 8],
    /// [`RING_VERSION`] or [`RING_VERSION_STREAM`].
    pub version: u32,
    /// Bytes that hold events (and page headers).
    pub capacity: u32,
    /// Traced processes attached.
    pub writers: u32,
    /// Version 2: 1 while held. Version 3: tid of the holder, for attach and detach only.
    pub lock: u32,
    /// Bytes published since the ring was made. Version 3: as counted when pages are left.
    pub head: u64,
    /// Bytes consumed since the ring was made.
    pub tail: u64,
    /// Events dropped. Version 3: as last summed over the slots by the drain or a process that
    /// detached.
    pub dropped: u64,
    /// Bit set of `FLAG_*`.
    pub flags: u32,
    /// Version 2, by the drain: how many of those dropped the notes tell that it has taken out, so that the
    /// next one does not; not more than fits. Version 3: 0.
    pub told: u32,
    /// What to subtract from an address of the executable to get its address in the ELF file.
    pub load_bias: u64,
    /// Ticks a second; 0 when times are in ns.
    pub tick_hz: u64,
    /// Ticks at the opening clock anchor.
    pub t0_ticks: u64,
    /// `CLOCK_MONOTONIC` in ns at the opening clock anchor; 0 until a traced process attached.
    pub t0_ns: u64,
    /// Measured cost of one hook, in ns.
    pub hook_ns: u64,
}

const _: () = assert!(size_of::<RingHeader>() == RING_HEADER_BYTES);

/// Offset of [`RingControl`].
pub const RING_CONTROL_OFFSET: usize = RING_HEADER_BYTES;
/// Bytes of [`RingControl`].
pub const RING_CONTROL_BYTES: usize = 160;
/// Offset of the free bits.
pub const RING_BITMAP_OFFSET: usize = 256;
/// Words of 64 bits in the free bits.
pub const RING_BITMAP_WORDS: usize = 16;
/// Most pages of a ring.
pub const RING_MAX_PAGES: u32 = 1024;
/// Offset of the first [`RingProcess`].
pub const RING_PROCESSES_OFFSET: usize = 512;
/// How many [`RingProcess`] entries there are.
pub const RING_PROCESSES: usize = 112;
/// Bytes of [`RingProcess`].
pub const RING_PROCESS_BYTES: usize = 32;
/// Offset of the first [`RingWriter`].
pub const RING_WRITERS_OFFSET: usize = 4096;
/// Bytes of [`RingWriter`].
pub const RING_WRITER_BYTES: usize = 128;
/// Bytes of [`PageHeader`].
pub const PAGE_HEADER_BYTES: usize = 96;

/// [`RingControl::command`]: store events.
pub const COMMAND_RECORD: u32 = 1;
/// [`RingControl::command`]: claim no page until told to record; the calls made meanwhile are
/// not recorded and are no loss.
pub const COMMAND_PAUSE: u32 = 2;
/// [`RingControl::command`]: claim no page any more.
pub const COMMAND_STOP: u32 = 3;
/// [`RingControl::command`]: this ring is finished; its name may already be another's.
pub const COMMAND_CLOSED: u32 = 4;

/// The words of version 3 behind the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingControl {
    /// Bytes of a page, a power of two.
    pub page_bytes: u32,
    /// Pages.
    pub page_count: u32,
    /// Writer slots.
    pub slot_count: u32,
    /// Offset of the first page, a multiple of 4096.
    pub pages_offset: u32,
    /// One of `COMMAND_*`. Written by the drain.
    pub command: u32,
    /// The drain's pid, 0 for none. Changed by compare-and-swap: one drain at a time.
    pub drain_pid: u32,
    /// The drain's start time (field 22 of `/proc/PID/stat`).
    pub drain_start: u64,
    /// Records dropped by threads that found no slot.
    pub no_slot: u64,
    /// Records emitted (stored or dropped) in slots that were used and given back.
    pub retired_emitted: u64,
    /// `dropped` of slots that were used and given back, by cause.
    pub retired_dropped: [u64; RING_CAUSES],
    /// The drain that made it as a spare ([`RING_SPARE_PREFIX`]); 0 for a ring that a process made.
    pub spare_maker: u32,
    /// Which server has greeted a drain of this ring, so that the next drain knows one that takes blocks
    /// though it is silent just then: a number that the drain makes of host and port; 0 for none.
    pub greeted_by: u32,
    /// The pid namespace of whoever made it: inode of `/proc/self/ns/pid`; 0 where it is not known.
    pub pid_namespace: u64,
    /// 0.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<RingControl>() == RING_CONTROL_BYTES);
const _: () = assert!(RING_CONTROL_OFFSET + RING_CONTROL_BYTES <= RING_BITMAP_OFFSET);
const _: () = assert!(RING_BITMAP_OFFSET + 8 * RING_BITMAP_WORDS <= RING_PROCESSES_OFFSET);
const _: () =
    assert!(RING_PROCESSES_OFFSET + RING_PROCESSES * RING_PROCESS_BYTES <= RING_WRITERS_OFFSET);

/// [`RingProcess::state`]: free.
pub const PROCESS_FREE: u32 = 0;
/// [`RingProcess::state`]: counted in `writers`.
pub const PROCESS_ATTACHED: u32 = 1;
/// [`RingProcess::state`]: ended its recording in order; may still store late events.
pub const PROCESS_DETACHED: u32 = 2;

/// A traced process of this ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingProcess {
    /// One of `PROCESS_FREE`, `PROCESS_ATTACHED`, `PROCESS_DETACHED`.
    pub state: u32,
    /// Process id.
    pub pid: u32,
    /// Start time (field 22 of `/proc/PID/stat`).
    pub start: u64,
    /// 0.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<RingProcess>() == RING_PROCESS_BYTES);

/// A thread of a traced process: who it is, and what it lost.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingWriter {
    /// Process id; 0 when the slot is free. Claimed by compare-and-swap.
    pub pid: u32,
    /// Kernel thread id; 0 while the slot is being set up.
    pub tid: u32,
    /// Start time of the process (field 22 of `/proc/PID/stat`).
    pub start: u64,
    /// Number of the page it writes to, plus one; 0 for none.
    pub page: u32,
    /// 0; while the drain moves a count of a dead writer to the retired ones: the number of its cause
    /// plus one, or [`RING_CAUSES`] plus one for `stored`. What `retired_emitted` and the retired count
    /// of the cause come to stands in `untold_first` and `untold_last` then, so that a next drain can
    /// end the move.
    pub moves: u16,
    /// 1 where its thread has left out calls in a pause and no note in the data tells that yet; else 0.
    pub pause_untold: u16,
    /// Records stored in pages that it has left. With those dropped, how many it has emitted.
    pub stored: u64,
    /// Events dropped, by [`Cause`](crate::Cause).
    pub dropped: [u64; RING_CAUSES],
    /// Of these, how many a loss note in the data has told, over all causes.
    pub told: u64,
    /// Time of the first and of the last event dropped and not told.
    pub untold_first: u64,
    /// See `untold_first`.
    pub untold_last: u64,
    /// Number of the first record of its thread: 0 unless another one of its process had the slot.
    pub begin: u64,
}

const _: () = assert!(size_of::<RingWriter>() == RING_WRITER_BYTES);

/// Bit of [`PageHeader::owner`]: the writer has left the page and stores nothing more in it.
pub const PAGE_RETIRED: u64 = 0x8000_0000_0000_0000;

/// Start of a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageHeader {
    /// 0 for a free page; else the owner's slot number plus one, and [`PAGE_RETIRED`].
    pub owner: u64,
    /// Process id of the writer; 0 while the owner is filling this header.
    pub pid: u32,
    /// Thread id of the writer.
    pub tid: u32,
    /// Start time of the writer's process.
    pub start: u64,
    /// Number of the first record of this page.
    pub first: u64,
    /// What the writer had dropped before this page: `full`, `reentrant`, `fork`, `torn`.
    pub lost_before: [u32; 4],
    /// Bytes of the page that the drain has consumed, this header included; 0 means none.
    pub read: u32,
    /// 0.
    pub pad: u32,
    /// All events the writer had dropped before this page, of any cause.
    pub lost_total: u64,
    /// Number of the first record of this thread: one that takes over the slot of a thread that has
    /// ended goes on with its numbers.
    pub begin: u64,
    /// `lost_total` when this thread began.
    pub begin_lost: u64,
    /// 0.
    pub reserved: [u64; 2],
}

const _: () = assert!(size_of::<PageHeader>() == PAGE_HEADER_BYTES);

/// Where everything is in a version 3 ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Bytes of a page, a power of two of at least 1024.
    pub page_bytes: u32,
    /// Pages, 1 to [`RING_MAX_PAGES`].
    pub page_count: u32,
    /// Writer slots.
    pub slot_count: u32,
    /// Offset of the first page, a multiple of 4096.
    pub pages_offset: u32,
    /// Bytes of all pages: what the header states.
    pub capacity: u32,
    /// Bytes of the whole shared memory object.
    pub total_bytes: u64,
}

impl RingLayout {
    /// The layout of a ring for which `asked` bytes were asked for, or whose header states them.
    ///
    /// 64 pages or more where that leaves a page 1 KiB, and at most [`RING_MAX_PAGES`]: a page of
    /// 16 KiB (510 events) in the default ring is claimed every 5 µs by a thread in a tight loop,
    /// and a quiet thread holds one back from the others. Any size below [`RING_MIN_BYTES`] or
    /// above 4 GiB less a page gives the default (2).
    pub const fn of(asked: u64) -> RingLayout {
        let asked =
            if asked < RING_MIN_BYTES || asked > 0xffff_ffff { RING_DEFAULT_BYTES } else { asked };
        // Shifts instead of divisions: the runtime has no panics, so no division may fail.
        let mut page_bits = 10;
        while page_bits < 14 && (64 << (page_bits + 1)) <= asked {
            page_bits += 1;
        }
        while asked >> page_bits > RING_MAX_PAGES as u64 {
            page_bits += 1;
        }
        let page_bytes = 1u64 << page_bits;
        let page_count = asked >> page_bits;
        let mut slot_count = page_count * 2;
        if slot_count < 64 {
            slot_count = 64;
        }
        let align = if page_bytes > 4096 { page_bytes } else { 4096 };
        let end = RING_WRITERS_OFFSET as u64 + slot_count * RING_WRITER_BYTES as u64;
        let pages_offset = (end + align - 1) & !(align - 1);
        let capacity = page_count << page_bits;
        RingLayout {
            page_bytes: page_bytes as u32,
            page_count: page_count as u32,
            slot_count: slot_count as u32,
            pages_offset: pages_offset as u32,
            capacity: capacity as u32,
            total_bytes: pages_offset + capacity,
        }
    }

    /// Whether a header and control block of this capacity state exactly this layout.
    pub fn agrees_with(&self, header: &RingHeader, control: &RingControl) -> bool {
        header.magic == RING_MAGIC
            && header.version == RING_VERSION
            && header.capacity == self.capacity
            && control.page_bytes == self.page_bytes
            && control.page_count == self.page_count
            && control.slot_count == self.slot_count
            && control.pages_offset == self.pages_offset
    }

    /// Offset of page `index` from the start of the ring.
    pub const fn page_offset(&self, index: u32) -> u64 {
        self.pages_offset as u64 + index as u64 * self.page_bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_a_fixed_point_of_its_capacity() {
        let sizes = (12..32).flat_map(|bits| [1u64 << bits, (1 << bits) + 1, (3 << bits) - 1]);
        for asked in sizes.chain([0, 100, 65536, RING_DEFAULT_BYTES, 0xffff_ffff, 1 << 40]) {
            let layout = RingLayout::of(asked);
            assert_eq!(RingLayout::of(u64::from(layout.capacity)), layout, "{asked} bytes");
            assert!((1..=RING_MAX_PAGES).contains(&layout.page_count));
            assert!(layout.page_bytes.is_power_of_two());
            assert_eq!(u64::from(layout.pages_offset) % u64::from(layout.page_bytes.max(4096)), 0);
            assert_eq!(layout.page_offset(layout.page_count), layout.total_bytes);
        }
    }

    #[test]
    fn the_default_ring_has_1024_pages_of_16_kib() {
        let layout = RingLayout::of(RING_DEFAULT_BYTES);
        assert_eq!((layout.page_count, layout.page_bytes), (1024, 16 << 10));
        assert_eq!(u64::from(layout.capacity), RING_DEFAULT_BYTES);
        assert_eq!(RingLayout::of(100), layout);
        assert_eq!(RingLayout::of(65536).page_bytes, 1024);
    }
}
