//! Captures to answers: reads event files, matches enters and exits, names functions, adds up.
//!
//! [`analyze()`] takes directories or files and gives a [`Report`], which is plain data and can
//! write itself as text, JSON, folded stacks or a table of callers. Works in two passes, which see the
//! same of files that are written to meanwhile, with a fixed buffer: memory follows from functions,
//! paths and threads, not from the length of a trace.
//!
//! Nothing in a capture is trusted: a loss is a number in the report, damage a sentence in
//! [`Report::notices`], and only a request that cannot be answered an [`Error`]. Knows nothing of
//! sockets, rings or live processes.

#![forbid(unsafe_code)]

mod analyze;
mod assembly;
mod capture;
mod chunks;
mod clock;
mod code;
mod copies;
mod demangle;
mod elf;
mod error;
mod histogram;
mod ledger;
mod matcher;
mod module_notes;
mod modules;
mod naming;
mod notebook;
mod notices;
mod numbers;
mod oddities;
mod output;
mod overhead;
mod packed;
mod paths;
mod report;
mod sentences;
mod settle;
mod space;
mod stack;
mod streams;
mod summary;
mod summed;
mod survey;
mod tables;
mod tool;
mod twice;
mod unfinished;
mod walk;

pub use analyze::{Options, analyze};
pub use elf::Location;
pub use error::Error;
pub use report::{
    CallerRow, Durations, Identity, Mode, PathRow, ProcessRow, Report, Row, ThreadRow, Totals,
};
pub use tables::Detail;
