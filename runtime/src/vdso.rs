//! `clock_gettime` out of the vDSO, found by reading its ELF tables: no libc function is called,
//! and no system call is made where the kernel offers it.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::sys::{self, Fd, O_RDONLY};

type ClockGettime = unsafe extern "C" fn(usize, *mut [u64; 2]) -> i32;

/// Address of the function; 0 where there is none.
static FUNCTION: AtomicUsize = AtomicUsize::new(0);

/// Time of clock `id` in ns.
pub fn clock_ns(id: usize) -> u64 {
    let function = FUNCTION.load(Relaxed);
    if function == 0 {
        return sys::clock_ns(id);
    }
    let mut time = [0u64; 2];
    // SAFETY: `find` stored the address of the kernel's function of this type.
    let done = unsafe { core::mem::transmute::<usize, ClockGettime>(function)(id, &mut time) };
    if done == 0 { time[0] * 1_000_000_000 + time[1] } else { sys::clock_ns(id) }
}

/// Looks the function up; called once, before the first [`clock_ns`] that matters.
pub fn find() {
    if let Some(base) = image_base()
        // SAFETY: the kernel says that the vDSO is mapped there.
        && let Some(function) = unsafe { lookup(base) }
    {
        FUNCTION.store(function, Relaxed);
    }
}

/// Where the kernel mapped the vDSO, from the auxiliary vector.
fn image_base() -> Option<usize> {
    const AT_SYSINFO_EHDR: usize = 33;
    let file = Fd::open(b"/proc/self/auxv\0", O_RDONLY, 0).ok()?;
    let mut entry = [0u8; 16];
    while file.read_all(&mut entry) == entry.len() {
        let word = |at: usize| -> usize {
            let raw: [u8; 8] = core::array::from_fn(|i| entry[(at + i) & 15]);
            usize::from_ne_bytes(raw)
        };
        if word(0) == AT_SYSINFO_EHDR {
            return Some(word(8));
        }
    }
    None
}

/// # Safety
/// A 64-bit ELF image is mapped at `base`.
unsafe fn lookup(base: usize) -> Option<usize> {
    // SAFETY: all reads stay in the image, as its own tables describe it.
    let u16_at = |at: usize| unsafe { (at as *const u16).read_unaligned() } as usize;
    // SAFETY: as above.
    let u32_at = |at: usize| unsafe { (at as *const u32).read_unaligned() } as usize;
    // SAFETY: as above.
    let u64_at = |at: usize| unsafe { (at as *const u64).read_unaligned() } as usize;
    let (mut bias, mut dynamic) = (None, None);
    let (headers, size, count) = (base + u64_at(base + 32), u16_at(base + 54), u16_at(base + 56));
    for index in 0..count {
        let header = headers + index * size;
        match u32_at(header) {
            1 if bias.is_none() => {
                bias = Some(base.wrapping_add(u64_at(header + 8)).wrapping_sub(u64_at(header + 16)))
            }
            2 => dynamic = Some(base + u64_at(header + 8)),
            _ => {}
        }
    }
    let (bias, mut entry) = (bias?, dynamic?);
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    while u64_at(entry) != 0 {
        let value = bias.wrapping_add(u64_at(entry + 8));
        match u64_at(entry) {
            4 => hash = value,
            5 => strings = value,
            6 => symbols = value,
            _ => {}
        }
        entry += 16;
    }
    if strings == 0 || symbols == 0 || hash == 0 {
        return None;
    }
    (0..u32_at(hash + 4)).map(|index| symbols + index * 24).find_map(|symbol| {
        let name = strings + u32_at(symbol);
        let defined = u16_at(symbol + 6) != 0;
        // SAFETY: names end in zero, and the comparison stops at the first difference.
        (defined && unsafe { is_clock_gettime(name as *const u8) })
            .then(|| bias.wrapping_add(u64_at(symbol + 8)))
    })
}

/// # Safety
/// `name` is a zero-terminated string.
unsafe fn is_clock_gettime(name: *const u8) -> bool {
    let wanted: &[u8] = if cfg!(target_arch = "aarch64") {
        b"__kernel_clock_gettime\0"
    } else {
        b"__vdso_clock_gettime\0"
    };
    let mut at = 0;
    // SAFETY: a difference at or before the terminator ends the walk.
    while at < wanted.len() && unsafe { *name.add(at) } == wanted[at] {
        at += 1;
    }
    at == wanted.len()
}
