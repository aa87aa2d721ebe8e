//! Input that cannot be used: one clear sentence that says what would help, exit code 2, and
//! nothing half-written.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use callsight_format::{ByteOrder, FileHeader, Origin};
use callsight_tests::{Hooks, Program, Shell, skip};
use tempfile::TempDir;

const HELLO: &str = "int main(void) { return 0; }\n";
const LISTS: &str =
    "cmake_minimum_required(VERSION 3.16)\nproject(hello C)\nadd_executable(hello main.c)\n";

fn folder() -> (TempDir, Shell) {
    let folder = TempDir::with_prefix("callsight-bad-").expect("a temporary folder");
    let shell = Shell::new(folder.path());
    (folder, shell)
}

/// Every file below `folder` with its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        match entry.file_type().expect("a type").is_dir() {
            true => files.extend(contents(&path)),
            false => drop(files.insert(path.clone(), std::fs::read(&path).unwrap_or_default())),
        }
    }
    files
}

/// `callsight init` refuses a project of these files, speaks of `words`, and changes nothing.
#[track_caller]
fn init_refuses(files: &[(&str, &[u8])], words: &[&str]) {
    let (folder, shell) = folder();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).expect("write a file");
    }
    let before = contents(folder.path());
    shell.callsight(&["init", "."]).refused(words);
    shell.callsight(&["init", "--stream", "."]).refused(words);
    assert_eq!(contents(folder.path()), before, "something was written");
}

#[test]
fn what_is_said_of_a_word_with_a_newline_stays_in_its_line() {
    let (folder, shell) = folder();
    let word = "no\nsuch\u{1b}[2J";
    let commands: [&[&str]; 12] = [
        &["init", word],
        &["init", "--prefix", "/proc/no\nsuch\u{1b}[2J"],
        &["init", ".", word],
        &["analyze", word],
        &["analyze", "--top", word],
        &["run", "--path", "t", "--top", word, "--", "true"],
        &["run", "--", word],
        &["rings", "--pause", word],
        &["serve", "--port", word],
        &["demo", word],
        &["snapshot", word],
        &[word],
    ];
    for command in commands {
        let ran = shell.callsight(command);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran}");
        assert!(ran.stderr.contains("no\\x0asuch\\x1b[2J"), "{ran}");
        assert!(!ran.stderr.contains("\nsuch") && !ran.stderr.contains('\u{1b}'), "{ran}");
    }
    shell.callsight(&["init", word]).refused(&["callsight: add callsight to no\\x0asuch"]);
    assert!(contents(folder.path()).is_empty());
}

#[test]
fn init_needs_a_build_system() {
    init_refuses(&[("main.c", HELLO.as_bytes())], &["CMakeLists.txt"]);
    init_refuses(&[], &["CMakeLists.txt"]);
}

#[test]
fn init_names_a_folder_that_is_not_there() {
    let (_folder, shell) = folder();
    shell.callsight(&["init", "no/such/folder"]).refused(&["no/such/folder"]);
}

#[test]
fn init_says_which_build_systems_it_cannot_edit() {
    init_refuses(&[("Makefile", b"all:\n\tcc main.c\n")], &["CMake"]);
    init_refuses(&[("Cargo.toml", b"[package]\nname = \"x\"\nversion = \"0.1.0\"\n")], &["CMake"]);
}

#[test]
fn init_edits_no_lists_it_does_not_understand() {
    let half_open =
        format!("{LISTS}# >>> callsight (managed; remove with: callsight init --undo) >>>\n");
    init_refuses(&[("CMakeLists.txt", half_open.as_bytes())], &["CMakeLists.txt", "marker"]);
    init_refuses(
        &[("CMakeLists.txt", b"project(hello C\nadd_executable(a b.c\n")],
        &["CMakeLists.txt"],
    );
    init_refuses(&[("CMakeLists.txt", b"\xff\xfeproject(\x00)")], &["CMakeLists.txt"]);
}

#[test]
fn init_on_a_full_disk_writes_nothing() {
    let (folder, shell) = folder();
    std::fs::create_dir(folder.path().join("m")).expect("make a folder");
    let script = format!(
        "unshare --map-root-user --mount bash -c 'mount -t tmpfs -o size=64k none m && cd m && \
         printf \"{}\" > CMakeLists.txt && ls -A > ../before && cp CMakeLists.txt .. && \
         {{ callsight init --stream . ; echo $? > ../code; ls -A > ../after; cmp CMakeLists.txt ../CMakeLists.txt; }}'",
        LISTS.replace('\n', "\\n")
    );
    let ran = shell.run(&script);
    if ran.stderr.contains("unshare") || ran.stderr.contains("mount:") {
        return skip("init_on_a_full_disk_writes_nothing", &ran.stderr);
    }
    assert_eq!(ran.code, 0, "CMakeLists.txt is as it was: {ran}");
    let read = |name| std::fs::read_to_string(folder.path().join(name)).expect("a note");
    assert_eq!(read("code"), "2\n", "{ran}");
    assert_eq!(read("before"), read("after"), "{ran}");
    assert!(ran.stderr.contains("space") && ran.stderr.contains("make room"), "{ran}");
}

