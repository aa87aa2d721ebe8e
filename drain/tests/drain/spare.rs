//! The ring that a waiting drain keeps ready.

use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use callsight_format::{
    COMMAND_RECORD, RING_CONTROL_OFFSET, RING_MAGIC, RING_VERSION, RingControl, RingHeader,
    RingLayout,
};

use crate::support::{Drain, Ring, TestProcess, drain_binary, own_pid_namespace, wait_until};

/// What a process would find that looks for the ring, and beside it.
fn names(test: &str) -> (String, PathBuf, PathBuf) {
    let name = format!("callsight-spare-test-{}-{test}", std::process::id());
    let path = |prefix: &str| PathBuf::from(format!("/dev/shm/{prefix}{name}"));
    let (ring, spare) = (path(""), path(".callsight-spare-"));
    (format!("/{name}"), ring, spare)
}

#[test]
fn a_waiting_drain_has_a_whole_ring_ready_that_a_process_can_take() {
    let (name, ring, spare) = names("taken");
    let drain = Drain::with_arguments(&drain_binary(), &[&name, "127.0.0.1", "9"]);
    wait_until("there is a spare", || spare.exists());
    let layout = RingLayout::of(0);
    let stat = spare.metadata().expect("a file");
    assert_eq!(stat.len(), layout.total_bytes);
    assert!(stat.blocks() * 512 >= layout.total_bytes, "it has holes");
    assert_eq!(stat.mode() & 0o777, 0o600);
    let bytes = std::fs::read(&spare).expect("read it");
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!(bytes[..8], RING_MAGIC);
    assert_eq!(word(offset_of!(RingHeader, version)), RING_VERSION);
    assert_eq!(word(offset_of!(RingHeader, capacity)), layout.capacity);
    let control = |at| word(RING_CONTROL_OFFSET + at);
    let made_in = RING_CONTROL_OFFSET + offset_of!(RingControl, pid_namespace);
    assert_eq!(bytes[made_in..made_in + 8], own_pid_namespace().to_ne_bytes());
    assert_eq!(control(offset_of!(RingControl, page_count)), layout.page_count);
    assert_eq!(control(offset_of!(RingControl, command)), COMMAND_RECORD);
    std::fs::rename(&spare, &ring).expect("take it as a process does");
    let reader = RING_CONTROL_OFFSET + offset_of!(RingControl, drain_pid);
    wait_until("the drain reads it", || {
        let bytes = std::fs::read(&ring).expect("read it");
        bytes[reader..reader + 4] == drain.pid().to_ne_bytes()
    });
    drain.signal(libc::SIGTERM);
    assert_eq!(drain.end().0, Some(0));
    assert!(!spare.exists());
    std::fs::remove_file(ring).expect("the ring stays for the next drain");
}

#[test]
fn a_spare_that_a_killed_drain_left_goes_with_the_next() {
    let (name, ring, spare) = names("killed");
    let start = || Drain::with_arguments(&drain_binary(), &[&name, "127.0.0.1", "9"]);
    let kill = |drain: Drain| {
        wait_until("there is a spare", || spare.exists());
        drain.signal(libc::SIGKILL);
        drain.end();
    };
    kill(start());
    let inode = || spare.metadata().map(|stat| stat.ino()).ok();
    let left = inode();
    let waiting = start();
    wait_until("there is one of the next drain", || inode().is_some() && inode() != left);
    waiting.signal(libc::SIGTERM);
    assert_eq!(waiting.end().0, Some(0));
    assert!(!spare.exists());

    kill(start());
    let made = Ring::new("spare-killed", 65536);
    std::fs::hard_link(made.path(), &ring).expect("a ring that its process has made itself");
    let process = TestProcess::start();
    made.attach(0, process.process);
    let reading = start();
    wait_until("it is removed", || !spare.exists());
    reading.signal(libc::SIGTERM);
    reading.end();
    std::fs::remove_file(ring).expect("remove the ring");
}

#[test]
fn a_spare_of_another_pid_namespace_is_left_to_its_drain_while_that_waits() {
    let (name, _, spare) = names("foreign");
    let foreign = Ring::new("spare-foreign", 65536);
    foreign.made_in(own_pid_namespace() + 1);
    std::fs::hard_link(foreign.path(), &spare).expect("a spare");
    let start = || Drain::with_arguments(&drain_binary(), &[&name, "127.0.0.1", "9"]);
    foreign.file().lock().expect("as its drain does");
    let (code, said) = start().end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("another trace_stream") && said.contains("pid namespace"), "{said}");
    let inode = || spare.metadata().map(|stat| stat.ino()).ok();
    let left = inode();
    assert!(left.is_some());
    // The drain has ended.
    foreign.file().unlock().expect("unlock it");
    let waiting = start();
    wait_until("there is one of here", || inode().is_some() && inode() != left);
    waiting.signal(libc::SIGTERM);
    assert_eq!(waiting.end().0, Some(0));
}

#[test]
fn a_spare_that_nobody_took_goes_with_the_drain() {
    let (name, _, spare) = names("left");
    let first = Drain::with_arguments(&drain_binary(), &[&name, "127.0.0.1", "9"]);
    wait_until("there is a spare", || spare.exists());
    let second = Drain::with_arguments(&drain_binary(), &[&name, "127.0.0.1", "9"]);
    std::thread::sleep(std::time::Duration::from_millis(100));
    second.signal(libc::SIGTERM);
    assert_eq!(second.end().0, Some(0));
    assert!(spare.exists(), "it is the first one's");
    first.signal(libc::SIGTERM);
    assert_eq!(first.end().0, Some(0));
    assert!(!spare.exists());
}

/// A drain that waits for a ring of so many bytes, and may make files of `limit` bytes, makes no spare.
fn makes_no_spare(name: &str, asked: &str, limit: u64) {
    let (name, _, spare) = names(name);
    let mut command = Command::new(drain_binary());
    command.args([&name, "127.0.0.1", "9"]).env("TRACE_SHM_SIZE", asked);
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: between fork and exec, one system call that takes no lock.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    let drain = Drain::of(command);
    let unborn = format!("/dev/shm/.callsight-{}", drain.pid());
    wait_until("it waits for a program", || drain.said().contains("waiting for a program"));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!spare.exists());
    drain.signal(libc::SIGTERM);
    let (code, said) = drain.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!Path::new(&unborn).exists());
}

#[test]
fn a_limit_on_the_size_of_files_costs_the_spare_and_not_the_drain() {
    makes_no_spare("limit", "", 1 << 20);
}

#[test]
fn more_bytes_than_a_ring_can_have_ask_for_the_most_and_not_for_the_default() {
    makes_no_spare("most", "68719476736", 1 << 30);
}
