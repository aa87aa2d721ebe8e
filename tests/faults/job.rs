//! Processes under fault: started, signalled, killed, waited for with an end.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use callsight_tests::{Ran, Shell};

/// Long enough for the slowest machine; only what hangs gets there.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A child with its output in files, which no full pipe can hold up.
#[derive(Debug)]
pub struct Job {
    child: Child,
    what: String,
    output: [PathBuf; 2],
}

impl Job {
    /// Starts `command` in the folder and environment of `shell`.
    pub fn start(shell: &Shell, command: &mut Command) -> Job {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let output = ["out", "err"].map(|name| shell.folder().join(format!("job.{number}.{name}")));
        let [stdout, stderr] = output.each_ref().map(|path| File::create(path).expect("a file"));
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let what = format!("{command:?}");
        let child = shell.prepare(command).spawn();
        let child = child.unwrap_or_else(|error| panic!("{what}: {error}"));
        Job { child, what, output }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, number: i32) {
        // SAFETY: the child is ours and not reaped yet, so its pid is no one else's.
        unsafe { libc::kill(self.child.id().cast_signed(), number) };
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("ask for a child").is_none()
    }

    /// Whether it ends by itself within `time`.
    pub fn ends_within(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        while self.is_running() {
            if begin.elapsed() > time {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(mut self) -> Ran {
        assert!(self.ends_within(PATIENCE), "does not end: {}", self.so_far());
        self.result()
    }

    /// Asks it to end, and waits for that.
    #[track_caller]
    pub fn stop(self) -> Ran {
        self.signal(libc::SIGTERM);
        self.end()
    }

    /// Kills it, and waits for its end.
    pub fn kill(mut self) -> Ran {
        self.child.kill().expect("kill a child");
        self.result()
    }

    /// What it has printed up to now.
    pub fn so_far(&self) -> String {
        let [stdout, stderr] = self.printed();
        format!("$ {}\n{stdout}{stderr}", self.what)
    }

    fn printed(&self) -> [String; 2] {
        let text = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into();
        self.output.each_ref().map(text)
    }

    fn result(&mut self) -> Ran {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.wait().expect("reap a child");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let [stdout, stderr] = self.printed();
        Ran { what: self.what.clone(), code, stdout, stderr }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.output.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Waits until `holds`.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A number of `/proc/PID/status` in KiB, such as `VmHWM`; 0 where there is none.
pub fn status_kib(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// How many descriptors a process has open.
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
