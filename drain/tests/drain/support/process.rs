//! The drain as a child, and children that stand for traced processes.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Long enough for the slowest machine; only a drain that hangs gets there.
const HANGS: Duration = Duration::from_secs(60);

/// A process by what identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub start: u64,
}

impl Process {
    /// The test itself.
    pub fn this() -> Process {
        Process::of(std::process::id())
    }

    /// The process that has this pid now.
    pub fn of(pid: u32) -> Process {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("read stat");
        let behind_name = stat.rsplit(')').next().expect("a name in parentheses");
        let start = behind_name.split_whitespace().nth(19).expect("field 22");
        Process { pid, start: start.parse().expect("a number") }
    }
}

/// The pid namespace of the test: inode of `/proc/self/ns/pid`.
pub fn own_pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").expect("a namespace").ino()
}

/// A child that does nothing until it is killed.
pub struct TestProcess {
    child: Child,
    pub process: Process,
}

impl TestProcess {
    pub fn start() -> TestProcess {
        let child = Command::new("sleep").arg("600").spawn().expect("start a child");
        let process = Process::of(child.id());
        TestProcess { child, process }
    }

    /// Ends it as a crash would, and waits for it only if `reap`.
    pub fn kill(&mut self, reap: bool) {
        self.child.kill().expect("kill the child");
        if reap {
            self.child.wait().expect("reap the child");
        }
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running drain.
pub struct Drain {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    listening: JoinHandle<()>,
}

impl Drain {
    pub fn start(binary: &Path, ring: &str, port: u16) -> Drain {
        Drain::with_arguments(binary, &[ring, "127.0.0.1", &port.to_string()])
    }

    pub fn with_arguments(binary: &Path, arguments: &[&str]) -> Drain {
        let mut command = Command::new(binary);
        command.args(arguments);
        Drain::of(command)
    }

    pub fn of(mut command: Command) -> Drain {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // A test that runs under nohup ignores this one.
        // SAFETY: between fork and exec, one system call that takes no lock.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            })
        };
        let mut child = command.spawn().expect("start the drain");
        let mut errors = child.stderr.take().expect("piped");
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let listening = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let count @ 1.. = errors.read(&mut bytes).expect("read what it says") {
                heard.lock().expect("no panic").extend_from_slice(&bytes[..count]);
            }
        });
        Drain { child, said, listening }
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        String::from_utf8(self.said.lock().expect("no panic").clone()).expect("UTF-8")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, number: i32) {
        // SAFETY: kill touches no memory of ours, and the child is not reaped before `end`.
        let sent = unsafe { libc::kill(self.pid() as i32, number) };
        assert_eq!(sent, 0, "signal the drain");
    }

    /// Gives it some time to end, then tells it to.
    pub fn stop_after(&mut self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            if !self.is_running() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.signal(libc::SIGTERM);
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("ask for the drain").is_none()
    }

    /// Waits for its end: exit code (`None` after a signal) and what it said.
    pub fn end(mut self) -> (Option<i32>, String) {
        let begin = Instant::now();
        while self.is_running() {
            if begin.elapsed() > HANGS {
                let _ = self.child.kill();
                panic!("the drain does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.wait().expect("reap the drain");
        while !self.listening.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        (status.code(), self.said())
    }

    /// Waits for an end in order, all accounted for.
    pub fn end_well(self) -> String {
        let (code, said) = self.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("unaccounted=0"), "{said}");
        said
    }
}

/// Waits until `holds`, as long as a slow machine may need.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < HANGS, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
