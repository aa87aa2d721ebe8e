//! The ring, version 3: pages of shared memory as windows. The protocol stands in
//! `callsight_format`, above `RingHeader`.
//!
//! Nothing in the map is trusted: the layout is recomputed from the capacity, which must fit the
//! file; indices out of the map are checked against it. Storing events makes no system call;
//! only attaching and detaching take a lock.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use callsight_format::{
    CAUSES, COMMAND_CLOSED, COMMAND_PAUSE, COMMAND_RECORD, Cause, EVENT_BYTES, LossNote, Origin,
    PAGE_HEADER_BYTES, PAGE_RETIRED, PROCESS_ATTACHED, PROCESS_DETACHED, PROCESS_FREE, PageHeader,
    RING_BITMAP_OFFSET, RING_BITMAP_WORDS, RING_CONTROL_OFFSET, RING_DEFAULT_BYTES,
    RING_HEADER_BYTES, RING_MAGIC, RING_MIN_BYTES, RING_PROCESSES, RING_PROCESSES_OFFSET,
    RING_VERSION, RING_VERSION_STREAM, RING_WRITERS_OFFSET, RingControl, RingHeader, RingLayout,
    RingProcess, RingWriter,
};

use crate::arch;
use crate::bytes::{Shared, Text};
use crate::hook::Window;
use crate::process::{self, Sink};
use crate::sys::{self, Fd, O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR};
use crate::threads::{Slot, Thread};
use crate::{clock, config, proc_fs, stream};

/// Where the ring is mapped; 0 while it is not.
static BASE: AtomicUsize = AtomicUsize::new(0);
static LAYOUT: Shared<RingLayout> = Shared::new(RingLayout::of(RING_DEFAULT_BYTES));

fn layout() -> &'static RingLayout {
    // SAFETY: written while the process is being set up, by one thread.
    unsafe { &*LAYOUT.get() }
}

/// Bytes of a page, which is a window.
pub fn page_bytes() -> usize {
    layout().page_bytes as usize
}

/// Atomic words of the map, by address.
fn word32(at: *const u32) -> &'static AtomicU32 {
    // SAFETY: every caller's address is a field of a structure inside the map, aligned.
    unsafe { &*at.cast() }
}

fn word64(at: *const u64) -> &'static AtomicU64 {
    // SAFETY: as above.
    unsafe { &*at.cast() }
}

fn header(base: usize) -> *const RingHeader {
    base as *const RingHeader
}

fn control(base: usize) -> *const RingControl {
    (base + RING_CONTROL_OFFSET) as *const RingControl
}

fn base() -> usize {
    BASE.load(Relaxed)
}

/// The field `$field` of the structure at `$at`, as an atomic word.
macro_rules! field {
    ($word:ident, $at:expr, $field:ident) => {{
        let at = $at;
        // SAFETY: only the address is taken; the structure is inside the map.
        $word(unsafe { &raw const (*at).$field })
    }};
}

/// A ring file that was opened and mapped.
pub struct Mapped {
    /// Address of the header.
    pub base: usize,
    /// Its version.
    pub version: u32,
    /// Its capacity.
    pub capacity: u32,
}

/// Opens the ring of `TRACE_SHM`, or makes it, and attaches this process.
///
/// # Errors
/// Why it cannot be used; files are written instead.
pub fn attach() -> Result<Sink, &'static [u8]> {
    // A closed ring loses its name within a moment.
    for _ in 0..200 {
        let mapped = open_or_create()?;
        if mapped.version == RING_VERSION_STREAM {
            stream::attach(&mapped);
            return Ok(Sink::Stream);
        }
        if attach_to(&mapped)? {
            return Ok(Sink::Ring);
        }
        sys::unmap(mapped.base, RingLayout::of(u64::from(mapped.capacity)).total_bytes as usize);
        sys::sleep_ns(1_000_000);
    }
    Err(b"it is closed and keeps its name; remove it")
}

