//! `callsight demo`: a small threaded C program, taken the way a user takes theirs.
//!
//! Adopts it, builds it with hooks, builds the drain, streams a run over loopback and reports.
//! Every step is the one that its command line, which is shown, would take.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use callsight_analysis::analyze;
use callsight_hub::ingest::{self, Server};
use callsight_hub::local::find_program;
use callsight_integrations::{Options, RUNTIME_TRIPLE, plan_init};
use tempfile::TempDir;

use crate::{say, serve};

/// The program, and how it is built.
const PROJECT: [(&str, &str); 5] = [
    ("CMakeLists.txt", include_str!("../../templates/demo/CMakeLists.txt")),
    ("main.c", include_str!("../../templates/demo/main.c")),
    ("numbers.c", include_str!("../../templates/demo/numbers.c")),
    ("text.c", include_str!("../../templates/demo/text.c")),
    ("work.h", include_str!("../../templates/demo/work.h")),
];
const SOURCES: [&str; 3] = ["main.c", "numbers.c", "text.c"];
/// Where CMake puts the program, seen from the project.
const PROGRAM: &str = "build-callsight/demo.instr";
/// Functions in each table of the report.
const TOP: usize = 15;
/// How long the drain may take after the program has ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Builds a small threaded program, streams it over loopback and prints its report
#[derive(clap::Args)]
pub struct Args {
    /// Work in this new folder and leave everything there
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let compiler = compiler()?;
    let folder = Folder::make(args.keep)?;
    let project = folder.path()?;
    show(&format!("cd {}", project.display()));
    adopt(&project)?;
    build(&project, &compiler)?;
    build_drain(&project, &compiler)?;
    stream(&project)?;
    show(&format!("callsight analyze traces --exe {PROGRAM} --top {TOP}"));
    report(&project)?;
    Ok(ExitCode::SUCCESS)
}

/// Where the demo happens.
enum Folder {
    Passing(TempDir),
    Kept(PathBuf),
}

impl Folder {
    fn make(keep: Option<PathBuf>) -> anyhow::Result<Folder> {
        let Some(path) = keep else {
            let passing = tempfile::Builder::new().prefix("callsight-demo-").tempdir();
            return Ok(Folder::Passing(passing.context("make a folder for the demo")?));
        };
        fs::create_dir_all(&path).map_err(|error| {
            let path = path.display();
            anyhow!("make the folder {path}: {error}; --keep wants a new folder that can be made")
        })?;
        let mut entries =
            fs::read_dir(&path).with_context(|| format!("look into {}", path.display()))?;
        let shown = path.display();
        ensure!(entries.next().is_none(), "{shown} is not empty: name a new folder with --keep");
        Ok(Folder::Kept(path))
    }

    fn path(&self) -> anyhow::Result<PathBuf> {
        let path = match self {
            Folder::Passing(passing) => passing.path(),
            Folder::Kept(path) => path,
        };
        path.canonicalize().with_context(|| format!("find {}", path.display()))
    }
}

/// The C compiler as words: `CC` where that is set, else `cc`.
fn compiler() -> anyhow::Result<Vec<OsString>> {
    let given = std::env::var("CC").unwrap_or_default();
    let mut words: Vec<OsString> = given.split_whitespace().map(OsString::from).collect();
    if words.is_empty() {
        words.push("cc".into());
    }
    ensure!(
        find_program(&words[0]).is_some(),
        "the demo needs a C compiler, and there is no `{}`: install gcc or clang, \
         or name a compiler in CC",
        words[0].to_string_lossy()
    );
    Ok(words)
}

