//! The one marked block in a CMakeLists.txt: put in, found, cut out.
//!
//! Works on bytes and keeps what it does not need to know: encoding, line ends, a missing last
//! line end. Cutting out gives back what putting in was given.

use crate::scan;

/// How the first and the last line of the block start. Conda's form, which people know.
const BEGIN: &[u8] = b"# >>> callsight";
const END: &[u8] = b"# <<< callsight";

/// What is wrong with the markers in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfOpen {
    /// Line of the first marker that has no counterpart, from 1.
    pub line: usize,
}

/// Finds the block in `text`: from the start of its first line to behind its last line's end.
///
/// # Errors
/// Markers that are not one beginning and then one end.
pub fn find(text: &[u8]) -> Result<Option<std::ops::Range<usize>>, HalfOpen> {
    let (mut begin, mut found, mut at) = (None, None, 0);
    for (index, line) in text.split_inclusive(|c| *c == b'\n').enumerate() {
        let trimmed = line.trim_ascii();
        let line_number = index + 1;
        if trimmed.starts_with(BEGIN) {
            if begin.is_some() || found.is_some() {
                return Err(HalfOpen { line: line_number });
            }
            begin = Some((at, line_number));
        } else if trimmed.starts_with(END) {
            let (start, _) = begin.take().ok_or(HalfOpen { line: line_number })?;
            found = Some(start..at + line.len());
        }
        at += line.len();
    }
    match begin {
        Some((_, line)) => Err(HalfOpen { line }),
        None => Ok(found),
    }
}

/// `text` with `block`, which has `\n` line ends, at `at`.
pub fn put_in(text: &[u8], at: usize, block: &str) -> Vec<u8> {
    let line_end = line_end_before(text, at);
    let block = block.replace('\n', line_end);
    let mut edited = text[..at].to_vec();
    if at > 0 && !text[..at].ends_with(b"\n") {
        // The text ends without a line end, and so it shall.
        edited.extend_from_slice(line_end.as_bytes());
        edited.extend_from_slice(block.trim_end().as_bytes());
    } else {
        edited.extend_from_slice(block.as_bytes());
    }
    edited.extend_from_slice(&text[at..]);
    edited
}

/// `text` without the bytes of the block at `range`, and without the line end that
/// [`put_in`] needed before it.
pub fn cut_out(text: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let mut before = &text[..range.start];
    if !text[range.clone()].ends_with(b"\n") {
        before = before.strip_suffix(b"\n").unwrap_or(before);
        before = before.strip_suffix(b"\r").unwrap_or(before);
    }
    [before, &text[range.end..]].concat()
}

/// `text` with `block` in it, in place of the one there may be.
///
/// # Errors
/// Half-open markers, or no place for a block.
pub fn set(text: &[u8], block: &str) -> Result<Vec<u8>, BlockError> {
    if let Some(range) = find(text).map_err(BlockError::HalfOpen)? {
        let same = put_in(&text[..range.start], range.start, block);
        if text[..range.end] == same || text[..range.end] == *same.trim_ascii_end() {
            return Ok(text.to_vec());
        }
        let bare = cut_out(text, range.clone());
        return Ok(put_in(&bare, range.start.min(bare.len()), block));
    }
    let anchor = scan::anchor(text).map_err(BlockError::Scan)?;
    Ok(put_in(text, anchor.at, block))
}

/// Why a block cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// See [`HalfOpen`].
    HalfOpen(HalfOpen),
    /// See [`scan::ScanError`].
    Scan(scan::ScanError),
}

/// The line end of the line that ends at `at`; where none does, the first in the text.
fn line_end_before(text: &[u8], at: usize) -> &'static str {
    let ends_here = text[..at].ends_with(b"\n").then_some(at);
    let first = || text.iter().position(|c| *c == b'\n').map(|newline| newline + 1);
    match ends_here.or_else(first) {
        Some(end) if text[..end].ends_with(b"\r\n") => "\r\n",
        _ => "\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "# >>> callsight >>>\ninclude(x)\n# <<< callsight <<<\n";

    #[test]
    fn cutting_out_gives_back_what_putting_in_was_given() {
        for text in [
            "project(x)\nadd()\n",
            "project(x)",
            "project(x)\n",
            "project(x)\r\nadd()\r\n",
            "a()\r\nproject(x)",
            "\u{feff}project(x)\n\n\n",
        ] {
            let edited = set(text.as_bytes(), BLOCK).expect("a place");
            let range = find(&edited).expect("whole markers").expect("a block");
            assert_eq!(cut_out(&edited, range), text.as_bytes(), "{text:?}");
            assert_eq!(set(&edited, BLOCK).expect("again"), edited, "{text:?}");
        }
    }

    #[test]
    fn the_block_takes_the_line_ends_of_its_place() {
        let edited = set(b"project(x)\r\nadd()\r\n", BLOCK).expect("a place");
        assert_eq!(edited.iter().filter(|c| **c == b'\n').count(), 5);
        assert_eq!(edited.windows(2).filter(|w| w == b"\r\n").count(), 5);
    }

    #[test]
    fn a_block_of_another_version_is_replaced_in_place() {
        let old = "project(x)\n# >>> callsight old >>>\nold()\n# <<< callsight <<<\nadd()\n";
        let edited = set(old.as_bytes(), BLOCK).expect("a place");
        assert_eq!(edited, format!("project(x)\n{BLOCK}add()\n").as_bytes());
    }

    #[test]
    fn markers_without_a_counterpart_are_found() {
        let half = |text: &str| find(text.as_bytes()).expect_err("half open").line;
        assert_eq!(half("a\n# >>> callsight >>>\nb\n"), 2);
        assert_eq!(half("a\nb\n# <<< callsight <<<\n"), 3);
        assert_eq!(half("# >>> callsight\n# >>> callsight\n# <<< callsight\n"), 2);
        let twice = "# >>> callsight\n# <<< callsight\n";
        assert_eq!(half(&[twice, twice].concat()), 3);
    }
}
