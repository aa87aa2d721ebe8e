//! What differs between processors: the clock, the system call, this thread's block, the stack
//! pointer, and a compare-and-swap that only signals of the same thread can disturb.
//!
//! Each file also defines `memcpy`, `memmove`, `memset`, `memcmp`, `bcmp` and `strlen`, which the
//! compiler may call, as local symbols: the program's own `memcpy` can be anything, with hooks in
//! it. None of them is on the hot path.

use core::arch::global_asm;

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

/// A hook where there are no instructions of its own for it.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! hook {
    ($(#[$doc:meta])* $name:ident, $kind:ident, $sum:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(func: usize, call_site: usize) {
            // SAFETY: as for this function.
            unsafe { record(func, call_site, $kind) }
        }
    };
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use hook;

// The thread's block. Initial-exec access works in executables, PIE, static and shared objects
// without a call; 64 bytes fit the surplus that glibc keeps for dlopen.
global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 64",
    ".globl __callsight_tls",
    ".hidden __callsight_tls",
    ".type __callsight_tls, @object",
    ".size __callsight_tls, 64",
    "__callsight_tls:",
    ".zero 64",
    ".popsection",
);

/// Address of `dlsym`; 0 in a program that has none.
pub fn weak_dlsym() -> usize {
    got_address!("dlsym")
}

/// Address of `__errno_location`, glibc's and musl's; 0 in a program that has none.
pub fn weak_errno_location() -> usize {
    got_address!("__errno_location")
}

/// Address of `environ`; 0 in a program that has none.
pub fn weak_environ() -> usize {
    got_address!("environ")
}
