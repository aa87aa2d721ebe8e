//! The map of this process: which ELF files are mapped where, and what changed since.
//!
//! Read from `/proc/self/maps` and from the ELF headers in memory, so that no libc function (and
//! none of its locks) is needed. A module is a run of mappings of one file of which one may be
//! executed.

use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::bytes::{self, Lock, Shared};
use crate::proc_fs::{self, Mapping};
use crate::sys::SignalsBlocked;

/// Most modules told apart; a program with more gets no names for the rest.
const MODULES: usize = 512;
/// Longest path that is told.
const PATH_BYTES: usize = 4096;
/// Longest build-id: SHA-512.
const BUILD_ID_BYTES: usize = 64;

/// A mapped ELF file.
#[derive(Clone, Copy)]
pub struct Module {
    /// Lowest address.
    pub base: usize,
    /// Bytes to the end of the highest mapping.
    pub size: usize,
    /// Run-time address minus the address in the ELF file.
    pub bias: usize,
    /// The build-id's bytes, in `build_id_bytes` of memory at this address; 0 for none.
    build_id: usize,
    build_id_bytes: usize,
    /// Tells another file at the same addresses apart.
    identity: u64,
    seen: bool,
}

impl Module {
    /// GNU build-id, empty where there is none.
    pub fn build_id(&self) -> &[u8] {
        if self.build_id == 0 {
            return &[];
        }
        // SAFETY: `find_build_id` checked that it lies in a readable mapping of this module, and
        // callers use a module while it is being reported, under the lock.
        unsafe { core::slice::from_raw_parts(self.build_id as *const u8, self.build_id_bytes) }
    }
}

struct Table {
    modules: [Module; MODULES],
    count: usize,
    path: [u8; PATH_BYTES],
}

const NO_MODULE: Module =
    Module { base: 0, size: 0, bias: 0, build_id: 0, build_id_bytes: 0, identity: 0, seen: false };

static TABLE: Shared<Table> =
    Shared::new(Table { modules: [NO_MODULE; MODULES], count: 0, path: [0; PATH_BYTES] });
/// Guards the table and the buffers of [`proc_fs`].
static LOCK: Lock = Lock::new();
static UNREADABLE: AtomicBool = AtomicBool::new(false);

/// What [`scan`] found.
pub enum Change<'a> {
    /// A module that was not there at the last scan, and its path.
    Loaded(&'a Module, &'a [u8]),
    /// A module that is there no more.
    Gone(&'a Module),
}

/// A forked child: only the forking thread lives on, whoever held the lock does not.
pub fn after_fork() {
    LOCK.reset();
}

/// Whether the map could not be read.
pub fn are_unreadable() -> bool {
    UNREADABLE.load(Relaxed)
}

/// Compares the map with the last scan; `tell` hears of each change. With `all` every module is
/// told as loaded, for a new file or process. Gives the first module, which is the executable
/// for all but exotic layouts.
pub fn scan(all: bool, mut tell: impl FnMut(Change)) -> Option<Module> {
    let _blocked = SignalsBlocked::new();
    let _lock = LOCK.take();
    if !all && !proc_fs::may_have_changed() {
        return None;
    }
    // SAFETY: the lock is held.
    let table = unsafe { &mut *TABLE.get() };
    let Table { modules, count, path } = table;
    for module in modules.iter_mut().take(*count) {
        module.seen = false;
    }
    let mut run = Run { module: NO_MODULE, path_bytes: 0, executable: false };
    let mut add = |run: &Run, path: &[u8]| {
        let path = path.get(..run.path_bytes).unwrap_or(&[]);
        if !run.executable {
            return;
        }
        let known = modules
            .iter_mut()
            .take(*count)
            .find(|known| known.base == run.module.base && known.identity == run.module.identity);
        if let Some(known) = known {
            known.seen = true;
            if all {
                tell(Change::Loaded(known, path));
            }
        } else if let Some(place) = modules.get_mut(*count) {
            *place = run.module;
            place.seen = true;
            *count += 1;
            tell(Change::Loaded(place, path));
        }
    };
    let read = proc_fs::each_mapping(|mapping| {
        if !run.continues_with(mapping, path) {
            add(&run, path);
            run = Run::start(mapping, path);
        }
        run.extend(mapping);
    });
    add(&run, path);
    UNREADABLE.store(!read, Relaxed);
    if read {
        let mut kept = 0;
        for index in 0..*count {
            let Some(module) = modules.get(index).copied() else { break };
            if !module.seen {
                tell(Change::Gone(&module));
            } else if let Some(place) = modules.get_mut(kept) {
                *place = module;
                kept += 1;
            }
        }
        *count = kept;
    }
    modules.first().filter(|_| *count > 0).copied()
}

