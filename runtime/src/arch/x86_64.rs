//! x86-64: `rdtsc`, initial-exec TLS through `fs`, `syscall`.

use core::arch::{asm, global_asm};

// The memory functions of `arch/mod.rs`.
global_asm!(
    ".pushsection .text.callsight_memory,\"ax\",@progbits",
    "memcpy:",
    "memmove:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2:",
    "lea rdi, [rdi + rdx - 1]",
    "lea rsi, [rsi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "memcmp:",
    "bcmp:",
    "xor eax, eax",
    "3:",
    "test rdx, rdx",
    "je 4f",
    "movzx eax, byte ptr [rdi]",
    "movzx ecx, byte ptr [rsi]",
    "inc rdi",
    "inc rsi",
    "dec rdx",
    "sub eax, ecx",
    "je 3b",
    "4:",
    "ret",
    "strlen:",
    "xor eax, eax",
    "5:",
    "cmp byte ptr [rdi + rax], 0",
    "je 6f",
    "inc rax",
    "jmp 5b",
    "6:",
    "ret",
    ".popsection",
);

/// What a filter of system calls sees as the processor (`AUDIT_ARCH_X86_64`).
pub const AUDIT_NUMBER: u32 = 0xc000_003e;

/// Page size that any kernel for this processor uses at most.
pub const PAGE_BYTES: usize = 4096;

/// Start of the calling thread's 64-byte block. Needs [`thread_pointer`] to be set.
#[inline(always)]
pub fn tls_block() -> usize {
    let block: usize;
    // SAFETY: reads the thread pointer and a constant offset; no memory is changed.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + __callsight_tls@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) block,
            options(nostack, readonly, preserves_flags)
        );
    }
    block
}

/// Clock ticks. Not serialising: the two reads of a pair are what a pair costs.
#[inline(always)]
pub fn ticks() -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: reads a counter.
    unsafe { asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack, nomem)) };
    (high << 32) | low
}

/// Changes `*place` from `old` to `new` if it still is `old`; gives what was there.
///
/// One instruction without a bus lock (5 cycles instead of 20): only this thread and its signal
/// handlers write `place`.
///
/// # Safety
/// `place` is valid for reads and writes, aligned, and of this thread alone.
#[inline(always)]
pub unsafe fn swap_if_same(place: *mut usize, old: usize, new: usize) -> usize {
    let found: usize;
    // SAFETY: the caller vouches for `place`.
    unsafe {
        asm!(
            "cmpxchg qword ptr [{place}], {new}",
            place = in(reg) place,
            new = in(reg) new,
            inout("rax") old => found,
            options(nostack)
        );
    }
    found
}

/// Whether the clock of [`ticks`] runs at one rate on all processors and through sleep.
pub fn ticks_are_invariant() -> bool {
    // Every processor with 64 bits has this leaf. Only one is asked for: in a virtual machine each takes
    // some microseconds.
    core::arch::x86_64::__cpuid(0x8000_0007).edx & (1 << 8) != 0
}

/// Ticks a second where the processor says it; `None` where it must be measured.
pub fn tick_hz() -> Option<u64> {
    None
}

/// The thread pointer as the kernel knows it; 0 before libc has set it up.
pub fn thread_pointer() -> usize {
    const ARCH_GET_FS: usize = 0x1003;
    let mut fs = 0usize;
    // SAFETY: the kernel writes one word to `fs`.
    unsafe { syscall6(158, ARCH_GET_FS, &raw mut fs as usize, 0, 0, 0, 0) };
    fs
}

/// The kernel wants to be told where handlers of signals return to.
pub const SA_RESTORER: usize = 0x0400_0000;

