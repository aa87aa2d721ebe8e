//! The hooks: every entry and exit of a function with hooks becomes 32 bytes in a window.
//!
//! In: the calls that the compiler plants, `__cyg_profile_func_enter` and `_exit`, and the
//! environment (`TRACE_*`). Out: events in a mapped segment file ([`file`]) or in a ring in shared
//! memory ([`ring`], [`stream`]), or only sums of them ([`summary`]). Nothing else of the program is touched: no allocation, no lock
//! of its own, no errno, no descriptor kept, no libc function called but those of [`passing`].
//!
//! Everything here runs inside somebody else's program, maybe before its libc is initialised,
//! in a signal handler, in `malloc` itself or after `main`: hence raw system calls, static
//! memory, no panics, and a `memcpy` of its own that no linker sees ([`arch`]).

#![no_std]

mod arch;
mod bytes;
mod clock;
mod config;
mod file;
mod filter;
mod guard;
mod hook;
mod modules;
mod notes;
mod passing;
mod proc_fs;
mod process;
mod recorder;
mod ring;
mod sandbox;
mod stream;
mod summary;
mod sys;
mod threads;
mod vdso;
mod window;

pub use hook::{__cyg_profile_func_enter, __cyg_profile_func_exit};
