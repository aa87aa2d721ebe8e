//! `callsight run`: a program → a traced run, into files, to a server, or both; then its report.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use callsight_hub::local::{
    Hooks, Launch, LaunchError, Outcome, captures_in, find_program, hooks_of, remove_captures,
};
use callsight_hub::stream::in_one_line;
use clap::Parser;

use crate::folder::{Claim, holds_received, sibling};
use crate::sinks::{self, Sinks};
use crate::{analyze, parse, say, tell};

mod live;
mod room;
mod summary;

use live::Live;

/// How many folders beside the one that is wanted are tried.
const MOST_SIBLINGS: u32 = 100;
/// Most megabytes of captures where nothing else is said, as the runtime has it.
const DEFAULT_MAX_MB: u64 = 512;

/// Runs an instrumented program and reports on it
///
/// Events go into files, or with --live to a server, or with --live and --path to both. What the
/// flags leave open, CALLSIGHT_PATH and CALLSIGHT_LIVE say, and then the table [sinks] of the
/// nearest callsight.toml.
///
/// The exit code is that of the program: 128 and the signal's number where one ended it. Where
/// the program succeeded and there is no report, it is 2.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the captures; empty for none [default: traces, without --live]
    #[arg(long, visible_alias = "dir", value_name = "DIR")]
    path: Option<OsString>,
    /// Stream to the `callsight serve` that listens there; empty for none
    #[arg(long, value_name = "HOST:PORT")]
    live: Option<OsString>,
    /// Megabytes of the ring that a streamed run records into [default: 16]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..4096))]
    ring_mb: Option<u64>,
    /// Keep captures of earlier runs in DIR, and report on all of them
    #[arg(long)]
    keep: bool,
    /// Run CMD even if it has no hooks itself: a wrapper such as env or sh
    #[arg(long)]
    no_check: bool,
    /// Most megabytes the captures may take; 0 for no limit [default: 512]
    #[arg(long, value_name = "MB")]
    max_mb: Option<u64>,
    /// Most events that each process records; 0 for no limit [default: 0]
    #[arg(long, value_name = "N")]
    max_events: Option<u64>,
    /// What to do when --max-mb is reached: record no more, or drop the oldest [default: stop]
    #[arg(long, value_parser = ["stop", "wrap"])]
    full: Option<String>,
    /// Record only threads of these names: globs, separated by commas
    #[arg(long, value_name = "GLOBS")]
    threads: Option<OsString>,
    /// Clock of the events [default: auto]
    #[arg(long, value_parser = ["auto", "mono", "raw", "tsc"])]
    clock: Option<String>,
    /// End the program after this many seconds: SIGTERM, 5 s later SIGKILL
    #[arg(long, value_name = "S", value_parser = seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    report: ReportArgs,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What is for `callsight analyze`, which knows what it means.
#[derive(clap::Args)]
struct ReportArgs {
    /// The traced binary, where the capture does not name it
    #[arg(long, value_name = "BIN")]
    exe: Option<OsString>,
    /// Lines of each table of the report
    #[arg(long, value_name = "N")]
    top: Option<OsString>,
    /// What to print: see `callsight analyze --help`
    #[arg(long, value_name = "F")]
    format: Option<OsString>,
    /// A toolchain's addr2line to name functions with
    #[arg(long, value_name = "TOOL")]
    addr2line: Option<OsString>,
    /// Take the measured cost of the hooks off the times
    #[arg(long)]
    subtract_overhead: bool,
}

