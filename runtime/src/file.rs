//! The file sink: windows cut from mapped segment files, shared by all threads of the process.
//!
//! `<dir>/trace.<pid>.<tid>.<seq>.bin`. Blocks are reserved before a window is handed out, so a
//! store never meets a full disk; no descriptor is kept open. One window stays in reserve for
//! what must be said when no more can be stored: why, and what each thread lost from then on,
//! counted in place, so that even a killed process leaves exact numbers.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use callsight_format::{
    Cause, EVENT_BYTES, Event, FILE_HEADER_MAPPED_BYTES, FILE_WINDOW_BYTES, FLAG_WRAPPED,
    FileHeader, KIND_ENTER, KIND_EXIT, KIND_MARKER, LossNote, MARK_BUDGET, MARK_CLOCK,
    MARK_MAX_EVENTS, MARK_NO_SPACE, MARK_WRAP, MARK_WRITE_ERROR, StopReason,
};

use crate::bytes::{Held, Lock, Shared, Text};
use crate::hook::{self, Window};
use crate::sys::{self, Fd, O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR};
use crate::threads::{self, Slot, Thread};
use crate::{clock, config, notes, process};

/// Bytes of a window.
pub const WINDOW_BYTES: usize = FILE_WINDOW_BYTES;
/// First and largest step by which a segment grows.
const FIRST_STEP_BYTES: usize = 4 * WINDOW_BYTES;
const LARGEST_STEP_BYTES: usize = 1 << 20;
/// Address space of a segment where its size is not limited.
const UNLIMITED_SEGMENT_BYTES: u64 = 4 << 30;
/// Segments whose mappings are remembered; the events of older ones are all in place.
const REMEMBERED: usize = 64;
/// A filled segment stays mapped until this many more were begun: a hook that a signal handler
/// interrupted may still have to store into it.
const KEPT_MAPPED: usize = 4;

/// Most records that [`close`] adds: what was stored in vain, the end, the clock.
const CLOSING_RECORDS: usize = 3;

#[derive(Clone, Copy)]
struct Segment {
    seq: u32,
    opener_tid: u32,
    /// Where it is mapped; 0 when it no longer is.
    base: usize,
    /// Bytes of the mapping: the most it may grow to.
    limit: usize,
    /// Bytes of the file.
    allocated: usize,
    /// Offset of the next window to hand out.
    next: usize,
}

const NO_SEGMENT: Segment =
    Segment { seq: 0, opener_tid: 0, base: 0, limit: 0, allocated: 0, next: 0 };

struct State {
    /// The current one is the last.
    segments: [Segment; REMEMBERED],
    count: usize,
    next_seq: u32,
    /// Bytes of all files that exist.
    total_bytes: u64,
    wrapped: bool,
    /// Events stored into windows whose segment was already rotated away, not yet told.
    stored_in_vain: u64,
    /// The reserve: where the next record goes, and its end; 0 until recording stopped.
    reserve: usize,
    reserve_end: usize,
    /// End of the file once it was closed: behind the closing anchor.
    closed_end: usize,
}

static STATE: Shared<State> = Shared::new(State {
    segments: [NO_SEGMENT; REMEMBERED],
    count: 0,
    next_seq: 0,
    total_bytes: 0,
    wrapped: false,
    stored_in_vain: 0,
    reserve: 0,
    reserve_end: 0,
    closed_end: 0,
});
/// Guards [`STATE`].
static LOCK: Lock = Lock::new();
/// Nothing more is stored.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Cause of losses since then.
static STOP_CAUSE: AtomicU32 = AtomicU32::new(0);
/// Losses of threads without a place of their own, and where they are counted.
static SHARED_LOST: AtomicU64 = AtomicU64::new(0);
static SHARED_LOSS_WORD: AtomicU64 = AtomicU64::new(0);

struct Locked {
    _held: Held<'static>,
}

