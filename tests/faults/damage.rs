//! F11: captures that are cut, changed, or have chunks missing, repeated or out of order.

use std::collections::BTreeSet;
use std::path::PathBuf;

use callsight_format::{
    BLOCK_HEADER_BYTES, BlockHeader, ByteOrder, CHUNK_BLOCK, CHUNK_HEADER_BYTES, ChunkHeader,
};
use callsight_tests::{Ran, Report};

use crate::outcome::{Outcome, Plan};
use crate::scene::{Scene, captures_in, ended_well, tally};
use crate::seed::Chance;
use crate::truth::{Account, Truth};

const LE: ByteOrder = ByteOrder::Little;

/// A capture that can be damaged, over and over.
struct Capture {
    scene: Scene,
    path: PathBuf,
    bytes: Vec<u8>,
    events: u64,
}

impl Capture {
    /// Of a program that wrote a file itself.
    fn of_events(calls: u64) -> Capture {
        let scene = Scene::new(65536);
        let shell = scene.tracing().env("TRACE_SHM", "");
        let line =
            format!("exec {} {} 1 {calls} 0", tally().display(), scene.path("tally").display());
        shell.ok(&line);
        Capture::found(scene, calls)
    }

    /// Of a stream of blocks, as a drain and a server left it.
    fn of_chunks(calls: u64) -> Capture {
        let scene = Scene::new(1 << 20);
        let server = scene.server();
        let drain = scene.drain(server.port);
        let file = scene.path("tally");
        let words = [file.to_str().expect("a path"), "2", &(calls / 2).to_string(), "20000"];
        assert_eq!(scene.program(tally(), &words).end().code, 0);
        ended_well(&drain.end());
        server.stop();
        Capture::found(scene, calls)
    }

    fn found(scene: Scene, calls: u64) -> Capture {
        let mut captures = captures_in(&scene.path("traces"));
        assert_eq!(captures.len(), 1, "{captures:?}");
        let path = captures.remove(0);
        let bytes = std::fs::read(&path).expect("read a capture");
        let capture = Capture { scene, path, bytes, events: 2 * calls };
        Account::of(&capture.scene.report_of("traces"))
            .holds(Truth::exactly(capture.events), "an undamaged capture");
        capture
    }

    /// Analyzes other bytes in its place.
    fn analyzed(&self, bytes: &[u8]) -> Ran {
        std::fs::write(&self.path, bytes).expect("write a capture");
        self.scene.shell().callsight(&["analyze", "traces", "--format", "json"])
    }

    /// A report, or a refusal; no panic, no signal, nothing out of thin air.
    #[track_caller]
    fn survives(&self, bytes: &[u8], what: &str) -> Option<Report> {
        let ran = self.analyzed(bytes);
        assert!([0, 2].contains(&ran.code), "{what}: {ran}");
        assert!(!ran.stderr.contains("panicked"), "{what}: {ran}");
        (ran.code == 0).then(|| Report::parse(&ran.stdout))
    }
}

/// F11, see above.
pub fn damaged_files(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F11");
    let events = Capture::of_events(60);
    let chunks = Capture::of_chunks(20_000);
    let mut cuts = 0;
    for capture in [&events, &chunks] {
        cuts += cut(capture, plan.either(60, 2000), &mut chance);
    }
    let flips = plan.either(60, 5000);
    for capture in [&events, &chunks] {
        for _ in 0..flips {
            flip(capture, &mut chance);
        }
    }
    let lost = match chunks_of(&chunks.bytes) {
        Some(pieces) => rearrange(&chunks, &pieces, plan.either(40, 400), &mut chance),
        None => "the capture holds no chunks".to_owned(),
    };
    Outcome::Holds(format!(
        "{cuts} cuts, {} flipped bits: never a panic; {lost}; unaccounted=0",
        2 * flips
    ))
}

/// Cuts it at so many of its first bytes, of its last ones, and anywhere; how many cuts.
fn cut(capture: &Capture, count: usize, chance: &mut Chance) -> usize {
    let length = capture.bytes.len();
    let places: BTreeSet<usize> =
        (0..count.min(length)).flat_map(|at| [at, length - 1 - at, chance.index(length)]).collect();
    for place in &places {
        let what = format!("cut at byte {place} of {length}");
        if let Some(report) = capture.survives(&capture.bytes[..*place], &what) {
            let account = Account::of(&report);
            assert!(account.delivered <= capture.events, "{what}: {account}");
            let all = account.delivered + account.lost_events();
            assert!(all == capture.events || !report.notices().is_empty(), "{what}: no word of it");
        }
    }
    places.len()
}

