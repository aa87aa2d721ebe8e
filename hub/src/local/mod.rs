//! A program of this machine: whether it can be traced, and running it.

mod elf;
mod hooks;
mod launch;
mod signals;

pub use hooks::{Hooks, find_program, hooks_of};
pub use launch::{Launch, LaunchError, Outcome, captures_in, remove_captures};
pub use signals::ending_signals;
