//! Rings of this machine: listed, told what to do, removed when nobody uses them, and looked into
//! while they are used.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use callsight_tests::{
    Built, Calls, Drain, Hooks, Program, Ran, Report, Ring, Server, Shell, skip,
};
use serde_json::Value;

const PRODUCER: &str = include_str!("../programs/producer.c");
/// How long anything here may take before the test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that records into a ring.
struct Running {
    child: Child,
    ring: Ring,
    shell: Shell,
}

impl Running {
    /// Starts it, and waits until there is something of it in the ring.
    fn start(program: &Built, arguments: &str, ring_bytes: u64) -> Running {
        let ring = Ring::new();
        let shell = program.shell();
        let mut command = Command::new(&program.exe);
        let prepared = shell.prepare(command.args(arguments.split_whitespace()));
        prepared
            .env("TRACE_ENABLE", "1")
            .env("TRACE_SHM", ring.name())
            .env("TRACE_SHM_SIZE", ring_bytes.to_string())
            .stdout(Stdio::null());
        let child = prepared.spawn().expect("start the program");
        let running = Running { child, ring, shell };
        running.until("there are events", |ring| ring["held_events"].as_u64() > Some(5000));
        running
    }

    /// Starts a drain with these words, and waits until it has the ring.
    fn drained(&self, words: &str) -> Child {
        let mut command = Command::new("bash");
        let command = command.args(["-c", &format!("exec callsight drain {words}")]);
        let drain = self.shell.prepare(command.stderr(Stdio::null())).spawn();
        self.until("the drain is there", |ring| ring["drain"]["alive"] == true);
        drain.expect("start a drain")
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// What `callsight rings` says of the ring.
    fn listed(&self) -> Value {
        listed(&self.shell, self.ring.name()).expect("it is listed")
    }

    fn held_events(&self) -> u64 {
        self.listed()["held_events"].as_u64().expect("a number")
    }

    /// How many there are once there are no more of them.
    #[track_caller]
    fn settled_events(&self) -> u64 {
        let (begin, mut before) = (Instant::now(), u64::MAX);
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = self.held_events();
            if now == before {
                return now;
            }
            assert!(begin.elapsed() < PATIENCE, "never so: nothing is recorded any more");
            before = now;
        }
    }

