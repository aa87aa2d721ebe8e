//! What a drain that packs sends, and the captures of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use callsight_format::*;

pub use super::server::LE;
use super::server::connect;
use super::{chunk, end_loss, fields, packer};

/// Id of the stream number `number` of a test.
pub fn stream_id(number: u8) -> [u8; STREAM_ID_BYTES] {
    [number; STREAM_ID_BYTES]
}

/// The chunk that says who is sending stream `number`.
pub fn hello(number: u8, order: ByteOrder) -> Vec<u8> {
    let id = stream_id(number);
    let said = fields(&[(HELLO_HOSTNAME, b"board"), (HELLO_EXE, b"/bin/app"), (HELLO_STREAM, &id)]);
    chunk(CHUNK_HELLO, &said, order)
}

/// The chunk that ends a stream of `blocks` blocks.
pub fn end(blocks: u64, emitted: u64, dropped: &[(Cause, u64)]) -> Vec<u8> {
    end_not_sent(blocks, emitted, dropped, None)
}

/// The same of a sender that left out events, and so many records.
pub fn end_not_sent(
    blocks: u64,
    emitted: u64,
    dropped: &[(Cause, u64)],
    not_sent: Option<(Cause, u64, u64)>,
) -> Vec<u8> {
    let (reason, number) = (END_DONE.to_le_bytes(), blocks.to_le_bytes());
    let emitted = emitted.to_le_bytes();
    let losses: Vec<_> = dropped.iter().map(|(cause, events)| end_loss(*cause, *events)).collect();
    let mut said: Vec<(u16, &[u8])> =
        vec![(END_REASON, &reason), (END_BLOCKS, &number), (END_EMITTED, &emitted)];
    said.extend(losses.iter().map(|loss| (END_DROPPED, &loss[..])));
    let not_sent = not_sent.map(|(cause, events, records)| {
        [&end_loss(cause, events)[..], &records.to_le_bytes()].concat()
    });
    said.extend(not_sent.iter().map(|loss| (END_SINK_DROPPED, &loss[..])));
    chunk(CHUNK_END, &fields(&said), LE)
}

/// A writer of calls, whose records come in blocks.
pub struct Writer {
    pub tid: u32,
    pub next: u64,
    /// What it dropped for want of room, and for causes that blocks do not tell.
    pub full: u32,
    pub stopped: u32,
}

impl Writer {
    pub fn new(tid: u32) -> Writer {
        Writer { tid, next: 0, full: 0, stopped: 0 }
    }

    /// Block `number` of the stream, with `calls` calls.
    pub fn block(&mut self, number: u64, calls: u64) -> Vec<u8> {
        self.block_with(number, calls, &[])
    }

    /// The same with notes that the drain made, first.
    pub fn block_with(&mut self, number: u64, calls: u64, notes: &[Event]) -> Vec<u8> {
        let header = BlockHeader {
            number,
            first: self.next,
            pid: 7,
            start: 99,
            tid: self.tid,
            lost_total: u64::from(self.full) + u64::from(self.stopped),
            lost: [self.full, 0, 0, 0],
            ..BlockHeader::default()
        };
        let mut packer = packer::Packer::new(header);
        for note in notes {
            packer.push(note, true);
        }
        for event in 0..2 * calls {
            let event = self.event(self.next + event, (event % 2) as u8);
            packer.push(&event, false);
        }
        self.next += 2 * calls;
        chunk(CHUNK_BLOCK, &packer.finish(), LE)
    }

    fn event(&self, number: u64, kind: u8) -> Event {
        let func = 0x1000 + number / 2 % 7 * 16;
        let call_site = 0x2000 + number / 2 % 11;
        Event { ts: 10 + number, func, call_site, tid: self.tid, kind, frame: [9, 0, 0] }
    }
}

/// `count` blocks of `calls` calls each, of three writers in turn, numbered from 1.
pub fn blocks(count: u64, calls: u64) -> Vec<Vec<u8>> {
    let mut writers = [1, 2, 3].map(Writer::new);
    (0..count).map(|at| writers[at as usize % 3].block(at + 1, calls)).collect()
}

/// A connection that listens, too.
pub struct Device {
    pub socket: TcpStream,
    pub acknowledged: Vec<u64>,
}

impl Device {
    /// Connects and says which stream it has; waits for the greeting and the first number.
    pub fn connect(at: SocketAddr, stream: u8) -> Device {
        let mut socket = connect(at, LE);
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        socket.write_all(&hello(stream, LE)).expect("send");
        let mut device = Device { socket, acknowledged: Vec::new() };
        let (kind, payload) = device.hear().expect("a greeting");
        assert_eq!((kind, &payload[..8]), (REPLY_GREETING, &GREETING_MAGIC[..]));
        assert!(device.hear_acknowledgement().is_some(), "no number");
        device
    }

    /// The last number heard.
    pub fn has(&self) -> u64 {
        self.acknowledged.last().copied().expect("a number")
    }

