//! Sinks that stop, crawl or are full: F5, F6, F9, F10. The other sink does not notice.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callsight_tests::{Built, Hooks, Program, Ran, Report};

use crate::job::{Job, wait_until};
use crate::outcome::{Outcome, Plan};
use crate::relay::{Relay, Weather};
use crate::ringview::drain_pid;
use crate::scene::{Scene, drain, ended_well, tally};
use crate::truth::{Account, Truth};
use crate::{kills, stepper};

const FANOUT: &str = include_str!("../programs/fanout.c");
const STEADY: &str = include_str!("../programs/steady.c");

/// Who is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    Drain,
    Server,
    FileSink,
}

/// F5: the drain, the server or the file sink is stopped for a while.
pub fn stopped(plan: &Plan) -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Outcome::Skipped("the steady program counts ticks as x86-64 does".to_owned());
    }
    let hold = Duration::from_secs(plan.either(2, 10));
    let program = Program::c(STEADY).build(Hooks::Ours);
    let mut figures = Vec::new();
    for who in [Stopped::Drain, Stopped::Server, Stopped::FileSink] {
        figures.push(stop(&program, who, hold));
    }
    if stepper::obstacle().is_none() {
        let (usual, most) = kills::instructions_of_a_call();
        let slow = most - usual;
        assert!(
            slow <= SLOW_INSTRUCTIONS,
            "all held but one: a hook that turns a page takes {slow} instructions more than the \
             {usual} that both hooks of a call take, above {SLOW_INSTRUCTIONS}; {}",
            figures.join("; ")
        );
        figures.push(format!("{slow} instructions in the slow path"));
    }
    Outcome::Holds(format!("{}; unaccounted=0", figures.join("; ")))
}

/// What the slow path of a hook may take beyond the usual one.
const SLOW_INSTRUCTIONS: usize = 400;

fn stop(program: &Built, who: Stopped, hold: Duration) -> String {
    let scene = Scene::new(16 << 20);
    let server = scene.server();
    let drain = scene.drain_with(&["--file", "kept", "127.0.0.1", &server.port.to_string()]);
    let file = scene.path("tally");
    let seconds = (2 * hold.as_secs()).to_string();
    let target = scene.program(&program.exe, &[file.to_str().expect("a path"), &seconds]);
    wait_until("the target makes calls", || Truth::read(&file).least > 1000);
    wait_until("the drain is attached", || drain_pid(&scene.ring) == Some(drain.pid()));
    let pid = match who {
        Stopped::Drain => drain.pid(),
        Stopped::Server => server.job.pid(),
        Stopped::FileSink => child_of(drain.pid()).expect("the file sink is a process of its own"),
    };
    signal(pid, libc::SIGSTOP);
    std::thread::sleep(hold);
    signal(pid, libc::SIGCONT);
    let ran = target.end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "done\n", ""), "{ran}");
    let drained = drain.end();
    ended_well(&drained);
    server.stop();
    let truth = Truth::read(&file);
    let [live, kept] = both_hold(&scene, truth, &format!("{who:?} stopped: {drained}"));
    // What a ring cannot hold while the drain is stopped is lost to both; else a sink that goes on
    // loses as good as nothing.
    for (account, healthy) in [(&live, Stopped::Server), (&kept, Stopped::FileSink)] {
        if who != healthy && who != Stopped::Drain {
            assert!(account.lost_events() * 20 <= truth.least, "{who:?} stopped: {account}");
        }
    }
    let [worst_ns, slow, timed] = costs(&file);
    // Hooks that waited would do so at each page, one call in some hundreds; the machine's own pauses come by
    // time.
    assert!(slow * 2_000 <= timed, "{who:?} stopped: {slow} of {timed} calls took 50 us");
    format!(
        "{who:?} stopped {} s: live {live}, file {kept}, worst call {:.1} us of CPU, {slow} of \
         {timed} above 50 us, no system call",
        hold.as_secs(),
        worst_ns as f64 / 1e3
    )
}

