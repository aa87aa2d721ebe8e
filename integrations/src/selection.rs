//! The bytes of a callsight.toml → whether the build will understand them, and where events go.
//!
//! The grammar is that of `CallsightSelection.cmake`, which reads the file at configure time: less
//! than TOML, and its tests hold both together. What the patterns mean is known there alone; what
//! the sinks are, here alone.

use std::io;
use std::path::{Path, PathBuf};

use crate::vendor::{FOLDER, SELECTION};
use crate::{Error, user_file};

/// What to write instead, as the CMake module says it.
pub const HELP: &str = "under [files] or [targets], write include = [\"a/*\"] or \
     exclude = [\"b.c\"], each once, with the special characters * and ? only; under [sinks], \
     write path = \"DIR\" or live = \"HOST:PORT\", each once";

/// The same for a line of `[sinks]`, to whom it is known that the line is one.
const HELP_SINKS: &str = "under [sinks], write path = \"DIR\" or live = \"HOST:PORT\", each once";

/// Most bytes of a line that a message shows; it may be a whole binary that has the name of a text.
const MOST_SHOWN: usize = 80;

/// Where a callsight.toml says that events go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sinks {
    /// The folder that the rest is relative to: the one with the file, or with the `callsight/` of
    /// the file.
    pub root: PathBuf,
    /// Folder of captures; empty for none.
    pub path: Option<String>,
    /// `HOST:PORT` of a server; empty for none.
    pub live: Option<String>,
}

/// Reads the nearest callsight.toml: in `folder` or one above it, also where `callsight init` puts
/// it, in a folder `callsight/` there.
///
/// # Errors
/// Why it cannot be read, or what in one that has sinks is not understood.
pub fn sinks_of(folder: &Path) -> Result<Sinks, Error> {
    let candidates = folder.ancestors().flat_map(|root| {
        [root.join(SELECTION), root.join(FOLDER).join(SELECTION)].map(|path| (root, path))
    });
    for (root, path) in candidates {
        let bytes = match user_file::read(&path) {
            Err(error) if is_nothing(&error) => continue,
            read => read.map_err(Error::io("read", &path))?,
        };
        let mut sinks = match read(&bytes) {
            // For the build to say, not for a run.
            Err(what) if is_of_the_build(&bytes, &what) => Sinks::default(),
            Err(what) => {
                let help = if is_of_sinks(&bytes, &what) { HELP_SINKS } else { HELP };
                return Err(Error::Selection { path, line: what.line, said: what.said, help });
            }
            Ok(sinks) => sinks,
        };
        sinks.root = root.to_owned();
        return Ok(sinks);
    }
    Ok(Sinks::default())
}

/// Whether what is not understood stands in a table that says what is instrumented, of a file that
/// says nothing else.
fn is_of_the_build(bytes: &[u8], what: &NotUnderstood) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let heads = text.lines().take(what.line).filter(|line| line.trim_start().starts_with('['));
    let is_in_table = heads.count() > 0 && !what.said.starts_with('[');
    is_in_table && !text.contains("[sinks]")
}

/// Whether the sinks are what the line is about.
fn is_of_sinks(bytes: &[u8], what: &NotUnderstood) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().take(what.line).collect();
    let heads = lines.iter().map(|line| line.trim_start_matches(['\u{feff}', ' ', '\t']));
    heads.rev().find(|line| line.starts_with('[')).is_some_and(|head| head.starts_with("[sinks"))
}

/// The start of a line, as the CMake module shows it: a terminal acts on no byte of it.
fn shown(line: &str) -> String {
    let mut text = String::new();
    for byte in line.chars().take(MOST_SHOWN) {
        match byte {
            ' '..='~' => text.push(byte),
            _ => text.push_str(&format!("\\x{:02x}", u32::from(byte))),
        }
    }
    if line.chars().nth(MOST_SHOWN).is_some() {
        text.push_str("...");
    }
    text
}

