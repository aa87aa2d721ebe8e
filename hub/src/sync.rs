//! Locks and threads, named once: the test `schedules` puts in their place those of a scheduler
//! that it controls.

pub use std::sync::atomic::AtomicU64;
pub use std::sync::{Condvar, Mutex, MutexGuard};
pub use std::thread;
