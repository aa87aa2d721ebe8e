//! The independent count: builds `hooks/count.c`, reads what it left, names functions by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use object::{Object, ObjectSegment, ObjectSymbol, SymbolFlags, SymbolKind, elf};

use crate::Calls;
use crate::place::{root, scratch};

// The sizes of the tables, handed to the C compiler: 65,536 functions are 1.5 MB of sparse file.
const FUNCTIONS: usize = 1 << 16;
const MODULES: usize = 64;
const PATH_BYTES: usize = 512;

// Where things stand in the file: `struct counts` of hooks/count.c.
const HEADER_BYTES: usize = 16;
const MODULE_BYTES: usize = 24 + PATH_BYTES;
const FUNCTION_BYTES: usize = 24;

/// The counting hook as an object to link; it counts into the folder that `COUNT_DIR` names.
pub fn count_object() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let object = scratch().join("count.o");
        let status = Command::new("gcc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-ffreestanding"])
            // Without it gcc makes calls of memset and memcpy, which may be the program's own.
            .arg("-fno-tree-loop-distribute-patterns")
            .arg(format!("-DCOUNT_FUNCTIONS={FUNCTIONS}"))
            .arg(format!("-DCOUNT_MODULES={MODULES}"))
            .arg(format!("-DCOUNT_PATH={PATH_BYTES}"))
            .arg("-c")
            .arg(root().join("tests/hooks/count.c"))
            .arg("-o")
            .arg(&object)
            .status();
        assert!(status.expect("run gcc").success(), "the counting hook does not compile");
        object
    })
}

/// What the counting hook saw, over all processes that counted into one folder.
#[derive(Debug, Default)]
pub struct Counts {
    /// Process images that counted.
    pub processes: usize,
    /// Enters over all functions.
    pub enters: u64,
    /// Exits over all functions.
    pub exits: u64,
    /// Enters by function name; a function that was only left (entered before a fork) has none.
    pub calls: Calls,
}

/// A function as the file of its module knows it; `module` is empty where none was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    module: PathBuf,
    file_offset: u64,
}

impl Counts {
    /// Reads every file of `folder`, and the symbols of what was counted: it must still be there.
    pub fn read(folder: &Path) -> Counts {
        let mut counts = Counts::default();
        let mut enters_by_place = BTreeMap::new();
        for entry in std::fs::read_dir(folder).expect("the folder of the counts").flatten() {
            let bytes = std::fs::read(entry.path()).expect("read a count");
            for (place, enters, exits) in functions(&bytes) {
                counts.enters += enters;
                counts.exits += exits;
                *enters_by_place.entry(place).or_default() += enters;
            }
            counts.processes += 1;
        }
        counts.calls = named(enters_by_place);
        counts
    }

    /// Enters and exits.
    pub fn events(&self) -> u64 {
        self.enters + self.exits
    }
}

/// Functions of one file with their enters and exits.
fn functions(bytes: &[u8]) -> impl Iterator<Item = (Place, u64, u64)> {
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(word(8), 0, "the counting hook ran out of table entries");
    let modules: Vec<_> = (0..MODULES)
        .map(|i| HEADER_BYTES + i * MODULE_BYTES)
        .map(|at| (word(at), word(at + 8), word(at + 16), path_at(bytes, at + 24)))
        .collect();
    let functions_at = HEADER_BYTES + MODULES * MODULE_BYTES;
    let entries = (0..FUNCTIONS).map(move |i| functions_at + i * FUNCTION_BYTES);
    entries.filter(move |at| word(*at) != 0).map(move |at| {
        let address = word(at);
        let module = modules.iter().find(|(start, end, ..)| (*start..*end).contains(&address));
        let place = match module {
            Some((start, _, offset, path)) => {
                Place { module: path.clone(), file_offset: address - start + offset }
            }
            None => Place { module: PathBuf::new(), file_offset: address },
        };
        (place, word(at + 8), word(at + 16))
    })
}

fn named(enters_by_place: BTreeMap<Place, u64>) -> Calls {
    let mut tables = BTreeMap::new();
    let mut calls = Calls::new();
    for (place, enters) in enters_by_place.iter().filter(|(_, enters)| **enters > 0) {
        let names = tables.entry(&place.module).or_insert_with(|| function_names(&place.module));
        let name = names.get(&place.file_offset).cloned();
        calls.entry(name.unwrap_or_else(|| format!("{place:?}"))).or_default().push(*enters);
    }
    calls.values_mut().for_each(|numbers| numbers.sort_unstable());
    calls
}

fn path_at(bytes: &[u8], at: usize) -> PathBuf {
    let path = bytes[at..at + PATH_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
    PathBuf::from(String::from_utf8_lossy(path).into_owned())
}

/// File offset → demangled name, from the symbol tables of an ELF file.
fn function_names(module: &Path) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    let Ok(bytes) = std::fs::read(module) else { return names };
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let segments: Vec<_> =
        file.segments().map(|s| (s.address(), s.size(), s.file_range().0)).collect();
    let mut symbols: Vec<_> = file.symbols().chain(file.dynamic_symbols()).collect();
    // Of names at one address the global one counts before the compiler's aliases; the name of an
    // IFUNC comes last, since what runs there is its resolver.
    symbols.sort_by_key(|symbol| (is_ifunc(symbol), symbol.is_local()));
    for symbol in symbols {
        let (Ok(name), SymbolKind::Text) = (symbol.name(), symbol.kind()) else { continue };
        let address = symbol.address();
        let segment =
            segments.iter().find(|(start, size, _)| (*start..start + size).contains(&address));
        if let Some((start, _, offset)) = segment {
            names.entry(address - start + offset).or_insert_with(|| name.to_owned());
        }
    }
    demangle(&mut names);
    names
}

fn is_ifunc<'f>(symbol: &impl ObjectSymbol<'f>) -> bool {
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { return false };
    st_info.st_type() == elf::STT_GNU_IFUNC
}

/// Puts each name as binutils print it; ours come from another demangler.
fn demangle(names: &mut BTreeMap<u64, String>) {
    // As arguments: in a text it takes letters beyond ASCII for the end of a name. Some hundred at
    // a time stay far below what a command line may hold.
    let mut values: Vec<&mut String> = names.values_mut().collect();
    for some in values.chunks_mut(500) {
        let output = Command::new("c++filt").args(some.iter()).output().expect("run c++filt");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        some.iter_mut().zip(text.lines()).for_each(|(name, line)| **name = line.to_owned());
    }
}
