//! What differs between processors: the clock, the system call, this thread's block, the stack
//! pointer, and a compare-and-swap that only signals of the same thread can disturb.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the callsight runtime knows x86_64 and aarch64; this target needs a file in arch/");
