//! Several C files → one.
//!
//! A header is put where it is first included, and nowhere else; system headers stay as they are.
//! Knows the C lexis (comments, literals, continued lines) but no preprocessor conditions.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// What becomes of a `#include "name"` that is not simply replaced by its file.
#[derive(Clone, Copy, Default)]
pub struct Rules {
    /// Names whose line stays.
    pub kept: &'static [&'static str],
    /// Names whose line goes.
    pub left_out: &'static [&'static str],
    /// Whether comments and empty lines go too.
    pub strip: bool,
}

/// One C file in the making.
pub struct Amalgamation {
    root: PathBuf,
    rules: Rules,
    included: HashSet<PathBuf>,
    text: String,
}

impl Amalgamation {
    /// Starts with `head`; sources are found below `root`.
    pub fn new(root: &Path, head: &str, rules: Rules) -> Amalgamation {
        let text = head.to_owned();
        Amalgamation { root: root.to_owned(), rules, included: HashSet::new(), text }
    }

    /// Appends a source file, and before it what it includes.
    pub fn add(&mut self, file: &str) -> Result<()> {
        self.append(&self.root.join(file))
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.text
    }

    fn append(&mut self, path: &Path) -> Result<()> {
        let path = path.canonicalize().with_context(|| format!("find {}", path.display()))?;
        if !self.included.insert(path.clone()) {
            return Ok(());
        }
        println!("cargo::rerun-if-changed={}", path.display());
        let source =
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let source = if self.rules.strip { strip_comments(&source) } else { source };
        for line in source.lines() {
            match quoted_include(line) {
                Some(name) if !self.rules.kept.contains(&name) => self.include(&path, name)?,
                _ => self.push_line(line),
            }
        }
        Ok(())
    }

    fn include(&mut self, from: &Path, name: &str) -> Result<()> {
        if self.rules.left_out.iter().any(|left_out| name.ends_with(left_out)) {
            return Ok(());
        }
        let header = from.parent().unwrap_or(&self.root).join(name);
        if !header.is_file() {
            bail!("{} includes \"{name}\", which is not there", from.display());
        }
        self.append(&header)
    }

    /// An empty line only counts where it ends a continued one.
    fn push_line(&mut self, line: &str) {
        if !self.rules.strip || !line.is_empty() || self.text.ends_with("\\\n") {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }
}

/// The file name of a `#include "name"` line.
fn quoted_include(line: &str) -> Option<&str> {
    let directive = line.trim_start().strip_prefix('#')?.trim_start();
    let name = directive.strip_prefix("include")?.trim_start().strip_prefix('"')?;
    name.split_once('"').map(|(name, _)| name)
}

/// `source` with every comment replaced by a blank, and no blanks at line ends.
pub fn strip_comments(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (token, keep) = match first {
            '/' if rest.starts_with("/*") => (comment_end(rest), false),
            '/' if rest.starts_with("//") => (line_end(rest), false),
            '"' | '\'' => (literal_end(rest, first), true),
            _ => (first.len_utf8(), true),
        };
        text.push_str(if keep { &rest[..token] } else { " " });
        rest = &rest[token..];
    }
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

fn comment_end(text: &str) -> usize {
    text[2..].find("*/").map_or(text.len(), |at| at + 4)
}

/// End of the line, or of the line it is continued on.
fn line_end(text: &str) -> usize {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        at += line.trim_end_matches('\n').len();
        if !line.ends_with("\\\n") {
            break;
        }
        at += 1;
    }
    at
}

/// End of a literal. One that its line does not end is an apostrophe in an `#error`.
fn literal_end(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\n' if !escaped => return 1,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    1
}
