//! A static library → the one object with the hooks, and whether a stranger's program may link it.

use std::collections::BTreeSet;

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol};

use crate::{Allowed, Error};

/// The hooks as the compilers call them.
pub const HOOKS: [&str; 2] = ["__cyg_profile_func_enter", "__cyg_profile_func_exit"];

/// Names that only the linker gives.
const LINKER_MADE: [&str; 2] = ["_GLOBAL_OFFSET_TABLE_", ".TOC."];
/// What else the object may define for others.
const OWN_PREFIX: &str = "callsight_";

/// The contents of the one object of `library` that defines the hooks.
///
/// # Errors
/// None or several define them, or the library is not an archive of objects.
pub fn take_object(library: &[u8]) -> Result<Vec<u8>, Error> {
    let mut found = Vec::new();
    for member in ArchiveFile::parse(library)?.members() {
        let data = member?.data(library)?;
        // Not every member has to be an object: rustc adds one for its metadata.
        if object::File::parse(data).is_ok_and(|file| defines(&file, HOOKS[0])) {
            found.push(data);
        }
    }
    match found.as_slice() {
        [only] => Ok(only.to_vec()),
        several => Err(Error::Objects { found: several.len() }),
    }
}

/// Whether `object` may be linked into any program: it defines both hooks, exports nothing that
/// could clash, asks for nothing but what is allowed, and cannot panic.
///
/// # Errors
/// All that is wrong with it.
pub fn check_object(object: &[u8], allowed: Allowed) -> Result<(), Error> {
    let file = object::File::parse(object)?;
    let mut problems = Vec::new();
    for hook in HOOKS {
        if !defines(&file, hook) {
            problems.push(format!("it does not define {hook}"));
        }
    }
    let mut complain = |what: &str, names: BTreeSet<&str>| {
        if !names.is_empty() {
            problems.push(format!("{what}: {}", names.into_iter().collect::<Vec<_>>().join(", ")));
        }
    };
    let named = |wanted: &dyn Fn(&object::Symbol<'_, '_>, &str) -> bool| -> BTreeSet<&str> {
        let symbols = file.symbols().filter_map(|symbol| {
            let name = symbol.name().ok()?;
            (!name.is_empty() && wanted(&symbol, name)).then_some(name)
        });
        symbols.collect()
    };
    let asked = |symbol: &object::Symbol<'_, '_>, name: &str| {
        symbol.is_undefined() && !LINKER_MADE.contains(&name)
    };
    complain(
        "it needs functions of the program or of its libc",
        named(&|symbol, name| asked(symbol, name) && !allowed.asks.contains(&name)),
    );
    complain(
        "it cannot be linked without (these must be weak)",
        named(&|symbol, name| {
            asked(symbol, name) && allowed.asks.contains(&name) && !symbol.is_weak()
        }),
    );
    complain(
        "it exports names that a program may have",
        named(&|symbol, name| {
            let stands_in = symbol.is_weak() && allowed.replaces.contains(&name);
            let is_ours = HOOKS.contains(&name) || name.starts_with(OWN_PREFIX);
            is_exported(symbol) && !is_ours && !stands_in
        }),
    );
    complain("it can panic", named(&|_, name| name.contains("panic")));
    if problems.is_empty() { Ok(()) } else { Err(Error::Unfit { problems }) }
}

fn defines(file: &object::File<'_>, name: &str) -> bool {
    file.symbols().any(|symbol| is_exported(&symbol) && symbol.name() == Ok(name))
}

fn is_exported(symbol: &object::Symbol<'_, '_>) -> bool {
    symbol.is_definition() && symbol.is_global() && symbol.scope() == object::SymbolScope::Dynamic
}
