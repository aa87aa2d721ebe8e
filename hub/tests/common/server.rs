//! A server in this process, and what devices do with sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use callsight_format::*;
use callsight_hub::capture::CaptureLimits;
use callsight_hub::ingest::{Destinations, Options, Server, Totals};

use super::origin;

pub const LE: ByteOrder = ByteOrder::Little;
pub const NO_LIMITS: CaptureLimits = CaptureLimits { segment_bytes: 0, budget_bytes: 0 };

pub type Lines = Arc<Mutex<Vec<String>>>;

pub fn options(out: &Path, limits: CaptureLimits, streams: Option<u32>, lines: &Lines) -> Options {
    let lines = Arc::clone(lines);
    let say = Box::new(move |line: &str| lines.lock().expect("lines").push(line.to_owned()));
    Options { host: "127.0.0.1".to_owned(), port: 0, out: out.to_owned(), limits, streams, say }
}

/// Runs a server while `devices` do what they do; what it counted and said, and its files.
pub struct Served {
    pub totals: Totals,
    pub lines: Vec<String>,
    pub dir: tempfile::TempDir,
}

pub fn serve(streams: Option<u32>, devices: impl FnOnce(SocketAddr)) -> Served {
    serve_within(NO_LIMITS, streams, devices)
}

/// The same for devices that look into the folder too.
pub fn serve_in(devices: impl FnOnce(SocketAddr, &Path)) -> Served {
    run_server(NO_LIMITS, None, devices)
}

pub fn serve_within(
    limits: CaptureLimits,
    streams: Option<u32>,
    devices: impl FnOnce(SocketAddr),
) -> Served {
    run_server(limits, streams, |at, _| devices(at))
}

fn run_server(
    limits: CaptureLimits,
    streams: Option<u32>,
    devices: impl FnOnce(SocketAddr, &Path),
) -> Served {
    let dir = tempfile::tempdir().expect("a folder");
    run_server_on(dir, limits, streams, Destinations::default(), devices)
}

/// A server on a folder that may hold captures already.
pub fn run_server_on(
    dir: tempfile::TempDir,
    limits: CaptureLimits,
    streams: Option<u32>,
    destinations: Destinations,
    devices: impl FnOnce(SocketAddr, &Path),
) -> Served {
    let lines = Lines::default();
    let server = Server::bind(options(dir.path(), limits, streams, &lines)).expect("a server");
    let server = server.with_destinations(destinations);
    let stop = AtomicBool::new(false);
    let totals = thread::scope(|scope| {
        let running = scope.spawn(|| server.run(&stop));
        devices(server.local_addr(), dir.path());
        // With a number of streams to wait for, it ends by itself.
        stop.store(streams.is_none(), Ordering::Relaxed);
        running.join().expect("no panic")
    });
    let lines = lines.lock().expect("lines").clone();
    Served { totals, lines, dir }
}

impl Served {
    pub fn said(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.contains(text))
    }

    pub fn captures(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path()).expect("list");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ext| ext == "bin"));
        paths.sort();
        paths
    }
}

pub fn connect(at: SocketAddr, order: ByteOrder) -> TcpStream {
    let mut socket = TcpStream::connect(at).expect("connect");
    socket.write_all(&Handshake::to_bytes(&origin(), order)).expect("handshake");
    socket
}

/// Sends; a server that has closed already is none of the sender's business.
pub fn send(socket: &mut TcpStream, bytes: &[u8]) {
    let _ = socket.write_all(bytes);
}

/// Waits until the server has closed the connection.
pub fn wait_closed(mut socket: TcpStream) {
    let _ = socket.shutdown(Shutdown::Write);
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    match socket.read(&mut [0; 8]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("the server did not close: {other:?}"),
    }
}
