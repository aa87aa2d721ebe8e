//! `callsight init`.

use std::process::ExitCode;

/// Makes a project buildable with hooks.
#[derive(clap::Args)]
pub struct Args {}

/// See [`Args`].
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
