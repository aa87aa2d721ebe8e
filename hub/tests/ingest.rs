//! The server over real sockets: honest, hostile, idle and simultaneous devices.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use callsight_format::*;
use callsight_hub::capture::CaptureLimits;
use callsight_hub::ingest::{BindError, Options, Server, Totals};
use common::server::*;
use common::*;

#[test]
fn a_device_of_either_byte_order_becomes_a_capture() {
    for order in [LE, ByteOrder::Big] {
        let served = serve(Some(1), |at| {
            let mut device = connect(at, order);
            let hello = fields(&[(HELLO_HOSTNAME, b"board"), (HELLO_EXE, b"/bin/app")]);
            send(&mut device, &chunk(CHUNK_HELLO, &hello, order));
            for _ in 0..50 {
                send(&mut device, &chunk(CHUNK_EVENTS, &calls(9, 100, order), order));
            }
            let end = fields(&[(END_REASON, &END_DONE.to_le_bytes())]);
            send(&mut device, &chunk(CHUNK_END, &end, order));
        });
        let path = served.dir.path().join("trace.stream.1.0.bin");
        assert_eq!(hooks(&events_of(&path)), 10_000);
        assert_eq!((served.totals.streams, served.totals.stored_events), (1, 10_000));
        assert!(served.said("/bin/app on board"), "{:?}", served.lines);
        let last = served.lines.last().expect("a line");
        assert!(
            last.ends_with("-> trace.stream.1.*.bin (10000 events, 1 segment, 0 dropped; emitted 10000, unaccounted=0)"),
            "{last}"
        );
    }
}