/// A command line of `callsight analyze`.
#[derive(Parser)]
struct Analyze {
    #[command(flatten)]
    args: analyze::Args,
}

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut sinks = sinks::choose(args.path.clone(), args.live.clone(), note)?;
    // First, so that a mistake in it is told before the program runs.
    let mut request = args.report.request(sinks.folder());
    room::check_lengths(sinks.path.as_deref(), args.thread_names().as_deref())?;
    if !args.no_check {
        check_hooks(&args.command[0])?;
    }
    if let Sinks { path: None, live: None } = sinks {
        note("nothing is recorded: neither a folder (--path) nor a server (--live) is wanted");
        return run_untraced(&args);
    }
    let asked = sinks.path.clone();
    let (earlier, _claim) = match args.prepare(&mut sinks) {
        Ok(prepared) => prepared,
        Err(error) => {
            note(&format!("{error:#}; the program runs without it"));
            sinks.path = None;
            (captures_in(sinks.folder()).unwrap_or_default(), None)
        }
    };
    if sinks.path != asked {
        request = args.report.request(sinks.folder());
    }
    if sinks.live.is_none() && sinks.path.is_none() {
        let code = run_untraced(&args)?;
        return Ok(if code == ExitCode::SUCCESS { ExitCode::from(2) } else { code });
    }
    let outcome = args.launch_with(&sinks)?;
    note_outcome(&outcome, args.timeout);
    match (args.report_on(&sinks, &earlier, request), outcome.code()) {
        (Err(error), 0) => return Err(error),
        (Err(error), _) => tell(&error),
        (Ok(()), _) => {}
    }
    Ok(ExitCode::from(outcome.code()))
}

fn run_untraced(args: &Args) -> anyhow::Result<ExitCode> {
    let outcome = Launch { untraced: true, ..args.launch(PathBuf::new()) }.run()?;
    note_outcome(&outcome, args.timeout);
    Ok(ExitCode::from(outcome.code()))
}

impl ReportArgs {
    /// The request that these arguments make; a mistake in them ends the program with exit code 2.
    fn request(&self, dir: &Path) -> analyze::Args {
        let options = [
            ("--exe", &self.exe),
            ("--top", &self.top),
            ("--format", &self.format),
            ("--addr2line", &self.addr2line),
        ];
        let mut line = vec![OsString::from("callsight run")];
        for (name, value) in options {
            if let Some(value) = value {
                line.extend([OsString::from(name), value.clone()]);
            }
        }
        line.extend(self.subtract_overhead.then(|| "--subtract-overhead".into()));
        line.extend(["--".into(), dir.into()]);
        parse::<Analyze>(line).args
    }
}

impl Args {
    /// Makes room for new captures; which are there and stay, and the claim on their folder.
    fn prepare(&self, sinks: &mut Sinks) -> anyhow::Result<(Vec<PathBuf>, Option<Claim>)> {
        if std::env::var_os("TRACE_SHM").is_some() {
            note("TRACE_SHM is not passed on: this run has its own files, or its own ring");
        }
        let Some(wanted) = &sinks.path else {
            return Ok((captures_in(sinks.folder()).unwrap_or_default(), None));
        };
        let (dir, claim) = self.own_folder(wanted)?;
        room::check_lengths(Some(&dir), None)?;
        if !self.keep {
            remove_captures(&dir)?;
        }
        let earlier = captures_in(&dir)?;
        if !earlier.is_empty() {
            let (count, dir) = (earlier.len(), dir.display());
            note(&format!("--keep: the report includes {count} earlier files in {dir}"));
        }
        sinks.path = Some(dir);
        Ok((earlier, Some(claim)))
    }

    /// The folder that this run has for itself: the one that is wanted, or one beside it where that has
    /// what is somebody else's.
    fn own_folder(&self, wanted: &Path) -> anyhow::Result<(PathBuf, Claim)> {
        let mut folder = wanted.to_owned();
        let mut taken = None;
        for number in 2..=MOST_SIBLINGS {
            let fail = |path: &Path, error| LaunchError::Folder { path: path.to_owned(), error };
            std::fs::create_dir_all(&folder).map_err(|error| fail(&folder, error))?;
            let claim = Claim::alone(&folder).map_err(|error| fail(&folder, error))?;
            let received = holds_received(&folder).map_err(|error| fail(&folder, error))?;
            let why = match claim {
                None => "another `callsight` records there",
                Some(_) if received && !self.keep => {
                    "it has streams that `callsight serve` received"
                }
                Some(claim) => {
                    if let Some(why) = taken {
                        let (wanted, folder) = (wanted.display(), folder.display());
                        note(&format!("{wanted} stays as it is, {why}: this run is in {folder}"));
                    }
                    return Ok((folder, claim));
                }
            };
            taken.get_or_insert(why);
            folder = sibling(wanted, number).with_context(|| {
                format!("{}: {why}; name another folder (--path)", wanted.display())
            })?;
        }
        bail!("{} and those beside it are in use: name another folder (--path)", wanted.display())
    }

