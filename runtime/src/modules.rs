//! The map of this process: which ELF files are mapped where, and what changed since.
//!
//! Read from `/proc/self/maps` and from the ELF headers in memory, so that no libc function (and
//! none of its locks) is needed. A module is a run of mappings of one file of which one may be
//! executed.

use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::bytes::{self, Lock, Shared};
use crate::proc_fs::{self, Mapping, Place};
use crate::sys::{self, SignalsBlocked};

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
    /// Its first `build_id_bytes` are the build-id: a copy, as the module may go at any time.
    build_id: [u8; BUILD_ID_BYTES],
    build_id_bytes: usize,
    /// Tells another file at the same addresses apart.
    identity: u64,
    seen: bool,
}

impl Module {
    fn overlaps(&self, other: &Module) -> bool {
        self.base < other.base + other.size && other.base < self.base + self.size
    }

    /// GNU build-id, empty where there is none.
    pub fn build_id(&self) -> &[u8] {
        self.build_id.get(..self.build_id_bytes).unwrap_or(&[])
    }
}

struct Table {
    modules: [Module; MODULES],
    count: usize,
    path: [u8; PATH_BYTES],
}

const NO_MODULE: Module = Module {
    base: 0,
    size: 0,
    bias: 0,
    build_id: [0; BUILD_ID_BYTES],
    build_id_bytes: 0,
    identity: 0,
    seen: false,
};

static TABLE: Shared<Table> =
    Shared::new(Table { modules: [NO_MODULE; MODULES], count: 0, path: [0; PATH_BYTES] });
/// Guards the table and the buffers of [`proc_fs`].
static LOCK: Lock = Lock::new();
static UNREADABLE: AtomicBool = AtomicBool::new(false);

/// What [`scan`] found.
pub enum Change<'a> {
    /// A module that was not there at the last scan, and its path. Where its addresses were another's, that one
    /// went some time between.
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
pub fn scan(all: bool, tell: impl FnMut(Change)) -> Option<Module> {
    let _blocked = SignalsBlocked::new();
    let _lock = LOCK.take();
    if !all && !proc_fs::may_have_changed() {
        return None;
    }
    scan_all(all, tell)
}

/// The same with `all`, for who has the lock of the file sink: whoever scans stores what it tells, and may
/// wait for that one. `false` where somebody scans just now.
pub fn scan_unless_busy(tell: impl FnMut(Change)) -> bool {
    let _blocked = SignalsBlocked::new();
    let lock = LOCK.try_take();
    if lock.is_some() {
        scan_all(true, tell);
    }
    lock.is_some()
}

/// The lock is held.
fn scan_all(all: bool, mut tell: impl FnMut(Change)) -> Option<Module> {
    // SAFETY: the lock is held.
    let table = unsafe { &mut *TABLE.get() };
    let Table { modules, count, path } = table;
    for module in modules.iter_mut().take(*count) {
        module.seen = false;
    }
    // A process begins with one thread, which is here.
    let others_may_unmap = *count > 0;
    let mut missed = false;
    let mut run = NO_RUN;
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
        } else if run.is_gone || others_may_unmap && !proc_fs::is_mapped(run.place) {
            missed = true;
        } else {
            // Nobody saw that one go: that a module comes where another is says so.
            *count = forget(modules, *count, |module| !module.overlaps(&run.module), &mut |_| {});
            let Some(place) = modules.get_mut(*count) else { return };
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
    if missed {
        proc_fs::look_again();
    }
    if read {
        *count = forget(modules, *count, |_| false, &mut tell);
    }
    modules.first().filter(|_| *count > 0).copied()
}

/// Tells that those of the first `count` modules are gone that this scan has not seen, but for those that stay
/// for now; how many are left.
fn forget(
    modules: &mut [Module; MODULES],
    count: usize,
    stays: impl Fn(&Module) -> bool,
    tell: &mut impl FnMut(Change),
) -> usize {
    let mut kept = 0;
    for index in 0..count {
        let Some(module) = modules.get(index).copied() else { break };
        if !module.seen && !stays(&module) {
            tell(Change::Gone(&module));
        } else if let Some(place) = modules.get_mut(kept) {
            *place = module;
            kept += 1;
        }
    }
    kept
}

/// Neighbouring mappings of one file, as they are read.
struct Run {
    module: Module,
    /// Of the first mapping.
    place: Place,
    path_bytes: usize,
    executable: bool,
    /// Another thread has unmapped it since.
    is_gone: bool,
}

const NO_RUN: Run =
    Run { module: NO_MODULE, place: [0; 6], path_bytes: 0, executable: false, is_gone: false };

