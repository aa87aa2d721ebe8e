//! Folders of captures that several commands want: nobody removes or reports what is another's.

use std::time::Duration;

use callsight_tests::{Built, Hooks, Program, Ran, Report, Server};

/// Makes as many calls as it is told, and a file named `made`; ends when there is a file named `end`.
const CALLS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define PLAIN __attribute__((no_instrument_function))
__attribute__((noinline)) static void leaf(void) { __asm__ volatile(""); }
PLAIN int main(int count, char **words)
{
    for (long call = atol(words[1]); call > 0; call--)
        leaf();
    if (count > 2) {
        fclose(fopen("made", "w"));
        while (access("end", F_OK) != 0)
            usleep(1000);
    }
    return 0;
}
"#;

fn events(ran: &Ran) -> u64 {
    Report::parse(&ran.stdout).number("events")
}

fn run(program: &Built, arguments: &str) -> Ran {
    let line = format!("exec callsight run --format json -- ./prog {arguments}");
    program.shell().run(&line)
}

#[test]
fn a_run_leaves_what_a_server_received_in_its_folder() {
    let program = Program::c(CALLS).build(Hooks::Ours);
    let server = Server::ours(&program.shell(), &[]);
    let live = format!("exec callsight run --live 127.0.0.1:{} -- ./prog 700", server.port);
    program.shell().ok(&live);
    let check = |when: &str| {
        let ran = run(&program, "50");
        assert_eq!((ran.code, events(&ran)), (0, 100), "{when}: {ran}");
        assert!(ran.stderr.contains("traces stays as it is"), "{when}: {ran}");
        assert!(ran.stderr.contains("this run is in traces-2"), "{when}: {ran}");
        let received = Report::of(&program.shell(), &["traces"]);
        assert_eq!(received.number("events"), 1400, "{when}: {:?}", received.notices());
    };
    check("while it serves");
    server.stop();
    check("when it has ended");
}

#[test]
fn two_runs_at_once_report_their_own_program_each() {
    let program = Program::c(CALLS).build(Hooks::Ours);
    let first = {
        let shell = program.shell();
        std::thread::spawn(move || {
            shell.run("exec callsight run --format json -- ./prog 4000 waits")
        })
    };
    let made = program.folder().join("made");
    while !made.exists() && !first.is_finished() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let second = run(&program, "30");
    std::fs::write(program.folder().join("end"), "").expect("let the first one end");
    let first = first.join().expect("the first run");
    assert_eq!((first.code, events(&first)), (0, 8000), "{first}");
    assert_eq!((second.code, events(&second)), (0, 60), "{second}");
    assert!(second.stderr.contains("another `callsight` records there"), "{second}");
    // Nobody has it any more.
    let third = run(&program, "20");
    assert_eq!((third.code, events(&third)), (0, 40), "{third}");
    assert!(!third.stderr.contains("stays as it is"), "{third}");
}

/// A folder in `within` whose absolute path has `bytes` bytes.
fn folder_of(within: &std::path::Path, bytes: usize) -> String {
    let mut path = within.canonicalize().expect("a path").to_str().expect("a text").to_owned();
    while bytes - path.len() > 200 {
        path += &format!("/{}", "d".repeat(100));
    }
    path.clone() + "/" + &"d".repeat(bytes - path.len() - 1)
}

#[test]
fn a_folder_with_too_long_a_path_is_refused_and_never_cut() {
    let program = Program::c(CALLS).build(Hooks::Ours);
    let [fits, long, longer] = [511, 512, 900].map(|bytes| folder_of(program.folder(), bytes));
    let by_run = |folder: &str| {
        program
            .shell()
            .run(&format!("exec callsight run --format json --path {folder} -- ./prog 20"))
    };
    let ran = by_run(&fits);
    assert_eq!((ran.code, events(&ran)), (0, 40), "{ran}");
    let made = || std::fs::read_dir(program.folder()).expect("list").count();
    std::fs::remove_dir_all(program.folder().join("d".repeat(100))).expect("remove");
    let before = made();
    for folder in [&long, &longer] {
        let ran = by_run(folder);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran}");
        let said = format!("its path has {} bytes, and a traced program takes 511", folder.len());
        assert!(ran.stderr.contains(&said), "{ran}");
        // By hand nobody can say it; nothing is made under another name.
        program.shell().env("TRACE_ENABLE", "1").env("TRACE_DIR", folder).ok("./prog 20");
    }
    assert_eq!(made(), before);
}

#[test]
fn a_long_list_of_threads_is_taken_whole_or_refused() {
    let program = Program::c(CALLS).build(Hooks::Ours);
    let list = |count| "other,".repeat(count) + "prog";
    let by_run = |list: &str| {
        program
            .shell()
            .run(&format!("exec callsight run --format json --threads {list} -- ./prog 20"))
    };
    let ran = by_run(&list(600));
    assert_eq!((ran.code, events(&ran)), (0, 40), "{ran}");
    let ran = by_run(&list(700));
    assert_eq!(ran.code, 2, "{ran}");
    assert!(
        ran.stderr.contains("the list has 4204 bytes, and a traced program takes 4095"),
        "{ran}"
    );
}

#[test]
fn a_run_without_a_capture_says_what_its_folder_shows() {
    let program = Program::c(CALLS).build(Hooks::Ours);
    let moved = "sh -c './prog 20; mv traces elsewhere'";
    let ran = program.shell().run(&format!("exec callsight run --no-check -- {moved}"));
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.stderr.contains("not there any more: it was removed or renamed"), "{ran}");
    // More than any disk has.
    let shell = || program.shell().env("TRACE_MIN_FREE_MB", "1000000000");
    let ran = shell().env("TRACE_MODE", "summary").run("exec callsight run -- ./prog 20");
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.stderr.contains("TRACE_MIN_FREE_MB leaves 1000000000 to others"), "{ran}");
    // In files there is room for the word itself.
    let ran = shell().run("exec callsight run -- ./prog 20");
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.stderr.contains("for their first file are in no count"), "{ran}");
}
