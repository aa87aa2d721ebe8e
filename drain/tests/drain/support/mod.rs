//! A built drain, rings to drain, and a server to send to.

mod process;
mod ring;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use process::{Drain, Process, TestProcess, own_pid_namespace, wait_until};
pub use ring::{Ring, Writer, writer_at};
pub use server::{Capture, Server, read_capture, read_rest};

/// The drain's files in a new folder.
pub fn sources() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("make a folder");
    for file in callsight_drain::files() {
        std::fs::write(dir.path().join(file.name), file.contents).expect("write a source");
    }
    dir
}

/// Runs a compiler in `dir`; what it says is the failure, warnings too.
pub fn compile(dir: &Path, command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().expect("a compiler"))
        .args(words)
        .current_dir(dir)
        .output()
        .expect("run the compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{command}: {said}");
}

/// The drain, built once by exactly the line that users are given.
pub fn drain_binary() -> PathBuf {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let dir = sources();
        compile(dir.path(), "cc -O2 -o trace_stream trace_stream.c zstd.c");
        dir
    });
    dir.path().join("trace_stream")
}

/// The drain with the sanitizers that end it at the first mistake.
pub fn sanitized_binary() -> PathBuf {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let dir = sources();
        compile(
            dir.path(),
            "cc -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -o trace_stream \
             trace_stream.c zstd.c",
        );
        dir
    });
    dir.path().join("trace_stream")
}