/// Attaches to a version 3 ring. `Ok(false)` when it is closed.
fn attach_to(mapped: &Mapped) -> Result<bool, &'static [u8]> {
    let _lock = AttachLock::take(mapped.base);
    if field!(word32, control(mapped.base), command).load(Acquire) == COMMAND_CLOSED {
        return Ok(false);
    }
    let me = process::identity();
    let entry = free_process(mapped.base).ok_or(&b"112 processes already use it"[..])?;
    field!(word32, entry, pid).store(me.pid, Relaxed);
    field!(word64, entry, start).store(me.start, Relaxed);
    field!(word32, entry, state).store(PROCESS_ATTACHED, Release);
    field!(word32, header(mapped.base), writers).fetch_add(1, AcqRel);
    if field!(word64, header(mapped.base), t0_ns).load(Acquire) == 0 {
        write_origin(mapped.base, &clock::origin());
    }
    // SAFETY: see `layout`.
    unsafe { *LAYOUT.get() = RingLayout::of(u64::from(mapped.capacity)) };
    BASE.store(mapped.base, Relaxed);
    Ok(true)
}

/// Fills the lower half of the header; `t0_ns` last, because it says that the rest is there.
pub fn write_origin(base: usize, origin: &Origin) {
    let header = header(base);
    field!(word32, header, flags).store(origin.flags, Relaxed);
    field!(word64, header, load_bias).store(origin.load_bias, Relaxed);
    field!(word64, header, tick_hz).store(origin.tick_hz, Relaxed);
    field!(word64, header, t0_ticks).store(origin.t0_ticks, Relaxed);
    field!(word64, header, hook_ns).store(origin.hook_ns, Relaxed);
    field!(word64, header, t0_ns).store(origin.t0_ns, Release);
}

/// The count of attached processes.
pub fn writers(base: usize) -> &'static AtomicU32 {
    field!(word32, header(base), writers)
}

/// The words of a version 2 ring that change: lock, head, tail, dropped.
pub fn stream_words(base: usize) -> (&'static AtomicU32, [&'static AtomicU64; 3]) {
    let header = header(base);
    let words = [
        field!(word64, header, head),
        field!(word64, header, tail),
        field!(word64, header, dropped),
    ];
    (field!(word32, header, lock), words)
}

fn process_entries(base: usize) -> impl Iterator<Item = *const RingProcess> {
    let first = (base + RING_PROCESSES_OFFSET) as *const RingProcess;
    (0..RING_PROCESSES).map(move |index| first.wrapping_add(index))
}

/// An entry that is free, or of a process that is gone; the lock is held.
fn free_process(base: usize) -> Option<*const RingProcess> {
    let state = |entry: *const RingProcess| field!(word32, entry, state).load(Acquire);
    if let Some(entry) = process_entries(base).find(|&entry| state(entry) == PROCESS_FREE) {
        return Some(entry);
    }
    let entry = process_entries(base).find(|&entry| is_gone(entry))?;
    if state(entry) == PROCESS_ATTACHED {
        field!(word32, header(base), writers).fetch_sub(1, AcqRel);
    }
    Some(entry)
}

fn is_gone(entry: *const RingProcess) -> bool {
    let pid = field!(word32, entry, pid).load(Relaxed);
    let start = field!(word64, entry, start).load(Relaxed);
    sys::process_is_gone(pid) || proc_fs::start_time(pid).is_some_and(|now| now != start)
}

/// The lock for attaching and detaching, held by a tid; taken over from one that is gone, given
/// up after half a second: then the work is done without it, which at worst miscounts `writers`.
struct AttachLock {
    word: &'static AtomicU32,
    held: bool,
}

impl AttachLock {
    fn take(base: usize) -> AttachLock {
        let word = field!(word32, header(base), lock);
        let me = sys::gettid();
        for round in 0..500 {
            let owner = word.load(Relaxed);
            let free = owner == 0 || (round % 16 == 15 && sys::process_is_gone(owner));
            if free && word.compare_exchange(owner, me, AcqRel, Relaxed).is_ok() {
                return AttachLock { word, held: true };
            }
            sys::sleep_ns(if round < 50 { 20_000 } else { 1_000_000 });
        }
        AttachLock { word, held: false }
    }
}

impl Drop for AttachLock {
    fn drop(&mut self) {
        if self.held {
            self.word.store(0, Release);
        }
    }
}

fn open_or_create() -> Result<Mapped, &'static [u8]> {
    let name = config::get().ring_name.as_bytes();
    if name.contains(&b'/') {
        return Err(b"its name holds a slash behind the first byte");
    }
    let mut path = Text::<300>::new();
    path.push(b"/dev/shm/").push(name);
    let Some(path) = path.terminated() else { return Err(b"its name is too long") };
    for _ in 0..100 {
        match Fd::open(path, O_RDWR | O_NOFOLLOW, 0) {
            Ok(file) => return map_existing(&file),
            Err(sys::ENOENT) => {
                if let Some(mapped) = create(path)? {
                    return Ok(mapped);
                }
            }
            Err(_) => return Err(b"it cannot be opened"),
        }
    }
    Err(b"it comes and goes")
}

