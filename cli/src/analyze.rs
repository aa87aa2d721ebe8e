//! `callsight analyze`: captures → a report on standard output.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use callsight_analysis::{Detail, Options, Report, analyze};

use crate::say;

/// Lines of each table where nothing else is asked for.
const DEFAULT_TOP: usize = 20;

/// Reads captures and prints who was called, how often and for how long.
#[derive(clap::Args)]
pub struct Args {
    /// Directories with captures, or capture files
    #[arg(value_name = "DIR|FILES", default_value = "traces")]
    captures: Vec<PathBuf>,
    /// The traced binary, where the capture does not name it or it lies elsewhere now (repeatable)
    #[arg(long, value_name = "BIN")]
    exe: Vec<PathBuf>,
    /// A toolchain's addr2line to name functions with, instead of the built-in reader
    #[arg(long, value_name = "TOOL")]
    addr2line: Option<PathBuf>,
    /// Lines of each table, 0 for all [default: 20; json, folded and callers: all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Take the measured cost of the hooks off total and self times
    #[arg(long)]
    subtract_overhead: bool,
}

impl Args {
    /// The traced binary, unless one is named.
    pub fn suggest_exe(&mut self, exe: PathBuf) {
        if self.exe.is_empty() {
            self.exe.push(exe);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Tables for people
    Text,
    /// One object for programs
    Json,
    /// Stacks with self times, for flame graph tools
    Folded,
    /// Who called what from where
    Callers,
}

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        exes: args.exe,
        addr2line: args.addr2line,
        detail: Detail {
            paths: args.format == Format::Folded,
            callers: args.format == Format::Callers,
        },
        subtract_overhead: args.subtract_overhead,
    };
    let report = analyze(&args.captures, &options)?;
    if matches!(args.format, Format::Folded | Format::Callers) {
        // These have no place for notices, and nobody who reads may miss a loss.
        let _ = report.write_notices(&mut io::stderr().lock());
    }
    say::result("the report", |out| print(&report, args.format, args.top, out))
}

fn print(
    report: &Report,
    format: Format,
    top: Option<usize>,
    mut out: &mut dyn Write,
) -> io::Result<()> {
    let all = top.unwrap_or(0);
    match format {
        Format::Text => report.write_text(&mut out, top.unwrap_or(DEFAULT_TOP)),
        Format::Json => report.write_json(&mut out, all),
        Format::Folded => report.write_folded(&mut out, all),
        Format::Callers => report.write_callers(&mut out, all),
    }
}