    #[track_caller]
    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let begin = Instant::now();
        while !listed(&self.shell, self.ring.name()).is_some_and(|ring| holds(&ring)) {
            assert!(begin.elapsed() < PATIENCE, "never so: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn callsight(&self, line: &str) -> Ran {
        self.shell.callsight(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Waits for its end, or ends it.
    fn end(&mut self, kill: bool) {
        if kill {
            self.child.kill().expect("kill the program");
        }
        self.child.wait().expect("its end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listed(shell: &Shell, name: &str) -> Option<Value> {
    let ran = shell.callsight(&["rings", "--json"]);
    assert_eq!(ran.code, 0, "{ran}");
    let list: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    list["rings"].as_array().expect("rings").iter().find(|ring| ring["name"] == name).cloned()
}

fn true_calls(arguments: &str) -> Calls {
    Program::c(PRODUCER).build(Hooks::Count).counted(arguments).1.calls
}

#[test]
fn a_ring_in_use_is_listed_and_not_removed() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let running = Running::start(&program, "10000000 1 2000", 1 << 20);
    let ring = running.listed();
    assert_eq!(
        (&ring["abandoned"], &ring["version"], &ring["command"]),
        (&Value::from(false), &Value::from(3), &Value::from("record")),
        "{ring}"
    );
    let process = &ring["processes"][0];
    assert_eq!(process["pid"], running.child.id(), "{ring}");
    assert_eq!((&process["alive"], &process["attached"]), (&Value::from(true), &Value::from(true)));
    let exe = fs::canonicalize(&program.exe).expect("its path");
    assert_eq!(process["executable"], exe.to_str().expect("text"), "{ring}");
    assert_eq!(ring["drain"], Value::Null);
    let text = running.callsight("rings").stdout;
    assert!(text.contains(&format!("{}: version 3", running.ring.name())), "{text}");
    assert!(
        text.contains(&format!("process {} (alive): {}", running.pid(), exe.display())),
        "{text}"
    );
    let refused = running.callsight(&format!("rings --remove {}", running.ring.name()));
    refused.refused(&[running.ring.name(), "in use"]);
    assert!(running.ring.exists());
}

#[test]
fn a_ring_of_the_dead_is_removed_and_what_was_in_it_is_said() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let ring = Ring::new();
    let shell = program.shell().env("TRACE_ENABLE", "1").env("TRACE_SHM", ring.name());
    // Killed, and not even a drain was ever there.
    assert_eq!(shell.run("exec ./prog 1000 1 0 kill").code, 137);
    let listed = listed(&shell, ring.name()).expect("it is listed");
    assert_eq!(
        (&listed["abandoned"], &listed["held_events"]),
        (&Value::from(true), &Value::from(2005)),
        "{listed}"
    );
    assert_eq!(listed["processes"][0]["alive"], false);
    let removed = shell.callsight(&["rings", "--remove", ring.name()]);
    assert_eq!(removed.code, 0, "{removed}");
    assert_eq!(
        removed.stdout,
        format!("removed {}: 2005 events were in it, 0 dropped\n", ring.name())
    );
    assert!(!ring.exists());
    // Where nobody names a ring, there is nothing to do any more.
    shell.callsight(&["rings", "--remove", ring.name()]).refused(&[ring.name(), "No such file"]);
}

#[test]
fn programs_that_start_together_share_a_ring_that_there_is_room_for_once() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let traces = program.folder().join("traces");
    let inner = "mount -t tmpfs -o size=24m none /dev/shm; mkdir files traces
        export TRACE_ENABLE=1 TRACE_SHM=/r TRACE_DIR=$PWD/files
        for i in $(seq 30); do ./prog 1000 1 > /dev/null & done; wait
        ls -A files /dev/shm; unset TRACE_ENABLE; callsight drain --file traces /r";
    let mut command = Command::new("unshare");
    let command = command.args(["--map-root-user", "--mount", "bash", "-ec", inner]);
    let ran = program.shell().command(command, inner);
    if ran.stderr.contains("unshare") || ran.stderr.contains("mount:") {
        return skip("programs_that_start_together_share_a_ring", &ran.stderr);
    }
    // Nobody writes files, and nothing is left beside the ring.
    assert_eq!(ran.stdout, "/dev/shm:\nr\n\nfiles:\n", "{ran}");
    assert!(traces.exists() && ran.code == 0, "{ran}");
    let report = program.report();
    assert_eq!((report.calls_of("leaf"), report.lost()), (30_000, 0), "{ran}");
}

/// The file whose lock is the turn to make this ring: of a number that no process has.
fn turn_to_make(ring: &Ring) -> String {
    let hash = ring
        .name()
        .bytes()
        .skip(1)
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("/dev/shm/.callsight-{}", 4_194_304_000 + hash % 100_000_000)
}

#[test]
fn a_ring_whose_maker_was_stopped_is_made_by_the_next_program() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let ring = Ring::new();
    let turn = File::create(turn_to_make(&ring)).expect("the turn");
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::flock(turn.as_raw_fd(), libc::LOCK_EX) }, 0);
    let ran = program.tracing().env("TRACE_SHM", ring.name()).run("exec ./prog 1000 1");
    assert_eq!(ran.code, 0, "{ran}");
    let drained = program.shell().ok(&format!("callsight drain --file traces {}", ring.name()));
    assert_eq!(program.report().calls_of("leaf"), 1000, "{drained}");
    // It was waited for, and nobody waits for it again.
    assert_eq!(turn.metadata().expect("it is open").nlink(), 0);
}

