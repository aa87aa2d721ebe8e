//! Nobody can hear what a command says: it does what it was told, and its exit code says how that went.

use callsight_tests::{Built, Hooks, Program, Shell};
use tempfile::TempDir;

const SEVEN: &str = "static int seven(void) { return 7; } int main(void) { return seven(); }";
const NONE: &str = "static int none(void) { return 0; } int main(void) { return none(); }";

fn built(text: &str) -> Built {
    Program::c(text).build(Hooks::Ours)
}

/// Runs each line in a shell, with the exit code of `callsight` in it at the end.
#[track_caller]
fn check(shell: &Shell, lines: &[(&str, i32)]) {
    for (line, code) in lines {
        let ran = shell.run(line);
        assert_eq!(ran.code, *code, "{ran}");
        assert!(!ran.all().contains("panicked"), "{ran}");
    }
}

/// Runs each line with standard output and error into a pipe that is closed already.
#[track_caller]
fn check_closed(shell: &Shell, lines: &[(&str, i32)]) {
    for (line, code) in lines {
        let script = format!(
            "set +e; mkfifo gone; sleep 100 <gone & reader=$!; exec 9>gone; kill $reader; \
             wait $reader 2>/dev/null; rm gone; {line} >&9 2>&9; echo $?"
        );
        let ran = shell.run(&script);
        assert_eq!(ran.stdout.trim_end(), code.to_string(), "{ran}");
    }
}

#[test]
fn run_has_the_exit_code_of_its_program_whoever_reads_what_it_says() {
    for (text, code) in [(SEVEN, 7), (NONE, 0)] {
        let program = built(text);
        check(
            &program.shell(),
            &[
                ("exec callsight run -- ./prog 2>/dev/full", code),
                ("exec callsight run --format folded -- ./prog 2>/dev/full", code),
                ("exec callsight run --path '' -- ./prog 2>/dev/full", code),
                ("CALLSIGHT_LIVE=x exec callsight run -- ./prog 2>/dev/full", code),
                // Where the program succeeded, a report that cannot be written is an error.
                ("exec callsight run -- ./prog >/dev/full 2>/dev/full", code.max(2)),
            ],
        );
        check_closed(&program.shell(), &[("callsight run --path '' -- ./prog", code)]);
        check_closed(&program.shell(), &[("callsight run -- ./prog", code)]);
    }
}

#[test]
fn what_is_refused_is_refused_though_nobody_hears_why() {
    let folder = TempDir::new().expect("a folder");
    let shell = Shell::new(folder.path());
    let refused = [
        "callsight analyze none",
        "callsight rings --remove /none-of-this-name /nor-this",
        "callsight rings --pause /none-of-this-name",
        "callsight snapshot 1",
        "callsight init none",
        "callsight run --no-check -- ./none",
        "callsight demo --keep /proc/none",
        "callsight none",
    ];
    for line in refused {
        check(&shell, &[(&format!("exec {line} 2>/dev/full"), 2)]);
        check_closed(&shell, &[(line, 2)]);
    }
}

#[test]
fn what_init_does_is_done_though_nobody_hears_of_it() {
    const LISTS: &str = "cmake_minimum_required(VERSION 3.16)\nproject(a C)\n";
    let folder = TempDir::new().expect("a folder");
    let shell = Shell::new(folder.path());
    let lists = folder.path().join("CMakeLists.txt");
    let text = || std::fs::read_to_string(&lists).expect("its text");
    std::fs::write(&lists, LISTS).expect("write");
    let said = shell.run("exec callsight init --dry-run . >/dev/full");
    said.refused(&["write what would change", "No space left"]);
    check_closed(&shell, &[("callsight init --dry-run .", 0)]);
    assert_eq!(text(), LISTS);
    check(&shell, &[("exec callsight init . >/dev/full", 0)]);
    assert!(text().contains("callsight"));
    check_closed(&shell, &[("callsight init --undo .", 0)]);
    assert_eq!(text(), LISTS);
}

#[test]
fn a_callsight_toml_that_is_no_file_keeps_no_program_from_running() {
    let program = built(SEVEN);
    for (make, why) in [
        ("mkfifo callsight.toml", "it is no regular file"),
        ("ln -s /dev/zero callsight.toml", "it is no regular file"),
        ("mkdir callsight.toml", "it is no regular file"),
        ("truncate -s 1T callsight.toml", "it has more than 16 MiB"),
    ] {
        let ran = program.shell().run(&format!(
            "{make}; set +e; timeout 60 callsight run -- ./prog; code=$?; rm -r callsight.toml; \
             exit $code"
        ));
        assert_eq!(ran.code, 7, "{ran}");
        assert!(ran.stderr.contains("callsight.toml") && ran.stderr.contains(why), "{ran}");
        assert!(ran.stderr.contains("left out") && ran.stdout.contains("seven"), "{ran}");
    }
}
