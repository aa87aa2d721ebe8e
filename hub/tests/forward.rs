//! A server that passes its streams on to another one, and keeps the latest events in memory.

mod common;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use callsight_format::*;
use callsight_hub::forward::Forward;
use callsight_hub::ingest::{Destinations, MakeSink, Options, Server};
use callsight_hub::model::{Model, WriterId};
use callsight_hub::stream::{ChunkDecoder, Item};
use callsight_hub::{Amount, Sink};
use common::packed::*;
use common::server::*;
use common::*;

const CALLS: u64 = 40;

fn forwards_to(at: SocketAddr) -> Destinations {
    let make: MakeSink = Box::new(move || Box::new(Forward::to(&at.to_string())) as Box<dyn Sink>);
    Destinations { unpacked: false, sinks: vec![make] }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// What a server behind another one got, and what that one had.
fn chain(devices: impl FnOnce(SocketAddr, &Path)) -> (Served, Served) {
    let mut first = None;
    let second = serve(Some(1), |at| {
        first = Some(run_server_on(folder(), NO_LIMITS, Some(1), forwards_to(at), devices));
    });
    (first.expect("it ran"), second)
}

#[test]
fn the_next_server_has_the_same_bytes() {
    let (first, second) = chain(|at, _| {
        let mut device = Device::connect(at, 1);
        blocks(200, CALLS).iter().for_each(|block| device.send(block));
        device.end(200, 200 * CALLS * 2);
    });
    let [here, there] = [&first, &second].map(|served| chunks_of(&served.captures()[0]));
    assert_eq!((here.len(), &here), (203, &there));
    let account = first.lines.last().expect("a line");
    assert!(
        account.contains("(16000 events, 1 connection, 0 dropped; emitted 16000, unaccounted=0)"),
        "{account}"
    );
}

#[test]
fn raw_events_are_passed_on_too() {
    let (_, second) = chain(|at, _| {
        let mut device = connect(at, ByteOrder::Big);
        for _ in 0..30 {
            send(&mut device, &chunk(CHUNK_EVENTS, &calls(3, 300, ByteOrder::Big), ByteOrder::Big));
        }
    });
    assert_eq!(hooks(&events_of(&second.captures()[0])), 30 * 600);
}

#[test]
fn a_next_server_that_is_not_there_costs_only_this_sink() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    };
    let served = run_server_on(folder(), NO_LIMITS, Some(1), forwards_to(nobody), |at, _| {
        let mut device = Device::connect(at, 1);
        blocks(30, CALLS).iter().for_each(|block| device.send(block));
        device.end(30, 30 * CALLS * 2);
    });
    assert_eq!(numbers_of(&served.captures()[0]).len(), 30);
    let account = served.lines.last().expect("a line");
    assert!(account.contains("(0 events, 0 connections, 2400 dropped: 2400 unacked"), "{account}");
    assert!(served.said("it is tried again and again"), "{:?}", served.lines);
}

#[test]
fn a_next_server_that_is_stopped_and_comes_back_misses_nothing() {
    let sent = blocks(300, CALLS);
    let next_dir = folder();
    let lines = Lines::default();
    let next = |port| {
        let options = options(next_dir.path(), NO_LIMITS, None, &lines);
        Server::bind(Options { port, ..options }).expect("a server")
    };
    let early = next(0);
    let at_next = early.local_addr();
    let stop = [false, false].map(AtomicBool::new);
    thread::scope(|scope| {
        let [stop_early, stop_late] = &stop;
        let running = scope.spawn(move || early.run(stop_early));
        run_server_on(folder(), NO_LIMITS, Some(1), forwards_to(at_next), |at, _| {
            let mut device = Device::connect(at, 1);
            sent[..100].iter().for_each(|block| device.send(block));
            device.wait_for(100);
            stop_early.store(true, Ordering::Relaxed);
            running.join().expect("no panic");
            sent[100..200].iter().for_each(|block| device.send(block));
            device.wait_for(200);
            let late = next(at_next.port());
            scope.spawn(move || late.run(stop_late));
            sent[200..].iter().for_each(|block| device.send(block));
            device.end(300, 300 * CALLS * 2);
        });
        stop_late.store(true, Ordering::Relaxed);
    });
    let numbers = numbers_of(&next_dir.path().join("trace.stream.1.0.bin"));
    assert_eq!(numbers, (1..=300).collect::<Vec<_>>());
}

