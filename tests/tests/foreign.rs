//! Rings of others: of another pid namespace, of another clock. Who may not use one leaves it as it is,
//! and records into files or says so.

use std::fs;
use std::process::Command;

use callsight_tests::{Built, Hooks, Program, Ran, Report, Ring, skip};
use serde_json::Value;

const PRODUCER: &str = include_str!("../programs/producer.c");
const MOVES: &str = include_str!("../programs/moves.c");

/// Runs a script as root of a /dev/shm of its own; `unshare -pf --mount-proc` runs a program there as
/// in a container that shares it. `None` where that is not allowed.
fn with_own_shm(test: &str, program: &Built, script: &str) -> Option<Ran> {
    let inner = format!(
        "unshare -pf --mount-proc true; mount -t tmpfs -o size=200m none /dev/shm
        until_there() {{ for _ in $(seq 3000); do [ -e $1 ] && return; sleep 0.02; done; exit 6; }}
        export TRACE_SHM=/r TRACE_DIR=$PWD/files; mkdir files
        {script}"
    );
    let mut command = Command::new("unshare");
    let command = command.args(["--map-root-user", "--mount", "bash", "-euc", &inner]);
    let ran = program.shell().command(command, &inner);
    let refused = ["unshare: ", "mount: "].iter().any(|who| ran.stderr.starts_with(who));
    if refused {
        skip(test, &ran.stderr);
    } else {
        assert_eq!(ran.code, 0, "{ran}");
    }
    (!refused).then_some(ran)
}

/// All its calls are in files, and why.
#[track_caller]
fn is_in_files(program: &Built, folder: &str, leaf_calls: u64, why: &str) {
    let report = Report::of(&program.shell(), &[folder]);
    assert_eq!((report.calls_of("leaf"), report.lost()), (leaf_calls, 0), "{folder}");
    let notices = report.notices();
    assert!(notices.iter().any(|n| n.contains("TRACE_SHM") && n.contains(why)), "{notices:?}");
}

#[test]
fn a_program_of_another_pid_namespace_leaves_the_ring_to_those_of_its_drain() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let script = "callsight drain --file traces /r 2> said & drain=$!
        until_there /dev/shm/.callsight-spare-r
        export TRACE_ENABLE=1
        unshare -pf --mount-proc ./prog 1000 1
        [ -e /dev/shm/.callsight-spare-r ] && kill -0 $drain
        mv files waited; mkdir files
        ./prog 20000 1 50000 > done & prog=$!
        until_there /dev/shm/r; kill -STOP $prog
        unshare -pf --mount-proc ./prog 1000 1
        mv files beside; mkdir files
        unshare -pf ./prog 1000 1
        mv files unknown; kill -CONT $prog; wait $drain; cat done; cat said >&2";
    let name = "a_program_of_another_pid_namespace_leaves_the_ring_to_those_of_its_drain";
    let Some(ran) = with_own_shm(name, &program, script) else { return };
    assert_eq!(ran.stdout, "done 1000\ndone 1000\ndone 1000\ndone 20000\n", "{ran}");
    let theirs = "it is of another pid namespace";
    is_in_files(&program, "waited", 1000, theirs);
    is_in_files(&program, "beside", 1000, theirs);
    is_in_files(&program, "unknown", 1000, "/proc is that of another pid namespace");
    let report = program.report();
    assert_eq!((report.calls_of("leaf"), report.lost()), (20_000, 0), "{ran}");
    assert!(ran.stderr.contains(" 0 dropped, unaccounted=0"), "{ran}");
}

