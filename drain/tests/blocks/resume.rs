//! What a server acknowledges has left the ring, and what it does not comes again.

use std::io::{Read, Write};
use std::mem::offset_of;
use std::net::TcpListener;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use callsight_format::{EVENT_BYTES, REPLY_GREETING, RingHeader, greeting, reply};

use crate::support::{Drain, Ring, Server, TestProcess, Writer, drain_binary, wait_until};

fn functions(server: &Server, index: usize, tid: u32) -> Vec<u64> {
    server.capture(index).calls_of(tid).iter().map(|event| event.func).collect()
}

/// A drain that connects again.
fn reconnecting(ring: &Ring, port: u16) -> Drain {
    let port = port.to_string();
    Drain::with_arguments(&drain_binary(), &["--reconnect", &ring.name, "127.0.0.1", &port])
}

/// Stores a call, waiting for the drain where the ring is full.
fn store(writer: &mut Writer<'_>, call: u64) {
    wait_until("there is room", || writer.store_where_room(call));
}

#[test]
fn a_stream_cut_many_times_has_no_gap_and_no_repeat() {
    // Behind a chunk that was kept, and behind one that was not.
    let server = Server::cutting(|connection, chunk| {
        (connection < 20 && chunk == 1 + connection % 5).then_some(connection % 2 == 0)
    });
    let ring = Ring::new("cut", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = reconnecting(&ring, server.port);
    let mut writer = Writer::new(&ring, process.process, 7);
    for call in 1..=600_000 {
        store(&mut writer, call);
    }
    writer.retire();
    drop(process);
    drain.end_well();
    let capture = server.capture(0);
    assert!(functions(&server, 0, 7).into_iter().eq(1..=600_000));
    assert!(capture.connections > 20, "{} connections", capture.connections);
    assert_eq!(capture.repeated, 0);
    capture.check_counts();
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let port = Server::start().port;
    let ring = Ring::new("later", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    // A port where nobody listens: that server's thread goes on, so another one is taken.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let later = free.local_addr().expect("an address").port();
    assert_ne!(port, later);
    drop(free);
    let mut drain = reconnecting(&ring, later);
    let mut writer = Writer::new(&ring, process.process, 7);
    assert!((1..=5).all(|call| writer.store(call)));
    drop(process);
    std::thread::sleep(Duration::from_millis(700));
    assert!(drain.is_running(), "the ring is over, but nobody has its events");
    let server = Server::on(later, |_, _| None);
    drain.end_well();
    assert!(functions(&server, 0, 7).into_iter().eq(1..=5));
}

/// Whether somebody connects within a while that is longer than a server is waited for.
fn is_called(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).expect("not to wait");
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_secs(6) {
        if listener.accept().is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_server_that_greets_no_more_is_told_of_once_and_left_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let ring = Ring::new("no-more", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = reconnecting(&ring, port);
    let mut writer = Writer::new(&ring, process.process, 7);
    assert!((1..=100).all(|call| writer.store(call)));
    let (mut first, _) = listener.accept().expect("the drain connects");
    let (header, payload) = reply(REPLY_GREETING, greeting());
    first.write_all(&[&header[..], &payload].concat()).expect("greet");
    // The handshake and the first chunk are there, then, so the greeting is read as well.
    first.read_exact(&mut [0; 100]).expect("it speaks");
    std::thread::sleep(Duration::from_millis(300));
    drop(first);
    let (_older, _) = listener.accept().expect("the drain connects again");
    assert!(!is_called(&listener), "it is called again before one that hangs would be");
    drain.signal(libc::SIGTERM);
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.matches("the server does not greet any more").count(), 1, "{said}");
    assert!(said.lines().last().is_some_and(|line| line.contains("left_in_ring=")), "{said}");
}

#[test]
fn what_was_not_acknowledged_is_still_in_the_ring() {
    let server =
        Server::cutting(|connection, chunk| (connection == 0 && chunk == 3).then_some(false));
    let ring = Ring::new("unacked", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let first = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut writer = Writer::new(&ring, process.process, 7);
    let mut call = 0;
    let mut first = Some(first);
    while first.as_mut().is_some_and(|drain| drain.is_running()) {
        call += 1;
        // Not more than half of the ring: beyond that it is given back all the same.
        if call < 10_000 {
            store(&mut writer, call);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    let last = call.min(9_999);
    let (code, said) = first.take().expect("there").end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is still in the ring"), "{said}");
    writer.retire();
    drop(process);
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    let all: Vec<u64> = [functions(&server, 0, 7), functions(&server, 1, 7)].concat();
    assert!(all.into_iter().eq(1..=last));
}

/// More than blocks are filled at a time.
const MANY_THREADS: u32 = 63;

/// Threads 7, 8 and 9 had the same slot, one after the other; the drain is killed when it has given
/// back some of their pages and others not.
#[test]
fn threads_that_had_a_slot_in_turn_leave_it_in_their_order() {
    // The first two blocks are acknowledged, and nothing behind them.
    let server = Server::cutting(|connection, chunk| {
        (chunk == if connection == 0 { 3 } else { 1 }).then_some(false)
    });
    let ring = Ring::new("turns", 2 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    for tid in 0..MANY_THREADS {
        assert!(Writer::new(&ring, process.process, 100 + tid).store(1));
    }
    let mut writer = Writer::new(&ring, process.process, 7);
    (1..=10).for_each(|call| assert!(writer.store(call)));
    writer.hand_over(8);
    (11..=30).for_each(|call| assert!(writer.store(call)));
    writer.hand_over(9);
    (31..=35).for_each(|call| assert!(writer.store(call)));
    let drain = reconnecting(&ring, server.port);
    let tail = ring.u64(offset_of!(RingHeader, tail));
    wait_until("two blocks have left the ring", || tail.load(Acquire) >= 11 * EVENT_BYTES as u64);
    drain.signal(libc::SIGKILL);
    drain.end();
    drop(process);
    let next = Server::start();
    Drain::start(&drain_binary(), &ring.name, next.port).end_well();
    let capture = next.whole(0);
    capture.check_counts();
    assert_eq!(capture.dropped_sum(), 0, "{:?}", capture.end);
    for (tid, calls) in [(7, 1..=10), (8, 11..=30), (9, 31..=35)] {
        let all = [functions(&server, 0, tid), functions(&next, 0, tid)].concat();
        assert!(all.into_iter().eq(calls), "thread {tid}");
    }
}

#[test]
fn a_killed_drain_repeats_only_what_was_not_acknowledged() {
    let server = Server::start();
    // Not more than half of the ring is written: beyond that it is given back all the same.
    let ring = Ring::new("killed", 4 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 7);
    let mut call = 0;
    for stream in 0..10 {
        let drain = Drain::start(&drain_binary(), &ring.name, server.port);
        let until = call + 1000 + stream * 777;
        while call < until {
            call += 1;
            store(&mut writer, call);
        }
        drain.signal(libc::SIGKILL);
        drain.end();
    }
    writer.retire();
    drop(process);
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    let mut all = Vec::new();
    for stream in 0..=10 {
        let calls = functions(&server, stream, 7);
        let Some(first) = calls.first() else { continue };
        assert!(calls.is_sorted(), "stream {stream}");
        assert!(*first <= all.len() as u64 + 1, "a gap before stream {stream}");
        all.truncate(*first as usize - 1);
        all.extend(calls);
    }
    assert!(all.into_iter().eq(1..=call));
}
