//! The environment → what to do. Read once a process image, at the first hook.
//!
//! The variables mean what they mean in C callsight 0.5.0. A number that is none keeps the
//! default. `docs/environment.md` describes each.

use callsight_format::{
    FILE_FOLDER_MAX_BYTES, RING_VERSION, RING_VERSION_STREAM, THREAD_NAMES_MAX_BYTES,
};

use crate::bytes::{self, Shared, Text};
use crate::proc_fs;
use crate::sys;

/// What a ring of more bytes than it can have is cut to.
const MOST_RING_BYTES: u64 = u32::MAX as u64;
/// Of the capture directory, with a zero byte.
const DIRECTORY_BYTES: usize = FILE_FOLDER_MAX_BYTES + 1;

/// Which clock to use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ClockChoice {
    /// The processor's counter where it is invariant, else `CLOCK_MONOTONIC`.
    Auto,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// `CLOCK_MONOTONIC_RAW`.
    Raw,
}

/// What the environment asks for.
pub struct Config {
    /// `TRACE_ENABLE` starts with `1`.
    pub enabled: bool,
    /// `TRACE_MODE` is `summary`.
    pub summary: bool,
    /// `TRACE_DIR`, absolute, without a closing slash. Where it is too long no file can be made.
    pub directory: Text<DIRECTORY_BYTES>,
    given_directory: Text<DIRECTORY_BYTES>,
    /// `TRACE_SHM` without its slash. There is more room than names have, so that one that is cut is
    /// none of another ring.
    pub ring_name: Text<300>,
    /// Whether it says anything; else files are written.
    pub wants_ring: bool,
    /// `TRACE_SHM_SIZE` in bytes, 0 where not given.
    pub ring_bytes: u64,
    /// `TRACE_RING`: version of a ring that this process creates.
    pub ring_version: u32,
    /// `TRACE_MAX_MB` in bytes; 0 for no limit.
    pub max_bytes: u64,
    /// `TRACE_SEG_MB` in bytes; 0 for one segment.
    pub segment_bytes: u64,
    /// `TRACE_MIN_FREE_MB` in bytes; 0 for no check.
    pub min_free_bytes: u64,
    /// `TRACE_MAX`: events (enters and exits) to record; 0 for no limit.
    pub max_events: u64,
    /// `TRACE_FULL` is `wrap`.
    pub wrap: bool,
    /// `TRACE_CLOCK`.
    pub clock: ClockChoice,
    /// `TRACE_THREADS`: globs of thread names, separated by commas; empty for all.
    pub threads: Text<{ THREAD_NAMES_MAX_BYTES + 1 }>,
}

static CONFIG: Shared<Config> = Shared::new(Config {
    enabled: false,
    summary: false,
    directory: Text::new(),
    given_directory: Text::new(),
    ring_name: Text::new(),
    wants_ring: false,
    ring_bytes: 0,
    ring_version: RING_VERSION,
    max_bytes: 512 << 20,
    segment_bytes: 32 << 20,
    min_free_bytes: 64 << 20,
    max_events: 0,
    wrap: false,
    clock: ClockChoice::Auto,
    threads: Text::new(),
});

/// The configuration; written only by [`read`], before any thread records.
pub fn get() -> &'static Config {
    // SAFETY: `read` is called once a process, by the thread that initialises the process, which publishes
    // its end with release order before any other caller comes here.
    unsafe { &*CONFIG.get() }
}

/// Reads the environment.
pub fn read() {
    // SAFETY: see `get`.
    let config = unsafe { &mut *CONFIG.get() };
    // A child that was forked meanwhile has what its parent had read by then.
    config.directory.clear();
    config.given_directory.clear();
    config.ring_name.clear();
    config.threads.clear();
    proc_fs::each_variable(|name, value| config.take(name, value));
    if config.enabled && sys::is_privileged() {
        // Somebody else's environment must not make a privileged program write files.
        config.enabled = false;
    }
    if config.enabled {
        config.make_directory_absolute();
    }
}

impl Config {
    fn take(&mut self, name: &[u8], value: &[u8]) {
        const MB: u64 = 1 << 20;
        let mb = |default| bytes::number(value).map_or(default, |mb| mb.saturating_mul(MB));
        let is = |key: &[u8]| bytes::same(name, key);
        if is(b"TRACE_ENABLE") {
            self.enabled = value.first() == Some(&b'1');
        } else if is(b"TRACE_MODE") {
            self.summary = bytes::same(value, b"summary");
        } else if is(b"TRACE_DIR") {
            self.given_directory.push(value);
        } else if is(b"TRACE_SHM") {
            self.ring_name.push(value.strip_prefix_byte(b'/'));
            self.wants_ring = !value.is_empty();
        } else if is(b"TRACE_SHM_SIZE") {
            self.ring_bytes = bytes::number(value).map_or(0, |bytes| bytes.min(MOST_RING_BYTES));
        } else if is(b"TRACE_RING") {
            if bytes::number(value) == Some(u64::from(RING_VERSION_STREAM)) {
                self.ring_version = RING_VERSION_STREAM;
            }
        } else if is(b"TRACE_MAX_MB") {
            self.max_bytes = mb(self.max_bytes);
        } else if is(b"TRACE_SEG_MB") {
            self.segment_bytes = mb(self.segment_bytes);
        } else if is(b"TRACE_MIN_FREE_MB") {
            self.min_free_bytes = mb(self.min_free_bytes);
        } else if is(b"TRACE_MAX") {
            self.max_events = bytes::number(value).unwrap_or(0);
        } else if is(b"TRACE_FULL") {
            self.wrap = bytes::same(value, b"wrap");
        } else if is(b"TRACE_CLOCK") {
            self.clock = match value.first() {
                Some(b'm') => ClockChoice::Monotonic,
                Some(b'r') => ClockChoice::Raw,
                _ => ClockChoice::Auto,
            };
        } else if is(b"TRACE_THREADS") {
            self.threads.push(value);
        }
    }

    fn make_directory_absolute(&mut self) {
        let given = match self.given_directory.as_bytes() {
            [] => b"traces",
            given => given,
        };
        if given.first() != Some(&b'/') {
            static HERE: Shared<[u8; DIRECTORY_BYTES]> = Shared::new([0; DIRECTORY_BYTES]);
            // SAFETY: only the initialising thread is here.
            let here = unsafe { &mut *HERE.get() };
            match sys::working_directory(here) {
                Some(len) => {
                    self.directory.push(here.get(..len).unwrap_or(&[])).push(b"/");
                }
                None => self.directory.overflow(),
            }
        }
        let mut end = given.len();
        while end > 1 && given.get(end - 1) == Some(&b'/') {
            end -= 1;
        }
        self.directory.push(given.get(..end).unwrap_or(given));
        if self.given_directory.is_overflown() {
            self.directory.overflow();
        }
    }

    /// Whether a thread of this name is to be recorded.
    pub fn wants_thread(&self, name: &[u8]) -> bool {
        let globs = self.threads.as_bytes();
        globs.is_empty()
            || globs.split(|&byte| byte == b',').any(|glob| {
                let glob = glob.strip_prefix_byte(b' ');
                !glob.is_empty() && bytes::glob(glob, name)
            })
    }
}

/// `strip_prefix` for one byte; the slice method compares with `memcmp`.
trait StripByte {
    fn strip_prefix_byte(&self, byte: u8) -> &[u8];
}

impl StripByte for [u8] {
    fn strip_prefix_byte(&self, byte: u8) -> &[u8] {
        match self {
            [first, rest @ ..] if *first == byte => rest,
            all => all,
        }
    }
}