impl Locked {
    /// Callers have blocked signals.
    fn take() -> Locked {
        Locked { _held: LOCK.take() }
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held, and the borrow ends with it.
        unsafe { &mut *STATE.get() }
    }
}

/// Why recording stops, as marker and payload.
struct Stop {
    marker: u64,
    payload: u64,
    cause: Cause,
}

impl Stop {
    fn budget() -> Stop {
        Stop { marker: MARK_BUDGET, payload: config::get().max_bytes, cause: Cause::Budget }
    }

    fn io(errno: isize) -> Stop {
        if errno == sys::ENOSPC {
            let floor = config::get().min_free_bytes;
            return Stop { marker: MARK_NO_SPACE, payload: floor, cause: Cause::Io };
        }
        Stop { marker: MARK_WRITE_ERROR, payload: errno as u64, cause: Cause::Io }
    }
}

/// A forked child starts files of its own; the parent's mappings stay, unused.
pub fn after_fork() {
    LOCK.reset();
    // SAFETY: a freshly forked process has one thread.
    let state = unsafe { &mut *STATE.get() };
    state.count = 0;
    state.next_seq = 0;
    state.total_bytes = 0;
    state.wrapped = false;
    state.stored_in_vain = 0;
    state.reserve = 0;
    state.reserve_end = 0;
    state.closed_end = 0;
    STOPPED.store(false, Relaxed);
    SHARED_LOST.store(0, Relaxed);
    SHARED_LOSS_WORD.store(0, Relaxed);
}

/// The next window for `thread`.
///
/// # Errors
/// Why nothing more is stored.
pub fn claim(thread: &Thread) -> Result<Window, Option<Cause>> {
    let stopped = || Some(Cause::from_number(STOP_CAUSE.load(Relaxed)).unwrap_or(Cause::Io));
    if STOPPED.load(Acquire) {
        return Err(stopped());
    }
    let mut lock = Locked::take();
    if STOPPED.load(Acquire) {
        return Err(stopped());
    }
    if lock.state().closed_end != 0 {
        return Err(None);
    }
    lock.state().next_window(thread.tid()).map_err(|stop| {
        lock.state().stop(thread.tid(), &stop);
        stopped()
    })
}

/// The thread has the window at `first`, and is done with the one before.
pub fn opened(thread: &Thread, first: usize) {
    if let Some(slot) = slot_of(thread) {
        let in_vain = leave_evicted(slot);
        if in_vain > 0 {
            Locked::take().state().stored_in_vain += in_vain;
        }
        slot.window.store(first & !(WINDOW_BYTES - 1), Release);
    }
}

/// How many events were stored into the slot's window after its segment was rotated away.
fn leave_evicted(slot: &Slot) -> u64 {
    match slot.evicted.swap(0, AcqRel) {
        0 => 0,
        counted => {
            let window = slot.window.load(Acquire);
            count_events(window, window + WINDOW_BYTES).saturating_sub(u64::from(counted) - 1)
        }
    }
}

fn slot_of(thread: &Thread) -> Option<&'static Slot> {
    // SAFETY: a place in a static table, or null.
    unsafe { thread.slot.as_ref() }
}

impl State {
    fn current(&mut self) -> Option<&mut Segment> {
        self.segments.get_mut(self.count.checked_sub(1)?)
    }

    fn next_window(&mut self, tid: u32) -> Result<Window, Stop> {
        if self.count == 0 {
            return self.open_segment(tid);
        }
        if !self.has_room()
            && let Err(stop) = self.grow()
        {
            // The segment is as large as it may be: begin another.
            let full = self.current().is_some_and(|segment| segment.is_full());
            return if full { self.rotate(tid) } else { Err(stop) };
        }
        let segment = self.current().ok_or(Stop::io(0))?;
        let first = segment.base + segment.next;
        segment.next += WINDOW_BYTES;
        Ok(Window { first, end: first + WINDOW_BYTES })
    }

    /// Whether a window can be handed out with one left in reserve.
    fn has_room(&mut self) -> bool {
        self.current().is_some_and(|segment| segment.next + 2 * WINDOW_BYTES <= segment.allocated)
    }

