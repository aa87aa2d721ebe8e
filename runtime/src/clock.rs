//! Which clock an event is stamped with, and what its ticks are in nanoseconds.
//!
//! The processor's counter where it is invariant, else the kernel's clock through the vDSO. The
//! rate is measured over the first tenth of a millisecond (a few hundred ppm), in which the process
//! finds out other things and opens its first file or ring: who first asks for the [`origin`]
//! waits for what is left of it. Anchors in the data ([`callsight_format::MARK_CLOCK`]) make it exact.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use callsight_format::{FLAG_BIG_ENDIAN, FLAG_TICKS, Origin};

use crate::arch;
use crate::bytes::Shared;
use crate::config::{self, ClockChoice};
use crate::vdso;

const CLOCK_MONOTONIC: usize = 1;
const CLOCK_MONOTONIC_RAW: usize = 4;

/// The clock of this process; written while it is initialised, then only read.
struct Clock {
    ticks: bool,
    id: usize,
    /// But for the rate and what follows from it.
    origin: Origin,
    /// What a hook costs, in the clock's unit.
    hook_cost: u64,
}

static CLOCK: Shared<Clock> = Shared::new(Clock {
    ticks: false,
    id: CLOCK_MONOTONIC,
    origin: Origin { flags: 0, load_bias: 0, tick_hz: 0, t0_ticks: 0, t0_ns: 0, hook_ns: 0 },
    hook_cost: 0,
});
/// Ticks a second; 0 until somebody has measured it, and where the kernel's clock counts.
static TICK_HZ: AtomicU64 = AtomicU64::new(0);
/// About how many ticks a hundred milliseconds are: how far apart anchors in the data stand.
static ANCHOR_DISTANCE: AtomicU64 = AtomicU64::new(100_000_000);

fn clock() -> &'static Clock {
    // SAFETY: written only by the initialising thread, before it publishes the process as ready.
    unsafe { &*CLOCK.get() }
}

/// Chooses the clock and takes the opening anchor.
pub fn start() {
    vdso::find();
    let choice = config::get().clock;
    // SAFETY: see `clock`; no reference to it is held across this function's calls.
    let clock = unsafe { &mut *CLOCK.get() };
    clock.ticks = choice == ClockChoice::Auto && arch::ticks_are_invariant();
    clock.id = if choice == ClockChoice::Raw { CLOCK_MONOTONIC_RAW } else { CLOCK_MONOTONIC };
    let endian = if cfg!(target_endian = "big") { FLAG_BIG_ENDIAN } else { 0 };
    clock.origin.flags = endian | if clock.ticks { FLAG_TICKS } else { 0 };
    let (t0_ticks, t0_ns) = anchor();
    // SAFETY: as above.
    let origin = unsafe { &mut (*CLOCK.get()).origin };
    (origin.t0_ticks, origin.t0_ns) = (t0_ticks, t0_ns);
}

/// Ticks a second, from the processor or measured since the anchor given.
fn rate(t0_ticks: u64, t0_ns: u64) -> u64 {
    // 100 µs: the error of two anchors (some 30 ns) is then 300 ppm, and the target starts
    // within the 0.3 ms that tracing may add.
    const SPAN_NS: u64 = 100_000;
    if let Some(hz) = arch::tick_hz() {
        return hz;
    }
    while vdso::clock_ns(CLOCK_MONOTONIC) < t0_ns + SPAN_NS {
        core::hint::spin_loop();
    }
    let (ticks, ns) = anchor();
    let (mut ticks, mut ns) = (ticks - t0_ticks, ns - t0_ns);
    // 64 bits do: more than 2^33 ticks pass only when the process was stopped meanwhile.
    while ticks >= 1 << 33 {
        (ticks, ns) = (ticks >> 1, ns >> 1);
    }
    ticks * 1_000_000_000 / ns.max(1)
}

/// Ticks and `CLOCK_MONOTONIC` ns at one instant: of five readings of the counter around the
/// kernel's clock the closest pair, so that an interruption between them does not count.
pub fn anchor() -> (u64, u64) {
    if !clock().ticks {
        return (now(), vdso::clock_ns(CLOCK_MONOTONIC));
    }
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..5 {
        let before = arch::ticks();
        let ns = vdso::clock_ns(CLOCK_MONOTONIC);
        let between = arch::ticks().wrapping_sub(before);
        if between < best.0 {
            best = (between, before + between / 2, ns);
        }
    }
    CLOSE_TICKS.store(best.0.saturating_mul(2), Relaxed);
    (best.1, best.2)
}

/// Most ticks that a reading may take which [`passing_anchor`] believes.
static CLOSE_TICKS: AtomicU64 = AtomicU64::new(0);

/// The same out of one reading, if nothing came in between; else the next one may do. A hook has no
/// time for more.
pub fn passing_anchor() -> Option<(u64, u64)> {
    let before = arch::ticks();
    let ns = vdso::clock_ns(CLOCK_MONOTONIC);
    let between = arch::ticks().wrapping_sub(before);
    let close = CLOSE_TICKS.load(Relaxed);
    let is_close = between <= close;
    // Where the clock has become slower, a few readings are enough to learn that; one that was
    // interrupted for a millisecond takes thirty.
    let close = if is_close { 2 * between } else { close + close / 4 + 1 };
    CLOSE_TICKS.store(close, Relaxed);
    is_close.then_some((before + between / 2, ns))
}

/// Whether an event at `ts` is so long after the anchor at `anchored` that another one is due.
#[inline(always)]
pub fn is_anchor_due(ts: u64, anchored: u64) -> bool {
    clock().ticks && ts.wrapping_sub(anchored) > ANCHOR_DISTANCE.load(Relaxed)
}

/// Whether events can be stamped on the fast path.
pub fn is_ticks() -> bool {
    clock().ticks
}

/// The time of an event that happens now.
pub fn now() -> u64 {
    let clock = clock();
    if clock.ticks { arch::ticks() } else { vdso::clock_ns(clock.id) }
}

/// The opening anchor's ticks.
pub fn start_ticks() -> u64 {
    clock().origin.t0_ticks
}

/// What a file, a ring or a stream says of this clock and this process.
pub fn origin() -> Origin {
    let mut origin = clock().origin;
    origin.hook_ns = clock().hook_cost;
    if is_ticks() {
        origin.tick_hz = tick_hz(&origin);
        let cost = clock().hook_cost.min(origin.tick_hz);
        origin.hook_ns = cost * 1_000_000_000 / origin.tick_hz.max(1);
    }
    origin
}

/// The rate, measured once.
fn tick_hz(origin: &Origin) -> u64 {
    let known = TICK_HZ.load(Relaxed);
    if known != 0 {
        return known;
    }
    let measured = rate(origin.t0_ticks, origin.t0_ns);
    // Threads of a summary may measure it side by side: all of them say the same.
    if let Err(known) = TICK_HZ.compare_exchange(0, measured, Relaxed, Relaxed) {
        return known;
    }
    ANCHOR_DISTANCE.store(measured / 10, Relaxed);
    measured
}

/// Adds what is known later than the opening anchor: where the program is, and what a hook costs.
pub fn add_program(load_bias: u64, hook_cost: u64) {
    // SAFETY: see `clock`; no reference to it is held across this.
    let clock = unsafe { &mut *CLOCK.get() };
    clock.origin.load_bias = load_bias;
    clock.hook_cost = hook_cost;
}
