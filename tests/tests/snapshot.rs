//! Snapshots: what they say of losses, of pauses, and of which process they are.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use callsight_tests::{Built, Hooks, Program, Report, Ring, Shell};
use serde_json::Value;

const CREW: &str = include_str!("../programs/crew.c");
/// More than the smallest rings have room for.
const MANY: u64 = 20000;
/// How long anything here may take before the test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A crew of four threads that records into a ring.
struct Crew {
    child: Child,
    words: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
    ring: Ring,
    /// The ring of what it starts in its place.
    next_ring: Ring,
    shell: Shell,
    built: Built,
}

impl Crew {
    fn start(ring_bytes: u64) -> Crew {
        // Names in order: the next one is found first.
        let (next_ring, ring) = (Ring::new(), Ring::new());
        let built = Program::c(CREW).build(Hooks::Ours);
        let shell = built.shell();
        let mut command = Command::new(&built.exe);
        let prepared = shell.prepare(command.args(["4", &MANY.to_string(), next_ring.name()]));
        prepared
            .env("TRACE_ENABLE", "1")
            .env("TRACE_SHM", ring.name())
            .env("TRACE_SHM_SIZE", ring_bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = prepared.spawn().expect("start the crew");
        let words = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut crew = Crew { child, words, lines, ring, next_ring, shell, built };
        crew.answers("ready");
        crew
    }

    #[track_caller]
    fn answers(&mut self, what: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("an answer");
        assert_eq!(line.trim_end(), what);
    }

    fn tell(&mut self, word: &str) {
        let words = self.words.as_mut().expect("it listens");
        words.write_all(word.as_bytes()).expect("tell it");
    }

    #[track_caller]
    fn does(&mut self, word: &str) {
        self.tell(word);
        self.answers("done");
    }

    fn starts_again(&mut self) {
        self.tell("x");
        self.answers("ready");
    }

    fn ends(&mut self) {
        drop(self.words.take());
        assert!(self.child.wait().expect("its end").success());
    }

    fn is_killed(&mut self) {
        self.child.kill().expect("kill it");
        self.child.wait().expect("its end");
    }

    fn callsight(&self, line: &str) -> String {
        let ran = self.shell.callsight(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{ran}");
        ran.stdout
    }

    /// What `callsight rings` says of its ring.
    fn listed(&self) -> Value {
        let list: Value = serde_json::from_str(&self.callsight("rings --json")).expect("JSON");
        let rings = list["rings"].as_array().expect("rings");
        rings.iter().find(|ring| ring["name"] == self.ring.name()).expect("its ring").clone()
    }

    fn dropped(&self) -> u64 {
        let dropped = self.listed()["dropped"].as_object().expect("causes").clone();
        dropped.values().map(|events| events.as_u64().expect("a number")).sum()
    }

    #[track_caller]
    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let begin = Instant::now();
        while !holds(&self.listed()) {
            assert!(begin.elapsed() < PATIENCE, "never so: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A drain of its ring into files.
    fn drain(&self) -> Child {
        let line = format!("exec callsight drain --file traces {}", self.ring.name());
        let mut command = Command::new("bash");
        let drain = self.shell.prepare(command.args(["-c", &line]).stderr(Stdio::null())).spawn();
        drain.expect("start a drain")
    }

    /// A snapshot of what the crew does behind what a drain has taken, many pages, and is stopped then.
    fn snapshot_behind(&mut self, drain: &Child) -> Taken {
        let pid = drain.id();
        self.does("g");
        self.until("the drain has all", |ring| ring["held_events"] == 0);
        self.shell.ok(&format!("kill -STOP {pid}"));
        self.does("s");
        let taken = self.snapshot("now");
        self.shell.ok(&format!("kill -CONT {pid}"));
        taken
    }

    fn snapshot(&self, out: &str) -> Taken {
        let said = self.callsight(&format!("snapshot {} --out {out}", self.child.id()));
        let printed = self.callsight(&format!("analyze {out} --format json"));
        let json = serde_json::from_str(&printed).expect("a JSON report");
        Taken { said, report: Report::parse(&printed), json }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `callsight snapshot` says, and the report on what it took.
struct Taken {
    said: String,
    report: Report,
    json: Value,
}

impl Taken {
    fn has(&self, words: &str) -> bool {
        self.report.notices().iter().any(|line| line.contains(words))
    }

    #[track_caller]
    fn says(&self, words: &str) {
        assert!(self.has(words), "{:?}", self.report.notices());
    }

    #[track_caller]
    fn is_of_one_process(&self) {
        assert_eq!(self.json["processes"].as_array().map(Vec::len), Some(1), "{:#}", self.json);
        assert!(!self.has("runs are added up"), "{:?}", self.report.notices());
    }

    /// What the report says adds up, and has the losses of the ring.
    #[track_caller]
    fn adds_up(&self, crew: &Crew) {
        assert_eq!(self.report.lost(), crew.dropped(), "{:?}", self.report.notices());
        let records = |name: &str| self.json["identity"][name].as_u64().expect("a number");
        assert_eq!(records("emitted"), records("delivered") + self.report.lost(), "{}", self.said);
    }
}

#[test]
fn threads_that_have_no_page_of_a_full_ring_tell_what_they_lost() {
    let mut crew = Crew::start(64 << 10);
    crew.does("g");
    let taken = crew.snapshot("now");
    taken.adds_up(&crew);
    assert_eq!(taken.report.number("events") + taken.report.lost(), 4 * 2 * MANY);
    // Those that come when there is no room are in no page at all.
    crew.is_killed();
    let taken = crew.snapshot("dead");
    taken.adds_up(&crew);
    assert_eq!(taken.report.number("events") + taken.report.lost(), 4 * 2 * MANY);
}

#[test]
fn a_snapshot_beside_a_drain_has_all_the_losses_of_its_ring() {
    let mut crew = Crew::start(64 << 10);
    // It makes its ring with its first call.
    crew.does("s");
    let mut drain = crew.drain();
    crew.until("the drain is there", |ring| ring["drain"]["alive"] == true);
    let pid = drain.id();
    crew.shell.ok(&format!("kill -STOP {pid}"));
    crew.does("g");
    crew.shell.ok(&format!("kill -CONT {pid}"));
    crew.until("the drain has all", |ring| ring["held_events"] == 0);
    // Until the pages are gone whose notes tell the losses.
    for _ in 0..9 {
        crew.does("s");
    }
    let taken = crew.snapshot("now");
    assert!(taken.report.lost() > 0);
    taken.adds_up(&crew);
    crew.ends();
    drain.wait().expect("its end");
}

#[test]
fn what_a_drain_took_before_a_snapshot_is_not_called_lost() {
    let mut crew = Crew::start(16 << 20);
    crew.does("s");
    let mut drain = crew.drain();
    let taken = crew.snapshot_behind(&drain);
    assert_eq!(taken.report.lost(), 0);
    let said = taken.report.notices().join("\n");
    assert!(said.contains("older segments were rotated away, or a drain took it"), "{said}");
    assert!(!said.contains("lost"), "{said}");
    crew.ends();
    drain.wait().expect("its end");
}

#[test]
fn threads_whose_names_a_drain_took_have_them_in_a_snapshot() {
    let mut crew = Crew::start(16 << 20);
    crew.does("s");
    let mut drain = crew.drain();
    let taken = crew.snapshot_behind(&drain);
    assert_eq!(taken.report.thread_names(), ["prog"; 4]);
    crew.ends();
    drain.wait().expect("its end");
}

#[test]
fn a_process_that_is_over_is_one_process_that_ended_as_it_did() {
    let mut crew = Crew::start(16 << 20);
    crew.does("g");
    let mut again = Crew::start(16 << 20);
    again.does("g");
    crew.ends();
    let taken = crew.snapshot("ended");
    taken.is_of_one_process();
    taken.report.clean();
    assert_eq!(taken.report.calls_of("leaf"), 4 * MANY);
    again.is_killed();
    let taken = again.snapshot("killed");
    taken.is_of_one_process();
    taken.says("did not end in order");
}

#[test]
fn a_program_whose_file_is_gone_is_one_process() {
    let mut crew = Crew::start(16 << 20);
    crew.does("g");
    std::fs::remove_file(&crew.built.exe).expect("remove the program");
    let taken = crew.snapshot("now");
    taken.is_of_one_process();
    taken.says("had not ended when this was taken");
}

#[test]
fn of_two_rings_that_name_a_process_the_one_is_taken_that_it_uses() {
    let mut crew = Crew::start(16 << 20);
    crew.does("s");
    crew.starts_again();
    crew.does("g");
    let taken = crew.snapshot("now");
    assert!(taken.said.contains(crew.next_ring.name()), "{}", taken.said);
    taken.is_of_one_process();
    assert_eq!(taken.report.calls_of("leaf"), 4 * MANY);
}

#[test]
fn a_snapshot_in_a_pause_says_so() {
    let mut crew = Crew::start(16 << 20);
    crew.does("s");
    let taken = crew.snapshot("before");
    assert!(!taken.has("paused"), "{:?}", taken.report.notices());
    crew.callsight(&format!("rings --pause {}", crew.ring.name()));
    let taken = crew.snapshot("at_once");
    taken.says("recording was paused 4 times in 4 threads");
    crew.does("s");
    crew.does("g");
    crew.callsight(&format!("rings --resume {}", crew.ring.name()));
    // They have not gone on since, and left out some calls.
    let taken = crew.snapshot("behind");
    taken.says("recording was paused 4 times in 4 threads");
    assert!(taken.report.calls_of("leaf") < 4 * (20 + MANY));
    assert_eq!(taken.report.lost(), 0);
}
