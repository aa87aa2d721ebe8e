//! Captures of version 3 made by hand: blocks of writers → chunks → files.

#![allow(dead_code, reason = "each test file uses its part")]

use std::mem::offset_of;

use callsight_analysis::Report;
use callsight_format::{
    BlockHeader, ByteOrder, CHUNK_BLOCK, CHUNK_END, CHUNK_EVENTS, CHUNK_HELLO, CHUNK_SINK, Cause,
    ChunkHeader, END_BLOCKS, END_DONE, END_DROPPED, END_EMITTED, END_REASON, END_RING_DROPPED,
    END_SINK_DROPPED, Event, FILE_VERSION_CHUNKS, FileHeader, HELLO_EXE, HELLO_PID, HELLO_STREAM,
    HELLO_TAKEN, Origin, SINK_DROPPED, SINK_REASON, StopReason, crc32c,
};

use crate::common::{Captures, Records};
use crate::packer::Packer;

/// A thread of a process, with its numbers as it counts them.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    pub pid: u32,
    pub tid: u32,
    /// Number of its next record.
    pub next: u64,
    /// What it has dropped so far, as `full`.
    pub dropped: u32,
    /// What it has dropped so far for causes that blocks do not tell.
    pub stopped: u32,
}

impl Writer {
    pub fn new(pid: u32, tid: u32) -> Writer {
        Writer { pid, tid, next: 0, dropped: 0, stopped: 0 }
    }

    /// It drops some.
    pub fn drop(&mut self, records: u32) {
        self.dropped += records;
        self.next += u64::from(records);
    }

    /// It drops some because it is told to stop.
    pub fn stop(&mut self, records: u32) {
        self.stopped += records;
        self.next += u64::from(records);
    }
}

/// What a drain sends, chunk by chunk.
#[derive(Clone, Default)]
pub struct Sender {
    /// The chunks so far, the first one says who sends.
    pub chunks: Vec<Vec<u8>>,
    /// For each of them, how many numbered records are in it.
    pub records: Vec<u64>,
    blocks: u64,
    /// The hello.
    hello: Vec<u8>,
    /// What its sender did not send: cause, events, records.
    pub not_sent: Vec<(Cause, u64, u64)>,
    /// What its end tells of all that the writers of the ring dropped.
    pub in_ring: Vec<(Cause, u64)>,
}

impl Sender {
    /// A stream with this id.
    pub fn new(id: u8) -> Sender {
        let hello = field(HELLO_STREAM, &[id; 16]);
        let mut sender = Sender { hello, ..Sender::default() };
        sender.add(CHUNK_HELLO, &sender.hello.clone(), 0);
        sender
    }

    /// Its drain goes on for one that took this many records of its ring, and says what runs.
    pub fn taking_over(mut self, taken: u64, pid: u32, exe: &str) -> Sender {
        self.hello.extend(field(HELLO_TAKEN, &taken.to_le_bytes()));
        self.hello.extend(field(HELLO_PID, &pid.to_le_bytes()));
        self.hello.extend(field(HELLO_EXE, exe.as_bytes()));
        self.chunks[0] = chunk(CHUNK_HELLO, &self.hello);
        self
    }

    fn add(&mut self, kind: u32, raw: &[u8], records: u64) {
        self.chunks.push(chunk(kind, raw));
        self.records.push(records);
    }

    /// A block of `writer` with its next records, and notes of the drain behind them.
    pub fn block(&mut self, writer: &mut Writer, records: &[Event], notes: &[Event]) {
        self.blocks += 1;
        let header = BlockHeader {
            number: self.blocks,
            pid: writer.pid,
            start: u64::from(writer.pid) + 7,
            tid: writer.tid,
            first: writer.next,
            lost_total: u64::from(writer.dropped) + u64::from(writer.stopped),
            lost: [writer.dropped, 0, 0, 0],
            ..BlockHeader::default()
        };
        let mut packer = Packer::new(header);
        records.iter().for_each(|event| packer.push(event, false));
        notes.iter().for_each(|event| packer.push(event, true));
        writer.next += records.len() as u64;
        self.add(CHUNK_BLOCK, &packer.finish(), records.len() as u64);
    }

    /// Records as a server gets them that has not greeted yet.
    pub fn raw(&mut self, records: &[Event]) {
        let bytes: Vec<u8> =
            records.iter().flat_map(|record| record.to_bytes(ByteOrder::Little)).collect();
        self.add(CHUNK_EVENTS, &bytes, records.len() as u64);
    }

    /// A block of a ring of version 2, whose records have no numbers.
    pub fn unnumbered_block(&mut self, tid: u32, records: &[Event]) {
        self.blocks += 1;
        let header = BlockHeader { number: self.blocks, tid, ..BlockHeader::default() };
        let mut packer = Packer::new(header);
        records.iter().for_each(|event| packer.push(event, false));
        let mut block = packer.finish();
        let numbered = offset_of!(BlockHeader, numbered);
        block[numbered..numbered + 4].fill(0);
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        self.add(CHUNK_BLOCK, &block, records.len() as u64);
    }

    /// All writers are gone.
    pub fn end(&mut self, emitted: u64, dropped: &[(Cause, u64)]) {
        self.end_with(END_DONE, emitted, dropped);
    }

    /// The stream ends.
    pub fn end_with(&mut self, reason: u32, emitted: u64, dropped: &[(Cause, u64)]) {
        let mut fields = field(END_REASON, &reason.to_le_bytes());
        fields.extend(field(END_EMITTED, &emitted.to_le_bytes()));
        fields.extend(field(END_BLOCKS, &self.blocks.to_le_bytes()));
        fields.extend(counts(END_DROPPED, dropped));
        fields.extend(counts(END_RING_DROPPED, &self.in_ring));
        fields.extend(sink_counts(END_SINK_DROPPED, &self.not_sent));
        self.add(CHUNK_END, &fields, 0);
    }

