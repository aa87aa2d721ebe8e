//! The drain with a server that greets it, so that it sends blocks: all that holds for raw events,
//! and what blocks are there for.

#[path = "../drain/bytes.rs"]
mod bytes;
#[path = "../drain/gone.rs"]
mod gone;
#[path = "../drain/hostile.rs"]
mod hostile;
mod hung;
#[path = "../drain/kills.rs"]
mod kills;
#[path = "../drain/pool.rs"]
mod pool;
#[path = "../drain/restart.rs"]
mod restart;
mod resume;
#[path = "../drain/sinks.rs"]
mod sinks;
#[path = "../drain/support/mod.rs"]
mod support;

/// Whether the server of the tests greets.
const GREETS: bool = true;
