//! A program → whether tracing it can give anything, before it runs.
//!
//! glibc has hooks of its own that do nothing. An instrumented program that was linked without
//! the runtime therefore links, runs, and records nothing; this is where that is noticed.

use std::collections::{BTreeSet, VecDeque};
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::ReadCache;

use super::elf::ElfFacts;

/// Where libraries are when nothing else is said; the multiarch folders as Debian has them.
const SYSTEM_FOLDERS: [&str; 8] = [
    "/usr/local/lib",
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
];

/// Libraries of the C library itself: its hooks are the empty ones.
const C_LIBRARY: [&str; 8] = [
    "libc.so",
    "libc.musl",
    "ld-linux",
    "ld-musl",
    "libm.so",
    "libdl.so",
    "librt.so",
    "libpthread",
];

/// What becomes of a program's hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// A runtime takes them.
    Traced,
    /// It has hooks, and nobody but the C library takes them.
    NoRuntime,
    /// Neither it nor a library it names has hooks.
    None,
    /// A script, or a binary that does not show.
    Unknown,
}

/// The file that would run for `name`: itself where it has a slash, else the first executable
/// of that name in `PATH`.
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    let runs = |path: &PathBuf| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if Path::new(name).components().count() > 1 {
        return Some(PathBuf::from(name)).filter(runs);
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(runs)
}

/// Looks at the program at `path`, at the libraries it names, and at `LD_PRELOAD`.
pub fn hooks_of(path: &Path) -> Hooks {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let Some(program) = read(&path) else { return Hooks::Unknown };
    let opaque = program.is_opaque;
    let mut wanted = false;
    let mut empty = false;
    let mut search = Search::new();
    for facts in std::iter::once(program.clone()).chain(search.libraries(&program)) {
        if facts.has_runtime {
            return Hooks::Traced;
        }
        wanted |= facts.wants_hooks;
        empty |= facts.has_empty_hooks;
    }
    match (wanted || empty, opaque) {
        (true, _) => Hooks::NoRuntime,
        (false, true) => Hooks::Unknown,
        (false, false) => Hooks::None,
    }
}

fn read(path: &Path) -> Option<ElfFacts> {
    // What opens a pipe waits for who writes to it.
    path.metadata().ok().filter(|meta| meta.is_file())?;
    let file = ReadCache::new(File::open(path).ok()?);
    ElfFacts::parse(&file, path)
}

/// A walk over the libraries that a program would load.
struct Search {
    folders: Vec<PathBuf>,
    seen: BTreeSet<String>,
}

impl Search {
    fn new() -> Search {
        let extra = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = env::split_paths(&extra).collect();
        Search { folders, seen: BTreeSet::new() }
    }

    fn libraries(&mut self, program: &ElfFacts) -> Vec<ElfFacts> {
        let preload = env::var("LD_PRELOAD").unwrap_or_default();
        let preloaded = preload.split([':', ' ']).filter(|name| !name.is_empty());
        let mut names: VecDeque<String> = preloaded.map(str::to_owned).collect();
        names.extend(program.needed.iter().cloned());
        self.folders.splice(0..0, program.library_folders.iter().cloned());
        let mut found = Vec::new();
        while let Some(name) = names.pop_front() {
            let system = C_LIBRARY.iter().any(|start| name.starts_with(start));
            if system || !self.seen.insert(name.clone()) {
                continue;
            }
            if let Some(facts) = self.locate(&name).and_then(|path| read(&path)) {
                names.extend(facts.needed.iter().cloned());
                self.folders.extend(facts.library_folders.iter().cloned());
                found.push(facts);
            }
        }
        found
    }

    fn locate(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name));
        }
        let system = SYSTEM_FOLDERS.iter().map(PathBuf::from);
        self.folders.iter().cloned().chain(system).map(|at| at.join(name)).find(|at| at.is_file())
    }
}
