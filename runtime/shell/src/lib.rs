//! The runtime as a static library without std: the two hooks and nothing else.
//!
//! A crate of its own, because a crate that is both an rlib and a staticlib loses link-time
//! optimisation without a word.

#![no_std]

pub use callsight_runtime::{__cyg_profile_func_enter, __cyg_profile_func_exit};

/// Never reached: the runtime has no panics, and a test of the object makes sure of it.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
