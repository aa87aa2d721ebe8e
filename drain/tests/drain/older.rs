//! Servers that do not greet, which are sent raw events, where they come late or again.

use std::net::TcpListener;

use crate::support::{Drain, Ring, Server, TestProcess, Writer, drain_binary, wait_until};

fn start(ring: &Ring, port: u16, more: &[&str]) -> Drain {
    let port = port.to_string();
    let arguments = [more, &["--reconnect", &ring.name, "127.0.0.1", &port]].concat();
    Drain::with_arguments(&drain_binary(), &arguments)
}

/// Stores so many calls more, each once there is room; gives how many there are.
fn storing(writer: &mut Writer<'_>) -> impl FnMut(u64) -> u64 {
    let mut calls = 0;
    move |count| {
        for _ in 0..count {
            calls += 1;
            wait_until("there is room", || writer.store_where_room(calls));
        }
        calls
    }
}

#[test]
fn one_that_comes_late_gets_what_comes_then_and_the_rest_is_told() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("captures");
    let free = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let ring = Ring::new("older-late", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, port, &["--file", folder.to_str().expect("UTF-8")]);
    let mut writer = Writer::new(&ring, process.process, 7);
    let mut store = storing(&mut writer);
    store(100_000);
    let server = Server::on(port, |_, _| None);
    wait_until("it gets events", || {
        store(1);
        server.events(0) > 0
    });
    let all = store(1000);
    drop(store);
    writer.retire();
    drop(process);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    let came = server.whole(0).calls_of(7);
    assert!(came.iter().map(|event| event.func).eq(all - came.len() as u64 + 1..=all));
    let lost = all - came.len() as u64;
    let line = format!("live: {} delivered, {lost} dropped (rejected {lost})", came.len());
    assert!(lost >= 100_000 && said.contains(&line), "{said}");
    let why = "older than this trace_stream, and does not take what was packed before it came";
    assert!(said.contains(why), "{said}");
}

#[test]
fn one_that_is_not_known_to_read_is_said_to_be_so() {
    // The kernel accepts, and takes what fits.
    let deaf = TcpListener::bind("127.0.0.1:0").expect("listen");
    let ring = Ring::new("older-deaf", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, deaf.local_addr().expect("an address").port(), &[]);
    let mut writer = Writer::new(&ring, process.process, 7);
    assert!((1..=2000).all(|call| writer.store(call)));
    writer.retire();
    drop(process);
    let said = drain.end_well();
    let line = "is not known to have read the 2000 events that count as delivered there";
    assert!(said.contains(line), "{said}");
}

#[test]
fn one_that_reads_nothing_for_long_is_told_of_once_and_waited_for() {
    let asleep = TcpListener::bind("127.0.0.1:0").expect("listen");
    let ring = Ring::new("older-asleep", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, asleep.local_addr().expect("an address").port(), &[]);
    let mut writer = Writer::new(&ring, process.process, 7);
    let mut calls = 0_u64;
    wait_until("it is said", || {
        // No packer can foresee these, so that some millions fill every queue.
        while writer.store_where_room(calls.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            calls += 1;
        }
        drain.said().contains("the server has read nothing for ")
    });
    writer.retire();
    drop(process);
    let server = Server::of(asleep, |_, _| None);
    let said = drain.end_well();
    assert_eq!(said.matches("the server has read nothing for ").count(), 1, "{said}");
    let capture = server.whole(0);
    assert_eq!((capture.connections, capture.calls_of(7).len() as u64), (1, calls), "{said}");
}

#[test]
fn one_that_is_lost_is_tried_again() {
    let server =
        Server::cutting(|connection, chunk| (connection == 0 && chunk == 3).then_some(true));
    let ring = Ring::new("older-again", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = start(&ring, server.port, &[]);
    let mut writer = Writer::new(&ring, process.process, 7);
    let mut store = storing(&mut writer);
    // Much fits into a socket whose other end is gone.
    wait_until("it comes again", || {
        store(1000);
        server.capture(0).connections == 2
    });
    let all = store(20_000);
    drop(store);
    writer.retire();
    drop(process);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("trying to connect again"), "{said}");
    let capture = server.wait(0, "the last chunk is there", |capture| !capture.end.is_empty());
    assert_eq!(capture.connections, 2);
    let calls = capture.calls_of(7);
    assert!(calls.is_sorted_by(|a, b| a.func < b.func), "none twice");
    // Of those that the first connection took nobody knows, as no connection had been closed well.
    let came_again = calls.iter().zip(calls.iter().skip(1)).find(|(a, b)| b.func != a.func + 1);
    let lost = came_again.map_or(0, |(_, b)| b.func - 1);
    let line = format!("{} events forwarded, {lost} dropped (unacked {lost})", all - lost);
    assert!(lost > 0 && said.contains(&line), "{line}: {said}");
    assert!(said.contains(&format!("{lost} events were sent there, and may be lost")), "{said}");
    assert_eq!(calls.last().map(|event| event.func), Some(all), "{said}");
}
