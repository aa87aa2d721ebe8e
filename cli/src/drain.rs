//! `callsight drain`: the drain that `init --stream` puts into projects, built in.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use callsight_hub::local::end_with_parent;

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

/// Followed by a pid: to end when that process, which has started this one, is gone. Between the
/// two of them, and in no help.
const WITH_PARENT: &str = "--end-with-parent";

/// See [`Args`]. Nothing has started a thread before: the drain forks.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut words = args.arguments;
    if words.first().is_some_and(|word| word == WITH_PARENT) {
        let pid = words.drain(..words.len().min(2)).next_back();
        let pid = pid.and_then(|pid| pid.to_str()?.parse().ok()).unwrap_or(0);
        if !end_with_parent(pid).context("end with the server")? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let code = callsight_drain::run(words);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// The command that runs this program as a drain; the drain's arguments follow.
pub fn own_drain() -> Vec<OsString> {
    let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("callsight"));
    vec![this.into(), "drain".into()]
}

/// The same for a drain that is of no use without this process. What no sink has is in the ring then,
/// where the next one finds it.
pub fn drain_of_ours() -> Vec<OsString> {
    let mut command = own_drain();
    command.extend([WITH_PARENT.into(), std::process::id().to_string().into()]);
    command
}