/// Checks a ring that is already there.
fn map_existing(file: &Fd) -> Result<Mapped, &'static [u8]> {
    let stat = file.stat().map_err(|_| &b"it cannot be examined"[..])?;
    if stat.uid != sys::geteuid() {
        return Err(b"it belongs to another user");
    }
    if stat.mode & 0o077 != 0 {
        return Err(b"others may write to it; its mode must be 600");
    }
    const TOO_SMALL: &[u8] = b"it is smaller than its header";
    if stat.size < RING_HEADER_BYTES as u64 {
        return Err(TOO_SMALL);
    }
    let mut raw = [0u64; RING_HEADER_BYTES / 8];
    // SAFETY: the bytes of an array of integers.
    let bytes =
        unsafe { core::slice::from_raw_parts_mut(raw.as_mut_ptr().cast(), RING_HEADER_BYTES) };
    if file.read_all(bytes) < RING_HEADER_BYTES {
        return Err(TOO_SMALL);
    }
    // SAFETY: 96 bytes of any value are a header.
    let seen = unsafe { raw.as_ptr().cast::<RingHeader>().read() };
    if u64::from_ne_bytes(seen.magic) != u64::from_ne_bytes(RING_MAGIC) {
        return Err(b"it is not a callsight ring");
    }
    let layout = RingLayout::of(u64::from(seen.capacity));
    let (bytes, align) = match seen.version {
        RING_VERSION => (layout.total_bytes, page_align(&layout)),
        RING_VERSION_STREAM => (RING_HEADER_BYTES as u64 + u64::from(seen.capacity), 4096),
        _ => return Err(b"its version is neither 2 nor 3"),
    };
    if stat.size != bytes || u64::from(seen.capacity) < RING_MIN_BYTES {
        return Err(b"its size is not the one its header states");
    }
    let base = map(file, bytes, align)?;
    // SAFETY: the control block is inside the map.
    let control = unsafe { control(base).read_volatile() };
    if seen.version == RING_VERSION && !layout.agrees_with(&seen, &control) {
        sys::unmap(base, bytes as usize);
        return Err(b"its header contradicts itself");
    }
    Ok(Mapped { base, version: seen.version, capacity: seen.capacity })
}

fn page_align(layout: &RingLayout) -> usize {
    (layout.page_bytes as usize).max(4096)
}

fn map(file: &Fd, bytes: u64, align: usize) -> Result<usize, &'static [u8]> {
    let bytes = (bytes as usize).next_multiple_of(align);
    sys::reserve_addresses(bytes, align)
        .and_then(|base| file.map(base, bytes, 0))
        .map_err(|_| &b"it cannot be mapped"[..])
}

/// Makes a ring under another name and gives it the right one when it is whole. `Ok(None)` when
/// somebody else was quicker.
fn create(path: &[u8]) -> Result<Option<Mapped>, &'static [u8]> {
    let config = config::get();
    let asked = if config.ring_bytes == 0 { RING_DEFAULT_BYTES } else { config.ring_bytes };
    let layout = RingLayout::of(asked);
    let is_stream = config.ring_version == RING_VERSION_STREAM;
    let bytes = if is_stream {
        RING_HEADER_BYTES as u64 + u64::from(layout.capacity)
    } else {
        layout.total_bytes
    };
    let mut unborn = Text::<320>::new();
    unborn.push(b"/dev/shm/.callsight-").push_number(u64::from(process::identity().pid));
    let Some(unborn) = unborn.terminated() else { return Ok(None) };
    sys::unlink(unborn);
    let file = Fd::open(unborn, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
        .map_err(|_| &b"it cannot be made in /dev/shm"[..])?;
    let made = file
        .reserve(0, bytes as usize)
        .map_err(|_| &b"/dev/shm has not enough room for it"[..])
        .and_then(|()| map(&file, bytes, page_align(&layout)));
    let named = made.map(|base| {
        initialise(base, &layout, config.ring_version);
        let named = sys::link(unborn, path).is_ok();
        if !named {
            sys::unmap(base, bytes as usize);
        }
        named.then_some(Mapped { base, version: config.ring_version, capacity: layout.capacity })
    });
    sys::unlink(unborn);
    named
}