impl Run {
    fn start(mapping: &Mapping, path: &mut [u8; PATH_BYTES]) -> Run {
        let path_bytes = bytes::copy(path, mapping.path);
        let mut module = NO_MODULE;
        module.base = mapping.start;
        module.bias = mapping.start.wrapping_sub(mapping.offset as usize);
        let is_there =
            mapping.offset > 0 || !mapping.readable || read_elf(&mut module, mapping.end);
        // Build-id and path: another file at the same place has another identity.
        let name = module.build_id().iter().chain(mapping.path);
        module.identity = name.fold(bytes::HASH_START, |hash, &byte| bytes::hash(hash, byte));
        Run { module, place: mapping.place(), path_bytes, executable: false, is_gone: !is_there }
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

/// Reads bias and build-id from the program headers at the start of a module, of which `base..end` could be
/// read a moment ago; whether they still could.
fn read_elf(module: &mut Module, end: usize) -> bool {
    const ELF64_HEADER_BYTES: usize = 64;
    const PROGRAM_HEADER_BYTES: usize = 56;
    const PT_LOAD: usize = 1;
    const PT_NOTE: usize = 4;
    /// The start of most modules, with all of this in it.
    static START: Shared<[u8; 4096]> = Shared::new([0; 4096]);
    // SAFETY: the lock is held.
    let start = unsafe { &mut *START.get() };
    let most = start.len().min(end - module.base);
    let there = sys::copy_mapped(module.base, start.get_mut(..most).unwrap_or(&mut []));
    let start = start.get(..there).unwrap_or(&[]);
    if !bytes::starts_with(start, b"\x7fELF") || start.len() < ELF64_HEADER_BYTES {
        return there > 0;
    }
    let (first, count) = (word(start, 32, 8), word(start, 56, 2));
    let headers = (0..count).map(|index| first.wrapping_add(index * PROGRAM_HEADER_BYTES));
    let headers = headers.filter_map(|at| start.get(at..at.checked_add(PROGRAM_HEADER_BYTES)?));
    for header in headers.clone().filter(|header| word(header, 0, 4) == PT_LOAD) {
        let (offset, address) = (word(header, 8, 8), word(header, 16, 8));
        if offset < crate::arch::PAGE_BYTES {
            module.bias = module.base.wrapping_sub(address.wrapping_sub(offset));
        }
    }
    for header in headers.filter(|header| word(header, 0, 4) == PT_NOTE) {
        let at = module.bias.wrapping_add(word(header, 16, 8)).wrapping_sub(module.base);
        let notes = at..at.wrapping_add(word(header, 32, 8));
        if let Some(notes) = start.get(notes.clone()) {
            find_build_id(module, notes);
        } else if notes.start < notes.end && notes.end <= end - module.base {
            let mut copy = [0; 256];
            let most = copy.len().min(notes.end - notes.start);
            let copy = copy.get_mut(..most).unwrap_or(&mut []);
            let there = sys::copy_mapped(module.base + notes.start, copy);
            if there == 0 {
                return false;
            }
            find_build_id(module, copy.get(..there).unwrap_or(&[]));
        }
    }
    true
}

/// A number of `size` bytes at `at`; 0 where it is not whole.
fn word(bytes: &[u8], at: usize, size: usize) -> usize {
    let mut raw = [0; 8];
    let found = at.checked_add(size).and_then(|end| bytes.get(at..end)).unwrap_or(&[]);
    bytes::copy(&mut raw, found);
    usize::from_le_bytes(raw)
}

fn find_build_id(module: &mut Module, mut notes: &[u8]) {
    const NT_GNU_BUILD_ID: usize = 3;
    const NOTE_HEADER_BYTES: usize = 12;
    while notes.len() >= NOTE_HEADER_BYTES {
        let (name_bytes, value_bytes) = (word(notes, 0, 4), word(notes, 4, 4));
        let value = NOTE_HEADER_BYTES + name_bytes.next_multiple_of(4);
        let behind = value.saturating_add(value_bytes.next_multiple_of(4));
        let name = notes.get(NOTE_HEADER_BYTES..NOTE_HEADER_BYTES + 4);
        let is_gnu = name_bytes == 4 && name.is_some_and(|name| bytes::same(name, b"GNU\0"));
        if word(notes, 8, 4) == NT_GNU_BUILD_ID && is_gnu && value_bytes <= BUILD_ID_BYTES {
            if let Some(value) = notes.get(value..value + value_bytes) {
                module.build_id_bytes = bytes::copy(&mut module.build_id, value);
            }
            return;
        }
        notes = notes.get(behind..).unwrap_or(&[]);
    }
}
