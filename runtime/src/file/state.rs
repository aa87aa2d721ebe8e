//! The segments of a process: grown, rotated, ended. All of it under the lock of the sink.

use core::sync::atomic::Ordering::*;

use callsight_format::{
    Cause, EVENT_BYTES, FILE_HEADER_MAPPED_BYTES, FLAG_WRAPPED, FileHeader, LossNote, MARK_BUDGET,
    MARK_NO_SPACE, MARK_WRITE_ERROR,
};

use super::segment::{NO_SEGMENT, Segment};
use super::{
    CLOSING_RECORDS, FIRST_STEP_BYTES, HEAD_LOSS_WORD, KEPT_MAPPED, LARGEST_STEP_BYTES,
    NOTE_COUNT_OFFSET, REMEMBERED, STOP_CAUSE, STOPPED, UNLIMITED_SEGMENT_BYTES, WINDOW_BYTES,
};
use crate::bytes::Text;
use crate::guard;
use crate::sys::{self, Fd, O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR};
use crate::window::{self, Window};
use crate::{clock, config, notes, process};

pub(super) struct State {
    /// The current one is the last.
    pub(super) segments: [Segment; REMEMBERED],
    pub(super) count: usize,
    pub(super) next_seq: u32,
    /// Bytes of all files that exist.
    pub(super) total_bytes: u64,
    pub(super) wrapped: bool,
    /// Events stored into windows whose segment was already rotated away, not yet told.
    pub(super) stored_in_vain: u64,
    /// The reserve: where the next record goes, and its end; 0 until something is said there.
    pub(super) reserve: usize,
    pub(super) reserve_end: usize,
    /// End of the file once it was closed: behind the closing anchor.
    pub(super) closed_end: usize,
}
/// Whether `TRACE_MIN_FREE_MB` holds for a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Floor {
    Kept,
    Ignored,
}

/// Why recording stops, as marker and payload.
pub(super) struct Stop {
    pub(super) marker: u64,
    pub(super) payload: u64,
    pub(super) cause: Cause,
}

impl Stop {
    pub(super) fn budget() -> Stop {
        Stop { marker: MARK_BUDGET, payload: config::get().max_bytes, cause: Cause::Budget }
    }

    pub(super) fn io(errno: isize) -> Stop {
        let floor = config::get().min_free_bytes;
        if errno == sys::ENOSPC && floor > 0 {
            return Stop { marker: MARK_NO_SPACE, payload: floor, cause: Cause::Io };
        }
        Stop { marker: MARK_WRITE_ERROR, payload: errno as u64, cause: Cause::Io }
    }
}
impl State {
    pub(super) fn current(&mut self) -> Option<&mut Segment> {
        self.segments.get_mut(self.count.checked_sub(1)?)
    }