/// Fills the header of a new, zeroed ring.
fn initialise(base: usize, layout: &RingLayout, version: u32) {
    let head = RingHeader {
        magic: RING_MAGIC,
        version,
        capacity: layout.capacity,
        ..RingHeader::default()
    };
    // SAFETY: the map is ours alone until it has a name.
    unsafe { (base as *mut RingHeader).write(head) };
    if version == RING_VERSION_STREAM {
        return;
    }
    let words = control(base).cast_mut();
    // SAFETY: as above.
    unsafe {
        (*words).page_bytes = layout.page_bytes;
        (*words).page_count = layout.page_count;
        (*words).slot_count = layout.slot_count;
        (*words).pages_offset = layout.pages_offset;
        (*words).command = COMMAND_RECORD;
    }
    for page in 0..layout.page_count {
        free_bits(base, page / 64).fetch_or(1 << (page % 64), Relaxed);
    }
}

fn free_bits(base: usize, word: u32) -> &'static AtomicU64 {
    let first = (base + RING_BITMAP_OFFSET) as *const u64;
    word64(first.wrapping_add(word as usize % RING_BITMAP_WORDS))
}

fn page(index: u32) -> *const PageHeader {
    (base() + layout().page_offset(index) as usize) as *const PageHeader
}

/// The number of the page that starts at `address`.
fn page_index(address: usize) -> u32 {
    let first = base() + layout().pages_offset as usize;
    ((address - first) >> page_bytes().trailing_zeros()) as u32
}

fn writer(slot: u32) -> *const RingWriter {
    let first = (base() + RING_WRITERS_OFFSET) as *const RingWriter;
    first.wrapping_add(slot.min(layout().slot_count - 1) as usize)
}

/// The writer slot of a thread; `None` when it has none.
fn writer_of(thread: &Thread) -> Option<(u32, *const RingWriter)> {
    // SAFETY: a place in a static table, or null.
    let slot = unsafe { thread.slot.as_ref() }?.ring_slot.load(Relaxed);
    (slot > 0).then(|| (slot - 1, writer(slot - 1)))
}

/// Gives a thread its writer slot: that of the thread whose place it took, else a free one.
pub fn adopt(place: &Slot, tid: u32) {
    let me = process::identity();
    let inherited = place.ring_slot.load(Relaxed);
    if inherited > 0 {
        retire_inherited(inherited - 1);
        field!(word32, writer(inherited - 1), tid).store(tid, Release);
        return;
    }
    for slot in 0..layout().slot_count {
        let writer = writer(slot);
        let pid = field!(word32, writer, pid);
        if pid.load(Relaxed) == 0 && pid.compare_exchange(0, me.pid, AcqRel, Relaxed).is_ok() {
            field!(word64, writer, start).store(me.start, Relaxed);
            field!(word32, writer, tid).store(tid, Release);
            place.ring_slot.store(slot + 1, Relaxed);
            return;
        }
    }
}

/// Leaves the page of a thread that is gone to the drain.
fn retire_inherited(slot: u32) {
    let writer = writer(slot);
    let held = field!(word32, writer, page).load(Relaxed);
    if held == 0 || held > layout().page_count {
        return;
    }
    let page = page(held - 1);
    let owner = field!(word64, page, owner);
    let mine = u64::from(slot) + 1;
    if owner.load(Acquire) != mine {
        return;
    }
    let mut used = page_bytes();
    // SAFETY: the page is inside the map, and its writer is gone.
    let is_unwritten =
        |end: usize| unsafe { *((page as usize + end - EVENT_BYTES) as *const u64) } == 0;
    while used > PAGE_HEADER_BYTES && is_unwritten(used) {
        used -= EVENT_BYTES;
    }
    let records = ((used - PAGE_HEADER_BYTES) / EVENT_BYTES) as u64;
    field!(word64, writer, emitted).fetch_add(records, Relaxed);
    field!(word32, writer, page).store(0, Relaxed);
    if owner.compare_exchange(mine, mine | PAGE_RETIRED, AcqRel, Relaxed).is_ok() {
        field!(word64, header(base()), head).fetch_add((used - PAGE_HEADER_BYTES) as u64, Relaxed);
    }
}

fn dropped(writer: *const RingWriter, cause: Cause) -> &'static AtomicU64 {
    let first = field!(word64, writer, emitted) as *const AtomicU64 as *const u64;
    word64(first.wrapping_add(1 + cause as usize % CAUSES))
}