#[test]
fn analyze_wants_a_capture() {
    let (folder, shell) = folder();
    shell.callsight(&["analyze"]).refused(&["traces"]);
    shell.callsight(&["analyze", "nothing-here"]).refused(&["nothing-here"]);
    std::fs::create_dir(folder.path().join("traces")).expect("make a folder");
    shell.callsight(&["analyze", "traces"]).refused(&["traces"]);
    std::fs::write(folder.path().join("traces/notes.txt"), "hello").expect("write a file");
    shell.callsight(&["analyze", "traces"]).refused(&["traces"]);
    shell.callsight(&["analyze", "traces/notes.txt"]).refused(&["notes.txt"]);
}

#[test]
fn every_refusal_says_what_would_help() {
    let (folder, shell) = folder();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("write a file");
    };
    write("empty", b"");
    write("foreign", b"long enough to be the header of a capture, but of another kind altogether");
    write("CMakeLists.txt", LISTS.as_bytes());
    std::fs::create_dir(folder.path().join("callsight")).expect("make a folder");
    write("callsight/callsight.toml", b"[files]\nexclude = \"a.c\"\n");
    std::fs::create_dir(folder.path().join("linked")).expect("make a folder");
    symlink("../CMakeLists.txt", folder.path().join("linked/CMakeLists.txt")).expect("make a link");
    let run = "run --no-check --path";
    for (line, words) in [
        ("analyze never-made", &["never-made", "TRACE_ENABLE=1", "TRACE_DIR", "TRACE_THREADS"][..]),
        ("analyze /nope/trace.1.1.0.bin", &["/nope/trace.1.1.0.bin", "TRACE_DIR", "another one"]),
        ("analyze foreign", &["foreign", "a capture is a file trace.*.bin"]),
        ("analyze empty", &["empty", "run the program again"]),
        ("serve --port 0 --host 1.2.3.4", &["1.2.3.4", "--host", "0.0.0.0"]),
        ("serve --port 0 --host nope.invalid", &["nope.invalid", "--host", "0.0.0.0"]),
        ("serve --port 0 --out foreign", &["foreign", "--out wants a folder"]),
        ("serve --port 0 --out /proc/x", &["/proc/x", "--out wants a folder"]),
        (&format!("{run} /proc/x -- true"), &["/proc/x", "--path wants a folder"]),
        (&format!("{run} foreign -- true"), &["foreign", "--path wants a folder"]),
        (&format!("{run} foreign --keep -- true"), &["foreign", "--path wants a folder"]),
        ("demo --keep /proc/x", &["/proc/x", "--keep wants a new folder"]),
        ("init no/such/folder", &["no/such/folder", "top CMakeLists.txt"]),
        ("init --prefix foreign/below", &["foreign/below", "move that away"]),
        ("init linked", &["outside the project", "put a copy of that file in its place"]),
        ("init .", &["callsight/callsight.toml:2:", "exclude = [\"b.c\"]"]),
    ] {
        shell.callsight(&line.split(' ').collect::<Vec<_>>()).refused(words);
    }
}

#[test]
fn analyze_names_a_capture_that_is_no_capture() {
    let (folder, shell) = folder();
    let file = folder.path().join("trace.1.1.0.bin");
    let write = |bytes: &[u8]| std::fs::write(&file, bytes).expect("write a file");
    write(b"these are not the events you are looking for, nor is this a header of any kind at all");
    shell.callsight(&["analyze", "."]).refused(&["trace.1.1.0.bin"]);
    let mut later = FileHeader::new(Origin::default(), 1, 0);
    later.version = 9;
    write(&later.to_bytes(ByteOrder::Little));
    shell.callsight(&["analyze", "."]).refused(&["trace.1.1.0.bin", "9"]);
    write(b"MLTRACE\0");
    shell.callsight(&["analyze", "."]).refused(&["trace.1.1.0.bin"]);
}

#[test]
fn analyze_names_a_binary_that_is_none() {
    let traced = Program::c(HELLO).build(Hooks::Ours);
    traced.tracing().ok("./prog");
    let shell = traced.shell();
    for name in ["missing", "main.c"] {
        let ran = shell.callsight(&["analyze", "traces", "--exe", name]);
        ran.refused(&[name, "the program that ran"]);
    }
}

#[test]
fn serve_names_a_port_in_use() {
    let (folder, shell) = folder();
    let taken = TcpListener::bind("0.0.0.0:0").expect("a free port");
    let port = taken.local_addr().expect("its number").port().to_string();
    shell.callsight(&["serve", "--port", &port]).refused(&[&port, "in use"]);
    shell
        .callsight(&["serve", "--host", "not an address", "--port", "0"])
        .refused(&["not an address"]);
    std::fs::write(folder.path().join("file"), "").expect("write a file");
    shell.callsight(&["serve", "--port", "0", "--out", "file/traces"]).refused(&["file/traces"]);
}

