//! The process: found out at its first hook, again in each forked child, closed at exit.
//!
//! ```text
//! first hook ─► BUSY ─► READY ─► (exit) LATE: events still go out, one by one
//!                 └──► off, for good
//! ```
//!
//! [`PAGE`] is zeroed by the kernel in a forked child, so the child's first hook finds a process
//! that is not set up, whatever `fork`, `clone` or libc it came through.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use callsight_format::{COMMAND_PAUSE, Cause, KIND_ENTER, KIND_MARKER, PROCESS_FORKED, StopReason};

use crate::arch;
use crate::bytes::{Shared, Text};
use crate::sys::{self, SignalsBlocked};
use crate::{
    clock, config, file, filter, hook, modules, notes, proc_fs, recorder, ring, sandbox, stream,
    summary, threads,
};

/// What the hot path looks at, alone on a page of its own.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
pub struct Page {
    /// [`generation`] while events may be stored directly; 0 sends every hook the slow way: not
    /// set up, off, paused, another clock than ticks, a summary, or late. A thread whose block says
    /// another one has a window of another process: a forked child may be set up by any of its
    /// threads.
    pub direct: AtomicU32,
    /// [`UNKNOWN`], [`BUSY`] or [`READY`].
    phase: AtomicU32,
    /// As `direct`, while calls are summed up.
    pub summing: AtomicU32,
    /// [`generation`] and [`threads::LEFT_OUT`] once a pause was noticed, else 0: a hook whose thread's
    /// block says the same has nothing to do in a pause. The others come the slow way, and tell that there
    /// is one.
    pub pausing: AtomicU32,
    /// Who sets the process up.
    busy_tid: AtomicU32,
    /// Hooks that came before anything could be stored, not yet told.
    early_events: AtomicU32,
    /// Of these, enters: where calls are summed up, these are what is told.
    early_enters: AtomicU32,
}

/// See [`Page`].
pub static PAGE: Page = Page {
    direct: AtomicU32::new(0),
    phase: AtomicU32::new(UNKNOWN),
    summing: AtomicU32::new(0),
    pausing: AtomicU32::new(0),
    busy_tid: AtomicU32::new(0),
    early_events: AtomicU32::new(0),
    early_enters: AtomicU32::new(0),
};

// Read as one word.
#[cfg(target_arch = "x86_64")]
const _: () = assert!(
    core::mem::offset_of!(Page, summing) == 8 && core::mem::offset_of!(Page, pausing) == 12
);

/// What a hook looks at that may not store directly. A forked child inherits it.
#[repr(C)]
pub struct Gate {
    /// 1: tracing is off in this image and in its children.
    pub off: AtomicU32,
    /// Where the ring has its command; 0 without a ring.
    pub command: AtomicUsize,
}

/// See [`Gate`].
pub static GATE: Gate = Gate { off: AtomicU32::new(0), command: AtomicUsize::new(0) };

const UNKNOWN: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;

/// Somebody has begun to set up this process, or one that it was forked from.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// The process is ending; see [`close`].
static LATE: AtomicBool = AtomicBool::new(false);
/// Counts the processes set up in this image: its own and those of the forks before this one.
/// Behind [`LAST_GENERATION`] it begins again.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The largest one of a process: the numbers behind it have meanings.
const LAST_GENERATION: u32 = threads::GENERATIONS - 2;
/// Bytes of a window less one, whatever the clock.
pub static WINDOW_MASK: AtomicUsize = AtomicUsize::new(0);
static SINK: AtomicU32 = AtomicU32::new(Sink::File as u32);
/// Events that may still be recorded under `TRACE_MAX`.
static EVENTS_LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
/// The modules are not yet in the data.
static OWES_MODULES: AtomicBool = AtomicBool::new(false);

/// Where events go.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Sink {
    /// Segment files.
    File = 0,
    /// A version 3 ring.
    Ring = 1,
    /// A version 2 ring.
    Stream = 2,
    /// Summary files: no event is kept.
    Summary = 3,
}

