//! The ring, version 3: pages of shared memory as windows. The protocol stands in
//! `callsight_format`, above `RingHeader`.
//!
//! Nothing in the map is trusted: the layout is recomputed from the capacity, which must fit the
//! file; indices out of the map are checked against it. Storing events makes no system call;
//! only attaching and detaching take a lock.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use callsight_format::{
    COMMAND_PAUSE, COMMAND_RECORD, Cause, EVENT_BYTES, LossNote, PAGE_HEADER_BYTES, PAGE_RETIRED,
    PageHeader, RING_BITMAP_OFFSET, RING_BITMAP_WORDS, RING_CAUSES, RING_CONTROL_OFFSET,
    RING_DEFAULT_BYTES, RING_WRITERS_OFFSET, RingControl, RingHeader, RingLayout, RingWriter,
};

use crate::arch;
use crate::bytes::Shared;
use crate::process;
use crate::threads::{Slot, TELLS, Thread};
use crate::window::Window;

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

fn word16(at: *const u16) -> &'static AtomicU16 {
    // SAFETY: as above.
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

/// Where the ring says record, pause or stop.
pub fn command_address() -> usize {
    // SAFETY: only the address is taken.
    unsafe { &raw const (*control(base())).command as usize }
}

/// The field `$field` of the structure at `$at`, as an atomic word.
macro_rules! field {
    ($word:ident, $at:expr, $field:ident) => {{
        let at = $at;
        // SAFETY: only the address is taken; the structure is inside the map.
        $word(unsafe { &raw const (*at).$field })
    }};
}

// After the macro, which it uses.
mod attach;
mod turn;

pub use attach::Mapped;
pub use attach::{
    attach, attach_again, count_unattached, detach, stream_words, write_origin, writers,
};

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
#[inline(always)]
fn writer_of(thread: &Thread) -> Option<*const RingWriter> {
    // SAFETY: a place in a static table, or null.
    let writer = unsafe { thread.slot.as_ref() }?.ring_writer.load(Relaxed);
    (writer != 0).then_some(writer as *const RingWriter)
}

/// Gives a thread its writer slot: that of the thread whose place it took, else a free one.
pub fn adopt(place: &Slot, tid: u32) {
    let me = process::identity();
    let inherited = place.ring_slot.load(Relaxed);
    if inherited > 0 {
        let writer = writer(inherited - 1);
        retire_inherited(place, inherited - 1);
        let lost = place.ring_lost.load(Relaxed);
        let begin = place.ring_stored.load(Relaxed).wrapping_add(lost);
        place.ring_begin.store(begin, Relaxed);
        place.ring_begin_lost.store(lost, Relaxed);
        field!(word64, writer, begin).store(begin, Relaxed);
        field!(word32, writer, tid).store(tid, Release);
        return;
    }
    for slot in 0..layout().slot_count {
        let writer = writer(slot);
        let pid = field!(word32, writer, pid);
        if pid.load(Relaxed) == 0 && pid.compare_exchange(0, me.pid, AcqRel, Relaxed).is_ok() {
            field!(word64, writer, start).store(me.start, Relaxed);
            field!(word32, writer, tid).store(tid, Release);
            place.ring_slot.store(slot + 1, Relaxed);
            place.ring_writer.store(writer as usize, Relaxed);
            place.ring_begin.store(0, Relaxed);
            place.ring_begin_lost.store(0, Relaxed);
            place.ring_lost.store(total_dropped(writer), Relaxed);
            place.ring_told.store(field!(word64, writer, told).load(Relaxed), Relaxed);
            let stored = field!(word64, writer, stored).load(Relaxed);
            place.ring_stored.store(stored, Relaxed);
            return;
        }
    }
}