    pub fn send(&mut self, chunk: &[u8]) {
        let _ = self.socket.write_all(chunk);
    }

    /// Waits until `number` is acknowledged.
    pub fn wait_for(&mut self, number: u64) {
        while self.has() < number {
            let heard = self.hear_acknowledgement();
            assert!(heard.is_some(), "closed at {} of {number}", self.has());
        }
    }

    fn hear_acknowledgement(&mut self) -> Option<u64> {
        let (kind, payload) = self.hear()?;
        assert_eq!(kind, REPLY_ACKNOWLEDGE);
        let number = u64::from_le_bytes(payload.try_into().expect("a number"));
        assert!(self.acknowledged.last().is_none_or(|last| number > *last), "{number} again");
        self.acknowledged.push(number);
        Some(number)
    }

    /// The next reply; `None` where the server closed.
    pub fn hear(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut header = [0; REPLY_HEADER_BYTES];
        self.socket.read_exact(&mut header).ok()?;
        let kind = LE.u32(&header, 0).expect("a kind");
        let mut payload = vec![0; LE.u32(&header, 4).expect("a length") as usize];
        self.socket.read_exact(&mut payload).ok()?;
        Some((kind, payload))
    }

    /// Sends the end and waits until that is acknowledged.
    pub fn end(mut self, blocks: u64, emitted: u64) {
        self.send(&end(blocks, emitted, &[]));
        self.wait_for(blocks + 1);
    }
}

/// A drain that says which clock its machine has, and what others had taken of its ring.
pub fn drain(at: SocketAddr, stream: u8, clock: &[u8], taken: u64) -> Device {
    let (id, taken) = (stream_id(stream), taken.to_le_bytes());
    let said = [(HELLO_CLOCK, clock), (HELLO_STREAM, &id[..]), (HELLO_TAKEN, &taken[..])];
    let mut device = Device { socket: connect(at, LE), acknowledged: Vec::new() };
    device.socket.write_all(&chunk(CHUNK_HELLO, &fields(&said), LE)).expect("send");
    assert_eq!(device.hear().map(|(kind, _)| kind), Some(REPLY_GREETING));
    device.hear_acknowledgement().expect("a number");
    device
}

/// The chunks of a capture file: kind, chunk, payload. All of it must be whole.
pub fn chunks_of(path: &Path) -> Vec<(u32, Vec<u8>, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (header, order) = FileHeader::parse(&bytes).expect("a header");
    assert_eq!(header.version, FILE_VERSION_CHUNKS);
    let mut rest = &bytes[header.header_size as usize..];
    let mut chunks = Vec::new();
    while let Some((head, _)) = rest.split_first_chunk() {
        let ChunkHeader { kind, raw_len, zstd_len } = ChunkHeader::parse(*head, order);
        let (chunk, behind) = rest.split_at(CHUNK_HEADER_BYTES + zstd_len as usize);
        let raw = zstd::bulk::decompress(&chunk[CHUNK_HEADER_BYTES..], raw_len as usize);
        let raw = raw.expect("a zstd frame");
        assert_eq!(raw.len(), raw_len as usize);
        chunks.push((kind, chunk.to_vec(), raw));
        rest = behind;
    }
    assert!(rest.is_empty(), "{} ends within a chunk", path.display());
    chunks
}

/// The numbers of the blocks of a capture file.
pub fn numbers_of(path: &Path) -> Vec<u64> {
    let blocks = chunks_of(path).into_iter().filter(|(kind, ..)| *kind == CHUNK_BLOCK);
    blocks.map(|(_, _, raw)| BlockHeader::parse(&raw).expect("a block").number).collect()
}

/// What the last chunk of a capture says: drops by cause, how the stream ended, why it stopped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Last {
    pub dropped: Vec<(u32, u64)>,
    /// How many records these are.
    pub records: u64,
    pub reason: u32,
    pub stop: (u64, u64),
}

pub fn last_of(path: &Path) -> Last {
    let (kind, _, raw) = chunks_of(path).pop().expect("a chunk");
    assert_eq!(kind, CHUNK_SINK, "the last chunk of {}", path.display());
    let mut last = Last::default();
    for (key, value) in Fields(&raw) {
        let u64_at = |at| LE.u64(value, at).expect("a number");
        match key {
            SINK_DROPPED if u64_at(4) > 0 => {
                last.dropped.push((LE.u32(value, 0).expect("a cause"), u64_at(4)));
                last.records += u64_at(12);
            }
            SINK_REASON => last.reason = LE.u32(value, 0).expect("a reason"),
            SINK_STOP => last.stop = (u64_at(0), u64_at(8)),
            _ => {}
        }
    }
    last
}

/// The enters and exits in a capture file.
pub fn packed_hooks(path: &Path) -> u64 {
    let blocks = chunks_of(path).into_iter().filter(|(kind, ..)| *kind == CHUNK_BLOCK);
    blocks.map(|(_, _, raw)| u64::from(BlockHeader::parse(&raw).expect("a block").calls)).sum()
}
