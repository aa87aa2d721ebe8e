//! Rows by address → rows by name, sorted; and what could not be named, as notices.

use std::collections::BTreeMap;
use std::path::Path;

use rustc_hash::FxHashMap;

use crate::Error;
use crate::assembly::{Assembly, EdgeKey, RowSum};
use crate::elf::{Binary, Location, Name};
use crate::modules::{Finder, Module, ModuleId, ModuleKey, Source};
use crate::report::{CallerRow, Durations, PathRow, Report, Row};
use crate::sentences::Sentences;
use crate::tool;

/// Puts the functions, callers and paths of `assembly` into `report`, with names.
///
/// # Errors
/// A program on disk is of another build, or the tool does not work.
pub fn put_rows(
    assembly: Assembly,
    finder: &Finder,
    addr2line: Option<&Path>,
    report: &mut Report,
) -> Result<(), Error> {
    let sources = find_sources(&assembly, finder)?;
    let names = name_rows(&assembly, &sources, addr2line)?;
    report.notices.extend(unnamed_notices(&assembly, &sources, &names));
    report.notices.extend(unused_exes(&assembly, &sources, finder));
    let lines = call_lines(&assembly, &sources);
    let modules = assembly.modules.list();
    let mut rows: Vec<(usize, Row)> = Vec::with_capacity(assembly.rows.len());
    for (index, (sum, name)) in assembly.rows.into_iter().zip(names).enumerate() {
        rows.push((index, row(sum, name, modules)));
    }
    rows.sort_by(|(_, a), (_, b)| {
        let order = |a: &Row, b: &Row| {
            (&a.function, &a.module, a.address).cmp(&(&b.function, &b.module, b.address))
        };
        b.self_ns.cmp(&a.self_ns).then_with(|| order(a, b))
    });
    let mut place = vec![0; rows.len()];
    rows.iter().enumerate().for_each(|(at, (index, _))| place[*index] = at);
    report.rows = rows.into_iter().map(|(_, row)| row).collect();
    report.callers = callers(&assembly.edges, &lines, &place, &report.rows);
    report.paths = assembly
        .paths
        .iter()
        .map(|path| PathRow {
            parent: path.parent,
            row: path.row.map(|row| place[row]),
            self_ns: path.self_ns.round() as u64,
        })
        .collect();
    Ok(())
}

fn find_sources(assembly: &Assembly, finder: &Finder) -> Result<Vec<Source>, Error> {
    let mut used = vec![false; assembly.modules.list().len()];
    assembly.rows.iter().for_each(|row| used[row.module] = true);
    let modules = assembly.modules.list().iter().zip(used);
    modules
        .map(|(module, used)| match used {
            true => finder.find(module),
            false => Ok(Source::Missing("none of its functions was called".into())),
        })
        .collect()
}

/// Indexes of the things of each module.
fn by_module<T>(things: impl Iterator<Item = (ModuleId, T)>) -> BTreeMap<ModuleId, Vec<T>> {
    let mut groups: BTreeMap<ModuleId, Vec<T>> = BTreeMap::new();
    things.for_each(|(module, thing)| groups.entry(module).or_default().push(thing));
    groups
}

fn name_rows(
    assembly: &Assembly,
    sources: &[Source],
    addr2line: Option<&Path>,
) -> Result<Vec<Name>, Error> {
    let mut names = vec![Name::default(); assembly.rows.len()];
    let indexed = assembly.rows.iter().enumerate().map(|(index, row)| (row.module, index));
    for (module, indexes) in by_module(indexed) {
        let Source::Binary(binary) = &sources[module] else { continue };
        let address = |index: &usize| assembly.rows[*index].address;
        // A file that is only assumed may not be where the address lies.
        let inside = |index: &usize| binary.contains(address(index));
        let indexes: Vec<usize> = indexes.into_iter().filter(inside).collect();
        let addresses: Vec<u64> = indexes.iter().map(address).collect();
        let mut found = binary.names(&addresses);
        if let Some(tool) = addr2line {
            let told = tool::names(tool, &binary.path, &addresses)?;
            found = told.into_iter().zip(found).map(|(told, own)| better(told, own)).collect();
        }
        if assembly.modules.list()[module].assumed {
            drop_wrong_names(binary, &mut found)?;
        }
        indexes.into_iter().zip(found).for_each(|(index, name)| names[index] = name);
    }
    Ok(names)
}

/// Where nothing but the user says which program it is, a function inside another one shows that
/// it is not: one such function gets no name, and when most are, none should have any.
///
/// # Errors
/// [`Error::OtherProgram`].
fn drop_wrong_names(binary: &Binary, names: &mut [Name]) -> Result<(), Error> {
    let all = names.len();
    let is_wrong = |name: &&mut Name| !name.exact && (name.name.is_some() || binary.has_symbols);
    let wrong: Vec<&mut Name> = names.iter_mut().filter(is_wrong).collect();
    if wrong.len() * 2 > all {
        return Err(Error::OtherProgram { path: binary.path.clone(), wrong: wrong.len(), all });
    }
    wrong.into_iter().for_each(|name| *name = Name::default());
    Ok(())
}

/// What the tool says, with what only the symbol table knows.
fn better(told: Name, own: Name) -> Name {
    let location = told.location.or(own.location);
    Name { name: told.name.or(own.name), location, exact: own.exact }
}

