//! System calls, raw: no libc function is called, errno stays what it was.

use crate::arch::{self, nr, syscall6};
use crate::{filter, guard};

/// `AT_FDCWD`.
const CWD: usize = -100isize as usize;
/// Open flags, as the kernel numbers them.
pub const O_RDONLY: usize = 0;
/// See [`O_RDONLY`].
pub const O_RDWR: usize = 2;
/// See [`O_RDONLY`].
pub const O_CREAT: usize = 0o100;
/// See [`O_RDONLY`].
pub const O_EXCL: usize = 0o200;
/// See [`O_RDONLY`].
pub const O_CLOEXEC: usize = 0o2000000;
/// See [`O_RDONLY`].
pub const O_PATH: usize = 0o10000000;
/// See [`O_RDONLY`]; its number differs on arm.
#[cfg(not(target_arch = "aarch64"))]
pub const O_NOFOLLOW: usize = 0o400000;
/// See [`O_RDONLY`]; its number differs on arm.
#[cfg(target_arch = "aarch64")]
pub const O_NOFOLLOW: usize = 0o100000;

/// errno values that decide something here.
pub const EPERM: isize = 1;
/// See [`EPERM`].
pub const ENOENT: isize = 2;
/// See [`ENOENT`].
pub const ESRCH: isize = 3;
/// See [`ENOENT`].
pub const EINTR: isize = 4;
/// See [`ENOENT`].
pub const EIO: isize = 5;
/// See [`ENOENT`].
pub const EAGAIN: isize = 11;
/// See [`ENOENT`].
pub const EEXIST: isize = 17;
/// See [`ENOENT`].
pub const EFBIG: isize = 27;
/// See [`ENOENT`].
pub const ENOSPC: isize = 28;
/// See [`ENOENT`].
pub const ENOSYS: isize = 38;
/// See [`ENOENT`].
pub const EOPNOTSUPP: isize = 95;

/// A descriptor that is closed when it goes out of scope; none is kept across hooks, so that the
/// program's own numbers are those of an untraced run.
pub struct Fd(usize);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { syscall6(nr::CLOSE, self.0, 0, 0, 0, 0, 0) };
    }
}

/// What `fstat` says that matters here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Permission bits and type.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
}

impl Fd {
    /// Opens `path`, which ends in a zero byte.
    ///
    /// # Errors
    /// errno.
    pub fn open(path: &[u8], flags: usize, mode: usize) -> Result<Fd, isize> {
        let to_write = if flags & O_RDWR == 0 { 0 } else { filter::MAKE };
        if filter::forbids(filter::LOOK | to_write) {
            return Err(EPERM);
        }
        // SAFETY: every caller's path ends in a zero byte.
        let fd = unsafe {
            syscall6(nr::OPENAT, CWD, path.as_ptr() as usize, flags | O_CLOEXEC, mode, 0, 0)
        };
        if fd < 0 { Err(-fd) } else { Ok(Fd(fd as usize)) }
    }

    /// Reads into `buffer`; how many bytes came, 0 at the end or on an error.
    pub fn read(&self, buffer: &mut [u8]) -> usize {
        loop {
            let (at, len) = (buffer.as_mut_ptr() as usize, buffer.len());
            // SAFETY: the buffer is ours and as long as stated.
            let got = unsafe { syscall6(nr::READ, self.0, at, len, 0, 0, 0) };
            if got != -EINTR {
                return got.max(0) as usize;
            }
        }
    }

