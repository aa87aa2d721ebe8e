//! Rings that lie, and rings that two want: F13 and F20.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use callsight_format::{PAGE_HEADER_BYTES, RING_CONTROL_BYTES, RING_CONTROL_OFFSET, RingLayout};

use crate::job::wait_until;
use crate::outcome::{Outcome, Plan};
use crate::ringview::ring_file;
use crate::scene::{Scene, Server, ended_well, tally};
use crate::seed::Chance;
use crate::truth::{Account, Truth};

const RING_BYTES: u64 = 65536;

/// A change of one word of a ring's header.
#[derive(Clone, Copy, Debug)]
struct Lie {
    at: usize,
    value: u32,
}

/// F13: a header that lies in any word, tables of noise, a file cut under the map, another's file.
pub fn hostile_rings(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F13");
    let scene = Scene::new(RING_BYTES);
    let server = scene.server();
    let ring = ring_file(&scene.ring);
    run_target(&scene, "the first run, which makes the ring");
    let honest = std::fs::read(&ring).expect("the ring of a run without a drain");
    let mut lies = lies(&honest);
    if plan.short {
        lies = (0..60).map(|_| lies[chance.index(lies.len())]).collect();
    }
    for (number, lie) in lies.iter().enumerate() {
        let mut bytes = honest.clone();
        bytes[lie.at..lie.at + 4].copy_from_slice(&lie.value.to_ne_bytes());
        put_ring(&ring, &bytes);
        run_target(&scene, &format!("{lie:?}"));
        if number % 4 == 0 {
            run_on_spare(&scene, &bytes, &format!("{lie:?} in a spare ring"));
            put_ring(&ring, &bytes);
        }
        // The drain has tests of its own for every word; here some, behind a target.
        if number % 8 == 0 {
            drain_survives(&scene, &server, &format!("{lie:?}"));
        }
    }
    let noisy = plan.either(12, 200);
    for round in 0..noisy {
        put_ring(&ring, &noise(&honest, &mut chance));
        run_target(&scene, &format!("noise of round {round}"));
    }
    drain_survives(&scene, &server, "noise");
    let strange = strange_files(&scene, &honest);
    let cuts = cut_under_the_map(&scene);
    server.stop();
    Outcome::Holds(format!(
        "{} headers, {noisy} tables of noise, {strange} strange files, {cuts} files cut under the \
         map: no signal, output untouched",
        lies.len()
    ))
}

fn lies(honest: &[u8]) -> Vec<Lie> {
    let words = (0..RING_CONTROL_OFFSET + RING_CONTROL_BYTES).step_by(4);
    words
        .flat_map(|at| {
            let found = u32::from_ne_bytes(honest[at..at + 4].try_into().expect("4 bytes"));
            [0, 1, u32::MAX, found.wrapping_add(1), found.wrapping_sub(1)]
                .into_iter()
                .filter(move |value| *value != found)
                .map(move |value| Lie { at, value })
        })
        .collect()
}

/// Behind the header, words that are wrong; small numbers pass more checks than large ones.
fn noise(honest: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = honest.to_vec();
    let words = (RING_CONTROL_OFFSET + RING_CONTROL_BYTES) / 8..bytes.len() / 8;
    for _ in 0..400 {
        // Most of the file is pages; the tables in front of them are where it hurts.
        let end = if chance.holds(70) { 3000 } else { words.end };
        let at = 8 * (words.start + chance.index(end - words.start));
        let value = if chance.holds(30) { chance.next() } else { chance.of_range(0..200) };
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn put_ring(path: &PathBuf, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).expect("write a ring");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("set a mode");
}

/// Runs the target on the ring as it is: its output and exit code are those of any other run.
#[track_caller]
fn run_target(scene: &Scene, what: &str) {
    let file = scene.path("tally");
    let words = [file.to_str().expect("a path"), "2", "200", "0"];
    let ran = scene.program(tally(), &words).end();
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (0, "done 2\n", ""),
        "{what}: {ran}"
    );
    let truth = Truth::read(&file);
    assert_eq!((truth.least, truth.most), (800, 800), "{what}");
    std::fs::remove_file(file).expect("remove the counts");
    for capture in crate::scene::captures_in(&scene.path("traces")) {
        std::fs::remove_file(capture).expect("remove a capture");
    }
}

/// Runs the target where there is no ring, but one that a drain seems to have made for it.
#[track_caller]
fn run_on_spare(scene: &Scene, bytes: &[u8], what: &str) {
    let path = ring_file(&scene.ring);
    std::fs::remove_file(&path).expect("remove the ring");
    let name = path.file_name().expect("a name").to_string_lossy();
    let spare = path.with_file_name(format!(".callsight-spare-{name}"));
    put_ring(&spare, bytes);
    run_target(scene, what);
    let _ = std::fs::remove_file(spare);
}

