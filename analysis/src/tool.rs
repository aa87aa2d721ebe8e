//! `--addr2line`: a toolchain's own tool instead of the built-in reader.
//!
//! One process a file, all addresses through its standard input.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::Error;
use crate::elf::{Location, Name};

/// Asks `tool` for the names of `addresses` in the file `binary`.
///
/// # Errors
/// The tool cannot be run, fails, or answers something else.
pub fn names(tool: &Path, binary: &Path, addresses: &[u64]) -> Result<Vec<Name>, Error> {
    let fail = |why: String| Error::Tool { tool: tool.to_path_buf(), why };
    let mut child = Command::new(tool)
        .args(["-f", "-C", "-e"])
        .arg(binary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| fail(error.to_string()))?;
    let questions: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    // From a thread: the tool stops reading while nobody takes its answers.
    let writer = child
        .stdin
        .take()
        .map(|mut stdin| thread::spawn(move || stdin.write_all(questions.as_bytes())));
    let output = child.wait_with_output().map_err(|error| fail(error.to_string()))?;
    let written = writer.is_none_or(|writer| matches!(writer.join(), Ok(Ok(()))));
    let answers = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = answers.lines().collect();
    if !written || !output.status.success() || lines.len() != 2 * addresses.len() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it gave no usable answer").to_string();
        return Err(fail(format!("{} ({said})", output.status)));
    }
    Ok(lines.chunks_exact(2).map(|pair| answer(pair[0], pair[1])).collect())
}

/// A name and a `file:line`, each `??` where unknown.
fn answer(name: &str, place: &str) -> Name {
    let name = (name != "??" && !name.is_empty()).then(|| name.to_string());
    // "file:12 (discriminator 3)"
    let place = place.split(" (").next().unwrap_or(place);
    let location = place.rsplit_once(':').and_then(|(file, line)| {
        let line = line.parse().ok().filter(|line| *line > 0)?;
        Some(Location { file: file.to_string(), line })
    });
    Name { exact: name.is_some(), name, location }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_tool_are_read() {
        let known = answer("Box<int>::sum() const", "/src/a:b.cpp:12 (discriminator 3)");
        assert_eq!(known.name.as_deref(), Some("Box<int>::sum() const"));
        assert_eq!(known.location, Some(Location { file: "/src/a:b.cpp".into(), line: 12 }));
        assert_eq!(answer("??", "??:0"), Name::default());
    }

    #[test]
    fn a_tool_that_does_not_exist_is_named() {
        let error = names(Path::new("/nonexistent/addr2line"), Path::new("/bin/sh"), &[1]);
        assert!(error.expect_err("no tool").to_string().contains("/nonexistent/addr2line"));
    }
}
