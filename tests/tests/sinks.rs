//! Where the events of a run go: files, a server, both, or nowhere; by flags, environment and
//! callsight.toml. The program is none the wiser.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use callsight_tests::{Built, Calls, Hooks, Program, Ran, Report, Ring, Server, Shell, skip};
use serde_json::Value;

const FANOUT: &str = include_str!("../programs/fanout.c");
const PRODUCER: &str = include_str!("../programs/producer.c");

fn true_calls(program: &Program, arguments: &str) -> Calls {
    program.build(Hooks::Count).counted(arguments).1.calls
}

/// `callsight run FLAGS -- ./prog ARGUMENTS`.
fn run(program: &Built, flags: &str, arguments: &str) -> Ran {
    program.shell().run(&format!("exec callsight run {flags} -- ./prog {arguments}"))
}

fn captures(program: &Built, folder: &str) -> usize {
    let entries = fs::read_dir(program.folder().join(folder)).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "bin")).count()
}

/// A port on which nobody listens.
fn deaf_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

#[test]
fn the_drain_is_built_in() {
    let program = Program::c(FANOUT);
    let traced = program.build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.tracing());
    let name = ring.name().to_owned();
    let ran = shell.env("TRACE_SHM", &name).env("TRACE_SHM_SIZE", "67108864").ok(&format!(
        "callsight drain --file traces {name} 2>said & drain=$!\n./prog 20\nwait $drain\ncat said >&2"
    ));
    assert!(ran.stderr.contains("unaccounted=0") && !ring.exists(), "{ran}");
    assert_eq!(traced.report().calls(), true_calls(&program, "20"), "{ran}");
    let help = traced.shell().callsight(&["drain", "--help"]);
    assert!(help.code == 0 && help.stdout.contains("SHM [HOST PORT]"), "{help}");
    traced.shell().callsight(&["drain", "a/b/c", "127.0.0.1", "9001"]).refused(&["a/b/c"]);
}

#[test]
fn a_path_and_a_server_both_get_every_event() {
    let program = Program::c(FANOUT);
    let traced = program.build(Hooks::Ours);
    let server = Server::ours(&traced.shell(), &["--out", "served"]);
    let flags = format!("--path kept --live 127.0.0.1:{} --ring-mb 64 --format json", server.port);
    let ran = run(&traced, &flags, "50");
    let served = server.stop();
    let plain = traced.plain("50");
    assert_eq!((ran.code, ran.stdout.starts_with(&plain.stdout)), (0, true), "{ran}");
    let calls = true_calls(&program, "50");
    assert_eq!(Report::parse(&ran.stdout[plain.stdout.len()..]).calls(), calls, "{ran}");
    assert_eq!(Report::of(&traced.shell(), &["served"]).calls(), calls, "{served}");
    for sink in ["live", "file"] {
        assert!(ran.stderr.contains(&format!("trace_stream: {sink}: 332552 delivered")), "{ran}");
    }
    assert!(ran.stderr.contains("332552 events forwarded, 0 dropped, unaccounted=0"), "{ran}");
}

#[test]
fn a_server_alone_gets_the_events_and_the_program_keeps_its_exit_code() {
    let program = Program::c(PRODUCER);
    let traced = program.build(Hooks::Ours);
    let server = Server::ours(&traced.shell(), &["--out", "served"]);
    let ran = run(&traced, &format!("--live 127.0.0.1:{}", server.port), "20000 2 1000 quit");
    server.stop();
    assert_eq!((ran.code, ran.stdout.as_str()), (7, "done 40000\n"), "{ran}");
    assert!(ran.stderr.contains("the report is made there"), "{ran}");
    assert_eq!(captures(&traced, "traces"), 0, "{ran}");
    let report = Report::of(&traced.shell(), &["served"]);
    assert_eq!(report.calls()["leaf"], [40000], "{:?}", report.notices());
}

#[test]
fn without_a_server_the_program_runs_and_its_file_is_whole() {
    let program = Program::c(FANOUT);
    let traced = program.build(Hooks::Ours);
    let flags = format!("--path kept --live 127.0.0.1:{} --ring-mb 64", deaf_port());
    let ran = run(&traced, &flags, "20");
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.stdout.starts_with(&traced.plain("20").stdout), "{ran}");
    assert!(ran.stderr.contains("Connection refused"), "{ran}");
    assert!(ran.stderr.contains("file: 133052 delivered, 0 dropped, unaccounted=0"), "{ran}");
    let report = Report::of(&traced.shell(), &["kept"]);
    assert_eq!(report.calls(), true_calls(&program, "20"), "{ran}");
}