/// Runs the drain on the ring as it is: it may refuse it or drain it.
#[track_caller]
fn drain_survives(scene: &Scene, server: &Server, what: &str) {
    let mut drain = scene.drain(server.port);
    if !drain.ends_within(Duration::from_millis(500)) {
        drain.signal(libc::SIGTERM);
    }
    let drained = drain.end();
    assert!([0, 2].contains(&drained.code), "{what}: {drained}");
    assert!(!drained.stderr.is_empty(), "{what}: the drain says nothing");
}

/// Files under the ring's name that are no ring of ours; how many.
fn strange_files(scene: &Scene, honest: &[u8]) -> usize {
    let path = ring_file(&scene.ring);
    let fresh = |bytes: &[u8]| {
        let _ = std::fs::remove_dir(&path);
        put_ring(&path, bytes);
    };
    let mut count = 0;
    let mut check = |what: &str| {
        run_target(scene, what);
        count += 1;
    };
    for mode in [0o666, 0o644, 0o000, 0o400] {
        fresh(honest);
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set a mode");
        check(&format!("mode {mode:o}"));
    }
    fresh(honest);
    if chown(&path, Some(65534), None).is_ok() {
        check("a file of another user");
    }
    for length in [0, 1, 95, 96, 255, 4096, honest.len() - 1] {
        fresh(&honest[..length]);
        check(&format!("cut to {length} bytes"));
    }
    fresh(&[honest, &[0; 4096]].concat());
    check("longer than it states");
    let other = scene.path("other");
    std::fs::write(&other, honest).expect("write a file");
    std::fs::remove_file(&path).expect("remove the ring");
    symlink(&other, &path).expect("make a link");
    check("a symbolic link");
    assert_eq!(std::fs::read(&other).expect("a file"), honest, "written through a link");
    std::fs::remove_file(&path).expect("remove the link");
    std::fs::create_dir(&path).expect("make a folder");
    check("a folder");
    std::fs::remove_dir(&path).expect("remove the folder");
    let made = Command::new("mkfifo").arg(&path).status().expect("run mkfifo");
    assert!(made.success(), "make a pipe");
    check("a pipe");
    std::fs::remove_file(&path).expect("remove the pipe");
    count
}

/// The ring's file is made smaller while a target stores into it; how often.
fn cut_under_the_map(scene: &Scene) -> usize {
    let path = ring_file(&scene.ring);
    let pages_at = RingLayout::of(RING_BYTES).pages_offset as usize;
    let lengths = [0, 4096, pages_at, pages_at + PAGE_HEADER_BYTES, pages_at + 8192];
    for length in lengths {
        let _ = std::fs::remove_file(&path);
        let file = scene.path("tally");
        let words = [file.to_str().expect("a path"), "2", "20000", "5000"];
        let program = scene.program(tally(), &words);
        wait_until("the target makes calls", || Truth::read(&file).least > 4000);
        File::options()
            .write(true)
            .open(&path)
            .expect("the ring")
            .set_len(length as u64)
            .expect("cut");
        let ran = program.end();
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (0, "done 2\n"),
            "the ring was cut to {length} bytes under the target: {ran}"
        );
        std::fs::remove_file(file).expect("remove the counts");
    }
    let _ = std::fs::remove_file(&path);
    lengths.len()
}

/// F20: two programs make one ring at the same moment, and two drains want it.
pub fn races(plan: &Plan) -> Outcome {
    let rounds = plan.either(12, 100);
    let mut chance = plan.chance("F20");
    let mut sum = Account::default();
    for round in 0..rounds {
        sum.add(&race(&mut chance, round));
    }
    Outcome::Holds(format!(
        "{rounds} of {rounds} races: both programs in one ring, the second drain refused with a \
         sentence, {sum} unaccounted=0"
    ))
}

fn race(chance: &mut Chance, round: usize) -> Account {
    let scene = Scene::new(16 << 20);
    let server = scene.server();
    let files = [scene.path("one"), scene.path("other")];
    let start = |file: &PathBuf| {
        scene.program(tally(), &[file.to_str().expect("a path"), "2", "30000", "3000"])
    };
    let late = Duration::from_micros(chance.of_range(0..3000));
    let drain_late = Duration::from_micros(chance.of_range(0..3000));
    let (programs, drains) = std::thread::scope(|scope| {
        let drains = scope.spawn(|| {
            std::thread::sleep(drain_late);
            [scene.drain(server.port), scene.drain(server.port)]
        });
        let first = start(&files[0]);
        std::thread::sleep(late);
        ([first, start(&files[1])], drains.join().expect("drains"))
    });
    for ran in programs.map(crate::job::Job::end) {
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "done 2\n"), "round {round}: {ran}");
    }
    let mut drained = drains.map(crate::job::Job::end);
    drained.sort_by_key(|ran| ran.code);
    ended_well(&drained[0]);
    assert_eq!(drained[1].code, 2, "round {round}: two drains on one ring: {}", drained[1]);
    assert!(drained[1].stderr.contains("reading it"), "round {round}: {}", drained[1]);
    server.stop();
    let account = scene.account();
    account.holds(Truth::of_all(&files), &format!("round {round}: two programs in one ring"));
    account
}