fn adopt(project: &Path) -> anyhow::Result<()> {
    for (name, text) in PROJECT {
        let path = project.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    show("callsight init --stream .");
    plan_init(project, &Options { stream: true })?.apply()?;
    Ok(())
}

/// With CMake, or by the compiler alone where that or what it drives is missing.
fn build(project: &Path, compiler: &[OsString]) -> anyhow::Result<()> {
    let has = |name: &str| find_program(name.as_ref()).is_some();
    let by_make = has("make") || has("gmake");
    if has("cmake") && (by_make || has("ninja")) {
        let mut configure = words("cmake -S . -B build-callsight -DCALLSIGHT=ON");
        if !by_make {
            configure.extend(words("-G Ninja"));
        }
        step(project, "configure the demo", &configure)?;
        return step(project, "build the demo", &words("cmake --build build-callsight"));
    }
    step(project, "make a folder for the demo", &words("mkdir build-callsight"))?;
    let object = format!("callsight/lib/{RUNTIME_TRIPLE}/callsight_runtime.o");
    let flags = format!("-g -finstrument-functions -pthread -o {PROGRAM}");
    let sources = SOURCES.join(" ");
    let line = [compiler, &words(&format!("{flags} {sources} {object}"))].concat();
    step(project, "build the demo", &line)
}

fn build_drain(project: &Path, compiler: &[OsString]) -> anyhow::Result<()> {
    let drain = "-O2 -o callsight/trace_stream callsight/trace_stream.c callsight/zstd.c";
    step(project, "build the drain", &[compiler, &words(drain)].concat())
}

/// Runs server, drain and program together.
fn stream(project: &Path) -> anyhow::Result<()> {
    let server = Server::bind(ingest::Options {
        host: "127.0.0.1".to_owned(),
        port: 0,
        out: project.join("traces"),
        limits: serve::limits(0, 0),
        streams: Some(1),
        say: Box::new(|line| say::note(format_args!("callsight serve: {line}"))),
    })?;
    let port = server.local_addr().port();
    let ring = Ring(format!("callsight-demo-{}", std::process::id()));
    show(&format!("callsight serve --host 127.0.0.1 --port {port} &"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| server.run(&stop));
        let done = run_drain_and_program(project, &ring, port);
        stop.store(true, Ordering::Relaxed);
        done
    })
}

fn run_drain_and_program(project: &Path, ring: &Ring, port: u16) -> anyhow::Result<()> {
    let name = &ring.0;
    let line = words(&format!("./callsight/trace_stream /{name} 127.0.0.1 {port}"));
    show(&format!("{} &", shown(&line)));
    let started = command(project, &line).spawn().context("start the drain")?;
    let mut drain = Running(started);
    show(&format!("TRACE_ENABLE=1 TRACE_SHM=/{name} ./{PROGRAM}"));
    let mut program = command(project, &words(&format!("./{PROGRAM}")));
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("TRACE_") {
            program.env_remove(variable);
        }
    }
    program.env("TRACE_ENABLE", "1").env("TRACE_SHM", format!("/{name}"));
    say::note(finish("run the demo", &mut program)?.trim_end());
    drain.wait(DRAIN_LIMIT)
}

/// A ring in shared memory. The drain removes it; this is for the case that it does not.
struct Ring(String);

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = fs::remove_file(Path::new("/dev/shm").join(&self.0));
    }
}

/// A drain that does not outlive the demo.
struct Running(Child);

impl Running {
    fn wait(&mut self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().context("wait for the drain")? {
                ensure!(status.success(), "the drain failed ({status}); what it said is above");
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("the drain did not end within {} s after the program", limit.as_secs())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn step(project: &Path, what: &str, line: &[OsString]) -> anyhow::Result<()> {
    show(&shown(line));
    finish(what, &mut command(project, line))?;
    Ok(())
}

/// Runs a command to its end and gives what it printed; where it fails, that is in the error.
fn finish(what: &str, command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("{what}: run {}", command.get_program().to_string_lossy()))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    bail!("{what}: it failed ({}):\n{printed}{}", output.status, errors.trim_end())
}

fn command(project: &Path, line: &[OsString]) -> Command {
    // What is in the project is found from there, whatever this process's folder is.
    let name = Path::new(&line[0]);
    let program = if name.starts_with("./") { project.join(name) } else { name.to_owned() };
    let mut command = Command::new(program);
    command.args(&line[1..]).current_dir(project).stdin(Stdio::null());
    command
}

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn shown(line: &[OsString]) -> String {
    let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// What one would type.
fn show(line: &str) {
    say::note(format_args!("$ {line}"));
}

fn report(project: &Path) -> anyhow::Result<()> {
    let options =
        callsight_analysis::Options { exes: vec![project.join(PROGRAM)], ..Default::default() };
    let report = analyze(&[project.join("traces")], &options)?;
    say::result("the report", |mut out| report.write_text(&mut out, TOP))?;
    ensure!(
        report.losses.is_empty() && report.totals.unmatched_exits == 0,
        "the demo's trace is not whole: what the first lines of its report say should not be"
    );
    Ok(())
}
