//! Other people's builds: finds the build system, plans the edit, makes it, takes it back.
//!
//! A folder goes in, a [`Plan`] comes out: every file that would change, as bytes, before anything
//! is written. Carries the runtime and the CMake package inside itself, so that adopting a project
//! needs nothing but this crate. Knows nothing of captures, and runs no compiler.

mod block;
mod detect;
mod error;
mod init;
mod plan;
mod scan;
mod selection;
mod state;
mod undo;
mod user_file;
mod vendor;

pub use error::Error;
pub use init::{Options, plan_init};
pub use plan::{Change, Plan};
pub use selection::{Sinks, sinks_of};
pub use undo::plan_undo;
pub use vendor::plan_install;

/// The version that is written into projects.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Target triple of the runtime carried here, as gcc spells it: `x86_64-linux-gnu`.
pub const RUNTIME_TRIPLE: &str = env!("CALLSIGHT_RUNTIME_TRIPLE");

/// The runtime as one object, `callsight_runtime.o`: works anywhere on the link line of a program.
pub fn runtime_object() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/callsight_runtime.o"))
}

/// The runtime as an archive of just that object, `libcallsight_runtime.a`.
///
/// On a link line it must stand behind the objects and before libc, with
/// `-u __cyg_profile_func_enter`: libc has hooks that do nothing.
pub fn runtime_archive() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/libcallsight_runtime.a"))
}