/// Leaves the page of a thread that is gone to the drain.
fn retire_inherited(place: &Slot, slot: u32) {
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
    raise(&place.ring_stored, stored_before(page).wrapping_add(records));
    add_stored(writer, records);
    field!(word32, writer, page).store(0, Relaxed);
    if owner.compare_exchange(mine, mine | PAGE_RETIRED, AcqRel, Relaxed).is_ok() {
        field!(word64, header(base()), head).fetch_add((used - PAGE_HEADER_BYTES) as u64, Relaxed);
    }
}

fn dropped(writer: *const RingWriter, cause: Cause) -> &'static AtomicU64 {
    let first = field!(word64, writer, stored) as *const AtomicU64 as *const u64;
    word64(first.wrapping_add(1 + cause as usize % RING_CAUSES))
}

const _: () = assert!(offset_of!(RingWriter, dropped) == 8 + offset_of!(RingWriter, stored));

fn total_dropped(writer: *const RingWriter) -> u64 {
    (0..RING_CAUSES as u32)
        .filter_map(Cause::from_number)
        .fold(0, |sum, cause| sum.wrapping_add(dropped(writer, cause).load(Relaxed)))
}

/// Claims a page for a thread whose cursor stands at `at`, the end of its page or nowhere.
///
/// # Errors
/// Why there is none; `None` while recording is paused.
#[inline(always)]
pub fn claim(thread: &mut Thread, at: usize) -> Result<Window, Option<Cause>> {
    let claimed = try_claim(thread, at);
    if claimed.is_err() && is_of_page(at) {
        leave(thread, at);
    }
    claimed
}

#[inline(always)]
fn try_claim(thread: &Thread, at: usize) -> Result<Window, Option<Cause>> {
    match field!(word32, control(base()), command).load(Relaxed) {
        COMMAND_RECORD => {}
        COMMAND_PAUSE if thread.flags & TELLS != 0 => {}
        COMMAND_PAUSE => {
            process::pause();
            return Err(None);
        }
        _ => return Err(Some(Cause::Stopped)),
    }
    let writer = writer_of(thread).ok_or(Some(Cause::NoSlot))?;
    // SAFETY: `writer_of` found its place, which is never freed.
    let place = unsafe { &*thread.slot };
    let page = take_free_page(u64::from(place.ring_slot.load(Relaxed))).ok_or(Some(Cause::Full))?;
    let stored = match previous(at) {
        Some(previous) => stored_behind(previous),
        None => place.ring_stored.load(Relaxed),
    };
    fill_page_header(page, thread, place, writer, stored);
    let start = page as usize;
    Ok(Window { first: start + PAGE_HEADER_BYTES, end: start + page_bytes() })
}

/// Gives the full page that ends at `at` to the drain although there is no other: else as many
/// threads as there are pages would wait for each other for ever.
#[cold]
#[inline(never)]
fn leave(thread: &mut Thread, at: usize) {
    let (Some(writer), Some(page)) = (writer_of(thread), previous(at)) else { return };
    let stored = stored_behind(page);
    // SAFETY: the cursor is this thread's; handlers of signals change it too, hence volatile.
    if unsafe { (&raw const thread.cursor).read_volatile() } != at {
        // A handler has left it, and it may be another's by now.
        return;
    }
    // SAFETY: `writer_of` found its place, which is never freed.
    let place = unsafe { &*thread.slot };
    // Before: a signal handler that finds no page numbers its records from here.
    raise(&place.ring_stored, stored);
    // SAFETY: the cursor is this thread's.
    if unsafe { arch::swap_if_same(&raw mut thread.cursor, at, nowhere(stored)) } == at {
        name_page(thread, writer);
        add_stored(writer, page_records());
        retire(page, page_bytes() - PAGE_HEADER_BYTES);
    }
}

/// What the cursor of a thread is that has left its last page and found no other. Never the same
/// twice: a hook that a signal handler interrupts while it claims a page must see that the handler
/// has filled pages meanwhile, though the thread has none again.
fn nowhere(stored: u64) -> usize {
    const LARGEST_PAGE_BITS: u32 = 22;
    1 << (usize::BITS - 1) | (stored as usize) << LARGEST_PAGE_BITS
}

