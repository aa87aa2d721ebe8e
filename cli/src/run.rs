//! `callsight run`.

use std::process::ExitCode;

/// Runs an instrumented program and reports on it.
#[derive(clap::Args)]
pub struct Args {}

/// See [`Args`].
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
