//! Live tracing: what comes in ([`stream`]), one traced program at a time ([`Session`]), and
//! where its events go ([`Sink`]).
//!
//! [`ingest`] joins them for devices: sockets in, captures out. [`local`] runs a program of this
//! machine. Everything else here is free of sockets and clocks, so that a test of it needs only
//! an array of bytes.
//!
//! Knows nothing of build systems, and nothing of what events mean to a reader.

#![forbid(unsafe_code)]

mod batch;
pub mod capture;
pub mod forward;
pub mod ingest;
pub mod local;
mod losses;
pub mod model;
mod session;
pub mod sink;
pub mod stream;
mod sync;

pub use batch::{BATCH_BYTES, Batch, Content, Unpacking};
pub use losses::{Amount, Dropped, LossWatch, Losses};
pub use session::{Host, Session, SinkTally, Tally};
pub use sink::{Closing, Deadline, Ending, SessionMeta, Sink};