    /// Fills `buffer` as far as the file goes.
    pub fn read_all(&self, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..) {
            let got = self.read(rest);
            if got == 0 {
                break;
            }
            filled += got;
        }
        filled
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// errno.
    pub fn write_at(&self, bytes: &[u8], offset: usize) -> Result<(), isize> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..) {
            if rest.is_empty() {
                break;
            }
            let (at, len) = (rest.as_ptr() as usize, rest.len());
            // SAFETY: the bytes are readable.
            let put = unsafe { syscall6(nr::PWRITE64, self.0, at, len, offset + done, 0, 0) };
            match put {
                put if put > 0 => done += put as usize,
                put if put == -EINTR => {}
                0 => return Err(ENOSPC),
                put => return Err(-put),
            }
        }
        Ok(())
    }

    /// Asks the file for what `request` names, of which `answer` holds question and answer.
    ///
    /// # Errors
    /// errno.
    ///
    /// # Safety
    /// `request` reads and writes no more than `answer`, or what pointers in it say.
    pub unsafe fn ask<T>(&self, request: usize, answer: &mut T) -> Result<(), isize> {
        let at = core::ptr::from_mut(answer) as usize;
        // SAFETY: as the caller says.
        check(unsafe { syscall6(nr::IOCTL, self.0, request, at, 0, 0, 0) })
    }

    /// Sets the size of the file.
    ///
    /// # Errors
    /// errno.
    pub fn truncate(&self, bytes: usize) -> Result<(), isize> {
        // SAFETY: no pointers.
        check(unsafe { syscall6(nr::FTRUNCATE, self.0, bytes, 0, 0, 0, 0) })
    }

    /// Takes the lock of the file; it is held by the descriptor and its copies in forked children.
    ///
    /// # Errors
    /// errno; [`EAGAIN`] where another one has it.
    pub fn try_lock(&self) -> Result<(), isize> {
        const EXCLUSIVE: usize = 2;
        const NO_WAIT: usize = 4;
        // SAFETY: no pointers.
        check(unsafe { syscall6(nr::FLOCK, self.0, EXCLUSIVE | NO_WAIT, 0, 0, 0, 0) })
    }

    /// Gives the lock back.
    pub fn unlock(&self) {
        const UNLOCK: usize = 8;
        // SAFETY: no pointers.
        unsafe { syscall6(nr::FLOCK, self.0, UNLOCK, 0, 0, 0, 0) };
    }

    /// Reserves disk blocks for `from..to`, so that no later store can meet a full disk.
    ///
    /// # Errors
    /// errno.
    pub fn reserve(&self, from: usize, to: usize) -> Result<(), isize> {
        // SAFETY: no pointers.
        match check(unsafe { syscall6(nr::FALLOCATE, self.0, 0, from, to - from, 0, 0) }) {
            Err(EOPNOTSUPP) => self.write_zeros(from, to),
            Err(EINTR) => self.reserve(from, to),
            done => done,
        }
    }

    /// Reserves disk blocks for `from..to` behind the end of the file, and leaves the end where it
    /// is; not where the file system cannot reserve.
    ///
    /// # Errors
    /// errno.
    pub fn reserve_behind(&self, from: usize, to: usize) -> Result<(), isize> {
        const KEEP_SIZE: usize = 1;
        // SAFETY: no pointers.
        match check(unsafe { syscall6(nr::FALLOCATE, self.0, KEEP_SIZE, from, to - from, 0, 0) }) {
            Err(EOPNOTSUPP) => self.write_zeros(from, to),
            Err(EINTR) => self.reserve_behind(from, to),
            done => done,
        }
    }

    /// For file systems that cannot reserve: real zeros.
    fn write_zeros(&self, from: usize, to: usize) -> Result<(), isize> {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut at = from;
        while at < to {
            let len = (to - at).min(ZEROS.len());
            self.write_at(ZEROS.get(..len).unwrap_or(&[]), at)?;
            at += len;
        }
        Ok(())
    }

    /// Maps `bytes` from `offset` on, shared, at `address` or (0) anywhere.
    ///
    /// # Errors
    /// errno.
    pub fn map(&self, address: usize, bytes: usize, offset: usize) -> Result<usize, isize> {
        const SHARED: usize = 1;
        let flags = SHARED | if address == 0 { 0 } else { MAP_FIXED };
        mmap(address, bytes, PROT_READ | PROT_WRITE, flags, self.0, offset)
    }

    /// What the file is.
    ///
    /// # Errors
    /// errno.
    pub fn stat(&self) -> Result<Stat, isize> {
        let mut raw = [0u64; arch::stat::BYTES / 8];
        // SAFETY: the kernel writes one `struct stat`.
        check(unsafe { syscall6(nr::FSTAT, self.0, raw.as_mut_ptr() as usize, 0, 0, 0, 0) })?;
        let long = |at: usize| raw.get(at / 8).copied().unwrap_or(0);
        let word = |at: usize| {
            let both = long(at).to_ne_bytes();
            let half = at % 8;
            u32::from_ne_bytes([both[half], both[half + 1], both[half + 2], both[half + 3]])
        };
        Ok(Stat {
            dev: long(arch::stat::DEV),
            ino: long(arch::stat::INO),
            mode: word(arch::stat::MODE),
            uid: word(arch::stat::UID),
            size: long(arch::stat::SIZE),
            blocks: long(arch::stat::BLOCKS),
        })
    }

    /// Bytes that an ordinary user may still write to this file system, if it says so.
    pub fn free_bytes(&self) -> Option<u64> {
        let mut raw = [0u64; 16];
        // SAFETY: the kernel writes one `struct statfs`, 120 bytes.
        let done = unsafe { syscall6(nr::FSTATFS, self.0, raw.as_mut_ptr() as usize, 0, 0, 0, 0) };
        // f_type, f_bsize, f_blocks, f_bfree, f_bavail
        (done == 0).then(|| raw[1].saturating_mul(raw[4]))
    }
}

