//! What callsight puts into a project, or under a prefix: names and bytes.
//!
//! The CMake modules come from `cmake/`, what is filled in from `templates/cmake/`, the runtime from
//! the build step, the drain from its crate. Nothing is written here.

use std::collections::BTreeMap;
use std::path::Path;

use handlebars::Handlebars;

use crate::{Error, Plan, RUNTIME_TRIPLE, VERSION, plan, runtime_archive, runtime_object};

/// Name of the folder in a project.
pub const FOLDER: &str = "callsight";
/// The selection, which is the user's to edit.
pub const SELECTION: &str = "callsight.toml";

const MODULES: [(&str, &str); 3] = [
    ("CallsightConfig.cmake", include_str!("../../cmake/CallsightConfig.cmake")),
    ("CallsightTriple.cmake", include_str!("../../cmake/CallsightTriple.cmake")),
    ("CallsightSelection.cmake", include_str!("../../cmake/CallsightSelection.cmake")),
];
const VERSION_FILE: (&str, &str) = (
    "CallsightConfigVersion.cmake",
    include_str!("../../templates/cmake/CallsightConfigVersion.cmake.hbs"),
);
const ENTRY: (&str, &str) =
    ("callsight.cmake", include_str!("../../templates/cmake/callsight.cmake.hbs"));
/// So that git keeps the folder whole and as it is.
const FOR_GIT: [(&str, &str); 2] = [
    (".gitignore", include_str!("../../templates/cmake/gitignore.hbs")),
    (".gitattributes", include_str!("../../templates/cmake/gitattributes.hbs")),
];
const SELECTION_TEMPLATE: &str = include_str!("../../templates/cmake/callsight.toml.hbs");
const BLOCK_TEMPLATE: &str = include_str!("../../templates/cmake/block.cmake.hbs");

/// A file by its name within a folder.
pub struct VendoredFile {
    /// The name, with `/` between folders.
    pub name: String,
    /// The contents.
    pub bytes: Vec<u8>,
}

/// Everything that goes into `callsight/` of a project; with the drain if `stream`.
pub fn project_files(stream: bool) -> Vec<VendoredFile> {
    let mut files = package_files("", "lib/", "include/");
    files.push(file(ENTRY.0, filled(ENTRY.1)));
    files.push(file(SELECTION, filled(SELECTION_TEMPLATE)));
    for (name, template) in FOR_GIT {
        files.push(file(name, filled(template)));
    }
    if stream {
        // Right here, where the documented `cc` line looks for them.
        files.extend(drain_files(""));
    }
    files
}

/// The marked block, with `\n` line ends.
pub fn block() -> String {
    filled(BLOCK_TEMPLATE)
}

/// The line of the block that does the work, for whoever must add it by hand.
pub fn block_line() -> String {
    let line = block().lines().nth(1).map(str::to_owned);
    line.unwrap_or_default()
}

/// Plans the CMake package under `prefix`, for `find_package(Callsight)`: modules, runtime, header
/// and drain. Works wherever the prefix is moved.
///
/// # Errors
/// What is there cannot be read.
pub fn plan_install(prefix: &Path) -> Result<Plan, Error> {
    let mut files = package_files("lib/cmake/Callsight/", "lib/callsight/", "include/callsight/");
    files.extend(drain_files("share/callsight/drain/"));
    let mut planned = Plan::of(prefix);
    for VendoredFile { name, bytes } in files {
        let path = prefix.join(name);
        planned.set(path.clone(), plan::read_if_there(&path)?, Some(bytes));
    }
    Ok(planned)
}

/// The CMake package with its parts below the folders given.
fn package_files(cmake: &str, lib: &str, include: &str) -> Vec<VendoredFile> {
    let mut files: Vec<VendoredFile> = Vec::new();
    for (name, text) in MODULES {
        files.push(file(&format!("{cmake}{name}"), text));
    }
    files.push(file(&format!("{cmake}{}", VERSION_FILE.0), filled(VERSION_FILE.1)));
    for (name, bytes) in
        [("callsight_runtime.o", runtime_object()), ("libcallsight_runtime.a", runtime_archive())]
    {
        files.push(file(&format!("{lib}{RUNTIME_TRIPLE}/{name}"), bytes));
    }
    files.push(file(&format!("{include}trace_shm.h"), callsight_drain::TRACE_SHM_H));
    files
}

fn drain_files(folder: &str) -> impl Iterator<Item = VendoredFile> {
    let sources = callsight_drain::files().into_iter();
    sources.map(move |source| file(&format!("{folder}{}", source.name), source.contents))
}

fn file(name: &str, contents: impl AsRef<[u8]>) -> VendoredFile {
    VendoredFile { name: name.to_owned(), bytes: contents.as_ref().to_vec() }
}

/// `template` with the version filled in.
fn filled(template: &str) -> String {
    let mut handlebars = Handlebars::new();
    handlebars.set_strict_mode(true);
    handlebars.register_escape_fn(handlebars::no_escape);
    let values = BTreeMap::from([("version", VERSION)]);
    handlebars.render_template(template, &values).expect("our own templates are well formed")
}
