//! A workspace and a target triple → the runtime as one object, and as an archive of just that.
//!
//! Runs cargo on the crate `runtime/shell`, takes the single object with the hooks out of the
//! static library it makes, and refuses it where it would harm the program it is linked into.
//! Writes nothing but cargo's own target directory; what becomes of the bytes is the caller's.

mod archive;
mod cargo;
mod error;
mod hooks;
mod triple;

use std::path::PathBuf;

pub use archive::archive_of;
pub use error::Error;
pub use hooks::{HOOKS, check_object, take_object};
pub use triple::gnu_triple;

/// File name of the runtime as an object, the form that works anywhere on a link line.
pub const OBJECT_NAME: &str = "callsight_runtime.o";
/// File name of the archive that holds just the object.
pub const ARCHIVE_NAME: &str = "libcallsight_runtime.a";

/// What to build the runtime from, and for whom.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The workspace that has `runtime/shell/Cargo.toml` and the profile `runtime`.
    pub workspace: PathBuf,
    /// Target triple in Rust's spelling, such as `x86_64-unknown-linux-gnu`.
    pub triple: String,
    /// Where cargo may put its files; one that no running cargo holds.
    pub target_dir: PathBuf,
    /// What the object may share with a program.
    pub allowed: Allowed,
}

/// Names that the object may have in common with a program, beside the hooks; all of them weak.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// What it may look for: a program without it still links.
    pub asks: &'static [&'static str],
    /// What it may stand in for: a program's own definition wins.
    pub replaces: &'static [&'static str],
}

/// The runtime of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Contents of [`OBJECT_NAME`].
    pub object: Vec<u8>,
    /// Contents of [`ARCHIVE_NAME`].
    pub archive: Vec<u8>,
}

impl Recipe {
    /// Builds and checks the runtime.
    ///
    /// # Errors
    /// Cargo's own words where the build fails; what is wrong with the object where it is unfit.
    pub fn build(&self) -> Result<Runtime, Error> {
        let library = cargo::staticlib(self)?;
        let object = take_object(&library)?;
        check_object(&object, self.allowed)?;
        let archive = archive_of(OBJECT_NAME, &object)?;
        Ok(Runtime { object, archive })
    }
}
