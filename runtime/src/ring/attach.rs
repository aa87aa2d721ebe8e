//! Coming to a ring and leaving it: opened or made, checked, and counted in under its lock.

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use callsight_format::{
    COMMAND_CLOSED, COMMAND_RECORD, FIRST_PID_NAMESPACE, FLAG_TICKS, Origin, PROCESS_ATTACHED,
    PROCESS_DETACHED, PROCESS_FORKED, PROCESS_FREE, RING_CONTROL_OFFSET, RING_DEFAULT_BYTES,
    RING_HEADER_BYTES, RING_MAGIC, RING_MIN_BYTES, RING_PROCESSES, RING_PROCESSES_OFFSET,
    RING_SPARE_PREFIX, RING_UNBORN_PREFIX, RING_VERSION, RING_VERSION_STREAM, RingControl,
    RingHeader, RingLayout, RingProcess,
};

use super::turn::{self, Turn};
use super::{
    BASE, LAYOUT, base, control, free_bits, header, layout, total_dropped, word32, word64, writer,
};
use crate::bytes::Text;
use crate::guard::{self, Holds};
use crate::process::{self, Sink};
use crate::sys::{self, EAGAIN, Fd, O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR};
use crate::threads::{self, Slot};
use crate::{clock, config, filter, proc_fs, stream};

/// A ring file that was opened and mapped.
pub struct Mapped {
    /// Address of the header.
    pub base: usize,
    /// Its version.
    pub version: u32,
    /// Its capacity.
    pub capacity: u32,
}

/// The pid namespace of this process; 0 where it is not known.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);

const FOREIGN: &[u8] = b"it is of another pid namespace, as of another container: \
    run the drain in this one, or share the namespace";
const PROC_IS_ANOTHERS: &[u8] = b"/proc is that of another pid namespace, \
    and does not say who this process is: mount one of its own";

/// Whether a ring that was made in this pid namespace is for others: pid and start time, by which a
/// ring knows who lives, say nothing to them of us, nor to us of them.
fn is_foreign(made_in: u64) -> bool {
    let own = NAMESPACE.load(Relaxed);
    made_in != 0 && own != 0 && made_in != own
}

fn find_out_namespace() -> Result<(), &'static [u8]> {
    let me = process::identity();
    let own = proc_fs::pid_namespace(me.pid).ok_or(PROC_IS_ANOTHERS)?;
    if own == 0 && me.flags & PROCESS_FORKED != 0 && me.parent_pid == 0 {
        // Only a parent in another one has no number here.
        return Err(FOREIGN);
    }
    NAMESPACE.store(own, Relaxed);
    Ok(())
}

/// Opens the ring of `TRACE_SHM`, or makes it, and attaches this process.
///
/// # Errors
/// Why it cannot be used; files are written instead.
pub fn attach() -> Result<Sink, &'static [u8]> {
    if filter::forbids(filter::LOOK | filter::MAKE) {
        return Err(b"a filter of system calls forbids to open it");
    }
    find_out_namespace()?;
    // A closed ring loses its name within a moment.
    for _ in 0..200 {
        let mapped = open_or_create()?;
        if mapped.version == RING_VERSION_STREAM {
            stream::attach(&mapped);
            return Ok(Sink::Stream);
        }
        let attached = attach_to(&mapped);
        if attached == Ok(true) {
            return Ok(Sink::Ring);
        }
        let bytes = RingLayout::of(u64::from(mapped.capacity)).total_bytes;
        guard::unmap(mapped.base, bytes as usize);
        attached?;
        sys::sleep_ns(1_000_000);
    }
    Err(b"it is closed and keeps its name; remove it")
}

/// Attaches a forked child to the ring of its parent, which it has mapped already: whatever the parent
/// has given up since (rights, a root folder, room for descriptors or addresses), nothing is opened.
/// `false` where that ring is closed, or for another pid namespace.
pub fn attach_again() -> bool {
    let base = base();
    if base == 0 || is_elsewhere() {
        return false;
    }
    let mapped = Mapped { base, version: RING_VERSION, capacity: layout().capacity };
    attach_to(&mapped).unwrap_or(false)
}

/// Whether this forked child is not in the pid namespace that its parent's ring is for. Where
/// nobody says, a parent that it cannot see tells.
fn is_elsewhere() -> bool {
    let me = process::identity();
    me.parent_pid == 0 || proc_fs::pid_namespace(me.pid).is_none_or(is_foreign)
}

