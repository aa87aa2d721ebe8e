//! Summaries that a run left → whether they are of the program that was run.
//!
//! A summary does not say of which program it is. Here that is known, but what was run may have
//! started others, and a name that is wrong is worse than none.

use std::fs::File;
use std::io::Read;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use callsight_format::{ByteOrder, SUMMARY_HEADER_BYTES, SUMMARY_MAGIC, SummaryHeader};
use callsight_hub::local::{Hooks, hooks_of};

/// Whether these captures, which are all that there will be a report on, are summaries of `program`
/// and of processes that it has forked: those have its address, which is another one for each
/// program that is started.
pub fn are_of(captures: &[PathBuf], program: &Path) -> bool {
    let biases: Vec<Option<u64>> = captures.iter().map(|path| load_bias(path)).collect();
    let is_one = biases.first().is_some_and(|first| first.is_some())
        && biases.iter().all(|bias| *bias == biases[0]);
    is_one && hooks_of(program) == Hooks::Traced
}

/// Where the program of a summary lay; `None` for another capture.
fn load_bias(path: &Path) -> Option<u64> {
    let mut header = Vec::new();
    let file = File::open(path).ok()?;
    file.take(SUMMARY_HEADER_BYTES as u64).read_to_end(&mut header).ok()?;
    let bias = ByteOrder::NATIVE.u64(&header, offset_of!(SummaryHeader, load_bias));
    bias.filter(|_| header.starts_with(&SUMMARY_MAGIC))
}