#[test]
fn a_ring_whose_maker_was_killed_is_made_by_the_next_program() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let ring = Ring::new();
    let left = turn_to_make(&ring);
    drop(File::create(&left).expect("the turn"));
    program.tracing().env("TRACE_SHM", ring.name()).ok("exec ./prog 1000 1");
    assert!(ring.exists() && !fs::exists(&left).expect("ask"));
}

#[test]
fn a_ring_of_version_2_is_listed_and_removed_but_told_nothing() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let ring = Ring::new();
    let shell = program.shell().env("TRACE_ENABLE", "1").env("TRACE_SHM", ring.name());
    assert_eq!(shell.clone().env("TRACE_RING", "2").run("exec ./prog 1000 1 0 exit").code, 0);
    let listed = listed(&shell, ring.name()).expect("it is listed");
    assert_eq!((&listed["version"], &listed["abandoned"]), (&2.into(), &true.into()), "{listed}");
    let held = listed["held_events"].as_u64().expect("a number");
    assert!(held >= 2006, "{listed}");
    shell.callsight(&["rings", "--pause", ring.name()]).refused(&["version 2", "TRACE_RING=3"]);
    let removed = shell.callsight(&["rings", "--remove", ring.name()]);
    assert!(removed.stdout.contains(&format!("{held} events were in it")), "{removed}");
    assert!(!ring.exists());
}

#[test]
fn a_ring_that_a_drain_waits_on_is_not_abandoned() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let mut running = Running::start(&program, "10000000 1 2000", 1 << 20);
    let name = running.ring.name().to_owned();
    let mut drain = running.drained(&format!("--reconnect {name} 127.0.0.1 9"));
    running.end(true);
    assert_eq!(running.listed()["abandoned"], false);
    running.callsight(&format!("rings --remove {name}")).refused(&[&name]);
    drain.kill().expect("kill the drain");
    drain.wait().expect("its end");
    assert_eq!(running.callsight(&format!("rings --remove {name}")).code, 0);
    assert!(!running.ring.exists());
}

#[test]
fn a_spare_of_a_drain_that_was_killed_is_listed_and_goes() {
    let ring = Ring::new();
    let spare = format!("/.callsight-spare-{}", &ring.name()[1..]);
    let path = format!("/dev/shm{spare}");
    let shell = Shell::new(std::env::temp_dir());
    let line = format!("exec callsight drain --file none {} & echo $!; wait", ring.name());
    let mut command = Command::new("bash");
    let command = command.args(["-c", &line]).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut drain = shell.prepare(command).spawn().expect("start a drain");
    let out = drain.stdout.take().expect("its output");
    let pid = BufReader::new(out).lines().next().expect("a line").expect("a pid");
    let begin = Instant::now();
    while !std::path::Path::new(&path).exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no spare");
    }
    let listed = || shell.callsight(&["rings"]).stdout;
    let made = format!("made in advance by the drain {pid}");
    assert!(listed().contains(&spare) && listed().contains(&made), "{}", listed());
    shell.callsight(&["rings", "--remove", &spare]).refused(&["in use"]);
    shell.run(&format!("kill -9 {pid}"));
    drain.wait().expect("its end");
    let file = File::options().write(true).open(&path).expect("the spare is left");
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("its age");
    let ran = shell.callsight(&["rings", "--remove", &spare]);
    assert!(ran.code == 0 && ran.stdout.contains("ended before it was used"), "{ran}");
    assert!(!std::path::Path::new(&path).exists());
}