const _: () = assert!(
    core::mem::offset_of!(RingWriter, dropped) == 8 + core::mem::offset_of!(RingWriter, emitted)
);

fn total_dropped(writer: *const RingWriter) -> u64 {
    (0..CAUSES as u32)
        .filter_map(Cause::from_number)
        .fold(0, |sum, cause| sum.wrapping_add(dropped(writer, cause).load(Relaxed)))
}

/// Claims a page for a thread whose cursor stands at `at`, the end of its page or 0.
///
/// # Errors
/// Why there is none; `None` while recording is paused.
pub fn claim(thread: &mut Thread, at: usize) -> Result<Window, Option<Cause>> {
    let claimed = try_claim(thread, at);
    if claimed.is_err() && at != 0 {
        leave(thread, at);
    }
    claimed
}

fn try_claim(thread: &Thread, at: usize) -> Result<Window, Option<Cause>> {
    match field!(word32, control(base()), command).load(Relaxed) {
        COMMAND_RECORD => {}
        COMMAND_PAUSE => return Err(None),
        _ => return Err(Some(Cause::Stopped)),
    }
    let (slot, writer) = writer_of(thread).ok_or(Some(Cause::NoSlot))?;
    let index = take_free_page(u64::from(slot) + 1).ok_or(Some(Cause::Full))?;
    let page = page(index);
    let lost = total_dropped(writer);
    let first = match previous(at) {
        None => field!(word64, writer, emitted).load(Relaxed),
        Some(previous) => {
            let records = ((page_bytes() - PAGE_HEADER_BYTES) / EVENT_BYTES) as u64;
            let lost_before = field!(word64, previous, lost_total).load(Relaxed);
            let first = field!(word64, previous, first).load(Relaxed);
            first.wrapping_add(records).wrapping_add(lost.wrapping_sub(lost_before))
        }
    };
    fill_page_header(page, thread, writer, first, lost);
    let start = page as usize;
    Ok(Window { first: start + PAGE_HEADER_BYTES, end: start + page_bytes() })
}

/// Gives the full page that ends at `at` to the drain although there is no other: else as many
/// threads as there are pages would wait for each other for ever.
fn leave(thread: &mut Thread, at: usize) {
    let (Some((_, writer)), Some(page)) = (writer_of(thread), previous(at)) else { return };
    let bytes = page_bytes() - PAGE_HEADER_BYTES;
    let emitted = field!(word64, writer, emitted);
    // Added first: a signal handler that finds no page numbers its records from here.
    emitted.fetch_add((bytes / EVENT_BYTES) as u64, Relaxed);
    // SAFETY: the cursor is this thread's.
    if unsafe { arch::swap_if_same(&raw mut thread.cursor, at, 0) } != at {
        // A handler has opened the next page meanwhile, and left this one.
        emitted.fetch_sub((bytes / EVENT_BYTES) as u64, Relaxed);
        return;
    }
    field!(word32, writer, page).store(0, Relaxed);
    field!(word64, page, owner).fetch_or(PAGE_RETIRED, Release);
    field!(word64, header(base()), head).fetch_add(bytes as u64, Relaxed);
}

/// The page that ends at `at`.
fn previous(at: usize) -> Option<*const PageHeader> {
    (at != 0).then(|| (at - page_bytes()) as *const PageHeader)
}

fn fill_page_header(
    page: *const PageHeader,
    thread: &Thread,
    writer: *const RingWriter,
    first: u64,
    lost: u64,
) {
    let me = process::identity();
    field!(word32, page, tid).store(thread.tid(), Relaxed);
    field!(word64, page, start).store(me.start, Relaxed);
    field!(word64, page, first).store(first, Relaxed);
    field!(word64, page, lost_total).store(lost, Relaxed);
    let causes = [Cause::Full, Cause::Reentrant, Cause::Fork, Cause::Torn];
    for (index, cause) in causes.into_iter().enumerate() {
        let at = field!(word64, page, first) as *const AtomicU64 as *const u32;
        let lost = dropped(writer, cause).load(Relaxed) as u32;
        word32(at.wrapping_add(2 + index)).store(lost, Relaxed);
    }
    field!(word32, page, pid).store(me.pid, Release);
}

const _: () = assert!(
    core::mem::offset_of!(PageHeader, lost_before) == 8 + core::mem::offset_of!(PageHeader, first)
);

