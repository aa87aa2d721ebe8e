//! Modules that captures name → ELF files on this machine that are surely the same build.
//!
//! A wrong name is worse than none: a file whose build-id differs is never used. For the program
//! itself that ends the report, because nothing in it would have a name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::Error;
use crate::elf::{Binary, to_hex};
use crate::space::Mapping;
use crate::survey::Process;

/// Number of a module in [`Modules`].
pub type ModuleId = usize;

/// What tells modules apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModuleKey {
    /// Files of one build are one module, wherever they lie.
    BuildId(Vec<u8>),
    /// A file without a build-id.
    Path(Vec<u8>),
    /// The program of a capture that names none; the number tells such programs apart.
    Unnamed(u64),
    /// No module: captures without a module list. The number is that of the process.
    None(usize),
    /// No module that the capture knows of then, though it knows others of the process: one that came after
    /// the last look at what is mapped, or code that was made at run time.
    Unnoticed(usize),
}

/// A program or library whose functions were called.
#[derive(Clone, Debug)]
pub struct Module {
    /// What tells it from others.
    pub key: ModuleKey,
    /// Path in the capture; may be empty.
    pub path: Vec<u8>,
    /// Whether it is the program itself.
    pub main: bool,
    /// Whether it is only assumed that addresses belong to it.
    pub assumed: bool,
}

impl Module {
    /// The module of a mapping; `None` where the capture says nothing of it.
    pub fn of(mapping: &Mapping, process: &Process) -> Option<Module> {
        let key = match (mapping.build_id.is_empty(), mapping.path.is_empty()) {
            (false, _) => ModuleKey::BuildId(mapping.build_id.clone()),
            (true, false) => ModuleKey::Path(mapping.path.clone()),
            (true, true) => return None,
        };
        let assumed = !process.modules_known;
        let main = assumed || mapping.path == process.exe;
        Some(Module { key, path: mapping.path.clone(), main, assumed })
    }

    /// Its path for people.
    pub fn path_text(&self) -> String {
        String::from_utf8_lossy(&self.path).chars().filter(|c| !c.is_control()).collect()
    }

    /// Its build-id in hexadecimal; empty where unknown.
    pub fn build_id_text(&self) -> String {
        to_hex(self.build_id())
    }

    fn build_id(&self) -> &[u8] {
        match &self.key {
            ModuleKey::BuildId(id) => id,
            _ => &[],
        }
    }
}

const UNNOTICED: &str = "nothing was known to be mapped at their addresses then; what dlopen brings is \
                         noticed at the next dlclose, and when the program ends in order";

/// Where the names of a module come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// This file.
    Binary(Binary),
    /// Nowhere, and why.
    Missing(String),
}

/// The modules of a report, each once.
#[derive(Debug, Default)]
pub struct Modules {
    list: Vec<Module>,
    by_key: FxHashMap<ModuleKey, ModuleId>,
}

impl Modules {
    /// The number of a module, which is new or known.
    pub fn add(&mut self, module: Module) -> ModuleId {
        if let Some(id) = self.by_key.get(&module.key) {
            let known = &mut self.list[*id];
            known.main |= module.main;
            return *id;
        }
        self.by_key.insert(module.key.clone(), self.list.len());
        self.list.push(module);
        self.list.len() - 1
    }

    /// All modules, by number.
    pub fn list(&self) -> &[Module] {
        &self.list
    }
}

/// Finds files for modules.
#[derive(Debug)]
pub struct Finder {
    exes: Vec<Binary>,
}

impl Finder {
    /// A finder that prefers the binaries `exes`, named by the user.
    ///
    /// # Errors
    /// One of them is no ELF file.
    pub fn new(exes: &[PathBuf]) -> Result<Finder, Error> {
        let open = |path: &PathBuf| {
            Binary::open(path).map_err(|why| Error::Binary { path: path.clone(), why })
        };
        Ok(Finder { exes: exes.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// The binaries that the user named.
    pub fn exes(&self) -> &[Binary] {
        &self.exes
    }

    /// Whether the user named a binary.
    pub fn has_exe(&self) -> bool {
        !self.exes.is_empty()
    }

    /// Refuses a named binary that is no module of the captures, whose programs are `mains`.
    ///
    /// # Errors
    /// [`Error::OtherBuild`].
    pub fn check_exes(&self, mains: &[&[u8]], libraries: &[&[u8]]) -> Result<(), Error> {
        // A program without a build-id may be any of the named binaries.
        let Some(traced) = mains.first().filter(|_| mains.iter().all(|id| !id.is_empty())) else {
            return Ok(());
        };
        let known = |exe: &&Binary| {
            !mains.contains(&&exe.build_id[..]) && !libraries.contains(&&exe.build_id[..])
        };
        match self.exes.iter().find(known) {
            Some(exe) => Err(other_build(&exe.path, traced, &exe.build_id)),
            None => Ok(()),
        }
    }

    /// The file of a module.
    ///
    /// # Errors
    /// The module is a program and its file is of another build.
    pub fn find(&self, module: &Module) -> Result<Source, Error> {
        let traced = module.build_id();
        match module.key {
            ModuleKey::None(_) => {
                return Ok(Source::Missing("no module is known at these addresses".into()));
            }
            ModuleKey::Unnoticed(_) => return Ok(Source::Missing(UNNOTICED.into())),
            _ => {}
        }
        let same = |exe: &&Binary| !traced.is_empty() && exe.build_id == traced;
        if let Some(exe) = self.exes.iter().find(same) {
            return Ok(Source::Binary(exe.clone()));
        }
        if let (true, true, Some(exe)) = (module.main, traced.is_empty(), self.exes.first()) {
            return Ok(Source::Binary(exe.clone()));
        }
        if module.path.is_empty() {
            let why = "the capture does not say which program it is of; name it with --exe";
            return Ok(Source::Missing(why.into()));
        }
        self.on_disk(module, traced)
    }

    fn on_disk(&self, module: &Module, traced: &[u8]) -> Result<Source, Error> {
        let path = Path::new(OsStr::from_bytes(&module.path));
        let help = if module.main { "; pass the traced binary with --exe" } else { "" };
        let binary = match Binary::open(path) {
            Ok(binary) => binary,
            Err(why) => return Ok(Source::Missing(format!("{why}{help}"))),
        };
        // What is only assumed has no build-id to compare; the report says so.
        if traced == binary.build_id || module.assumed {
            return Ok(Source::Binary(binary));
        }
        if module.main {
            return Err(other_build(path, traced, &binary.build_id));
        }
        Ok(Source::Missing(format!(
            "the capture was made by build {}, the file here is build {}",
            id_text(traced),
            id_text(&binary.build_id)
        )))
    }
}

fn other_build(path: &Path, traced: &[u8], found: &[u8]) -> Error {
    let (traced, found) = (id_text(traced), id_text(found));
    Error::OtherBuild { path: path.to_path_buf(), traced, found }
}

fn id_text(build_id: &[u8]) -> String {
    match build_id.is_empty() {
        true => "(without a build-id)".into(),
        false => to_hex(build_id),
    }
}
