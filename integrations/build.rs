//! Builds the runtime for the machine callsight is built for, and puts it where `lib.rs` embeds it.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

use callsight_build::{ARCHIVE_NAME, Allowed, OBJECT_NAME, Recipe, Runtime, gnu_triple};

/// What the runtime looks for in a program, and does without where it is missing; and what it has
/// to notice: a module that is unloaded, a thread that gives up its clock.
const ALLOWED: Allowed = Allowed {
    asks: &["dlsym", "environ", "__errno_location"],
    replaces: &["dlclose", "prctl", "syscall"],
};
/// Whose change changes the runtime.
const SOURCES: [&str; 5] =
    ["runtime/src", "runtime/shell", "runtime/format/src", "Cargo.toml", "Cargo.lock"];

fn main() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let triple = variable("TARGET");
    println!("cargo::rustc-env=CALLSIGHT_RUNTIME_TRIPLE={}", gnu_triple(&triple));
    let out = PathBuf::from(variable("OUT_DIR"));
    let recipe = Recipe { workspace, triple, target_dir: out.join("runtime"), allowed: ALLOWED };
    let done =
        recipe.build().map_err(|error| error.to_string()).and_then(|runtime| store(&out, &runtime));
    if let Err(message) = done {
        eprintln!("{message}");
        process::exit(1);
    }
}

fn store(out: &Path, runtime: &Runtime) -> Result<(), String> {
    for (name, bytes) in [(OBJECT_NAME, &runtime.object), (ARCHIVE_NAME, &runtime.archive)] {
        let path = out.join(name);
        fs::write(&path, bytes).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
