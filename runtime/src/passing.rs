//! Two libc functions that pass through here, because what they do changes what a hook may do.
//!
//! Both are weak: a program's own definition wins. Both do what libc's do, and no more.

use core::arch::global_asm;

use crate::{arch, recorder, sandbox, sys};

// A module that goes away must be known by then, and what comes to its addresses afterwards is
// another one. A thread that enters strict seccomp loses its clock.
global_asm!(
    ".pushsection .text.callsight_passing,\"ax\",@progbits",
    ".weak dlclose",
    ".type dlclose, @function",
    "dlclose:",
    #[cfg(target_arch = "x86_64")]
    "jmp {close}",
    #[cfg(target_arch = "aarch64")]
    "b {close}",
    ".size dlclose, . - dlclose",
    ".weak prctl",
    ".type prctl, @function",
    "prctl:",
    #[cfg(target_arch = "x86_64")]
    "jmp {control}",
    #[cfg(target_arch = "aarch64")]
    "b {control}",
    ".size prctl, . - prctl",
    ".weak dlsym",
    ".weak environ",
    ".weak __errno_location",
    ".popsection",
    close = sym close_module,
    control = sym control_process,
);

unsafe extern "C" fn close_module(handle: *mut u8) -> i32 {
    type Dlsym = unsafe extern "C" fn(*mut u8, *const u8) -> *mut u8;
    type Dlclose = unsafe extern "C" fn(*mut u8) -> i32;
    const RTLD_NEXT: *mut u8 = -1isize as *mut u8;
    let dlsym = arch::weak_dlsym();
    if dlsym == 0 {
        // A static program: POSIX lets `dlclose` keep the module.
        return 0;
    }
    // SAFETY: `dlsym` is libc's, and the symbol it gives has `dlclose`'s type.
    let next = unsafe {
        let dlsym = core::mem::transmute::<usize, Dlsym>(dlsym);
        dlsym(RTLD_NEXT, c"dlclose".as_ptr().cast())
    };
    if next.is_null() {
        return 0;
    }
    recorder::tell_modules();
    // SAFETY: as above; the handle is the caller's.
    let done = unsafe { core::mem::transmute::<*mut u8, Dlclose>(next)(handle) };
    recorder::tell_modules();
    done
}

/// `prctl(2)`, whose libc function is the system call and errno.
unsafe extern "C" fn control_process(
    option: i32,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> i32 {
    const PR_SET_SECCOMP: i32 = 22;
    const SECCOMP_MODE_STRICT: usize = 1;
    const PR_SET_TSC: i32 = 26;
    const PR_TSC_ENABLE: usize = 1;
    const PR_TSC_SIGSEGV: usize = 2;
    let takes_clock = matches!(
        (option, second),
        (PR_SET_SECCOMP, SECCOMP_MODE_STRICT) | (PR_SET_TSC, PR_TSC_SIGSEGV)
    );
    if takes_clock {
        sandbox::enter();
    }
    // SAFETY: the caller vouches for the arguments, whatever they are.
    let done = unsafe { sys::prctl(option as usize, [second, third, fourth, fifth]) };
    let gives_clock = (option, second) == (PR_SET_TSC, PR_TSC_ENABLE);
    if takes_clock && done < 0 || gives_clock && done >= 0 {
        sandbox::leave();
    }
    if done >= 0 {
        return done as i32;
    }
    let place = arch::weak_errno_location();
    if place != 0 {
        // SAFETY: libc's function of that type, called where libc's `prctl` would.
        unsafe {
            let errno = core::mem::transmute::<usize, extern "C" fn() -> *mut i32>(place)();
            *errno = -done as i32;
        }
    }
    -1
}
