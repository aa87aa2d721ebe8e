//! A file beside the server, or in its place: neither hurts the other, and both count.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use callsight_format::{Cause, SINK_DROPPED};

use crate::support::{
    Drain, Process, Ring, Server, TestProcess, Writer, drain_binary, read_capture, wait_until,
};

const CALLS: u64 = 400_000;

fn path_of(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("captures/trace.stream.1.0.bin")
}

/// Starts a drain with a file, and a server where there is one.
fn start(ring: &Ring, dir: &tempfile::TempDir, port: Option<u16>, options: &[&str]) -> Drain {
    let folder = dir.path().join("captures");
    let port = port.map(|port| port.to_string());
    let mut arguments = vec!["--file", folder.to_str().expect("UTF-8")];
    arguments.extend(options);
    arguments.push(&ring.name);
    if let Some(port) = &port {
        arguments.extend(["127.0.0.1", port]);
    }
    Drain::with_arguments(&drain_binary(), &arguments)
}

/// Calls 1 to [`CALLS`] of a thread that waits for room.
fn call(ring: &Ring, process: &TestProcess) {
    let mut writer = Writer::new(ring, process.process, 7);
    for call in 1..=CALLS {
        wait_until("there is room", || writer.store_where_room(call));
    }
    writer.retire();
}

/// What a line `NAME: N delivered, M dropped ..., unaccounted=0` of the drain says.
fn counts(said: &str, name: &str) -> (u64, u64) {
    let line = said.lines().find(|line| line.starts_with(&format!("trace_stream: {name}: ")));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(line.ends_with("unaccounted=0"), "{line}");
    let numbers: Vec<u64> =
        line.split([' ', '(', ')']).filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

fn dropped(tail: &[(u16, Vec<u8>)], cause: Cause) -> u64 {
    let of_cause = |(key, value): &&(u16, Vec<u8>)| {
        *key == SINK_DROPPED && value[..4] == (cause as u32).to_le_bytes()
    };
    let value = tail.iter().find(of_cause);
    value.map_or(0, |(_, v)| u64::from_le_bytes(v[4..12].try_into().expect("12 bytes")))
}

#[test]
fn a_file_alone_has_everything() {
    let dir = tempfile::tempdir().expect("a folder");
    let ring = Ring::new("file", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, &dir, None, &[]);
    call(&ring, &process);
    drop(process);
    let said = drain.end_well();
    assert_eq!(counts(&said, "file"), (CALLS, 0));
    let (capture, tail) = read_capture(&path_of(&dir));
    assert!(capture.calls_of(7).iter().map(|event| event.func).eq(1..=CALLS));
    capture.check_counts();
    assert!(!tail.is_empty() && tail.iter().all(|(key, _)| *key != SINK_DROPPED), "{tail:?}");
}

#[test]
fn a_file_and_a_server_both_have_everything() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start();
    let ring = Ring::new("both", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, &dir, Some(server.port), &[]);
    call(&ring, &process);
    drop(process);
    let said = drain.end_well();
    assert_eq!([counts(&said, "file"), counts(&said, "live")], [(CALLS, 0); 2]);
    let (capture, _) = read_capture(&path_of(&dir));
    let stored: Vec<_> = capture.calls_of(7).iter().map(|event| event.func).collect();
    assert!(stored.iter().copied().eq(1..=CALLS));
    assert_eq!(capture.events, server.whole(0).events);
}

/// Calls of a thread that waits for room; raw, they are more than a queue and a socket hold.
fn call_often(ring: &Ring, process: &TestProcess) -> u64 {
    const OFTEN: u64 = 4_000_000;
    let mut writer = Writer::new(ring, process.process, 7);
    for call in 0..OFTEN {
        let func = call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        wait_until("there is room", || writer.store_where_room(func));
    }
    writer.retire();
    OFTEN
}

#[test]
fn a_server_that_sleeps_does_not_hurt_the_file_and_gets_what_it_missed() {
    let dir = tempfile::tempdir().expect("a folder");
    let asleep = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = asleep.local_addr().expect("an address").port();
    let ring = Ring::new("asleep", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, &dir, Some(port), &[]);
    let calls = call_often(&ring, &process);
    drop(process);
    let server = Server::of(asleep, |_, _| None);
    let (code, said) = drain.end();
    assert_eq!(counts(&said, "file"), (calls, 0));
    let (delivered, lost) = counts(&said, "live");
    assert_eq!((delivered + lost, server.whole(0).calls_of(7).len()), (calls, delivered as usize));
    // One that takes raw events only is not told from one that sleeps before it reads again.
    let expected = if crate::GREETS { (Some(0), 0) } else { (Some(1), lost.max(1)) };
    assert_eq!((code, lost), expected, "{said}");
    let (capture, _) = read_capture(&path_of(&dir));
    assert_eq!(capture.calls_of(7).len() as u64, calls);
}

#[test]
fn a_host_that_nobody_knows_yet_does_not_keep_the_file_waiting() {
    let dir = tempfile::tempdir().expect("a folder");
    let ring = Ring::new("unknown-host", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let folder = dir.path().join("captures");
    let folder = folder.to_str().expect("UTF-8");
    let arguments = ["--reconnect", "--file", folder, &ring.name, "no-such-host.invalid", "9001"];
    let drain = Drain::with_arguments(&drain_binary(), &arguments);
    call(&ring, &process);
    drop(process);
    wait_until("all is taken", || {
        let read = std::mem::offset_of!(callsight_format::RingHeader, tail);
        ring.u64(read).load(std::sync::atomic::Ordering::Acquire) == CALLS * 32
    });
    drain.signal(libc::SIGTERM);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("find the server no-such-host.invalid: "), "{said}");
    assert!(said.contains("there is no connection to it"), "{said}");
    assert_eq!(counts(&said, "file"), (CALLS, 0));
    assert_eq!(counts(&said, "live"), (0, CALLS));
}