#[test]
fn a_server_that_is_not_found_costs_the_program_nothing() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let ran = run(&traced, "--path kept --live nobody.invalid:9001 --ring-mb 64", "5");
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.stderr.contains("find the server nobody.invalid"), "{ran}");
    assert!(ran.stderr.contains("live: 0 delivered, 33302 dropped"), "{ran}");
    assert_eq!(Report::of(&traced.shell(), &["kept"]).number("events"), 33302, "{ran}");
    let ran = run(&traced, "--live nobody.invalid:9001", "5");
    assert_eq!((ran.code, &ran.stdout), (0, &traced.plain("5").stdout), "{ran}");
    assert!(ran.stderr.contains("33302 events that no sink has taken are given up"), "{ran}");
}

#[test]
fn what_no_server_took_is_counted_and_no_ring_is_left() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let ran = run(&traced, &format!("--live 127.0.0.1:{} --ring-mb 1", deaf_port()), "50");
    assert_eq!((ran.code, &ran.stdout), (0, &traced.plain("50").stdout), "{ran}");
    let line = ran.stderr.lines().find(|line| line.contains("are given up with the ring"));
    let numbers = line.unwrap_or_else(|| panic!("{ran}")).split(|c: char| !c.is_ascii_digit());
    let sum: u64 = numbers.filter_map(|number| number.parse::<u64>().ok()).sum();
    assert_eq!(sum, 332552, "{ran}");
    let name = ran.stderr.split("/callsight-run-").nth(1);
    assert!(name.is_none(), "{ran}");
}

/// Goes on for a while after it was interrupted, and leaves a child that goes on longer.
const LINGERING: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static volatile sig_atomic_t interrupted;
__attribute__((no_instrument_function)) static void note(int number) { interrupted = number; }
static void one_more(void) { usleep(1000); }
int main(void)
{
    signal(SIGINT, note);
    puts("ready");
    fflush(stdout);
    while (!interrupted)
        usleep(1000);
    for (int i = 0; i < 100; i++)
        one_more();
    puts("interrupted");
    fflush(stdout);
    if (fork() == 0)
        for (int i = 0; i < 500; i++)
            one_more();
    return 3;
}
"#;

#[test]
fn an_interrupt_is_the_programs_and_its_children_are_waited_for() {
    let traced = Program::c(LINGERING).build(Hooks::Ours);
    let server = Server::ours(&traced.shell(), &["--out", "served"]);
    let script = format!(
        "set -m\ncallsight run --path kept --live 127.0.0.1:{} -- ./prog >said & run=$!\n\
         until grep -q ready said; do sleep 0.05; done\nkill -INT -- -$run\n\
         wait $run || echo code $?\nhead -2 said",
        server.port
    );
    let ran = traced.shell().ok(&script);
    server.stop();
    assert_eq!(ran.stdout, "code 3\nready\ninterrupted\n", "{ran}");
    for folder in ["kept", "served"] {
        let report = Report::of(&traced.shell(), &[folder]);
        assert_eq!(report.calls()["one_more"], [600], "{folder}: {ran}");
        assert_eq!(report.lost(), 0, "{folder}: {ran}");
    }
}

#[test]
fn a_program_that_cannot_start_leaves_no_drain_behind() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let begin = Instant::now();
    let ran =
        traced.shell().callsight(&["run", "--no-check", "--live", "127.0.0.1:9", "--", "./absent"]);
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.stderr.contains("run ./absent"), "{ran}");
    // It would wait for a ring for ever; the run has waited for its end.
    assert!(ran.stderr.contains("stopped before a traced program had begun"), "{ran}");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_nearest_file() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let deep = traced.folder().join("a/b");
    fs::create_dir_all(&deep).expect("folders");
    fs::write(traced.folder().join("callsight.toml"), "[sinks]\npath = \"of-file\"\n")
        .expect("write");
    let shell = |script: &str| traced.shell().ok(&format!("cd a/b\n{script}"));
    shell("callsight run -- ../../prog 1");
    assert_eq!((captures(&traced, "of-file"), captures(&traced, "a/b/traces")), (1, 0));
    shell("TRACE_DIR=of-runtime callsight run -- ../../prog 1");
    assert_eq!(captures(&traced, "a/b/of-runtime"), 1);
    shell("TRACE_DIR=other CALLSIGHT_PATH=of-variable callsight run -- ../../prog 1");
    assert_eq!((captures(&traced, "a/b/of-variable"), captures(&traced, "a/b/other")), (1, 0));
    shell("CALLSIGHT_PATH=another callsight run --path of-flag -- ../../prog 1");
    assert_eq!((captures(&traced, "a/b/of-flag"), captures(&traced, "a/b/another")), (1, 0));
}

