//! The sheet of a thread: its open calls and where each function's record is, in private memory,
//! and the records, in a mapped file.
//!
//! The file is as long as its records at any moment, so that a reader needs to know nothing; the
//! blocks behind its end are reserved some records ahead, and the addresses for all.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use callsight_format::{
    SUMMARY_HEADER_BYTES, SUMMARY_MAGIC, SUMMARY_RECORD_BYTES, SUMMARY_VERSION, SummaryHeader,
    SummaryRecord,
};

use crate::bytes::Text;
use crate::file;
use crate::guard;
use crate::sys::{self, Fd, O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR, SignalsBlocked};
use crate::{clock, config, process};

/// Most functions of a thread that have a record.
const FUNCTIONS: usize = 4096;
/// Number of all the others.
pub const NO_FUNCTION: u32 = FUNCTIONS as u32;
/// Most open calls: a stack of 8 MiB with 32 bytes a call. 12 MiB of addresses, of which a thread
/// uses what it is deep.
pub const STACK: usize = 256 << 10;
/// [`Sheet::limit`] at first.
const FIRST_LIMIT: usize = 64;
/// Entries of the table at first and at most: it is at most half full.
const FIRST_ENTRIES: usize = 64;
const MOST_ENTRIES: usize = 2 * FUNCTIONS;
/// How far from its place an entry may stand.
const PROBES: usize = 32;
/// Bytes for which blocks are reserved at a time: the header and 16 records.
const STEP_BYTES: usize = 12 << 10;
/// Most bytes of a file, and of the addresses it is mapped to.
const MOST_BYTES: usize = SUMMARY_HEADER_BYTES + FUNCTIONS * SUMMARY_RECORD_BYTES;
/// Alignment of a sheet: that of a window, so that its address is that of a full one.
const ALIGN: usize = file::WINDOW_BYTES;
/// Alignment of a mapped file: a page of any kernel.
const FILE_ALIGN: usize = 64 << 10;

/// Bytes reserved for all files of the process, under `TRACE_MAX_MB`.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// See [`super::after_fork`].
pub fn after_fork() {
    RESERVED.store(0, Relaxed);
}

/// An open call.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Frame {
    pub func: usize,
    /// Return address in the caller.
    pub site: usize,
    pub stack_pointer: usize,
    pub entered: u64,
    /// Time of the calls it made.
    pub children: u64,
    /// Of its function.
    pub number: u32,
    /// No other call of the function was open.
    pub outermost: bool,
}

/// See the file's first lines.
#[repr(C)]
pub struct Sheet {
    /// Lower half: open calls. Upper half: how often the lower one has changed.
    pub top: u64,
    /// When its thread was seen first.
    pub first_ts: u64,
    /// Where the file is mapped; 0 for none.
    pub file: usize,
    /// As deep as the stack gets without a look at whether all of it is open.
    pub limit: usize,
    /// Entries of the table in use, less one.
    mask: u32,
    /// Functions that have a record.
    records: u32,
    /// Bytes of the file that have blocks.
    reserved: usize,
    /// No more functions: no room for them.
    full: bool,
    tid: u32,
    /// How many files of threads with this id there were before.
    again: u32,
    has_asked_for_folder: bool,
    /// By number: a call of the function is open; a time of it is in its record.
    pub open: [u8; FUNCTIONS + 1],
    pub sampled: [u8; FUNCTIONS + 1],
    /// Number of a function plus one, by its hash; 0 for none.
    table: [u32; MOST_ENTRIES + PROBES],
    /// The open calls, from 1 on.
    pub frames: [Frame; STACK + 1],
}

