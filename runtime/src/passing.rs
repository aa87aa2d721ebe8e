//! Three libc functions that pass through here, because what they do changes what a hook may do.
//!
//! All are weak: a program's own definition wins. All do what libc's do, and no more.

use core::arch::global_asm;

use callsight_format::KIND_MARKER;

use crate::arch::nr;
use crate::{arch, filter, notes, process, recorder, sandbox, sys};

// A module that goes away must be known by then, and what comes to its addresses afterwards is
// another one. A thread that enters strict seccomp loses its clock; one that sets a filter, system
// calls. `syscall` is how filters are set (libc has no `seccomp`): all others go through it as they are.
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
    ".weak syscall",
    ".type syscall, @function",
    "syscall:",
    ".cfi_startproc",
    #[cfg(target_arch = "x86_64")]
    concat!(
        "cmp rdi, {number}\n je {seccomp}\n mov rax, rdi\n mov rdi, rsi\n mov rsi, rdx\n",
        "mov rdx, rcx\n mov r10, r8\n mov r8, r9\n mov r9, qword ptr [rsp + 8]\n syscall\n",
        "cmp rax, -4095\n jae 2f\n ret\n 2:\n mov rdi, rax\n jmp {fail}",
    ),
    #[cfg(target_arch = "aarch64")]
    concat!(
        "cmp x0, #{number}\n b.ne 1f\n b {seccomp}\n 1:\n mov x8, x0\n mov x0, x1\n mov x1, x2\n",
        "mov x2, x3\n mov x3, x4\n mov x4, x5\n mov x5, x6\n svc 0\n",
        "cmn x0, #4095\n b.hs 2f\n ret\n 2:\n b {fail}",
    ),
    ".cfi_endproc",
    ".size syscall, . - syscall",
    ".weak dlsym",
    ".weak environ",
    ".weak __errno_location",
    ".popsection",
    close = sym close_module,
    control = sym control_process,
    seccomp = sym call_seccomp,
    fail = sym fail,
    number = const nr::SECCOMP,
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
    const SECCOMP_MODE_FILTER: usize = 2;
    const PR_SET_TSC: i32 = 26;
    const PR_TSC_ENABLE: usize = 1;
    const PR_TSC_SIGSEGV: usize = 2;
    let takes_clock = matches!(
        (option, second),
        (PR_SET_SECCOMP, SECCOMP_MODE_STRICT) | (PR_SET_TSC, PR_TSC_SIGSEGV)
    );
    // SAFETY: the caller vouches for the arguments, whatever they are.
    let control = || unsafe { sys::prctl(option as usize, [second, third, fourth, fifth]) };
    if (option, second) == (PR_SET_SECCOMP, SECCOMP_MODE_FILTER) {
        // SAFETY: the filter is where the kernel will look for it.
        return told(unsafe { set_filter(third, control) }) as i32;
    }
    if takes_clock {
        sandbox::enter();
    }
    let done = control();
    let gives_clock = (option, second) == (PR_SET_TSC, PR_TSC_ENABLE);
    if takes_clock && done < 0 || gives_clock && done >= 0 {
        sandbox::leave();
    }
    told(done) as i32
}

/// `syscall(SYS_seccomp, ...)`.
unsafe extern "C" fn call_seccomp(
    number: usize,
    operation: usize,
    flags: usize,
    arguments: usize,
) -> isize {
    const STRICT: usize = 0;
    const FILTER: usize = 1;
    // SAFETY: the caller vouches for the arguments, whatever they are.
    let call = || unsafe { arch::syscall6(number, operation, flags, arguments, 0, 0, 0) };
    if operation == FILTER {
        // SAFETY: as in `control_process`.
        return told(unsafe { set_filter(arguments, call) });
    }
    if operation == STRICT {
        sandbox::enter();
    }
    let done = call();
    if operation == STRICT && done < 0 {
        sandbox::leave();
    }
    told(done)
}

/// Lets `set` set the filter at `program`: what is asked of the system later is asked for before.
///
/// # Safety
/// Where the kernel takes it, it is a filter.
unsafe fn set_filter(program: usize, set: impl FnOnce() -> isize) -> isize {
    if process::is_off() || !process::ensure_ready(KIND_MARKER) {
        return set();
    }
    // After `vfork` it is set for a child that has our memory, and a program of its own soon.
    let is_ours = filter::forbids(filter::BEGIN) || sys::getpid() == process::identity().pid;
    if is_ours {
        recorder::tell_modules();
        notes::keep_modules();
    }
    let done = set();
    if is_ours && done >= 0 {
        // SAFETY: the kernel has taken it.
        unsafe { filter::was_set(program) };
    }
    done
}

/// What libc says of the kernel's answer.
fn told(answer: isize) -> isize {
    if answer < 0 { fail(answer) } else { answer }
}

/// -1 and errno.
extern "C" fn fail(answer: isize) -> isize {
    let place = arch::weak_errno_location();
    if place != 0 {
        // SAFETY: libc's function of that type, called where libc's own would call it.
        unsafe {
            let errno = core::mem::transmute::<usize, extern "C" fn() -> *mut i32>(place)();
            *errno = -answer as i32;
        }
    }
    -1
}
