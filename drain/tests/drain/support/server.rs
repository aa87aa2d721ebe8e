//! A server for one stream after another, that keeps what it gets. Where `crate::GREETS` says so it
//! greets, and is sent blocks.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use callsight_format::{
    BlockHeader, ByteOrder, CHUNK_BLOCK, CHUNK_DROPPED, CHUNK_END, CHUNK_EVENTS,
    CHUNK_HEADER_BYTES, CHUNK_HELLO, CHUNK_MAX_RAW_BYTES, CHUNK_SINK, Cause, ChunkHeader,
    END_BLOCKS, END_DELIVERED, END_DROPPED, END_EMITTED, END_REASON, EVENT_BYTES, Event,
    FILE_VERSION_CHUNKS, Fields, FileHeader, HANDSHAKE_BYTES, HELLO_STREAM, Handshake, KIND_MARKER,
    LossNote, NOTE_LOSS, NoteAssembler, NotePiece, Origin, REPLY_ACKNOWLEDGE, REPLY_GREETING,
    Unpacker, greeting, reply,
};

use super::process::wait_until;

/// What one stream brought.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    pub origin: Option<Origin>,
    pub events: Vec<Event>,
    /// How many of these came in no block, without numbers.
    pub unnumbered: usize,
    pub dropped: Vec<u64>,
    pub hello: Vec<(u16, Vec<u8>)>,
    pub end: Vec<(u16, Vec<u8>)>,
    pub closed: bool,
    /// Number of the last block.
    pub blocks: u64,
    /// What the last block says that its writer had dropped.
    pub lost_total: u64,
    /// Blocks that came again.
    pub repeated: u64,
    /// How often the sender has connected.
    pub connections: u64,
    /// Whether its first blocks were in another file.
    pub is_rest: bool,
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
        if self.blocks == 0 {
            assert_eq!(self.dropped.last().copied().unwrap_or(0), dropped, "{:?}", self.dropped);
        } else {
            assert_eq!(self.end_number(END_BLOCKS), self.blocks, "{:?}", self.end);
        }
    }
}

/// When a connection is cut by the server: behind which of its chunks, and whether that one is kept.
pub type Cut = fn(connection: u64, chunk: u64) -> Option<bool>;

/// Listens on a free port of the loopback device.
pub struct Server {
    pub port: u16,
    captures: Arc<Mutex<Vec<Capture>>>,
}

impl Server {
    pub fn start() -> Server {
        Server::cutting(|_, _| None)
    }

    /// One that cuts connections.
    pub fn cutting(cut: Cut) -> Server {
        Server::on(0, cut)
    }

    /// The same on a port, 0 for a free one.
    pub fn on(port: u16, cut: Cut) -> Server {
        Server::of(TcpListener::bind(("127.0.0.1", port)).expect("listen"), cut)
    }

