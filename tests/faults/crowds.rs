//! Very many: F15 threads, F16 processes, F21 connections.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use callsight_format::{CHUNK_HELLO, HELLO_STREAM};
use callsight_tests::{Hooks, Program};

use crate::job::{descriptors, status_kib};
use crate::outcome::{Outcome, Plan};
use crate::scene::{Scene, Server, ended_well};
use crate::seed::Chance;
use crate::truth::{Account, Truth};
use crate::wire::{Device, calls, chunk, fields, handshake};

const CROWD: &str = include_str!("../programs/crowd.c");
const FAMILY: &str = include_str!("../programs/family.c");

/// F15: threads one after the other, and all at once with too few writer slots.
pub fn threads(plan: &Plan) -> Outcome {
    let program = Program::c(CROWD);
    let (traced, plain) = (program.build(Hooks::Ours), program.build(Hooks::None));
    let in_turn = plan.either("2000", "10000");
    let mut figures = Vec::new();
    // 128 writer slots in the small ring, 2,048 in the other.
    for (mode, count, ring_bytes) in
        [("turn", in_turn, 16 << 20), ("once", "2000", 1 << 20), ("once", "2000", 64 << 20)]
    {
        let scene = Scene::new(ring_bytes);
        let peak = scene.path("peak");
        let words = [peak.to_str().expect("a path"), mode, count, "20"];
        let untraced = scene.program(&plain.exe, &words).end();
        let kib = || -> u64 {
            let text = std::fs::read_to_string(&peak).expect("the peak");
            text.trim().parse().expect("KiB")
        };
        let plain_kib = kib();
        let server = scene.server();
        let drain = scene.drain(server.port);
        let ran = scene.program(&traced.exe, &words).end();
        assert_eq!((ran.code, &ran.stdout, &ran.stderr), (0, &untraced.stdout, &untraced.stderr));
        ended_well(&drain.end());
        server.stop();
        let account = scene.account();
        let events = 40 * count.parse::<u64>().expect("a number");
        account.holds(Truth::exactly(events), &format!("{count} threads, {mode}"));
        let no_slot = account.lost_for("no_slot");
        assert_eq!(no_slot > 0, ring_bytes == 1 << 20, "{mode} {count}: {account}");
        // The ring itself, the table of threads, and little besides.
        let more_kib = kib().saturating_sub(plain_kib);
        assert!(more_kib <= (ring_bytes >> 10) + 2048, "{more_kib} KiB more for {count} threads");
        figures.push(format!("{count} {mode}: {account}, {more_kib} KiB more than untraced"));
    }
    Outcome::Holds(format!("{}; unaccounted=0", figures.join("; ")))
}

/// F16: children of every kind while others write.
pub fn forks(plan: &Plan) -> Outcome {
    let count = plan.either("160", "1000");
    let program = Program::c(FAMILY);
    let (_, counts) = program.build(Hooks::Count).counted(count);
    let untraced = program.build(Hooks::None).plain(count);
    let traced = program.build(Hooks::Ours);
    let scene = Scene::new(64 << 20);
    let server = scene.server();
    let drain = scene.drain(server.port);
    let ran = scene.program(&traced.exe, &[count]).end();
    assert_eq!((ran.code, &ran.stdout), (untraced.code, &untraced.stdout), "{ran}");
    ended_well(&drain.end());
    server.stop();
    let report = scene.report_of("traces");
    let account = Account::of(&report);
    account.holds(Truth::exactly(counts.events()), &format!("{count} forks"));
    if account.lost_events() == 0 {
        assert_eq!(report.calls(), counts.calls, "{:?}", report.notices());
    }
    assert_eq!(report.number("unmatched_exits"), 0, "{:?}", report.notices());
    let writers = scene.writers("traces");
    let distinct: BTreeSet<_> = writers.iter().collect();
    assert_eq!(distinct.len(), writers.len(), "one writer is there twice");
    Outcome::Holds(format!(
        "{count} children of 8 kinds, {} process images, {} writers and none twice, {account} \
         unaccounted=0",
        counts.processes,
        writers.len()
    ))
}