/// Whether a cursor points into a page, or behind it; else it is 0 or [`nowhere`].
fn is_of_page(cursor: usize) -> bool {
    cursor.cast_signed() > 0
}

/// The page that ends at `at`.
fn previous(at: usize) -> Option<*const PageHeader> {
    is_of_page(at).then(|| (at - page_bytes()) as *const PageHeader)
}

/// How many records a page holds.
fn page_records() -> u64 {
    ((page_bytes() - PAGE_HEADER_BYTES) / EVENT_BYTES) as u64
}

/// What its writer had stored before a page. Of the page itself, and not a count that grows when a
/// page is left: whenever a signal handler comes, it finds the same.
fn stored_before(page: *const PageHeader) -> u64 {
    let first = field!(word64, page, first).load(Relaxed);
    first.wrapping_sub(field!(word64, page, lost_total).load(Relaxed))
}

/// The same when it is full.
fn stored_behind(page: *const PageHeader) -> u64 {
    stored_before(page).wrapping_add(page_records())
}

fn fill_page_header(
    page: *const PageHeader,
    thread: &Thread,
    place: &Slot,
    writer: *const RingWriter,
    stored: u64,
) {
    let me = process::identity();
    field!(word32, page, tid).store(thread.tid(), Relaxed);
    field!(word64, page, start).store(me.start, Relaxed);
    let lost = place.ring_lost.load(Relaxed);
    field!(word64, page, first).store(stored.wrapping_add(lost), Relaxed);
    field!(word64, page, begin).store(place.ring_begin.load(Relaxed), Relaxed);
    // A free page holds zeros.
    if lost != 0 {
        fill_losses(page, place, writer, lost);
    }
    field!(word32, page, pid).store(me.pid, Release);
}

fn fill_losses(page: *const PageHeader, place: &Slot, writer: *const RingWriter, lost: u64) {
    field!(word64, page, lost_total).store(lost, Relaxed);
    field!(word64, page, begin_lost).store(place.ring_begin_lost.load(Relaxed), Relaxed);
    let causes = [Cause::Full, Cause::Reentrant, Cause::Fork, Cause::Torn];
    for (index, cause) in causes.into_iter().enumerate() {
        let at = field!(word64, page, first) as *const AtomicU64 as *const u32;
        let lost = dropped(writer, cause).load(Relaxed) as u32;
        word32(at.wrapping_add(2 + index)).store(lost, Relaxed);
    }
}

const _: () = assert!(offset_of!(PageHeader, lost_before) == 8 + offset_of!(PageHeader, first));

/// Finds a free page, the lowest one first: few pages in turn stay in the caches of both sides.
#[inline(always)]
fn take_free_page(owner: u64) -> Option<*const PageHeader> {
    // Of constants, so that no loop is left of it: it takes longest where all but the last page are held.
    let base = base();
    let has_free = |word: &u32| free_bits(base, *word).load(Relaxed) != 0;
    let word = (0..RING_BITMAP_WORDS as u32).find(has_free)?;
    take_free_of(word, owner).or_else(|| take_free_behind(word, owner))
}

#[cold]
#[inline(never)]
fn take_free_behind(word: u32, owner: u64) -> Option<*const PageHeader> {
    (word + 1..RING_BITMAP_WORDS as u32).find_map(|word| take_free_of(word, owner))
}

