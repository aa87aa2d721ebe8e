//! What the drain says to bad arguments: one sentence, exit code 2.

use std::mem::offset_of;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use callsight_format::{COMMAND_PAUSE, RING_CONTROL_OFFSET, RingControl};

use crate::support::{Drain, Process, Ring, Server, TestProcess, Writer, drain_binary, wait_until};

fn refused(arguments: &[&str]) -> String {
    let output = Command::new(drain_binary()).args(arguments).output().expect("run it");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn wrong_arguments_are_named() {
    assert!(refused(&[]).contains("usage:"));
    for (arguments, named) in [
        (&["/ring", "localhost"][..], "\"localhost\": a host needs a port"),
        (&["/ring"], "\"/ring\": it needs HOST PORT"),
        (&["/ring", "--no-such", "localhost", "9001"], "\"--no-such\": there is no such option"),
        (&["/ring", "--budget"], "\"--budget\": its value must follow"),
        (&["/ring", "localhost", "9001", "more"], "\"more\": it is one word too many"),
    ] {
        let said = refused(arguments);
        assert!(said.contains(named) && said.contains("usage:"), "{said}");
    }
    for name in ["/", "", "/a/b", "/..", "..", &"x".repeat(300)] {
        assert!(refused(&[name, "localhost", "9001"]).contains("the ring name"), "{name}");
    }
    for port in ["", "0", "65536", "-1", "9001x", "http", "99999999999999999999"] {
        assert!(refused(&["/ring", "localhost", port]).contains("the port"), "{port}");
    }
    assert!(refused(&["/ring", "256.1.1.1", "9001"]).contains("find the server 256.1.1.1"));
}

#[test]
fn a_name_stays_in_its_line() {
    let said = refused(&["a\nb/\x1b[31m", "localhost", "9001"]);
    assert!(said.contains("the ring name \"a\\x0ab/\\x1b[31m\""), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn words_behind_two_dashes_are_names() {
    let said = refused(&["--budget", "1M", "--", "--file", "256.1.1.1", "9001"]);
    assert!(said.contains("find the server 256.1.1.1"), "{said}");
    assert!(refused(&["--", "a", "b", "9001", "c"]).contains("usage:"));
}

#[test]
fn an_address_may_stand_in_brackets() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
    let port = listener.local_addr().expect("an address").port().to_string();
    let ring = Ring::new("brackets", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = Drain::with_arguments(&drain_binary(), &[&ring.name, "[::1]", &port]);
    listener.accept().expect("the drain connects");
    drain.signal(libc::SIGTERM);
    drain.end();
}

#[test]
fn a_folder_that_cannot_be_used_is_said_before_there_is_a_program() {
    let name = "/callsight-test-never-made";
    let file = tempfile::NamedTempFile::new().expect("a file");
    let folder = file.path().to_str().expect("UTF-8");
    let (code, said) = Drain::with_arguments(&drain_binary(), &["--file", folder, name]).end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("Not a directory") && said.lines().count() == 1, "{said}");
    let server = Server::start().port.to_string();
    let arguments = ["--file", folder, name, "127.0.0.1", &server];
    let mut drain = Drain::with_arguments(&drain_binary(), &arguments);
    drain.stop_after(Duration::from_secs(1));
    let (_, said) = drain.end();
    assert!(said.lines().next().is_some_and(|line| line.contains("Not a directory")), "{said}");
}

#[test]
fn a_folder_for_which_no_program_came_is_not_left() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("captures");
    let folder_name = folder.to_str().expect("UTF-8");
    let arguments = ["--file", folder_name, "/callsight-test-never-made"];
    let drain = Drain::with_arguments(&drain_binary(), &arguments);
    wait_until("it is tried", || folder.exists());
    drain.signal(libc::SIGTERM);
    assert_eq!(drain.end().0, Some(0));
    wait_until("it is gone", || !folder.exists());
}

#[test]
fn whom_it_waits_for_is_said_before_it_gives_up() {
    let ring = Ring::new("silent", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    // Behind a queue that is full, nobody answers at all.
    let (silent, _queued) = silent_server();
    let port = silent.local_addr().expect("an address").port();
    let mut drain = Drain::start(&drain_binary(), &ring.name, port);
    drain.stop_after(Duration::from_secs(3));
    let (code, said) = drain.end();
    assert_eq!(code, Some(0), "{said}");
    let line = format!("connect to 127.0.0.1 port {port}: no answer yet; waiting");
    assert_eq!(said.matches(&line).count(), 1, "{said}");
}

/// A listener that accepts nobody, and as many connections as its queue takes.
fn silent_server() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    // SAFETY: listen touches no memory of ours; the descriptor is open.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0, "a queue of one");
    let address = listener.local_addr().expect("an address");
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
    let queued = std::iter::from_fn(connect).take(16).collect();
    (listener, queued)
}

#[test]
fn a_pause_is_said() {
    let server = Server::start();
    let ring = Ring::new("paused", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let command = RING_CONTROL_OFFSET + offset_of!(RingControl, command);
    ring.u32(command).store(COMMAND_PAUSE, Release);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    drop(process);
    let said = drain.end_well();
    let to_resume = format!("until `callsight rings --resume {}`", ring.name);
    assert!(said.contains("is paused: its programs record nothing") && said.contains(&to_resume));
}

#[test]
fn nobody_listening_is_said_and_the_ring_stays() {
    let server = Server::start();
    let ring = Ring::new("refused", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    assert!(Writer::new(&ring, process.process, 5).store(1));
    let drain = Drain::start(&drain_binary(), &ring.name, 1);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("connect to 127.0.0.1 port 1: Connection refused"), "{said}");
    let last = said.lines().last().expect("a line");
    assert!(last.contains("stopped, 0 events forwarded") && last.ends_with("left_in_ring=1"));
    drop(process);
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    assert_eq!(server.whole(0).calls_of(5).len(), 1);
}

#[test]
fn waiting_ends_when_told_to() {
    let server = Server::start();
    let mut drain = Drain::start(&drain_binary(), "/callsight-test-never", server.port);
    std::thread::sleep(Duration::from_millis(100));
    assert!(drain.is_running());
    drain.signal(libc::SIGTERM);
    let (code, said) = drain.end();
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("TRACE_SHM=/callsight-test-never"), "{said}");
}

#[test]
fn a_hangup_ends_it_in_order_unless_it_was_started_to_ignore_that() {
    let server = Server::start();
    let binary = drain_binary();
    let port = server.port.to_string();
    let arguments = ["/callsight-test-never", "127.0.0.1", &port];
    let drain = Drain::with_arguments(&binary, &arguments);
    std::thread::sleep(Duration::from_millis(100));
    drain.signal(libc::SIGHUP);
    assert_eq!(drain.end().0, Some(0));

    let script = r#"trap '' HUP; exec "$0" "$@""#;
    let binary = binary.to_str().expect("a UTF-8 path");
    let mut under_nohup = vec!["-c", script, binary];
    under_nohup.extend(arguments);
    let mut drain = Drain::with_arguments(Path::new("sh"), &under_nohup);
    std::thread::sleep(Duration::from_millis(200));
    drain.signal(libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(200));
    assert!(drain.is_running());
    drain.signal(libc::SIGTERM);
    assert_eq!(drain.end().0, Some(0));
}

#[test]
fn a_ring_of_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let ring = Ring::new("modes", 65536);
    ring.attach(0, Process::this());
    for mode in [0o644, 0o620, 0o601] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(ring.path(), permissions).expect("change the mode");
        assert!(refused(&[&ring.name, "127.0.0.1", "9"]).contains("mode 0600"), "{mode:o}");
    }
}