/// Who this process is.
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub parent_pid: u32,
    /// Start time in clock ticks since boot.
    pub start: u64,
    /// `PROCESS_*` of the process note.
    pub flags: u32,
    exe: Text<4096>,
    /// Why the ring of `TRACE_SHM` is not used; empty when it is, or was not asked for.
    ring_trouble: &'static [u8],
}

impl Identity {
    /// Path of the executable.
    pub fn exe(&self) -> &[u8] {
        self.exe.as_bytes()
    }
}

static IDENTITY: Shared<Identity> = Shared::new(Identity {
    pid: 0,
    parent_pid: 0,
    start: 0,
    flags: 0,
    exe: Text::new(),
    ring_trouble: b"",
});

/// Who this process is; from the moment it is ready.
pub fn identity() -> &'static Identity {
    // SAFETY: written only while the process is being set up, by one thread.
    unsafe { &*IDENTITY.get() }
}

/// The number that [`threads::Thread::generation`] has in a block set up for this process.
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Whether hooks have nothing to do.
#[inline(always)]
pub fn is_off() -> bool {
    GATE.off.load(Relaxed) != 0
}

/// Nothing more is recorded, here and in the children. Called in a handler of a signal.
pub fn turn_off() {
    GATE.off.store(1, Relaxed);
    PAGE.direct.store(0, Relaxed);
}

/// Whether hooks have nothing to do for now.
#[inline(always)]
pub fn is_paused() -> bool {
    let command = GATE.command.load(Relaxed) as *const AtomicU32;
    // SAFETY: null, or a word of the ring, which stays mapped.
    unsafe { command.as_ref() }.is_some_and(|word| word.load(Relaxed) == COMMAND_PAUSE)
}

/// Whether in a pause nothing is left to do for a thread whose [`threads::Thread::generation`] this is.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn is_left_out(generation: u32) -> bool {
    generation & threads::LEFT_OUT != 0 && generation == PAGE.pausing.load(Relaxed)
}

/// The ring says pause: from now on every hook looks at what it says.
pub fn pause() {
    PAGE.pausing.store(generation() | threads::LEFT_OUT, Relaxed);
    PAGE.direct.store(0, Relaxed);
}

/// The ring does not say pause (any more).
#[inline(always)]
pub fn resume() {
    // All that a hook that turns a page asks here.
    if PAGE.direct.load(Relaxed) == 0 {
        store_directly();
    }
}

#[cold]
#[inline(never)]
fn store_directly() {
    if sink() == Sink::Ring && clock::is_ticks() {
        PAGE.direct.store(generation(), Relaxed);
    }
}

/// Whether the process has closed its capture.
pub fn is_late() -> bool {
    LATE.load(Acquire)
}

/// Bytes of a window less one.
#[inline(always)]
pub fn window_mask() -> usize {
    WINDOW_MASK.load(Relaxed)
}

/// For [`hook::measure_cost`]: windows of `bytes` bytes, stored to directly under `generation`.
pub fn set_trial(bytes: usize, generation: u32) {
    WINDOW_MASK.store(bytes - 1, Relaxed);
    PAGE.direct.store(generation, Relaxed);
}

/// Where events go.
pub fn sink() -> Sink {
    match SINK.load(Relaxed) {
        1 => Sink::Ring,
        2 => Sink::Stream,
        3 => Sink::Summary,
        _ => Sink::File,
    }
}

/// Sets the process up if nobody has. `false` when this hook can do nothing: too early for
/// thread-local storage, or called out of the set-up itself. Then an event of that `kind` is counted, and
/// none for `KIND_MARKER`.
#[inline(always)]
pub fn ensure_ready(kind: u8) -> bool {
    PAGE.phase.load(Acquire) == READY || get_ready(kind)
}

