//! Filters of system calls (seccomp) that the program sets for itself: which calls of the runtime
//! would be its end.
//!
//! A filter is seen where it passes libc's `prctl` or `syscall`. Once the kernel has it, it is run here
//! for each call that a hook or the exit may make, as the kernel will run it then; what would
//! end the thread, raise a signal or ask another process is not called any more, in this process and
//! its children. A filter holds for one thread at first, but is taken as that of all.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::arch::{AUDIT_NUMBER, nr};
use crate::proc_fs::PROCMAP_QUERY;

/// What beginning a thread or a forked child takes: who they are, and no signal meanwhile.
pub const BEGIN: u32 = 1;
/// Looking at `/proc`.
pub const LOOK: u32 = 2;
/// Making files and rings, and going on in files.
pub const MAKE: u32 = 4;
/// Asking for the name of a thread.
pub const NAME: u32 = 8;
/// Asking whether a thread or a process is there.
pub const ASK: u32 = 16;
/// Letting others run.
pub const WAIT: u32 = 32;

/// Asking who the parent is, and whether libc has made the calling thread.
pub const PARENT: u32 = 64;
/// Asking what is mapped without reading it all.
pub const QUERY: u32 = 128;

/// The purposes for which some call is forbidden.
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);

/// Whether the program would not survive a call for that purpose.
#[inline(always)]
pub fn forbids(purpose: u32) -> bool {
    FORBIDDEN.load(Relaxed) & purpose != 0
}

const CWD: u64 = -100i64 as u64;

/// The calls with those arguments that a filter may look at: no pointers.
#[rustfmt::skip]
const CALLS: [(u32, usize, [u64; 3]); 36] = [
    (BEGIN, nr::GETPID, [0; 3]),
    (PARENT, nr::GETPPID, [0; 3]),
    (PARENT, nr::GET_ROBUST_LIST, [0; 3]),
    (BEGIN, nr::GETTID, [0; 3]),
    (BEGIN, nr::RT_SIGACTION, [7, 0, 0]),
    (BEGIN, nr::RT_SIGPROCMASK, [0; 3]),
    (BEGIN, nr::RT_SIGPROCMASK, [2, 0, 0]),
    (LOOK, nr::OPENAT, [CWD, 0, 0o2000000]),
    (LOOK, nr::READLINKAT, [CWD, 0, 0]),
    (LOOK | MAKE, nr::READ, [3, 0, 4096]),
    (LOOK | MAKE, nr::CLOSE, [3, 0, 0]),
    (LOOK, nr::PROCESS_VM_READV, [1, 0, 1]),
    (QUERY, nr::IOCTL, [3, PROCMAP_QUERY as u64, 0]),
    (MAKE, nr::OPENAT, [CWD, 0, 0o2000002]),
    (MAKE, nr::OPENAT, [CWD, 0, 0o2000302]),
    (MAKE, nr::FSTAT, [3, 0, 0]),
    (MAKE, nr::FSTATFS, [3, 0, 0]),
    (MAKE, nr::FALLOCATE, [3, 0, 0]),
    (MAKE, nr::FTRUNCATE, [3, 4096, 0]),
    (MAKE, nr::PWRITE64, [3, 0, 32]),
    (MAKE, nr::FLOCK, [3, 6, 0]),
    (MAKE, nr::MMAP, [0, 4096, 3]),
    (MAKE, nr::MUNMAP, [0, 4096, 0]),
    (MAKE, nr::MADVISE, [0, 4096, 23]),
    (MAKE, nr::MKDIRAT, [CWD, 0, 0o777]),
    (MAKE, nr::LINKAT, [CWD, 0, CWD]),
    (MAKE, nr::UNLINKAT, [CWD, 0, 0]),
    (MAKE, nr::RENAMEAT2, [CWD, 0, CWD]),
    (MAKE, nr::PRLIMIT64, [0, 1, 0]),
    (MAKE, nr::GETEUID, [0; 3]),
    (MAKE, nr::GETCWD, [0; 3]),
    (NAME, nr::PRCTL, [16, 0, 0]),
    (ASK, nr::KILL, [1, 0, 0]),
    (ASK, nr::TGKILL, [1, 1, 0]),
    (WAIT, nr::SCHED_YIELD, [0; 3]),
    (WAIT, nr::NANOSLEEP, [0; 3]),
];

/// The kernel's `struct sock_fprog`.
#[repr(C)]
struct Program {
    count: u16,
    first: *const Step,
}

/// An instruction of a filter, the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step {
    code: u16,
    if_true: u8,
    if_false: u8,
    number: u32,
}

/// The kernel has taken the filter at `program`.
///
/// # Safety
/// It is one that the kernel has taken.
pub unsafe fn was_set(program: usize) {
    // SAFETY: the kernel has read it.
    let Some(program) = (unsafe { (program as *const Program).as_ref() }) else { return };
    // SAFETY: as above.
    let steps = unsafe { core::slice::from_raw_parts(program.first, usize::from(program.count)) };
    for (purposes, number, arguments) in CALLS {
        if !goes_on(answer(steps, &call(number, arguments))) {
            FORBIDDEN.fetch_or(purposes, Relaxed);
        }
    }
}

/// What a filter reads of a call: the kernel's `struct seccomp_data`, in words.
fn call(number: usize, arguments: [u64; 3]) -> [u32; 16] {
    let mut data = [0; 16];
    (data[0], data[1]) = (number as u32, AUDIT_NUMBER);
    for (at, argument) in arguments.into_iter().enumerate() {
        let halves = [argument as u32, (argument >> 32) as u32];
        for (half, value) in halves.into_iter().enumerate() {
            let half = if cfg!(target_endian = "big") { 1 - half } else { half };
            if let Some(place) = data.get_mut(4 + 2 * at + half) {
                *place = value;
            }
        }
    }
    data
}