    /// The sink that stored it says what it dropped.
    pub fn sink(&mut self, reason: StopReason, dropped: &[(Cause, u64)]) {
        self.add_sink(reason, &counts(SINK_DROPPED, dropped));
    }

    /// The same with how many records it dropped.
    pub fn sink_with_records(&mut self, reason: StopReason, dropped: &[(Cause, u64, u64)]) {
        self.add_sink(reason, &sink_counts(SINK_DROPPED, dropped));
    }

    fn add_sink(&mut self, reason: StopReason, dropped: &[u8]) {
        let fields = [&field(SINK_REASON, &(reason as u32).to_le_bytes())[..], dropped].concat();
        self.add(CHUNK_SINK, &fields, 0);
    }

    /// The file of stream `number` that holds all chunks.
    pub fn file(&self, number: u32) -> Vec<u8> {
        file(number, 0, &self.chunks)
    }
}

fn counts(key: u16, dropped: &[(Cause, u64)]) -> Vec<u8> {
    let value = |(cause, events): &(Cause, u64)| {
        [&(*cause as u32).to_le_bytes()[..], &events.to_le_bytes()].concat()
    };
    dropped.iter().flat_map(|dropped| field(key, &value(dropped))).collect()
}

fn sink_counts(key: u16, dropped: &[(Cause, u64, u64)]) -> Vec<u8> {
    let value = |(cause, events, records): &(Cause, u64, u64)| {
        [&(*cause as u32).to_le_bytes()[..], &events.to_le_bytes(), &records.to_le_bytes()].concat()
    };
    dropped.iter().flat_map(|dropped| field(key, &value(dropped))).collect()
}

fn field(key: u16, value: &[u8]) -> Vec<u8> {
    [&key.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
}

/// A chunk. Those without a checksum of their own get that of zstd.
pub fn chunk(kind: u32, raw: &[u8]) -> Vec<u8> {
    let mut zstd = zstd::bulk::Compressor::new(1).expect("a compressor");
    let checksum = zstd::zstd_safe::CParameter::ChecksumFlag(kind != CHUNK_BLOCK);
    zstd.set_parameter(checksum).expect("a parameter");
    let zstd = zstd.compress(raw).expect("a frame");
    let header = ChunkHeader { kind, raw_len: raw.len() as u32, zstd_len: zstd.len() as u32 };
    [&header.to_bytes(ByteOrder::Little)[..], &zstd].concat()
}

/// A segment of stream `number`. All streams made here are of one ring.
pub fn file(number: u32, seq: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    let origin = Origin { t0_ns: 5, t0_ticks: 9, ..Origin::default() };
    let mut header = FileHeader::new(origin, number, seq);
    header.version = FILE_VERSION_CHUNKS;
    [&header.to_bytes(ByteOrder::Little)[..], &chunks.concat()].concat()
}

/// Emitted, delivered, dropped and what is left over.
pub fn identity(report: &Report) -> (u64, u64, u64, i64) {
    let identity = report.identity;
    (identity.emitted, identity.delivered, report.lost_events(), identity.unaccounted)
}

pub fn calls(tid: u32, ts: u64, script: &str) -> Vec<Event> {
    Records { ts, ..Records::default() }.thread(tid, script).events
}

/// The first records of a thread.
pub fn birth(pid: u32, tid: u32, ts: u64) -> Vec<Event> {
    Records { ts, ..Records::default() }.process(tid, pid, "/bin/app").events
}

pub fn note_of(tid: u32, cause: Cause, events: u64, ts: u64) -> Vec<Event> {
    Records { ts, ..Records::default() }.lost(tid, cause as u32, events).events
}

pub fn report_of(files: &[Vec<u8>]) -> Report {
    let names: Vec<String> =
        (1..=files.len()).map(|number| format!("trace.stream.{number}.0.bin")).collect();
    let named: Vec<(&str, Vec<u8>)> =
        names.iter().map(String::as_str).zip(files.iter().cloned()).collect();
    Captures::new(&named).analyze().expect("a report")
}

#[track_caller]
pub fn assert_silent(report: &Report) {
    assert_silent_but_for(report, "no name");
}

#[track_caller]
pub fn assert_silent_but_for(report: &Report, words: &str) {
    let expected = |line: &str| line.contains("no name") || line.contains(words);
    let doubts: Vec<_> = report.notices.iter().filter(|line| !expected(line)).collect();
    assert!(doubts.is_empty(), "{doubts:?}");
}

/// Two threads whose blocks take turns.
pub fn two_threads() -> Sender {
    let mut sender = Sender::new(1);
    let (mut one, mut two) = (Writer::new(7, 7), Writer::new(7, 8));
    sender.block(&mut one, &birth(7, 7, 0), &[]);
    sender.block(&mut two, &birth(7, 8, 0), &[]);
    sender.block(&mut one, &calls(7, 100, "enter a, enter b"), &[]);
    sender.block(&mut two, &calls(8, 100, "enter a, enter c"), &[]);
    sender.block(&mut one, &calls(7, 120, "exit b"), &[]);
    sender.block(&mut two, &calls(8, 120, "exit c, exit a"), &[]);
    let mut last = calls(7, 130, "exit a");
    last.extend(Records { ts: 140, ..Records::default() }.end(7).events);
    sender.block(&mut one, &last, &[]);
    sender.end(one.next + two.next, &[]);
    sender.sink(StopReason::Closed, &[]);
    sender
}
