//! A real process with many threads, killed at any moment: what it stored arrives, and the counts
//! hold to the last record.

use std::process::{Command, Stdio};

use crate::support::{Capture, Drain, Process, Ring, Server, Writer, drain_binary, wait_until};

const THREADS: u32 = 6;
/// Names the ring to the child; the rest of the tests do not see it.
const RING_NAME: &str = "CALLSIGHT_TEST_RING";
const RING_BYTES: &str = "CALLSIGHT_TEST_RING_BYTES";

/// Not a test by itself: what the child of [`killed_at`] runs until it is killed.
#[test]
fn writer_process() {
    let Ok(name) = std::env::var(RING_NAME) else { return };
    let bytes = std::env::var(RING_BYTES).expect("a size").parse().expect("a number");
    let ring = Ring::new(&name, bytes);
    let process = Process::this();
    ring.attach(0, process);
    std::thread::scope(|scope| {
        for tid in 1..=THREADS {
            let mut writer = Writer::new(&ring, process, tid);
            writer.keeps_full_page = tid % 2 == 0;
            scope.spawn(move || {
                for call in 1.. {
                    writer.store(call);
                }
            });
        }
    });
}

fn killed_at(round: u64, ring_bytes: u64) {
    let server = Server::start();
    let name = Ring::full_name(&format!("kill-{round}"));
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["kills::writer_process", "--exact", "--test-threads=1"])
        .env(RING_NAME, &name)
        .env(RING_BYTES, ring_bytes.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("start the writers");
    let drain = Drain::start(&drain_binary(), &name, server.port);
    let enough = (round * 7919) % 60_000;
    wait_until("it has stored for a while", || server.events(0) > enough as usize);
    child.kill().expect("kill the writers");
    child.wait().expect("reap the writers");
    drain.end_well();
    let capture = server.whole(0);
    capture.check_counts();
    for tid in 1..=THREADS {
        check_thread(&capture, tid);
    }
}

/// Calls are numbered from 1: those missing must be those told.
fn check_thread(capture: &Capture, tid: u32) {
    let calls = capture.calls_of(tid);
    assert!(calls.is_sorted_by(|a, b| a.func < b.func), "thread {tid} in order, none twice");
    let told: u64 = capture.losses_of(tid).iter().map(|loss| loss.events).sum();
    let last = calls.last().map_or(0, |event| event.func);
    let missing = last - calls.len() as u64;
    // Those behind the last that arrived are told too.
    assert!(missing <= told, "thread {tid}: {missing} missing, {told} told");
}

#[test]
fn a_process_killed_anywhere_loses_nothing_uncounted() {
    for round in 0..20 {
        killed_at(round, 1 << 20);
    }
}

#[test]
fn nor_in_a_ring_that_overflows() {
    for round in 20..40 {
        killed_at(round, 16 << 10);
    }
}