#[inline(always)]
fn hash(func: usize) -> usize {
    // The golden ratio: addresses are multiples of 16 more often than not.
    ((func as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

/// The end of a file's map that starts at `start` (0 for none), if it holds `address`.
pub fn end_of_map(start: usize, address: usize) -> Option<usize> {
    let bytes = MOST_BYTES.next_multiple_of(FILE_ALIGN);
    (start != 0 && address.wrapping_sub(start) < bytes).then_some(start + bytes)
}

/// Each takes a sheet of the calling thread, or one whose thread is gone.
impl Sheet {
    /// An empty sheet; `None` when there is no memory.
    pub fn new() -> Option<*mut Sheet> {
        let bytes = size_of::<Sheet>().next_multiple_of(ALIGN);
        sys::private_memory(bytes, ALIGN).ok().map(|at| at as *mut Sheet)
    }

    /// Empties a sheet for the next thread. The file at `kept` stays mapped.
    pub unsafe fn clear(sheet: *mut Sheet, kept: usize) {
        // SAFETY: the caller is alone with the sheet; all of its fields may be zero.
        unsafe {
            if (*sheet).file != 0 && (*sheet).file != kept {
                sys::unmap((*sheet).file, MOST_BYTES.next_multiple_of(FILE_ALIGN));
            }
            let before_frames = core::mem::offset_of!(Sheet, frames);
            core::ptr::write_bytes(sheet.cast::<u8>(), 0, before_frames);
            core::ptr::write_bytes((&raw mut (*sheet).frames).cast::<u8>(), 0, size_of::<Frame>());
        }
    }

    #[inline(always)]
    pub unsafe fn header(sheet: *mut Sheet) -> *mut SummaryHeader {
        // SAFETY: see above.
        unsafe { (*sheet).file as *mut SummaryHeader }
    }

    #[inline(always)]
    pub unsafe fn record(sheet: *mut Sheet, number: u32) -> *mut SummaryRecord {
        let offset = SUMMARY_HEADER_BYTES + number as usize * SUMMARY_RECORD_BYTES;
        // SAFETY: see above.
        unsafe { ((*sheet).file + offset) as *mut SummaryRecord }
    }

    /// The number of the function at `func`, if it has one.
    #[inline(always)]
    pub unsafe fn find(sheet: *mut Sheet, func: usize) -> Option<u32> {
        // SAFETY: see above; numbers in the table have records.
        unsafe {
            let place = hash(func) & (*sheet).mask as usize;
            let table = (&raw const (*sheet).table).cast::<u32>().add(place);
            let mut step = 0;
            loop {
                // A signal handler may change the table: a number read is then still right, and one
                // that is not found is looked for again.
                let number = table.add(step).read_volatile().checked_sub(1)?;
                if (*Self::record(sheet, number)).func == func as u64 {
                    return Some(number);
                }
                step += 1;
                if step == PROBES {
                    return None;
                }
            }
        }
    }

    /// Gives the function at `func` a record; `None` when there is no room.
    #[cold]
    pub unsafe fn add_function(sheet: *mut Sheet, func: usize) -> Option<u32> {
        // SAFETY: see above.
        unsafe {
            if (*sheet).full {
                return None;
            }
            let _blocked = SignalsBlocked::new();
            if let Some(number) = Self::find(sheet, func) {
                return Some(number);
            }
            let number = (*sheet).records;
            if number == NO_FUNCTION || Self::grow(sheet).is_none() {
                (*sheet).full = true;
                return None;
            }
            (*Self::record(sheet, number)).func = func as u64;
            (*sheet).records += 1;
            (*Self::header(sheet)).records = u64::from((*sheet).records);
            while !Self::enlist(sheet, number) {
                if !Self::widen(sheet) {
                    (*sheet).full = true;
                    return None;
                }
            }
            Some(number)
        }
    }

    /// Puts a function into the table; `false` when it is crowded.
    unsafe fn enlist(sheet: *mut Sheet, number: u32) -> bool {
        // SAFETY: see above.
        unsafe {
            let entries = (*sheet).mask as usize + 1;
            if 2 * number as usize >= entries {
                return false;
            }
            let place = hash((*Self::record(sheet, number)).func as usize) & (entries - 1);
            let near = (*sheet).table.get_mut(place..place + PROBES);
            let free = near.and_then(|near| near.iter_mut().find(|entry| **entry == 0));
            free.map(|entry| *entry = number + 1).is_some()
        }
    }

    /// Doubles the table, as often as it takes to hold all but the newest function.
    unsafe fn widen(sheet: *mut Sheet) -> bool {
        // SAFETY: see above.
        unsafe {
            loop {
                let entries = 2 * ((*sheet).mask as usize + 1);
                if entries > MOST_ENTRIES {
                    return false;
                }
                (*sheet).mask = entries as u32 - 1;
                (*sheet).table.fill(0);
                if (0..(*sheet).records - 1).all(|number| Self::enlist(sheet, number)) {
                    return true;
                }
            }
        }
    }

    /// Makes the file of thread `tid`, which is the caller; whether that was possible.
    pub unsafe fn open_file(sheet: *mut Sheet, tid: u32) -> bool {
        // SAFETY: see above.
        let (at, sheet) = (sheet as usize, unsafe { &mut *sheet });
        sheet.tid = tid;
        sheet.mask = FIRST_ENTRIES as u32 - 1;
        sheet.first_ts = clock::now();
        // No function has this address.
        sheet.frames[0].func = at;
        sheet.limit = FIRST_LIMIT;
        let Some(file) = sheet.create() else { return false };
        let mapped = sheet.lengthen(&file, SUMMARY_HEADER_BYTES).and_then(|()| {
            let bytes = MOST_BYTES.next_multiple_of(FILE_ALIGN);
            let base = sys::reserve_addresses(bytes, FILE_ALIGN).ok()?;
            file.map(base, bytes, 0).ok()
        });
        let Some(base) = mapped else {
            if let Some(path) = sheet.path().terminated() {
                let _ = sys::unlink(path);
            }
            RESERVED.fetch_sub(sheet.reserved as u64, Relaxed);
            return false;
        };
        let origin = clock::origin();
        let header = SummaryHeader {
            magic: SUMMARY_MAGIC,
            version: SUMMARY_VERSION,
            record_size: SUMMARY_RECORD_BYTES as u32,
            header_size: SUMMARY_HEADER_BYTES as u32,
            flags: origin.flags,
            load_bias: origin.load_bias,
            tick_hz: origin.tick_hz,
            t0_ticks: origin.t0_ticks,
            t0_ns: origin.t0_ns,
            hook_ns: origin.hook_ns,
            pid: process::identity().pid,
            tid,
            records: 0,
            span: 0,
            truncated: 0,
            counter_n: 0,
            pad: 0,
            counter_type: [0; 3],
            pad2: 0,
            counter_config: [0; 3],
            counter_self: [0; 3],
            counter_read_ns: 0,
            counter_skipped: 0,
            counter_mux: 0,
        };
        // Before the first store: `super::end_of_map` finds it here.
        sheet.file = base;
        guard::install();
        // SAFETY: the first bytes of a file mapped by us.
        unsafe { (base as *mut SummaryHeader).write(header) };
        true
    }

    fn create(&mut self) -> Option<Fd> {
        loop {
            let mut path = self.path();
            let path = path.terminated()?;
            match Fd::open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0o644) {
                // Of an earlier thread with this id, or of an earlier run that had this pid.
                Err(sys::EEXIST) => self.again += 1,
                Err(sys::ENOENT) if !self.has_asked_for_folder => {
                    self.has_asked_for_folder = true;
                    file::make_directories();
                }
                opened => return opened.ok(),
            }
        }
    }

    fn path(&self) -> Text<640> {
        let mut path = Text::new();
        path.push_text(&config::get().directory).push(b"/trace.summary.");
        path.push_number(u64::from(process::identity().pid)).push(b".");
        path.push_number(u64::from(self.tid));
        if self.again > 0 {
            path.push(b".").push_number(u64::from(self.again));
        }
        path.push(b".bin");
        path
    }

    /// Makes room for one more record.
    unsafe fn grow(sheet: *mut Sheet) -> Option<()> {
        // SAFETY: see above.
        let sheet = unsafe { &mut *sheet };
        let mut path = sheet.path();
        let file = Fd::open(path.terminated()?, O_RDWR | O_NOFOLLOW, 0).ok()?;
        let records = sheet.records as usize + 1;
        sheet.lengthen(&file, SUMMARY_HEADER_BYTES + records * SUMMARY_RECORD_BYTES)
    }

    /// Makes the file `bytes` long, with blocks that no store can find missing.
    fn lengthen(&mut self, file: &Fd, bytes: usize) -> Option<()> {
        if bytes as u64 > sys::file_size_limit() {
            return None;
        }
        if bytes > self.reserved {
            let before = RESERVED.fetch_add(STEP_BYTES as u64, Relaxed);
            let most = config::get().max_bytes;
            let fits = most == 0 || before + STEP_BYTES as u64 <= most;
            let to = self.reserved + STEP_BYTES;
            let is_done = fits
                && file::has_space(file, STEP_BYTES)
                && file.reserve_behind(self.reserved, to).is_ok();
            if !is_done {
                RESERVED.fetch_sub(STEP_BYTES as u64, Relaxed);
                return None;
            }
            self.reserved = to;
        }
        file.truncate(bytes).ok()
    }
}
