//! What `init` remembers in a project, beside what it wrote: so that `--undo` takes away that and
//! no more, and a second `init` knows an old file from one that was edited.

use std::collections::BTreeMap;
use std::path::Path;

use toml_edit::{DocumentMut, Item, Table, value};

use crate::{Error, VERSION, plan};

/// Name of the record, in the vendored folder.
pub const RECORD: &str = ".init.toml";
/// Name of the copy of the CMakeLists.txt as it was, in the vendored folder.
pub const ORIGINAL: &str = ".CMakeLists.txt.orig";

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whether the drain was asked for.
    pub stream: bool,
    /// Print of the CMakeLists.txt as it was written; empty where it was not.
    pub edited: String,
    /// Print of the CMakeLists.txt as it was before.
    pub original: String,
    /// Print of each vendored file as it was written, by its name within the folder.
    pub files: BTreeMap<String, String>,
}

impl State {
    /// Reads the record in `folder`; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read, or is not a record.
    pub fn read(folder: &Path) -> Result<Option<State>, Error> {
        let path = folder.join(RECORD);
        let Some(bytes) = plan::read_if_there(&path)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes);
        State::parse(&text).map(Some).ok_or_else(|| {
            let why = "it is not a record that `callsight init` wrote; restore it, or remove it";
            Error::CannotEdit { path, why: why.to_owned() }
        })
    }

    fn parse(text: &str) -> Option<State> {
        let document: DocumentMut = text.parse().ok()?;
        let text_of = |key: &str| document["cmakelists"][key].as_str().map(str::to_owned);
        let files = document.get("files")?.as_table()?.iter();
        Some(State {
            stream: document.get("stream")?.as_bool()?,
            edited: text_of("edited")?,
            original: text_of("original")?,
            files: files
                .map(|(name, print)| Some((name.to_owned(), print.as_str()?.to_owned())))
                .collect::<Option<_>>()?,
        })
    }

    /// The record as it is stored.
    pub fn to_text(&self) -> String {
        let mut document = DocumentMut::new();
        document["version"] = value(VERSION);
        document["stream"] = value(self.stream);
        document["cmakelists"] = Item::Table(Table::from_iter([
            ("edited", self.edited.as_str()),
            ("original", self.original.as_str()),
        ]));
        document["files"] = Item::Table(Table::from_iter(&self.files));
        format!(
            "# Kept by `callsight init`, for `callsight init --undo`: what was written, and how it \
             looked.\n{document}"
        )
    }
}

/// What tells one content from another: its length and a 64-bit FNV-1a sum. Finds accidents and
/// edits; keeps no secret.
pub fn print_of(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{}-{sum:016x}", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written() {
        let files = [("lib/x86_64-linux-gnu/a.o", b"1".as_slice()), ("zstd.c", b"")];
        let state = State {
            stream: true,
            edited: print_of(b"edited"),
            original: print_of(b"original"),
            files: files.map(|(name, bytes)| (name.to_owned(), print_of(bytes))).into(),
        };
        assert_eq!(State::parse(&state.to_text()), Some(state));
    }

    #[test]
    fn what_is_not_a_record_is_none() {
        for text in ["", "stream = 1", "[files]\na = 1", "<<<<<<< HEAD"] {
            assert_eq!(State::parse(text), None, "{text}");
        }
    }

    #[test]
    fn prints_are_those_of_fnv_1a() {
        assert_eq!(print_of(b""), "0-cbf29ce484222325");
        assert_eq!(print_of(b"a"), "1-af63dc4c8601ec8c");
    }
}
