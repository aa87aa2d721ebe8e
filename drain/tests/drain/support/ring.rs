//! A ring filled the way a traced process fills it, step by step.

use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use callsight_format::{
    ByteOrder, COMMAND_RECORD, Cause, EVENT_BYTES, Event, KIND_MARKER, LossNote, NOTE_LOSS,
    PAGE_HEADER_BYTES, PAGE_RETIRED, PROCESS_ATTACHED, PROCESS_DETACHED, PageHeader,
    RING_BITMAP_OFFSET, RING_CAUSES, RING_CONTROL_OFFSET, RING_HEADER_BYTES, RING_MAGIC,
    RING_PROCESS_BYTES, RING_PROCESSES_OFFSET, RING_VERSION, RING_VERSION_STREAM,
    RING_WRITER_BYTES, RING_WRITERS_OFFSET, RingControl, RingHeader, RingLayout, RingProcess,
    RingWriter, note_records, note_words,
};

use super::Process;

/// A mapped ring in `/dev/shm`. The name goes with it.
pub struct Ring {
    pub name: String,
    pub layout: RingLayout,
    file: File,
    map: *mut u8,
    map_bytes: usize,
}

// SAFETY: the map is only reached through atomics, and lives as long as the ring.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// An empty version 3 ring, as the first traced process makes it.
    pub fn new(name: &str, asked: u64) -> Ring {
        let layout = RingLayout::of(asked);
        let ring = Ring::make(name, layout, layout.total_bytes);
        ring.store_header(RING_VERSION, layout.capacity);
        let control = [
            (offset_of!(RingControl, page_bytes), layout.page_bytes),
            (offset_of!(RingControl, page_count), layout.page_count),
            (offset_of!(RingControl, slot_count), layout.slot_count),
            (offset_of!(RingControl, pages_offset), layout.pages_offset),
            (offset_of!(RingControl, command), COMMAND_RECORD),
        ];
        for (at, value) in control {
            ring.u32(RING_CONTROL_OFFSET + at).store(value, Relaxed);
        }
        for page in 0..layout.page_count {
            ring.free_bits(page).fetch_or(1 << (page % 64), Relaxed);
        }
        ring
    }

    /// An empty version 2 ring.
    pub fn of_bytes(name: &str, capacity: u32) -> Ring {
        let total = RING_HEADER_BYTES as u64 + u64::from(capacity);
        let ring = Ring::make(name, RingLayout::of(0), total);
        ring.store_header(RING_VERSION_STREAM, capacity);
        ring
    }

    fn make(name: &str, layout: RingLayout, total_bytes: u64) -> Ring {
        let name = format!("/callsight-test-{}-{name}", std::process::id());
        let path = PathBuf::from(format!("/dev/shm{name}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).expect("make a ring");
        file.set_len(total_bytes).expect("size a ring");
        let map_bytes = total_bytes as usize;
        // SAFETY: a new mapping of a file of that size; nothing is replaced.
        let map = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                map_bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED, "map a ring");
        Ring { name, layout, file, map: map.cast(), map_bytes }
    }

    fn store_header(&self, version: u32, capacity: u32) {
        self.u32(offset_of!(RingHeader, version)).store(version, Relaxed);
        self.u32(offset_of!(RingHeader, capacity)).store(capacity, Relaxed);
        self.u64(0).store(u64::from_ne_bytes(RING_MAGIC), Release);
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm{}", self.name))
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.map_bytes);
        // SAFETY: aligned and inside the map, which outlives `self`; all access is atomic.
        unsafe { AtomicU32::from_ptr(self.map.add(at).cast()) }
    }

    pub fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.map_bytes);
        // SAFETY: aligned and inside the map, which outlives `self`; all access is atomic.
        unsafe { AtomicU64::from_ptr(self.map.add(at).cast()) }
    }

    pub fn bytes(&self) -> usize {
        self.map_bytes
    }

    pub fn free_bits(&self, page: u32) -> &AtomicU64 {
        self.u64(RING_BITMAP_OFFSET + 8 * (page / 64) as usize)
    }

    pub fn control(&self, at: usize) -> &AtomicU64 {
        self.u64(RING_CONTROL_OFFSET + at)
    }

    /// As if it had been made in this pid namespace.
    pub fn made_in(&self, pid_namespace: u64) {
        self.control(offset_of!(RingControl, pid_namespace)).store(pid_namespace, Relaxed);
    }

    pub fn process(&self, entry: usize) -> usize {
        RING_PROCESSES_OFFSET + entry * RING_PROCESS_BYTES
    }

    pub fn page(&self, page: u32) -> usize {
        self.layout.page_offset(page) as usize
    }

    /// Writes the lower half of the header: what the times mean.
    pub fn begin(&self) {
        let words = [
            (offset_of!(RingHeader, load_bias), 0x5555_0000),
            (offset_of!(RingHeader, tick_hz), 1_000_000_000),
            (offset_of!(RingHeader, t0_ticks), 77),
            (offset_of!(RingHeader, hook_ns), 12),
        ];
        for (at, value) in words {
            self.u64(at).store(value, Relaxed);
        }
        self.u32(offset_of!(RingHeader, flags)).store(1, Relaxed);
        self.u64(offset_of!(RingHeader, t0_ns)).store(88, Release);
    }

    /// Puts a process into entry `entry`.
    pub fn attach(&self, entry: usize, process: Process) {
        let at = self.process(entry);
        self.u32(at + offset_of!(RingProcess, pid)).store(process.pid, Relaxed);
        self.u64(at + offset_of!(RingProcess, start)).store(process.start, Relaxed);
        self.u32(at + offset_of!(RingProcess, state)).store(PROCESS_ATTACHED, Release);
        self.writers().fetch_add(1, AcqRel);
        self.begin();
    }

    pub fn detach(&self, entry: usize) {
        let state = self.process(entry) + offset_of!(RingProcess, state);
        self.u32(state).store(PROCESS_DETACHED, Release);
        self.writers().fetch_sub(1, AcqRel);
    }

    pub fn writers(&self) -> &AtomicU32 {
        self.u32(offset_of!(RingHeader, writers))
    }

    /// Gives up the mapping, as the end of a process does; the name stays for the drain.
    pub fn unmap(mut self) -> PathBuf {
        let path = self.path();
        self.release();
        self.name.clear();
        path
    }

    fn release(&mut self) {
        // SAFETY: made by `make` with this size, and not used after this.
        unsafe { libc::munmap(self.map.cast(), self.map_bytes) };
        self.map_bytes = 0;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = std::fs::remove_file(self.path());
            self.release();
        }
    }
}

