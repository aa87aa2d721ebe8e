//! The bytes of a callsight.toml → whether the build will understand them.
//!
//! The grammar is that of `CallsightSelection.cmake`, which reads the file at configure time: less
//! than TOML, and its tests hold both together. What the patterns mean is known there alone.

/// What to write instead, as the CMake module says it.
pub const HELP: &str = "under [files] or [targets], write include = [\"a/*\"] or \
     exclude = [\"b.c\"], each once, with the special characters * and ? only";

/// What is wrong with a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUnderstood {
    /// Its line, from 1.
    pub line: usize,
    /// The rest of that line.
    pub said: String,
}

/// Reads a selection.
///
/// # Errors
/// The first thing in it that the build does not understand.
pub fn check(bytes: &[u8]) -> Result<(), NotUnderstood> {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    // CMake drops it from a last line that has no end, too.
    let text = text.strip_suffix('\r').unwrap_or(text);
    let mut reader = Reader { all: text, rest: text };
    let (mut table, mut seen) = (None, Vec::new());
    reader.skip_blank();
    while !reader.rest.is_empty() {
        if let Some(named) = reader.table() {
            table = Some(named);
        } else {
            let start = reader.rest;
            let key = table.zip(reader.key()).filter(|key| !seen.contains(key));
            seen.push(key.ok_or_else(|| reader.not_understood(start))?);
            reader.array()?;
        }
        reader.skip_blank();
    }
    Ok(())
}

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
        let (name, rest) = ["files", "targets"].into_iter().find_map(|name| {
            let rest = self.rest.strip_prefix('[')?.strip_prefix(name)?.strip_prefix(']')?;
            Some((name, rest))
        })?;
        let behind = rest.trim_start_matches([' ', '\t']);
        let ends = behind.is_empty() || behind.starts_with(['#', '\n']);
        ends.then(|| {
            self.rest = rest;
            name
        })
    }

    /// A key, up to the `[` of its array.
    fn key(&mut self) -> Option<&'static str> {
        let spaces = [' ', '\t'];
        let (key, rest) = ["include", "exclude"].into_iter().find_map(|key| {
            let rest = self.rest.strip_prefix(key)?.trim_start_matches(spaces).strip_prefix('=')?;
            Some((key, rest.trim_start_matches(spaces).strip_prefix('[')?))
        })?;
        self.rest = rest;
        Some(key)
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
        let said = match from.lines().next() {
            Some(line) if !line.is_empty() => line,
            _ => "end of the file",
        };
        NotUnderstood { line: before.matches('\n').count() + 1, said: said.to_owned() }
    }
}

/// What follows a pattern in quotes; `None` where there is none.
fn behind_pattern(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|first| ['"', '\''].contains(first))?;
    let inside = &text[1..];
    let end = inside.find([quote, '[', ']', '\\', ';', '\n'])?;
    if end == 0 { None } else { inside[end..].strip_prefix(quote) }
}
