//! What the end-to-end tests share: where things are, how programs are built and run, what an
//! independent hook counted, and what a report says.
//!
//! The tests themselves are in `tests/tests/`, one file a promise. A helper panics where a test
//! could only fail; nothing here knows a layout of the product.

mod count;
mod place;
mod program;
mod report;
mod shell;
mod stream;

pub use count::{Counts, count_object};
pub use place::{callsight, peer, peer_package, real_source, root, runtime_object};
pub use program::{Built, Hooks, Program};
pub use report::Report;
pub use shell::{Ran, Shell, skip};
pub use stream::{Drain, Ring, Server, StreamPort, streamed, streamed_in};

use std::collections::BTreeMap;

/// Function name → calls, one entry for each function of that name, ascending.
///
/// Two statics of one name stay two numbers, wherever they are.
pub type Calls = BTreeMap<String, Vec<u64>>;