/// The accounts of the live capture and of the file; each holds by itself.
#[track_caller]
fn both_hold(scene: &Scene, truth: Truth, what: &str) -> [Account; 2] {
    let accounts = ["traces", "kept"].map(|folder| scene.account_of(folder));
    accounts[0].holds(truth, &format!("live sink, {what}"));
    accounts[1].holds(truth, &format!("file sink, {what}"));
    accounts
}

/// What a steady program wrote behind its counts.
fn costs(file: &Path) -> [u64; 3] {
    let bytes = std::fs::read(file).expect("the counts");
    [3, 4, 5]
        .map(|word| u64::from_ne_bytes(bytes[8 * word..8 * word + 8].try_into().expect("8 bytes")))
}

fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn signal(pid: u32, number: i32) {
    // SAFETY: the process is ours, or a child of one that is ours and alive.
    unsafe { libc::kill(pid.cast_signed(), number) };
}

/// F6: the server takes 64 KiB a second.
pub fn slow_reader(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F6");
    let scene = Scene::new(16 << 20);
    let server = scene.server();
    let weather = Weather { bytes_per_second: 64 << 10, ..Weather::default() };
    let relay = Relay::start(server.port, weather, &mut chance);
    let drain = scene.drain_with(&["--file", "kept", "127.0.0.1", &relay.port.to_string()]);
    let file = scene.path("tally");
    let calls = plan.either("6000000", "12000000");
    let words = [file.to_str().expect("a path"), "2", calls, "500", "noise"];
    let ran = scene.program(tally(), &words).end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "done 2\n", ""), "{ran}");
    std::thread::sleep(Duration::from_secs(plan.either(8, 60)));
    relay.clear_up();
    let drained = drain.end();
    assert!(drained.all().contains("unaccounted=0"), "{drained}");
    server.stop();
    let [live, kept] = both_hold(&scene, Truth::read(&file), &drained.to_string());
    assert_eq!(kept.lost_for("queue") + kept.lost_for("io"), 0, "the file is complete: {kept}");
    assert_eq!(relay.connections(), 1, "no connection is given up for being slow: {drained}");
    Outcome::Holds(format!("live {live}, file {kept}, 1 connection, unaccounted=0"))
}

/// F9: one sink's disk of 1 MiB is full; the other sink, and the target, do not notice.
pub fn full_disks(plan: &Plan) -> Outcome {
    let scene = Scene::new(16 << 20);
    let ran = scene.shell().run("unshare -rm bash -c 'mkdir m; mount -t tmpfs none m'");
    if ran.code != 0 {
        return Outcome::Skipped(format!("a mount of its own: {}", ran.stderr));
    }
    let calls = plan.either("2000000", "8000000");
    let file = full_disk_of_the_file_sink(calls);
    let live = full_disk_of_the_server(calls);
    Outcome::Holds(format!("{file}; {live}; unaccounted=0"))
}

/// A command in a mount namespace where folder `small` is a file system of 1 MiB; what is in it at
/// the end is copied to `copy`.
fn on_a_small_disk(scene: &Scene, command: &str) -> Job {
    for folder in ["small", "copy"] {
        std::fs::create_dir_all(scene.path(folder)).expect("make a folder");
    }
    // Signals of the test go to the shell, which hands them on.
    let script = format!(
        "mount -t tmpfs -o size=1m none small; {command} & child=$!; \
         trap 'kill -TERM $child' TERM; wait $child; code=$?; \
         while kill -0 $child 2>/dev/null; do wait $child; code=$?; done; \
         cp small/* copy/; exit $code"
    );
    let mut unshare = Command::new("unshare");
    Job::start(&scene.shell(), unshare.args(["-rm", "bash", "-c", &script]))
}

fn full_disk_of_the_file_sink(calls: &str) -> String {
    let scene = Scene::new(16 << 20);
    let server = scene.server();
    let command = format!(
        "{} {} --file small 127.0.0.1 {}",
        drain().display(),
        scene.ring.name(),
        server.port
    );
    let drain = on_a_small_disk(&scene, &command);
    let (truth, drained) = run_beside(&scene, calls, drain);
    server.stop();
    let live = scene.account();
    live.holds(truth, &format!("the live sink beside a full disk: {drained}"));
    assert_eq!(live.lost_for("io"), 0, "{live}");
    let report = scene.report_of("copy");
    let kept = Account::of(&report);
    kept.holds(truth, &format!("the file on a full disk: {drained}"));
    says_why(&report, &kept);
    format!("file sink on 1 MiB: {kept}, live {live}")
}

