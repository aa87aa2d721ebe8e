//! `callsight demo`.

use std::process::ExitCode;

/// Builds a small threaded program, streams it over loopback and prints its report.
#[derive(clap::Args)]
pub struct Args {}

/// See [`Args`].
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
