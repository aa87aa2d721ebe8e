//! `callsight init`: a project → its edit, shown, then made or taken back.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use callsight_hub::stream::in_one_line;
use callsight_integrations::{Options, Plan, plan_init, plan_install, plan_undo};

use crate::say;

/// Makes a CMake project buildable with hooks: one block in its CMakeLists.txt, one folder.
///
/// A normal build stays as it is; `cmake -DCALLSIGHT=ON` builds every target with hooks. Run again,
/// it brings the folder up to date.
#[derive(clap::Args)]
pub struct Args {
    /// The project: the folder with its top CMakeLists.txt.
    #[arg(required_unless_present = "prefix")]
    path: Option<PathBuf>,
    /// Put the drain into the project too, for streaming over TCP.
    #[arg(long, conflicts_with_all = ["undo", "prefix"])]
    stream: bool,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    /// Take callsight out of the project, byte for byte.
    #[arg(long)]
    undo: bool,
    /// Instead of into a project, install the CMake package for `find_package(Callsight)`.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["path", "undo"])]
    prefix: Option<PathBuf>,
}

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let planned = match (&args.prefix, &args.path) {
        (Some(prefix), _) => plan_install(prefix)?,
        (None, Some(path)) if args.undo => plan_undo(path)?,
        (None, path) => {
            let path = path.as_deref().unwrap_or(Path::new("."));
            plan_init(path, &Options { stream: args.stream })?
        }
    };
    if args.dry_run {
        return say::result("what would change", |out| report(&planned, &args, out));
    }
    planned.apply()?;
    // It is done, whoever hears of it.
    let _ = say::result("what was changed", |out| report(&planned, &args, out));
    Ok(ExitCode::SUCCESS)
}

fn report(planned: &Plan, args: &Args, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{}", planned.diff())?;
    let would = if args.dry_run { "would be " } else { "" };
    for change in planned.changes() {
        let name = planned.name_of(change).to_string_lossy();
        writeln!(out, "{would}{} {}", change.kind(), in_one_line(&name))?;
    }
    for note in planned.notes() {
        writeln!(out, "note: {}", in_one_line(note))?;
    }
    if planned.is_empty() {
        writeln!(out, "nothing to change")?;
    } else if args.dry_run {
        writeln!(out, "nothing was written (--dry-run)")?;
    } else if args.prefix.is_none() && !args.undo {
        writeln!(out, "build with hooks: cmake -DCALLSIGHT=ON, in a build folder of its own")?;
    }
    Ok(())
}