/// Whether the caller goes on after such an answer, with the call made or refused.
fn goes_on(answer: u32) -> bool {
    const ERRNO: u32 = 0x0005_0000;
    const LOG: u32 = 0x7ffc_0000;
    const ALLOW: u32 = 0x7fff_0000;
    matches!(answer & 0xffff_0000, ERRNO | LOG | ALLOW)
}

/// What a filter says of a call; 0, the end of the thread, for what no filter can hold.
fn answer(steps: &[Step], data: &[u32; 16]) -> u32 {
    let (mut sum, mut index, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    while let Some(&Step { code, if_true, if_false, number }) = steps.get(at) {
        at += 1;
        let operand = if code & 8 == 0 { number } else { index };
        match code {
            0x20 => sum = data.get(number as usize / 4).copied().unwrap_or(0),
            0x80 => sum = size_of_val(data) as u32,
            0x81 => index = size_of_val(data) as u32,
            0x00 => sum = number,
            0x01 => index = number,
            0x60 => sum = memory.get(number as usize).copied().unwrap_or(0),
            0x61 => index = memory.get(number as usize).copied().unwrap_or(0),
            0x02 | 0x03 => {
                let value = if code == 2 { sum } else { index };
                if let Some(place) = memory.get_mut(number as usize) {
                    *place = value;
                }
            }
            0x07 => index = sum,
            0x87 => sum = index,
            0x06 => return number,
            0x16 => return sum,
            0x05 => at = at.saturating_add(number as usize),
            0x84 => sum = sum.wrapping_neg(),
            _ if code & 7 == 4 => match calculate(code & 0xf0, sum, operand) {
                Some(value) => sum = value,
                None => return 0,
            },
            _ if code & 7 == 5 => match compare(code & 0xf0, sum, operand) {
                Some(true) => at += usize::from(if_true),
                Some(false) => at += usize::from(if_false),
                None => return 0,
            },
            _ => return 0,
        }
    }
    0
}

fn calculate(operation: u16, sum: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        0x00 => sum.wrapping_add(operand),
        0x10 => sum.wrapping_sub(operand),
        0x20 => sum.wrapping_mul(operand),
        0x30 => sum.checked_div(operand)?,
        0x40 => sum | operand,
        0x50 => sum & operand,
        0x60 => sum.checked_shl(operand).unwrap_or(0),
        0x70 => sum.checked_shr(operand).unwrap_or(0),
        0xa0 => sum ^ operand,
        _ => return None,
    })
}

fn compare(operation: u16, sum: u32, operand: u32) -> Option<bool> {
    Some(match operation {
        0x10 => sum == operand,
        0x20 => sum > operand,
        0x30 => sum >= operand,
        0x40 => sum & operand != 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: u32 = 0x8000_0000;
    const ALLOW: u32 = 0x7fff_0000;

    fn step(code: u16, if_true: u8, if_false: u8, number: u32) -> Step {
        Step { code, if_true, if_false, number }
    }

    #[test]
    fn a_list_of_calls_is_looked_up_as_the_kernel_does() {
        let steps = [
            step(0x20, 0, 0, 4),
            step(0x15, 1, 0, AUDIT_NUMBER),
            step(0x06, 0, 0, KILL),
            step(0x20, 0, 0, 0),
            step(0x15, 0, 1, nr::GETPID as u32),
            step(0x06, 0, 0, ALLOW),
            step(0x06, 0, 0, 0x0005_0001),
        ];
        assert_eq!(answer(&steps, &call(nr::GETPID, [0; 3])), ALLOW);
        assert!(goes_on(answer(&steps, &call(nr::OPENAT, [0; 3]))), "refused, and no more");
        assert_eq!(answer(&steps, &[0; 16]), KILL, "of another processor");
    }

    #[test]
    fn arguments_are_calculated_with() {
        // Kills an `openat` that may write: flags & 3, by way of memory and the index register.
        let steps = [
            step(0x20, 0, 0, 32),
            step(0x54, 0, 0, 3),
            step(0x02, 0, 0, 5),
            step(0x01, 0, 0, 2),
            step(0x61, 0, 0, 5),
            step(0x00, 0, 0, 2),
            step(0x1d, 0, 1, 0),
            step(0x06, 0, 0, KILL),
            step(0x06, 0, 0, ALLOW),
        ];
        assert_eq!(answer(&steps, &call(nr::OPENAT, [CWD, 0, 0o2000002])), KILL);
        assert_eq!(answer(&steps, &call(nr::OPENAT, [CWD, 0, 0o2000000])), ALLOW);
        for ((operation, operand), expected) in [
            ((0x00, 5), 12),
            ((0x10, 5), 2),
            ((0x20, 5), 35),
            ((0x30, 5), 1),
            ((0x40, 8), 15),
            ((0x50, 5), 5),
            ((0x60, 2), 28),
            ((0x70, 1), 3),
            ((0xa0, 5), 2),
            ((0x60, 40), 0),
        ] {
            assert_eq!(calculate(operation, 7, operand), Some(expected), "{operation:#x}");
        }
    }

    #[test]
    fn what_no_filter_can_hold_lets_nothing_through() {
        assert!(!goes_on(answer(&[], &[0; 16])));
        assert!(!goes_on(answer(&[step(0xff, 0, 0, 0)], &[0; 16])));
        assert!(!goes_on(answer(&[step(0x05, 0, 0, u32::MAX)], &[0; 16])));
        for asks_another in [0x7fc0_0000, 0x7ff0_0000, 0x0003_0000, 0] {
            assert!(!goes_on(asks_another), "{asks_another:#x}");
        }
    }
}
