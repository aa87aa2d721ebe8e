//! What can be wrong with a request, in sentences that say what would help.

use std::io;
use std::path::PathBuf;

use callsight_format::HeaderError;

use crate::report::counted;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read.
    #[error("read {}: {why}", path.display())]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// What was named is neither a file nor a directory: reading it might never end.
    #[error(
        "read captures in {}: it is a pipe, a device or a socket; name a directory or a file",
        path.display()
    )]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// A file that was named is no capture.
    #[error("read the capture {}: {why}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with its first bytes.
        why: HeaderError,
    },
    /// A directory without a capture in it.
    #[error(
        "read captures in {}: there is no trace.*.bin; run the instrumented program with \
         TRACE_ENABLE=1 and TRACE_DIR set to this directory, or name another one",
        path.display()
    )]
    NoCaptures {
        /// The directory.
        path: PathBuf,
    },
    /// Captures were found, and none of them can be used.
    #[error("read captures: of {}, none can be used; {first}", counted(*files as u64, "file", "files"))]
    NothingUsable {
        /// How many were looked at.
        files: usize,
        /// What is wrong with the first one.
        first: String,
    },
    /// The program on disk is not the one that was traced.
    #[error(
        "name the functions of {}: the capture was made by build {traced}, this file is build \
         {found}; pass the traced binary with --exe",
        path.display()
    )]
    OtherBuild {
        /// The file that was looked at.
        path: PathBuf,
        /// Build-id in the capture.
        traced: String,
        /// Build-id of the file.
        found: String,
    },
    /// A binary named with `--exe` cannot be used.
    #[error("read the binary {}: {why}", path.display())]
    Binary {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A named binary is surely not the traced program, though no build-id says so.
    #[error(
        "name functions from {}: {wrong} of {all} traced functions do not start where it has a \
         function; pass the traced binary with --exe",
        path.display()
    )]
    OtherProgram {
        /// The file.
        path: PathBuf,
        /// How many functions do not fit.
        wrong: usize,
        /// How many functions lie in it.
        all: usize,
    },
    /// The tool of `--addr2line` did not do its work.
    #[error("run {}: {why}; name a working addr2line, or leave --addr2line out", tool.display())]
    Tool {
        /// The tool.
        tool: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}
