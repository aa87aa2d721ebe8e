//! Real programs, built here: which of them have hooks, and how they run and end.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use callsight_hub::local::{
    Hooks, Launch, LaunchError, captures_in, find_program, hooks_of, remove_captures,
};

const PROGRAM: &str = "int work(int n) { return n + 1; } int main(void) { return work(-1); }";
/// Takes the hooks, and carries the mark of our runtime.
const RUNTIME: &str = r#"
void __cyg_profile_func_enter(void *f, void *s) { (void)f; (void)s; }
void __cyg_profile_func_exit(void *f, void *s) { (void)f; (void)s; }
__attribute__((section(".note.callsight"), used, visibility("hidden")))
const char callsight_runtime_version[36] = "mark";
"#;
/// Another project's: nothing marks it, but its hooks do something.
const OTHER_RUNTIME: &str = r#"
static volatile long calls, returns;
void __cyg_profile_func_enter(void *f, void *s) { calls += (long)f ^ (long)s; calls ^= 77; }
void __cyg_profile_func_exit(void *f, void *s) { returns += (long)f ^ (long)s; returns ^= 77; }
"#;

struct Workshop(tempfile::TempDir);

impl Workshop {
    fn new() -> Workshop {
        let shop = Workshop(tempfile::tempdir().expect("a folder"));
        for (name, text) in
            [("program.c", PROGRAM), ("runtime.c", RUNTIME), ("other.c", OTHER_RUNTIME)]
        {
            fs::write(shop.path(name), text).expect("write");
        }
        shop.cc("-c -o runtime.o runtime.c");
        shop.cc("-O2 -c -o other.o other.c");
        shop.cc("-finstrument-functions -c -o program.o program.c");
        shop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn cc(&self, arguments: &str) {
        let done = Command::new("cc")
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .expect("a C compiler");
        assert!(done.status.success(), "cc {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Links `out` and says what becomes of its hooks.
    fn hooks(&self, out: &str, arguments: &str) -> Hooks {
        self.cc(&format!("-o {out} {arguments}"));
        hooks_of(&self.path(out))
    }
}

#[test]
fn a_program_with_a_runtime_is_traced_however_it_is_linked() {
    let shop = Workshop::new();
    for link in ["", "-no-pie", "-static", "-static-pie", "-s", "-s -static"] {
        let arguments = format!("program.o runtime.o {link}");
        assert_eq!(shop.hooks("traced", &arguments), Hooks::Traced, "{link}");
    }
    for link in ["", "-no-pie", "-static", "-s"] {
        assert_eq!(shop.hooks("other", &format!("program.o other.o {link}")), Hooks::Traced);
    }
}

#[test]
fn a_program_in_which_the_empty_hooks_of_libc_won_is_noticed() {
    let shop = Workshop::new();
    for link in ["", "-no-pie", "-static", "-static-pie", "-s", "-Wl,--gc-sections"] {
        let arguments = format!("program.o {link}");
        assert_eq!(shop.hooks("untraced", &arguments), Hooks::NoRuntime, "{link}");
    }
}

#[test]
fn a_program_without_hooks_is_noticed_and_a_stripped_static_one_is_let_through() {
    let shop = Workshop::new();
    for link in ["", "-no-pie", "-static", "-s"] {
        assert_eq!(shop.hooks("plain", &format!("program.c {link}")), Hooks::None, "{link}");
    }
    assert_eq!(shop.hooks("opaque", "program.c -s -static"), Hooks::Unknown);
}

#[test]
fn hooks_in_a_shared_library_count() {
    let shop = Workshop::new();
    shop.cc("-finstrument-functions -fPIC -shared -o libwork.so program.c");
    shop.cc("-fPIC -shared -o libruntime.so runtime.c");
    fs::write(shop.path("main.c"), "int work(int); int main(void) { return work(-1); }")
        .expect("write");
    let link = "main.c -L. -lwork -Wl,-rpath,$ORIGIN";
    assert_eq!(shop.hooks("bare", link), Hooks::NoRuntime);
    assert_eq!(shop.hooks("full", &format!("runtime.o {link}")), Hooks::Traced);
    let needed = "-Wl,--no-as-needed -L. -lruntime -Wl,-rpath,$ORIGIN";
    assert_eq!(shop.hooks("shared", &format!("program.o {needed}")), Hooks::Traced);
}

#[test]
fn what_is_no_elf_file_is_unknown() {
    let shop = Workshop::new();
    for (name, bytes) in
        [("script", &b"#!/bin/sh\n"[..]), ("empty", b""), ("cut", b"\x7fELF\x02\x01\x01")]
    {
        fs::write(shop.path(name), bytes).expect("write");
        assert_eq!(hooks_of(&shop.path(name)), Hooks::Unknown, "{name}");
    }
    assert_eq!(hooks_of(&shop.path("absent")), Hooks::Unknown);
}

#[test]
fn no_cut_of_an_elf_file_is_a_panic() {
    let shop = Workshop::new();
    shop.cc("-o traced program.o runtime.o");
    let bytes = fs::read(shop.path("traced")).expect("read");
    for len in (0..bytes.len()).step_by(37) {
        fs::write(shop.path("cut"), &bytes[..len]).expect("write");
        let hooks = hooks_of(&shop.path("cut"));
        assert!(matches!(hooks, Hooks::Unknown | Hooks::None | Hooks::Traced), "{len}: {hooks:?}");
    }
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    let shop = Workshop::new();
    let sh = find_program("sh".as_ref()).expect("a shell");
    assert!(sh.is_absolute() && sh.ends_with("sh"), "{}", sh.display());
    assert_eq!(find_program("no-such-program-anywhere".as_ref()), None);
    let source = shop.path("program.c");
    assert_eq!(find_program(source.as_os_str()), None, "not executable");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(find_program(source.as_os_str()), Some(source));
    assert_eq!(find_program(shop.0.path().as_os_str()), None, "a folder");
}

fn shell(script: &str, directory: &Path) -> Launch {
    let command = ["sh", "-c", script].map(OsString::from).to_vec();
    Launch { command, directory: directory.to_owned(), ..Launch::default() }
}

#[test]
fn a_program_gets_its_settings_and_keeps_its_exit_code() {
    let dir = tempfile::tempdir().expect("a folder");
    let traces = dir.path().join("a/b");
    let script = r#"[ "$TRACE_ENABLE" = 1 ] && [ "$TRACE_MAX_MB" = 7 ] && [ -z "$TRACE_SHM" ] || exit 1
        cd "$TRACE_DIR" && touch trace.1.1.0.bin && exit 42"#;
    let settings = vec![("TRACE_MAX_MB", OsString::from("7"))];
    let outcome = Launch { settings, ..shell(script, &traces) }.run().expect("it runs");
    assert_eq!((outcome.code(), outcome.timed_out), (42, false));
    assert_eq!(captures_in(&traces).expect("list"), [traces.join("trace.1.1.0.bin")]);
}

#[test]
fn a_program_that_a_signal_ends_has_its_code() {
    let dir = tempfile::tempdir().expect("a folder");
    let outcome = shell("kill -SEGV $$", dir.path()).run().expect("it runs");
    assert_eq!((outcome.code(), outcome.timed_out), (128 + 11, false));
}

#[test]
fn a_time_limit_ends_a_program_and_one_that_does_not_listen() {
    let dir = tempfile::tempdir().expect("a folder");
    let limited = |script| {
        let time_limit = Some(Duration::from_millis(300));
        Launch { time_limit, ..shell(script, dir.path()) }.run().expect("it runs")
    };
    let outcome = limited("exec sleep 600");
    assert_eq!((outcome.code(), outcome.timed_out), (128 + 15, true));
    let outcome = limited("trap 'exit 3' TERM; while :; do sleep 0.1; done");
    assert_eq!((outcome.code(), outcome.timed_out), (3, true));
    let outcome = limited("trap '' TERM; while :; do sleep 0.1; done");
    assert_eq!((outcome.code(), outcome.timed_out), (128 + 9, true));
}

#[test]
fn a_program_that_cannot_be_run_says_why() {
    let dir = tempfile::tempdir().expect("a folder");
    let command = vec![OsString::from("/no/such/program")];
    let launch = Launch { command, ..shell("", dir.path()) };
    let error = launch.run().expect_err("no such program").to_string();
    assert!(error.contains("/no/such/program"), "{error}");
    fs::write(dir.path().join("file"), "").expect("write");
    let error = shell("", &dir.path().join("file/traces")).run().expect_err("no folder");
    assert!(matches!(error, LaunchError::Folder { .. }));
}

#[test]
fn only_captures_are_removed() {
    let dir = tempfile::tempdir().expect("a folder");
    let keep: [(&str, &[u8]); 9] = [
        ("trace.bin.txt", b""),
        ("trace.stream.1.json", b""),
        ("notes.bin", b""),
        ("mytrace.1.2.0.bin", b""),
        ("trace.1.1.0.bin", b"somebody's own"),
        ("trace.1.1.1.bin", b"short"),
        ("trace.1.1.2.bin", b"MLTRACE"),
        ("trace.1.1.3.bin", b"\0\0\0\0"),
        ("trace.1.1.4.bin", b"\0\0\0\0\0\0\0seven zeros"),
    ];
    let captures: [(&str, &[u8]); 5] = [
        ("trace.1.2.0.bin", b""),
        ("trace.1.2.1.bin", b"MLTRACE\0"),
        ("trace.1.2.2.bin", &[0; 100]),
        ("trace.stream.1.0.bin", b"MLTRACE\0\x02\0\0\0"),
        ("trace.summary.1.1.bin", b"MLSUMRY\0\x02\0\0\0"),
    ];
    for (name, bytes) in keep.iter().chain(&captures) {
        fs::write(dir.path().join(name), bytes).expect("write");
    }
    fs::create_dir(dir.path().join("trace.x.bin")).expect("a folder");
    let found = captures_in(dir.path()).expect("list");
    assert_eq!(found, captures.map(|(name, _)| dir.path().join(name)));
    assert_eq!(remove_captures(dir.path()).expect("remove"), captures.len());
    assert!(captures_in(dir.path()).expect("list").is_empty());
    for (name, bytes) in keep {
        assert_eq!(fs::read(dir.path().join(name)).expect(name), bytes, "{name}");
    }
    assert!(dir.path().join("trace.x.bin").exists());
    assert_eq!(remove_captures(&dir.path().join("absent")).expect("nothing"), 0);
}
