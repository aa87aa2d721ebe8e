//! Lines for whoever reads: nobody has to. What is said changes neither what is done nor the exit code, also
//! where nobody can be told, because the other end is closed or its disk is full.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

/// What people should know, on standard error.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// What was done, on standard output.
pub fn line(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// What was asked for, and is all that a command does, on standard output: that it could not be written
/// is an error, unless whoever reads has seen enough, as in `callsight analyze | head`.
pub fn result(
    what: &'static str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => done.with_context(|| format!("write {what}")).map(|()| ExitCode::SUCCESS),
    }
}
