//! Senders that lie: F12 chunks, F22 names and tokens.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use callsight_format::{
    ByteOrder, CHUNK_BLOCK, CHUNK_DROPPED, CHUNK_END, CHUNK_EVENTS, CHUNK_HELLO, ChunkHeader,
    HELLO_STREAM,
};
use callsight_tests::Report;

use crate::job::{status_kib, wait_until};
use crate::outcome::{Outcome, Plan};
use crate::scene::{Scene, Server, captures_in};
use crate::seed::Chance;
use crate::truth::Truth;
use crate::wire::{Device, calls, chunk, fields, framed};

/// What a connection may cost the server.
const CONNECTION_KIB: u64 = 2 << 10;
/// Hostile connections that are open at the same time.
const AT_ONCE: usize = 16;

/// A stream that does nothing wrong, among those that do.
struct Honest {
    device: Device,
    calls: u64,
}

impl Honest {
    /// Sends some more.
    fn go_on(&mut self) {
        self.device.send(&calls(1, 1000));
        self.calls += 1000;
    }

    /// The first of the captures, complete?
    #[track_caller]
    fn check(mut self, scene: &Scene, server: Server) {
        self.go_on();
        self.device.finish();
        self.device.wait_closed("the honest stream");
        server.stop();
        let report = Report::of(&scene.shell(), &["traces/trace.stream.1.0.bin"]);
        let found = (report.number("events"), report.lost());
        assert_eq!(found, (2 * self.calls, 0), "the honest stream");
    }
}

/// F12: lengths that lie, bombs, windows, unknown types, and bytes changed at random.
pub fn hostile_chunks(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F12");
    let scene = Scene::new(0);
    let server = scene.server();
    let mut honest = Honest { device: Device::new(server.port), calls: 0 };
    honest.go_on();
    wait_until("the honest stream has a capture", || scene.stored_bytes() > 0);
    let mut large = Device::new(server.port);
    large.send(&calls(2, 16_000));
    large.finish();
    large.wait_closed("a stream with the largest chunk");
    let peak_kib = || status_kib(server.job.pid(), "VmHWM");
    // Streams that break off are kept for their senders to come again, so many and no more.
    let [full_kib, before_kib] = [(); 2].map(|()| {
        (0..MOST_KEPT).for_each(|_| break_off(&server, &mut chance));
        peak_kib()
    });
    let more = before_kib - full_kib;
    assert!(more <= 2 * CONNECTION_KIB, "{more} KiB for {MOST_KEPT} more streams that broke off");
    let named = attacks();
    for (name, attack) in &named {
        attack_and_wait(&server, name, attack);
        honest.go_on();
    }
    let rounds = plan.either(30, 600);
    (0..rounds).for_each(|_| send_mutated(&server, &mut chance));
    let grown = peak_kib() - before_kib;
    assert!(grown <= AT_ONCE as u64 * CONNECTION_KIB, "{grown} KiB for {AT_ONCE} connections");
    honest.check(&scene, server);
    Outcome::Holds(format!(
        "{} attacks closed and named, {} streams of changed bytes, server grew by {grown} KiB for \
         {AT_ONCE} connections and by {more} KiB for {MOST_KEPT} more broken streams, honest \
         stream complete, unaccounted=0",
        named.len(),
        rounds * AT_ONCE
    ))
}

/// Streams of changed bytes, several at a time.
fn send_mutated(server: &Server, chance: &mut Chance) {
    let mut devices: Vec<Device> = (0..AT_ONCE).map(|_| Device::new(server.port)).collect();
    devices.iter_mut().for_each(|device| device.send(&mutated(chance)));
    devices.iter_mut().for_each(Device::finish);
    devices.iter_mut().for_each(|device| device.wait_closed("changed bytes"));
}

/// Sends one honest chunk and an attack: the server has to close that connection by itself, and to
/// say so.
fn attack_and_wait(server: &Server, name: &str, attack: &[u8]) {
    let mut device = Device::new(server.port);
    device.send(&calls(2, 10));
    device.send(attack);
    device.send(&calls(3, 10));
    device.wait_closed(name);
    let who = device.name();
    wait_until(&format!("the server speaks of {who} ({name})"), || {
        server.job.so_far().contains(&who)
    });
}

/// More streams than a server keeps for senders that come again.
const MOST_KEPT: usize = 300;

/// A stream of its own that says who it is, sends a little, and is gone.
fn break_off(server: &Server, chance: &mut Chance) {
    let mut device = Device::new(server.port);
    let id = [chance.next().to_le_bytes(), chance.next().to_le_bytes()].concat();
    device.send(&chunk(CHUNK_HELLO, &fields(&[(HELLO_STREAM, &id)])));
    device.send(&calls(7, 300));
    device.finish();
    device.wait_closed("a stream that breaks off");
}