#[test]
fn a_file_and_the_environment_attach_a_server_without_any_flag() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let server = Server::ours(&traced.shell(), &["--out", "served"]);
    let address = format!("127.0.0.1:{}", server.port);
    let sinks = format!("[sinks]\npath = 'kept' # here\nlive = '{address}'\n");
    fs::create_dir(traced.folder().join("callsight")).expect("a folder");
    fs::write(traced.folder().join("callsight/callsight.toml"), sinks).expect("write");
    let ran = run(&traced, "", "5");
    assert_eq!((ran.code, captures(&traced, "kept")), (0, 1), "{ran}");
    fs::remove_dir_all(traced.folder().join("callsight")).expect("remove it");
    let ran = traced.shell().env("CALLSIGHT_LIVE", &address).run("callsight run -- ./prog 5");
    assert_eq!((ran.code, captures(&traced, "traces")), (0, 0), "{ran}");
    let ran =
        traced.shell().env("CALLSIGHT_LIVE", &address).run("callsight run --live '' -- ./prog");
    assert_eq!((ran.code, captures(&traced, "traces")), (0, 1), "{ran}");
    server.stop();
    assert_eq!(Report::of(&traced.shell(), &["served"]).number("events"), 2 * 33302);
}

#[test]
fn a_run_without_any_sink_is_one_line_and_the_program() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let ran = run(&traced, "--path ''", "5");
    assert_eq!((ran.code, &ran.stdout), (0, &traced.plain("5").stdout), "{ran}");
    assert!(ran.stderr.contains("nothing is recorded"), "{ran}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran}");
    assert_eq!(captures(&traced, "traces"), 0);
}

#[test]
fn flags_that_are_not_understood_are_refused_before_the_program_runs() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    for (address, words) in [
        ("host", ["host", "HOST:PORT"]),
        ("::1", ["--live", "brackets and a port, like [::1]:9001"]),
        ("::1:9001", ["--live", "brackets before its port, like [::1]:9001"]),
    ] {
        let run = ["run", "--live", address, "--", "./prog"];
        traced.shell().callsight(&run).refused(&words);
    }
    let run = ["run", "--path", "/proc/x", "--live", "", "--", "./prog"];
    let ran = traced.shell().callsight(&run);
    assert!(ran.code == 2 && ran.stderr.contains("--path wants a folder"), "{ran}");
    let ran = traced.shell().callsight(&["run", "--path"]);
    assert!(ran.code == 2 && ran.stderr.contains("'--path <DIR>'"), "{ran}");
}

#[test]
fn serve_listens_on_an_address_in_brackets_and_refuses_a_name_that_no_ring_can_have() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let shell = traced.shell();
    for name in ["a/b", "", "/", "..", &"x".repeat(256)] {
        let ran = shell.callsight(&["serve", "--port", "0", "--ring", name]);
        assert!(ran.code == 2 && ran.stderr.contains("it must be like /callsight0"), "{ran}");
        assert!(ran.stdout.is_empty() && !traced.folder().join("traces").exists(), "{ran}");
    }
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("serve_listens_on_an_address_in_brackets", "there is no IPv6 here");
    }
    for host in ["::1", "[::1]"] {
        let line = format!(
            "rm -f said; callsight serve --host '{host}' --port 0 --out served > said & server=$!\n\
             trap 'kill $server' EXIT\n\
             until grep -qs listening said; do sleep 0.05; done\n\
             callsight run --live $(grep -o '\\[::1\\]:[0-9]*' said) -- ./prog 5 >&2\n\
             trap - EXIT\nkill -TERM $server\nwait $server\ncat said"
        );
        let ran = shell.ok(&line);
        assert!(ran.stdout.contains("ended: 1 stream, 33302 events"), "{ran}");
    }
}