#[test]
fn a_model_has_the_latest_events_of_every_writer_while_they_run() {
    let model = Model::default();
    let of_server = model.clone();
    let make: MakeSink = Box::new(move || of_server.sink());
    let destinations = Destinations { unpacked: false, sinks: vec![make] };
    run_server_on(folder(), NO_LIMITS, Some(1), destinations, |at, _| {
        let mut device = Device::connect(at, 1);
        blocks(90, CALLS).iter().for_each(|block| device.send(block));
        while model.overview().events < 90 * CALLS * 2 {
            thread::yield_now();
        }
        let overview = model.overview();
        assert_eq!((overview.sessions, overview.writers), (1, 3));
        let writer = |tid| WriterId { session: 1, pid: 7, tid };
        assert_eq!(model.writers(), [1, 2, 3].map(writer));
        let latest = model.latest(writer(2));
        let all = 30 * CALLS * 2;
        assert!(latest.iter().map(|event| event.ts).eq(10 + all - 1024..10 + all));
        device.end(90, 90 * CALLS * 2);
    });
    assert_eq!((model.overview().sessions, model.overview().writers), (0, 0));
}

/// A chunk of 32 K raw events that no compression makes much smaller.
fn large_chunk(number: u64) -> Vec<u8> {
    let mut noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut event = |at: u64| {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        let (func, call_site) = (noise, noise.wrapping_mul(0x2545_f491_4f6c_dd1d));
        Event { ts: at + 1, func, call_site, tid: 1, kind: (at % 2) as u8, frame: [0; 3] }
    };
    let events: Vec<u8> = (0..32 << 10).flat_map(|at| event(at).to_bytes(LE)).collect();
    chunk(CHUNK_EVENTS, &events, LE)
}

#[test]
fn a_next_server_that_stops_reading_holds_up_nobody_and_its_losses_are_counted() {
    let stopped = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at_next = stopped.local_addr().expect("an address");
    const CHUNKS: u64 = 60;
    thread::scope(|scope| {
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            // It stays open and reads nothing.
            let _open = stopped.accept().expect("a connection");
            let _ = is_done.recv();
        });
        let served = run_server_on(folder(), NO_LIMITS, Some(1), forwards_to(at_next), |at, _| {
            let mut device = connect(at, LE);
            (1..=CHUNKS).for_each(|number| send(&mut device, &large_chunk(number)));
        });
        drop(done);
        let sent = CHUNKS * (32 << 10);
        assert_eq!(hooks(&events_of(&served.captures()[0])) as u64, sent);
        assert_eq!(served.totals.unaccounted, 0);
        let account = served.lines.last().expect("a line");
        assert!(account.contains(" queue, ") && account.contains(" unacked; "), "{account}");
        assert!(account.contains(&format!("emitted {sent}, unaccounted=0")), "{account}");
    });
}

/// A way to `server` that swallows what comes behind the first bytes of its first connection; how many
/// connections there were.
fn swallowing(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    const PASSED: u64 = 4096;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let copy = |from: TcpStream, to: TcpStream, bytes: u64| {
        let _ = io::copy(&mut (&from).take(bytes), &mut &to);
        let _ = io::copy(&mut &from, &mut io::sink());
    };
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(server).expect("connect");
            let passed =
                if counted.fetch_add(1, Ordering::Relaxed) == 0 { PASSED } else { u64::MAX };
            let [near_again, far_again] =
                [&near, &far].map(|end| end.try_clone().expect("a handle"));
            thread::spawn(move || copy(near, far, passed));
            thread::spawn(move || copy(far_again, near_again, u64::MAX));
        }
    });
    (at, connections)
}