/// Attaches to a version 3 ring. `Ok(false)` when it is closed.
///
/// # Errors
/// Its times are of another clock: one header says for all of its processes what they mean.
fn attach_to(mapped: &Mapped) -> Result<bool, &'static [u8]> {
    let _lock = AttachLock::take(mapped.base);
    if field!(word32, control(mapped.base), command).load(Acquire) == COMMAND_CLOSED {
        return Ok(false);
    }
    let is_new = field!(word64, header(mapped.base), t0_ns).load(Acquire) == 0;
    let theirs = field!(word32, header(mapped.base), flags).load(Relaxed);
    if !is_new && (theirs & FLAG_TICKS != 0) != clock::is_ticks() {
        return Err(b"those who record into it have another clock (TRACE_CLOCK)");
    }
    let me = process::identity();
    // Where the table is full its writers name it, until it is dead.
    if let Some(entry) = free_process(mapped.base) {
        field!(word32, entry, pid).store(me.pid, Relaxed);
        field!(word64, entry, start).store(me.start, Relaxed);
        field!(word32, entry, state).store(PROCESS_ATTACHED, Release);
        field!(word32, header(mapped.base), writers).fetch_add(1, AcqRel);
    }
    if is_new {
        write_origin(mapped.base, &clock::origin());
    }
    if BASE.load(Relaxed) != mapped.base {
        // A child that is forked meanwhile must not find the one with the other.
        BASE.swap(0, AcqRel);
        // SAFETY: see `layout`.
        unsafe { *LAYOUT.get() = RingLayout::of(u64::from(mapped.capacity)) };
        BASE.store(mapped.base, Release);
    }
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
    sys::process_is_gone(pid)
        || proc_fs::Stat::of(pid)
            // 0 where it is not known.
            .is_some_and(|now| now.has_ended || start != 0 && now.start != start)
}

/// The lock for attaching and detaching, held by a pid (a tid would be asked for); taken over from one that is gone, given
/// up after half a second: then the work is done without it, which at worst miscounts `writers`.
struct AttachLock {
    word: &'static AtomicU32,
    held: bool,
}

impl AttachLock {
    fn take(base: usize) -> AttachLock {
        let word = field!(word32, header(base), lock);
        let me = process::identity().pid;
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
    if name.is_empty() {
        return Err(b"its name is empty");
    }
    if name.contains(&b'/') {
        return Err(b"its name holds a slash behind the first byte");
    }
    let mut path = Text::<300>::new();
    path.push(b"/dev/shm/").push(name);
    let Some(path) = path.terminated() else { return Err(b"its name is too long") };
    let (mut turn, mut made, mut no_room) = (Turn::of(name, asked_bytes()), 0, 0);
    while made < 100 {
        if let Some(mapped) = find(path, name)? {
            return Ok(mapped);
        }
        if !turn.is_ours() {
            continue;
        }
        // Whoever had the turn before may have made it.
        if let Some(mapped) = find(path, name)? {
            return Ok(mapped);
        }
        made += 1;
        match create(path) {
            Ok(Some(mapped)) => return Ok(mapped),
            // A drain that makes a spare one, or the maker of another ring, may be done in a moment.
            Err(NO_ROOM) if no_room < 4 => no_room += 1,
            Ok(None) => {}
            Err(why) => return Err(why),
        }
        turn.end();
        sys::sleep_ns(no_room * 2_000_000);
    }
    Err(b"it comes and goes")
}

/// The ring of this name where it is there, or could be made of a spare one.
fn find(path: &[u8], name: &[u8]) -> Result<Option<Mapped>, &'static [u8]> {
    if let Some(mapped) = open(path)? {
        return Ok(Some(mapped));
    }
    take_spare(path, name)?;
    // Another one may have taken it.
    open(path)
}

fn open(path: &[u8]) -> Result<Option<Mapped>, &'static [u8]> {
    match Fd::open(path, O_RDWR | O_NOFOLLOW, 0) {
        Ok(file) => map_existing(&file).map(Some),
        Err(sys::ENOENT) => Ok(None),
        Err(_) => Err(b"it cannot be opened"),
    }
}

/// Gives the spare ring that a waiting drain has made ([`RING_SPARE_PREFIX`]) the name `path`, if it is
/// what this process would make: to make one takes milliseconds, because all of its memory has to be
/// there. What it holds is then checked like that of any other ring.
///
/// # Errors
/// The drain waits in another pid namespace, for the processes there.
fn take_spare(path: &[u8], name: &[u8]) -> Result<(), &'static [u8]> {
    let mut spare = Text::<320>::new();
    spare.push(b"/dev/shm/").push(RING_SPARE_PREFIX.as_bytes()).push(name);
    let Some(spare) = spare.terminated() else { return Ok(()) };
    let Ok(file) = Fd::open(spare, O_RDWR | O_NOFOLLOW, 0) else { return Ok(()) };
    let Ok(stat) = file.stat() else { return Ok(()) };
    if stat.uid != sys::geteuid() || stat.mode & 0o077 != 0 {
        return Ok(());
    }
    if is_foreign(pid_namespace_in(&file)) {
        // Its drain holds its lock as long as it waits.
        return if file.try_lock() == Err(EAGAIN) { Err(FOREIGN) } else { Ok(()) };
    }
    // Without holes: a full /dev/shm must never meet a store.
    if stat.size == asked_bytes() && stat.blocks * 512 >= stat.size {
        // Where it fails another one was quicker.
        let _ = sys::rename(spare, path);
    }
    Ok(())
}