#[test]
fn eight_devices_at_once_do_not_mix() {
    let served = serve(Some(8), |at| {
        thread::scope(|scope| {
            for tid in 1..=8 {
                scope.spawn(move || {
                    let order = if tid % 2 == 0 { LE } else { ByteOrder::Big };
                    let mut device = connect(at, order);
                    for _ in 0..300 {
                        let bytes = chunk(CHUNK_EVENTS, &calls(tid, 200, order), order);
                        device.write_all(&bytes).expect("send");
                    }
                });
            }
        });
    });
    let mut tids = Vec::new();
    for path in served.captures() {
        let events = calls_of(&path);
        assert_eq!(events.len(), 120_000);
        tids.push(events[0].tid);
        let whole = calls(events[0].tid, 200, LE);
        for chunk in events.chunks(400) {
            assert!(chunk.iter().flat_map(|event| event.to_bytes(LE)).eq(whole.iter().copied()));
        }
    }
    tids.sort_unstable();
    assert_eq!(tids, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// What a hostile device may send after one honest chunk.
fn hostile_chunks() -> Vec<(&'static str, Vec<u8>)> {
    let header = |kind, raw_len, zstd_len| ChunkHeader { kind, raw_len, zstd_len }.to_bytes(LE);
    let with = |kind, raw_len, payload: &[u8]| {
        [&header(kind, raw_len, payload.len() as u32)[..], payload].concat()
    };
    let packed = |raw: &[u8]| zstd::bulk::compress(raw, 1).expect("compress");
    let bomb = {
        let mut packer = zstd::stream::Encoder::new(Vec::new(), 19).expect("an encoder");
        std::io::copy(&mut std::io::repeat(0).take(1 << 30), &mut packer).expect("compress");
        packer.finish().expect("finish")
    };
    let two_gib_window = [0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 1, 0, 0];
    vec![
        ("raw length", header(CHUNK_EVENTS, u32::MAX, 100).to_vec()),
        ("compressed length", header(CHUNK_EVENTS, 64, u32::MAX).to_vec()),
        ("unknown type, lengths", header(77, 64, u32::MAX).to_vec()),
        ("part of an event", with(CHUNK_EVENTS, 33, &packed(&[1; 33]))),
        ("too little", with(CHUNK_EVENTS, 1 << 20, &packed(&[1; 64]))),
        ("too much", with(CHUNK_EVENTS, 64, &packed(&vec![1; 1 << 20]))),
        ("bomb", with(CHUNK_EVENTS, 1 << 20, &bomb)),
        ("window", with(CHUNK_EVENTS, 0, &two_gib_window)),
        ("notice", with(CHUNK_DROPPED, 3, &packed(&[1; 3]))),
        ("noise", with(CHUNK_EVENTS, 64, &[0xa5; 5000])),
        ("two frames", with(CHUNK_EVENTS, 64, &[packed(&[1; 32]), packed(&[1; 32])].concat())),
    ]
}

#[test]
fn a_breach_closes_that_connection_and_keeps_what_came_before() {
    let attacks = hostile_chunks();
    let served = serve(Some(attacks.len() as u32 + 1), |at| {
        let mut honest = connect(at, LE);
        for (name, attack) in &attacks {
            send(&mut honest, &chunk(CHUNK_EVENTS, &calls(1, 50, LE), LE));
            let mut device = connect(at, LE);
            send(&mut device, &chunk(CHUNK_EVENTS, &calls(2, 10, LE), LE));
            send(&mut device, attack);
            send(&mut device, &chunk(CHUNK_EVENTS, &calls(3, 10, LE), LE));
            device.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
            let closed = device.read(&mut [0; 1]);
            assert!(
                closed.as_ref().map_or_else(
                    |error| error.kind() == std::io::ErrorKind::ConnectionReset,
                    |len| *len == 0
                ),
                "{name}: not closed: {closed:?}"
            );
        }
    });
    let captures = served.captures();
    assert_eq!(captures.len(), attacks.len() + 1);
    let counts: Vec<usize> = captures.iter().map(|path| hooks(&events_of(path))).collect();
    assert_eq!(counts.iter().filter(|count| **count == 20).count(), attacks.len(), "{counts:?}");
    assert!(counts.contains(&(attacks.len() * 100)), "the honest one: {counts:?}");
    let closed = served.lines.iter().filter(|line| line.contains(": closed: ")).count();
    assert_eq!(closed, attacks.len(), "{:#?}", served.lines);
}

#[test]
fn a_stream_cut_at_every_byte_keeps_its_whole_chunks_and_counts_the_cut_one() {
    let one = chunk(CHUNK_EVENTS, &calls(1, 5, LE), LE);
    let bytes = [one.clone(), one.clone()].concat();
    let served = serve(Some(bytes.len() as u32 + 1), |at| {
        for cut in 0..=bytes.len() {
            let mut device = connect(at, LE);
            send(&mut device, &bytes[..cut]);
            wait_closed(device);
        }
    });
    for cut in 0..=bytes.len() {
        let events = events_of(&served.dir.path().join(format!("trace.stream.{}.0.bin", cut + 1)));
        let whole = cut / one.len();
        let announced = cut % one.len() >= CHUNK_HEADER_BYTES;
        assert_eq!(hooks(&events), whole * 10, "cut at {cut}");
        let lost: &[_] = if announced { &[(Cause::Torn as u32, 10)] } else { &[] };
        assert_eq!(told(&events), lost, "cut at {cut}");
    }
}

#[test]
fn what_is_no_handshake_is_refused_and_leaves_no_file() {
    let served = serve(None, |at| {
        let good = Handshake::to_bytes(&origin(), LE);
        let with = |offset: usize, byte: u8| {
            let mut bytes = good;
            bytes[offset] = byte;
            bytes.to_vec()
        };
        let openings = [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            with(0, b'X'),
            with(8, 9),
            with(9, 9),
            with(12, 31),
        ];
        for opening in &openings {
            let mut device = TcpStream::connect(at).expect("connect");
            send(&mut device, opening);
            wait_closed(device);
        }
        for cut in 0..good.len() {
            let mut device = TcpStream::connect(at).expect("connect");
            send(&mut device, &good[..cut]);
            wait_closed(device);
        }
    });
    assert_eq!((served.totals.streams, served.totals.refused), (0, 5 + 64));
    assert_eq!(served.captures(), Vec::<PathBuf>::new());
    assert_eq!(served.lines.iter().filter(|line| line.contains("refused: ")).count(), 69);
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    let served = serve(None, |at| {
        let mut silent = TcpStream::connect(at).expect("connect");
        silent.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        assert_eq!(silent.read(&mut [0; 1]).ok(), Some(0));
    });
    assert!(served.said("no handshake within 5 s"), "{:?}", served.lines);
}

#[test]
fn stopping_keeps_all_that_was_sent_by_open_streams() {
    let mut device = None;
    let served = serve(None, |at| {
        let open = device.insert(connect(at, LE));
        for _ in 0..20 {
            send(open, &chunk(CHUNK_EVENTS, &calls(1, 500, LE), LE));
        }
    });
    assert_eq!(served.totals.stored_events, 20_000);
    assert!(served.said("the server stops while this stream is open"), "{:?}", served.lines);
    assert_eq!(hooks(&events_of(&served.captures()[0])), 20_000);
}

#[test]
fn what_came_is_in_the_file_while_the_stream_goes_on() {
    serve_in(|at, dir| {
        let mut device = connect(at, LE);
        send(&mut device, &chunk(CHUNK_EVENTS, &calls(1, 500, LE), LE));
        let path = dir.join("trace.stream.1.0.bin");
        let deadline = Instant::now() + Duration::from_secs(60);
        let stored = || path.metadata().map_or(0, |meta| meta.len());
        while stored() < (FILE_HEADER_BYTES + 1000 * EVENT_BYTES) as u64 {
            assert!(Instant::now() < deadline, "only {} bytes came", stored());
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(hooks(&events_of(&path)), 1000);
    });
}

#[test]
fn a_budget_is_each_streams_own() {
    let limits = CaptureLimits { segment_bytes: 20_000, budget_bytes: 50_000 };
    let served = serve_within(limits, Some(2), |at| {
        let mut large = connect(at, LE);
        for _ in 0..20 {
            send(&mut large, &chunk(CHUNK_EVENTS, &calls(1, 100, LE), LE));
        }
        wait_closed(large);
        let mut small = connect(at, LE);
        send(&mut small, &chunk(CHUNK_EVENTS, &calls(2, 100, LE), LE));
        wait_closed(small);
    });
    let Totals { stored_events, dropped_events, .. } = served.totals;
    assert_eq!(stored_events + dropped_events, 4200);
    assert!(dropped_events > 2000, "{dropped_events}");
    assert!(served.said("--max-mb"), "{:?}", served.lines);
    let small = served.dir.path().join("trace.stream.2.0.bin");
    assert_eq!(hooks(&events_of(&small)), 200);
}

#[test]
fn a_server_that_cannot_start_says_why_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let out = dir.path().join("traces");
    let with = |port, out: &Path| {
        let options = options(out, NO_LIMITS, None, &Lines::default());
        Server::bind(Options { port, ..options }).err().expect("no server").to_string()
    };
    let port = taken.local_addr().expect("an address").port();
    let in_use = with(port, &out);
    assert!(in_use.contains("in use") && in_use.contains("--port"), "{in_use}");
    assert!(!out.exists());
    std::fs::write(dir.path().join("file"), "").expect("write");
    let no_folder = with(0, &dir.path().join("file/traces"));
    assert!(no_folder.contains("file/traces"), "{no_folder}");
    let unknown = Options {
        host: "no.such.host.invalid".to_owned(),
        ..options(&out, NO_LIMITS, None, &Lines::default())
    };
    assert!(matches!(Server::bind(unknown), Err(BindError::Listen { .. })));
}

#[test]
fn a_second_server_goes_on_counting_where_the_first_ended() {
    let dir = tempfile::tempdir().expect("a folder");
    for round in 1..=3 {
        let lines = Lines::default();
        let options = options(dir.path(), NO_LIMITS, Some(1), &lines);
        let server = Server::bind(options).expect("a server");
        let mut device = connect(server.local_addr(), LE);
        send(&mut device, &chunk(CHUNK_EVENTS, &calls(round, 10, LE), LE));
        drop(device);
        server.run(&AtomicBool::new(false));
    }
    for round in 1..=3 {
        let events = calls_of(&dir.path().join(format!("trace.stream.{round}.0.bin")));
        assert_eq!((events.len(), events[0].tid), (20, round));
    }
}
