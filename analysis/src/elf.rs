//! An ELF file → names and source lines of addresses in it.
//!
//! Works in batches: the symbol table of a large program is looked through once for all addresses
//! and never kept. Knows nothing of processes; addresses are those the file itself speaks of.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::elf::{STB_LOCAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::ReadCache;
use object::{Architecture, Object, ObjectSegment, ObjectSymbol, SymbolFlags};

use crate::demangle::demangle;

/// A line of source text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Path of the file as the compiler knew it.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
}

/// What is at the address of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Its name, if any.
    pub name: Option<String>,
    /// Where it is defined, if known.
    pub location: Option<Location>,
    /// Whether a function starts exactly there.
    pub exact: bool,
}

/// An ELF file on this machine.
#[derive(Clone, Debug)]
pub struct Binary {
    /// Where it is.
    pub path: PathBuf,
    /// Its GNU build-id; may be empty.
    pub build_id: Vec<u8>,
    /// Whether it has its full symbol table, so that each function is in it.
    pub has_symbols: bool,
    segments: Vec<(u64, u64)>,
    /// 32-bit ARM marks Thumb code by an odd address.
    thumb: bool,
}

impl Binary {
    /// Reads the headers of an ELF file.
    ///
    /// # Errors
    /// Why it is none, in a few words.
    pub fn open(path: &Path) -> Result<Binary, String> {
        // Opening a pipe may wait for ever.
        if !fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
            return Err("no regular file".into());
        }
        let cache = ReadCache::new(File::open(path).map_err(|error| error.to_string())?);
        let file = object::File::parse(&cache).map_err(|error| format!("no ELF file: {error}"))?;
        let segments = file
            .segments()
            .map(|segment| (segment.address(), segment.address().saturating_add(segment.size())));
        Ok(Binary {
            path: path.to_path_buf(),
            build_id: file.build_id().ok().flatten().unwrap_or_default().to_vec(),
            has_symbols: file.symbols().any(|symbol| rank(&symbol).is_some()),
            segments: segments.collect(),
            thumb: file.architecture() == Architecture::Arm,
        })
    }

    /// Whether the file says anything of this address.
    pub fn contains(&self, address: u64) -> bool {
        self.segments.iter().any(|(start, end)| *start <= address && address < *end)
    }

    /// The name of the function at each of `addresses`.
    pub fn names(&self, addresses: &[u64]) -> Vec<Name> {
        let addresses: Vec<u64> = addresses.iter().map(|address| self.code(*address)).collect();
        let debug = self.debug_info();
        let symbols = symbols_at(&self.path, &addresses, self.thumb);
        let pairs = addresses.iter().zip(symbols);
        pairs.map(|(address, symbol)| name(*address, symbol, debug.as_ref())).collect()
    }

    /// Start and end of all functions in the symbol table, in order.
    pub fn functions(&self) -> Vec<(u64, u64)> {
        let Ok(file) = File::open(&self.path) else { return Vec::new() };
        let cache = ReadCache::new(file);
        let Ok(file) = object::File::parse(&cache) else { return Vec::new() };
        let mut functions: Vec<(u64, u64)> = file
            .symbols()
            .filter(|symbol| rank(symbol).is_some() && symbol.size() > 0)
            .map(|symbol| {
                let start = self.code(symbol.address());
                (start, start.saturating_add(symbol.size()))
            })
            .collect();
        functions.sort_unstable();
        functions.dedup_by_key(|(start, _)| *start);
        functions
    }

    /// The line of each call that returns to one of `sites`.
    pub fn call_lines(&self, sites: &[u64]) -> Vec<Option<Location>> {
        let debug = self.debug_info();
        let line = |site: &u64| {
            // The return address may be the first one of the next line.
            let location = debug.as_ref()?.find_location(self.code(*site).checked_sub(1)?);
            location.ok().flatten().and_then(to_location)
        };
        sites.iter().map(line).collect()
    }

    fn code(&self, address: u64) -> u64 {
        if self.thumb { address & !1 } else { address }
    }

    /// Debug information of the file itself, or of the package that holds it apart.
    fn debug_info(&self) -> Option<Loader> {
        let own = Loader::new(&self.path).ok();
        let has_lines = |loader: &Loader| loader.get_section_range(b".debug_info").is_some();
        if own.as_ref().is_some_and(has_lines) || self.build_id.len() < 2 {
            return own;
        }
        let hex = to_hex(&self.build_id);
        let apart = format!("/usr/lib/debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..]);
        Loader::new(apart).ok().or(own)
    }
}

