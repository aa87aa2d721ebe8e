//! `callsight drain`: the drain that `init --stream` puts into projects, built in.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Moves the events of a ring to a server, a file, or both
///
/// This is `trace_stream`, which a device has as a program of its own: `callsight drain --help` is
/// its help, and its exit codes are that program's.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// As `callsight drain --help` says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// See [`Args`]. Nothing has started a thread before: the drain forks.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let code = callsight_drain::run(args.arguments);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// The command that runs this program as a drain; the drain's arguments follow.
pub fn own_drain() -> Vec<OsString> {
    let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("callsight"));
    vec![this.into(), "drain".into()]
}