/// What must end a connection.
fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let header = |kind, raw_len, zstd_len| {
        ChunkHeader { kind, raw_len, zstd_len }.to_bytes(ByteOrder::Little).to_vec()
    };
    let packed = |raw: &[u8]| zstd::bulk::compress(raw, 1).expect("compress");
    let bomb = {
        let mut packer = zstd::stream::Encoder::new(Vec::new(), 19).expect("an encoder");
        let zeros = std::io::Read::take(std::io::repeat(0), 1 << 30);
        std::io::copy(&mut { zeros }, &mut packer).expect("compress");
        packer.finish().expect("finish")
    };
    let window_of_2_gib = [0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 1, 0, 0];
    let two_frames = [packed(&[1; 32]), packed(&[1; 32])].concat();
    let mut attacks = vec![
        ("raw length", header(CHUNK_EVENTS, u32::MAX, 100)),
        ("compressed length", header(CHUNK_EVENTS, 64, u32::MAX)),
        ("unknown type of 4 GiB", header(77, 64, u32::MAX)),
        ("part of an event", chunk(CHUNK_EVENTS, &[1; 33])),
        ("less than stated", framed(CHUNK_EVENTS, 1 << 20, &packed(&[1; 64]))),
        ("more than stated", framed(CHUNK_EVENTS, 64, &packed(&vec![1; 1 << 20]))),
        ("bomb of 1 GiB", framed(CHUNK_EVENTS, 1 << 20, &bomb)),
        ("window of 2 GiB", framed(CHUNK_EVENTS, 0, &window_of_2_gib)),
        ("short notice", chunk(CHUNK_DROPPED, &[1; 3])),
        ("noise", framed(CHUNK_EVENTS, 64, &[0xa5; 5000])),
        ("two frames", framed(CHUNK_EVENTS, 64, &two_frames)),
    ];
    for kind in [CHUNK_HELLO, CHUNK_END, CHUNK_BLOCK] {
        attacks.push(("raw length of another type", header(kind, u32::MAX, 100)));
        attacks.push(("compressed length of another type", header(kind, 64, u32::MAX)));
    }
    attacks
}

/// An honest stream, of blocks or of events, with some of its bytes changed.
fn mutated(chance: &mut Chance) -> Vec<u8> {
    // A few senders, whose streams each of these claims to go on with.
    let id = [chance.index(AT_ONCE) as u8; 16];
    let block: Vec<u8> = (0..chance.of_range(0..4000)).map(|_| chance.next() as u8).collect();
    let mut bytes = chunk(CHUNK_HELLO, &fields(&[(HELLO_STREAM, &id), (1, b"board")]));
    for _ in 0..chance.of_range(1..5) {
        match chance.index(3) {
            0 => bytes.extend(calls(5, 300)),
            1 => bytes.extend(chunk(CHUNK_BLOCK, &block)),
            _ => bytes.extend(chunk(chance.of_range(0..9) as u32, &block)),
        }
    }
    for _ in 0..chance.of_range(0..6) {
        let at = chance.index(bytes.len());
        bytes[at] = chance.next() as u8;
    }
    bytes
}

/// Values that would leave the folder, end a string early, or grow without a limit.
fn hostile_values() -> Vec<Vec<u8>> {
    vec![
        b"../../../../tmp/callsight-escaped".to_vec(),
        b"..".to_vec(),
        b"/etc/callsight-escaped".to_vec(),
        b"traces/../../escaped".to_vec(),
        b"name\0../escaped".to_vec(),
        b"link".to_vec(),
        b"line\nbreak \x1b[2J".to_vec(),
        vec![0xff; 300],
        vec![b'x'; 0xfff0],
        vec![],
    ]
}

/// F22: names that would be paths, tokens of any kind, symbolic links where captures go.
pub fn hostile_names(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F22");
    let scene = Scene::new(0);
    let outside = scene.path("outside");
    std::fs::write(&outside, "untouched").expect("write a file");
    let traces = scene.path("traces");
    for (name, target) in [
        ("trace.stream.3.0.bin", Path::new("../outside")),
        ("trace.stream.4.0.bin", Path::new("../new-outside")),
        ("link", Path::new("..")),
    ] {
        symlink(target, traces.join(name)).expect("make a link");
    }
    let server = scene.server();
    let values = hostile_values();
    let tries = plan.either(400, 10_000);
    for _ in 0..tries {
        let mut device = Device::new(server.port);
        let list: Vec<(u16, &[u8])> = (0..chance.of_range(1..6))
            .map(|_| (chance.of_range(0..14) as u16, values[chance.index(values.len())].as_slice()))
            .collect();
        device.send(&chunk(CHUNK_HELLO, &fields(&list)));
        device.send(&calls(1, 1));
        device.finish();
        device.wait_closed("a hostile hello");
    }
    server.stop();
    assert_eq!(std::fs::read(&outside).expect("still there"), b"untouched");
    let strangers = strangers(&scene);
    assert_eq!(strangers, Vec::<PathBuf>::new(), "written outside, or under another name");
    for escaped in ["/tmp/callsight-escaped", "/etc/callsight-escaped"] {
        assert!(!Path::new(escaped).exists(), "{escaped}");
    }
    let account = scene.account();
    account.holds(Truth::exactly(2 * tries), "the calls of all hostile devices");
    Outcome::Holds(format!("{tries} tries, no file but captures, {account} unaccounted=0"))
}

/// Files that are neither captures nor of the test.
fn strangers(scene: &Scene) -> Vec<PathBuf> {
    let is_number = |part: Option<&str>| {
        part.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    let is_capture = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut parts = name.strip_prefix("trace.stream.").unwrap_or_default().split('.');
        is_number(parts.next()) && is_number(parts.next()) && parts.eq(["bin"])
    };
    let mut strangers: Vec<PathBuf> =
        captures_in(&scene.path("traces")).into_iter().filter(|path| !is_capture(path)).collect();
    for entry in std::fs::read_dir(scene.folder()).expect("a folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !["traces", "outside"].contains(&name.as_str()) && !name.starts_with("job.") {
            strangers.push(entry.path());
        }
    }
    strangers
}