/// A free page of those in this word of the free map. The words behind the last page's are there, and say
/// that nothing is free.
#[inline(always)]
fn take_free_of(word: u32, owner: u64) -> Option<*const PageHeader> {
    let (base, layout) = (base(), *layout());
    let bits = free_bits(base, word);
    let mut free = bits.load(Relaxed);
    while free != 0 {
        let bit = free.trailing_zeros();
        free &= free - 1;
        let index = word * 64 + bit;
        if index >= layout.page_count {
            break;
        }
        let offset = (index as usize) << layout.page_bytes.trailing_zeros();
        let page = (base + layout.pages_offset as usize + offset) as *const PageHeader;
        let claimed = field!(word64, page, owner).compare_exchange(0, owner, AcqRel, Relaxed);
        // Also when the claim failed: the bit was a hint, and it was wrong.
        bits.fetch_and(!(1 << bit), AcqRel);
        if claimed.is_ok() {
            return Some(page);
        }
    }
    None
}

/// Gives a claimed page back unused.
pub fn give_back(first: usize) {
    let page = (first - PAGE_HEADER_BYTES) as *const PageHeader;
    let index = page_index(page as usize);
    field!(word32, page, pid).store(0, Relaxed);
    field!(word64, page, lost_total).store(0, Relaxed);
    field!(word64, page, begin_lost).store(0, Relaxed);
    for pair in 0..2 {
        let at = field!(word64, page, first) as *const AtomicU64 as *const u64;
        word64(at.wrapping_add(1 + pair)).store(0, Relaxed);
    }
    field!(word64, page, owner).store(0, Release);
    free_bits(base(), index / 64).fetch_or(1 << (index % 64), Release);
}

/// The thread left the page that ends at `at` for the next one, whose events start at `first`.
pub fn opened(thread: &Thread, at: usize, first: usize) {
    // SAFETY: who has claimed a page has a place, which is never freed, and a writer.
    let writer = unsafe { &*thread.slot }.ring_writer.load(Relaxed) as *const RingWriter;
    let (page, page_bytes) = (first - PAGE_HEADER_BYTES, page_bytes());
    field!(word32, writer, page).store(page_index(page) + 1, Relaxed);
    // SAFETY: the cursor is this thread's; handlers of signals change it too, hence volatile.
    let now = unsafe { (&raw const thread.cursor).read_volatile() };
    if now.wrapping_sub(first) >= page_bytes {
        // A signal handler has opened another one in between, or has none any more.
        name_page(thread, writer);
    }
    if let Some(previous) = previous(at) {
        // The thread's own count stands in its page's header, until it has none.
        let bytes = page_bytes - PAGE_HEADER_BYTES;
        add_stored(writer, (bytes / EVENT_BYTES) as u64);
        retire(previous, bytes);
    }
}

/// Says which page the thread writes to: asked again behind the answer, since a signal handler may
/// have opened another one in between.
#[cold]
fn name_page(thread: &Thread, writer: *const RingWriter) {
    let cursor = &raw const thread.cursor;
    loop {
        // SAFETY: as in `opened`.
        let at = unsafe { cursor.read_volatile() };
        let page = if is_of_page(at) { page_index(at - EVENT_BYTES) + 1 } else { 0 };
        field!(word32, writer, page).store(page, Relaxed);
        // SAFETY: as above.
        if unsafe { cursor.read_volatile() } == at {
            return;
        }
    }
}

/// Gives a full page that this thread has left, with so many bytes of records, to the drain.
fn retire(page: *const PageHeader, bytes: usize) {
    // Nobody else writes the owner of a page that is not retired: no locked instruction, which
    // would wait for the stores before it.
    let owner = field!(word64, page, owner);
    owner.store(owner.load(Relaxed) | PAGE_RETIRED, Release);
    field!(word64, header(base()), head).fetch_add(bytes as u64, Relaxed);
}

/// Adds to what a thread, which is the caller or gone, has stored in pages that it left: once for each,
/// by whoever left it.
#[inline(always)]
fn add_stored(writer: *const RingWriter, records: u64) {
    // SAFETY: nobody else writes to it while the thread lives.
    unsafe { arch::add::<{ offset_of!(RingWriter, stored) }>(writer as *mut u8, records) };
}