#[cold]
#[inline(never)]
fn get_ready(kind: u8) -> bool {
    loop {
        match PAGE.phase.load(Acquire) {
            READY => return true,
            UNKNOWN if filter::forbids(filter::BEGIN) => return false,
            UNKNOWN => {
                // A forked child has one: hooks of its parent have used it.
                if GENERATION.load(Relaxed) == 0 && arch::thread_pointer() == 0 {
                    count_early_event(kind);
                    return false;
                }
                let _blocked = SignalsBlocked::new();
                if GENERATION.load(Relaxed) == 0 {
                    // First: a child that is forked meanwhile has no thread that would go on.
                    sys::wipe_on_fork(&raw const PAGE as usize, size_of::<Page>());
                }
                if PAGE.phase.compare_exchange(UNKNOWN, BUSY, AcqRel, Relaxed).is_ok() {
                    PAGE.busy_tid.store(sys::gettid(), Relaxed);
                    // One at a time, for it tries what others of this memory would try too.
                    if is_guest() {
                        // Before: who begins next tells it.
                        count_early_event(kind);
                        PAGE.phase.store(UNKNOWN, Release);
                        return false;
                    }
                    set_up();
                    PAGE.phase.store(READY, Release);
                    return true;
                }
            }
            _ if PAGE.busy_tid.load(Relaxed) == sys::gettid() => {
                count_early_event(kind);
                return false;
            }
            _ => sys::yield_now(),
        }
    }
}

/// Counts an event of one that cannot begin: it may not even ask who it is (see [`filter`]), or is the child
/// of a `vfork`.
pub fn count_unbegun(kind: u8) {
    // An enter stands for its exit where calls are summed up.
    let events = match sink() {
        Sink::Summary if kind == KIND_ENTER => 2,
        Sink::Summary => 0,
        Sink::File | Sink::Ring | Sink::Stream => 1,
    };
    if !count_for_all(events) {
        count_early_event(kind);
        settle_early_events();
    }
}

/// Counts events where those of threads without a place are counted; whether there is such a place by now.
fn count_for_all(events: u32) -> bool {
    match sink() {
        Sink::Ring => {
            ring::count_unattached(events);
            true
        }
        Sink::File => file::count_shared_loss(Cause::NoSlot, events),
        Sink::Summary => summary::count_unbegun(events / 2),
        Sink::Stream => false,
    }
}

/// Counts those again that came when there was no place for it. Called when there is one.
pub fn settle_early_events() {
    let events = take_early_events();
    if events > 0 && !count_for_all(events) {
        PAGE.early_events.fetch_add(events, SeqCst);
        PAGE.early_enters.fetch_add(events / 2, SeqCst);
    }
}

/// Whether this is the child of a `vfork`, before its parent was set up. It would set the parent up as
/// itself: a process that is soon gone, whose windows are then free for others.
fn is_guest() -> bool {
    !filter::forbids(filter::PARENT | filter::LOOK | filter::MAKE)
        && !sys::has_robust_list()
        && proc_fs::is_in_memory_of(sys::getppid())
}

/// The same, where the parent is set up: a thread of it that has had no hook before its `vfork` may not
/// begin as a thread of the child.
pub fn is_run_by_guest() -> bool {
    sys::getpid() != identity().pid
}

/// Counts an event that comes before there is anything to store it in. The next thread that begins tells
/// it, or the process at its end.
fn count_early_event(kind: u8) {
    PAGE.early_events.fetch_add((kind != KIND_MARKER).into(), SeqCst);
    PAGE.early_enters.fetch_add((kind == KIND_ENTER).into(), SeqCst);
}

/// How many hooks came before anything could be stored: each is given once. Where calls are summed up, two
/// for each call.
pub fn take_early_events() -> u32 {
    if PAGE.early_events.load(SeqCst) == 0 {
        return 0;
    }
    let enters = PAGE.early_enters.swap(0, SeqCst);
    let events = PAGE.early_events.swap(0, SeqCst);
    if sink() == Sink::Summary { 2 * enters } else { events }
}