#[test]
fn a_next_server_behind_a_connection_that_hangs_is_connected_to_again() {
    let mut first = None;
    let mut sent = 0;
    let second = serve(None, |at| {
        let (at, connections) = swallowing(at);
        let forwards = forwards_to(at);
        first = Some(run_server_on(folder(), NO_LIMITS, Some(1), forwards, |at, _| {
            let mut device = Device::connect(at, 1);
            for block in blocks(5000, CALLS) {
                device.send(&block);
                sent += 1;
                thread::sleep(Duration::from_millis(10));
                if connections.load(Ordering::Relaxed) > 1 {
                    break;
                }
            }
            device.end(sent, sent * CALLS * 2);
        }));
    });
    let first = first.expect("it ran");
    assert!(first.said("it acknowledges nothing any more"), "{:?}", first.lines);
    let account = first.lines.last().expect("a line");
    assert!(account.contains("2 connections, 0 dropped"), "{account}");
    assert!(numbers_of(&second.captures()[0]).into_iter().eq(1..=sent));
}

/// A server of version 2: it reads chunks to their end and says nothing. Behind `least` events it ends a
/// connection on which more are to come. How many events each connection brought.
fn older_server(least: Option<u64>) -> (SocketAddr, thread::JoinHandle<Vec<u64>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let serve = move || {
        let mut counts = Vec::new();
        loop {
            let (mut socket, _) = listener.accept().expect("a connection");
            let least = least.filter(|_| counts.is_empty());
            let (events, is_whole) = read_as_older(&mut socket, least);
            counts.push(events);
            if is_whole {
                return counts;
            }
        }
    };
    (at, thread::spawn(serve))
}

/// The enters and exits that come raw, and whether the other side ended. Blocks are none of them.
fn read_as_older(socket: &mut TcpStream, least: Option<u64>) -> (u64, bool) {
    socket.read_exact(&mut [0; HANDSHAKE_BYTES]).expect("a handshake");
    let (mut decoder, mut bytes, mut events) = (ChunkDecoder::new(LE), [0; 4096], 0);
    loop {
        let len = socket.read(&mut bytes).expect("bytes");
        let mut input = &bytes[..len];
        while let Some(chunk) = decoder.next(&mut input).expect("honest") {
            match chunk.item {
                Item::Events(raw) => events += Amount::of_events(raw).events,
                Item::Block(_) => panic!("a block for an older server"),
                _ => {}
            }
        }
        if len == 0 || least.is_some_and(|least| events >= least) {
            return (events, len == 0);
        }
    }
}

#[test]
fn an_older_next_server_is_sent_raw_events_and_that_it_is_one_is_said() {
    for pause in [Duration::ZERO, Duration::from_secs(2)] {
        let (at_next, next) = older_server(None);
        let served = run_server_on(folder(), NO_LIMITS, Some(1), forwards_to(at_next), |at, _| {
            let mut device = Device::connect(at, 1);
            blocks(200, CALLS).iter().for_each(|block| device.send(block));
            device.wait_for(200);
            // Without a pause it ends before it is known that nobody greets.
            thread::sleep(pause);
            device.end(200, 200 * CALLS * 2);
        });
        assert_eq!(next.join().expect("no panic"), [200 * CALLS * 2]);
        assert!(served.said("so it is an older callsight"), "{:?}", served.lines);
        let account = served.lines.last().expect("a line");
        assert!(account.contains("(16000 events, 1 connection, 0 dropped;"), "{account}");
        assert_eq!(served.totals.unaccounted, 0);
    }
}

/// Sends 200 blocks, 100 of them behind a pause, and ends so long after the last is acknowledged.
fn send_with_a_pause(at: SocketAddr, before_the_end: Duration) {
    let mut device = Device::connect(at, 1);
    let sent = blocks(200, CALLS);
    sent[..100].iter().for_each(|block| device.send(block));
    thread::sleep(Duration::from_secs(2));
    sent[100..].iter().for_each(|block| device.send(block));
    device.wait_for(200);
    thread::sleep(before_the_end);
    device.end(200, 200 * CALLS * 2);
}