#[test]
fn sinks_that_cannot_be_used_never_keep_the_program_from_running() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let plain = traced.plain("5").stdout;
    let shell = traced.shell();
    let command = ["run", "--", "./prog", "5"];
    let check = |ran: &Ran, code: i32, words: &[&str]| {
        assert_eq!(ran.code, code, "{ran}");
        assert!(ran.stdout.starts_with(&plain), "{ran}");
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{ran}");
    };
    let ran = shell.clone().env("CALLSIGHT_LIVE", "host:0").callsight(&command);
    check(&ran, 0, &["CALLSIGHT_LIVE", "HOST:PORT", "left out"]);
    assert!(captures(&traced, "traces") > 0);
    // A file stands where the folder should be made.
    fs::write(traced.folder().join("file"), "").expect("write");
    for path in ["file", "file/below"] {
        let ran = shell.clone().env("CALLSIGHT_PATH", path).callsight(&command);
        check(&ran, 2, &[path, "the program runs without it"]);
    }
    let server = Server::ours(&shell, &["--out", "served"]);
    let both = shell.clone().env("CALLSIGHT_PATH", "file");
    let address = format!("127.0.0.1:{}", server.port);
    let ran = both.env("CALLSIGHT_LIVE", address).callsight(&command);
    check(&ran, 0, &["file", "the program runs without it"]);
    server.stop();
    assert_eq!(Report::of(&shell, &["served"]).lost(), 0);
    let toml = traced.folder().join("callsight.toml");
    fs::write(&toml, "[sinks]\nport = '9001'\n").expect("write");
    let ran = shell.callsight(&command);
    check(&ran, 0, &["callsight.toml:2", "port = '9001'", "left out", "under [sinks], write path"]);
    assert!(!ran.stderr.contains("[files]"), "{ran}");
    // What a terminal would act on is shown and not done.
    let binary = [b"[sinks]\npath = \x1b[2J\x07\xff\x9b".as_slice(), &[b'x'; 9000]].concat();
    fs::write(&toml, binary).expect("write");
    let ran = shell.callsight(&command);
    check(&ran, 0, &["callsight.toml:2", "path = \\x1b[2J\\x07\\xff\\x9bxx", "left out"]);
    let line = ran.stderr.lines().find(|line| line.contains("callsight.toml")).expect("a line");
    assert!(line.len() < 1000 && !line.contains(char::is_control), "{ran}");
    fs::write(&toml, "[sinks]\nlive = 'a\x1b[2J:b'\n").expect("write");
    let ran = shell.callsight(&command);
    check(&ran, 0, &["live in callsight.toml", "a\\x1b[2J:b", "left out"]);
    assert!(!ran.stderr.contains('\x1b'), "{ran}");
}

#[test]
fn a_drain_that_is_killed_is_replaced_and_no_event_is_lost() {
    let program = Program::c(PRODUCER);
    let traced = program.build(Hooks::Ours);
    let server = Server::ours(&traced.shell(), &["--out", "served"]);
    // The first child of the run is the drain.
    let script = format!(
        "callsight run --live 127.0.0.1:{} --ring-mb 64 -- ./prog 200000 2 5000 & run=$!\n\
         sleep 0.4\nkill -KILL $(cut -d ' ' -f 1 /proc/$run/task/$run/children)\nwait $run",
        server.port
    );
    let ran = traced.shell().ok(&script);
    server.stop();
    assert_eq!(ran.stdout, "done 400000\n", "{ran}");
    assert!(ran.stderr.contains("the drain was killed"), "{ran}");
    let report = Report::of(&traced.shell(), &["served"]);
    assert_eq!(report.calls(), true_calls(&program, "200000 2 5000"), "{ran}");
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}

/// Calls `leaf` until there is a file `enough`, and says how often it has.
const ENDLESS: &str = r#"
#include <stdio.h>
#include <unistd.h>
static int leaf(int x) { return x + 1; }
int main(void)
{
    int calls = 0;
    while (access("enough", F_OK)) {
        for (int i = 0; i < 100; i++)
            calls = leaf(calls);
        usleep(2000);
    }
    printf("%d\n", calls);
    return 0;
}
"#;

