//! The sinks that keep a session on disk: batches → `trace.stream.<id>.<seq>.bin`.
//!
//! Chunks of a sender that packs are kept as they came ([`ChunkCapture`]), raw events as events
//! ([`EventCapture`]). Either is with the kernel when a write returns, and tells in its last bytes
//! what it did not take.

mod chunks;
mod directory;
mod event_file;
mod events;
mod final_chunk;
mod guard;
mod position;
mod reach;
mod resume;
mod segment;
mod tail;
mod writers;

use std::io;

use callsight_format::{Cause, MARK_BUDGET};
use tail::StopMark;

pub use chunks::ChunkCapture;
pub use directory::{CaptureDir, Reserved};
pub use events::EventCapture;
pub use resume::Resumed;
#[cfg(test)]
pub(crate) use tail::note_events;

use crate::session::counted;

/// How much a capture may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureLimits {
    /// A segment file is followed by the next at this size; 0 for never.
    pub segment_bytes: u64,
    /// All files of a session together; 0 for no limit.
    pub budget_bytes: u64,
}

fn budget_text(budget: u64) -> String {
    format!("its budget of {budget} bytes is reached (--max-mb): the rest is dropped and counted")
}

fn write_error_text(error: &io::Error) -> String {
    format!("it cannot be written on ({error}): the rest is dropped and counted")
}

/// Why a capture that an earlier server stopped stays so.
fn stopped_before(mark: StopMark) -> (Cause, String) {
    let (cause, why) = match mark.code {
        MARK_BUDGET => (Cause::Budget, "its budget was reached"),
        _ => (Cause::Io, "it could not be written on"),
    };
    (cause, format!("{why} when it was received first: the rest is dropped and counted"))
}

fn segments_text(segments: u32) -> String {
    counted(segments, "segment")
}