#[test]
fn a_ring_that_was_never_named_goes_when_its_maker_is_long_gone() {
    // No pid is so high.
    let names = ["/.callsight-4194304999", "/.callsight-1"].map(|name| format!("/dev/shm{name}"));
    for name in &names {
        let file = File::create(name).expect("a ring to be");
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("its age");
        fs::set_permissions(name, Permissions::from_mode(0o600)).expect("its mode");
    }
    let shell = Shell::new(std::env::temp_dir());
    let [gone, living] = ["/.callsight-4194304999", "/.callsight-1"].map(|name| {
        let ran = shell.callsight(&["rings", "--remove", name]);
        (ran.code, std::path::Path::new("/dev/shm").join(&name[1..]).exists())
    });
    names.iter().for_each(|name| drop(fs::remove_file(name)));
    assert_eq!((gone, living), ((0, false), (2, true)));
}

#[test]
fn a_program_pauses_goes_on_and_stops_as_its_ring_is_told() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let running = Running::start(&program, "100000000 1 20000", 256 << 20);
    let name = running.ring.name().to_owned();
    assert_eq!(running.callsight(&format!("rings --pause {name}")).code, 0);
    assert_eq!(running.listed()["command"], "pause");
    let before = running.settled_events();
    assert_eq!(running.callsight(&format!("rings --resume {}", &name[1..])).code, 0);
    running
        .until("it is recorded again", |ring| ring["held_events"].as_u64() > Some(before + 5000));
    assert_eq!(running.listed()["dropped"], serde_json::json!({}), "a pause is no loss");
    assert_eq!(running.callsight(&format!("rings --stop {name}")).code, 0);
    running.until("it is counted", |ring| ring["dropped"]["stopped"].as_u64() > Some(0));
    let before = running.settled_events();
    assert_eq!(running.callsight(&format!("rings --resume {name}")).code, 0);
    running
        .until("a stop is undone, too", |ring| ring["held_events"].as_u64() > Some(before + 5000));
    let help = running.callsight("rings --help").stdout;
    assert!(help.contains("Let them record again, after --pause or --stop"), "{help}");
}

#[test]
fn what_is_no_ring_is_told_nothing_and_not_removed() {
    let shell = Shell::new(std::env::temp_dir());
    let ring = Ring::new();
    let path = format!("/dev/shm{}", ring.name());
    fs::write(&path, [0; 5000]).expect("no ring");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode");
    for action in ["--pause", "--resume", "--stop", "--remove"] {
        let told = |name: &str| shell.callsight(&["rings", action, name]);
        told("/callsight-absent").refused(&["callsight-absent", "No such file"]);
        for name in ["a/b", "../../etc/passwd", "", "/", "//callsight0"] {
            told(name).refused(&[&format!("\"{name}\""), "/callsight0"]);
        }
        told(ring.name()).refused(&["not a ring of callsight"]);
    }
    assert_eq!(listed(&shell, ring.name()), None, "others' objects are not ours to list");
    fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("its mode");
    shell.callsight(&["rings", "--remove", ring.name()]).refused(&["other users may open it"]);
    assert!(ring.exists());
}

#[test]
fn of_several_rings_those_are_removed_that_can_be() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let rings = [Ring::new(), Ring::new()];
    for ring in &rings {
        let shell = program.shell().env("TRACE_ENABLE", "1").env("TRACE_SHM", ring.name());
        assert_eq!(shell.run("exec ./prog 1000 1 0 kill").code, 137);
    }
    let [first, second] = [rings[0].name(), rings[1].name()];
    let words = ["rings", "--remove", "a/b", first, first, "/callsight-absent", &second[1..]];
    let ran = program.shell().callsight(&words);
    assert_eq!(
        (ran.code, ran.stdout.lines().count(), ran.stderr.lines().count()),
        (2, 2, 2),
        "{ran}"
    );
    assert!(ran.stderr.contains("a/b") && ran.stderr.contains("callsight-absent"), "{ran}");
    assert!(!rings[0].exists() && !rings[1].exists());
}