fn full_disk_of_the_server(calls: &str) -> String {
    let scene = Scene::new(16 << 20);
    let callsight = callsight_tests::callsight().display().to_string();
    let command = format!("{callsight} serve --host 127.0.0.1 --port 0 --out small");
    let server = on_a_small_disk(&scene, &command);
    let mut port = None;
    wait_until("the server listens", || {
        port = crate::scene::listening_port(&server.so_far());
        port.is_some()
    });
    let port = port.expect("a port").to_string();
    let drain = scene.drain_with(&["--file", "kept", "127.0.0.1", &port]);
    let (truth, drained) = run_beside(&scene, calls, drain);
    let served = server.stop();
    let kept = scene.account_of("kept");
    kept.holds(truth, &format!("the file beside a full server: {drained}"));
    assert_eq!(kept.lost_for("io"), 0, "{kept}");
    let report = scene.report_of("copy");
    let live = Account::of(&report);
    live.holds(truth, &format!("the capture of a full server: {served}"));
    says_why(&report, &live);
    format!("server on 1 MiB: {live}, file {kept}")
}

/// Runs the target; it is the same as without a full disk.
fn run_beside(scene: &Scene, calls: &str, drain: Job) -> (Truth, Ran) {
    let file = scene.path("tally");
    let words = [file.to_str().expect("a path"), "2", calls, "1000", "noise"];
    let ran = scene.program(tally(), &words).end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "done 2\n", ""), "{ran}");
    let drained = drain.end();
    assert!(drained.all().contains("unaccounted=0"), "{drained}");
    (Truth::read(&file), drained)
}

#[track_caller]
fn says_why(report: &Report, account: &Account) {
    assert!(account.lost_for("io") > 0, "so many events do not fit into 1 MiB: {account}");
    assert!(!report.notices().is_empty(), "the report says why events are missing");
}

/// F10: a budget of 8 MiB for 26 threads, looked at all the time.
pub fn budgets(plan: &Plan) -> Outcome {
    const BUDGET: u64 = 8 << 20;
    let rounds = plan.either("600", "3000");
    let program = Program::c(FANOUT);
    let (_, counts) = program.build(Hooks::Count).counted(rounds);
    let traced = program.build(Hooks::Ours);
    let mut figures = Vec::new();
    for (full, segment_mb) in [("stop", "1"), ("wrap", "1"), ("wrap", "2")] {
        let shell = traced.tracing().env("TRACE_MAX_MB", "8").env("TRACE_FULL", full);
        let shell = shell.env("TRACE_SEG_MB", segment_mb);
        let over = AtomicBool::new(false);
        let (ran, most) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !over.load(Ordering::Relaxed) {
                    most = most.max(size_of(&traced.folder().join("traces")));
                    std::thread::sleep(Duration::from_micros(200));
                }
                most
            });
            let ran = shell.run(&format!("exec ./prog {rounds}"));
            over.store(true, Ordering::Relaxed);
            (ran, watch.join().expect("the watcher"))
        });
        assert_eq!(ran.code, 0, "{ran}");
        let header = callsight_format::FILE_HEADER_MAPPED_BYTES as u64;
        assert!(most <= BUDGET + header, "{full}: {most} bytes with a budget of {BUDGET}");
        let account = Account::of(&traced.report());
        account.holds(Truth::exactly(counts.events()), &format!("a budget, {full}"));
        assert!(account.lost_events() > 0, "{full}: more than fits was recorded: {account}");
        figures.push(format!("{full}: at most {most} of {BUDGET} bytes, {account}"));
    }
    Outcome::Holds(format!("{}; unaccounted=0", figures.join("; ")))
}

/// Bytes of all files of a folder, as long as they are there.
fn size_of(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