#[test]
fn run_tells_a_program_without_hooks_from_one_without_the_runtime() {
    let none = Program::c(HELLO).build(Hooks::None);
    none.shell().callsight(&["run", "--", "./prog"]).refused(&["prog", "callsight init"]);
    assert!(!none.folder().join("traces").exists(), "nothing is made for a refused run");
    let empty = Program::c(HELLO).build(Hooks::Empty);
    empty.shell().callsight(&["run", "--", "./prog"]).refused(&["prog", "runtime"]);
    let fixed = Program::c(HELLO).flags(&["-static"]).build(Hooks::Empty);
    fixed.shell().callsight(&["run", "--", "./prog"]).refused(&["prog", "runtime"]);
}

#[test]
fn run_names_a_command_that_is_not_there() {
    let (_folder, shell) = folder();
    shell.callsight(&["run", "--", "./no-such-program"]).refused(&["./no-such-program"]);
    shell
        .callsight(&["run", "--", "no-such-program-on-path"])
        .refused(&["no-such-program-on-path"]);
}

#[test]
fn run_gives_the_programs_own_exit_code() {
    let program = Program::c("int main(void) { return 7; }\n").build(Hooks::Ours);
    let ran = program.shell().callsight(&["run", "--", "./prog"]);
    assert_eq!(ran.code, 7, "{ran}");
    assert!(ran.stdout.contains("main"), "{ran}");
}

#[test]
fn a_run_that_no_thread_was_selected_in_names_the_filter_and_gives_the_programs_code() {
    for code in [0, 3] {
        let text = format!("int main(void) {{ return {code}; }}\n");
        let program = Program::c(&text).build(Hooks::Ours);
        let shell = program.shell();
        let by_option = shell.callsight(&["run", "--threads", "foo,b*", "--", "./prog"]);
        let shell = shell.env("TRACE_THREADS", "bar");
        let inherited = shell.callsight(&["run", "--", "./prog"]);
        for (ran, filter) in [(by_option, "--threads foo,b*"), (inherited, "TRACE_THREADS=bar")] {
            assert_eq!(ran.code, if code == 0 { 2 } else { code }, "{ran}");
            assert_eq!(ran.stdout, "", "{ran}");
            let last = ran.stderr.lines().last().unwrap_or_default();
            assert!(last.contains(filter) && last.contains("no thread has a name"), "{ran}");
        }
        // The option is what counts, and an empty one selects every thread.
        let ran = shell.callsight(&["run", "--threads=", "--", "./prog"]);
        assert_eq!((ran.code, ran.stdout.contains("main")), (code, true), "{ran}");
    }
}

#[test]
fn a_failed_report_does_not_hide_how_the_program_ended() {
    let program = Program::c("int main(void) { return 7; }\n").build(Hooks::Ours);
    let ran = program.shell().callsight(&["run", "--exe", "missing", "--", "./prog"]);
    assert_eq!(ran.code, 7, "{ran}");
    assert!(ran.stderr.contains("read the binary missing"), "{ran}");
}

#[test]
fn run_leaves_a_file_of_somebody_that_is_named_like_a_capture() {
    let program = Program::c(HELLO).build(Hooks::Ours);
    let shell = program.shell();
    shell.ok("mkdir traces && echo 'my own notes' > traces/trace.1.1.0.bin");
    for _ in 0..2 {
        let ran = shell.callsight(&["run", "--", "./prog"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran}");
        assert!(ran.stdout.contains("events=2 "), "the earlier run's capture goes: {ran}");
        assert!(
            ran.stdout.contains("! left out: read the capture traces/trace.1.1.0.bin"),
            "{ran}"
        );
    }
    let kept = program.folder().join("traces/trace.1.1.0.bin");
    assert_eq!(std::fs::read(kept).expect("still there"), b"my own notes\n");
}

#[test]
fn demo_needs_a_compiler() {
    let (_folder, shell) = folder();
    let ran = shell.env("PATH", "/nonexistent").callsight(&["demo"]);
    assert_eq!(ran.code, 2, "{ran}");
    let last = ran.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("cc") || last.contains("compiler"), "{ran}");
}

#[test]
fn a_prefix_may_be_a_relative_path_and_a_refusal_says_its_reason_once() {
    let (folder, shell) = folder();
    shell.ok("callsight init --prefix here && callsight init --prefix deeper/down");
    let object = "lib/callsight/x86_64-linux-gnu/callsight_runtime.o";
    for prefix in ["here", "deeper/down"] {
        assert!(folder.path().join(prefix).join(object).is_file(), "{prefix}");
    }
    // A file stands where a folder would have to.
    shell.ok("touch taken");
    let ran = shell.run("callsight init --prefix taken/below");
    assert_eq!(ran.code, 2, "{ran}");
    assert_eq!(ran.stderr.matches("os error").count(), 1, "{ran}");
}
