//! One run of cargo on the runtime's shell crate → the bytes of the static library.
//!
//! May itself run inside a build script: what the enclosing cargo says to its own crates (flags,
//! wrappers, target directories) must not reach the runtime.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::process::Command;

use crate::{Error, Recipe};

/// Name of the profile in the workspace's `Cargo.toml`; also the directory cargo writes to.
const PROFILE: &str = "runtime";
/// What cargo makes of the shell crate.
const LIBRARY_NAME: &str = "libcallsight_runtime_shell.a";

/// Variables named `CARGO...` that are about the machine, not about the crate being built.
const KEPT: [&str; 7] = [
    "CARGO_HOME",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
    "CARGO_TERM_",
];
/// Variables of another name that change what rustc makes.
const DROPPED: [&str; 6] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_ARGS",
    "__CARGO_DEFAULT_LIB_METADATA",
];

/// Builds the shell crate; gives the contents of its static library.
pub fn staticlib(recipe: &Recipe) -> Result<Vec<u8>, Error> {
    let mut command = command(recipe);
    let output = command.output().map_err(|why| Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        why,
    })?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(Error::Cargo { triple: recipe.triple.clone(), output });
    }
    let path = recipe.target_dir.join(&recipe.triple).join(PROFILE).join(LIBRARY_NAME);
    fs::read(&path).map_err(|why| Error::Library { path, why })
}

fn command(recipe: &Recipe) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    for (name, _) in std::env::vars_os() {
        if is_of_another_build(&name) {
            command.env_remove(name);
        }
    }
    command
        .current_dir(&recipe.workspace)
        .args(["rustc", "--manifest-path"])
        .arg(recipe.workspace.join("runtime/shell/Cargo.toml"))
        .args(["--profile", PROFILE, "--crate-type", "staticlib", "--target", &recipe.triple])
        .arg("--target-dir")
        .arg(&recipe.target_dir)
        .args(["--locked", "--offline", "--", "-C", "relocation-model=pic"]);
    command
}

fn is_of_another_build(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let kept = name == "CARGO" || KEPT.iter().any(|kept| name.starts_with(kept));
    DROPPED.contains(&name.as_ref()) || (name.starts_with("CARGO") && !kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_an_enclosing_build_stay_outside() {
        let dropped = |name: &str| is_of_another_build(OsStr::new(name));
        for name in
            ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_INCREMENTAL"]
        {
            assert!(dropped(name), "{name}");
        }
        for name in ["PATH", "HOME", "CARGO", "CARGO_HOME", "CARGO_MAKEFLAGS", "RUSTC"] {
            assert!(!dropped(name), "{name}");
        }
    }
}
