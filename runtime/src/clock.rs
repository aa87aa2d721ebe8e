//! Which clock an event is stamped with, and what its ticks are in nanoseconds.
//!
//! The processor's counter where it is invariant, else the kernel's clock through the vDSO. The
//! rate is measured over a tenth of a millisecond at the start (a few hundred ppm), in which the
//! process finds out other things; anchors in the data ([`callsight_format::MARK_CLOCK`]) make it
//! exact.

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
    origin: Origin,
    /// About how many ticks a hundred milliseconds are: how far apart anchors in the data stand.
    anchor_distance: u64,
}

static CLOCK: Shared<Clock> = Shared::new(Clock {
    ticks: false,
    id: CLOCK_MONOTONIC,
    origin: Origin { flags: 0, load_bias: 0, tick_hz: 0, t0_ticks: 0, t0_ns: 0, hook_ns: 0 },
    anchor_distance: 100_000_000,
});

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
    clock().ticks && ts.wrapping_sub(anchored) > clock().anchor_distance
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

/// Nanoseconds that `ticks` of this clock last; for spans of less than a second.
pub fn short_ns(ticks: u64) -> u64 {
    match clock().origin.tick_hz {
        0 => ticks,
        hz => ticks.min(hz) * 1_000_000_000 / hz,
    }
}

/// What a file, a ring or a stream says of this clock and this process.
pub fn origin() -> Origin {
    clock().origin
}

/// Adds what is known later than the opening anchor: the rate, and what a hook costs.
pub fn complete_origin(load_bias: u64, hook_ticks: u64) {
    let Origin { t0_ticks, t0_ns, .. } = origin();
    let tick_hz = if is_ticks() { rate(t0_ticks, t0_ns) } else { 0 };
    // SAFETY: see `clock`; the reference ends before `short_ns` makes its own.
    unsafe { (*CLOCK.get()).origin.tick_hz = tick_hz };
    if tick_hz > 0 {
        // SAFETY: as above.
        unsafe { (*CLOCK.get()).anchor_distance = tick_hz / 10 };
    }
    let hook_ns = short_ns(hook_ticks);
    // SAFETY: see `clock`.
    let origin = unsafe { &mut (*CLOCK.get()).origin };
    (origin.load_bias, origin.hook_ns) = (load_bias, hook_ns);
}