fn check(result: isize) -> Result<(), isize> {
    if result < 0 { Err(-result) } else { Ok(()) }
}

const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
const MAP_PRIVATE: usize = 2;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;

fn mmap(
    address: usize,
    bytes: usize,
    protection: usize,
    flags: usize,
    fd: usize,
    offset: usize,
) -> Result<usize, isize> {
    // SAFETY: an address given is in a range of ours (`reserve_addresses`); else the kernel picks.
    let at = unsafe { syscall6(nr::MMAP, address, bytes, protection, flags, fd, offset) };
    if (-4095..0).contains(&at) { Err(-at) } else { Ok(at as usize) }
}

/// Takes `bytes` of address space, a multiple of `align`, aligned to `align`; not accessible.
///
/// # Errors
/// errno.
pub fn reserve_addresses(bytes: usize, align: usize) -> Result<usize, isize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let raw = mmap(0, bytes + align, 0, flags, usize::MAX, 0)?;
    let start = (raw + align - 1) & !(align - 1);
    if start > raw {
        unmap(raw, start - raw);
    }
    let (end, raw_end) = (start + bytes, raw + bytes + align);
    if raw_end > end {
        unmap(end, raw_end - end);
    }
    Ok(start)
}

/// Private zeroed memory, aligned to `align`.
///
/// # Errors
/// errno.
pub fn private_memory(bytes: usize, align: usize) -> Result<usize, isize> {
    let at = reserve_addresses(bytes, align)?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(at, bytes, PROT_READ | PROT_WRITE, flags, usize::MAX, 0)
}

/// Puts zeroed memory in the place of what is mapped at `at`; whether that was possible.
pub fn replace_by_memory(at: usize, bytes: usize) -> bool {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    mmap(at, bytes, PROT_READ | PROT_WRITE, flags, usize::MAX, 0).is_ok()
}

/// Gives address space back.
pub fn unmap(at: usize, bytes: usize) {
    // SAFETY: callers pass ranges they mapped and nothing points into any more.
    unsafe { syscall6(nr::MUNMAP, at, bytes, 0, 0, 0, 0) };
}

/// Makes the pages present for writing in one go (kernel 5.14); elsewhere they fault in.
pub fn populate(at: usize, bytes: usize) {
    const MADV_POPULATE_WRITE: usize = 23;
    // SAFETY: changes no contents.
    unsafe { syscall6(nr::MADVISE, at, bytes, MADV_POPULATE_WRITE, 0, 0, 0) };
}

/// Copies memory of this process that another thread may unmap just now; how many bytes of it were there.
pub fn copy_mapped(from: usize, to: &mut [u8]) -> usize {
    let (local, remote) = ([to.as_mut_ptr() as usize, to.len()], [from, to.len()]);
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    // SAFETY: the kernel writes at most all of `to`, and finds out what can be read.
    let got = unsafe { syscall6(nr::PROCESS_VM_READV, getpid() as usize, local, 1, remote, 1, 0) };
    match -got {
        ENOSYS | EPERM => {
            // Then nobody but the reader can find out.
            // SAFETY: the kernel has just said that these addresses can be read.
            unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
            to.len()
        }
        _ => got.max(0) as usize,
    }
}

/// Lets a forked child find these pages zeroed (kernel 4.14). Whether the kernel can.
pub fn wipe_on_fork(at: usize, bytes: usize) -> bool {
    const MADV_WIPEONFORK: usize = 18;
    // SAFETY: changes no contents of this process.
    unsafe { syscall6(nr::MADVISE, at, bytes, MADV_WIPEONFORK, 0, 0, 0) == 0 }
}

/// What a process does on a signal, as the kernel lays it out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SignalAction {
    /// Address of the handler; 0 for the default action.
    pub handler: usize,
    /// `SA_*`.
    pub flags: usize,
    /// Where the handler returns to, with [`arch::SA_RESTORER`].
    pub restorer: usize,
    /// Signals blocked meanwhile.
    pub mask: u64,
}