/// Changes one bit. A checksum finds it in a block; elsewhere it may make a call another one, which
/// nobody can know.
fn flip(capture: &Capture, chance: &mut Chance) {
    let (place, bit) = (chance.index(capture.bytes.len()), chance.index(8));
    let mut bytes = capture.bytes.clone();
    bytes[place] ^= 1 << bit;
    capture.survives(&bytes, &format!("bit {bit} of byte {place}"));
}

/// A chunk of a capture, and the block in it.
struct Piece {
    bytes: Vec<u8>,
    block: Option<BlockHeader>,
}

/// The pieces of a capture of version 3; the first is the header of the file.
fn chunks_of(bytes: &[u8]) -> Option<Vec<Piece>> {
    if LE.u32(bytes, 8)? != callsight_format::FILE_VERSION_CHUNKS {
        return None;
    }
    let header = LE.u32(bytes, 16)? as usize;
    let mut pieces = vec![Piece { bytes: bytes[..header].to_vec(), block: None }];
    let mut rest = &bytes[header..];
    while !rest.is_empty() {
        let chunk = ChunkHeader::parse(rest[..CHUNK_HEADER_BYTES].try_into().expect("12"), LE);
        let (whole, behind) = rest.split_at(CHUNK_HEADER_BYTES + chunk.zstd_len as usize);
        let raw = || zstd::bulk::decompress(&whole[CHUNK_HEADER_BYTES..], chunk.raw_len as usize);
        let block = (chunk.kind == CHUNK_BLOCK).then(|| {
            let raw = raw().expect("a zstd frame");
            assert!(raw.len() >= BLOCK_HEADER_BYTES, "a block without a header");
            BlockHeader::parse(&raw).expect("the header of a block")
        });
        pieces.push(Piece { bytes: whole.to_vec(), block });
        rest = behind;
    }
    Some(pieces)
}

/// Leaves chunks out and repeats some, as resending does: what is missing is exactly what was
/// taken. With chunks out of order, each event is there or counted as lost.
fn rearrange(capture: &Capture, pieces: &[Piece], rounds: usize, chance: &mut Chance) -> String {
    let blocks: Vec<usize> = (0..pieces.len()).filter(|at| pieces[*at].block.is_some()).collect();
    assert!(blocks.len() > 4, "{} blocks are too few to lose some", blocks.len());
    let mut lost_most = 0;
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        let gone = if chance.holds(60) { 1 + chance.index(3) } else { 0 };
        for _ in 0..gone {
            let victim = blocks[chance.index(blocks.len())];
            order.retain(|at| *at != victim);
        }
        for _ in 0..chance.index(3) {
            let again = chance.index(order.len());
            if pieces[order[again]].block.is_some() {
                let behind = again + 1 + chance.index(order.len() - again - 1);
                order.insert(behind, order[again]);
            }
        }
        let swapped = round % 3 == 2;
        if swapped {
            let at = 2 + chance.index(order.len() - 5);
            order.swap(at, at + 1);
        }
        let what = format!("round {round}: {} pieces as {order:?}", pieces.len());
        let bytes: Vec<u8> = order.iter().flat_map(|at| pieces[*at].bytes.clone()).collect();
        let report = capture.survives(&bytes, &what).unwrap_or_else(|| panic!("refused: {what}"));
        let account = Account::of(&report);
        let (calls, records) = missing(pieces, &order);
        let present = capture.events - calls;
        // A reader cannot know which of the records that it never saw were calls.
        let notes = if swapped { no_calls(pieces) } else { records - calls };
        let (delivered, lost) = (account.delivered, account.lost_events());
        assert!(delivered == present || (swapped && delivered < present), "{what}: {account}");
        let range = capture.events..=capture.events + notes;
        assert!(range.contains(&(delivered + lost)), "{what}: {calls} gone: {account}");
        lost_most = lost_most.max(lost);
    }
    format!("{rounds} captures with chunks gone, repeated and reordered, at most {lost_most} lost")
}

/// How many calls and records are in the blocks left out.
fn missing(pieces: &[Piece], order: &[usize]) -> (u64, u64) {
    let gone = (0..pieces.len()).filter(|at| !order.contains(at));
    let blocks = gone.filter_map(|at| pieces[at].block.as_ref());
    blocks.fold((0, 0), |(calls, records), block| {
        (calls + u64::from(block.calls), records + u64::from(block.records))
    })
}

/// How many records are no calls.
fn no_calls(pieces: &[Piece]) -> u64 {
    let blocks = pieces.iter().filter_map(|piece| piece.block.as_ref());
    blocks.map(|block| u64::from(block.records - block.calls)).sum()
}
