//! A server for one stream after another, that keeps what it gets.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use callsight_format::{
    ByteOrder, CHUNK_DROPPED, CHUNK_END, CHUNK_EVENTS, CHUNK_HEADER_BYTES, CHUNK_HELLO,
    CHUNK_RAW_BYTES, Cause, ChunkHeader, END_DELIVERED, END_DROPPED, END_EMITTED, END_REASON,
    EVENT_BYTES, Event, Fields, HANDSHAKE_BYTES, Handshake, KIND_MARKER, LossNote, NOTE_LOSS,
    NoteAssembler, NotePiece, Origin,
};

use super::process::wait_until;

/// What one stream brought.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    pub origin: Option<Origin>,
    pub events: Vec<Event>,
    pub dropped: Vec<u64>,
    pub hello: Vec<(u16, Vec<u8>)>,
    pub end: Vec<(u16, Vec<u8>)>,
    pub closed: bool,
}

impl Capture {
    /// The events of a thread that are no markers.
    pub fn calls_of(&self, tid: u32) -> Vec<Event> {
        let calls = self.events.iter().filter(|e| e.tid == tid && e.kind != KIND_MARKER);
        calls.copied().collect()
    }

    /// The loss notes of a thread.
    pub fn losses_of(&self, tid: u32) -> Vec<LossNote> {
        let mut assembler = NoteAssembler::default();
        let mut losses = Vec::new();
        for event in self.events.iter().filter(|e| e.tid == tid) {
            let note = NotePiece::of(event).and_then(|piece| {
                let (code, bytes) = assembler.push(&piece)?;
                (code == NOTE_LOSS).then(|| LossNote::parse(bytes).expect("a whole loss note"))
            });
            losses.extend(note);
        }
        losses
    }

    fn end_number(&self, key: u16) -> u64 {
        let (_, value) = self.end.iter().find(|(k, _)| *k == key).expect("an end field");
        value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub fn reason(&self) -> u32 {
        self.end_number(END_REASON) as u32
    }

    pub fn emitted(&self) -> u64 {
        self.end_number(END_EMITTED)
    }

    pub fn delivered(&self) -> u64 {
        self.end_number(END_DELIVERED)
    }

    /// The final count of a cause.
    pub fn dropped_for(&self, cause: Cause) -> u64 {
        let of_cause = |(key, value): &&(u16, Vec<u8>)| {
            *key == END_DROPPED && value[..4] == (cause as u32).to_le_bytes()
        };
        let value = self.end.iter().find(of_cause);
        value.map_or(0, |(_, v)| u64::from_le_bytes(v[4..12].try_into().expect("12 bytes")))
    }

    /// The final counts of all causes.
    pub fn dropped_sum(&self) -> u64 {
        Cause::all().into_iter().map(|cause| self.dropped_for(cause)).sum()
    }

    /// Emitted must be delivered and dropped together.
    pub fn check_counts(&self) {
        let dropped = self.dropped_sum();
        assert_eq!(self.emitted(), self.delivered() + dropped, "{:?}", self.end);
        assert_eq!(self.dropped.last().copied().unwrap_or(0), dropped, "{:?}", self.dropped);
    }
}

/// Listens on a free port of the loopback device.
pub struct Server {
    pub port: u16,
    captures: Arc<Mutex<Vec<Capture>>>,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let captures = Arc::new(Mutex::new(Vec::new()));
        let server = Server { port, captures: captures.clone() };
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let captures = captures.clone();
                std::thread::spawn(move || receive(socket, &captures));
            }
        });
        server
    }

    /// What stream `index` has brought so far.
    pub fn capture(&self, index: usize) -> Capture {
        self.captures.lock().expect("no panic").get(index).cloned().unwrap_or_default()
    }

    /// How many records stream `index` has brought so far.
    pub fn events(&self, index: usize) -> usize {
        self.captures.lock().expect("no panic").get(index).map_or(0, |c| c.events.len())
    }

    /// Stream `index`, when it has ended.
    pub fn whole(&self, index: usize) -> Capture {
        self.wait(index, "the stream ends", |capture| capture.closed)
    }

    pub fn wait(&self, index: usize, what: &str, holds: impl Fn(&Capture) -> bool) -> Capture {
        wait_until(what, || holds(&self.capture(index)));
        self.capture(index)
    }
}

fn receive(mut socket: TcpStream, captures: &Mutex<Vec<Capture>>) {
    let index = {
        let mut captures = captures.lock().expect("no panic");
        captures.push(Capture::default());
        captures.len() - 1
    };
    let change = |f: &mut dyn FnMut(&mut Capture)| {
        f(&mut captures.lock().expect("no panic")[index]);
    };
    let mut handshake = [0; HANDSHAKE_BYTES];
    if read_whole(&mut socket, &mut handshake) {
        let (origin, order) = Handshake::parse(&handshake).expect("a handshake");
        change(&mut |capture| capture.origin = Some(origin));
        while let Some((kind, raw)) = read_chunk(&mut socket, order) {
            change(&mut |capture| take(capture, kind, &raw, order));
        }
    }
    change(&mut |capture| capture.closed = true);
}

/// Whether it was all there; a stream may end between two pieces, not inside one.
fn read_whole(socket: &mut TcpStream, bytes: &mut [u8]) -> bool {
    match socket.read_exact(bytes) {
        Ok(()) => true,
        Err(error) => {
            let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
            assert!(ends.contains(&error.kind()), "{error}");
            false
        }
    }
}

fn read_chunk(socket: &mut TcpStream, order: ByteOrder) -> Option<(u32, Vec<u8>)> {
    let mut header = [0; CHUNK_HEADER_BYTES];
    if !read_whole(socket, &mut header) {
        return None;
    }
    let header = ChunkHeader::parse(header, order);
    assert!(header.raw_len <= CHUNK_RAW_BYTES, "{header:?}");
    let mut packed = vec![0; header.zstd_len as usize];
    if !read_whole(socket, &mut packed) {
        return None;
    }
    let raw = zstd::bulk::decompress(&packed, header.raw_len as usize).expect("a zstd frame");
    assert_eq!(raw.len(), header.raw_len as usize);
    Some((header.kind, raw))
}

fn take(capture: &mut Capture, kind: u32, raw: &[u8], order: ByteOrder) {
    let fields = || Fields(raw).map(|(key, value)| (key, value.to_vec())).collect();
    match kind {
        CHUNK_EVENTS => {
            assert_eq!(raw.len() % EVENT_BYTES, 0);
            let events = raw.chunks(EVENT_BYTES);
            capture.events.extend(events.map(|e| Event::parse(e, order).expect("32 bytes")));
        }
        CHUNK_DROPPED => capture.dropped.push(order.u64(raw, 0).expect("8 bytes")),
        CHUNK_HELLO => capture.hello = fields(),
        CHUNK_END => capture.end = fields(),
        _ => panic!("chunk of type {kind}"),
    }
}
