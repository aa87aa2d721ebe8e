//! Programs of this machine: whether one can be traced, running it, and the rings that traced ones
//! share with their drains.

mod counts;
mod drain;
mod elf;
mod figures;
mod hooks;
mod image;
mod keep;
mod launch;
mod modules;
mod own_notes;
mod pages;
mod process;
mod ring;
mod rings;
mod signals;
mod snapshot;
mod state;

pub use drain::{Address, DrainEnd, DrainPlan, DrainProcess};
pub use figures::{Account, Figures, PastDrain, sum_of};
pub use hooks::{Hooks, find_program, hooks_of};
pub use image::Amounts;
pub use keep::{KeptDrain, KeptEnd, Pauses};
pub use launch::{Launch, LaunchError, Outcome, captures_in, remove_captures};
pub use process::ProcessId;
pub use ring::{RingError, RingFile, check_name};
pub use rings::{Found, Unborn, rings_here};
pub use signals::{end_with_parent, ending_signals};
pub use snapshot::{Snapshot, SnapshotError, snapshot};
pub use state::{Member, RingCommand, RingState};
