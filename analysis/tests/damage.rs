//! Captures of version 3 that are cut, flipped bit by bit, or whose chunks are deleted, repeated or
//! in another order: never a panic, and a loss that is exact.

#[path = "common/chunks.rs"]
mod chunks;
mod common;
#[path = "../../runtime/format/tests/packer.rs"]
mod packer;

use std::path::PathBuf;

use callsight_analysis::{Error, Options, Report, analyze};
use callsight_format::{
    CHUNK_BLOCK, CHUNK_HEADER_BYTES, Cause, Event, FILE_HEADER_BYTES, KIND_EXIT, StopReason, crc32c,
};
use chunks::*;
use common::*;
use fastrand::Rng;

/// A capture with an end, and what is true of it.
struct Truth {
    sender: Sender,
    emitted: u64,
    /// By the ring, told by notes.
    dropped: u64,
}

impl Truth {
    /// `blocks` blocks of three threads, of which now and then one ends and another gets its id.
    fn new(random: &mut Rng, blocks: usize) -> Truth {
        let mut truth = Truth { sender: Sender::new(1), emitted: 0, dropped: 0 };
        let mut writers = [7, 8, 9].map(|tid| Writer::new(7, tid));
        let mut open = [const { Vec::new() }; 3];
        for block in 0..blocks as u64 {
            let at = random.u64(..3) as usize;
            let writer = &mut writers[at];
            if writer.next > 0 && random.u64(..6) == 0 {
                truth.emitted += writer.next;
                *writer = Writer::new(7, writer.tid);
                open[at] = Vec::new();
            }
            let mut records = match writer.next {
                0 => {
                    Records { ts: block * 10_000, ..Records::default() }
                        .process(writer.tid, 7, "/bin/app")
                        .events
                }
                _ => Vec::new(),
            };
            if writer.next > 0 && random.u64(..5) == 0 {
                let lost = 1 + random.u64(..50);
                writer.drop(lost as u32);
                truth.dropped += lost;
                let note = Records { ts: block * 10_000, ..Records::default() };
                records.extend(note.lost(writer.tid, Cause::Full as u32, lost).events);
            }
            let ts = block * 10_000 + 2000;
            records.extend(calls(random, writer.tid, ts, &mut open[at]));
            truth.sender.block(writer, &records, &[]);
        }
        truth.emitted += writers.iter().map(|writer| writer.next).sum::<u64>();
        truth.sender.end(truth.emitted, &[(Cause::Full, truth.dropped)]);
        truth.sender.sink(StopReason::Closed, &[]);
        truth
    }

    /// Checks a report in which all records of these blocks are missing, and nothing else.
    #[track_caller]
    fn check(&self, report: &Report, missing: u64, what: &str) {
        let delivered = self.emitted - self.dropped - missing;
        let expected = (self.emitted, delivered, self.dropped + missing, 0);
        assert_eq!(identity(report), expected, "{what}: {:?}", report.notices);
        let unacked = report.losses.get("unacked").copied().unwrap_or(0);
        assert_eq!(unacked, missing, "{what}: {:?}", report.losses);
    }
}

fn calls(random: &mut Rng, tid: u32, ts: u64, open: &mut Vec<Event>) -> Vec<Event> {
    let count = 1 + random.u64(..60);
    let one = |step: u64| {
        let call = match random.u64(..2) {
            0 => open.pop().map(|call| Event { kind: KIND_EXIT, ..call }),
            _ => None,
        };
        let call = call.unwrap_or_else(|| {
            let func = 1600 + 16 * random.u64(..9);
            open.push(Event { func, call_site: func + 5, tid, ..Event::default() });
            open[open.len() - 1]
        });
        Event { ts: ts + 10 * step, ..call }
    };
    (0..count).map(one).collect()
}

/// A directory with one file, which is written anew again and again.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().expect("a directory") }
    }

    fn write(&self, number: u32, bytes: &[u8]) -> PathBuf {
        let path = self.directory.path().join(format!("trace.stream.{number}.0.bin"));
        std::fs::write(&path, bytes).expect("write a capture");
        path
    }

    fn analyze(&self, bytes: &[u8]) -> Result<Report, Error> {
        analyze(&[self.write(1, bytes)], &Options::default())
    }

    fn report_on_all(&self, files: u32) -> Report {
        let name = |number| self.directory.path().join(format!("trace.stream.{number}.0.bin"));
        let paths: Vec<PathBuf> = (1..=files).map(name).collect();
        analyze(&paths, &Options::default()).expect("a report")
    }

    fn report(&self, sender: &Sender) -> Report {
        self.analyze(&sender.file(1)).expect("a report")
    }
}