/// The drain that a ring whose name begins so has now.
fn drain_of(shell: &Shell, name: &str) -> Option<i32> {
    let list: Value = serde_json::from_str(&shell.callsight(&["rings", "--json"]).stdout).ok()?;
    let mut rings = list["rings"].as_array()?.iter();
    let ring = rings.find(|ring| ring["name"].as_str().is_some_and(|n| n.starts_with(name)))?;
    let drain = ring["drain"].as_object().filter(|drain| drain["alive"] == true)?;
    drain["pid"].as_i64()?.try_into().ok()
}

/// Waits for a drain of that ring beside those that were `killed`, and kills it.
#[track_caller]
fn kill_drain(shell: &Shell, name: &str, killed: &mut Vec<i32>) {
    let begin = Instant::now();
    let drain = loop {
        match drain_of(shell, name).filter(|drain| !killed.contains(drain)) {
            Some(drain) => break drain,
            None => assert!(begin.elapsed() < Duration::from_secs(60), "no drain but {killed:?}"),
        }
    };
    // SAFETY: a signal to a process; touches no memory.
    unsafe { libc::kill(drain, libc::SIGKILL) };
    killed.push(drain);
}

/// Starts this program, whose output is read when it has ended.
fn start(shell: &Shell, program: &str, words: &[&str]) -> Child {
    let mut command = Command::new(program);
    let command = command.args(words).stdout(Stdio::piped());
    shell.prepare(command).spawn().expect("start the program")
}

/// Tells the endless program to end; what it, or its run, said.
#[track_caller]
fn end(mut program: Child, shell: &Shell) -> String {
    fs::write(shell.folder().join("enough"), "").expect("tell it to end");
    let mut said = String::new();
    program.stdout.take().expect("its output").read_to_string(&mut said).expect("read it");
    assert!(program.wait().expect("its end").success(), "{said}");
    said
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a report of `served` has all the calls that the endless program said; its notices.
#[track_caller]
fn check_served(shell: &Shell, said: &str) -> Vec<String> {
    let calls: u64 = said.lines().find_map(|line| line.parse().ok()).expect("a number of calls");
    let report = Report::of(shell, &["served"]);
    assert_eq!((report.calls_of("leaf"), report.lost()), (calls, 0), "{:?}", report.notices());
    report.notices()
}

#[test]
fn programs_that_follow_each_other_in_a_run_all_have_a_drain() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let server = Server::ours(&traced.shell(), &["--out", "served"]);
    let live = format!("callsight run --no-check --ring-mb 64 --live 127.0.0.1:{}", server.port);
    let ran =
        traced.shell().ok(&format!("{live} -- sh -c './prog 5; sleep 1; ./prog 5; ./prog 5'"));
    assert!(!ran.stderr.contains("given up"), "{ran}");
    // More than one drain: the first has ended while nobody recorded.
    assert!(ran.stderr.contains("live: 99906 delivered, 0 dropped, told by "), "{ran}");
    assert!(!ran.stderr.contains("told no figures"), "{ran}");
    server.stop();
    assert_eq!(Report::of(&traced.shell(), &["served"]).number("events"), 3 * 33302, "{ran}");
}

#[test]
fn a_drain_that_is_killed_is_replaced_while_its_program_runs() {
    let traced = Program::c(ENDLESS).build(Hooks::Ours);
    let shell = traced.shell();
    let server = Server::ours(&shell, &["--out", "served"]);
    let line = format!("exec callsight run --live 127.0.0.1:{} -- ./prog 2>&1", server.port);
    let run = start(&shell, "bash", &["-c", &line]);
    let ring = format!("/callsight-run-{}-", run.id());
    let mut killed = Vec::new();
    (0..3).for_each(|_| kill_drain(&shell, &ring, &mut killed));
    let said = end(run, &shell);
    server.stop();
    assert_eq!(said.matches("the drain was killed (signal: 9").count(), 3, "{said}");
    // What the last one says is not all, and does not read so.
    assert!(said.contains(" dropped, told by 1 of 4 drains\n"), "{said}");
    let silent = "drains 1, 2, 3 of 4 ended by signal 9 and told no figures: what they had sent is in \
                  the server's report";
    assert!(said.contains(silent), "{said}");
    check_served(&shell, &said);
}

