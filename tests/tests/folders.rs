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
