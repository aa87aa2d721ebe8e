//! An ELF file → the few facts that tell where its hooks go.

use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH};
use object::read::elf::{ElfFile, FileHeader};
use object::{File, Object, ObjectSymbol, ReadRef};

/// The hook of a function's start; the exit hook is always its companion.
const HOOK: &[u8] = b"__cyg_profile_func_enter";
/// What our runtime defines for whoever looks for it.
const RUNTIME_SYMBOL: &[u8] = b"callsight_runtime_version";
/// Where it stands, also in a stripped file.
const RUNTIME_SECTION: &[u8] = b".note.callsight";
/// A definition of the hook up to this size only returns: that of a libc.
const EMPTY_HOOK_BYTES: u64 = 16;

/// What an ELF file says about its hooks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ElfFacts {
    /// It calls hooks that somebody else has to define.
    pub wants_hooks: bool,
    /// It defines hooks that do something.
    pub has_runtime: bool,
    /// It defines hooks that do nothing, as a static libc does.
    pub has_empty_hooks: bool,
    /// It has neither symbols nor libraries to go by.
    pub is_opaque: bool,
    /// Shared libraries it names.
    pub needed: Vec<String>,
    /// Folders to look for them in, first to last.
    pub library_folders: Vec<PathBuf>,
}

impl ElfFacts {
    /// Reads an ELF file; `None` where it is none. `path` is what `$ORIGIN` refers to.
    pub fn parse<'data>(data: impl ReadRef<'data>, path: &Path) -> Option<ElfFacts> {
        let file = File::parse(data).ok()?;
        let mut facts = match &file {
            File::Elf32(elf) => dynamic_facts(elf, path),
            File::Elf64(elf) => dynamic_facts(elf, path),
            _ => return None,
        };
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            match symbol.name_bytes() {
                Ok(RUNTIME_SYMBOL) => facts.has_runtime = true,
                Ok(HOOK) if symbol.is_undefined() => facts.wants_hooks = true,
                Ok(HOOK) if symbol.size() > EMPTY_HOOK_BYTES => facts.has_runtime = true,
                Ok(HOOK) => facts.has_empty_hooks = true,
                _ => {}
            }
        }
        facts.has_runtime |= file.section_by_name_bytes(RUNTIME_SECTION).is_some();
        let symbols = file.symbols().next().is_some() || file.dynamic_symbols().next().is_some();
        facts.is_opaque = !symbols && facts.needed.is_empty() && !facts.has_runtime;
        Some(facts)
    }
}

fn dynamic_facts<'data, Elf, R>(elf: &ElfFile<'data, Elf, R>, path: &Path) -> ElfFacts
where
    Elf: FileHeader,
    R: ReadRef<'data>,
{
    let mut facts = ElfFacts::default();
    let Ok(table) = elf.elf_dynamic_table() else { return facts };
    for entry in &table {
        let Ok(text) = table.string(entry).map(String::from_utf8_lossy) else { continue };
        match entry.tag {
            DT_NEEDED => facts.needed.push(text.into_owned()),
            DT_RPATH | DT_RUNPATH => {
                let folders = text.split(':').filter(|folder| !folder.is_empty());
                facts.library_folders.extend(folders.map(|folder| expand(folder, path)));
            }
            _ => {}
        }
    }
    facts
}

/// A run path with `$ORIGIN` filled in.
fn expand(folder: &str, path: &Path) -> PathBuf {
    let origin = path.parent().unwrap_or(Path::new(".")).to_string_lossy();
    folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into()
}