fn unnamed_notices(assembly: &Assembly, sources: &[Source], names: &[Name]) -> Vec<String> {
    // Programs that do not say which they are have a module for each process.
    let mut notices = Sentences::default();
    let indexed = assembly.rows.iter().enumerate().map(|(index, row)| (row.module, index));
    for (id, indexes) in by_module(indexed) {
        let module = &assembly.modules.list()[id];
        let unnamed = indexes.iter().filter(|index| names[**index].name.is_none()).count();
        let total = indexes.len();
        match &sources[id] {
            Source::Missing(why) => {
                let of = what(module);
                notices.count(
                    total as u64,
                    &format!("function of {of} has no name: {why}"),
                    &format!("functions of {of} have no name: {why}"),
                );
            }
            Source::Binary(binary) => {
                let path = binary.path.display();
                if unnamed > 0 {
                    notices.count(
                        unnamed as u64,
                        &format!("function has no name: {path} has no function at its address"),
                        &format!(
                            "functions have no name: {path} has no function at their addresses"
                        ),
                    );
                }
                if module.assumed {
                    notices.say(format!(
                        "the capture has no build-id: nothing proves that {path} is the program \
                         that was traced"
                    ));
                }
            }
        }
    }
    notices.into_lines()
}

/// Binaries that the user named beside the first one, which alone stands for a program that says nothing of
/// itself.
fn unused_exes(assembly: &Assembly, sources: &[Source], finder: &Finder) -> Option<String> {
    let modules = assembly.modules.list();
    if !modules.iter().any(|module| module.main && module.build_id_text().is_empty()) {
        return None;
    }
    let is_used = |exe: &&Binary| {
        sources.iter().any(|source| matches!(source, Source::Binary(used) if used.path == exe.path))
    };
    let unused = finder.exes().iter().filter(|exe| !is_used(exe));
    let paths: Vec<String> = unused.map(|exe| exe.path.display().to_string()).collect();
    (!paths.is_empty()).then(|| {
        format!(
            "--exe {} is not used: addresses of which a capture does not say which file they are of are \
             looked up in the first --exe alone",
            paths.join(", --exe ")
        )
    })
}

fn what(module: &Module) -> String {
    match (&module.key, module.path.is_empty()) {
        (ModuleKey::Unnoticed(_), _) => "an unknown module".to_string(),
        (_, true) => "an unnamed program".to_string(),
        _ => module.path_text(),
    }
}

fn row(sum: RowSum, name: Name, modules: &[Module]) -> Row {
    let module = &modules[sum.module];
    let samples = sum.durations.samples();
    let extremes = sum.durations.extremes();
    let percentiles = sum.durations.percentiles([0.5, 0.9, 0.99, 0.999]);
    let ns = |value: f64| value.round() as u64;
    let durations =
        extremes.zip(percentiles).map(|((min, max), [p50, p90, p99, p999])| Durations {
            min_ns: ns(min),
            mean_ns: ns((sum.sampled_ns / samples as f64).clamp(min, max)),
            p50_ns: ns(p50),
            p90_ns: ns(p90),
            p99_ns: ns(p99),
            p999_ns: ns(p999),
            max_ns: ns(max),
        });
    let readable = |name: String| name.chars().filter(|char| !char.is_control()).collect();
    Row {
        named: name.name.is_some(),
        function: name.name.map_or_else(|| place_in(module, sum.address), readable),
        location: name.location,
        module: module.path_text(),
        build_id: module.build_id_text(),
        in_main_module: module.main,
        address: sum.address,
        calls: sum.calls,
        total_ns: ns(sum.total_ns),
        self_ns: ns(sum.self_ns),
        durations,
        not_returned: sum.not_returned,
        uncertain: sum.uncertain,
    }
}

/// `program+0x18b9`: the same in each run, wherever the module was loaded. The address alone where
/// the module is unknown.
fn place_in(module: &Module, address: u64) -> String {
    match module.path_text().rsplit('/').next().unwrap_or_default() {
        "" => format!("{address:#x}"),
        name => format!("{name}+{address:#x}"),
    }
}

type Lines = FxHashMap<(ModuleId, u64), Option<Location>>;

fn call_lines(assembly: &Assembly, sources: &[Source]) -> Lines {
    let mut lines = Lines::default();
    let mut sites: Vec<(ModuleId, u64)> =
        assembly.edges.keys().filter_map(|edge| edge.site).collect();
    sites.sort_unstable();
    sites.dedup();
    for (module, addresses) in by_module(sites.into_iter()) {
        let Source::Binary(binary) = &sources[module] else { continue };
        let found = binary.call_lines(&addresses);
        lines.extend(addresses.into_iter().map(|address| (module, address)).zip(found));
    }
    lines
}

/// Rows that would print alike are one: two places on one line.
fn callers(
    edges: &FxHashMap<EdgeKey, (u64, f64)>,
    lines: &Lines,
    place: &[usize],
    rows: &[Row],
) -> Vec<CallerRow> {
    type Printed = (usize, Option<usize>, bool, Option<Location>);
    let mut sums: BTreeMap<Printed, (u64, f64)> = BTreeMap::new();
    for (edge, (calls, total_ns)) in edges {
        let location = edge.site.and_then(|site| lines.get(&site).cloned().flatten());
        let caller = edge.caller.map(|caller| place[caller]);
        let sum = sums.entry((place[edge.callee], caller, edge.inlined, location)).or_default();
        sum.0 += calls;
        sum.1 += total_ns;
    }
    let mut callers: Vec<CallerRow> = sums
        .into_iter()
        .map(|((callee, caller, inlined, location), (calls, total_ns))| CallerRow {
            callee,
            caller,
            location,
            inlined,
            calls,
            total_ns: total_ns.round() as u64,
        })
        .collect();
    callers.sort_by(|a, b| {
        let name = |row: &CallerRow| (&rows[row.callee].function, row.caller);
        b.total_ns.cmp(&a.total_ns).then(b.calls.cmp(&a.calls)).then(name(a).cmp(&name(b)))
    });
    callers
}