/// Everything that is done once a process. Signals are blocked, no other thread is past
/// [`ensure_ready`].
fn set_up() {
    // A child that was forked while its parent was being set up has of that what there was by then, and
    // begins anew.
    let forked = GENERATION.load(Relaxed) > 0;
    let is_child = BEGUN.swap(true, Relaxed);
    if is_child {
        threads::after_fork();
        modules::after_fork();
        file::after_fork();
        stream::after_fork();
        summary::after_fork();
        LATE.store(false, Relaxed);
    }
    if !forked {
        config::read();
        if !config::get().enabled {
            GATE.off.store(1, Relaxed);
            return;
        }
        clock::start();
    }
    find_out_who(is_child);
    if !forked {
        find_out_program();
        proc_fs::keep_mappings();
        let load_bias = notes::load_bias();
        clock::add_program(load_bias, hook::measure_cost());
    }
    let max_events = config::get().max_events;
    EVENTS_LEFT.store(if max_events == 0 { u64::MAX } else { max_events }, Relaxed);
    let sink = choose_sink(forked);
    SINK.store(sink as u32, Relaxed);
    GATE.command.store(if sink == Sink::Ring { ring::command_address() } else { 0 }, Relaxed);
    // The file sink writes them at the head of each segment.
    OWES_MODULES.store(matches!(sink, Sink::Ring | Sink::Stream), Relaxed);
    let generation = GENERATION.load(Relaxed) % LAST_GENERATION + 1;
    GENERATION.store(generation, Relaxed);
    let window_bytes = match sink {
        Sink::Ring => ring::page_bytes(),
        Sink::File | Sink::Stream | Sink::Summary => file::WINDOW_BYTES,
    };
    WINDOW_MASK.store(window_bytes - 1, Relaxed);
    // Only ticks are read on the hot path.
    if clock::is_ticks() && !is_off() {
        let gate = if sink == Sink::Summary { &PAGE.summing } else { &PAGE.direct };
        gate.store(generation, Release);
    }
}

fn find_out_who(is_child: bool) {
    // SAFETY: see `identity`.
    let me = unsafe { &mut *IDENTITY.get() };
    let former = me.pid;
    me.pid = sys::getpid();
    // The process that was set up last is the parent, or one before it.
    let can_ask = !filter::forbids(filter::PARENT);
    me.parent_pid = if can_ask { sys::getppid() } else { former };
    me.start = proc_fs::Stat::of(me.pid).map_or(0, |stat| stat.start);
    me.flags = if is_child { PROCESS_FORKED } else { 0 };
}

fn find_out_program() {
    static LINK: Shared<[u8; 4096]> = Shared::new([0; 4096]);
    // SAFETY: one thread sets the process up; see `identity`.
    let (link, me) = unsafe { (&mut *LINK.get(), &mut *IDENTITY.get()) };
    let len = sys::read_link(b"/proc/self/exe\0", link).unwrap_or(0);
    me.exe.clear();
    me.exe.push(link.get(..len).unwrap_or(&[]));
}

fn choose_sink(forked: bool) -> Sink {
    // SAFETY: see `identity`.
    let me = unsafe { &mut *IDENTITY.get() };
    me.ring_trouble = b"";
    if config::get().summary {
        return Sink::Summary;
    }
    if !config::get().wants_ring {
        return Sink::File;
    }
    let parents = sink();
    if forked && parents == Sink::Ring && ring::attach_again() {
        return parents;
    }
    match ring::attach() {
        Ok(sink) => sink,
        Err(_) if forked && parents == Sink::Stream && stream::attach_again() => parents,
        Err(trouble) => {
            me.ring_trouble = trouble;
            Sink::File
        }
    }
}

/// The note that a capture in files starts with when a ring was asked for; true when none is due.
pub fn tell_ring_trouble(put: notes::Put) -> bool {
    let trouble = identity().ring_trouble;
    trouble.is_empty() || notes::stop(StopReason::RingUnusable, trouble, put)
}

