//! Targets that are killed: F1 anywhere, F2 behind every instruction, F14 what they held.

use std::path::Path;
use std::time::{Duration, Instant};

use callsight_format::{EVENT_BYTES, PAGE_HEADER_BYTES, RING_DEFAULT_BYTES, RingLayout};

use crate::job::{PATIENCE, wait_until};
use crate::outcome::{Outcome, Plan};
use crate::ringview::RingView;
use crate::scene::{Scene, ended_well, tally};
use crate::seed::Chance;
use crate::stepper::{self, Stepped};
use crate::truth::{Account, Truth};

/// F1: SIGKILL at a random moment of the first 400 ms.
pub fn killed_targets(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F1");
    let rounds = plan.either(16, 200);
    let (mut sum, mut unborn, mut torn_most, mut slowest) = (Account::default(), 0, 0, 0.0f64);
    for round in 0..rounds {
        let scene = Scene::new(chance.pick(&[65536, 1 << 20, 16 << 20]));
        let server = scene.server();
        let mut drain = scene.drain(server.port);
        let threads = chance.of_range(1..5).to_string();
        let pause_us = chance.pick(&["0", "100", "1000"]);
        let file = scene.path("tally");
        let words = [file.to_str().expect("a path"), &threads, "0", pause_us];
        let after_ms = chance.of_range(1..400);
        let program = scene.program(tally(), &words);
        std::thread::sleep(Duration::from_millis(after_ms));
        let what = format!("round {round}: {threads} threads killed after {after_ms} ms");
        let killed = program.kill();
        assert_eq!(killed.code, 128 + libc::SIGKILL, "{what}: {killed}");
        let begin = Instant::now();
        let truth = Truth::read(&file);
        if !scene.ring.exists() && !drain.ends_within(Duration::from_secs(2)) {
            // Killed before its ring had a name: the drain waits for the program that comes next.
            assert!(drain.stop().stderr.contains("before a traced program had begun"), "{what}");
            unborn += 1;
        } else {
            assert!(drain.ends_within(PATIENCE), "{what}: the drain does not end");
            slowest = slowest.max(begin.elapsed().as_secs_f64());
            ended_well(&drain.end());
        }
        server.stop();
        let account = scene.account();
        account.holds(truth, &what);
        let torn = account.lost_for("torn");
        assert!(torn <= truth.threads, "{what}: {torn} torn events of {} threads", truth.threads);
        torn_most = torn_most.max(torn.div_ceil(truth.threads.max(1)));
        sum.add(&account);
    }
    Outcome::Holds(format!(
        "{rounds} of {rounds} kills ({unborn} before tracing began), torn at most {torn_most} a \
         thread, drain ends within {slowest:.2} s, {sum} unaccounted=0"
    ))
}

/// Calls of a program that is stepped: 80 events turn a page of 30 two or three times.
const STEPPED_CALLS: u32 = 40;
/// The smallest pages there are.
const SMALL_RING: u64 = 65536;
/// Programs that stand at their points at the same time, one ring between them.
const AT_ONCE: usize = 16;

/// F2: killed behind an instruction of reserving, storing, claiming and leaving, several writers
/// at a time while another one goes on.
pub fn killed_at_points(plan: &Plan) -> Outcome {
    if let Some(reason) = stepper::obstacle() {
        return Outcome::Skipped(reason);
    }
    let mut chance = plan.chance("F2");
    let path = path_of_a_run();
    let mut points = stepper::points(&path, STEPPED_CALLS);
    let known = points.len();
    if plan.short {
        points = (0..3 * AT_ONCE).map(|_| choose(&points, &mut chance)).collect();
    } else {
        // Each point once, in an order that makes other neighbours every time.
        (1..points.len()).rev().for_each(|at| points.swap(at, chance.index(at + 1)));
    }
    let mut sum = Account::default();
    for batch in points.chunks(AT_ONCE) {
        sum.add(&kill_at(batch).0);
    }
    let pairs = points.chunks(AT_ONCE).map(|batch| batch.len() * (batch.len() - 1) / 2);
    Outcome::Holds(format!(
        "{} kills at {known} points, {} pairs of writers, {sum} unaccounted=0",
        points.len(),
        pairs.sum::<usize>()
    ))
}

/// F14: what a dead process held is free again, and nobody waited for it.
pub fn held_by_the_dead(plan: &Plan) -> Outcome {
    if let Some(reason) = stepper::obstacle() {
        return Outcome::Skipped(reason);
    }
    let mut chance = plan.chance("F14");
    let points = stepper::points(&path_of_a_run(), STEPPED_CALLS);
    let (rounds, mut slowest) = (plan.either(2, 12), Duration::ZERO);
    for _ in 0..rounds {
        let some: Vec<usize> = (0..AT_ONCE).map(|_| choose(&points, &mut chance)).collect();
        slowest = slowest.max(kill_at(&some).1);
    }
    Outcome::Holds(format!(
        "{} writers killed at points; the others ran on beside them; all they held was free again \
         {:.2} s after they died, unaccounted=0",
        rounds * AT_ONCE,
        slowest.as_secs_f64()
    ))
}

