//! A process killed at any moment: what it stored arrives, and the counts hold to the last record.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Acquire;

use callsight_format::{PROCESS_ATTACHED, RingProcess};

use crate::support::{Capture, Drain, Process, Ring, Server, Writer, drain_binary, wait_until};

const WRITERS: u32 = 6;

/// What the child does until it is killed. Between fork and its end a child of a process with
/// threads may neither allocate nor lock, and this does not.
fn write_for_ever(ring: &Ring) -> ! {
    let entry = ring.process(0);
    while ring.u32(entry + offset_of!(RingProcess, state)).load(Acquire) != PROCESS_ATTACHED {
        std::hint::spin_loop();
    }
    let pid = ring.u32(entry + offset_of!(RingProcess, pid)).load(Acquire);
    let start = ring.u64(entry + offset_of!(RingProcess, start)).load(Acquire);
    let mut writers: [Writer; WRITERS as usize] = std::array::from_fn(|index| {
        let mut writer = Writer::new(ring, Process { pid, start }, index as u32 + 1);
        writer.keeps_full_page = index % 2 == 0;
        writer
    });
    let mut call = 0;
    loop {
        call += 1;
        // Of different speed, so that their pages are left at different moments.
        for writer in writers.iter_mut().filter(|w| call % u64::from(w.tid) == 0) {
            writer.store(call);
        }
    }
}

fn killed_at(round: u64, ring_bytes: u64) {
    let server = Server::start();
    let ring = Ring::new(&format!("kill-{round}"), ring_bytes);
    // SAFETY: the child only touches the ring, see `write_for_ever`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        write_for_ever(&ring);
    }
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    ring.attach(0, Process::of(child as u32));
    let path = ring.unmap();
    let enough = (round * 7919) % 60_000;
    wait_until("it has stored for a while", || server.events(0) > enough as usize);
    // SAFETY: kill and waitpid with no status touch no memory of ours.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    drain.end_well();
    assert!(!path.exists());
    let capture = server.whole(0);
    capture.check_counts();
    for tid in 1..=WRITERS {
        check_writer(&capture, tid);
    }
}

#[test]
fn a_ring_that_a_killed_process_was_making_is_removed() {
    let mut child = std::process::Command::new("true").spawn().expect("start a child");
    child.wait().expect("reap the child");
    let dead = child.id();
    let make = |name: String, seconds: u64| {
        let path = std::path::PathBuf::from(format!("/dev/shm/{name}"));
        let file = std::fs::File::create(&path).expect("make a file");
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(seconds);
        file.set_modified(time).expect("set its time");
        path
    };
    let left = make(format!(".callsight-{dead}"), 3600);
    let others = [
        make(format!(".callsight-{}", std::process::id()), 3600),
        make(format!(".callsight-{dead}-x"), 3600),
        make(format!("callsight-{dead}"), 3600),
    ];
    let server = Server::start();
    let waiting = Drain::start(&drain_binary(), "/callsight-test-unborn", server.port);
    wait_until("it is removed", || !left.exists());
    waiting.signal(libc::SIGTERM);
    let (code, said) = waiting.end();
    assert_eq!(code, Some(0), "{said}");
    let kept = others.each_ref().map(|path| path.exists());
    others.iter().for_each(|path| std::fs::remove_file(path).expect("remove a file"));
    assert_eq!(kept, [true; 3]);
}

/// Every `tid`-th call is the writer's: those missing must be those told.
fn check_writer(capture: &Capture, tid: u32) {
    let calls = capture.calls_of(tid);
    assert!(calls.is_sorted_by(|a, b| a.func < b.func), "writer {tid}: in order, none twice");
    let told: u64 = capture.losses_of(tid).iter().map(|loss| loss.events).sum();
    let last = calls.last().map_or(0, |event| event.func);
    let missing = last / u64::from(tid) - calls.len() as u64;
    // Those behind the last that arrived are told too.
    assert!(missing <= told, "writer {tid}: {missing} missing, {told} told");
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