fn is_nothing(error: &io::Error) -> bool {
    // A file may be called `callsight`, as in a folder of programs.
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What is wrong with a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUnderstood {
    /// Its line, from 1.
    pub line: usize,
    /// The rest of that line, as it is shown.
    pub said: String,
}

/// Reads a selection; gives the sinks in it, with an empty `root`.
///
/// # Errors
/// The first thing in it that the build does not understand.
pub fn read(bytes: &[u8]) -> Result<Sinks, NotUnderstood> {
    let text = bytes.iter().map(|&byte| char::from(byte)).collect::<String>().replace("\r\n", "\n");
    let text = text.strip_prefix("\u{ef}\u{bb}\u{bf}").unwrap_or(&text);
    // CMake drops it from a last line that has no end, too.
    let text = text.strip_suffix('\r').unwrap_or(text);
    let mut reader = Reader { all: text, rest: text };
    let (mut table, mut seen) = (None, Vec::new());
    let mut sinks = Sinks::default();
    reader.skip_blank();
    while !reader.rest.is_empty() {
        let start = reader.rest;
        if let Some(named) = reader.table() {
            table = Some(named);
        } else if table == Some(SINKS) {
            let (key, value) = reader.setting().ok_or_else(|| reader.not_understood(start))?;
            let place = if key == "path" { &mut sinks.path } else { &mut sinks.live };
            if place.replace(of_bytes(value)).is_some() {
                return Err(reader.not_understood(start));
            }
        } else {
            let key = table.zip(reader.key()).filter(|key| !seen.contains(key));
            seen.push(key.ok_or_else(|| reader.not_understood(start))?);
            reader.array()?;
        }
        reader.skip_blank();
    }
    Ok(sinks)
}

/// The table that has strings in place of arrays.
const SINKS: &str = "sinks";

/// The text of a value.
fn of_bytes(value: &str) -> String {
    let bytes: Vec<u8> = value.chars().filter_map(|byte| u8::try_from(byte).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Each character is a byte: what the grammar knows is ASCII, and the rest may be anything.
struct Reader<'t> {
    all: &'t str,
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// Spaces, line ends and comments.
    fn skip_blank(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\n']);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
        }
    }

    /// The head of a table, which ends its line.
    fn table(&mut self) -> Option<&'static str> {
        let (name, rest) = ["files", "targets", SINKS].into_iter().find_map(|name| {
            let rest = self.rest.strip_prefix('[')?.strip_prefix(name)?.strip_prefix(']')?;
            Some((name, rest))
        })?;
        ends_line(rest).then(|| {
            self.rest = rest;
            name
        })
    }

    /// A key of `[sinks]` and its string, which ends its line.
    fn setting(&mut self) -> Option<(&'static str, &'t str)> {
        let (key, rest) = self.named(["path", "live"])?;
        let quote = rest.chars().next().filter(is_quote)?;
        let inside = &rest[1..];
        let end = inside.find([quote, '\\', '\n'])?;
        let behind = inside[end..].strip_prefix(quote)?;
        ends_line(behind).then(|| {
            self.rest = behind;
            (key, &inside[..end])
        })
    }

    /// A key, up to the `[` of its array.
    fn key(&mut self) -> Option<&'static str> {
        let (key, rest) = self.named(["include", "exclude"])?;
        self.rest = rest.strip_prefix('[')?;
        Some(key)
    }

    /// Which of `keys` is here, and what stands behind its `=`.
    fn named(&self, keys: [&'static str; 2]) -> Option<(&'static str, &'t str)> {
        let spaces = [' ', '\t'];
        keys.into_iter().find_map(|key| {
            let rest = self.rest.strip_prefix(key)?.trim_start_matches(spaces).strip_prefix('=')?;
            Some((key, rest.trim_start_matches(spaces)))
        })
    }

    /// The rest of an array, behind its `[`.
    fn array(&mut self) -> Result<(), NotUnderstood> {
        self.skip_blank();
        while !self.take(']') {
            self.rest = behind_pattern(self.rest).ok_or_else(|| self.not_understood(self.rest))?;
            self.skip_blank();
            if self.take(',') {
                self.skip_blank();
            } else if !self.rest.starts_with(']') {
                return Err(self.not_understood(self.rest));
            }
        }
        Ok(())
    }

    fn take(&mut self, character: char) -> bool {
        let rest = self.rest.strip_prefix(character);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// `from` on: what was not understood.
    fn not_understood(&self, from: &'t str) -> NotUnderstood {
        let before = &self.all[..self.all.len() - from.len()];
        let said = match from.split('\n').next() {
            Some(line) if !line.is_empty() => shown(line),
            _ => "end of the file".to_owned(),
        };
        NotUnderstood { line: before.matches('\n').count() + 1, said }
    }
}

/// Whether nothing but a comment stands on the rest of the line.
fn ends_line(text: &str) -> bool {
    let behind = text.trim_start_matches([' ', '\t']);
    behind.is_empty() || behind.starts_with(['#', '\n'])
}

fn is_quote(character: &char) -> bool {
    ['"', '\''].contains(character)
}

/// What follows a pattern in quotes; `None` where there is none.
fn behind_pattern(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(is_quote)?;
    let inside = &text[1..];
    let end = inside.find([quote, '[', ']', '\\', ';', '\n'])?;
    if end == 0 { None } else { inside[end..].strip_prefix(quote) }
}