/// Instructions of a call with both its hooks, as usual and at most: where a page is left and the next
/// one is found at the end of the ring, since all others are held.
pub fn instructions_of_a_call() -> (usize, usize) {
    /// Enough to leave some pages.
    const CALLS: u32 = 1000;
    let layout = RingLayout::of(RING_DEFAULT_BYTES);
    let scene = Scene::new(RING_DEFAULT_BYTES);
    let records = (u64::from(layout.page_bytes) - PAGE_HEADER_BYTES as u64) / EVENT_BYTES as u64;
    // But for some at the end, which the stepped program comes to.
    let calls = u64::from(layout.page_count - 16) * records / 2;
    let words = [scene.path("filler"), "1".into(), calls.to_string().into(), "0".into()];
    let filled = scene.program(tally(), &words).end();
    assert_eq!((filled.code, filled.stdout.as_str()), (0, "done 1\n"), "{filled}");
    let mut stepped = Stepped::start(&scene, "tally", CALLS);
    let path = stepped.path();
    let clock_code = stepped.clock_code();
    stepped.kill();
    stepper::costs(&path, &clock_code, CALLS)
}

/// Every instruction of a run that is not disturbed.
fn path_of_a_run() -> Vec<u64> {
    let scene = Scene::new(SMALL_RING);
    let server = scene.server();
    let drain = scene.drain(server.port);
    let mut stepped = Stepped::start(&scene, "tally", STEPPED_CALLS);
    let path = stepped.path();
    stepped.kill();
    ended_well(&drain.end());
    path
}

/// One of the points. How many there are differs a little from run to run, because a hook looks at
/// the clock now and then; the choice goes by the share of the way.
fn choose(points: &[usize], chance: &mut Chance) -> usize {
    const PARTS: u64 = 1 << 20;
    points[(chance.of_range(0..PARTS) * points.len() as u64 / PARTS) as usize]
}

/// Brings a program to each of the points, lets another one run to its end beside them, kills
/// them. What it adds up to, and how long what they held was not free.
fn kill_at(points: &[usize]) -> (Account, Duration) {
    let scene = Scene::new(SMALL_RING);
    let server = scene.server();
    let drain = scene.drain(server.port);
    // Holds the ring until all is looked at.
    let idler = scene.program(
        tally(),
        &[&scene.path("idler"), Path::new("1"), Path::new("0"), Path::new("1000")],
    );
    let mut stepped: Vec<Stepped> = (0..points.len())
        .map(|at| Stepped::start(&scene, &format!("tally.{at}"), STEPPED_CALLS))
        .collect();
    stepped.iter_mut().zip(points).for_each(|(program, point)| program.step(*point));
    let file = scene.path("beside");
    let words = [file.to_str().expect("a path"), "2", "20000", "0"];
    let beside = scene.program(tally(), &words).end();
    assert_eq!((beside.code, beside.stdout.as_str()), (0, "done 2\n"), "{beside}");
    stepped.iter_mut().for_each(Stepped::kill);
    let begin = Instant::now();
    wait_until("what dead writers held is free", || {
        let holders = RingView::of(&scene.ring).expect("the ring is there").holders();
        !stepped.iter().any(|program| holders.contains(&program.pid.cast_unsigned()))
    });
    let freed = begin.elapsed();
    idler.kill();
    ended_well(&drain.end());
    server.stop();
    check_each(&scene, &stepped, points);
    (scene.account(), freed)
}

/// Every program by itself: no event of one makes up for that of another.
fn check_each(scene: &Scene, stepped: &[Stepped], points: &[usize]) {
    let by_process = scene.events_by_process("traces");
    let account = scene.account();
    let mut truth = Truth::of_all(&[scene.path("beside"), scene.path("idler")]);
    let others = by_process
        .iter()
        .filter(|(pid, _)| !stepped.iter().any(|program| program.pid.cast_unsigned() == **pid));
    let others_delivered: u64 = others.map(|(_, events)| events).sum();
    // The ring is small: what the others did not lose of it, these have lost.
    let full = (account.lost_for("full") + others_delivered).saturating_sub(truth.least);
    for (program, point) in stepped.iter().zip(points) {
        let its = program.truth();
        truth = truth.plus(its);
        let delivered = by_process.get(&program.pid.cast_unsigned()).copied().unwrap_or(0);
        assert!(
            delivered <= its.most && delivered + 1 + full >= its.least,
            "killed behind {point} instructions: {delivered} events beside {its:?}: {account}"
        );
    }
    account.holds(truth, &format!("programs killed behind {points:?} instructions"));
    let torn = account.lost_for("torn");
    assert!(torn <= truth.threads, "{torn} torn events of {} threads", truth.threads);
}