    /// Reports on what the run left; a program that could not use its ring has left files, wherever
    /// its events should have gone.
    fn report_on(
        &self,
        sinks: &Sinks,
        earlier: &[PathBuf],
        mut request: analyze::Args,
    ) -> anyhow::Result<()> {
        let captured = captures_in(sinks.folder());
        let is_new = |captures: &Vec<PathBuf>| captures.iter().any(|file| !earlier.contains(file));
        match (&sinks.path, captured) {
            (_, Ok(captures)) if is_new(&captures) => {
                let program = find_program(&self.command[0]);
                if let Some(program) = program.filter(|exe| summary::are_of(&captures, exe)) {
                    request.suggest_exe(program);
                }
                analyze::run(request)?;
                if let (None, Some(why)) = (&sinks.live, room::shortage(sinks.folder())) {
                    note(&format!(
                        "{}: {why}: processes that found no room for their first file are in no count",
                        sinks.folder().display()
                    ));
                }
                Ok(())
            }
            (Some(dir), Ok(_)) => Err(self.no_capture(dir)),
            (Some(dir), Err(_)) if !dir.exists() => Err(self.no_capture(dir)),
            (Some(_), Err(error)) => Err(error.into()),
            (None, _) => Ok(()),
        }
    }

    /// Runs the program, beside a drain where there is a server to stream to.
    fn launch_with(&self, sinks: &Sinks) -> anyhow::Result<Outcome> {
        let mut launch = self.launch(sinks.folder().to_owned());
        if sinks.live.is_none() {
            return Ok(launch.run()?);
        }
        if self.full.as_deref() == Some("wrap") {
            note("--full wrap is for files alone: a streamed run keeps its beginning");
        }
        let Some(live) = Live::start(sinks, self.budget_bytes()) else {
            // Without a drain a ring fills and nothing comes of it.
            launch.untraced = sinks.path.is_none();
            return Ok(launch.run()?);
        };
        launch.ring = Some(live.ring.clone());
        let outcome = launch.run()?;
        live.finish(outcome.made_ring);
        Ok(outcome)
    }

    /// Most bytes of the capture that the drain of a streamed run keeps.
    fn budget_bytes(&self) -> u64 {
        let inherited = std::env::var("TRACE_MAX_MB").ok().and_then(|mb| mb.parse().ok());
        self.max_mb.or(inherited).unwrap_or(DEFAULT_MAX_MB).saturating_mul(1 << 20)
    }

    fn launch(&self, directory: PathBuf) -> Launch {
        let number = |number: u64| OsString::from(number.to_string());
        let settings = [
            ("TRACE_MAX_MB", self.max_mb.map(number)),
            ("TRACE_MAX", self.max_events.map(number)),
            ("TRACE_FULL", self.full.as_ref().map(OsString::from)),
            ("TRACE_THREADS", self.threads.clone()),
            ("TRACE_CLOCK", self.clock.as_ref().map(OsString::from)),
            ("TRACE_SHM_SIZE", self.ring_mb.map(|mb| number(mb << 20))),
        ];
        Launch {
            command: self.command.clone(),
            directory,
            settings: settings.into_iter().filter_map(|(name, v)| Some((name, v?))).collect(),
            time_limit: self.timeout,
            ..Launch::default()
        }
    }

    fn no_capture(&self, dir: &Path) -> anyhow::Error {
        anyhow!(
            "report on {}: the run left no capture in {}: {}",
            Path::new(&self.command[0]).display(),
            dir.display(),
            likely_cause(dir, self.thread_filter())
        )
    }

    /// The names of threads that the program is told.
    fn thread_names(&self) -> Option<String> {
        let inherited = || std::env::var_os("TRACE_THREADS");
        let globs = self.threads.clone().or_else(inherited)?;
        Some(globs.to_string_lossy().into_owned())
    }