#[test]
fn a_snapshot_has_all_that_a_ring_holds_and_disturbs_nothing() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let arguments = "60000 3 40000";
    let mut running = Running::start(&program, arguments, 64 << 20);
    let taken = running.callsight(&format!("snapshot {} --out now", running.pid()));
    assert_eq!(taken.code, 0, "{taken}");
    let report = Report::of(&running.shell, &["now"]);
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
    assert_eq!(report.lost(), 0, "{:?}", report.notices());
    assert!(report.calls()["leaf"][0] > 1000, "{:?}", report.calls());
    assert!(taken.stdout.contains(&format!("{} events of", report.number("events"))), "{taken}");
    assert_eq!(taken.stdout.lines().count(), 1, "nothing is missing: {taken}");
    assert!(report.notices().iter().any(|line| line.contains("had not ended when this was taken")));
    // There is no second one of the same name by accident.
    let again = running.callsight(&format!("snapshot {} --out now", running.pid()));
    again.refused(&["trace.", "--out"]);
    running.end(false);
    let drained = running.callsight(&format!("drain --file traces {}", running.ring.name()));
    assert_eq!(drained.code, 0, "{drained}");
    assert_eq!(program.report().calls(), true_calls(arguments), "{drained}");
}

#[test]
fn a_snapshot_larger_than_files_may_be_is_refused() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let running = Running::start(&program, "60000 3 40000", 64 << 20);
    let script = format!("ulimit -f 8; exec callsight snapshot {} --out now", running.pid());
    running.shell.run(&script).refused(&["write"]);
}

#[test]
fn a_snapshot_of_a_killed_program_is_its_last_word() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let mut running = Running::start(&program, "4000 2 0 kill", 16 << 20);
    running.end(false);
    let taken = running.callsight(&format!("snapshot {}", running.pid()));
    assert_eq!(taken.code, 0, "{taken}");
    let report = Report::of(&running.shell, &[&format!("snapshot.{}", running.pid())]);
    assert_eq!(report.calls(), true_calls("4000 2 0 exit"), "{:?}", report.notices());
    assert_eq!(report.lost(), 0, "{:?}", report.notices());
}

#[test]
fn snapshots_beside_a_busy_drain_never_contradict_themselves() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let arguments = "20000000 2 200";
    let mut running = Running::start(&program, arguments, 256 << 10);
    let mut drain = running.drained(&format!("--file traces {}", running.ring.name()));
    let mut taken = 0;
    for number in 0..20 {
        let ran = running.callsight(&format!("snapshot {} --out now{number}", running.pid()));
        // Now and then a drain has just taken all.
        if ran.stderr.contains("holds no record of it now") {
            continue;
        }
        assert_eq!(ran.code, 0, "{ran}");
        let report = Report::of(&running.shell, &[&format!("now{number}")]);
        assert_eq!(report.number("unmatched_exits"), 0, "{ran}{:?}", report.notices());
        taken += u32::from(report.number("events") > 0);
    }
    assert!(taken > 0, "no snapshot had an event");
    running.end(true);
    assert!(drain.wait().expect("its end").success());
    let report = program.report();
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
}

#[test]
fn who_is_in_no_ring_has_no_snapshot() {
    let shell = Shell::new(std::env::temp_dir());
    shell.callsight(&["snapshot", "1"]).refused(&["process 1", "TRACE_SHM"]);
}

/// The number before `word` in the last line of `text` that has it.
#[track_caller]
fn number_before(text: &str, word: &str) -> u64 {
    let before = text.rsplit_once(word).unwrap_or_else(|| panic!("no {word:?} in {text}")).0;
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().expect("a word");
    digits.parse().unwrap_or_else(|_| panic!("no number before {word:?} in {text}"))
}

