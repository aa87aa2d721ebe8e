//! Small programs out of source texts, built with the hooks a test asks for.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::place::{peer_package, runtime_object, scratch};
use crate::{Counts, Ran, Report, Shell, count_object};

/// Whose hooks a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// No call of a hook is compiled in.
    None,
    /// Calls are compiled in, and glibc's empty hooks take them.
    Empty,
    /// The counting hook of these tests.
    Count,
    /// Our runtime.
    Ours,
    /// The runtime of C callsight 0.5.0.
    Peer,
}

impl Hooks {
    /// Compiler flags for code that calls hooks.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Hooks::None => &["-g"],
            _ => &["-g", "-finstrument-functions"],
        }
    }

    /// What to add to the link of an executable.
    pub fn link(self) -> Vec<PathBuf> {
        match self {
            Hooks::None | Hooks::Empty => Vec::new(),
            Hooks::Count => vec![count_object().to_owned()],
            Hooks::Ours => vec![runtime_object().to_owned()],
            Hooks::Peer => vec![peer_object().to_owned()],
        }
    }
}

fn peer_object() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let object = scratch().join("peer.o");
        let status = Command::new("gcc")
            .args(["-O2", "-c"])
            .arg(peer_package().join("runtime/trace.c"))
            .arg("-o")
            .arg(&object)
            .status();
        assert!(status.expect("run gcc").success(), "the peer's runtime does not compile");
        object
    })
}

/// Sources and flags of a program.
#[derive(Clone, Debug)]
pub struct Program {
    compiler: String,
    main: String,
    files: Vec<(String, String)>,
    flags: Vec<String>,
}

impl Program {
    /// A C program of one file.
    pub fn c(text: &str) -> Program {
        Program::of("gcc", "main.c", text)
    }

    /// A C++ program of one file.
    pub fn cpp(text: &str) -> Program {
        Program::of("g++", "main.cpp", text)
    }

    fn of(compiler: &str, main: &str, text: &str) -> Program {
        Program {
            compiler: compiler.to_owned(),
            main: main.to_owned(),
            files: vec![(main.to_owned(), text.to_owned())],
            flags: vec!["-O1".to_owned(), "-pthread".to_owned()],
        }
    }

    /// Another compiler than gcc or g++.
    pub fn compiler(mut self, compiler: &str) -> Program {
        self.compiler = compiler.to_owned();
        self
    }

    /// A further source file, compiled into the program unless its name ends in `.h`.
    pub fn file(mut self, name: &str, text: &str) -> Program {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Flags for compiling and linking.
    pub fn flags(mut self, flags: &[&str]) -> Program {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Runs it with our runtime and with the counting hook; the output and the calls of every
    /// function have to be the same, and no exit unmatched.
    #[track_caller]
    pub fn compared(&self, arguments: &str) -> (Ran, Report) {
        let (ran, report) = self.build(Hooks::Ours).traced(arguments);
        let (same, counts) = self.build(Hooks::Count).counted(arguments);
        assert_eq!((ran.code, &ran.stdout), (same.code, &same.stdout), "hooks change nothing");
        assert_eq!(report.calls(), counts.calls, "{:?}", report.notices());
        assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
        (ran, report)
    }

    /// The same, and these functions have to have so many calls.
    #[track_caller]
    pub fn compared_with(&self, arguments: &str, calls: &[(&str, u64)]) -> Report {
        let (_, report) = self.compared(arguments);
        for (name, number) in calls {
            assert_eq!(report.calls_of(name), *number, "{name}");
        }
        report
    }

    /// Writes the sources into a fresh folder and builds `prog` there.
    pub fn build(&self, hooks: Hooks) -> Built {
        let built = self.write();
        self.rebuild(&built, hooks);
        built
    }

    /// Only writes the sources into a fresh folder; the test builds `prog` in its own way.
    pub fn write(&self) -> Built {
        let folder = TempDir::with_prefix("callsight-test-").expect("a temporary folder");
        for (name, text) in &self.files {
            std::fs::write(folder.path().join(name), text).expect("write a source");
        }
        Built { exe: folder.path().join("prog"), folder }
    }

    /// Builds `prog` once more from what is in the folder now.
    pub fn rebuild(&self, built: &Built, hooks: Hooks) {
        let sources = self.files.iter().map(|(name, _)| name).filter(|name| !name.ends_with(".h"));
        let mut command = Command::new(&self.compiler);
        command.args(hooks.flags()).args(sources).args(&self.flags).args(hooks.link());
        command.arg("-o").arg(&built.exe);
        let ran = built.shell().command(&mut command, &format!("{} {}", self.compiler, self.main));
        assert_eq!(ran.code, 0, "{ran}");
    }
}

/// A program in its own temporary folder.
#[derive(Debug)]
pub struct Built {
    /// The executable.
    pub exe: PathBuf,
    folder: TempDir,
}

impl Built {
    /// The folder it was built in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A shell in that folder.
    pub fn shell(&self) -> Shell {
        Shell::new(self.folder())
    }

    /// Runs it without recording.
    pub fn plain(&self, arguments: &str) -> Ran {
        self.shell().run(&format!("exec ./prog {arguments}"))
    }

    /// Runs it with the counting hook's counts on.
    pub fn counted(&self, arguments: &str) -> (Ran, Counts) {
        let counts = self.fresh_folder("counts");
        let ran = self.shell().env("COUNT_DIR", &counts).run(&format!("exec ./prog {arguments}"));
        (ran, Counts::read(&counts))
    }

    /// A shell in which traced programs write into `traces/`, which is emptied.
    pub fn tracing(&self) -> Shell {
        let traces = self.fresh_folder("traces");
        self.shell().env("TRACE_ENABLE", "1").env("TRACE_DIR", traces)
    }

    /// Runs it with recording to files, and reports on it.
    pub fn traced(&self, arguments: &str) -> (Ran, Report) {
        let ran = self.tracing().run(&format!("exec ./prog {arguments}"));
        (ran, self.report())
    }

    /// The report over `traces/`.
    pub fn report(&self) -> Report {
        Report::of(&self.shell(), &["traces"])
    }

    fn fresh_folder(&self, name: &str) -> PathBuf {
        let path = self.folder().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("make a folder");
        path
    }
}
