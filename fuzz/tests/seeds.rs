//! The seeds are what this makes; `UPDATE=1 cargo test` writes them anew.

#[allow(dead_code, reason = "one of two byte orders")]
#[path = "../../runtime/format/tests/packer.rs"]
mod packer;

use std::fs;
use std::mem::offset_of;
use std::path::Path;

use callsight_format::*;
use packer::Packer;

/// A command of `script`: a chunk of this type.
fn command(kind: u32, payload: &[u8]) -> Vec<u8> {
    [&[kind as u8][..], &(payload.len() as u16).to_le_bytes(), payload].concat()
}

fn field(key: u16, value: &[u8]) -> Vec<u8> {
    [&key.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
}

fn event(ts: u64, kind: u8, func: u64) -> Event {
    Event { ts, func, call_site: func + 0x33, tid: 7, kind, frame: [9, 0, 0] }
}

/// a(b() b()), a stray exit, and a marker.
fn events() -> Vec<Event> {
    let (a, b) = (0x1000, 0x2000);
    let calls = [(0, a), (0, b), (1, b), (0, b), (1, b), (1, a), (1, 0x3000)];
    let mut events: Vec<_> =
        (100..).step_by(300).zip(calls).map(|(ts, (kind, func))| event(ts, kind, func)).collect();
    events.push(event(1 << 40, KIND_MARKER, MARK_CLOCK));
    events
}

fn bytes_of(events: &[Event], order: ByteOrder) -> Vec<u8> {
    events.iter().flat_map(|event| event.to_bytes(order)).collect()
}

/// One of every kind of chunk.
fn stream() -> Vec<u8> {
    let header =
        BlockHeader { number: 1, pid: 7, start: 9, tid: 7, first: 0, ..BlockHeader::default() };
    let mut packer = Packer::new(header);
    events().iter().for_each(|event| packer.push(event, event.kind == KIND_MARKER));
    let hello = [field(HELLO_STREAM, &[1; 16]), field(HELLO_EXE, b"/bin/app")].concat();
    let dropped = [&(Cause::Full as u32).to_le_bytes()[..], &3u64.to_le_bytes()].concat();
    let end = [
        field(END_REASON, &END_DONE.to_le_bytes()),
        field(END_BLOCKS, &1u64.to_le_bytes()),
        field(END_EMITTED, &10u64.to_le_bytes()),
        field(END_DROPPED, &dropped),
    ];
    [
        command(CHUNK_HELLO, &hello),
        command(CHUNK_EVENTS, &bytes_of(&events(), ByteOrder::Little)),
        command(CHUNK_DROPPED, &5u64.to_le_bytes()),
        command(CHUNK_BLOCK, &packer.finish()),
        command(77, b"later"),
        command(CHUNK_END, &end.concat()),
        command(CHUNK_SINK, &field(SINK_DROPPED, &dropped)),
    ]
    .concat()
}

/// Words of a ring that is in use.
fn ring() -> Vec<u8> {
    let layout = RingLayout::of(4096);
    let change =
        |at: usize, word: u64| [&(at as u16).to_le_bytes()[..], &word.to_le_bytes()].concat();
    let page = |at: usize| layout.page_offset(1) as usize + at;
    let slot = |at: usize| page(PAGE_HEADER_BYTES + at);
    [
        change(RING_PROCESSES_OFFSET, 7 << 32 | u64::from(PROCESS_ATTACHED)),
        change(RING_PROCESSES_OFFSET + offset_of!(RingProcess, start), 9),
        change(RING_WRITERS_OFFSET, 7 << 32 | 7),
        change(RING_WRITERS_OFFSET + offset_of!(RingWriter, dropped), 4),
        change(page(offset_of!(PageHeader, owner)), 1 | PAGE_RETIRED),
        change(page(offset_of!(PageHeader, pid)), 7 << 32 | 7),
        change(page(offset_of!(PageHeader, start)), 9),
        change(page(offset_of!(PageHeader, first)), 31),
        change(slot(offset_of!(Event, ts)), 1000),
        change(slot(offset_of!(Event, func)), 0x1000),
        change(slot(2 * EVENT_BYTES), 1002),
    ]
    .concat()
}

#[test]
fn the_seeds_are_what_is_made_here() {
    let stream = stream();
    let cut = &stream[..stream.len() / 2];
    let raw = callsight_fuzz::chunk(CHUNK_EVENTS, &[0; EVENT_BYTES], ByteOrder::Little);
    let raw_cut = &raw[..raw.len() - 20];
    let little = bytes_of(&events(), ByteOrder::Little);
    let header = FileHeader::new(Origin::default(), 7, 0).to_bytes(ByteOrder::Little);
    let config: &[u8] =
        b"\xef\xbb\xbf# where\n[files]\ninclude = [\"a/*\", 'b?.c',]\nexclude=[]\n\n\
        [targets]\r\ninclude = [\"app\"]\n[sinks]\npath = \"traces\" # here\nlive='host:9001'\n";
    let seeds = [
        ("ring/used", [&[0, 0, 0][..], &ring()].concat()),
        ("ring/cut", [&[2, 0, 0x20][..], &ring()].concat()),
        ("ring/bytes", [&[1, 0, 0][..], &RING_MAGIC, &[2, 0, 0, 0, 0, 1, 0, 0]].concat()),
        ("wire/stream", [&[0, 6][..], &stream].concat()),
        ("wire/big-endian", [&[2, 255][..], cut].concat()),
        ("wire/bytes", [&[1, 0][..], &raw, raw_cut].concat()),
        ("capture/chunks", [&[0][..], &stream].concat()),
        ("capture/events", [&[1][..], &little].concat()),
        ("capture/big-endian", [&[5][..], &bytes_of(&events(), ByteOrder::Big)].concat()),
        ("capture/bytes", [&[2][..], &header, &little].concat()),
        ("resync/chunks", [&[0][..], &stream].concat()),
        ("resync/bytes", [&[1][..], b"damage", raw_cut, &raw, b"more"].concat()),
        ("config/all", config.to_vec()),
        ("config/not-understood", b"[sinks]\npath = 7\n".to_vec()),
    ];
    for (name, bytes) in seeds {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().expect("a folder")).expect("make it");
            fs::write(&path, &bytes).expect("write a seed");
        }
        let seed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(seed == bytes, "{name} is stale: UPDATE=1 cargo test --test seeds");
    }
}