/// Calls in each chunk of an active device.
const CHUNK_CALLS: u64 = 50;

/// F21: few that work among very many that do not.
pub fn connections(plan: &Plan) -> Outcome {
    let (idle, active) = plan.either((1900, 50), (9900, 100));
    let wanted = idle + active + 200;
    if limit_of_descriptors() < wanted as u64 {
        return Outcome::Skipped(format!("{wanted} open files are needed: raise ulimit -n"));
    }
    let mut chance = plan.chance("F21");
    let scene = Scene::new(0);
    let server = scene.server();
    let before_kib = status_kib(server.job.pid(), "VmRSS");
    let mut devices: Vec<Device> = Vec::new();
    let mut idlers: Vec<TcpStream> = Vec::new();
    let mut waits: Vec<Duration> = Vec::new();
    let every = idle / active;
    while devices.len() < active {
        for _ in 0..every {
            idlers.push(TcpStream::connect(("127.0.0.1", server.port)).expect("connect"));
            // Slow ones say a little of their handshake.
            if chance.holds(50) {
                let some = chance.index(64);
                let _ =
                    std::io::Write::write(idlers.last_mut().expect("one"), &handshake()[..some]);
            }
        }
        let mut device = Device::new(server.port);
        device.send(&calls(1, CHUNK_CALLS));
        devices.push(device);
        waits.push(greeting_wait(&server, &mut chance));
    }
    let grown_kib = status_kib(server.job.pid(), "VmRSS").saturating_sub(before_kib);
    let open = descriptors(server.job.pid());
    work_on(&mut devices, &server, &mut chance);
    let said = server.stop();
    let refused = said.all().matches("refused: ").count();
    assert!(refused > 0, "the connections above the cap are counted: {said}");
    let account = scene.account();
    let sent = active as u64 * 2 * CHUNK_CALLS * (1 + ROUNDS);
    account.holds(Truth::exactly(sent), &format!("{active} devices among {idle} idle ones"));
    assert_eq!(account.lost_events(), 0, "{account}");
    waits.sort();
    let p99 = waits[waits.len() * 99 / 100].as_millis();
    Outcome::Holds(format!(
        "{active} active among {idle} idle, greeted within {p99} ms (p99), {open} descriptors, \
         {} KiB a connection, \
         {refused} refusals counted, {account} unaccounted=0",
        grown_kib / open.max(1) as u64
    ))
}

/// How long a sender that packs waits for its greeting; it has nothing to send.
fn greeting_wait(server: &Server, chance: &mut Chance) -> Duration {
    let begin = Instant::now();
    let mut device = Device::new(server.port);
    let id = [chance.next().to_le_bytes(), chance.next().to_le_bytes()].concat();
    device.send(&chunk(CHUNK_HELLO, &fields(&[(HELLO_STREAM, &id)])));
    device.hear_greeting();
    begin.elapsed()
}

/// Chunks that each active device sends when all are there.
const ROUNDS: u64 = 20;

fn work_on(devices: &mut [Device], server: &Server, chance: &mut Chance) {
    for _ in 0..ROUNDS {
        // Newcomers all the time, some of which go at once.
        for _ in 0..chance.of_range(0..20) {
            drop(TcpStream::connect(("127.0.0.1", server.port)).expect("connect"));
        }
        devices.iter_mut().for_each(|device| device.send(&calls(1, CHUNK_CALLS)));
    }
    devices.iter_mut().for_each(Device::finish);
    devices.iter_mut().for_each(|device| device.wait_closed("an active device"));
    // The deadline of a handshake is the server's; whoever is slower goes.
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).expect("connect");
    silent.set_read_timeout(Some(crate::job::PATIENCE)).expect("a timeout");
    let closed = loop {
        match silent.read(&mut [0; 64]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) => break error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    };
    assert!(closed, "a connection that says nothing is closed after its deadline");
}

/// How many files this process may open.
fn limit_of_descriptors() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours to write.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}