/// What the process does on `signal`.
pub fn signal_action(signal: usize) -> Option<SignalAction> {
    let mut found = SignalAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: the kernel writes one such structure with a mask of 8 bytes.
    let done = unsafe { syscall6(nr::RT_SIGACTION, signal, 0, &raw mut found as usize, 8, 0, 0) };
    (done == 0).then_some(found)
}

/// Lets the process do `action` on `signal`; whether that was possible.
pub fn set_signal_action(signal: usize, action: &SignalAction) -> bool {
    let action = core::ptr::from_ref(action) as usize;
    // SAFETY: the kernel reads one such structure; the caller vouches for the handler in it.
    unsafe { syscall6(nr::RT_SIGACTION, signal, action, 0, 8, 0, 0) == 0 }
}

/// Sends the calling thread a signal.
pub fn send_to_self(signal: usize) {
    // SAFETY: no pointers.
    unsafe { syscall6(nr::TGKILL, getpid() as usize, gettid() as usize, signal, 0, 0, 0) };
}

/// Blocks the signals that [`guard::signals_to_block`] names until dropped, so that no handler's
/// hooks find work half done.
pub struct SignalsBlocked(u64);

impl SignalsBlocked {
    /// Blocks them.
    pub fn new() -> SignalsBlocked {
        let (all, mut before) = (guard::signals_to_block(), 0u64);
        const SIG_BLOCK: usize = 0;
        // SAFETY: the kernel reads 8 bytes and writes 8 bytes.
        unsafe {
            let (set, old) = (&raw const all as usize, &raw mut before as usize);
            syscall6(nr::RT_SIGPROCMASK, SIG_BLOCK, set, old, 8, 0, 0);
        }
        SignalsBlocked(before)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        const SIG_SETMASK: usize = 2;
        // SAFETY: the kernel reads 8 bytes.
        unsafe {
            syscall6(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const self.0 as usize, 0, 8, 0, 0);
        }
    }
}

