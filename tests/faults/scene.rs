//! One stream under fault: a folder, a ring, a server, drains and traced programs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use callsight_tests::{Built, Hooks, Program, Ran, Report, Ring, Shell, callsight, root};
use serde_json::Value;
use tempfile::TempDir;

use crate::job::{Job, wait_until};
use crate::truth::Account;

const TALLY: &str = include_str!("../programs/tally.c");

/// Where a stream is made, and what it leaves.
pub struct Scene {
    folder: TempDir,
    /// The ring of its programs.
    pub ring: Ring,
    /// `TRACE_SHM_SIZE`.
    ring_bytes: u64,
}

/// A `callsight serve`.
pub struct Server {
    /// The process.
    pub job: Job,
    /// Where it listens on 127.0.0.1.
    pub port: u16,
}

impl Scene {
    /// A fresh folder and ring name, with a ring of so many bytes.
    pub fn new(ring_bytes: u64) -> Scene {
        let folder = TempDir::with_prefix("callsight-fault-").expect("a temporary folder");
        std::fs::create_dir(folder.path().join("traces")).expect("make a folder");
        Scene { folder, ring: Ring::new(), ring_bytes }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder().join(name)
    }

    /// A shell in the folder.
    pub fn shell(&self) -> Shell {
        Shell::new(self.folder())
    }

    /// A shell whose programs are traced into the ring.
    pub fn tracing(&self) -> Shell {
        self.shell()
            .env("TRACE_ENABLE", "1")
            .env("TRACE_DIR", self.path("traces"))
            .env("TRACE_SHM", self.ring.name())
            .env("TRACE_SHM_SIZE", self.ring_bytes.to_string())
    }

    /// A server on a free port that writes to `traces`.
    pub fn server(&self) -> Server {
        self.server_at(0, &["--out", "traces"])
    }

    /// A server on that port, with these arguments.
    pub fn server_at(&self, port: u16, arguments: &[&str]) -> Server {
        Server::start(&self.shell(), port, arguments)
    }

    /// A drain of the ring with these arguments behind its name.
    pub fn drain_with(&self, arguments: &[&str]) -> Job {
        Job::start(&self.shell(), Command::new(drain()).arg(self.ring.name()).args(arguments))
    }

    /// A drain that sends to a port of 127.0.0.1.
    pub fn drain(&self, port: u16) -> Job {
        self.drain_with(&["127.0.0.1", &port.to_string()])
    }

    /// A traced program.
    pub fn program(&self, exe: &Path, arguments: &[impl AsRef<OsStr>]) -> Job {
        Job::start(&self.tracing(), Command::new(exe).args(arguments))
    }

    /// How much is in `traces`.
    pub fn stored_bytes(&self) -> u64 {
        let sizes = captures_in(&self.path("traces")).into_iter();
        sizes.filter_map(|path| Some(path.metadata().ok()?.len())).sum()
    }

    /// What the captures in `traces` add up to; nothing where there are none.
    #[track_caller]
    pub fn account(&self) -> Account {
        self.account_of("traces")
    }

    /// What the captures in that folder add up to.
    #[track_caller]
    pub fn account_of(&self, folder: &str) -> Account {
        match captures_in(&self.path(folder)).is_empty() {
            true => Account::default(),
            false => Account::of(&self.report_of(folder)),
        }
    }

    /// Events of each process, over its threads.
    #[track_caller]
    pub fn events_by_process(&self, folder: &str) -> BTreeMap<u32, u64> {
        let mut events = BTreeMap::new();
        for thread in self.threads_of(folder) {
            let pid = thread["pid"].as_u64().expect("a pid") as u32;
            *events.entry(pid).or_default() += thread["events"].as_u64().expect("events");
        }
        events
    }

    /// Process id and thread id of each writer, as often as the report has it.
    #[track_caller]
    pub fn writers(&self, folder: &str) -> Vec<(u64, u64)> {
        let number = |thread: &Value, key: &str| thread[key].as_u64().expect("a number");
        let threads = self.threads_of(folder);
        threads.iter().map(|thread| (number(thread, "pid"), number(thread, "tid"))).collect()
    }

    #[track_caller]
    fn threads_of(&self, folder: &str) -> Vec<Value> {
        let ran = self.shell().callsight(&["analyze", folder, "--format", "json"]);
        let json: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran}"));
        json["per_thread"].as_array().expect("threads").clone()
    }

    /// The report over the captures in a folder.
    #[track_caller]
    pub fn report_of(&self, folder: &str) -> Report {
        Report::of(&self.shell(), &[folder])
    }
}

impl Drop for Scene {
    /// What a failure leaves is kept for whoever looks for its cause.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            eprintln!("kept: {}", self.folder().display());
        }
    }
}

impl Server {
    /// Starts one, and waits until it listens.
    pub fn start(shell: &Shell, port: u16, arguments: &[&str]) -> Server {
        let mut command = Command::new(callsight());
        command.args(["serve", "--host", "127.0.0.1", "--port", &port.to_string()]);
        let mut job = Job::start(shell, command.args(arguments));
        let mut found = None;
        wait_until("the server listens", || {
            found = listening_port(&job.so_far());
            assert!(found.is_some() || job.is_running(), "{}", job.so_far());
            found.is_some()
        });
        Server { job, port: found.expect("a port") }
    }

    /// Ends it in order; what it printed.
    #[track_caller]
    pub fn stop(self) -> Ran {
        let ran = self.job.stop();
        assert_eq!(ran.code, 0, "{ran}");
        ran
    }
}

/// The port in "... listening on HOST:PORT, ...".
pub fn listening_port(text: &str) -> Option<u16> {
    let after = text.split_once("listening on ")?.1;
    let address = after.split([',', ' ', '\n']).next()?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// The capture files of a folder.
pub fn captures_in(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "bin"))
        .collect();
    paths.sort();
    paths
}

/// The drain, compiled once by the line of the quick start.
pub fn drain() -> &'static Path {
    static DRAIN: OnceLock<PathBuf> = OnceLock::new();
    DRAIN.get_or_init(|| {
        let folder = kept("drain");
        for file in callsight_drain::files() {
            std::fs::write(folder.join(file.name), file.contents).expect("write the drain");
        }
        Shell::new(&folder).ok("cc -O2 -o trace_stream trace_stream.c zstd.c");
        folder.join("trace_stream")
    })
}

/// A folder of this process that lasts as long as it is wanted.
pub fn kept(name: &str) -> PathBuf {
    let folder = root().join(format!("target/tests/{}/{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("make a folder under target/tests");
    folder
}

/// The program `tally` with our runtime.
pub fn tally() -> &'static Path {
    static TALLY_BUILT: OnceLock<Built> = OnceLock::new();
    &TALLY_BUILT.get_or_init(|| Program::c(TALLY).build(Hooks::Ours)).exe
}

/// Asserts that the drain says that it accounts for everything.
#[track_caller]
pub fn ended_well(drained: &Ran) {
    assert_eq!(drained.code, 0, "{drained}");
    assert!(drained.all().contains("unaccounted=0"), "{drained}");
}
