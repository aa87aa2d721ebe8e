//! The drain as its users have it: built by its `cc` line, on rings that the tests fill the way a
//! traced process does, sending to a server that decodes with the full zstd.

mod arguments;
mod bytes;
mod compile;
mod gone;
mod hostile;
mod kills;
mod older;
mod pool;
mod restart;
mod sinks;
mod spare;
mod support;

/// Whether the server of the tests greets: this one is of version 2.
const GREETS: bool = false;
