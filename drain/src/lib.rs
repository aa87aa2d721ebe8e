//! The C drain, as text: what `init --stream` puts into a project.
//!
//! `trace_stream.c` moves the events of a ring to a server over TCP. It is built on the device by
//! `cc -O2 -o trace_stream trace_stream.c zstd.c`, beside the two headers. The build step puts both
//! together: the first from `drain/trace_stream.c` and its parts in `drain/stream`, the second from
//! the sources of the `zstd-sys` package. Opens no file and no socket.

// Only here to be fetched; see Cargo.toml.
use zstd_sys as _;

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
