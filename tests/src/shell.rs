//! Commands as a person types them: a folder, an environment, a script → what came of it.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::place::callsight;

/// Notes that a test, or part of it, was not done here and why; `tests/run` counts and prints it.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIP {test}: {reason}\n");
    // Past the capture of the test harness, which hides what a passing test prints.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("CALLSIGHT_TEST_SKIPS") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("note the skip");
    }
}

/// A folder and environment in which scripts run, with `callsight` on `PATH`.
#[derive(Clone, Debug)]
pub struct Shell {
    folder: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// What was run, for messages.
    pub what: String,
    /// Exit code, or 128 and the signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Shell {
    /// A shell in `folder` without any `TRACE_*` variable of the caller.
    pub fn new(folder: impl Into<PathBuf>) -> Shell {
        Shell { folder: folder.into(), environment: Vec::new() }
    }

    /// Where it runs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets an environment variable for what runs after.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Shell {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs a bash script that stops at the first command to fail.
    pub fn run(&self, script: &str) -> Ran {
        // What hangs is ended, so that the test says what it was.
        let mut timeout = Command::new("timeout");
        timeout.args(["--kill-after=5", "300", "bash", "-e", "-o", "pipefail", "-c", script]);
        self.command(&mut timeout, script)
    }

    /// Runs a script that has to succeed.
    pub fn ok(&self, script: &str) -> Ran {
        let ran = self.run(script);
        assert_eq!(ran.code, 0, "{ran}");
        ran
    }

    /// Runs `callsight` with these arguments.
    pub fn callsight<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ran {
        let words: Vec<_> = arguments.iter().map(|a| a.as_ref().to_string_lossy()).collect();
        let what = format!("callsight {}", words.join(" "));
        self.command(Command::new(callsight()).args(arguments), &what)
    }

    /// Runs `command` in this folder and environment.
    pub fn command(&self, command: &mut Command, what: &str) -> Ran {
        let output = self
            .prepare(command)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let code = output.status.code();
        Ran {
            what: what.to_owned(),
            code: code.unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Gives `command` this folder and environment; the caller starts it.
    pub fn prepare<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TRACE_") {
                command.env_remove(name);
            }
        }
        let tools = callsight().parent().expect("a folder");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::env::split_paths(&path);
        let path = std::env::join_paths(std::iter::once(tools.to_owned()).chain(paths));
        // What runs in the background of a script, or under nohup, ignores some of these.
        // SAFETY: between fork and exec, system calls that take no lock.
        unsafe {
            command.pre_exec(|| {
                for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGTERM] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            })
        };
        command
            .current_dir(&self.folder)
            .env("PATH", path.expect("a PATH"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
    }
}

impl Ran {
    /// Standard output and error together, for searches.
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Asserts the way bad input ends: exit code 2, nothing on standard output, and on standard
    /// error one sentence that speaks of each of `words`.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) {
        assert_eq!(self.code, 2, "{self}");
        assert_eq!(self.stdout, "", "{self}");
        let lines: Vec<&str> = self.stderr.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 1, "one sentence: {self}");
        for word in words {
            assert!(lines[0].contains(word), "the sentence does not speak of {word:?}: {self}");
        }
        assert!(!lines[0].contains("panicked"), "{self}");
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ran { what, code, stdout, stderr } = self;
        write!(f, "$ {what}\nexit {code}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}