// `rt_sigreturn`, in the very bytes by which debuggers know the frame of a signal.
global_asm!(
    ".pushsection .text.callsight_restorer,\"ax\",@progbits",
    "nop",
    "callsight_restorer:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

/// Where a handler of a signal returns to.
pub fn signal_restorer() -> usize {
    let address: usize;
    // SAFETY: takes an address.
    unsafe {
        asm!("lea {}, [rip + callsight_restorer]", out(reg) address, options(nostack, nomem));
    }
    address
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
    // SAFETY: the caller vouches for the arguments; rcx and r11 are the kernel's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// System call numbers.
pub mod nr {
    #![allow(missing_docs)]
    pub const CLOSE: usize = 3;
    pub const READ: usize = 0;
    pub const MMAP: usize = 9;
    pub const MUNMAP: usize = 11;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const PWRITE64: usize = 18;
    pub const SCHED_YIELD: usize = 24;
    pub const MADVISE: usize = 28;
    pub const NANOSLEEP: usize = 35;
    pub const GETPID: usize = 39;
    pub const FTRUNCATE: usize = 77;
    pub const GETCWD: usize = 79;
    pub const IOCTL: usize = 16;
    pub const PROCESS_VM_READV: usize = 310;
    pub const GETUID: usize = 102;
    pub const GETGID: usize = 104;
    pub const GETEUID: usize = 107;
    pub const GETEGID: usize = 108;
    pub const GETPPID: usize = 110;
    pub const GET_ROBUST_LIST: usize = 274;
    pub const FSTATFS: usize = 138;
    pub const PRCTL: usize = 157;
    pub const GETTID: usize = 186;
    pub const CLOCK_GETTIME: usize = 228;
    pub const TGKILL: usize = 234;
    pub const OPENAT: usize = 257;
    pub const MKDIRAT: usize = 258;
    pub const UNLINKAT: usize = 263;
    pub const LINKAT: usize = 265;
    pub const READLINKAT: usize = 267;
    pub const FALLOCATE: usize = 285;
    pub const FLOCK: usize = 73;
    pub const PRLIMIT64: usize = 302;
    pub const RENAMEAT2: usize = 316;
    pub const SECCOMP: usize = 317;
    pub const KILL: usize = 62;
    pub const FSTAT: usize = 5;
}

/// Adds to the number at `base + AT`, which only this thread and its signal handlers change, in one
/// instruction, so that what a handler adds meanwhile is kept.
///
/// # Safety
/// The number is valid for reads and writes, aligned, and of this thread alone.
#[inline(always)]
pub unsafe fn add<const AT: usize>(base: *mut u8, number: u64) {
    // SAFETY: the caller vouches for the number.
    unsafe {
        asm!(
            "add qword ptr [{base} + {at}], {number}",
            base = in(reg) base,
            number = in(reg) number,
            at = const AT,
            options(nostack)
        );
    }
}

/// Adds one to such a number of 32 bits, unless it has reached its end.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub unsafe fn count<const AT: usize>(base: *mut u8) {
    // SAFETY: the caller vouches for the number.
    unsafe {
        asm!(
            "add dword ptr [{base} + {at}], 1",
            "sbb dword ptr [{base} + {at}], 0",
            base = in(reg) base,
            at = const AT,
            options(nostack)
        );
    }
}

/// Where the fields of the kernel's `struct stat` are.
pub mod stat {
    /// Bytes of the structure.
    pub const BYTES: usize = 144;
    /// Device, u64.
    pub const DEV: usize = 0;
    /// Inode, u64.
    pub const INO: usize = 8;
    /// Mode, u32.
    pub const MODE: usize = 24;
    /// Owner, u32.
    pub const UID: usize = 28;
    /// Size in bytes, i64.
    pub const SIZE: usize = 48;
    /// Blocks of 512 bytes, i64.
    pub const BLOCKS: usize = 64;
}

/// The number of the highest bit set; `number` is not 0.
#[inline(always)]
pub fn top_bit(number: u64) -> usize {
    let bit: usize;
    // SAFETY: changes a register. The compiler makes three instructions more of `ilog2`.
    unsafe { asm!("bsr {}, {}", out(reg) bit, in(reg) number, options(nostack, nomem, pure)) };
    bit
}

/// A hook: what `hook::record` says, in 24 instructions. The compiler needs 29, because it cannot
/// use the flags that `cmpxchg` leaves nor address the thread's block through `fs`.
macro_rules! hook {
    ($(#[$doc:meta])* $name:ident, $kind:ident, $sum:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(func: usize, call_site: usize) {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp dword ptr [rip + {page} + {direct}], 0",
                "jne 5f",
                // Without a jump taken when off or paused: the clock hides the one of the others.
                "cmp dword ptr [rip + {gate} + {off}], 0",
                "je 2f",
                "ret",
                "2:",
                "mov r9, qword ptr [rip + __callsight_tls@GOTTPOFF]",
                // Both at once.
                "mov rax, qword ptr [rip + {page} + {summing}]",
                "test eax, eax",
                "jne 3f",
                "shr rax, 32",
                "je 4f",
                // Not before this: a pause was noticed, so there is thread-local storage, and a ring.
                "cmp dword ptr fs:[r9 + {generation}], eax",
                "jne 4f",
                "mov rax, qword ptr [rip + {gate} + {command}]",
                "cmp dword ptr [rax], {pause}",
                "jne 4f",
                "ret",
                "3:",
                "cmp dword ptr fs:[r9 + {generation}], eax",
                "jne 4f",
                "mov rdx, qword ptr fs:[r9 + {cursor}]",
                "mov rcx, rsp",
                "jmp {sum}",
                "4:",
                "mov edx, {kind}",
                "mov rcx, rsp",
                "jmp {slow}",
                "5:",
                "mov r9, qword ptr [rip + __callsight_tls@GOTTPOFF]",
                "mov eax, dword ptr [rip + {page} + {direct}]",
                "cmp dword ptr fs:[r9 + {generation}], eax",
                "jne 4b",
                // Not before this: a thread in a sandbox has no clock.
                "rdtsc",
                "shl rdx, 32",
                "or rdx, rax",
                "mov rax, qword ptr fs:[r9 + {cursor}]",
                "6:",
                "test qword ptr [rip + {mask}], rax",
                "je 4b",
                "lea r11, [rax + {event_bytes}]",
                "cmpxchg qword ptr fs:[r9 + {cursor}], r11",
                "jne 6b",
                // Bits 4 to 27 of the stack pointer become bits 40 to 63.
                "mov ecx, esp",
                "and ecx, 0xffffff0",
                "shl rcx, 36",
                "or rcx, qword ptr fs:[r9 + {word}]",
                ".if {kind}",
                "bts rcx, 32",
                ".endif",
                "mov qword ptr [rax + 8], rdi",
                "mov qword ptr [rax + 16], rsi",
                "mov qword ptr [rax + 24], rcx",
                "mov qword ptr [rax], rdx",
                "ret",
                // The section holds nothing else: this aligns its start.
                ".p2align 6",
                ".cfi_endproc",
                page = sym $crate::process::PAGE,
                gate = sym $crate::process::GATE,
                mask = sym $crate::process::WINDOW_MASK,
                slow = sym slow,
                sum = sym $crate::summary::$sum,
                direct = const core::mem::offset_of!($crate::process::Page, direct),
                summing = const core::mem::offset_of!($crate::process::Page, summing),
                off = const core::mem::offset_of!($crate::process::Gate, off),
                command = const core::mem::offset_of!($crate::process::Gate, command),
                cursor = const core::mem::offset_of!($crate::threads::Thread, cursor),
                word = const core::mem::offset_of!($crate::threads::Thread, word),
                generation = const core::mem::offset_of!($crate::threads::Thread, generation),
                event_bytes = const callsight_format::EVENT_BYTES,
                pause = const callsight_format::COMMAND_PAUSE,
                kind = const $kind,
            )
        }
    };
}
pub(crate) use hook;

/// Address that the global offset table has for a symbol; 0 for a weak one that is nowhere.
macro_rules! got_address {
    ($symbol:literal) => {{
        let address: usize;
        // SAFETY: loads an entry of the global offset table.
        unsafe {
            core::arch::asm!(
                concat!("mov {}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, readonly, preserves_flags)
            );
        }
        address
    }};
}
pub(super) use got_address;