/// Kernel thread id of the caller.
pub fn gettid() -> u32 {
    // SAFETY: no pointers.
    unsafe { syscall6(nr::GETTID, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Process id.
pub fn getpid() -> u32 {
    // SAFETY: no pointers.
    unsafe { syscall6(nr::GETPID, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Process id of the parent.
pub fn getppid() -> u32 {
    // SAFETY: no pointers.
    unsafe { syscall6(nr::GETPPID, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Whether libc has told the kernel of a list of mutexes for the calling thread, as it does for each that it
/// makes. The child of a `vfork` has none.
pub fn has_robust_list() -> bool {
    let (mut head, mut bytes) = (0usize, 0usize);
    let (head_at, bytes_at) = (&raw mut head as usize, &raw mut bytes as usize);
    // SAFETY: the kernel writes a word to each.
    let done = unsafe { syscall6(nr::GET_ROBUST_LIST, 0, head_at, bytes_at, 0, 0, 0) };
    done == 0 && head != 0
}

/// Whether the program runs with rights its caller does not have.
pub fn is_privileged() -> bool {
    // SAFETY: no pointers.
    let id = |number| unsafe { syscall6(number, 0, 0, 0, 0, 0, 0) };
    id(nr::GETUID) != id(nr::GETEUID) || id(nr::GETGID) != id(nr::GETEGID)
}

/// Effective user id.
pub fn geteuid() -> u32 {
    // SAFETY: no pointers.
    unsafe { syscall6(nr::GETEUID, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Whether thread `tid` of process `pid` is gone.
pub fn thread_is_gone(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    !filter::forbids(filter::ASK)
        && unsafe { syscall6(nr::TGKILL, pid as usize, tid as usize, 0, 0, 0, 0) == -ESRCH }
}

/// Whether there is no process `pid`.
pub fn process_is_gone(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    !filter::forbids(filter::ASK)
        && unsafe { syscall6(nr::KILL, pid as usize, 0, 0, 0, 0, 0) == -ESRCH }
}

/// Lets others run.
pub fn yield_now() {
    if filter::forbids(filter::WAIT) {
        return core::hint::spin_loop();
    }
    // SAFETY: no pointers.
    unsafe { syscall6(nr::SCHED_YIELD, 0, 0, 0, 0, 0, 0) };
}

/// Sleeps.
pub fn sleep_ns(ns: u64) {
    if filter::forbids(filter::WAIT) {
        // About as long: it is what others need to get done.
        return (0..ns / 32).for_each(|_| core::hint::spin_loop());
    }
    let span = [ns / 1_000_000_000, ns % 1_000_000_000];
    // SAFETY: the kernel reads two words.
    unsafe { syscall6(nr::NANOSLEEP, span.as_ptr() as usize, 0, 0, 0, 0, 0) };
}

/// Time of clock `id` in ns by a real system call; 0 where there is no such clock.
pub fn clock_ns(id: usize) -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes two words.
    unsafe { syscall6(nr::CLOCK_GETTIME, id, time.as_mut_ptr() as usize, 0, 0, 0, 0) };
    time[0].wrapping_mul(1_000_000_000).wrapping_add(time[1])
}

/// The caller's thread name, zero-filled to 16 bytes.
pub fn thread_name() -> [u8; 16] {
    const PR_GET_NAME: usize = 16;
    let mut name = [0; 16];
    if filter::forbids(filter::NAME) {
        return name;
    }
    // SAFETY: the kernel writes at most 16 bytes.
    unsafe { syscall6(nr::PRCTL, PR_GET_NAME, name.as_mut_ptr() as usize, 0, 0, 0, 0) };
    name
}

/// `prctl`; negative results are errno.
///
/// # Safety
/// As the call itself.
pub unsafe fn prctl(option: usize, arguments: [usize; 4]) -> isize {
    let [second, third, fourth, fifth] = arguments;
    // SAFETY: the caller vouches for the arguments.
    unsafe { syscall6(nr::PRCTL, option, second, third, fourth, fifth, 0) }
}

/// The working directory, with its zero byte; `None` where it does not fit or is gone.
pub fn working_directory(buffer: &mut [u8]) -> Option<usize> {
    let (at, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: the kernel writes at most `len` bytes.
    let got = unsafe { syscall6(nr::GETCWD, at, len, 0, 0, 0, 0) };
    (got > 1).then_some(got as usize - 1)
}

/// Where the link `path` (zero-terminated) points; how many bytes.
///
/// # Errors
/// errno.
pub fn read_link(path: &[u8], buffer: &mut [u8]) -> Result<usize, isize> {
    if filter::forbids(filter::LOOK) {
        return Err(EPERM);
    }
    let (from, to, len) = (path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: the path is terminated, the kernel writes at most `len` bytes.
    let got = unsafe { syscall6(nr::READLINKAT, CWD, from, to, len, 0, 0) };
    if got < 0 { Err(-got) } else { Ok(got as usize) }
}

/// Makes a directory; an existing one is fine too.
///
/// # Errors
/// errno.
pub fn make_directory(path: &[u8]) -> Result<(), isize> {
    if filter::forbids(filter::MAKE) {
        return Err(EPERM);
    }
    // SAFETY: every caller's path ends in a zero byte.
    match check(unsafe { syscall6(nr::MKDIRAT, CWD, path.as_ptr() as usize, 0o777, 0, 0, 0) }) {
        Err(EEXIST) => Ok(()),
        done => done,
    }
}

/// Removes the name `path` (zero-terminated).
///
/// # Errors
/// errno.
pub fn unlink(path: &[u8]) -> Result<(), isize> {
    if filter::forbids(filter::MAKE) {
        return Err(EPERM);
    }
    // SAFETY: the path is terminated.
    check(unsafe { syscall6(nr::UNLINKAT, CWD, path.as_ptr() as usize, 0, 0, 0, 0) })
}

/// Gives the file `from` the second name `to`, if that is free.
///
/// # Errors
/// errno.
pub fn link(from: &[u8], to: &[u8]) -> Result<(), isize> {
    let (from, to) = (from.as_ptr() as usize, to.as_ptr() as usize);
    // SAFETY: both paths are terminated.
    check(unsafe { syscall6(nr::LINKAT, CWD, from, CWD, to, 0, 0) })
}

/// Gives the file `from` the name `to` instead, if that is free.
///
/// # Errors
/// errno.
pub fn rename(from: &[u8], to: &[u8]) -> Result<(), isize> {
    const NO_REPLACE: usize = 1;
    let (from, to) = (from.as_ptr() as usize, to.as_ptr() as usize);
    // SAFETY: both paths are terminated.
    check(unsafe { syscall6(nr::RENAMEAT2, CWD, from, CWD, to, NO_REPLACE, 0) })
}

/// The largest file this process may make, in bytes.
pub fn file_size_limit() -> u64 {
    const RLIMIT_FSIZE: usize = 1;
    let mut limit = [u64::MAX; 2];
    if !filter::forbids(filter::MAKE) {
        // SAFETY: the kernel writes two words.
        unsafe { syscall6(nr::PRLIMIT64, 0, RLIMIT_FSIZE, 0, limit.as_mut_ptr() as usize, 0, 0) };
    }
    limit[0]
}