    /// Bytes that `TRACE_MAX_MB` leaves.
    fn budget_left(&self) -> u64 {
        match config::get().max_bytes {
            0 => u64::MAX,
            max => max.saturating_sub(self.total_bytes),
        }
    }

    /// Reserves more of the current segment's file.
    fn grow(&mut self) -> Result<(), Stop> {
        let left = self.budget_left();
        let segment = self.current().ok_or(Stop::io(0))?;
        let step = segment.allocated.clamp(FIRST_STEP_BYTES, LARGEST_STEP_BYTES);
        let room = (segment.limit - segment.allocated) as u64;
        let step = (step as u64).min(room).min(left) as usize & !(WINDOW_BYTES - 1);
        if step == 0 {
            return Err(Stop::budget());
        }
        let file = segment.reopen().map_err(Stop::io)?;
        check_space(&file, step)?;
        let (from, to) = (segment.allocated, segment.allocated + step);
        if to as u64 > sys::file_size_limit() {
            segment.limit = segment.allocated;
            return Err(Stop::io(sys::EFBIG));
        }
        file.reserve(from, to).map_err(Stop::io)?;
        sys::populate(segment.base + from, step);
        segment.allocated = to;
        self.total_bytes += step as u64;
        Ok(())
    }

    /// Begins the next segment, in place of the oldest where the capture is to wrap.
    fn rotate(&mut self, tid: u32) -> Result<Window, Stop> {
        let mut lost_events = core::mem::take(&mut self.stored_in_vain);
        if config::get().wrap {
            while self.budget_left() < self.segment_limit() as u64 && self.count > 1 {
                lost_events += self.drop_oldest();
            }
        }
        // Only with the next one open: the reserve of this one is needed when that fails.
        let window = self.open_segment(tid)?;
        self.trim_previous();
        self.forget_old();
        if lost_events == 0 {
            return Ok(window);
        }
        hook::put_marker(window.first, tid, clock::now(), MARK_WRAP, lost_events);
        Ok(Window { first: window.first + EVENT_BYTES, end: window.end })
    }

    /// Most bytes of a segment, a multiple of a window.
    fn segment_limit(&self) -> usize {
        let config = config::get();
        let mut limit = match config.segment_bytes {
            0 => UNLIMITED_SEGMENT_BYTES,
            bytes => bytes,
        };
        if config.max_bytes > 0 {
            // While wrapping, the newest quarter goes at a time, not all.
            let parts = if config.wrap { 4 } else { 1 };
            limit = limit.min(config.max_bytes / parts);
        }
        let limit = limit.min(sys::file_size_limit()).max(2 * WINDOW_BYTES as u64);
        limit as usize & !(WINDOW_BYTES - 1)
    }

    /// Gives the unused end of the segment before the current one back to the file system.
    fn trim_previous(&mut self) {
        let mut freed = 0;
        if let Some(index) = self.count.checked_sub(2)
            && let Some(segment) = self.segments.get_mut(index)
            && let Ok(file) = segment.reopen()
            && file.truncate(segment.next).is_ok()
        {
            freed = segment.allocated - segment.next;
            segment.allocated = segment.next;
        }
        self.total_bytes -= freed as u64;
    }

