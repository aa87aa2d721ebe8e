//! `callsight snapshot`: what a ring holds of a running program → a capture.

use std::path::PathBuf;
use std::process::ExitCode;

use callsight_hub::local::{Amounts, Snapshot, snapshot};
use callsight_hub::stream::in_one_line;

use crate::say;

/// Writes what the ring of a program holds now, without stopping anything
///
/// The capture has the latest events of each thread: those that no drain has taken and given back.
/// `callsight analyze` reads it.
#[derive(clap::Args)]
pub struct Args {
    /// The traced process
    #[arg(value_name = "PID")]
    pid: u32,
    /// Folder of the capture [default: snapshot.PID]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = args.out.unwrap_or_else(|| format!("snapshot.{}", args.pid).into());
    let taken = snapshot(args.pid, &folder)?;
    for line in lines(args.pid, &taken) {
        say::line(in_one_line(&line));
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(pid: u32, taken: &Snapshot) -> Vec<String> {
    let Snapshot { ring, file, amounts } = taken;
    let Amounts { threads, events, beheaded, left_out, untold, of_nobody } = *amounts;
    let threads = if threads == 1 { "1 thread" } else { &format!("{threads} threads") };
    let file = file.display();
    let mut lines =
        vec![format!("process {pid}, ring {ring}: {events} events of {threads} -> {file}")];
    if beheaded > 0 {
        lines.push(format!("a drain has the beginning of {beheaded} of them"));
    }
    if left_out > 0 {
        lines.push(format!("{left_out} records were on their way and are left out"));
    }
    if untold > 0 {
        lines.push(format!(
            "{untold} events were dropped by the program beside those that its records tell"
        ));
    }
    if of_nobody > 0 {
        lines.push(format!(
            "{of_nobody} of them by threads that the ring does not name: they may be of another process \
             of it"
        ));
    }
    lines
}
