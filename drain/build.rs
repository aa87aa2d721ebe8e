//! Puts the drain into one `trace_stream.c`, and the compressor of `zstd-sys` into one `zstd.c`;
//! compiles the first for whoever calls it in this process.
//!
//! In: our own parts, and the sources of that package, wherever cargo keeps them. Out: these two and
//! `zstd.LICENSE` in `OUT_DIR`, and a library of the drain whose compressor is that of the package.
//! No third-party file is kept in our repository, and none is changed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

#[path = "build/amalgamate.rs"]
mod amalgamate;

use amalgamate::{Amalgamation, Rules};

/// Every part that compressing one buffer at levels 1 and 2 needs.
const SOURCES: [&str; 16] = [
    // First, because `debug.c` includes it inside a condition that is off.
    "common/zstd_deps.h",
    "common/debug.c",
    "common/entropy_common.c",
    "common/error_private.c",
    "common/fse_decompress.c",
    "common/zstd_common.c",
    "compress/fse_compress.c",
    "compress/hist.c",
    "compress/huf_compress.c",
    "compress/zstd_compress_literals.c",
    "compress/zstd_compress_sequences.c",
    "compress/zstd_compress_superblock.c",
    "compress/zstd_preSplit.c",
    "compress/zstd_compress.c",
    "compress/zstd_fast.c",
    "compress/zstd_ldm.c",
];

/// What is left out is included only where threads or tracing are compiled in, which they are not.
const ZSTD_RULES: Rules =
    Rules { kept: &[], left_out: &["zstdmt_compress.h", "zstd_trace.h"], strip: true };

/// These two stay files of their own.
const DRAIN_RULES: Rules = Rules { kept: &["trace_shm.h", "zstd.h"], left_out: &[], strip: false };

const SETTINGS: &str = "
#define DEBUGLEVEL 0
#define XXH_NAMESPACE ZSTD_
#define XXH_PRIVATE_API
#define XXH_INLINE_ALL
#define ZSTD_STATIC_LINKING_ONLY
#define ZSTD_LEGACY_SUPPORT 0
#define ZSTD_NO_TRACE
#define ZSTD_TRACE 0
#define ZSTD_DEPS_NEED_MALLOC
#define ZSTD_DEPS_NEED_MATH64
#define ZSTD_EXCLUDE_DFAST_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_GREEDY_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_LAZY_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_LAZY2_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_BTLAZY2_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_BTOPT_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_BTULTRA_BLOCK_COMPRESSOR
";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/amalgamate.rs");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let mut drain = Amalgamation::new(Path::new("."), "", DRAIN_RULES);
    drain.add("trace_stream.c")?;
    let drain_c = out_dir.join("trace_stream.c");
    write(&drain_c, &drain.finish())?;
    compile_drain(&drain_c)?;
    let package = zstd_package(&out_dir)?;
    let (version, dir) = (package.version, package.dir.join("zstd"));
    let license = fs::read_to_string(dir.join("LICENSE"))
        .with_context(|| format!("read the license in {}", dir.display()))?;
    let head = format!(
        "/* The compressor of Zstandard, levels 1 and 2, in one file without its comments.\n * Made by \
         callsight from the package zstd-sys {version}. Its license:\n *\n{} */\n{SETTINGS}",
        commented(&license)
    );
    let mut zstd = Amalgamation::new(&dir.join("lib"), &head, ZSTD_RULES);
    for file in SOURCES {
        zstd.add(file)?;
    }
    write(&out_dir.join("zstd.c"), &zstd.finish())?;
    write(&out_dir.join("zstd.LICENSE"), &license)
}

/// The drain as a function, named in `src/lib.rs`. The compressor it calls comes with `zstd-sys`.
fn compile_drain(source: &Path) -> Result<()> {
    cc::Build::new()
        .file(source)
        .include(".")
        .include("../runtime/format")
        .define("main", "callsight_drain_main")
        .opt_level(2)
        .extra_warnings(true)
        .try_compile("callsight_drain")
        .context("compile the drain")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// `text` as the inner lines of a C comment.
fn commented(text: &str) -> String {
    let line =
        |line: &str| format!(" * {}", line.replace("*/", "* /")).trim_end().to_owned() + "\n";
    text.lines().map(line).collect()
}

struct Package {
    version: String,
    dir: PathBuf,
}

/// Where cargo has unpacked `zstd-sys`.
///
/// Asked for a package of its own that needs nothing else: cargo answers only where it has every
/// package of the graph, and a build of the workspace need not have fetched its test tools.
fn zstd_package(out_dir: &Path) -> Result<Package> {
    let asking = out_dir.join("where-is-zstd");
    fs::create_dir_all(asking.join("src"))?;
    write(&asking.join("src/lib.rs"), "")?;
    write(&asking.join("Cargo.toml"), &asking_manifest())?;
    // The versions that the workspace has chosen are the ones that are there.
    let lock = Path::new("../Cargo.lock");
    if lock.is_file() {
        fs::copy(lock, asking.join("Cargo.lock")).context("copy Cargo.lock")?;
    }
    let output = Command::new(env::var_os("CARGO").context("cargo sets CARGO")?)
        .args(["metadata", "--format-version=1", "--offline", "--filter-platform"])
        .arg(env::var("HOST")?)
        .arg("--manifest-path")
        .arg(asking.join("Cargo.toml"))
        .output()
        .context("run cargo metadata")?;
    ensure!(
        output.status.success(),
        "find the sources of zstd-sys with cargo metadata (cargo fetch may help): {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    for package in packages {
        if let ("zstd-sys", Some(version), Some(manifest)) = (
            package["name"].as_str().unwrap_or_default(),
            package["version"].as_str(),
            package["manifest_path"].as_str(),
        ) {
            let dir = Path::new(manifest).parent().context("a manifest has a folder")?;
            return Ok(Package { version: version.to_owned(), dir: dir.to_owned() });
        }
    }
    bail!("cargo metadata names no zstd-sys")
}

/// The features that are on in the workspace: others would need packages that are not there.
fn asking_manifest() -> String {
    "[package]\nname = \"where-is-zstd\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n\n\
     [dependencies]\nzstd-sys = { version = \"=2.1.3\", default-features = false }\n"
        .to_owned()
}