/// One thread of a traced process.
pub struct Writer<'ring> {
    ring: &'ring Ring,
    process: Process,
    pub tid: u32,
    slot: u32,
    page: Option<u32>,
    next_slot: u32,
    ts: u64,
    /// Number of the first record of its thread, and what the slot had dropped before.
    begin: u64,
    begin_lost: u64,
    /// Whether it keeps a full page until it has the next one, as some writers do.
    pub keeps_full_page: bool,
    /// Whether it tells its losses at the head of its next page, as the runtime's writers do.
    pub tells_losses: bool,
}

impl<'ring> Writer<'ring> {
    pub fn new(ring: &'ring Ring, process: Process, tid: u32) -> Writer<'ring> {
        let claims = |slot: &u32| {
            let pid = ring.u32(writer_at(*slot) + offset_of!(RingWriter, pid));
            pid.compare_exchange(0, process.pid, AcqRel, Acquire).is_ok()
        };
        let slot = (0..ring.layout.slot_count).find(claims).expect("a free slot");
        let at = writer_at(slot);
        ring.u64(at + offset_of!(RingWriter, start)).store(process.start, Relaxed);
        ring.u32(at + offset_of!(RingWriter, tid)).store(tid, Release);
        Writer {
            ring,
            process,
            tid,
            slot,
            page: None,
            next_slot: 0,
            ts: 1000,
            begin: 0,
            begin_lost: 0,
            keeps_full_page: false,
            tells_losses: false,
        }
    }

    fn field(&self, at: usize) -> &AtomicU64 {
        self.ring.u64(writer_at(self.slot) + at)
    }

    fn stored(&self) -> &AtomicU64 {
        self.field(offset_of!(RingWriter, stored))
    }

    fn dropped(&self, cause: Cause) -> &AtomicU64 {
        self.field(offset_of!(RingWriter, dropped) + 8 * cause as usize)
    }

    fn slots(&self) -> u32 {
        (self.ring.layout.page_bytes - PAGE_HEADER_BYTES as u32) / EVENT_BYTES as u32
    }

    /// Claims the lowest free page; whether there was one.
    pub fn claim(&mut self) -> bool {
        (0..self.ring.layout.page_count).any(|page| self.claim_page(page))
    }

    /// Claims this page, if it is free, and leaves a page it still has.
    pub fn claim_page(&mut self, page: u32) -> bool {
        let at = self.ring.page(page);
        let owner = self.ring.u64(at + offset_of!(PageHeader, owner));
        if owner.compare_exchange(0, u64::from(self.slot) + 1, AcqRel, Acquire).is_err() {
            return false;
        }
        self.ring.free_bits(page).fetch_and(!(1 << (page % 64)), AcqRel);
        self.fill_header(at);
        self.retire();
        let current = writer_at(self.slot) + offset_of!(RingWriter, page);
        self.ring.u32(current).store(page + 1, Release);
        self.page = Some(page);
        self.next_slot = 0;
        true
    }

    fn fill_header(&self, at: usize) {
        let causes = [Cause::Full, Cause::Reentrant, Cause::Fork, Cause::Torn];
        for (index, cause) in causes.into_iter().enumerate() {
            let lost = self.dropped(cause).load(Relaxed) as u32;
            let lost_before = at + offset_of!(PageHeader, lost_before) + 4 * index;
            self.ring.u32(lost_before).store(lost, Relaxed);
        }
        self.ring.u32(at + offset_of!(PageHeader, tid)).store(self.tid, Relaxed);
        self.ring.u64(at + offset_of!(PageHeader, start)).store(self.process.start, Relaxed);
        self.ring.u64(at + offset_of!(PageHeader, lost_total)).store(self.lost(), Relaxed);
        let in_page = self.page.map_or(0, |_| u64::from(self.next_slot));
        let first = self.stored().load(Relaxed) + self.lost() + in_page;
        self.ring.u64(at + offset_of!(PageHeader, first)).store(first, Relaxed);
        self.ring.u64(at + offset_of!(PageHeader, begin)).store(self.begin, Relaxed);
        self.ring.u64(at + offset_of!(PageHeader, begin_lost)).store(self.begin_lost, Relaxed);
        self.ring.u32(at + offset_of!(PageHeader, pid)).store(self.process.pid, Release);
    }

    /// Leaves the page it is in.
    pub fn retire(&mut self) {
        let Some(page) = self.page.take() else { return };
        self.stored().fetch_add(u64::from(self.next_slot), AcqRel);
        let owner = self.ring.u64(self.ring.page(page) + offset_of!(PageHeader, owner));
        owner.fetch_or(PAGE_RETIRED, AcqRel);
        let current = writer_at(self.slot) + offset_of!(RingWriter, page);
        self.ring.u32(current).store(0, Release);
    }

    /// Its thread has ended, and thread `tid` has its slot from now on.
    pub fn hand_over(&mut self, tid: u32) {
        self.retire();
        let lost = self.lost();
        let begin = self.stored().load(Relaxed) + lost;
        (self.begin, self.begin_lost, self.tid) = (begin, lost, tid);
        self.field(offset_of!(RingWriter, begin)).store(begin, Relaxed);
        let tid_at = writer_at(self.slot) + offset_of!(RingWriter, tid);
        self.ring.u32(tid_at).store(tid, Release);
    }

    /// Takes the next slot without storing; `None` (and a drop) when there is no page for it.
    pub fn reserve(&mut self) -> Option<usize> {
        let full = self.page.is_some() && self.next_slot == self.slots();
        if full && !self.keeps_full_page {
            self.retire();
        }
        if full || self.page.is_none() {
            if !self.claim() {
                self.dropped(Cause::Full).fetch_add(1, AcqRel);
                return None;
            }
            if self.tells_losses {
                self.tell_losses();
            }
        }
        Some(self.next_place())
    }

    /// The next slot of its page, which has one.
    fn next_place(&mut self) -> usize {
        let slot = self.next_slot;
        self.next_slot += 1;
        let page = self.ring.page(self.page.expect("claimed"));
        page + PAGE_HEADER_BYTES + slot as usize * EVENT_BYTES
    }

    /// All it has dropped so far.
    pub fn lost(&self) -> u64 {
        (0..RING_CAUSES as u32)
            .filter_map(Cause::from_number)
            .map(|cause| self.dropped(cause).load(Relaxed))
            .sum()
    }

    /// Leaves a loss note in the page it has just claimed.
    fn tell_losses(&mut self) {
        let told = offset_of!(RingWriter, told);
        let events = self.lost() - self.field(told).load(Relaxed);
        if events == 0 {
            return;
        }
        let note = LossNote { cause: Cause::Full as u32, events, first: 0, last: 0 };
        self.store_note(NOTE_LOSS, &note.to_bytes());
        self.field(told).fetch_add(events, Release);
    }

    /// Stores a note in the page it is in, which has room for it.
    pub fn store_note(&mut self, code: u64, note: &[u8]) {
        let bytes = [&(note.len() as u16).to_le_bytes()[..], note].concat();
        for index in 0..note_records(note.len()) {
            let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
            let (func, call_site) = note_words(code, index, byte);
            self.ts += 10;
            let (ts, tid, kind) = (self.ts, self.tid, KIND_MARKER);
            let event = Event { ts, func, call_site, tid, kind, ..Event::default() };
            let at = self.next_place();
            self.store_whole(at, &event);
        }
    }

    /// Stores all of an event at a reserved place, its time last.
    pub fn store_whole(&self, at: usize, event: &Event) {
        let bytes = event.to_bytes(ByteOrder::NATIVE);
        for (word, value) in bytes.chunks(8).enumerate().rev() {
            let value = u64::from_ne_bytes(value.try_into().expect("8 bytes"));
            self.ring.u64(at + 8 * word).store(value, Release);
        }
    }

    /// Stores an event at a reserved place, its time last.
    pub fn store_at(&mut self, at: usize, func: u64) {
        self.ts += 10;
        self.store_words(at, func);
        self.ring.u64(at).store(self.ts, Release);
    }

    /// All of an event but its time.
    pub fn store_words(&self, at: usize, func: u64) {
        self.ring.u64(at + offset_of!(Event, func)).store(func, Relaxed);
        self.ring.u64(at + offset_of!(Event, call_site)).store(!func, Relaxed);
        self.ring.u32(at + offset_of!(Event, tid)).store(self.tid, Relaxed);
    }

    /// Stores the enter of function `func`, unless that would drop it; whether it has.
    pub fn store_where_room(&mut self, func: u64) -> bool {
        let is_free = |page: u32| self.ring.free_bits(page).load(Acquire) >> (page % 64) & 1 == 1;
        let in_page = self.page.is_some() && self.next_slot < self.slots();
        (in_page || (0..self.ring.layout.page_count).any(is_free)) && self.store(func)
    }

    /// Stores the enter of function `func`; whether there was room.
    pub fn store(&mut self, func: u64) -> bool {
        let place = self.reserve();
        place.inspect(|at| self.store_at(*at, func)).is_some()
    }
}

/// Offset of writer slot `slot`.
pub fn writer_at(slot: u32) -> usize {
    RING_WRITERS_OFFSET + slot as usize * RING_WRITER_BYTES
}
