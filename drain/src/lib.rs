//! The C drain: as text, which `init --stream` puts into a project, and as a function of this
//! program, [`run`].
//!
//! `trace_stream.c` moves the events of a ring to a server, to a file, or to both. It is built on the
//! device by `cc -O2 -o trace_stream trace_stream.c zstd.c`, beside the two headers. The build step
//! puts both together: the first from `drain/trace_stream.c` and its parts in `drain/stream`, the
//! second from the sources of the `zstd-sys` package. [`RingWords`] is what others may change in a
//! ring.

mod words;

use std::ffi::{CString, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

// Linked for the compressor, which the compiled drain calls.
use zstd_sys as _;

pub use words::RingWords;

/// The drain.
pub const TRACE_STREAM_C: &str = include_str!(concat!(env!("OUT_DIR"), "/trace_stream.c"));
/// Every layout the drain reads, generated from `callsight-format`.
pub const TRACE_SHM_H: &str = include_str!("../../runtime/format/trace_shm.h");
/// The compressor of Zstandard, levels 1 and 2, in one file.
pub const ZSTD_C: &str = include_str!(concat!(env!("OUT_DIR"), "/zstd.c"));
/// What the drain calls of it.
pub const ZSTD_H: &str = include_str!("../zstd.h");
/// The license of [`ZSTD_C`].
pub const ZSTD_LICENSE: &str = include_str!(concat!(env!("OUT_DIR"), "/zstd.LICENSE"));

/// A file of the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its name, without a folder.
    pub name: &'static str,
    /// All of its text.
    pub contents: &'static str,
}

/// Everything the `cc` line needs, and the license, to be put into one folder.
pub const fn files() -> [SourceFile; 5] {
    [
        SourceFile { name: "trace_stream.c", contents: TRACE_STREAM_C },
        SourceFile { name: "trace_shm.h", contents: TRACE_SHM_H },
        SourceFile { name: "zstd.c", contents: ZSTD_C },
        SourceFile { name: "zstd.h", contents: ZSTD_H },
        SourceFile { name: "zstd.LICENSE", contents: ZSTD_LICENSE },
    ]
}

unsafe extern "C" {
    /// `main` of `trace_stream.c`, renamed by the build step.
    fn callsight_drain_main(count: c_int, words: *mut *mut c_char) -> c_int;
}

/// Runs the drain with these arguments, as `trace_stream` with them does; returns its exit code.
///
/// A failure may end the process in place of a return. It sets signal handlers, and forks a process
/// that writes the file: so it is for a process that has started no thread and will do nothing else.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    let mut words: Vec<*mut c_char> = std::iter::once(OsString::from("trace_stream"))
        .chain(arguments)
        // The system hands over no word with a zero in it.
        .filter_map(|word| CString::new(word.into_vec()).ok())
        .map(CString::into_raw)
        .collect();
    let count = c_int::try_from(words.len()).unwrap_or(c_int::MAX);
    words.push(ptr::null_mut());
    // SAFETY: `count` strings that nobody else has, and the null that ends them; they are not freed,
    // because the drain keeps some until the process ends.
    unsafe { callsight_drain_main(count, words.as_mut_ptr()) }
}