#[test]
fn a_ring_of_another_pid_namespace_is_drained_there_and_removed_by_name() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let script = "export TRACE_ENABLE=1; unshare -pf --mount-proc ./prog 1000 1
        ./prog 1000 1; unset TRACE_ENABLE
        callsight rings --json > list; callsight rings > text; callsight rings --remove
        callsight drain --file none /r 2> refused && exit 5; [ $? = 2 ]
        callsight serve --port 0 --host 127.0.0.1 --ring /r --out served > said 2>&1 & server=$!
        for _ in $(seq 3000); do grep -q 'exit status: 2' said && break; sleep 0.02; done
        kill $server; wait $server || :
        cp /dev/shm/r kept; callsight rings --remove /r; ls -A /dev/shm
        cat refused said >&2";
    let name = "a_ring_of_another_pid_namespace_is_drained_there_and_removed_by_name";
    let Some(ran) = with_own_shm(name, &program, script) else { return };
    let removed = "removed /r: 2006 events were in it, 0 dropped\n";
    assert_eq!(ran.stdout, format!("done 1000\ndone 1000\n{removed}"), "{ran}");
    let refused = ran.stderr.matches("read the ring /dev/shm/r: it is of another pid namespace");
    assert!(refused.count() >= 2, "{ran}");
    is_in_files(&program, "files", 1000, "it is of another pid namespace");
    let read = |file: &str| fs::read_to_string(program.folder().join(file)).expect("a file");
    let list: Value = serde_json::from_str(&read("list")).expect("JSON");
    let ring = &list["rings"][0];
    assert_eq!((&ring["foreign"], &ring["abandoned"]), (&true.into(), &false.into()), "{ring}");
    assert_eq!(ring["processes"][0]["alive"], Value::Null, "{ring}");
    let text = read("text");
    assert!(text.contains("of another pid namespace") && !text.contains("abandoned"), "{text}");
    assert!(!text.contains("dead"), "{text}");
}

#[test]
fn processes_of_one_pid_in_several_namespaces_make_their_rings_apart() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    // As it is while another container makes a ring, too.
    let script = "touch /dev/shm/.callsight-1 /dev/shm/.callsight-2
        TRACE_ENABLE=1 unshare -pf --mount-proc ./prog 1000 1
        unshare -pf --mount-proc --kill-child callsight drain --file traces /s & drain=$!
        until_there /dev/shm/.callsight-spare-s; kill -KILL $drain; wait $drain || :
        ls -A /dev/shm";
    let name = "processes_of_one_pid_in_several_namespaces_make_their_rings_apart";
    let Some(ran) = with_own_shm(name, &program, script) else { return };
    let left = ".callsight-1\n.callsight-2\n.callsight-spare-s\nr\n";
    assert_eq!(ran.stdout, format!("done 1000\n{left}"), "{ran}");
}

#[test]
fn a_forked_child_in_another_pid_namespace_leaves_its_parents_ring() {
    let program = Program::c(MOVES).build(Hooks::Ours);
    let script = "TRACE_ENABLE=1 ./prog; callsight drain --file traces /r; ls -A /dev/shm";
    let name = "a_forked_child_in_another_pid_namespace_leaves_its_parents_ring";
    let Some(ran) = with_own_shm(name, &program, script) else { return };
    assert_eq!(ran.stdout, "0\n", "{ran}");
    is_in_files(&program, "files", 230, "pid namespace");
    let report = program.report();
    assert_eq!((report.calls_of("leaf"), report.lost()), (1004, 0), "{ran}");
    assert!(ran.stderr.contains("unaccounted=0"), "{ran}");
}

#[test]
fn a_program_of_another_clock_leaves_a_ring_to_those_who_record_into_it() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let ring = Ring::new();
    let shell = program.tracing().env("TRACE_SHM", ring.name());
    let run = |clock: &str, arguments: &str| {
        shell.clone().env("TRACE_CLOCK", clock).ok(&format!("exec ./prog {arguments}"))
    };
    for (clock, arguments) in [("mono", "1000 1"), ("auto", "3000 1"), ("mono", "2000 1")] {
        run(clock, arguments);
    }
    if fs::read_dir(program.folder().join("traces")).expect("a folder").next().is_none() {
        let name = "a_program_of_another_clock_leaves_a_ring_to_those_who_record_into_it";
        return skip(name, "the processor's counter is not invariant here");
    }
    is_in_files(&program, "traces", 3000, "another clock");
    let drained = program.shell().ok(&format!("callsight drain --file drained {}", ring.name()));
    let report = Report::of(&program.shell(), &["drained"]);
    assert_eq!((report.calls_of("leaf"), report.lost()), (3000, 0), "{drained}");
}