/// Bytes as the two hexadecimal digits each that people compare.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name(address: u64, symbol: Option<Symbol>, debug: Option<&Loader>) -> Name {
    let (debug_name, location) = debug.map_or((None, None), |debug| outermost(debug, address));
    match symbol {
        Some(Symbol { name, offset: 0, .. }) => {
            Name { name: Some(demangle(&name)), location, exact: true }
        }
        Some(Symbol { name, offset, .. }) => {
            let name = debug_name.unwrap_or_else(|| demangle(&name));
            Name { name: Some(format!("{name}+{offset:#x}")), location, exact: false }
        }
        // A stripped file with its debug information apart, or a symbol table cut short.
        None => Name { exact: debug_name.is_some(), name: debug_name, location },
    }
}

/// Name and line of the function that holds `address`, not of one that was inlined there.
fn outermost(debug: &Loader, address: u64) -> (Option<String>, Option<Location>) {
    let mut found = (None, None);
    let Ok(mut frames) = debug.find_frames(address) else { return found };
    while let Ok(Some(frame)) = frames.next() {
        let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
        found = (name.map(|name| demangle(&name)), frame.location.and_then(to_location));
    }
    found
}

fn to_location(location: addr2line::Location<'_>) -> Option<Location> {
    let line = location.line.filter(|line| *line > 0)?;
    Some(Location { file: location.file?.to_string(), line })
}

/// A symbol that covers an address.
#[derive(Clone, Debug)]
struct Symbol {
    rank: u8,
    name: String,
    /// How far into the function the address is.
    offset: u64,
}

/// The best symbol at or around each of `addresses`: of `.symtab`, else of `.dynsym`.
fn symbols_at(path: &Path, addresses: &[u64], thumb: bool) -> Vec<Option<Symbol>> {
    let mut found: Vec<Option<Symbol>> = vec![None; addresses.len()];
    let Ok(file) = File::open(path) else { return found };
    let cache = ReadCache::new(file);
    let Ok(file) = object::File::parse(&cache) else { return found };
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_by_key(|at| addresses[*at]);
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let Some(rank) = rank(&symbol) else { continue };
        let start = if thumb { symbol.address() & !1 } else { symbol.address() };
        let end = start.saturating_add(symbol.size().max(1));
        let first = order.partition_point(|at| addresses[*at] < start);
        for at in order[first..].iter().take_while(|at| addresses[**at] < end) {
            let offset = addresses[*at] - start;
            let better = found[*at].as_ref().is_none_or(|known| {
                offset < known.offset || offset == known.offset && rank > known.rank
            });
            // The name last: reading it is what costs.
            if let (true, Ok(name)) = (better, symbol.name_bytes()) {
                let name = String::from_utf8_lossy(name).into_owned();
                if !name.is_empty() && !name.starts_with('$') {
                    found[*at] = Some(Symbol { rank, name, offset });
                }
            }
        }
    }
    found
}

/// How well a symbol names code; `None` for one that does not. The function that picks an
/// implementation stands at the address of the symbol it picks for, so a function is better.
fn rank<'data>(symbol: &impl ObjectSymbol<'data>) -> Option<u8> {
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { return None };
    if symbol.is_undefined() {
        return None;
    }
    let kind = match st_info.st_type() {
        STT_FUNC => 6,
        STT_GNU_IFUNC => 3,
        STT_NOTYPE => 0,
        _ => return None,
    };
    let binding = match st_info.st_bind() {
        STB_LOCAL => 0,
        STB_WEAK => 1,
        _ => 2,
    };
    Some(kind + binding)
}