#[test]
fn what_an_older_next_server_took_that_then_broke_is_not_known_to_be_there() {
    let (at_next, next) = older_server(Some(1));
    let served = run_server_on(folder(), NO_LIMITS, Some(1), forwards_to(at_next), |at, _| {
        send_with_a_pause(at, Duration::from_secs(2));
    });
    let counts = next.join().expect("no panic");
    let account = served.lines.last().expect("a line");
    let unacked = 200 * CALLS * 2 - counts[1];
    assert_eq!(counts.len(), 2);
    assert!(counts[1] > 0 && unacked >= counts[0], "{counts:?}");
    let said =
        format!("({} events, 2 connections, {unacked} dropped: {unacked} unacked;", counts[1]);
    assert!(account.contains(&said), "{account}, {counts:?}");
}

#[test]
fn a_next_server_that_greets_late_is_sent_blocks_from_then_on() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at_next = listener.local_addr().expect("an address");
    let serve = move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        socket.read_exact(&mut [0; HANDSHAKE_BYTES]).expect("a handshake");
        let (mut decoder, mut bytes) = (ChunkDecoder::new(LE), [0; 4096]);
        let (mut raw_events, mut packed_events, mut greeted) = (0, 0, false);
        loop {
            let len = socket.read(&mut bytes).expect("bytes");
            let (mut input, mut number) = (&bytes[..len], None);
            while let Some(chunk) = decoder.next(&mut input).expect("honest") {
                match chunk.item {
                    Item::Events(raw) => raw_events += Amount::of_events(raw).events,
                    Item::Block(block) => {
                        packed_events += u64::from(block.header.calls);
                        number = Some(block.header.number);
                    }
                    Item::End(end) => number = end.blocks.map(|blocks| blocks + 1),
                    _ => {}
                }
            }
            if raw_events > 0 && !std::mem::replace(&mut greeted, true) {
                say(&mut socket, REPLY_GREETING, &greeting());
                number = number.or(Some(0));
            }
            if let Some(number) = number {
                say(&mut socket, REPLY_ACKNOWLEDGE, &number.to_le_bytes());
            }
            if len == 0 {
                return (raw_events, packed_events);
            }
        }
    };
    let next = thread::spawn(serve);
    let served = run_server_on(folder(), NO_LIMITS, Some(1), forwards_to(at_next), |at, _| {
        send_with_a_pause(at, Duration::from_secs(1));
    });
    let (raw, packed) = next.join().expect("no panic");
    assert!(raw > 0 && packed > 0, "{raw} raw, {packed} packed");
    assert_eq!(raw + packed, 200 * CALLS * 2);
    let account = served.lines.last().expect("a line");
    assert!(account.contains("(16000 events, 1 connection, 0 dropped;"), "{account}");
}

fn say(socket: &mut TcpStream, kind: u32, payload: &[u8]) {
    let header = [kind.to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat();
    // It may have ended meanwhile.
    let _ = socket.write_all(&[&header[..], payload].concat());
}

#[test]
fn a_sink_whose_making_panics_or_blocks_hurts_no_other() {
    let makes: [MakeSink; 2] = [
        Box::new(|| panic!("by intention")),
        Box::new(|| {
            loop {
                std::thread::sleep(std::time::Duration::from_secs(60));
            }
        }),
    ];
    for make in makes {
        let destinations = Destinations { unpacked: false, sinks: vec![make] };
        let dir = tempfile::tempdir().expect("a folder");
        let served = run_server_on(dir, NO_LIMITS, None, destinations, |at, _| {
            let mut device = drain(at, 1, b"boot", 0);
            let blocks = blocks(10, 10);
            blocks.iter().for_each(|block| device.send(block));
            device.end(10, 200);
        });
        assert_eq!(served.totals.to_string(), "1 stream, 200 events, 0 dropped, unaccounted=0");
        assert!(served.said("sink 2 (0 events, 200 dropped: 200 sink_dead"), "{:?}", served.lines);
    }
}
