//! The ends of a stream: a ring's name, a server in a process of its own, the drain as vendored.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::place::{callsight, peer, root};
use crate::{Built, Ran, Report, Shell};

/// How long anything here may take before the test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a ring no one else uses; what is left of it goes with the value.
#[derive(Debug)]
pub struct Ring(String);

impl Ring {
    /// A fresh name.
    #[expect(clippy::new_without_default, reason = "each one is another name")]
    pub fn new() -> Ring {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Ring(format!("/callsight-test-{}-{number}", std::process::id()))
    }

    /// The name, as `TRACE_SHM` and the drain take it.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether the shared memory object is there.
    pub fn exists(&self) -> bool {
        self.file().exists()
    }

    fn file(&self) -> PathBuf {
        Path::new("/dev/shm").join(&self.0[1..])
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.file());
    }
}

/// A running `callsight serve`, ours or the peer's.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    /// What it prints, line by line, and what of that has been read.
    lines: Receiver<String>,
    printed: String,
}

impl Server {
    /// Ours, writing to `traces` of the shell's folder, with more arguments.
    pub fn ours(shell: &Shell, arguments: &[&str]) -> Server {
        Server::start(shell, callsight().to_owned(), 0, arguments)
    }

    /// The peer's, writing to `traces` of the shell's folder.
    pub fn peers(shell: &Shell) -> Server {
        Server::start(shell, peer("callsight"), free_port(), &[])
    }

    fn start(shell: &Shell, program: PathBuf, port: u16, arguments: &[&str]) -> Server {
        // Both may print on either stream; a pipe that takes both keeps their order.
        let script = r#"exec "$@" 2>&1"#;
        let mut command = Command::new("bash");
        command.args(["-c", script, "serve"]).arg(program);
        command.args(["serve", "--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(arguments).env("PYTHONUNBUFFERED", "1").stdout(Stdio::piped());
        let mut child = shell.prepare(&mut command).spawn().expect("start a server");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("the server's first line");
        let port = listening_port(&line).unwrap_or_else(|| panic!("no port in {line:?}"));
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            while output.read_line(&mut line).expect("the server's output") > 0 {
                let _ = said.send(std::mem::take(&mut line));
            }
        });
        Server { child, port, lines, printed: line }
    }

    /// Waits until it prints a line with `what` in it. The peer's, once stopped, does not read on what
    /// the kernel has: it must have told the end of a stream before.
    #[track_caller]
    pub fn wait_for(&mut self, what: &str) {
        while !self.printed.lines().last().is_some_and(|line| line.contains(what)) {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.printed += &line,
                Err(_) => panic!("the server never printed {what:?}: {}", self.printed),
            }
        }
    }

    /// Ends it as Ctrl-C does; what it printed.
    pub fn stop(mut self) -> String {
        signal(&self.child, libc::SIGINT);
        wait(&mut self.child, "the server");
        self.lines.iter().for_each(|line| self.printed += &line);
        std::mem::take(&mut self.printed)
    }
}

