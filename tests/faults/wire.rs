//! What a device sends, made by hand: honest streams, and pieces to lie with.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use callsight_format::{
    ByteOrder, CHUNK_EVENTS, ChunkHeader, Event, FLAG_TICKS, GREETING_BYTES, GREETING_MAGIC,
    HANDSHAKE_BYTES, Handshake, KIND_ENTER, KIND_EXIT, Origin, REPLY_HEADER_BYTES,
};

use crate::job::PATIENCE;

const LE: ByteOrder = ByteOrder::Little;

/// The handshake of every device here.
pub fn handshake() -> [u8; HANDSHAKE_BYTES] {
    let origin = Origin {
        flags: FLAG_TICKS,
        tick_hz: 1_000_000_000,
        t0_ticks: 5,
        t0_ns: 5,
        ..Origin::default()
    };
    Handshake::to_bytes(&origin, LE)
}

/// A chunk of this payload.
pub fn chunk(kind: u32, raw: &[u8]) -> Vec<u8> {
    let packed = zstd::bulk::compress(raw, 1).expect("compress");
    framed(kind, raw.len() as u32, &packed)
}

/// A chunk that states any length.
pub fn framed(kind: u32, raw_len: u32, payload: &[u8]) -> Vec<u8> {
    let header = ChunkHeader { kind, raw_len, zstd_len: payload.len() as u32 };
    [&header.to_bytes(LE)[..], payload].concat()
}

/// A chunk of so many calls of thread `tid`, which is twice as many events.
pub fn calls(tid: u32, count: u64) -> Vec<u8> {
    let event = |at: u64| {
        let kind = if at.is_multiple_of(2) { KIND_ENTER } else { KIND_EXIT };
        Event { ts: 10 + at, func: 0x1000, call_site: 0x2000, tid, kind, ..Event::default() }
    };
    let bytes: Vec<u8> = (0..2 * count).flat_map(|at| event(at).to_bytes(LE)).collect();
    chunk(CHUNK_EVENTS, &bytes)
}

/// The payload of a hello or an end.
pub fn fields(list: &[(u16, &[u8])]) -> Vec<u8> {
    let field = |(key, value): &(u16, &[u8])| {
        let length = (value.len() as u16).to_le_bytes();
        [&key.to_le_bytes()[..], &length, &value[..value.len() & 0xffff]].concat()
    };
    list.iter().flat_map(field).collect()
}

/// A connection; what the server says meanwhile is read and left.
pub struct Device(TcpStream);

impl Device {
    /// Connects and says nothing.
    pub fn silent(port: u16) -> Device {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Device(socket)
    }

    /// Connects and shakes hands.
    pub fn new(port: u16) -> Device {
        let mut device = Device::silent(port);
        device.send(&handshake());
        device
    }

    /// The port it has at its own end, by which the server names it.
    pub fn name(&self) -> String {
        self.0.local_addr().expect("an address").to_string()
    }

    /// Sends as much as the server takes.
    pub fn send(&mut self, bytes: &[u8]) {
        match self.0.write_all(bytes) {
            Ok(()) => {}
            Err(error) if is_closed(&error) => {}
            Err(error) => panic!("send: {error}"),
        }
    }

    /// Says that nothing more comes.
    pub fn finish(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Waits until the server closes the connection.
    #[track_caller]
    pub fn wait_closed(&mut self, what: &str) {
        let mut bytes = [0; 4096];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if is_closed(&error) => return,
                Err(error) => panic!("{what}: the server does not close it: {error}"),
            }
        }
    }

    /// Waits for the greeting of the server.
    #[track_caller]
    pub fn hear_greeting(&mut self) {
        let mut bytes = [0; REPLY_HEADER_BYTES + GREETING_BYTES];
        self.0.read_exact(&mut bytes).expect("a greeting");
        assert!(bytes[REPLY_HEADER_BYTES..].starts_with(&GREETING_MAGIC), "{bytes:?}");
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}
