//! What can be wrong with a request, in sentences that say what would help.

use std::io;
use std::path::{Path, PathBuf};

use callsight_format::HeaderError;

use crate::report::counted;

/// What helps where no capture is.
const HOW_TO_RECORD: &str = "run the instrumented program with TRACE_ENABLE=1 and TRACE_DIR set to \
     this directory (TRACE_THREADS, where it is set, has to match the name of a thread), or name \
     another one";

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read.
    #[error("{}", unread(path, why))]
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
    #[error("read the capture {}: {why}; {}", path.display(), help_with_header(why))]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with its first bytes.
        why: HeaderError,
    },
    /// A directory without a capture in it.
    #[error("read captures in {}: there is no trace.*.bin; {HOW_TO_RECORD}", path.display())]
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
    #[error(
        "read the binary {}: {why}; name the program that ran, as it was built, with --exe",
        path.display()
    )]
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

fn unread(path: &Path, why: &io::Error) -> String {
    let path = path.display();
    match why.kind() {
        io::ErrorKind::NotFound => {
            format!("read captures in {path}: there is nothing of that name; {HOW_TO_RECORD}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("read {path}: {why}; make it readable for this user, or name another one")
        }
        _ => format!("read {path}: {why}"),
    }
}

/// Stands behind what is wrong with a file, named by the user or found in a directory.
fn help_with_header(why: &HeaderError) -> &'static str {
    match why {
        HeaderError::Magic => {
            "a capture is a file trace.*.bin that a traced program or `callsight serve` wrote"
        }
        HeaderError::Short { .. } => {
            "its program ended before it recorded anything, or it is no capture: \
             run the program again, or name another file"
        }
        HeaderError::Version { .. } => "read it with the callsight that the program was built with",
        HeaderError::EventSize { .. } | HeaderError::HeaderSize { .. } => {
            "it is damaged: run the program again"
        }
    }
}
