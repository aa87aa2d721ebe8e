//! What reads bytes that others made, one function a reader: any bytes in; a panic where a reader
//! breaks a promise, nothing else out.
//!
//! `fuzz/run` looks for bytes that bring a panic about. The test `inputs` runs the seeds, and every
//! input that once failed, each time. Readers that are no public part of their crate are taken by
//! their files.

mod capture;
mod config;
mod local;
mod resync;
mod script;
mod wire;

pub use capture::capture;
pub use config::config;
pub use local::any_ring as ring;
pub use resync::resync;
pub use script::chunk;
pub use wire::wire;

// Where the files that are taken look for them.
use callsight_hub::stream;
use config::{Error, user_file, vendor};

#[allow(dead_code, missing_docs, reason = "the file is taken whole")]
#[path = "../../hub/src/losses.rs"]
mod losses;

/// A target: its name, and what runs it.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 5] =
    [("ring", ring), ("wire", wire), ("capture", capture), ("resync", resync), ("config", config)];
