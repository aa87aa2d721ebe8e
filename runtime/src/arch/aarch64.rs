//! aarch64: `cntvct_el0`, initial-exec TLS through `tpidr_el0`, `svc 0`.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

// The memory functions of `arch/mod.rs`.
global_asm!(
    ".pushsection .text.callsight_memory,\"ax\",@progbits",
    "memcpy:",
    "memmove:",
    "sub x3, x0, x1",
    "cmp x3, x2",
    "b.lo 2f",
    "mov x3, x0",
    "1:",
    "cbz x2, 3f",
    "ldrb w4, [x1], #1",
    "strb w4, [x3], #1",
    "sub x2, x2, #1",
    "b 1b",
    "2:",
    "cbz x2, 3f",
    "sub x2, x2, #1",
    "ldrb w4, [x1, x2]",
    "strb w4, [x0, x2]",
    "b 2b",
    "3:",
    "ret",
    "memset:",
    "mov x3, x0",
    "4:",
    "cbz x2, 3b",
    "strb w1, [x3], #1",
    "sub x2, x2, #1",
    "b 4b",
    "memcmp:",
    "bcmp:",
    "mov x3, x0",
    "mov w0, #0",
    "5:",
    "cbz x2, 3b",
    "ldrb w4, [x3], #1",
    "ldrb w5, [x1], #1",
    "sub x2, x2, #1",
    "subs w0, w4, w5",
    "b.eq 5b",
    "ret",
    "strlen:",
    "mov x3, x0",
    "mov x0, #0",
    "6:",
    "ldrb w4, [x3, x0]",
    "cbz w4, 3b",
    "add x0, x0, #1",
    "b 6b",
    ".popsection",
);

/// What a filter of system calls sees as the processor (`AUDIT_ARCH_AARCH64`).
pub const AUDIT_NUMBER: u32 = 0xc000_00b7;

/// Page size that any kernel for this processor uses at most.
pub const PAGE_BYTES: usize = 65536;

/// Start of the calling thread's 64-byte block. Needs [`thread_pointer`] to be set.
#[inline(always)]
pub fn tls_block() -> usize {
    let (block, _offset): (usize, usize);
    // SAFETY: reads the thread pointer and a constant offset; no memory is changed.
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:__callsight_tls",
            "ldr {offset}, [{offset}, :gottprel_lo12:__callsight_tls]",
            "mrs {block}, tpidr_el0",
            "add {block}, {block}, {offset}",
            block = out(reg) block,
            offset = out(reg) _offset,
            options(nostack, readonly, preserves_flags)
        );
    }
    block
}

/// Clock ticks.
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, nomem)) };
    ticks
}

/// The stack pointer here.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let sp: usize;
    // SAFETY: copies a register.
    unsafe { asm!("mov {}, sp", out(reg) sp, options(nostack, nomem, preserves_flags)) };
    sp
}

/// Changes `*place` from `old` to `new` if it still is `old`; gives what was there.
///
/// # Safety
/// `place` is valid for reads and writes, aligned, and of this thread alone.
#[inline(always)]
pub unsafe fn swap_if_same(place: *mut usize, old: usize, new: usize) -> usize {
    // SAFETY: the caller vouches for `place`; a load-store pair is broken by a signal.
    let place = unsafe { AtomicUsize::from_ptr(place) };
    match place.compare_exchange(old, new, Relaxed, Relaxed) {
        Ok(found) | Err(found) => found,
    }
}

/// Whether the clock of [`ticks`] runs at one rate on all processors: it does by definition.
pub fn ticks_are_invariant() -> bool {
    true
}

/// Ticks a second where the processor says it; `None` where it must be measured.
pub fn tick_hz() -> Option<u64> {
    let hz: u64;
    // SAFETY: reads a register that user mode may read.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nostack, nomem)) };
    (hz > 0).then_some(hz)
}

/// The thread pointer; 0 before libc has set it up.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem)) };
    pointer
}

/// The kernel knows where handlers of signals return to.
pub const SA_RESTORER: usize = 0;