/// Raises a count to what it is at least: a signal handler may have left a later page meanwhile.
fn raise(count: &AtomicU64, least: u64) {
    loop {
        let found = count.load(Relaxed);
        if found >= least {
            return;
        }
        // SAFETY: nobody else writes to either while the thread lives.
        let swapped =
            unsafe { arch::swap_if_same(count.as_ptr().cast(), found as usize, least as usize) };
        if swapped == found as usize {
            return;
        }
    }
}

/// Says in the ring whether this thread has left out calls in a pause and its data has no note of that:
/// when its process is dead by then, the drain tells it.
pub fn set_pause_untold(thread: &Thread, is_untold: bool) {
    if let Some(writer) = writer_of(thread) {
        field!(word16, writer, pause_untold).store(is_untold.into(), Release);
    }
}

/// See [`set_pause_untold`].
pub fn is_pause_untold(thread: &Thread) -> bool {
    writer_of(thread).is_some_and(|writer| field!(word16, writer, pause_untold).load(Relaxed) != 0)
}

/// Whether more than half of the pages are free.
pub fn has_pages_to_spare() -> bool {
    let words = 0..layout().page_count.div_ceil(64);
    let free = words.fold(0, |sum: u32, word| {
        sum.wrapping_add(free_bits(base(), word).load(Relaxed).count_ones())
    });
    free > layout().page_count / 2
}

/// Counts an event for which there was no room.
pub fn count_loss(thread: &Thread, cause: Cause, ts: u64) {
    let Some(writer) = writer_of(thread) else {
        field!(word64, control(base()), no_slot).fetch_add(1, Relaxed);
        return;
    };
    field!(word64, writer, untold_last).store(ts, Relaxed);
    // Before the sum: no page, and no note, of a signal handler says more than is counted here.
    dropped(writer, cause).fetch_add(1, Relaxed);
    // SAFETY: `writer_of` found its place, which is never freed.
    unsafe { (*thread.slot).ring_lost.fetch_add(1, Relaxed) };
    let first = field!(word64, writer, untold_first);
    if first.load(Relaxed) == 0 {
        first.store(ts.max(1), Relaxed);
    }
}

/// Whether there is a loss that no note of this thread tells.
pub fn has_untold(thread: &Thread) -> bool {
    // SAFETY: a place in a static table, or null.
    unsafe { thread.slot.as_ref() }
        .is_some_and(|place| place.ring_told.load(Relaxed) != place.ring_lost.load(Relaxed))
}

/// What this thread lost and no note of it tells, for the caller to tell: for nobody else. A signal
/// handler that opens a page meanwhile has told it, or finds nothing to tell.
pub fn take_untold(thread: &Thread) -> Option<LossNote> {
    let writer = writer_of(thread)?;
    // SAFETY: `writer_of` found its place, which is never freed.
    let place = unsafe { &*thread.slot };
    // Before the count: what comes behind it has a first time again.
    let first = field!(word64, writer, untold_first).swap(0, Relaxed);
    let last = field!(word64, writer, untold_last).load(Relaxed);
    let mut told = place.ring_told.load(Relaxed);
    let events = loop {
        let lost = place.ring_lost.load(Relaxed);
        match place.ring_told.compare_exchange(told, lost, Relaxed, Relaxed) {
            Ok(_) => break lost.wrapping_sub(told),
            Err(by_handler) => told = by_handler,
        }
    };
    let limit = dropped(writer, Cause::Budget).load(Relaxed) > 0;
    let cause = if limit { Cause::Budget } else { Cause::Full };
    let first = if first == 0 { last } else { first };
    (events > 0).then_some(LossNote { cause: cause as u32, events, first, last })
}

/// The data now tells of `events` more. Behind their note: what it does not tell when the thread is
/// killed, the drain does.
pub fn told(thread: &Thread, events: u64) {
    if let Some(writer) = writer_of(thread) {
        field!(word64, writer, told).fetch_add(events, Release);
    }
}
