//! Drains and servers that are killed and come again: F3 and F4.

use std::path::Path;
use std::time::{Duration, Instant};

use callsight_tests::{Hooks, Program, Ran};

use crate::job::{Job, wait_until};
use crate::outcome::{Outcome, Plan};
use crate::ringview::drain_pid;
use crate::scene::{Scene, ended_well, tally};
use crate::seed::Chance;
use crate::truth::{Account, Truth};

const TURNS: &str = include_str!("../programs/turns.c");

/// Kills of a drain while one program runs.
const KILLS: usize = 20;

/// F3: the drain is killed, or stopped, at a random moment, and another one takes over: of a program
/// that fills its ring, and of one whose threads come and go in a ring that has room for all.
pub fn killed_drains(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F3");
    let programs = plan.either(2, 5);
    let (mut sum, mut slowest) = (Account::default(), Duration::ZERO);
    for _ in 0..programs {
        let (account, attached) = kill_drains(&mut chance);
        sum.add(&account);
        slowest = slowest.max(attached);
    }
    let program = Program::c(TURNS).build(Hooks::Ours);
    let mut short_lived = 0;
    for round in 0..plan.either(4, 20) {
        short_lived += kill_drains_of_turns(&program.exe, &mut chance, round);
    }
    let kills = programs * KILLS + short_lived;
    Outcome::Holds(format!(
        "{kills} of {kills} drains killed or stopped, another drain is attached within {} ms, \
         output of the target \
         untouched, {sum} unaccounted=0; {short_lived} of them while threads came and went, nothing \
         lost and none told of",
        slowest.as_millis()
    ))
}

/// Fewer pages than the largest ring has, one a thread: it cannot become full.
const ROUNDS_OF_TURNS: u64 = 250;
/// They fit into a page of a ring of 64 MiB.
const CALLS_OF_A_TURN: u64 = 700;

/// Kills the drains of short threads as long as these come; how many it killed or stopped.
fn kill_drains_of_turns(exe: &Path, chance: &mut Chance, round: usize) -> usize {
    let scene = Scene::new(64 << 20);
    let server = scene.server();
    let mut drain = scene.drain(server.port);
    let pause_us = chance.pick(&["500", "2000", "5000"]);
    let words = [&ROUNDS_OF_TURNS.to_string(), &CALLS_OF_A_TURN.to_string(), pause_us];
    let mut program = scene.program(exe, &words);
    let mut ended = 0;
    loop {
        wait_until("a drain is attached", || drain_pid(&scene.ring) == Some(drain.pid()));
        std::thread::sleep(Duration::from_millis(chance.of_range(1..150)));
        if !program.is_running() {
            break;
        }
        end_drain(drain, chance);
        ended += 1;
        drain = scene.drain(server.port);
    }
    let what = format!("round {round}: short threads whose drain was ended {ended} times");
    let (ran, drained) = (program.end(), drain.end());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran}");
    ended_well(&drained);
    nothing_dropped(&drained, &what);
    nothing_dropped(&server.stop(), &what);
    let account = scene.account();
    let events = 4 * ROUNDS_OF_TURNS * 2 * CALLS_OF_A_TURN;
    account.holds(Truth::exactly(events), &what);
    assert_eq!(account.lost_events(), 0, "{what}: {account}");
    ended
}

/// Asserts that every count of what was dropped is 0.
#[track_caller]
fn nothing_dropped(ran: &Ran, what: &str) {
    let all = ran.all();
    let mut counts = all.lines().filter(|line| line.contains(" dropped")).peekable();
    assert!(counts.peek().is_some(), "{what}: {ran}");
    let is_none = |line: &str| line.contains(", 0 dropped") && line.contains("unaccounted=0");
    assert!(counts.all(is_none), "{what}: {ran}");
}

fn kill_drains(chance: &mut Chance) -> (Account, Duration) {
    let scene = Scene::new(4 << 20);
    let server = scene.server();
    let file = scene.path("tally");
    let words = [file.to_str().expect("a path"), "2", "600000", "2000"];
    let mut drain = scene.drain(server.port);
    let program = scene.program(tally(), &words);
    let mut slowest = Duration::ZERO;
    wait_until("the first drain is attached", || drain_pid(&scene.ring) == Some(drain.pid()));
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(chance.of_range(1..60)));
        end_drain(drain, chance);
        let begin = Instant::now();
        drain = scene.drain(server.port);
        wait_until("another drain is attached", || drain_pid(&scene.ring) == Some(drain.pid()));
        slowest = slowest.max(begin.elapsed());
    }
    let ran = program.end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "done 2\n", ""), "{ran}");
    let drained = drain.end();
    assert_eq!(drained.code, 0, "{drained}");
    server.stop();
    let account = scene.account();
    account.holds(Truth::read(&file), &format!("a program whose drain was killed {KILLS} times"));
    (account, slowest)
}

/// Most are killed; some are told to end, and leave in order.
fn end_drain(drain: Job, chance: &mut Chance) {
    if chance.holds(75) {
        drain.kill();
        return;
    }
    let stopped = drain.stop();
    assert_eq!(stopped.code, 0, "{stopped}");
}

/// F4: the server is killed in the middle of a stream and started again after a while.
pub fn killed_servers(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F4");
    let rounds = plan.either(2, 8);
    let mut sum = Account::default();
    for round in 0..rounds {
        let down_ms = chance.of_range(plan.either(500..2500, 500..10_000));
        sum.add(&kill_server(&format!("round {round}, {down_ms} ms without a server"), down_ms));
    }
    Outcome::Holds(format!("{rounds} kills, nothing repeated, {sum} unaccounted=0"))
}

fn kill_server(what: &str, down_ms: u64) -> Account {
    let scene = Scene::new(16 << 20);
    let server = scene.server();
    let port = server.port;
    let drain = scene.drain_with(&["--reconnect", "127.0.0.1", &port.to_string()]);
    let file = scene.path("tally");
    // Some 800,000 events a second, for two seconds more than there is no server.
    let calls = (200 * (down_ms + 2000)).to_string();
    let words = [file.to_str().expect("a path"), "2", &calls, "5000"];
    let target = scene.program(tally(), &words);
    wait_until("the target makes calls", || Truth::read(&file).least > 400_000);
    drop(server.job.kill());
    // What is there can be read, up to the last whole chunk.
    let before = scene.account();
    assert!(before.delivered <= Truth::read(&file).most, "{what}: {before}");
    std::thread::sleep(Duration::from_millis(down_ms));
    let server = scene.server_at(port, &["--out", "traces"]);
    let ran = target.end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "done 2\n", ""), "{ran}");
    let drained = drain.end();
    ended_well(&drained);
    let served = server.stop();
    let account = scene.account();
    account.holds(Truth::read(&file), &format!("{what}: {drained} {served}"));
    assert_eq!(account.lost_events(), 0, "{what}: {account}: {drained} {served}");
    account
}