/// See [`SA_RESTORER`].
pub fn signal_restorer() -> usize {
    0
}

/// A system call; negative results are errno.
///
/// # Safety
/// As the call itself: pointers must be valid for what the kernel does with them.
#[inline(always)]
pub unsafe fn syscall6(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}

/// System call numbers.
pub mod nr {
    #![allow(missing_docs)]
    pub const GETCWD: usize = 17;
    pub const IOCTL: usize = 29;
    pub const PROCESS_VM_READV: usize = 270;
    pub const MKDIRAT: usize = 34;
    pub const UNLINKAT: usize = 35;
    pub const LINKAT: usize = 37;
    pub const FSTATFS: usize = 44;
    pub const FTRUNCATE: usize = 46;
    pub const FALLOCATE: usize = 47;
    pub const FLOCK: usize = 32;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const PWRITE64: usize = 68;
    pub const READLINKAT: usize = 78;
    pub const FSTAT: usize = 80;
    pub const NANOSLEEP: usize = 101;
    pub const CLOCK_GETTIME: usize = 113;
    pub const SCHED_YIELD: usize = 124;
    pub const KILL: usize = 129;
    pub const TGKILL: usize = 131;
    pub const RT_SIGACTION: usize = 134;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const PRCTL: usize = 167;
    pub const GETPID: usize = 172;
    pub const GETPPID: usize = 173;
    pub const GET_ROBUST_LIST: usize = 100;
    pub const GETUID: usize = 174;
    pub const GETEUID: usize = 175;
    pub const GETGID: usize = 176;
    pub const GETEGID: usize = 177;
    pub const GETTID: usize = 178;
    pub const MUNMAP: usize = 215;
    pub const MMAP: usize = 222;
    pub const MADVISE: usize = 233;
    pub const PRLIMIT64: usize = 261;
    pub const RENAMEAT2: usize = 276;
    pub const SECCOMP: usize = 277;
}

/// Adds to the number at `base + AT`, which only this thread and its signal handlers change, so that
/// what a handler adds meanwhile is kept.
///
/// # Safety
/// The number is valid for reads and writes, aligned, and of this thread alone.
#[inline(always)]
pub unsafe fn add<const AT: usize>(base: *mut u8, number: u64) {
    // SAFETY: the caller vouches for the number.
    unsafe { AtomicU64::from_ptr(base.add(AT).cast()) }.fetch_add(number, Relaxed);
}

/// Adds one to such a number of 32 bits, unless it has reached its end.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub unsafe fn count<const AT: usize>(base: *mut u8) {
    // SAFETY: the caller vouches for the number.
    let number = unsafe { AtomicU32::from_ptr(base.add(AT).cast()) };
    if number.fetch_add(1, Relaxed) == u32::MAX {
        number.fetch_sub(1, Relaxed);
    }
}

/// The number of the highest bit set; `number` is not 0.
#[inline(always)]
pub fn top_bit(number: u64) -> usize {
    63 - number.leading_zeros() as usize
}

/// Where the fields of the kernel's `struct stat` are.
pub mod stat {
    /// Bytes of the structure.
    pub const BYTES: usize = 128;
    /// Device, u64.
    pub const DEV: usize = 0;
    /// Inode, u64.
    pub const INO: usize = 8;
    /// Mode, u32.
    pub const MODE: usize = 16;
    /// Owner, u32.
    pub const UID: usize = 24;
    /// Size in bytes, i64.
    pub const SIZE: usize = 48;
    /// Blocks of 512 bytes, i64.
    pub const BLOCKS: usize = 64;
}

/// Address that the global offset table has for a symbol; 0 for a weak one that is nowhere.
macro_rules! got_address {
    ($symbol:literal) => {{
        let address: usize;
        // SAFETY: loads an entry of the global offset table.
        unsafe {
            core::arch::asm!(
                concat!("adrp {0}, :got:", $symbol),
                concat!("ldr {0}, [{0}, :got_lo12:", $symbol, "]"),
                out(reg) address,
                options(nostack, readonly, preserves_flags)
            );
        }
        address
    }};
}
pub(super) use got_address;