/// Neighbouring mappings of one file, as they are read.
struct Run {
    module: Module,
    path_bytes: usize,
    executable: bool,
}

impl Run {
    fn start(mapping: &Mapping, path: &mut [u8; PATH_BYTES]) -> Run {
        let path_bytes = bytes::copy(path, mapping.path);
        let mut module = NO_MODULE;
        module.base = mapping.start;
        module.bias = mapping.start.wrapping_sub(mapping.offset as usize);
        if mapping.offset == 0 && mapping.readable {
            // SAFETY: the kernel says that these addresses can be read.
            unsafe { read_elf(&mut module, mapping.end) };
        }
        // Build-id and path: another file at the same place has another identity.
        let name = module.build_id().iter().chain(mapping.path);
        module.identity = name.fold(bytes::HASH_START, |hash, &byte| bytes::hash(hash, byte));
        Run { module, path_bytes, executable: false }
    }

    fn continues_with(&self, mapping: &Mapping, path: &[u8; PATH_BYTES]) -> bool {
        self.path_bytes > 0
            && mapping.offset > 0
            && bytes::same(path.get(..self.path_bytes).unwrap_or(&[]), mapping.path)
    }

    fn extend(&mut self, mapping: &Mapping) {
        self.module.size = mapping.end - self.module.base;
        self.executable |= mapping.executable;
    }
}

/// Reads bias and build-id from the program headers at the start of a module.
///
/// # Safety
/// `module.base..end` can be read.
unsafe fn read_elf(module: &mut Module, end: usize) {
    let base = module.base;
    let fits = |at: usize, bytes: usize| at >= base && at.saturating_add(bytes) <= end;
    // SAFETY: asked only for what `fits`.
    let u32_at = |at: usize| unsafe { (at as *const u32).read_unaligned() };
    // SAFETY: as above.
    let u64_at = |at: usize| unsafe { (at as *const u64).read_unaligned() } as usize;
    const ELF64_HEADER_BYTES: usize = 64;
    const PROGRAM_HEADER_BYTES: usize = 56;
    const PT_LOAD: u32 = 1;
    const PT_NOTE: u32 = 4;
    if !fits(base, ELF64_HEADER_BYTES) || u32_at(base) != u32::from_ne_bytes(*b"\x7fELF") {
        return;
    }
    let headers = base.wrapping_add(u64_at(base + 32));
    let count = (u32_at(base + 56) & 0xffff) as usize;
    if !fits(headers, count * PROGRAM_HEADER_BYTES) {
        return;
    }
    for header in (0..count).map(|index| headers + index * PROGRAM_HEADER_BYTES) {
        let (offset, address) = (u64_at(header + 8), u64_at(header + 16));
        if u32_at(header) == PT_LOAD && offset < crate::arch::PAGE_BYTES {
            module.bias = base.wrapping_sub(address - offset);
        }
    }
    for header in (0..count).map(|index| headers + index * PROGRAM_HEADER_BYTES) {
        let (address, bytes) = (u64_at(header + 16), u64_at(header + 32));
        let start = module.bias.wrapping_add(address);
        if u32_at(header) == PT_NOTE && fits(start, bytes) {
            // SAFETY: the notes fit into the readable mapping.
            unsafe { find_build_id(module, start, start + bytes) };
        }
    }
}

/// # Safety
/// `at..end` can be read.
unsafe fn find_build_id(module: &mut Module, mut at: usize, end: usize) {
    const NT_GNU_BUILD_ID: u32 = 3;
    const NOTE_HEADER_BYTES: usize = 12;
    // SAFETY: the loop stays below `end`.
    let word = |at: usize| unsafe { (at as *const u32).read_unaligned() };
    while at + NOTE_HEADER_BYTES <= end {
        let (name_bytes, bytes) = (word(at) as usize, word(at + 4) as usize);
        let name = at + NOTE_HEADER_BYTES;
        let value = name.saturating_add(name_bytes.next_multiple_of(4));
        if value.saturating_add(bytes) > end {
            return;
        }
        let is_gnu = name_bytes == 4 && word(name) == u32::from_ne_bytes(*b"GNU\0");
        if word(at + 8) == NT_GNU_BUILD_ID && is_gnu && bytes <= BUILD_ID_BYTES {
            (module.build_id, module.build_id_bytes) = (value, bytes);
            return;
        }
        at = value.saturating_add(bytes.next_multiple_of(4));
    }
}