    /// Unmaps what no thread writes to any more, and makes room in the list.
    fn forget_old(&mut self) {
        let mut kept = 0;
        for index in 0..self.count {
            let Some(mut segment) = self.segments.get(index).copied() else { break };
            let old = index + KEPT_MAPPED < self.count;
            if old && segment.base != 0 && !segment.is_written() && !config::get().wrap {
                sys::unmap(segment.base, segment.limit);
                segment.base = 0;
            }
            let crowded = self.count >= REMEMBERED && index == 0;
            if segment.base == 0 || crowded {
                continue;
            }
            if let Some(place) = self.segments.get_mut(kept) {
                *place = segment;
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Removes the oldest segment's file; how many events went with it.
    fn drop_oldest(&mut self) -> u64 {
        let Some(oldest) = self.segments.first().copied() else { return 0 };
        let events = oldest.count_events();
        if let Some(path) = oldest.path().terminated() {
            sys::unlink(path);
        }
        self.total_bytes -= oldest.allocated as u64;
        self.wrapped = true;
        // Threads that still hold a window of it go on storing there: those events are lost too.
        for slot in threads::slots().filter(|slot| oldest.holds(slot.window.load(Acquire))) {
            let window = slot.window.load(Acquire);
            let counted = count_events(window, window + WINDOW_BYTES) as u32;
            slot.evicted.store(counted + 1, Release);
        }
        if !oldest.is_written() {
            sys::unmap(oldest.base, oldest.limit);
        }
        for index in 1..self.count {
            let next = self.segments.get(index).copied().unwrap_or(NO_SEGMENT);
            if let Some(place) = self.segments.get_mut(index - 1) {
                *place = next;
            }
        }
        self.count -= 1;
        events
    }

    /// Makes the next segment file, with header and the notes every segment starts with, and
    /// gives its first window.
    fn open_segment(&mut self, tid: u32) -> Result<Window, Stop> {
        let limit = self.segment_limit();
        if self.budget_left() < 2 * WINDOW_BYTES as u64 {
            return Err(Stop::budget());
        }
        let mut segment = Segment { opener_tid: tid, limit, ..NO_SEGMENT };
        let file = self.create_file(&mut segment)?;
        if let Err(stop) = self.fill_first_windows(&mut segment, &file) {
            if let Some(path) = segment.path().terminated() {
                sys::unlink(path);
            }
            return Err(stop);
        }
        let Some(place) = self.segments.get_mut(self.count) else { return Err(Stop::io(0)) };
        *place = segment;
        self.count += 1;
        self.write_head(tid)
    }

    fn create_file(&mut self, segment: &mut Segment) -> Result<Fd, Stop> {
        if self.next_seq == 0 {
            make_directories();
        }
        loop {
            segment.seq = self.next_seq;
            self.next_seq += 1;
            let mut path = segment.path();
            let path = path.terminated().ok_or(Stop::io(sys::ENOENT))?;
            match Fd::open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0o644) {
                Err(sys::EEXIST) => {}
                opened => return opened.map_err(Stop::io),
            }
        }
    }

    fn fill_first_windows(&mut self, segment: &mut Segment, file: &Fd) -> Result<(), Stop> {
        let left = self.budget_left() as usize & !(WINDOW_BYTES - 1);
        let bytes = FIRST_STEP_BYTES.min(segment.limit).min(left);
        check_space(file, bytes)?;
        if bytes as u64 > sys::file_size_limit() {
            return Err(Stop::io(sys::EFBIG));
        }
        file.reserve(0, bytes).map_err(Stop::io)?;
        segment.map(file).map_err(Stop::io)?;
        segment.allocated = bytes;
        self.total_bytes += bytes as u64;
        sys::populate(segment.base, bytes);
        let me = process::identity();
        let mut header = FileHeader::new(clock::origin(), me.pid, segment.seq);
        header.header_size = FILE_HEADER_MAPPED_BYTES as u32;
        header.flags |= if self.wrapped { FLAG_WRAPPED } else { 0 };
        // SAFETY: the first bytes of a mapping of ours.
        unsafe { (segment.base as *mut FileHeader).write(header) };
        segment.next = FILE_HEADER_MAPPED_BYTES;
        Ok(())
    }

    /// The notes at the head of a segment; what is left of the window they end in is the first
    /// one handed out.
    fn write_head(&mut self, tid: u32) -> Result<Window, Stop> {
        let mut full = None;
        let mut put = |func, site| match self.head_slot() {
            Ok(slot) => {
                hook::put_marker(slot, tid, clock::now(), func, site);
                true
            }
            Err(stop) => {
                full = Some(stop);
                false
            }
        };
        let _ = notes::process(notes::Again::Yes, &mut put)
            && process::tell_ring_trouble(&mut put)
            && notes::modules(true, &mut put);
        if let Some(stop) = full {
            return Err(stop);
        }
        let segment = self.current().ok_or(Stop::io(0))?;
        let first = segment.base + segment.next;
        segment.next = (segment.next / WINDOW_BYTES + 1) * WINDOW_BYTES;
        Ok(Window { first, end: segment.base + segment.next })
    }

    /// The next slot of the head; always with a slot behind it in the same window.
    fn head_slot(&mut self) -> Result<usize, Stop> {
        let segment = self.current().ok_or(Stop::io(0))?;
        let slot = segment.next;
        if slot + 2 * WINDOW_BYTES > segment.allocated {
            self.grow()?;
        }
        let segment = self.current().ok_or(Stop::io(0))?;
        segment.next += EVENT_BYTES;
        Ok(segment.base + slot)
    }

    /// Ends recording: says why in the reserve.
    fn stop(&mut self, tid: u32, stop: &Stop) {
        STOP_CAUSE.store(stop.cause as u32, Relaxed);
        if let Some(segment) = self.current() {
            let reserve = segment.base + segment.next.next_multiple_of(WINDOW_BYTES);
            let end = segment.base + segment.allocated;
            if reserve + WINDOW_BYTES <= end {
                segment.next = reserve + WINDOW_BYTES - segment.base;
                hook::put_marker(reserve, tid, clock::now(), stop.marker, stop.payload);
                self.reserve = reserve + EVENT_BYTES;
                self.reserve_end = reserve + WINDOW_BYTES;
            }
        }
        STOPPED.store(true, Release);
    }

    /// Slots in the reserve for a loss note of one event; where its count stands.
    fn begin_loss_note(&mut self, tid: u32, note: &LossNote) -> Option<usize> {
        let start = self.reserve;
        if start == 0
            || start + (notes::LOSS_RECORDS + CLOSING_RECORDS) * EVENT_BYTES > self.reserve_end
        {
            return None;
        }
        let mut at = start;
        notes::loss(note, &mut |func, site| {
            hook::put_marker(at, tid, clock::now(), func, site);
            at += EVENT_BYTES;
            true
        });
        self.reserve = at;
        // `call_site` of the first record: see `notes::loss_count_word`.
        Some(start + 16)
    }
}

impl Segment {
    fn path(&self) -> Text<640> {
        let mut path = Text::new();
        path.push(config::get().directory.as_bytes()).push(b"/trace.");
        path.push_number(u64::from(process::identity().pid)).push(b".");
        path.push_number(u64::from(self.opener_tid)).push(b".");
        path.push_number(u64::from(self.seq)).push(b".bin");
        path
    }

    fn reopen(&self) -> Result<Fd, isize> {
        let mut path = self.path();
        Fd::open(path.terminated().ok_or(sys::ENOENT)?, O_RDWR | O_NOFOLLOW, 0)
    }

    /// Maps the file to the whole of its limit; less where address space is scarce.
    fn map(&mut self, file: &Fd) -> Result<(), isize> {
        loop {
            let mapped = sys::reserve_addresses(self.limit, WINDOW_BYTES)
                .and_then(|base| file.map(base, self.limit, 0));
            match mapped {
                Ok(base) => {
                    self.base = base;
                    return Ok(());
                }
                Err(_) if self.limit > LARGEST_STEP_BYTES => {
                    self.limit = (self.limit / 2) & !(WINDOW_BYTES - 1);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    fn is_full(&self) -> bool {
        self.allocated + WINDOW_BYTES > self.limit
    }

    fn holds(&self, address: usize) -> bool {
        self.base != 0 && (self.base..self.base + self.limit).contains(&address)
    }

    /// Whether a thread's window lies in it.
    fn is_written(&self) -> bool {
        threads::slots().any(|slot| self.holds(slot.window.load(Acquire)))
    }

    /// Enters and exits in it, and those that its own markers say went before.
    fn count_events(&self) -> u64 {
        count_events(self.base + FILE_HEADER_MAPPED_BYTES, self.base + self.next)
    }
}

/// Enters and exits in `from..to`, and those that wrap markers there stand for.
fn count_events(from: usize, to: usize) -> u64 {
    let mut events = 0;
    let mut at = from;
    while at < to {
        // SAFETY: callers pass what is mapped and has blocks.
        let event = unsafe { (at as *const Event).read() };
        events += match event.kind {
            KIND_ENTER | KIND_EXIT if event.ts != 0 => 1,
            KIND_MARKER if event.func == MARK_WRAP => event.call_site,
            _ => 0,
        };
        at += EVENT_BYTES;
    }
    events
}

/// Refuses to go below `TRACE_MIN_FREE_MB`.
fn check_space(file: &Fd, step: usize) -> Result<(), Stop> {
    let floor = config::get().min_free_bytes;
    match file.free_bytes() {
        Some(free) if floor > 0 && free < floor.saturating_add(step as u64) => {
            Err(Stop::io(sys::ENOSPC))
        }
        _ => Ok(()),
    }
}

/// Makes the capture directory and its parents; what fails shows when the file is opened.
fn make_directories() {
    let directory = config::get().directory.as_bytes();
    let mut path = Text::<520>::new();
    for (at, &byte) in directory.iter().enumerate() {
        if byte == b'/'
            && at > 0
            && let Some(parent) = path.terminated()
        {
            let _ = sys::make_directory(parent);
        }
        path.push_byte(byte);
    }
    if let Some(path) = path.terminated() {
        let _ = sys::make_directory(path);
    }
}

/// Counts an event that `thread` could not store.
pub fn count_loss(thread: &Thread, cause: Cause, ts: u64) {
    let slot = slot_of(thread);
    if let Some(slot) = slot {
        let lost = slot.lost.fetch_add(1, Relaxed) + 1;
        let word = slot.loss_word.load(Relaxed);
        if word != 0 {
            write_count(word, cause, lost);
            return;
        }
        if lost > 1 {
            // No room in the reserve: among the shared ones, below.
            slot.lost.fetch_sub(1, Relaxed);
        } else if let Some(word) = begin_note(thread, cause, ts) {
            slot.loss_word.store(word, Relaxed);
            return;
        }
    }
    let lost = SHARED_LOST.fetch_add(1, Relaxed) + 1;
    let word = SHARED_LOSS_WORD.load(Relaxed) as usize;
    if word != 0 {
        write_count(word, cause, lost);
    }
}

/// The count in place: one store, whole at any moment.
fn write_count(word: usize, cause: Cause, events: u64) {
    let note = LossNote { cause: cause as u32, events, first: 0, last: 0 };
    // SAFETY: in the reserve of a mapped segment, or 0, which callers exclude.
    unsafe { (*(word as *const AtomicU64)).store(notes::loss_count_word(&note), Relaxed) };
}

fn begin_note(thread: &Thread, cause: Cause, ts: u64) -> Option<usize> {
    let _blocked = sys::SignalsBlocked::new();
    let mut lock = Locked::take();
    let state = lock.state();
    let tid = thread.tid();
    // The first loss also makes the shared note, so that there is room for it.
    if SHARED_LOSS_WORD.load(Relaxed) == 0 {
        let none = LossNote { cause: cause as u32, events: 0, first: 0, last: 0 };
        let word = state.begin_loss_note(tid, &none).unwrap_or(0);
        SHARED_LOSS_WORD.store(word as u64, Relaxed);
    }
    let note = LossNote { cause: cause as u32, events: 1, first: ts, last: 0 };
    state.begin_loss_note(tid, &note)
}

/// `TRACE_MAX` is used up: recording stops.
pub fn stop_at_limit(thread: &Thread) {
    if STOPPED.load(Acquire) {
        return;
    }
    let payload = config::get().max_events;
    let stop = Stop { marker: MARK_MAX_EVENTS, payload, cause: Cause::Budget };
    let mut lock = Locked::take();
    lock.state().stop(thread.tid(), &stop);
}

/// Puts the files into the form that any reader takes: no unused slot before the end, the
/// closing anchor as the last record. Signals are blocked and hooks go the slow way.
pub fn close() {
    let mut lock = Locked::take();
    let state = lock.state();
    let tid = sys::gettid();
    let (ticks, ns) = clock::anchor();
    let Some(current) = state.current().copied() else { return };
    let mut end = current.base + current.next;
    for slot in threads::slots() {
        let window = slot.window.load(Acquire);
        let owned = state.segments.iter().take(state.count).any(|segment| segment.holds(window));
        if window != 0 && owned {
            let used = end_of_window(window);
            // Only a window that nobody stores into any more can lose its end.
            if window + WINDOW_BYTES == end && slot.tid.load(Relaxed) == tid {
                end = used;
            } else {
                hook::pad(used, window + WINDOW_BYTES, ticks, hook::marker_tail(tid));
            }
        }
    }
    if state.reserve != 0 && state.reserve_end == end {
        end = state.reserve;
    }
    let in_vain: u64 = threads::slots().map(leave_evicted).sum();
    let in_vain = in_vain + core::mem::take(&mut state.stored_in_vain);
    let Some(segment) = state.current() else { return };
    let Ok(file) = segment.reopen() else { return };
    if end + CLOSING_RECORDS * EVENT_BYTES > segment.base + segment.allocated {
        return;
    }
    if in_vain > 0 {
        hook::put_marker(end, tid, ticks, MARK_WRAP, in_vain);
        end += EVENT_BYTES;
    }
    notes::stop(StopReason::End, b"", &mut |func, site| {
        hook::put_marker(end, tid, ticks, func, site);
        end += EVENT_BYTES;
        true
    });
    if clock::is_ticks() {
        hook::put_marker(end, tid, ticks, MARK_CLOCK, ns);
        end += EVENT_BYTES;
    }
    let bytes = end - segment.base;
    if file.truncate(bytes).is_ok() {
        segment.allocated = bytes;
        state.closed_end = bytes;
    }
}

/// Behind the last event of a window.
fn end_of_window(window: usize) -> usize {
    let mut end = window + WINDOW_BYTES;
    let floor = window + if is_first_of_file(window) { FILE_HEADER_MAPPED_BYTES } else { 0 };
    // SAFETY: the window is mapped and has blocks.
    while end > floor && unsafe { *((end - EVENT_BYTES) as *const u64) } == 0 {
        end -= EVENT_BYTES;
    }
    end
}

fn is_first_of_file(window: usize) -> bool {
    // SAFETY: the window is mapped and has blocks.
    let start = unsafe { *(window as *const u64) };
    start == u64::from_ne_bytes(callsight_format::FILE_MAGIC)
}

/// Stores an event behind the closing anchor's place, and the anchor anew behind it.
pub fn append_late(thread: &mut Thread, event: [u64; 4]) {
    let mut lock = Locked::take();
    let state = lock.state();
    let end = state.closed_end;
    let Some(segment) = state.current() else { return };
    if end == 0 || STOPPED.load(Acquire) {
        return;
    }
    let Ok(file) = segment.reopen() else { return };
    let anchored = clock::is_ticks();
    let at = if anchored { end - EVENT_BYTES } else { end };
    let (ticks, ns) = clock::anchor();
    let records = [event, [ticks, MARK_CLOCK, ns, hook::marker_tail(thread.tid())]];
    let bytes = if anchored { 2 * EVENT_BYTES } else { EVENT_BYTES };
    // SAFETY: two records are 64 bytes.
    let raw = unsafe { core::slice::from_raw_parts(records.as_ptr().cast::<u8>(), bytes) };
    if file.write_at(raw, at).is_ok() {
        state.closed_end = at + bytes;
    }
}
