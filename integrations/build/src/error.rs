//! What can go wrong while the runtime is built, in words for whoever builds callsight.

use std::path::PathBuf;

/// Why there is no runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Cargo is not there, or could not be started.
    #[error("build the callsight runtime: cannot start {program}: {why}")]
    Start {
        /// What was to be started.
        program: String,
        /// Why it was not.
        why: std::io::Error,
    },
    /// Cargo ran and failed.
    #[error(
        "build the callsight runtime for {triple}: cargo failed (a missing target is added with \
         `rustup target add {triple}`):\n{output}"
    )]
    Cargo {
        /// The target triple.
        triple: String,
        /// What cargo printed.
        output: String,
    },
    /// Cargo succeeded, but its library is not where it should be.
    #[error("build the callsight runtime: read {}: {why}", path.display())]
    Library {
        /// Where it should be.
        path: PathBuf,
        /// Why it cannot be read.
        why: std::io::Error,
    },
    /// The library or the object is not what a linker would take.
    #[error("take the hooks out of the runtime library: {0}")]
    Format(#[from] object::Error),
    /// Not exactly one object has the hooks.
    #[error(
        "take the hooks out of the runtime library: {found} of its objects define {}, it must be 1 \
         (fat LTO makes one object; a crate with two crate types loses it)",
        crate::HOOKS[0]
    )]
    Objects {
        /// How many have.
        found: usize,
    },
    /// The object would harm a program.
    #[error("check the runtime object: {}", problems.join("; "))]
    Unfit {
        /// Everything that is wrong with it.
        problems: Vec<String>,
    },
}