#[test]
fn a_drain_that_was_stopped_goes_on_when_its_program_has_ended() {
    let traced = Program::c(ENDLESS).build(Hooks::Ours);
    let shell = traced.shell();
    let server = Server::ours(&shell, &["--out", "served"]);
    let flags = format!("--path kept --live 127.0.0.1:{}", server.port);
    let run = start(&shell, "bash", &["-c", &format!("exec callsight run {flags} -- ./prog 2>&1")]);
    let ring = format!("/callsight-run-{}-", run.id());
    until("there is a drain", || drain_of(&shell, &ring).is_some());
    let drain = drain_of(&shell, &ring).expect("it is there");
    // SAFETY: a signal to a process; touches no memory.
    unsafe { libc::kill(drain, libc::SIGSTOP) };
    let said = end(run, &shell);
    server.stop();
    assert!(said.contains("the drain was stopped and is told to go on"), "{said}");
    assert!(!said.contains("given up"), "{said}");
    check_served(&shell, &said);
    let (kept, served) = (Report::of(&shell, &["kept"]), Report::of(&shell, &["served"]));
    assert_eq!((kept.calls(), kept.lost()), (served.calls(), 0), "{said}");
}

#[test]
fn serve_replaces_a_drain_that_is_killed_while_its_program_runs() {
    let traced = Program::c(ENDLESS).build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.shell());
    let server = Server::ours(&shell, &["--out", "served", "--ring", ring.name()]);
    let traced_shell = shell.clone().env("TRACE_ENABLE", "1").env("TRACE_SHM", ring.name());
    let program = start(&traced_shell, "./prog", &[]);
    let mut killed = Vec::new();
    (0..3).for_each(|_| kill_drain(&shell, ring.name(), &mut killed));
    let said = end(program, &shell);
    until("the ring is drained", || !ring.exists());
    let served = server.stop();
    assert_eq!(served.matches("was killed (signal: 9").count(), 3, "{served}");
    check_served(&shell, &said);
}

#[test]
fn the_drain_of_a_server_that_was_killed_ends_and_the_next_server_has_what_it_left() {
    check_next_server(&[]);
}

#[test]
fn the_next_server_of_events_has_all_that_a_killed_one_and_its_drain_left_once() {
    let notices = check_next_server(&["--events"]);
    assert!(!notices.iter().any(|notice| notice.contains("broke off")), "{notices:?}");
}

/// Kills a server with these flags, whose drain ends then, and looks into what the next one has in the
/// end; what its report says.
#[track_caller]
fn check_next_server(flags: &[&str]) -> Vec<String> {
    let traced = Program::c(ENDLESS).build(Hooks::Ours);
    let (ring, shell) = (Ring::new(), traced.shell());
    let words = [&["--out", "served", "--ring", ring.name()], flags].concat();
    let traced_shell = shell.clone().env("TRACE_ENABLE", "1").env("TRACE_SHM", ring.name());
    let server = Server::ours(&shell, &words);
    let program = start(&traced_shell, "./prog", &[]);
    until("there is a drain", || drain_of(&shell, ring.name()).is_some());
    let capture = shell.folder().join("served/trace.stream.1.0.bin");
    until("it has sent something", || fs::metadata(&capture).is_ok_and(|of| of.len() > 4096));
    server.kill();
    until("its drain ends", || drain_of(&shell, ring.name()).is_none());
    assert!(ring.exists());
    let server = Server::ours(&shell, &words);
    until("there is another", || drain_of(&shell, ring.name()).is_some());
    let said = end(program, &shell);
    until("the ring is drained", || !ring.exists());
    server.stop();
    check_served(&shell, &said)
}

#[test]
fn serve_drains_a_ring_of_its_machine_as_often_as_programs_use_it() {
    let traced = Program::c(FANOUT).build(Hooks::Ours);
    let ring = Ring::new();
    let shell = traced.shell().env("TRACE_ENABLE", "1").env("TRACE_SHM", ring.name());
    let shell = shell.env("TRACE_SHM_SIZE", "67108864");
    let is_drained = || {
        let begin = Instant::now();
        while ring.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the ring is not drained");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Once before it is there, twice beside it.
    shell.ok("./prog 20");
    assert!(ring.exists());
    let server = Server::ours(&traced.shell(), &["--out", "traces", "--ring", ring.name()]);
    is_drained();
    for _ in 0..2 {
        shell.ok("./prog 20");
        is_drained();
    }
    let said = server.stop();
    assert_eq!(traced.report().number("events"), 3 * 133052, "{said}");
}
