//! `trace_shm.h` is what cbindgen makes of the Rust types, and both compilers agree on every field.

use std::path::{Path, PathBuf};

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header_path() -> PathBuf {
    crate_dir().join("trace_shm.h")
}

fn generate() -> String {
    let config = cbindgen::Config::from_file(crate_dir().join("cbindgen.toml")).expect("config");
    let bindings = cbindgen::Builder::new()
        .with_crate(crate_dir())
        .with_config(config)
        .generate()
        .expect("generate trace_shm.h");
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn the_committed_header_is_what_the_types_generate() {
    let generated = generate();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(header_path(), &generated).expect("write trace_shm.h");
    }
    let committed = std::fs::read_to_string(header_path()).expect("read trace_shm.h");
    assert!(
        committed == generated,
        "trace_shm.h is stale: UPDATE=1 cargo test -p callsight-format"
    );
}