#[test]
fn a_capture_cut_at_any_byte_holds_what_stands_before() {
    let truth = Truth::new(&mut Rng::with_seed(3), 9);
    let (bytes, place) = (truth.sender.file(1), Place::new());
    let (mut end, mut whole) = (FILE_HEADER_BYTES, 0);
    let mut next = truth.sender.chunks.iter().zip(&truth.sender.records);
    let mut chunk = next.next();
    for len in FILE_HEADER_BYTES..bytes.len() {
        while let Some((bytes, records)) = chunk.filter(|(bytes, _)| end + bytes.len() <= len) {
            (end, whole) = (end + bytes.len(), whole + records);
            chunk = next.next();
        }
        let report = place.analyze(&bytes[..len]).expect("a report");
        assert_eq!((report.identity.delivered, report.identity.unaccounted), (whole, 0), "{len}");
        let said = |words| report.notices.iter().any(|notice| notice.contains(words));
        assert_eq!(said("ends within an event or a chunk"), len > end, "{len} of {end}");
        let ended = truth.sender.chunks.len() - 1;
        let chunks = truth.sender.chunks[..ended].iter().map(Vec::len).sum::<usize>();
        assert_eq!(said("broke off before its end"), len < FILE_HEADER_BYTES + chunks, "{len}");
    }
    for len in 0..FILE_HEADER_BYTES {
        assert!(place.analyze(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn a_flipped_bit_costs_at_most_the_chunk_it_is_in() {
    let mut random = Rng::with_seed(11);
    let truth = Truth::new(&mut random, 12);
    let (bytes, place) = (truth.sender.file(1), Place::new());
    let mut ends = Vec::new();
    for chunk in &truth.sender.chunks {
        ends.push(ends.last().unwrap_or(&FILE_HEADER_BYTES) + chunk.len());
    }
    let last_block = truth.sender.chunks.len() - 3;
    for _ in 0..10_000 {
        let at = random.u64(..bytes.len() as u64) as usize;
        let bit = random.u64(..8);
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << bit;
        let report = place.analyze(&damaged);
        if at < FILE_HEADER_BYTES {
            // It says what times mean and which ring it was: the loss is known all the same.
            if let Ok(report) = report {
                assert_eq!(identity(&report).2, truth.dropped, "byte {at} bit {bit}");
            }
            continue;
        }
        let report = report.expect("a report");
        let hit = ends.partition_point(|end| *end <= at);
        let records = truth.sender.records[hit];
        let delivered = report.identity.delivered + truth.dropped;
        let missing = truth.emitted - delivered;
        assert!(missing == 0 || missing == records, "byte {at} bit {bit}: {missing} missing");
        truth.check(&report, missing, &format!("byte {at} bit {bit} in chunk {hit}"));
        if missing > 0 && hit <= last_block {
            assert_noticed(&report, "1 block is missing");
        }
    }
}

#[test]
fn deleted_and_repeated_chunks_are_exact() {
    let place = Place::new();
    for seed in 1..200u64 {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let blocks = 1 + random.u64(..30) as usize;
        let truth = Truth::new(&mut random, blocks);
        let mut sender = truth.sender.clone();
        let mut missing = 0;
        for at in (1..=blocks).rev() {
            match random.u64(..4) {
                0 => {
                    missing += sender.records.remove(at);
                    sender.chunks.remove(at);
                }
                1 => {
                    let later = at + random.u64(..(sender.chunks.len() - at) as u64) as usize;
                    sender.chunks.insert(later, sender.chunks[at].clone());
                    sender.records.insert(later, 0);
                }
                _ => {}
            }
        }
        truth.check(&place.report(&sender), missing, &format!("seed {seed}"));
    }
}

#[test]
fn chunks_in_another_order_are_there_or_lost() {
    let place = Place::new();
    for seed in 1..200u64 {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let truth = Truth::new(&mut random, 20);
        let mut sender = truth.sender.clone();
        for _ in 0..=random.u64(..6) {
            let (one, other) = (1 + random.u64(..20) as usize, 1 + random.u64(..20) as usize);
            sender.chunks.swap(one, other);
        }
        let report = place.report(&sender);
        let missing = truth.emitted - truth.dropped - report.identity.delivered;
        assert_eq!(report.identity.repeated, missing, "seed {seed}");
        truth.check(&report, missing, &format!("seed {seed}"));
    }
}

/// A writer's records, sent by drains that are killed and restarted: each sends again what the last
/// one had not given back, and sometimes what it took is gone.
#[test]
fn restarted_drains_lose_and_repeat_exactly() {
    let (place, mut all_lost, mut all_repeated) = (Place::new(), 0, 0);
    for seed in 1..200u64 {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut writers = [7, 8].map(|tid| Writer::new(7, tid));
        let mut sent = [Vec::new(), Vec::new()];
        let (mut lost, mut repeated, mut files) = (0, 0, Vec::new());
        for drain in 0..1 + random.u64(..4) {
            let mut sender = Sender::new(drain as u8);
            for block in 0..1 + random.u64(..8) {
                let at = random.u64(..2) as usize;
                let (writer, sent) = (&mut writers[at], &mut sent[at]);
                let ts = drain * 1_000_000 + block * 10_000;
                let mut records = calls(&mut random, writer.tid, ts, &mut Vec::new());
                let first_of_drain = sender.chunks.len() == 1;
                if first_of_drain && random.u64(..3) == 0 {
                    let gone = 1 + random.u64(..90);
                    (writer.next, lost) = (writer.next + gone, lost + gone);
                    sent.clear();
                } else if first_of_drain && random.u64(..2) == 0 {
                    let again = random.u64(..1 + sent.len() as u64) as usize;
                    (writer.next, repeated) = (writer.next - again as u64, repeated + again as u64);
                    records.splice(..0, sent.drain(sent.len() - again..));
                }
                sent.extend_from_slice(&records);
                while !records.is_empty() {
                    let part = records.len().min(1 + random.u64(..60) as usize);
                    sender.block(writer, &records[..part], &[]);
                    records.drain(..part);
                }
            }
            files.push(sender.file(drain as u32 + 1));
        }
        let emitted: u64 = writers.iter().map(|writer| writer.next).sum();
        for (file, number) in files.iter().zip(1..) {
            place.write(number, file);
        }
        let report = place.report_on_all(files.len() as u32);
        assert_eq!(identity(&report), (emitted, emitted - lost, lost, 0), "seed {seed}");
        assert_eq!(report.identity.repeated, repeated, "seed {seed}");
        (all_lost, all_repeated) = (all_lost + lost, all_repeated + repeated);
    }
    assert!(all_lost > 100 && all_repeated > 100, "{all_lost} lost, {all_repeated} repeated");
}

/// Chunks that are whole, and of which some bytes are not what a drain writes.
#[test]
fn chunks_that_lie_give_a_report() {
    let (mut random, place) = (Rng::with_seed(17), Place::new());
    let truth = Truth::new(&mut random, 12);
    for _ in 0..2000 {
        let mut sender = truth.sender.clone();
        for _ in 0..=random.u64(..3) {
            let at = random.u64(..sender.chunks.len() as u64) as usize;
            sender.chunks[at] = lie(&mut random, &sender.chunks[at]);
        }
        let report = place.report(&sender);
        report.write_text(&mut Vec::new(), 0).expect("it can be written");
        report.write_json(&mut Vec::new(), 0).expect("it can be written");
    }
}

fn lie(random: &mut Rng, chunk: &[u8]) -> Vec<u8> {
    let kind = u32::from(chunk[0]);
    let frame = &chunk[CHUNK_HEADER_BYTES..];
    let mut raw = zstd::bulk::decompress(frame, 1 << 20).expect("a frame");
    for _ in 0..=random.u64(..4) {
        // Mostly in the header, where the numbers are.
        let within = [raw.len() as u64, 112, 112, 112][random.u64(..4) as usize];
        let at = random.u64(..within.min(raw.len() as u64)) as usize;
        let len = (1 << random.u64(..4)).min(raw.len() - at);
        let value = [0, 0xff, 0x80, random.u64(..256) as u8][random.u64(..4) as usize];
        raw[at..at + len].fill(value);
    }
    if kind == CHUNK_BLOCK {
        let crc = crc32c(&raw[4..]);
        raw[..4].copy_from_slice(&crc.to_le_bytes());
    }
    chunks::chunk(kind, &raw)
}

#[test]
fn random_bytes_are_no_chunks() {
    let (mut random, place) = (Rng::with_seed(5), Place::new());
    let truth = Truth::new(&mut random, 20);
    for len in [1, 100, 300_000, 3_000_000] {
        let noise: Vec<u8> = (0..len).map(|_| random.u64(..256) as u8).collect();
        for at in [1, 7, 21] {
            let mut sender = truth.sender.clone();
            sender.chunks.insert(at, noise.clone());
            let report = place.report(&sender);
            truth.check(&report, 0, &format!("{len} bytes at {at}"));
            let said = if len == 1 { "1 byte at 1 place" } else { "bytes at 1 place" };
            assert_noticed(&report, said);
        }
    }
}
