//! The text of a CMakeLists.txt → where a line can be added behind its `project()`.
//!
//! Reads CMake's grammar as far as that takes: comments and arguments in all their forms, and which
//! commands open and close blocks. Bytes, not text: CMake asks for UTF-8 but takes anything.

/// Where the block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Offset of the first byte of the line behind the call, or the end of the text.
    pub at: usize,
    /// Which command it stands behind.
    pub behind: Behind,
}

/// What the block stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// `project()`, or the end of the outermost `if()` around it.
    Project,
    /// `cmake_minimum_required()`, in a text that calls `project()` elsewhere or not at all.
    MinimumRequired,
}

/// Why there is no such place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// Neither command is called.
    NoProject,
    /// The text is not what CMake would take.
    Syntax {
        /// Line, from 1.
        line: usize,
        /// What is wrong there.
        what: &'static str,
    },
}

/// Commands that open a block, and those that close one.
const BLOCKS: [(&str, &str); 6] = [
    ("if", "endif"),
    ("foreach", "endforeach"),
    ("while", "endwhile"),
    ("block", "endblock"),
    ("function", "endfunction"),
    ("macro", "endmacro"),
];

/// Finds where the block goes in `text`.
///
/// # Errors
/// The text has no such place, or is not CMake.
pub fn anchor(text: &[u8]) -> Result<Anchor, ScanError> {
    let mut scanner = Scanner { text, at: 0 };
    let mut open: Vec<usize> = Vec::new();
    let mut seen_inside = false;
    let mut minimum = None;
    while let Some((name, start)) = scanner.command()? {
        if let Some(kind) = BLOCKS.iter().position(|(begin, _)| *begin == name) {
            open.push(kind);
        } else if let Some(kind) = BLOCKS.iter().position(|(_, end)| *end == name) {
            if open.pop() != Some(kind) {
                return Err(scanner.error_at(start, "a block is closed that was not opened"));
            }
            if open.is_empty() && seen_inside {
                return Ok(Anchor { at: scanner.next_line()?, behind: Behind::Project });
            }
        }
        // What a function or a macro would do is not done here.
        let runs =
            !open.iter().any(|kind| BLOCKS[*kind].0 == "function" || BLOCKS[*kind].0 == "macro");
        match name.as_str() {
            "project" if open.is_empty() => {
                return Ok(Anchor { at: scanner.next_line()?, behind: Behind::Project });
            }
            "project" if runs => seen_inside = true,
            "cmake_minimum_required" if open.is_empty() && minimum.is_none() => {
                let at = scanner.next_line()?;
                minimum = Some(Anchor { at, behind: Behind::MinimumRequired });
            }
            _ => {}
        }
    }
    if !open.is_empty() {
        return Err(scanner.error_at(text.len(), "a block is not closed"));
    }
    minimum.ok_or(ScanError::NoProject)
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    /// Reads up to and over the next command's closing parenthesis. Gives its name in lower case
    /// and where it starts.
    fn command(&mut self) -> Result<Option<(String, usize)>, ScanError> {
        self.skip_blank()?;
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == b'_') {
            self.at += 1;
        }
        let name = String::from_utf8_lossy(&self.text[start..self.at]).to_ascii_lowercase();
        if start == self.text.len() {
            return Ok(None);
        }
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        if name.is_empty() || self.peek() != Some(b'(') {
            return Err(self.error_at(start, "this is not a command"));
        }
        self.at += 1;
        self.arguments(start)?;
        Ok(Some((name, start)))
    }

    /// Reads over arguments, behind `(`, and the closing parenthesis of `command_start`.
    fn arguments(&mut self, command_start: usize) -> Result<(), ScanError> {
        let mut depth = 1;
        while depth > 0 {
            self.skip_blank()?;
            match self.peek() {
                None => return Err(self.error_at(command_start, "the call is not closed")),
                Some(b'(') => depth += 1,
                Some(b')') => depth -= 1,
                Some(b'"') => {
                    self.quoted()?;
                    continue;
                }
                Some(b'[') => {
                    if self.bracket()? {
                        continue;
                    }
                }
                Some(b'\\') => self.at += 1,
                Some(_) => {}
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Reads over `"..."`.
    fn quoted(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(self.error_at(start, "the string is not closed")),
                Some(b'\\') => self.at += 2,
                Some(b'"') => break,
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Reads over `[[...]]`, `[=[...]=]` and so on; `false`, and nothing read, where `[` is only a
    /// character, as it is within a word.
    fn bracket(&mut self) -> Result<bool, ScanError> {
        let starts_a_word = |c: &u8| c.is_ascii_whitespace() || b"()#".contains(c);
        if !self.text[..self.at].last().is_some_and(starts_a_word) {
            return Ok(false);
        }
        let rest = &self.text[self.at..];
        let equals = rest[1..].iter().take_while(|c| **c == b'=').count();
        if rest.get(1 + equals) != Some(&b'[') {
            return Ok(false);
        }
        let close = [b"]".as_slice(), &vec![b'='; equals], b"]"].concat();
        match rest.windows(close.len()).position(|window| window == close) {
            Some(end) => self.at += end + close.len(),
            None => return Err(self.error_at(self.at, "the bracket is not closed")),
        }
        Ok(true)
    }

    /// Reads over white space and comments.
    fn skip_blank(&mut self) -> Result<(), ScanError> {
        if self.at == 0 && self.text.starts_with(b"\xef\xbb\xbf") {
            self.at = 3;
        }
        while let Some(c) = self.peek() {
            match c {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'#' => self.comment()?,
                _ => break,
            }
        }
        Ok(())
    }

    /// Reads over a comment, up to the end of its line or its closing bracket.
    fn comment(&mut self) -> Result<(), ScanError> {
        self.at += 1;
        if self.peek() == Some(b'[') && self.bracket()? {
            return Ok(());
        }
        while self.peek().is_some_and(|c| c != b'\n') {
            self.at += 1;
        }
        Ok(())
    }

    /// Reads over what follows a command, up to the start of a line of its own.
    fn next_line(&mut self) -> Result<usize, ScanError> {
        loop {
            match self.peek() {
                None => return Ok(self.at),
                Some(b'\n') => return Ok(self.at + 1),
                Some(b' ' | b'\t' | b'\r') => self.at += 1,
                Some(b'#') => self.comment()?,
                Some(_) => return Err(self.error_at(self.at, "a second command in one line")),
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn error_at(&self, at: usize, what: &'static str) -> ScanError {
        let before = &self.text[..at.min(self.text.len())];
        ScanError::Syntax { line: 1 + before.iter().filter(|c| **c == b'\n').count(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` has `^` where the block belongs.
    fn check(text: &str) {
        let at = text.find('^').expect("a mark in the text");
        let found = anchor(text.replacen('^', "", 1).as_bytes()).expect("a place");
        assert_eq!(found.at, at, "in {text:?}");
    }

    fn refused(text: &str) -> ScanError {
        anchor(text.as_bytes()).expect_err("no place")
    }

    #[test]
    fn the_block_stands_on_the_line_behind_project() {
        check("project(x C)\n^add_executable(x x.c)\n");
        check("  PROJECT ( x )  # named\r\n^set(a b)\r\n");
        check("project(x)^");
    }

    #[test]
    fn project_over_several_lines_ends_at_its_own_parenthesis() {
        check(
            "project(\n  x # not the end )\n  DESCRIPTION \"a ) in a string, \\\" too\"\n)\n^next()\n",
        );
        check("project(x DESCRIPTION [=[ ) ]] ]=] VERSION (1) \\) )\n^");
        check("project(x HOMEPAGE_URL [ a[[b [0-9] )\n^");
    }

    #[test]
    fn project_in_comments_and_strings_is_not_project() {
        check(
            "# project(a)\n#[[ project(b)\n]] \nset(s \"project(c)\nproject(d)\")\nproject(e)\n^",
        );
        check("set(s [==[\nproject(a)\n]==])\nmy_project(b)\nproject(e)\n^");
    }

    #[test]
    fn a_bracket_comment_behind_project_is_waited_out() {
        check("project(x) #[[ a\nb ]] # c\n^set(a b)\n");
    }

    #[test]
    fn a_project_inside_if_is_waited_out() {
        check("if(A)\n if(B)\n  project(x)\n endif()\nelse()\n project(y)\nendif()\n^add()\n");
    }

    #[test]
    fn a_project_inside_a_function_is_not_called_there() {
        check("macro(m)\n project(x)\nendmacro()\nproject(y)\n^");
    }

    #[test]
    fn without_project_the_minimum_will_do() {
        check("cmake_minimum_required(VERSION 3.16)\n^include(all.cmake)\n");
        assert_eq!(refused("add_library(x x.c)\n"), ScanError::NoProject);
    }

    #[test]
    fn a_text_that_cmake_would_not_take_is_refused_with_its_line() {
        let line = |text| match refused(text) {
            ScanError::Syntax { line, .. } => line,
            ScanError::NoProject => 0,
        };
        assert_eq!(line("\nproject(x"), 2);
        assert_eq!(line("project(x \"y)\n"), 1);
        assert_eq!(line("#[[ project(x)\n"), 1);
        assert_eq!(line("project(x) set(a b)\n"), 1);
        assert_eq!(line("if(A)\nproject(x)\n\n"), 4);
        assert_eq!(line("\n\nendif()\nproject(x)\n"), 3);
        assert_eq!(line("{ \"json\": 1 }"), 1);
    }

    #[test]
    fn bytes_that_are_not_utf_8_and_a_byte_order_mark_pass() {
        let text = b"\xef\xbb\xbf# \xff\nproject(x)\n";
        assert_eq!(anchor(text).expect("a place").at, text.len());
    }
}
