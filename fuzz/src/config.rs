//! Configuration: any bytes as callsight.toml.

use std::io;
use std::path::{Path, PathBuf};

use toml_edit::DocumentMut;

#[allow(dead_code, reason = "the file is taken whole")]
#[path = "../../integrations/src/selection.rs"]
mod selection;

#[allow(dead_code, reason = "the file is taken whole")]
#[path = "../../integrations/src/user_file.rs"]
pub mod user_file;

/// What that file finds in its crate.
pub mod vendor {
    pub const FOLDER: &str = "callsight";
    pub const SELECTION: &str = "callsight.toml";
}

/// The same: what cannot be read, and what is not understood.
#[derive(Debug)]
#[allow(dead_code, reason = "nobody reads files here")]
pub enum Error {
    Io(io::Error),
    Selection { path: PathBuf, line: usize, said: String, help: &'static str },
}

impl Error {
    pub fn io(_: &'static str, _: &Path) -> impl FnOnce(io::Error) -> Error {
        Error::Io
    }
}

/// Either it is understood, and then TOML says the same of it where it is TOML, or the line is told
/// that is not.
pub fn config(data: &[u8]) {
    let lines = String::from_utf8_lossy(data).split('\n').count();
    match selection::read(data) {
        Err(what) => {
            assert!((1..=lines).contains(&what.line), "line {} of {lines}", what.line);
            assert!(!what.said.is_empty());
        }
        Ok(sinks) => {
            let text = std::str::from_utf8(data).ok();
            let Some(toml) = text.and_then(|text| text.parse::<DocumentMut>().ok()) else { return };
            let said = |key: &str| toml.get("sinks")?.get(key)?.as_str().map(str::to_owned);
            assert_eq!((said("path"), said("live")), (sinks.path, sinks.live));
        }
    }
}