impl Server {
    /// Stops it without an end: it takes what comes and reads nothing.
    pub fn freeze(&self) {
        signal(&self.child, libc::SIGSTOP);
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().expect("kill the server");
        self.child.wait().expect("the server's end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The port in "... listening on HOST:PORT, ...".
fn listening_port(line: &str) -> Option<u16> {
    let after = line.split_once("listening on ")?.1;
    let address = after.split([',', ' ', '\n']).next()?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// Holds port 9001 and the ring `/callsight0` for one test, over all test processes.
#[derive(Debug)]
pub struct StreamPort(#[expect(dead_code, reason = "held open")] File);

impl StreamPort {
    /// Waits until no other test has them.
    pub fn lock() -> StreamPort {
        let folder = root().join("target/tests");
        std::fs::create_dir_all(&folder).expect("make target/tests");
        StreamPort(locked(&folder.join("port-9001.lock")))
    }
}

/// The file, locked until it is closed.
fn locked(path: &Path) -> File {
    let lock = File::create(path).expect("a lock");
    // SAFETY: the descriptor is open; flock touches no memory.
    let held = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(held, 0, "lock {}", path.display());
    lock
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its number").port()
}

/// A running drain.
#[derive(Debug)]
pub struct Drain {
    child: Child,
    what: String,
}

impl Drain {
    /// Ours, built as the quick start says.
    pub fn ours(shell: &Shell, ring: &Ring, port: u16) -> Drain {
        Drain::start(shell, our_drain().to_owned(), ring, port)
    }

    /// The peer's.
    pub fn peers(shell: &Shell, ring: &Ring, port: u16) -> Drain {
        Drain::start(shell, peer("trace_stream"), ring, port)
    }

    fn start(shell: &Shell, program: PathBuf, ring: &Ring, port: u16) -> Drain {
        let mut command = Command::new(&program);
        command.args([ring.name(), "127.0.0.1", &port.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = shell.prepare(&mut command).spawn().expect("start a drain");
        Drain { child, what: format!("{} {}", program.display(), ring.name()) }
    }

    /// Waits for it to end by itself; what it printed.
    #[track_caller]
    pub fn finish(mut self) -> Ran {
        wait(&mut self.child, &self.what);
        let output = self.child.wait_with_output().expect("the drain's output");
        Ran {
            what: self.what,
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Tells it to end; what it printed.
    #[track_caller]
    pub fn stop(self) -> Ran {
        signal(&self.child, libc::SIGTERM);
        self.finish()
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().expect("kill the drain");
        self.child.wait().expect("the drain's end");
    }
}

/// The drain of the crate that carries it, compiled once a content by the quick start's line.
fn our_drain() -> &'static Path {
    static DRAIN: OnceLock<PathBuf> = OnceLock::new();
    DRAIN.get_or_init(|| {
        let files = callsight_drain::files();
        let mut hasher = DefaultHasher::new();
        files.iter().for_each(|file| (file.name, file.contents).hash(&mut hasher));
        let folder = root().join(format!("target/tests/drain-{:016x}", hasher.finish()));
        std::fs::create_dir_all(&folder).expect("make a folder under target/tests");
        let _lock = locked(&folder.join("lock"));
        if !folder.join("trace_stream").exists() {
            for file in files {
                std::fs::write(folder.join(file.name), file.contents).expect("write the drain");
            }
            let line = "cc -O2 -o trace_stream.new trace_stream.c zstd.c";
            Shell::new(&folder).ok(&format!("{line} && mv trace_stream.new trace_stream"));
        }
        folder.join("trace_stream")
    })
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: the child is ours and not waited for yet, so its pid is no one else's.
    unsafe { libc::kill(child.id().cast_signed(), signal) };
}

/// Waits for `child` to end; one that does not within [`PATIENCE`] is a failure.
#[track_caller]
fn wait(child: &mut Child, what: &str) {
    let begin = Instant::now();
    while child.try_wait().expect("ask for the child").is_none() {
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{what} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Streams one run of `program` over loopback: what the program did, the drain's words, the report.
pub fn streamed(program: &Built, arguments: &str, ring_bytes: u64) -> (Ran, Ran, Report) {
    streamed_in(&program.tracing(), program, arguments, ring_bytes)
}

/// The same in a shell with more settings.
pub fn streamed_in(
    shell: &Shell,
    program: &Built,
    arguments: &str,
    ring_bytes: u64,
) -> (Ran, Ran, Report) {
    let ring = Ring::new();
    let server = Server::ours(shell, &["--out", "traces"]);
    let drain = Drain::ours(shell, &ring, server.port);
    let ran = shell
        .clone()
        .env("TRACE_SHM", ring.name())
        .env("TRACE_SHM_SIZE", ring_bytes.to_string())
        .run(&format!("exec ./prog {arguments}"));
    let drained = drain.finish();
    server.stop();
    assert_eq!(drained.code, 0, "{drained}");
    assert!(!ring.exists(), "the drain leaves no ring behind");
    (ran, drained, program.report())
}
