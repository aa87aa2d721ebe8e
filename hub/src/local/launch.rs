//! Running a program with tracing on, into a folder.
//!
//! The program's input, output and exit status stay its own. Signals that ask this process to
//! end are for the program: it gets them, and this process waits for its end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use callsight_format::{FILE_MAGIC, SUMMARY_MAGIC};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::ending_signals;
use super::ring::SHARED_MEMORY;

/// How long a program may take to end after the time limit asked it to.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(10);

/// What to run and how to trace it.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where captures go; made where it is missing, unless there is a ring.
    pub directory: PathBuf,
    /// Name of a ring to record into. Captures are then for a program that cannot use it.
    pub ring: Option<String>,
    /// Record nothing.
    pub untraced: bool,
    /// Further settings of the runtime, `TRACE_MAX_MB` and its like.
    pub settings: Vec<(&'static str, OsString)>,
    /// When to end the program.
    pub time_limit: Option<Duration>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether the time limit ended it.
    pub timed_out: bool,
    /// Whether the ring it was to use was there, ever.
    pub made_ring: bool,
}

impl Outcome {
    /// The exit code a shell would show: 128 and the signal where one ended it.
    pub fn code(&self) -> u8 {
        let killed = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(killed).unwrap_or(1) as u8
    }
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The folder of captures cannot be used.
    #[error(
        "make the folder {} for captures: {error}; --path wants a folder that can be made and \
         written to, and so do CALLSIGHT_PATH and `path` in callsight.toml",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// An old capture cannot be removed.
    #[error(
        "remove the old capture {}: {error}; remove it by hand, or name another --path",
        path.display()
    )]
    Remove {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is nothing to run.
    #[error("no command is given")]
    NoCommand,
    /// The system refused.
    #[error("run {}: {error}; name a program that this machine can run", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl Launch {
    /// Runs the program to its end.
    ///
    /// # Errors
    /// Why it could not be started.
    pub fn run(&self) -> Result<Outcome, LaunchError> {
        let (program, arguments) = self.command.split_first().ok_or(LaunchError::NoCommand)?;
        let mut command = Command::new(program);
        command.args(arguments).env("TRACE_ENABLE", if self.untraced { "0" } else { "1" });
        match &self.ring {
            Some(ring) => command.env("TRACE_SHM", ring),
            // With a ring to write to, nothing would come into the folder.
            None => command.env_remove("TRACE_SHM"),
        };
        if !self.untraced {
            command.env("TRACE_DIR", self.absolute_directory()?);
        }
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let spawn_error = |error| LaunchError::Spawn { program: program.into(), error };
        let signals = Signals::catch().map_err(spawn_error)?;
        let mut child = command.spawn().map_err(spawn_error)?;
        self.wait(&mut child, &signals).map_err(spawn_error)
    }

    fn absolute_directory(&self) -> Result<PathBuf, LaunchError> {
        let path = &self.directory;
        let found = match self.ring {
            Some(_) => std::path::absolute(path),
            None => fs::create_dir_all(path).and_then(|()| path.canonicalize()),
        };
        found.map_err(|error| LaunchError::Folder { path: path.clone(), error })
    }

    fn wait(&self, child: &mut Child, signals: &Signals) -> io::Result<Outcome> {
        let started = Instant::now();
        let (mut timed_out, mut made_ring) = (false, false);
        loop {
            let ended = child.try_wait()?;
            // Asked once more behind the end: a drain needs longer to be done with a ring.
            made_ring = made_ring || self.ring_is_there();
            if let Some(status) = ended {
                return Ok(Outcome { status, timed_out, made_ring });
            }
            // A terminal sends its interrupt to the program as well; these two come to us alone.
            match signals.take() {
                Some(SIGTERM) => send(child, Signal::TERM),
                Some(SIGHUP) => send(child, Signal::HUP),
                _ => {}
            }
            if let Some(limit) = self.time_limit {
                let over = started.elapsed().checked_sub(limit);
                if over.is_some() && !timed_out {
                    timed_out = true;
                    send(child, Signal::TERM);
                }
                if over.is_some_and(|over| over >= KILL_AFTER) {
                    send(child, Signal::KILL);
                }
            }
            thread::sleep(POLL);
        }
    }
}

impl Launch {
    fn ring_is_there(&self) -> bool {
        let base = self.ring.as_ref().map(|ring| ring.trim_start_matches('/'));
        base.is_some_and(|base| Path::new(SHARED_MEMORY).join(base).exists())
    }
}

/// The captures in a folder, sorted: regular files named `trace.*.bin` that begin like one.
///
/// # Errors
/// Why the folder cannot be read; one that does not exist has none.
pub fn captures_in(directory: &Path) -> Result<Vec<PathBuf>, LaunchError> {
    list_captures(directory)
        .map_err(|error| LaunchError::Folder { path: directory.to_owned(), error })
}

fn list_captures(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut captures = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let named = name.starts_with("trace.") && name.ends_with(".bin");
        if named && entry.file_type()?.is_file() && begins_like_a_capture(&entry.path()) {
            captures.push(entry.path());
        }
    }
    captures.sort();
    Ok(captures)
}

/// Whether a file is an event file or a summary, or one that its program never wrote to. What
/// cannot be read is not: it may be somebody's own.
fn begins_like_a_capture(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(FILE_MAGIC.len() as u64).read_to_end(&mut start));
    let unwritten = start.is_empty() || start == [0; FILE_MAGIC.len()];
    read.is_ok() && (unwritten || start == FILE_MAGIC || start == SUMMARY_MAGIC)
}

/// Removes the captures in a folder, and nothing else; how many there were.
///
/// # Errors
/// Why one cannot be removed.
pub fn remove_captures(directory: &Path) -> Result<usize, LaunchError> {
    let captures = captures_in(directory)?;
    for path in &captures {
        fs::remove_file(path).map_err(|error| LaunchError::Remove { path: path.clone(), error })?;
    }
    Ok(captures.len())
}

pub(super) fn send(child: &Child, signal: Signal) {
    // The child is not waited for yet, so its pid is still its own.
    let _ = kill_process(Pid::from_child(child), signal);
}

/// The last signal that asked this process to end.
pub(super) struct Signals {
    last: Arc<AtomicUsize>,
    handlers: Vec<SigId>,
}

impl Signals {
    pub fn catch() -> io::Result<Signals> {
        let last = Arc::new(AtomicUsize::new(0));
        let catch = |signal: i32| {
            signal_hook::flag::register_usize(signal, Arc::clone(&last), signal as usize)
        };
        let handlers = ending_signals().into_iter().map(catch).collect::<Result<_, _>>()?;
        Ok(Signals { last, handlers })
    }

    pub fn take(&self) -> Option<i32> {
        match self.last.swap(0, Ordering::Relaxed) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}