    /// What leaves out threads, as it was given: here, or in the environment.
    fn thread_filter(&self) -> Option<String> {
        let inherited = std::env::var_os("TRACE_THREADS");
        let (name, globs) = match (&self.threads, &inherited) {
            (Some(globs), _) => ("--threads ", globs),
            (None, Some(globs)) => ("TRACE_THREADS=", globs),
            (None, None) => return None,
        };
        (!globs.is_empty()).then(|| format!("{name}{}", globs.display()))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if duration.is_zero() { Err("more than 0 s is needed".to_owned()) } else { Ok(duration) }
}

/// Refuses a program of which is known beforehand that nothing would be recorded.
fn check_hooks(name: &OsString) -> anyhow::Result<()> {
    let shown = Path::new(name).display();
    let Some(path) = find_program(name) else {
        bail!("run {shown}: there is no such program, or it is not executable");
    };
    match hooks_of(&path) {
        Hooks::Traced | Hooks::Unknown => Ok(()),
        Hooks::NoRuntime => bail!(
            "run {shown}: it was built with hooks but without the runtime, so the C library's \
             empty hooks take its calls: link callsight_runtime.o into it, as `callsight init` \
             sets up"
        ),
        Hooks::None => bail!(
            "run {shown}: it has no hooks, so nothing would be recorded: build it with them \
             (`callsight init` sets that up), or pass --no-check if it starts a program that has"
        ),
    }
}

fn note_outcome(outcome: &Outcome, timeout: Option<Duration>) {
    let limit = timeout.unwrap_or_default().as_secs_f64();
    if outcome.timed_out {
        note(&format!("the program was ended after {limit} s (--timeout): {}", outcome.status));
    } else if !outcome.status.success() {
        note(&format!("the program ended with {}", outcome.status));
    }
}

/// Why a run left no capture, as far as that can be known.
fn likely_cause(dir: &Path, thread_filter: Option<String>) -> String {
    match (room::obstacle(dir), thread_filter) {
        (Some(obstacle), _) => obstacle,
        (None, Some(filter)) => format!(
            "most likely no thread has a name that {filter} selects: name other globs, or leave \
             it out (the first thread is named as the program, cut to 15 characters)"
        ),
        (None, None) => {
            "no function with a hook was called, or the program could not write there".into()
        }
    }
}

fn note(text: &str) {
    say::note(format_args!("callsight run: {}", in_one_line(text)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use crate::Verb;

    fn parse(line: &str) -> Result<Args, String> {
        let words = ["callsight", "run"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.verb {
            Verb::Run(args) => Ok(*args),
            _ => Err("another verb".to_owned()),
        }
    }

    #[test]
    fn options_become_the_runtimes_variables_and_the_rest_is_the_programs() {
        let line = "--max-mb 8 --max-events 5 --full wrap --threads a*,b --clock mono --timeout 0.5 \
                    -- prog --max-mb 9";
        let launch = parse(line).expect("arguments").launch("dir".into());
        let said: Vec<String> = launch
            .settings
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
            .collect();
        let wanted = ["TRACE_MAX_MB=8", "TRACE_MAX=5", "TRACE_FULL=wrap", "TRACE_THREADS=a*,b"];
        assert_eq!(said[..4], wanted);
        assert_eq!(said[4..], ["TRACE_CLOCK=mono"]);
        assert_eq!(launch.command, ["prog", "--max-mb", "9"].map(OsString::from));
        assert_eq!(launch.time_limit, Some(Duration::from_millis(500)));
        let plain = parse("-- prog").expect("arguments").launch("dir".into());
        assert!(plain.settings.is_empty() && plain.ring.is_none());
        assert_eq!(plain.directory, Path::new("dir"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_runs() {
        for line in [
            "",
            "prog",
            "--ring-mb 0 -- p",
            "--full grow -- p",
            "--clock sun -- p",
            "--max-mb x -- p",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        for seconds in ["0", "-1", "x", "inf", "nan"] {
            assert!(parse(&format!("--timeout={seconds} -- p")).is_err(), "{seconds}");
        }
    }
}