    /// The same behind a listener, which others may have connected to before.
    pub fn of(listener: TcpListener, cut: Cut) -> Server {
        let port = listener.local_addr().expect("an address").port();
        let captures = Arc::new(Mutex::new(Vec::new()));
        let server = Server { port, captures: captures.clone() };
        std::thread::spawn(move || {
            for (at, socket) in listener.incoming().map_while(Result::ok).enumerate() {
                let captures = captures.clone();
                std::thread::spawn(move || receive(socket, &captures, &|c| cut(at as u64, c)));
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

fn receive(
    mut socket: TcpStream,
    captures: &Mutex<Vec<Capture>>,
    cut: &dyn Fn(u64) -> Option<bool>,
) {
    let mut index = {
        let mut captures = captures.lock().expect("no panic");
        captures.push(Capture::default());
        captures.len() - 1
    };
    if crate::GREETS {
        answer(&mut socket, REPLY_GREETING, greeting());
    }
    let mut handshake = [0; HANDSHAKE_BYTES];
    if read_whole(&mut socket, &mut handshake) {
        let (origin, order) = Handshake::parse(&handshake).expect("a handshake");
        let mut chunks = 0;
        while let Some((kind, raw)) = read_chunk(&mut socket, order) {
            let ends = cut(chunks);
            chunks += 1;
            let mut captures = captures.lock().expect("no panic");
            if kind == CHUNK_HELLO {
                index = captures.iter().position(|c| is_stream_of(c, &raw)).unwrap_or(index);
                captures[index].connections += 1;
                captures[index].origin = Some(origin);
            }
            if ends != Some(false) {
                take(&mut captures[index], kind, &raw, order);
            }
            if ends.is_some() {
                return;
            }
            let capture = &captures[index];
            let done = match kind {
                CHUNK_END => capture.end_number(END_BLOCKS) + 1,
                _ => capture.blocks,
            };
            if crate::GREETS && [CHUNK_HELLO, CHUNK_BLOCK, CHUNK_END].contains(&kind) {
                answer(&mut socket, REPLY_ACKNOWLEDGE, done.to_le_bytes());
            }
        }
    }
    captures.lock().expect("no panic")[index].closed = true;
}

/// The sender may be gone already.
fn answer<const N: usize>(socket: &mut TcpStream, kind: u32, payload: [u8; N]) {
    let (header, payload) = reply(kind, payload);
    let _ = socket.write_all(&[&header[..], &payload].concat());
}

/// Whether the stream that begins with `hello` is the one in `capture`.
fn is_stream_of(capture: &Capture, hello: &[u8]) -> bool {
    let id = |(key, value): &(u16, Vec<u8>)| (*key == HELLO_STREAM).then(|| value.clone());
    let known = capture.hello.iter().find_map(id);
    known.is_some() && known == Fields(hello).map(|(k, v)| (k, v.to_vec())).find_map(|f| id(&f))
}

/// What the capture of version 3 at `path` holds; its last chunk too.
pub fn read_capture(path: &Path) -> (Capture, Vec<(u16, Vec<u8>)>) {
    read_into(Capture::default(), path)
}

/// The same of one that was begun in the place of another.
pub fn read_rest(path: &Path) -> (Capture, Vec<(u16, Vec<u8>)>) {
    read_into(Capture { is_rest: true, ..Capture::default() }, path)
}

fn read_into(mut capture: Capture, path: &Path) -> (Capture, Vec<(u16, Vec<u8>)>) {
    let bytes = std::fs::read(path).expect("read the capture");
    let (header, order) = FileHeader::parse(&bytes).expect("a header");
    assert_eq!(header.version, FILE_VERSION_CHUNKS);
    let mut rest = &bytes[header.header_size as usize..];
    let mut tail = Vec::new();
    while !rest.is_empty() {
        assert!(tail.is_empty(), "something stands behind the last chunk");
        let (kind, raw) = read_chunk(&mut rest, order).expect("a whole chunk");
        if kind == CHUNK_SINK {
            tail = Fields(&raw).map(|(key, value)| (key, value.to_vec())).collect();
        } else {
            take(&mut capture, kind, &raw, order);
        }
    }
    (capture, tail)
}

/// Whether it was all there; a stream may end between two pieces, not inside one.
fn read_whole(socket: &mut impl Read, bytes: &mut [u8]) -> bool {
    match socket.read_exact(bytes) {
        Ok(()) => true,
        Err(error) => {
            let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
            assert!(ends.contains(&error.kind()), "{error}");
            false
        }
    }
}

fn read_chunk(socket: &mut impl Read, order: ByteOrder) -> Option<(u32, Vec<u8>)> {
    let mut header = [0; CHUNK_HEADER_BYTES];
    if !read_whole(socket, &mut header) {
        return None;
    }
    let header = ChunkHeader::parse(header, order);
    assert!(header.raw_len <= CHUNK_MAX_RAW_BYTES, "{header:?}");
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
            capture.unnumbered += events.len();
            capture.events.extend(events.map(|e| Event::parse(e, order).expect("32 bytes")));
        }
        CHUNK_BLOCK => take_block(capture, raw),
        CHUNK_DROPPED => capture.dropped.push(order.u64(raw, 0).expect("8 bytes")),
        CHUNK_HELLO => capture.hello = fields(),
        CHUNK_END => capture.end = fields(),
        _ => panic!("chunk of type {kind}"),
    }
}

fn take_block(capture: &mut Capture, raw: &[u8]) {
    let header = BlockHeader::parse(raw).expect("a block");
    if header.number <= capture.blocks {
        capture.repeated += 1;
        return;
    }
    // Those of a time when it was sent raw events are for the file alone.
    let begins = capture.blocks == 0 && (capture.is_rest || !capture.events.is_empty());
    assert!(begins || header.number == capture.blocks + 1, "a block is missing");
    capture.blocks = header.number;
    capture.lost_total = header.lost_total;
    let before = capture.events.len();
    let mut unpacker = Box::<Unpacker>::default();
    unpacker.unpack(raw, |event| capture.events.push(*event)).expect("its columns agree");
    assert_eq!(capture.events.len() - before, header.records as usize);
}