/// Whether somebody has that duty to take over.
pub fn owes_modules() -> bool {
    OWES_MODULES.load(Relaxed)
}

/// Whether this call takes over the duty to tell the modules.
pub fn take_duty_to_tell_modules() -> bool {
    owes_modules() && OWES_MODULES.swap(false, AcqRel)
}

/// Gives the duty back: not all could be told.
pub fn give_back_duty_to_tell_modules() {
    OWES_MODULES.store(true, Release);
}

/// Whether `TRACE_MAX` is set.
pub fn is_limited() -> bool {
    EVENTS_LEFT.load(Relaxed) != u64::MAX
}

/// How many of `wanted` events may be recorded: all of them without `TRACE_MAX`, else a share that
/// keeps threads from holding what others could use: 16 in a thread's first window, then more.
pub fn take_quota(wanted: usize, windows: u32) -> usize {
    let mut left = EVENTS_LEFT.load(Relaxed);
    if left == u64::MAX {
        return wanted;
    }
    loop {
        let share = (left / (2 * u64::from(threads::count()))).max(left.min(1));
        let take = share.min(wanted as u64).min(16 << windows.min(5));
        match EVENTS_LEFT.compare_exchange_weak(left, left - take, Relaxed, Relaxed) {
            Ok(_) => return take as usize,
            Err(now) => left = now,
        }
    }
}

/// Gives back what [`take_quota`] gave and no event used.
pub fn return_quota(unused: usize) {
    if EVENTS_LEFT.load(Relaxed) != u64::MAX {
        EVENTS_LEFT.fetch_add(unused as u64, Relaxed);
    }
}

/// Closes the capture in order. Runs after the program's own destructors; what still comes
/// later (destructors of shared libraries, threads that go on until the process is gone) is
/// stored too, at once and slowly.
extern "C" fn close() {
    if PAGE.phase.load(Acquire) != READY || is_off() || sandbox::holds_caller() {
        return;
    }
    if !filter::forbids(filter::BEGIN) && is_run_by_guest() {
        return;
    }
    if sink() == Sink::Summary {
        // What comes later still counts.
        return summary::close(identity().pid, sys::gettid());
    }
    recorder::tell_modules_and_end();
    match sink() {
        Sink::Ring => ring::detach(),
        _ if filter::forbids(filter::BEGIN) => {}
        kind => {
            let _blocked = SignalsBlocked::new();
            LATE.store(true, Release);
            PAGE.direct.store(0, Release);
            if threads::others_live(identity().pid, sys::gettid()) {
                // A thread in the middle of a hook ends it within some instructions; if it does not
                // run just now, its slot is filled with padding that its own store then replaces.
                sys::yield_now();
                sys::sleep_ns(50_000);
            }
            match kind {
                Sink::Stream => stream::close(),
                _ => file::close(),
            }
        }
    }
}

// `close` stands first among the destructors of the executable, and they run from the last to
// the first. The linker keeps `.fini_array.*`.
global_asm!(
    ".pushsection .fini_array.00000,\"aw\",@fini_array",
    ".balign 8",
    ".quad {close}",
    ".popsection",
    close = sym close,
);

// What tools look for in a binary: a symbol where it was not stripped, else the note.
global_asm!(
    ".pushsection .note.callsight,\"a\",@note",
    ".balign 4",
    ".type callsight_runtime_version, @object",
    ".size callsight_runtime_version, 36",
    "callsight_runtime_version:",
    ".long 10, 8, 1",
    ".asciz \"callsight\"",
    ".zero 2",
    ".asciz \"runtime\"",
    ".popsection",
);

/// libc's `environ`; null where there is none (yet).
pub fn libc_environ() -> *const *const u8 {
    let place = arch::weak_environ() as *const *const *const u8;
    // SAFETY: a weak symbol is 0 or the variable's address.
    if place.is_null() { core::ptr::null() } else { unsafe { *place } }
}
