//! Connections that hang on their way: both ends are there, and nothing arrives.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};
use std::sync::{Arc, Condvar, Mutex};

use callsight_format::EVENT_BYTES;

use crate::bytes::{append, has_room};
use crate::support::{Drain, Ring, Server, TestProcess, Writer, drain_binary, wait_until};

/// What becomes of bytes on the first connection.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Passes,
    /// The relay reads no more.
    Stops,
    /// It reads, and throws away.
    Swallows,
}

/// A port before that of a server, one of whose connections can hang; others do not.
struct Relay {
    port: u16,
    hung: Arc<(Mutex<State>, Condvar)>,
    connections: Arc<AtomicU64>,
}

impl Relay {
    fn to(server: u16) -> Relay {
        Relay::hanging(server, 0)
    }

    /// Of which connection number `hanging`, counted from 0, can hang.
    fn hanging(server: u16, hanging: u64) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let hung = Arc::new((Mutex::new(State::Passes), Condvar::new()));
        let connections = Arc::new(AtomicU64::new(0));
        let relay = Relay { port, hung: Arc::clone(&hung), connections: Arc::clone(&connections) };
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(("127.0.0.1", server)).expect("connect");
                let state = match connections.fetch_add(1, Relaxed) == hanging {
                    true => Arc::clone(&hung),
                    false => Arc::new((Mutex::new(State::Passes), Condvar::new())),
                };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let [from, to] = [from, to].map(|end| end.try_clone().expect("a handle"));
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || carry(from, to, &state));
                }
            }
        });
        relay
    }

    fn set(&self, state: State) {
        *self.hung.0.lock().expect("no panic") = state;
        self.hung.1.notify_all();
    }
}

/// A broken connection is the end of both ways.
fn carry(mut from: TcpStream, mut to: TcpStream, (state, change): &(Mutex<State>, Condvar)) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let state = state.lock().expect("no panic");
        let state = *change.wait_while(state, |state| *state == State::Stops).expect("no panic");
        if state == State::Passes && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = [from, to].map(|end| end.shutdown(Shutdown::Both));
}

const CALLS: u64 = 200_000;