#[test]
fn what_restarted_drains_send_again_is_in_the_total_of_the_server_once() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let server = Server::ours(&program.shell(), &["--out", "served"]);
    // Compiled before the program begins, which does not wait for it.
    Drain::ours(&program.shell(), &Ring::new(), server.port).stop();
    let mut running = Running::start(&program, "300000 4 10000", 64 << 20);
    for _ in 0..3 {
        let drain = Drain::ours(&running.shell, &running.ring, server.port);
        running.until("a drain has some", |ring| ring["drain"]["alive"] == true);
        std::thread::sleep(Duration::from_millis(100));
        drain.kill();
    }
    let drain = Drain::ours(&running.shell, &running.ring, server.port);
    running.end(false);
    let drained = drain.finish();
    assert_eq!(drained.code, 0, "{drained}");
    let said = server.stop();
    let last = said.lines().last().expect("a last line");
    assert_eq!(last.contains("came twice"), said.contains("came in another stream"), "{said}");
    let report = Report::of(&running.shell, &["served"]);
    let events = number_before(last.split(" (").next().unwrap_or(last), " events");
    assert_eq!(events, report.number("events"), "{said}");
    let true_events = 2 * true_calls("300000 4").values().flatten().sum::<u64>();
    assert_eq!(events + report.lost(), true_events, "{said}");
}

#[test]
fn what_a_stopped_drain_leaves_is_what_the_next_one_finds() {
    let program = Program::c(PRODUCER).build(Hooks::Ours);
    let server = Server::ours(&program.shell(), &["--out", "served"]);
    let mut running = Running::start(&program, "100000000 3 0", 1 << 20);
    let drain = Drain::ours(&running.shell, &running.ring, server.port);
    let served = running.shell.folder().join("served/trace.stream.1.0.bin");
    let bytes = || fs::metadata(&served).map_or(0, |file| file.len());
    running.until("the server has some", |_| bytes() > 100_000);
    server.freeze();
    running.until("it fills up", |ring| ring["used_bytes"].as_u64() > Some(600_000));
    std::thread::sleep(Duration::from_millis(300));
    running.end(true);
    let stopped = drain.stop();
    server.kill();
    let last = stopped.stderr.lines().last().expect("a last line");
    let mut left = last.rsplit("left_in_ring=").next().expect(last).split(", ");
    let in_ring: u64 = left.next().and_then(|n| n.parse().ok()).expect(last);
    let untold = left.next().map_or(0, |untold| number_before(untold, " dropped for the next"));
    // What the server did not get is in the last line, too, and as in the line of that sink.
    let sink = stopped.stderr.lines().find(|line| line.contains(": live: ")).expect("a line of it");
    assert_eq!(number_before(last, " events forwarded"), number_before(sink, " delivered"));
    let unacked = |line: &str| {
        let number = line.split_once("unacked ").expect(line).1.split([')', ',']).next();
        number.expect("a number").parse::<u64>().expect(line)
    };
    assert_eq!(unacked(last), unacked(sink), "{stopped}");
    let held = running.held_events();
    let next = running.callsight(&format!("drain --file rest {}", running.ring.name()));
    let (events, dropped) =
        (number_before(&next.stderr, " events f"), number_before(&next.stderr, " dropped"));
    assert_eq!((events, dropped, in_ring), (held, untold, held), "{stopped}{next}");
}

#[test]
fn a_name_stays_in_its_line() {
    let shell = Shell::new(std::env::temp_dir());
    let path = format!("/dev/shm/callsight-test-{}\n\u{1b}[31m", std::process::id());
    fs::write(&path, b"TKSHM\0\0\0").expect("write the object");
    let listed = shell.callsight(&["rings"]);
    let name = path.strip_prefix("/dev/shm").expect("a name");
    let told = [&["rings", "--pause", name][..], &["rings", "--remove", name]];
    let told = told.map(|words| shell.callsight(words));
    fs::remove_file(&path).expect("remove the object");
    let shown = format!("{}\\x0a\\x1b[31m", name.split('\n').next().expect("a line"));
    assert!(listed.stdout.contains(&format!("{shown}: ")), "{listed}");
    for ran in told {
        assert!(ran.stderr.contains(&shown) && ran.stderr.lines().count() == 1, "{ran}");
    }
}