/// A file that ends early: the server has everything, the file a whole beginning, and says why.
fn cut_short(name: &str, options: &[&str], limit: Option<u64>, cause: Cause) {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start();
    let ring = Ring::new(name, 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = match limit {
        None => start(&ring, &dir, Some(server.port), options),
        Some(bytes) => limited(&ring, &dir, server.port, bytes),
    };
    call(&ring, &process);
    drop(process);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(counts(&said, "live"), (CALLS, 0));
    assert!(server.whole(0).calls_of(7).iter().map(|event| event.func).eq(1..=CALLS));
    let (delivered, lost) = counts(&said, "file");
    assert!(delivered > 0 && lost > 0 && delivered + lost == CALLS, "{said}");
    let (capture, tail) = read_capture(&path_of(&dir));
    assert!(capture.calls_of(7).iter().map(|event| event.func).eq(1..=delivered));
    assert_eq!(dropped(&tail, cause) + dropped(&tail, Cause::SinkDead), lost, "{tail:?}");
    assert!(dropped(&tail, cause) > 0, "{tail:?}");
}

#[test]
fn a_file_alone_that_stops_at_its_budget_says_what_is_not_in_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let ring = Ring::new("alone", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, &dir, None, &["--budget", "24K"]);
    call(&ring, &process);
    drop(process);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    let (delivered, lost) = counts(&said, "file");
    assert!(delivered > 0 && lost > 0 && delivered + lost == CALLS, "{said}");
    assert!(said.lines().last().is_some_and(|line| line.ends_with("unaccounted=0")), "{said}");
    assert!(!ring.path().exists());
    assert!(std::fs::metadata(path_of(&dir)).expect("the file").len() <= 24 << 10);
    let (capture, tail) = read_capture(&path_of(&dir));
    assert!(capture.calls_of(7).iter().map(|event| event.func).eq(1..=delivered));
    assert_eq!(dropped(&tail, Cause::Budget) + dropped(&tail, Cause::SinkDead), lost);
    assert_eq!(capture.emitted(), CALLS);
}

#[test]
fn a_file_stops_at_its_budget() {
    cut_short("budget", &["--budget", "24K"], None, Cause::Budget);
}

#[test]
fn a_file_that_can_grow_no_more_ends_on_a_whole_chunk() {
    cut_short("limit", &[], Some(24 << 10), Cause::Io);
}

/// The same drain under a limit of file size, whose signal is ignored by whoever writes.
fn limited(ring: &Ring, dir: &tempfile::TempDir, port: u16, bytes: u64) -> Drain {
    let folder = dir.path().join("captures");
    let mut command = Command::new(drain_binary());
    command.arg("--file").arg(folder).args([&ring.name, "127.0.0.1", &port.to_string()]);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: between fork and exec, one system call that takes no lock.
    unsafe {
        command.pre_exec(move || {
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
            Ok(())
        })
    };
    Drain::of(command)
}

#[test]
fn a_folder_that_cannot_be_made_leaves_the_ring_where_there_is_no_server() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("captures"), "a file").expect("write");
    let ring = Ring::new("nowhere", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 7);
    assert!((1..=100).all(|call| writer.store(call)));
    let drain = start(&ring, &dir, None, &[]);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(ring.path().exists(), "{said}");
    writer.retire();
    drop(process);
    std::fs::remove_file(dir.path().join("captures")).expect("remove");
    let said = start(&ring, &dir, None, &[]).end_well();
    assert_eq!(counts(&said, "file"), (100, 0));
}

#[test]
fn a_folder_that_cannot_be_made_leaves_the_server_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("captures"), "a file").expect("write");
    let server = Server::start();
    let ring = Ring::new("folder", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, &dir, Some(server.port), &[]);
    call(&ring, &process);
    drop(process);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(counts(&said, "live"), (CALLS, 0));
    assert_eq!(counts(&said, "file"), (0, CALLS));
    assert!(said.contains("write to") && said.contains("Not a directory"), "{said}");
}

/// The processes that `drain` has started.
fn children(drain: &Drain) -> Vec<Process> {
    let path = format!("/proc/{0}/task/{0}/children", drain.pid());
    let pids = std::fs::read_to_string(path).expect("read the children");
    pids.split_whitespace().map(|pid| Process::of(pid.parse().expect("a pid"))).collect()
}

#[test]
fn a_writing_process_that_is_killed_hurts_nobody_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start();
    let ring = Ring::new("writing", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, &dir, Some(server.port), &[]);
    wait_until("the file is there", || path_of(&dir).exists());
    for child in children(&drain) {
        // SAFETY: kill touches no memory of ours.
        unsafe { libc::kill(child.pid as i32, libc::SIGKILL) };
    }
    call(&ring, &process);
    drop(process);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(counts(&said, "live"), (CALLS, 0));
    let (delivered, lost) = counts(&said, "file");
    assert_eq!(delivered + lost, CALLS);
}