/// Finds a free page, the lowest one first: few pages in turn stay in the caches of both sides.
fn take_free_page(owner: u64) -> Option<u32> {
    let base = base();
    let words = layout().page_count.div_ceil(64);
    for word in 0..words {
        let bits = free_bits(base, word);
        let mut free = bits.load(Relaxed);
        while free != 0 {
            let bit = free.trailing_zeros();
            free &= free - 1;
            let index = word * 64 + bit;
            if index >= layout().page_count {
                break;
            }
            let claimed = field!(word64, page(index), owner)
                .compare_exchange(0, owner, AcqRel, Relaxed)
                .is_ok();
            // Also when the claim failed: the bit was a hint, and it was wrong.
            bits.fetch_and(!(1 << bit), AcqRel);
            if claimed {
                return Some(index);
            }
        }
    }
    None
}

/// Gives a claimed page back unused.
pub fn give_back(first: usize) {
    let page = (first - PAGE_HEADER_BYTES) as *const PageHeader;
    let index = page_index(page as usize);
    field!(word32, page, pid).store(0, Relaxed);
    field!(word64, page, owner).store(0, Release);
    free_bits(base(), index / 64).fetch_or(1 << (index % 64), Release);
}

/// The thread left the page that ends at `at` for the one whose events start at `first`.
pub fn opened(thread: &Thread, at: usize, first: usize) {
    let Some((_, writer)) = writer_of(thread) else { return };
    let page = (first - PAGE_HEADER_BYTES) as *const PageHeader;
    field!(word32, writer, page).store(page_index(page as usize) + 1, Relaxed);
    if let Some(previous) = previous(at) {
        let bytes = page_bytes() - PAGE_HEADER_BYTES;
        let records = (bytes / EVENT_BYTES) as u64;
        field!(word64, writer, emitted).fetch_add(records, Relaxed);
        field!(word64, previous, owner).fetch_or(PAGE_RETIRED, Release);
        field!(word64, header(base()), head).fetch_add(bytes as u64, Relaxed);
    }
}

/// Counts an event for which there was no room.
pub fn count_loss(thread: &Thread, cause: Cause, ts: u64) {
    let Some((_, writer)) = writer_of(thread) else {
        field!(word64, control(base()), no_slot).fetch_add(1, Relaxed);
        return;
    };
    dropped(writer, cause).fetch_add(1, Relaxed);
    let first = field!(word64, writer, untold_first);
    if first.load(Relaxed) == 0 {
        first.store(ts, Relaxed);
    }
    field!(word64, writer, untold_last).store(ts, Relaxed);
    field!(word64, writer, emitted).fetch_add(1, Relaxed);
}

/// What this thread lost and its stream does not yet tell.
pub fn untold(thread: &Thread) -> Option<LossNote> {
    let (_, writer) = writer_of(thread)?;
    let told = field!(word64, writer, told).load(Relaxed);
    let events = total_dropped(writer).wrapping_sub(told);
    let limit = dropped(writer, Cause::Budget).load(Relaxed) > 0;
    let cause = if limit { Cause::Budget } else { Cause::Full };
    (events > 0).then(|| LossNote {
        cause: cause as u32,
        events,
        first: field!(word64, writer, untold_first).load(Relaxed),
        last: field!(word64, writer, untold_last).load(Relaxed),
    })
}

/// The stream now tells of `events` more.
pub fn told(thread: &Thread, events: u64) {
    if let Some((_, writer)) = writer_of(thread) {
        field!(word64, writer, untold_first).store(0, Relaxed);
        field!(word64, writer, told).fetch_add(events, Release);
    }
}

/// The process ends its recording. Its pages stay where they are; the drain takes them over when
/// the process is gone.
pub fn detach() {
    let base = base();
    if base == 0 {
        return;
    }
    let _lock = AttachLock::take(base);
    let me = process::identity();
    let mine = process_entries(base).find(|&entry| {
        field!(word32, entry, pid).load(Relaxed) == me.pid
            && field!(word64, entry, start).load(Relaxed) == me.start
            && field!(word32, entry, state).load(Relaxed) == PROCESS_ATTACHED
    });
    let mut lost = field!(word64, control(base), no_slot).load(Relaxed);
    for slot in 0..layout().slot_count {
        lost = lost.wrapping_add(total_dropped(writer(slot)));
    }
    field!(word64, header(base), dropped).fetch_max(lost, Relaxed);
    if let Some(entry) = mine {
        field!(word32, entry, state).store(PROCESS_DETACHED, Release);
        field!(word32, header(base), writers).fetch_sub(1, AcqRel);
    }
}
