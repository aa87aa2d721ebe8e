//! `callsight analyze`.

use std::process::ExitCode;

/// Reads captures and prints who was called, how often and for how long.
#[derive(clap::Args)]
pub struct Args {}

/// See [`Args`].
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