/// Calls before the first connection hangs, and after; what the drain says, still running.
fn hang(name: &str, state: State, options: &[&str]) -> (Server, Relay, Ring, Drain) {
    let server = Server::start();
    let relay = Relay::to(server.port);
    let ring = Ring::new(name, 16 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let port = relay.port.to_string();
    let arguments = [options, &[&ring.name, "127.0.0.1", &port]].concat();
    let drain = Drain::with_arguments(&drain_binary(), &arguments);
    let mut writer = Writer::new(&ring, process.process, 7);
    assert!((1..=CALLS / 2).all(|call| writer.store(call)));
    server.wait(0, "the first half comes", |c| c.calls_of(7).len() as u64 == CALLS / 2);
    relay.set(state);
    assert!((CALLS / 2 + 1..=CALLS).all(|call| writer.store(call)));
    writer.retire();
    drop(process);
    wait_until("it is said", || drain.said().contains("the server has acknowledged nothing for "));
    (server, relay, ring, drain)
}

/// All calls are there, once.
fn is_whole(server: &Server) {
    let capture = server.wait(0, "the last chunk comes", |capture| !capture.end.is_empty());
    assert!(capture.calls_of(7).iter().map(|event| event.func).eq(1..=CALLS));
    capture.check_counts();
}

fn is_given_up(name: &str, state: State) {
    let (server, relay, _ring, drain) = hang(name, state, &["--reconnect"]);
    let said = drain.end_well();
    assert_eq!(said.matches("acknowledged nothing").count(), 1, "{said}");
    assert!(said.contains("; trying to connect again"), "{said}");
    assert_eq!(relay.connections.load(Relaxed), 2, "{said}");
    is_whole(&server);
}

#[test]
fn a_connection_that_takes_nothing_more_is_given_up_for_another() {
    is_given_up("hung-stops", State::Stops);
}

#[test]
fn a_connection_that_swallows_what_it_takes_is_given_up_for_another() {
    is_given_up("hung-swallows", State::Swallows);
}

#[test]
fn without_another_connection_a_silent_server_is_told_of_once_and_waited_for() {
    let (server, relay, _ring, drain) = hang("hung-waits", State::Stops, &[]);
    relay.set(State::Passes);
    let said = drain.end_well();
    assert_eq!(said.matches("acknowledged nothing").count(), 1, "{said}");
    assert_eq!(relay.connections.load(Relaxed), 1, "{said}");
    is_whole(&server);
}

#[test]
fn a_drain_that_is_told_to_stop_tries_another_connection_first() {
    let server = Server::start();
    let relay = Relay::to(server.port);
    let ring = Ring::new("hung-stop", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let port = relay.port.to_string();
    let arguments = ["--reconnect", &ring.name, "127.0.0.1", &port];
    let drain = Drain::with_arguments(&drain_binary(), &arguments);
    let mut writer = Writer::new(&ring, process.process, 7);
    assert!((1..=1000).all(|call| writer.store(call)));
    server.wait(0, "the first half comes", |c| c.calls_of(7).len() == 1000);
    relay.set(State::Swallows);
    assert!((1001..=2000).all(|call| writer.store(call)));
    drain.signal(libc::SIGTERM);
    let (code, said) = drain.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("; trying to connect again"), "{said}");
    let capture = server.wait(0, "the last chunk comes", |capture| !capture.end.is_empty());
    let calls = capture.calls_of(7);
    assert!(calls.iter().map(|event| event.func).eq(1..=calls.len() as u64));
    // What it had not taken when it was told is there for the next one.
    let (came, left) = (calls.len(), 2000 - calls.len());
    let line = format!("stopped, {came} events forwarded, 0 dropped, left_in_ring={left}");
    assert!(said.contains(&line), "{said}");
}

#[test]
fn a_byte_ring_is_emptied_while_acknowledgements_are_owed() {
    const CAPACITY: u64 = 65536;
    const CALLS: u64 = 4 * CAPACITY / EVENT_BYTES as u64;
    let server = Server::start();
    let relay = Relay::to(server.port);
    let ring = Ring::of_bytes("bytes-owed", CAPACITY as u32);
    ring.begin();
    ring.writers().store(1, Release);
    let drain = Drain::start(&drain_binary(), &ring.name, relay.port);
    assert!(append(&ring, CAPACITY, 1));
    server.wait(0, "it has begun", |capture| capture.calls_of(9).len() == 1);
    relay.set(State::Stops);
    for call in 2..=CALLS {
        wait_until("there is room", || has_room(&ring, CAPACITY));
        assert!(append(&ring, CAPACITY, call));
    }
    relay.set(State::Passes);
    ring.writers().store(0, Release);
    ring.unmap();
    drain.end_well();
    let functions = server.whole(0).calls_of(9);
    assert!(functions.iter().map(|event| event.func).eq(1..=CALLS));
}

/// The drain behind one that was killed meets a server that is stopped just then: it waits, though its ring
/// fills up and a file beside it could go on. Events without numbers could be any that came before.
#[test]
fn a_server_that_greeted_the_drain_before_is_sent_blocks_however_late_it_greets() {
    for beside in [false, true] {
        let server = Server::start();
        let relay = Relay::hanging(server.port, 1);
        let ring = Ring::new("hung-between", 1 << 20);
        let process = TestProcess::start();
        ring.attach(0, process.process);
        let port = relay.port.to_string();
        let folder = tempfile::tempdir().expect("a folder");
        let mut arguments = vec!["--reconnect", &ring.name, "127.0.0.1", &port];
        if beside {
            arguments.extend(["--file", folder.path().to_str().expect("a path")]);
        }
        let first = Drain::with_arguments(&drain_binary(), &arguments);
        let mut writer = Writer::new(&ring, process.process, 7);
        assert!((1..=1000).all(|call| writer.store(call)));
        server.wait(0, "the first part comes", |c| c.calls_of(7).len() == 1000);
        first.signal(libc::SIGKILL);
        drop(first.end());
        relay.set(State::Stops);
        let second = Drain::with_arguments(&drain_binary(), &arguments);
        // More than half of the ring: 20,000 of 32,768.
        assert!((1001..=21_000).all(|call| writer.store(call)));
        std::thread::sleep(std::time::Duration::from_millis(1500));
        relay.set(State::Passes);
        writer.retire();
        drop(process);
        let said = second.end_well();
        let capture = server.wait(1, "the last chunk comes", |capture| !capture.end.is_empty());
        assert_eq!(capture.unnumbered, 0, "{said}");
        let calls = capture.calls_of(7);
        assert!(calls.iter().map(|event| event.func).eq(21_001 - calls.len() as u64..=21_000));
        assert!(calls.len() >= 20_000, "{} calls: {said}", calls.len());
    }
}
