//! A server that is killed in the middle of a stream, again and again: nothing is lost, nothing
//! comes twice. Its own harness, because the server is this program once more.

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use callsight_hub::capture::CaptureLimits;
use callsight_hub::ingest::{Destinations, Options, Server};
use common::calls_of;
use common::packed::*;

/// In the environment of a server: port, whether it keeps events, and folder.
const SERVER: &str = "CALLSIGHT_TEST_SERVER";
const BLOCKS: u64 = 3000;
const CALLS: u64 = 60;
const KILLS: u64 = 25;
/// Chunks that a sender keeps until they are acknowledged, as a drain does.
const WINDOW: usize = 200;

/// The one test here, as the usual harness names and counts it.
const NAME: &str = "a_server_killed_again_and_again_loses_and_repeats_nothing";

fn main() {
    if let Ok(place) = std::env::var(SERVER) {
        return be_a_server(&place);
    }
    let is_wanted = |name: String| name.starts_with('-') || NAME.contains(&name);
    if !std::env::args().skip(1).all(is_wanted) {
        return;
    }
    a_server_killed_again_and_again_loses_and_repeats_nothing();
    println!("test {NAME} ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored");
}

fn be_a_server(place: &str) {
    let mut words = place.splitn(3, ' ');
    let mut word = || words.next().expect("port, form and folder");
    let (port, unpacked, dir) = (word(), word() == "events", word());
    let options = Options {
        host: "127.0.0.1".to_owned(),
        port: port.parse().expect("a port"),
        out: dir.into(),
        limits: CaptureLimits { segment_bytes: 40_000, budget_bytes: 0 },
        streams: None,
        say: Box::new(|_| {}),
    };
    let destinations = Destinations { unpacked, ..Destinations::default() };
    let server = Server::bind(options).expect("a server").with_destinations(destinations);
    server.run(&AtomicBool::new(false));
}

fn start(port: u16, form: &str, dir: &Path) -> Child {
    let place = format!("{port} {form} {}", dir.display());
    let program = std::env::current_exe().expect("this program");
    Command::new(program).env(SERVER, place).spawn().expect("a server")
}

fn a_server_killed_again_and_again_loses_and_repeats_nothing() {
    // The form of the first server holds, whatever the later ones are told.
    for forms in [["chunks", "chunks"], ["events", "events"], ["events", "chunks"]] {
        kill_and_start(forms);
    }
}

fn kill_and_start(forms: [&str; 2]) {
    let dir = tempfile::tempdir().expect("a folder");
    let at = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let sent = blocks(BLOCKS, CALLS);
    let mut acknowledged = 0;
    for kill in 1..=KILLS + 1 {
        let form = forms[usize::from(kill % 2 == 0)];
        let mut server = start(at.port(), form, dir.path());
        // Anywhere between two acknowledgements; the last server is not killed.
        let upto = if kill > KILLS { BLOCKS } else { BLOCKS * kill / (KILLS + 2) };
        acknowledged = stream(at, &sent, acknowledged, upto);
        if kill > KILLS {
            let mut device = connect(at);
            assert_eq!(device.has(), BLOCKS);
            device.send(&end(BLOCKS, BLOCKS * CALLS * 2, &[]));
            device.wait_for(BLOCKS + 1);
        }
        server.kill().expect("a kill");
        server.wait().expect("its end");
    }
    let paths = (0..).map(|seq| dir.path().join(format!("trace.stream.1.{seq}.bin")));
    let segments: Vec<_> = paths.take_while(|path| path.exists()).collect();
    match forms[0] {
        "events" => check_events(&segments),
        _ => check_chunks(&segments, &sent),
    }
    assert!(!dir.path().join("trace.stream.2.0.bin").exists(), "a second capture");
}

fn check_chunks(segments: &[PathBuf], sent: &[Vec<u8>]) {
    let stored = segments.iter().flat_map(|path| chunks_of(path));
    let stored = stored.filter(|(kind, ..)| *kind == callsight_format::CHUNK_BLOCK);
    assert!(
        stored.map(|(_, chunk, _)| chunk).eq(sent.iter().cloned()),
        "other blocks than were sent"
    );
}

/// Each of the three writers has its events once, in order: their times count them.
fn check_events(segments: &[PathBuf]) {
    let calls: Vec<_> = segments.iter().flat_map(|path| calls_of(path)).collect();
    for tid in 1..=3 {
        let times = calls.iter().filter(|event| event.tid == tid).map(|event| event.ts);
        assert!(times.eq(10..10 + BLOCKS / 3 * CALLS * 2), "other events of {tid} than were sent");
    }
}

fn connect(at: SocketAddr) -> Device {
    while TcpStream::connect(at).is_err() {
        thread::sleep(Duration::from_millis(5));
    }
    Device::connect(at, 1)
}

/// Sends blocks until `upto` is acknowledged, more of them than that; what is acknowledged then.
fn stream(at: SocketAddr, sent: &[Vec<u8>], acknowledged: u64, upto: u64) -> u64 {
    let mut device = connect(at);
    let has = device.has();
    assert!(has >= acknowledged, "{acknowledged} were acknowledged, only {has} are there");
    let mut next = has as usize;
    while device.has() < upto {
        while next < sent.len() && next < device.has() as usize + WINDOW {
            device.send(&sent[next]);
            next += 1;
        }
        device.wait_for(device.has() + 1);
    }
    device.has()
}
