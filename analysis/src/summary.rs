//! A summary file → the numbers of one thread, function by function, as its process summed them.

use std::fs;
use std::mem::offset_of;
use std::path::Path;

use callsight_format::{
    ByteOrder, FLAG_TICKS, HeaderError, Origin, SUMMARY_BUCKETS, SUMMARY_HEADER_BYTES,
    SUMMARY_HEADER_V1_BYTES, SUMMARY_MAGIC, SUMMARY_RECORD_BYTES, SUMMARY_RECORD_V1_BYTES,
    SUMMARY_VERSION, SummaryHeader, SummaryRecord, summary_bucket_start,
};

use crate::Error;

/// The numbers of one thread.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Clock and load words.
    pub origin: Origin,
    /// From the first to the last event, in the clock's unit.
    pub span: u64,
    /// Whether a function that called itself counts for its total once; else nothing tells.
    pub counts_recursion_once: bool,
    /// Calls that are in no record.
    pub truncated_calls: u64,
    /// The functions.
    pub functions: Vec<SummaryFunction>,
    /// Records that the header promises and the file does not have.
    pub missing_records: u64,
}

/// Numbers of one function.
#[derive(Clone, Debug, Default)]
pub struct SummaryFunction {
    /// Run-time address.
    pub address: u64,
    /// Calls.
    pub calls: u64,
    /// Of these, the ones that had not returned: they have no time.
    pub not_returned: u64,
    /// Time from enter to exit; see [`Summary::counts_recursion_once`].
    pub total_ticks: u64,
    /// Sum of the durations of single calls.
    pub sampled_ticks: f64,
    /// Time without callees.
    pub self_ticks: u64,
    /// Shortest call.
    pub min_ticks: u64,
    /// Longest call.
    pub max_ticks: u64,
    /// Middle of each bucket in use, and its calls.
    pub durations: Vec<(f64, u64)>,
}

impl Summary {
    /// Reads a summary file of version 1 or 2, in either byte order.
    ///
    /// # Errors
    /// The file cannot be read, or its header is wrong.
    pub fn read(path: &Path) -> Result<Summary, Error> {
        let bytes = fs::read(path).map_err(|why| Error::Read { path: path.to_path_buf(), why })?;
        Summary::parse(&bytes).map_err(|why| Error::Header { path: path.to_path_buf(), why })
    }

    /// The same of bytes.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn parse(bytes: &[u8]) -> Result<Summary, HeaderError> {
        let short = HeaderError::Short { found: bytes.len() };
        if bytes.get(..8).ok_or(short)? != SUMMARY_MAGIC {
            return Err(HeaderError::Magic);
        }
        let word = bytes.get(8..12).and_then(|word| word.try_into().ok()).ok_or(short)?;
        let order = ByteOrder::of_version(word);
        let u32_at = |at| order.u32(bytes, at).ok_or(short);
        let u64_at = |at| order.u64(bytes, at).ok_or(short);
        let (header_least, record_least) = match u32_at(offset_of!(SummaryHeader, version))? {
            1 => (SUMMARY_HEADER_V1_BYTES, SUMMARY_RECORD_V1_BYTES),
            SUMMARY_VERSION => (SUMMARY_HEADER_BYTES, SUMMARY_RECORD_BYTES),
            found => return Err(HeaderError::Version { found }),
        };
        let record_size = u32_at(offset_of!(SummaryHeader, record_size))?;
        let header_size = u32_at(offset_of!(SummaryHeader, header_size))?;
        if (header_size as usize) < header_least {
            return Err(HeaderError::HeaderSize { found: header_size });
        }
        if (record_size as usize) < record_least {
            return Err(HeaderError::EventSize { found: record_size });
        }
        let records = bytes.get(header_size as usize..).ok_or(short)?;
        let records = records.chunks_exact(record_size as usize);
        let there = records.len() as u64;
        // One without an address is one that a killed program was just adding.
        let functions: Vec<SummaryFunction> = records
            .filter_map(|record| function(record, order))
            .filter(|function| function.address != 0)
            .collect();
        let hook_ns = u64_at(offset_of!(SummaryHeader, hook_ns))?;
        let promised = u64_at(offset_of!(SummaryHeader, records))?;
        Ok(Summary {
            pid: u32_at(offset_of!(SummaryHeader, pid))?,
            tid: u32_at(offset_of!(SummaryHeader, tid))?,
            origin: Origin {
                flags: u32_at(offset_of!(SummaryHeader, flags))?,
                load_bias: u64_at(offset_of!(SummaryHeader, load_bias))?,
                tick_hz: u64_at(offset_of!(SummaryHeader, tick_hz))?,
                t0_ticks: u64_at(offset_of!(SummaryHeader, t0_ticks))?,
                t0_ns: u64_at(offset_of!(SummaryHeader, t0_ns))?,
                hook_ns,
            },
            // C callsight states no cost of hooks in these files, and counts every level.
            counts_recursion_once: hook_ns > 0,
            span: u64_at(offset_of!(SummaryHeader, span))?,
            truncated_calls: u64_at(offset_of!(SummaryHeader, truncated))?,
            missing_records: promised.saturating_sub(there),
            functions,
        })
    }

    /// Whether its times are clock ticks rather than ns.
    pub fn in_ticks(&self) -> bool {
        self.origin.flags & FLAG_TICKS != 0
    }
}

fn function(record: &[u8], order: ByteOrder) -> Option<SummaryFunction> {
    let word = |at| order.u64(record, at);
    let counts = counts(record, order);
    let (calls, total_ticks) =
        (word(offset_of!(SummaryRecord, calls))?, word(offset_of!(SummaryRecord, inclusive))?);
    let used = || counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let durations = used().map(|(bucket, count)| (bucket_middle(bucket), u64::from(*count)));
    let durations: Vec<(f64, u64)> = durations.collect();
    let least =
        used().map(|(bucket, count)| summary_bucket_start(bucket) as f64 * f64::from(*count));
    let least: f64 = least.sum();
    // With a recursion that counts once the total is less than what its calls took.
    let sampled_ticks = match total_ticks as f64 >= least {
        true => total_ticks as f64,
        false => durations.iter().map(|(middle, count)| middle * *count as f64).sum(),
    };
    Some(SummaryFunction {
        address: word(offset_of!(SummaryRecord, func))?,
        calls,
        not_returned: not_returned(calls, &counts),
        total_ticks,
        sampled_ticks,
        self_ticks: word(offset_of!(SummaryRecord, own))?,
        min_ticks: word(offset_of!(SummaryRecord, min))?,
        max_ticks: word(offset_of!(SummaryRecord, max))?,
        durations,
    })
}

/// How many calls fell into each bucket.
fn counts(record: &[u8], order: ByteOrder) -> [u32; SUMMARY_BUCKETS] {
    let histogram = offset_of!(SummaryRecord, histogram);
    std::array::from_fn(|bucket| order.u32(record, histogram + 4 * bucket).unwrap_or(0))
}

/// A call counts when it begins, and has a bucket when it ends. C callsight counts both at its end, and
/// its buckets begin again at 0; ours stay at the most they can hold, and then nobody knows.
fn not_returned(calls: u64, counts: &[u32; SUMMARY_BUCKETS]) -> u64 {
    let ended: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    match counts.contains(&u32::MAX) {
        true => 0,
        false => calls.saturating_sub(ended) & u64::from(u32::MAX),
    }
}

fn bucket_middle(bucket: usize) -> f64 {
    let start = summary_bucket_start(bucket) as f64;
    let next = summary_bucket_start(bucket + 1) as f64;
    (start + next - 1.0) / 2.0
}
