//! A tiny project in a folder of its own, and the few things tests do to it.

#![allow(dead_code, reason = "each test file uses the part it needs")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use callsight_integrations::{Options, Plan, plan_init, plan_undo};
use object::{Object, ObjectSymbol};

pub const ENTER: &str = "__cyg_profile_func_enter";

/// A project that goes when the test ends.
pub struct Project {
    keep: tempfile::TempDir,
    pub root: PathBuf,
}

impl Project {
    /// With `files`: names and contents.
    pub fn new(files: &[(&str, &str)]) -> Project {
        Project::in_folder("project", files)
    }

    /// In a folder of the name `folder`.
    pub fn in_folder(folder: &str, files: &[(&str, &str)]) -> Project {
        let keep = tempfile::tempdir().expect("temporary directory");
        let root = fs::canonicalize(keep.path()).expect("a real path").join(folder);
        fs::create_dir(&root).expect("create the project");
        let project = Project { keep, root };
        for (name, text) in files {
            project.write(name, text);
        }
        project
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A path beside the project.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.with_file_name(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("create a folder");
        fs::write(path, contents).expect("write a file");
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("read a file")
    }

    pub fn plan(&self) -> Plan {
        plan_init(&self.root, &Options::default()).expect("a plan")
    }

    pub fn init(&self) -> &Project {
        self.plan().apply().expect("apply the plan");
        self
    }

    pub fn init_with_drain(&self) -> &Project {
        let plan = plan_init(&self.root, &Options { stream: true }).expect("a plan");
        plan.apply().expect("apply the plan");
        self
    }

    /// Why the project cannot be adopted.
    pub fn refusal(&self) -> String {
        plan_init(&self.root, &Options::default()).expect_err("it must be refused").to_string()
    }

    /// Takes callsight out; gives what was said.
    pub fn undo(&self) -> Vec<String> {
        let plan = plan_undo(&self.root).expect("a plan");
        plan.apply().expect("apply the plan");
        plan.notes().to_vec()
    }

    /// Every file with its contents, build folders apart.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("list a folder") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => files.push((path.clone(), fs::read(&path).expect("read a file"))),
                }
            }
        }
        files.sort();
        files
    }

    /// Configures into `build`, which is beside the project; gives all that CMake said.
    pub fn configure(&self, build: &str, options: &[&str]) -> Result<String, String> {
        let mut command = cmake();
        command.arg("-S").arg(&self.root).arg("-B").arg(self.beside(build)).args(options);
        run(command)
    }

    /// Configures and builds; gives the build folder.
    pub fn build(&self, build: &str, options: &[&str]) -> PathBuf {
        self.configure(build, options).unwrap_or_else(|said| panic!("configure: {said}"));
        self.build_more(build, &[]);
        self.beside(build)
    }

    pub fn build_more(&self, build: &str, options: &[&str]) {
        let mut command = cmake();
        command.arg("--build").arg(self.beside(build)).args(options);
        run(command).unwrap_or_else(|said| panic!("build: {said}"));
    }

    /// Builds with hooks.
    pub fn build_with_hooks(&self) -> PathBuf {
        self.build("hooks", &["-DCALLSIGHT=ON"])
    }
}

/// The CMake under test: `CALLSIGHT_TEST_CMAKE`, else the one on `PATH`.
pub fn cmake() -> Command {
    let mut command =
        Command::new(std::env::var_os("CALLSIGHT_TEST_CMAKE").unwrap_or_else(|| "cmake".into()));
    for variable in ["CFLAGS", "CXXFLAGS", "LDFLAGS", "CC", "CXX", "CMAKE_GENERATOR"] {
        command.env_remove(variable);
    }
    command
}

/// Whether the CMake under test is at least `major.minor`; says so where it is not.
pub fn cmake_is_at_least(major: u32, minor: u32) -> bool {
    let mut command = cmake();
    command.arg("--version");
    let said = run(command).expect("cmake --version");
    let version = said.split_whitespace().nth(2).expect("a version");
    let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    let enough = (numbers[0], numbers[1]) >= (major, minor);
    if !enough {
        eprintln!("skipped: CMake {version} is older than {major}.{minor}, which this is about");
    }
    enough
}

/// Runs `command`; everything it printed, as an error where it failed.
pub fn run(mut command: Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("run {command:?}: {error}"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// What the program at `path` prints.
pub fn output_of(path: impl AsRef<OsStr>) -> String {
    run(Command::new(path)).expect("the program succeeds").trim().to_owned()
}

/// How an ELF file has to do with the hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// Not at all.
    None,
    /// It calls them.
    Calls,
    /// It has them in itself.
    Has,
}

pub fn hooks_of(path: &Path) -> Hooks {
    hooks_in(&fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display())))
}

fn hooks_in(bytes: &[u8]) -> Hooks {
    let file = object::File::parse(bytes).expect("an ELF file");
    let mut found = Hooks::None;
    // libc's version of the hook shows as `name@GLIBC_2.2.5` in a linked file.
    let named = |name: &str| name.split('@').next() == Some(ENTER);
    for symbol in file.symbols().filter(|symbol| symbol.name().is_ok_and(named)) {
        match symbol.is_definition() {
            true => return Hooks::Has,
            false => found = Hooks::Calls,
        }
    }
    found
}

/// Which members of the archive at `path` call the hooks, in order.
pub fn members_with_hooks(path: &Path) -> Vec<String> {
    let bytes = fs::read(path).expect("read the archive");
    let archive = object::read::archive::ArchiveFile::parse(bytes.as_slice()).expect("an archive");
    let mut names = Vec::new();
    for member in archive.members() {
        let member = member.expect("a member");
        if hooks_in(member.data(bytes.as_slice()).expect("its data")) == Hooks::Calls {
            names.push(String::from_utf8_lossy(member.name()).into_owned());
        }
    }
    names
}
