//! `callsight serve`.

use std::process::ExitCode;

/// Receives streams from devices and writes captures.
#[derive(clap::Args)]
pub struct Args {}

/// See [`Args`].
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