    pub(super) fn next_window(&mut self, tid: u32) -> Result<Window, Stop> {
        if self.count == 0 {
            let opened = self.open_segment(tid);
            if let Err(stop) = &opened
                && stop.marker == MARK_NO_SPACE
            {
                // Little room is still room enough to say so.
                self.open_segment_for_words(tid);
            }
            return opened;
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
    pub(super) fn has_room(&mut self) -> bool {
        self.current().is_some_and(|segment| segment.next + 2 * WINDOW_BYTES <= segment.allocated)
    }

    /// Whether a window that ends at `end` is one of the current segment.
    pub(super) fn has_in_current(&mut self, end: usize) -> bool {
        self.current().is_some_and(|segment| segment.holds(end.wrapping_sub(1)))
    }

    /// Bytes that `TRACE_MAX_MB` leaves.
    pub(super) fn budget_left(&self) -> u64 {
        match config::get().max_bytes {
            0 => u64::MAX,
            max => max.saturating_sub(self.total_bytes),
        }
    }

    /// Reserves more of the current segment's file.
    pub(super) fn grow(&mut self) -> Result<(), Stop> {
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
        // All but the reserve, which is seldom written to.
        sys::populate(segment.base + from - WINDOW_BYTES, step);
        segment.allocated = to;
        self.total_bytes += step as u64;
        Ok(())
    }

    /// Begins the next segment, in place of the oldest where the capture is to wrap.
    pub(super) fn rotate(&mut self, tid: u32) -> Result<Window, Stop> {
        if config::get().wrap {
            let in_vain = core::mem::take(&mut self.stored_in_vain);
            if in_vain > 0 {
                self.tell_wrapped(tid, None, in_vain);
            }
            while self.budget_left() < self.segment_limit() as u64 && self.count > 1 {
                self.drop_oldest(tid)?;
            }
        }
        // Only with the next one open: the reserve of this one is needed when that fails.
        let window = self.open_segment(tid)?;
        self.trim_previous();
        self.forget_old();
        Ok(window)
    }

    /// Says in the reserve of the current segment that events are gone, with the file of a segment or
    /// without one.
    fn tell_wrapped(&mut self, tid: u32, segment: Option<u32>, events: u64) {
        self.begin_reserve();
        let at = self.reserve;
        let Some(current) = self.current().filter(|_| at != 0) else { return };
        current.next = at + EVENT_BYTES - current.base;
        self.reserve = at + EVENT_BYTES;
        window::put_wrap_marker(at, tid, clock::now(), segment, events);
    }

    /// Most bytes of a segment, a multiple of a window.
    pub(super) fn segment_limit(&self) -> usize {
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
    pub(super) fn trim_previous(&mut self) {
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
    pub(super) fn forget_old(&mut self) {
        let mut kept = 0;
        for index in 0..self.count {
            let Some(mut segment) = self.segments.get(index).copied() else { break };
            let old = index + KEPT_MAPPED < self.count;
            if old && segment.base != 0 && !segment.is_written() && !config::get().wrap {
                guard::unmap(segment.base, segment.limit);
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

    /// Removes the oldest segment's file. What goes with it is told first: a process that is killed in
    /// between leaves a file of which readers know that it was not removed.
    fn drop_oldest(&mut self, tid: u32) -> Result<(), Stop> {
        let Some(oldest) = self.segments.first().copied() else { return Ok(()) };
        let events = oldest.count_leaving();
        self.tell_wrapped(tid, Some(oldest.seq), events);
        let mut path = oldest.path();
        if let Err(errno) = path.terminated().ok_or(sys::ENOENT).and_then(sys::unlink)
            && errno != sys::ENOENT
        {
            oldest.stays();
            return Err(Stop::io(errno));
        }
        self.total_bytes -= oldest.allocated as u64;
        self.wrapped = true;
        if !oldest.is_written() {
            guard::unmap(oldest.base, oldest.limit);
        }
        for index in 1..self.count {
            let next = self.segments.get(index).copied().unwrap_or(NO_SEGMENT);
            if let Some(place) = self.segments.get_mut(index - 1) {
                *place = next;
            }
        }
        self.count -= 1;
        Ok(())
    }

    /// Makes the next segment file, with header and the notes every segment starts with, and
    /// gives its first window.
    pub(super) fn open_segment(&mut self, tid: u32) -> Result<Window, Stop> {
        self.open_segment_of(tid, FIRST_STEP_BYTES, Floor::Kept)
    }

    /// The same, only for what is said at the end.
    fn open_segment_for_words(&mut self, tid: u32) {
        if let Ok(unused) = self.open_segment_of(tid, 2 * WINDOW_BYTES, Floor::Ignored) {
            window::pad(unused.first, unused.end, clock::now(), window::marker_tail(tid));
        }
    }

    /// Ends recording because a segment's file was cut short, or cannot be written. In the next
    /// segment it stands how long the one before has to be, and how many events are lost from
    /// here on.
    pub(super) fn stop_after_cut(&mut self, tid: u32) {
        self.open_segment_for_words(tid);
        self.forget_old();
        self.stop(tid, &Stop::io(sys::EIO));
    }

    /// The same with `bytes` at first.
    fn open_segment_of(&mut self, tid: u32, bytes: usize, floor: Floor) -> Result<Window, Stop> {
        let limit = self.segment_limit();
        if self.budget_left() < 2 * WINDOW_BYTES as u64 {
            return Err(Stop::budget());
        }
        let mut segment = Segment { opener_tid: tid, limit, ..NO_SEGMENT };
        let file = self.create_file(&mut segment)?;
        if let Err(stop) = self.fill_first_windows(&mut segment, &file, bytes, floor) {
            if let Some(path) = segment.path().terminated() {
                let _ = sys::unlink(path);
            }
            self.next_seq = segment.seq;
            return Err(stop);
        }
        let Some(place) = self.segments.get_mut(self.count) else { return Err(Stop::io(0)) };
        *place = segment;
        self.count += 1;
        self.reserve = 0;
        self.write_head(tid)
    }

    pub(super) fn create_file(&mut self, segment: &mut Segment) -> Result<Fd, Stop> {
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

    pub(super) fn fill_first_windows(
        &mut self,
        segment: &mut Segment,
        file: &Fd,
        bytes: usize,
        floor: Floor,
    ) -> Result<(), Stop> {
        let left = self.budget_left() as usize & !(WINDOW_BYTES - 1);
        let bytes = bytes.min(segment.limit).min(left);
        if floor == Floor::Kept {
            check_space(file, bytes)?;
        }
        if bytes as u64 > sys::file_size_limit() {
            return Err(Stop::io(sys::EFBIG));
        }
        file.reserve(0, bytes).map_err(Stop::io)?;
        segment.map(file).map_err(Stop::io)?;
        segment.allocated = bytes;
        self.total_bytes += bytes as u64;
        sys::populate(segment.base, bytes - WINDOW_BYTES);
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
    pub(super) fn write_head(&mut self, tid: u32) -> Result<Window, Stop> {
        let before = self.count.checked_sub(2).and_then(|index| self.segments.get(index));
        let before = before.map(|segment| segment.next);
        let mut full = None;
        let mut put = |func, site| self.put_in_head(tid, (func, site), &mut full);
        let _ = before.is_none_or(|bytes| notes::segment(bytes, &mut put))
            && notes::process(notes::Again::Yes, &mut put)
            && process::tell_ring_trouble(&mut put)
            && notes::modules_at_head(&mut put);
        let at = self.current().map_or(0, |segment| segment.base + segment.next);
        let nothing = LossNote { cause: Cause::Io as u32, events: 0, first: 0, last: 0 };
        notes::loss(&nothing, &mut |func, site| self.put_in_head(tid, (func, site), &mut full));
        if let Some(stop) = full {
            return Err(stop);
        }
        HEAD_LOSS_WORD.store(at + NOTE_COUNT_OFFSET, SeqCst);
        process::settle_early_events();
        let segment = self.current().ok_or(Stop::io(0))?;
        let first = segment.base + segment.next;
        segment.next = (segment.next / WINDOW_BYTES + 1) * WINDOW_BYTES;
        Ok(Window { first, end: segment.base + segment.next })
    }

    /// Stores a record there, or says in `full` why there is no room.
    fn put_in_head(&mut self, tid: u32, words: (u64, u64), full: &mut Option<Stop>) -> bool {
        match self.head_slot() {
            Ok(slot) => window::put_marker(slot, tid, clock::now(), words.0, words.1),
            Err(stop) => *full = Some(stop),
        }
        full.is_none()
    }

    /// The next slot of the head; always with a slot behind it in the same window.
    pub(super) fn head_slot(&mut self) -> Result<usize, Stop> {
        let segment = self.current().ok_or(Stop::io(0))?;
        let slot = segment.next;
        // With a window behind this one, in reserve.
        if (slot / WINDOW_BYTES + 2) * WINDOW_BYTES > segment.allocated {
            self.grow()?;
        }
        let segment = self.current().ok_or(Stop::io(0))?;
        segment.next += EVENT_BYTES;
        Ok(segment.base + slot)
    }

    /// Begins what is said in the reserve of the current segment, if that is not begun.
    fn begin_reserve(&mut self) {
        if self.reserve == 0
            && let Some(segment) = self.current()
        {
            let reserve = segment.base + segment.next.next_multiple_of(WINDOW_BYTES);
            let end = reserve + WINDOW_BYTES;
            if end <= segment.base + segment.allocated {
                (self.reserve, self.reserve_end) = (reserve, end);
            }
        }
    }

    /// Ends recording: says why in the reserve.
    pub(super) fn stop(&mut self, tid: u32, stop: &Stop) {
        STOP_CAUSE.store(stop.cause as u32, Relaxed);
        self.begin_reserve();
        let (at, end) = (self.reserve, self.reserve_end);
        if at != 0
            && let Some(segment) = self.current()
        {
            segment.next = end - segment.base;
            window::put_marker(at, tid, clock::now(), stop.marker, stop.payload);
            self.reserve = at + EVENT_BYTES;
        }
        STOPPED.store(true, Release);
    }

    /// Slots in the reserve for a loss note of one event; where its count stands.
    pub(super) fn begin_loss_note(&mut self, tid: u32, note: &LossNote) -> Option<usize> {
        let start = self.reserve;
        if start == 0
            || start + (notes::LOSS_RECORDS + CLOSING_RECORDS) * EVENT_BYTES > self.reserve_end
        {
            return None;
        }
        let mut at = start;
        notes::loss(note, &mut |func, site| {
            window::put_marker(at, tid, clock::now(), func, site);
            at += EVENT_BYTES;
            true
        });
        self.reserve = at;
        Some(start + NOTE_COUNT_OFFSET)
    }
}
/// Refuses to go below `TRACE_MIN_FREE_MB`.
fn check_space(file: &Fd, step: usize) -> Result<(), Stop> {
    if has_space(file, step) { Ok(()) } else { Err(Stop::io(sys::ENOSPC)) }
}

/// Whether `TRACE_MIN_FREE_MB` lets a file grow by `step` bytes.
pub fn has_space(file: &Fd, step: usize) -> bool {
    let floor = config::get().min_free_bytes;
    let left = |free: u64| free >= floor.saturating_add(step as u64);
    floor == 0 || file.free_bytes().is_none_or(left)
}

/// Makes the capture directory and its parents; what fails shows when the file is opened.
pub fn make_directories() {
    let directory = config::get().directory.as_bytes();
    let mut path = Text::<520>::new();
    path.push_text(&config::get().directory);
    // What is missing is the last part, if any, in all but the first run.
    if path.terminated().is_none_or(|whole| sys::make_directory(whole) != Err(sys::ENOENT)) {
        return;
    }
    path.clear();
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