/// The pid namespace that the control block of a ring names.
fn pid_namespace_in(file: &Fd) -> u64 {
    const AT: usize = RING_CONTROL_OFFSET + offset_of!(RingControl, pid_namespace);
    let mut start = [0; AT + 8];
    file.read_all(&mut start);
    start.last_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

const CONTRADICTION: &[u8] = b"its header contradicts itself";

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
    let trouble = match seen.version {
        RING_VERSION if !layout.agrees_with(&seen, &control) => CONTRADICTION,
        RING_VERSION if is_foreign(control.pid_namespace) => FOREIGN,
        _ => return Ok(Mapped { base, version: seen.version, capacity: seen.capacity }),
    };
    guard::unmap(base, bytes as usize);
    Err(trouble)
}

fn page_align(layout: &RingLayout) -> usize {
    (layout.page_bytes as usize).max(4096)
}

fn map(file: &Fd, bytes: u64, align: usize) -> Result<usize, &'static [u8]> {
    let bytes = (bytes as usize).next_multiple_of(align);
    let base = sys::reserve_addresses(bytes, align)
        .and_then(|base| file.map(base, bytes, 0))
        .map_err(|_| &b"it cannot be mapped"[..])?;
    guard::cover(base, bytes, Holds::Ring);
    Ok(base)
}

const NO_ROOM: &[u8] = b"/dev/shm has not enough room for it";
const ABOVE_LIMIT: &[u8] = b"it would be larger than files may be here (ulimit -f)";

/// By what number a ring is named that this process is making: those of other pid namespaces with the
/// same pid, as each container has a process 1, make theirs at the same time.
fn unborn_number(pid: u32) -> u64 {
    /// Behind the largest pid, and in front of the numbers of turns.
    const NUMBERS: Range<u64> = 4_194_305..turn::FIRST_NUMBER as u64;
    match NAMESPACE.load(Relaxed) {
        0 | FIRST_PID_NAMESPACE => u64::from(pid),
        other => {
            let mixed = other.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(pid));
            NUMBERS.start + mixed % (NUMBERS.end - NUMBERS.start)
        }
    }
}

/// Makes a ring under another name and gives it the right one when it is whole. `Ok(None)` when
/// somebody else was quicker.
fn create(path: &[u8]) -> Result<Option<Mapped>, &'static [u8]> {
    let (config, layout, bytes) = (config::get(), asked_layout(), asked_bytes());
    // To try would bring a signal that ends the program.
    if bytes > sys::file_size_limit() {
        return Err(ABOVE_LIMIT);
    }
    let mut unborn = Text::<320>::new();
    unborn
        .push(b"/dev/shm/")
        .push(RING_UNBORN_PREFIX.as_bytes())
        .push_number(unborn_number(process::identity().pid));
    let Some(unborn) = unborn.terminated() else { return Ok(None) };
    let _ = sys::unlink(unborn);
    let file = Fd::open(unborn, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
        .map_err(|_| &b"it cannot be made in /dev/shm"[..])?;
    let made = file
        .reserve(0, bytes as usize)
        .map_err(|_| NO_ROOM)
        .and_then(|()| map(&file, bytes, page_align(&layout)));
    let named = made.map(|base| {
        initialise(base, &layout, config.ring_version);
        let named = sys::link(unborn, path).is_ok();
        if !named {
            guard::unmap(base, bytes as usize);
        }
        named.then_some(Mapped { base, version: config.ring_version, capacity: layout.capacity })
    });
    let _ = sys::unlink(unborn);
    named
}

/// The layout that `TRACE_SHM_SIZE` asks for.
fn asked_layout() -> RingLayout {
    let asked = config::get().ring_bytes;
    RingLayout::of(if asked == 0 { RING_DEFAULT_BYTES } else { asked })
}

/// Bytes of such a ring.
fn asked_bytes() -> u64 {
    match config::get().ring_version {
        RING_VERSION_STREAM => RING_HEADER_BYTES as u64 + u64::from(asked_layout().capacity),
        _ => asked_layout().total_bytes,
    }
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
        (*words).pid_namespace = NAMESPACE.load(Relaxed);
    }
    for page in 0..layout.page_count {
        free_bits(base, page / 64).fetch_or(1 << (page % 64), Relaxed);
    }
}

/// Counts events of threads that have no place, whose process may not have attached.
pub fn count_unattached(events: u32) {
    field!(word64, control(base()), no_slot).fetch_add(events.into(), Relaxed);
}

fn has_dropped(place: &Slot) -> bool {
    let slot = place.ring_slot.load(Relaxed);
    slot > 0 && total_dropped(writer(slot - 1)) > 0
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
    let no_slot = field!(word64, control(base), no_slot).load(Relaxed);
    if no_slot > 0 || threads::slots().any(has_dropped) {
        // 2048 slots: not for nothing.
        let lost = (0..layout().slot_count)
            .fold(no_slot, |sum, slot| sum.wrapping_add(total_dropped(writer(slot))));
        field!(word64, header(base), dropped).fetch_max(lost, Relaxed);
    }
    if let Some(entry) = mine {
        field!(word32, entry, state).store(PROCESS_DETACHED, Release);
        field!(word32, header(base), writers).fetch_sub(1, AcqRel);
    }
}
