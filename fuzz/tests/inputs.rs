//! Every target on its seeds and on every input that once failed.

use std::fs;
use std::path::{Path, PathBuf};

use callsight_fuzz::TARGETS;

/// The files in a folder of this crate; none where there is no such folder.
fn files(folder: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let files = fs::read_dir(folder).into_iter().flatten();
    files.map(|file| file.expect("an entry").path()).collect()
}

#[test]
fn no_seed_and_no_input_that_once_failed_fails() {
    for (name, run) in TARGETS {
        let seeds = files("corpus", name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for path in seeds.into_iter().chain(files("found", name)) {
            println!("{}", path.display());
            run(&fs::read(&path).expect("a file"));
        }
    }
}
