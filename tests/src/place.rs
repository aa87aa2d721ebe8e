//! Where the checkout, the tools under test and the third-party things of `tests/setup` are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The top folder of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the checkout")
}

/// The `callsight` command: `CALLSIGHT_BIN`, or built beside the running test in its profile.
pub fn callsight() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("CALLSIGHT_BIN") {
        Some(path) => PathBuf::from(path),
        None => build_callsight(),
    })
}

/// Asks cargo for the binary, in the target folder and profile the running test came from.
fn build_callsight() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "callsight", "--bin", "callsight"]);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let target = profile.parent().expect("target/PROFILE");
    let status = cargo.current_dir(root()).env("CARGO_TARGET_DIR", target).status();
    assert!(status.expect("run cargo").success(), "callsight does not build");
    profile.join("callsight")
}

/// The runtime as one object file, written out of the crate that embeds it.
pub fn runtime_object() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let path = scratch().join("callsight_runtime.o");
        std::fs::write(&path, callsight_integrations::runtime_object()).expect("write the runtime");
        path
    })
}

/// A command of the peer's Python environment (`callsight`, `python3`).
pub fn peer(command: &str) -> PathBuf {
    set_up(root().join("target/peer/bin").join(command))
}

/// The peer's Python package, which carries its C runtime and its drain.
pub fn peer_package() -> PathBuf {
    let lib = root().join("target/peer/lib");
    let python = std::fs::read_dir(&lib).unwrap_or_else(|_| panic!("{NOT_SET_UP}"));
    let python = python.flatten().next().expect("one Python").path();
    set_up(python.join("site-packages/callsight"))
}

/// The unpacked source tree of a third-party program.
pub fn real_source(name: &str) -> PathBuf {
    set_up(root().join("target/real").join(name))
}

const NOT_SET_UP: &str = "run tests/setup first";

fn set_up(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing: {NOT_SET_UP}", path.display());
    path
}

/// A folder of this test process for what its tests share.
pub(crate) fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
    SCRATCH.get_or_init(|| {
        let path = root().join("target/tests").join(std::process::id().to_string());
        std::fs::create_dir_all(&path).expect("make a folder under target/tests");
        path
    })
}
