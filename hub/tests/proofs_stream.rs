//! Any chunks, cut and joined anywhere, are the same chunks; and no capture of them is ever larger
//! than it may be.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use callsight_format::*;
use callsight_hub::capture::{CaptureDir, CaptureLimits, ChunkCapture, EventCapture};
use callsight_hub::stream::{ChunkDecoder, StreamId};
use callsight_hub::{Session, SessionMeta, Sink, SinkTally};
use common::packed::{self, Writer};
use common::{calls, calls_of, chunk, decode, origin};
use proptest::collection::vec;
use proptest::prelude::*;

/// A chunk of a sender of byte order `order`: of any type, with what may stand in it and what not.
fn any_chunk(order: ByteOrder) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (0..200u64).prop_map(move |count| chunk(CHUNK_EVENTS, &calls(1, count, order), order)),
        3 => (1..50u64, 0..200u64).prop_map(|(number, count)| Writer::new(7).block(number, count)),
        1 => any::<u64>().prop_map(move |n| chunk(CHUNK_DROPPED, &order.put_u64(n), order)),
        1 => (any::<u8>(), 0..9u32, vec(any::<u8>(), 0..200))
            .prop_map(move |(high, kind, raw)| chunk(kind + u32::from(high / 250), &raw, order)),
        1 => vec(any::<u8>(), 0..40),
    ]
}

/// `bytes` in pieces that end at `cuts`.
fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut from = 0;
    let mut piece = |end| &bytes[std::mem::replace(&mut from, end)..end];
    ends.into_iter().map(&mut piece).collect()
}

fn order() -> impl Strategy<Value = ByteOrder> {
    prop_oneof![3 => Just(ByteOrder::Little), 1 => Just(ByteOrder::Big)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn chunks_cut_and_joined_anywhere_are_the_same(
        (order, chunks) in order().prop_flat_map(|order| (Just(order), vec(any_chunk(order), 0..8))),
        cuts in vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let bytes = chunks.concat();
        let whole = decode([&bytes[..]], order);
        prop_assert_eq!(decode(pieces(&bytes, &cuts), order), whole);
    }
}

/// Bytes of all files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("an entry"));
    let captures = files.filter(|file| file.file_name().to_string_lossy().ends_with(".bin"));
    captures.map(|file| file.metadata().map_or(0, |meta| meta.len())).sum()
}

/// Enters and exits in the segments of a capture.
fn events_in(folder: &Path, packs: bool) -> u64 {
    let segments = (0..).map(|seq| folder.join(format!("trace.stream.1.{seq}.bin")));
    let segments = segments.take_while(|path| path.exists());
    let events = |path: PathBuf| match packs {
        true => packed::packed_hooks(&path),
        false => calls_of(&path).len() as u64,
    };
    segments.map(events).sum()
}

/// Runs a session with a capture over `chunks`, looking at its size behind each of them; what became
/// of it, the largest size seen, and the events in it.
fn largest(chunks: &[Vec<u8>], limits: CaptureLimits, packs: bool) -> (SinkTally, u64, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let reserved = CaptureDir::open(folder.path()).and_then(|dir| dir.reserve()).expect("a number");
    let stream = packs.then(|| StreamId::parse(&packed::stream_id(1))).flatten();
    let meta = SessionMeta { stream, ..SessionMeta::new(1, "test", origin(), packed::LE) };
    let capture: Box<dyn Sink> = match packs {
        true => Box::new(ChunkCapture::new(reserved, limits)),
        false => Box::new(EventCapture::new(reserved, limits)),
    };
    let mut session = Session::start(&meta, vec![capture]);
    let mut decoder = ChunkDecoder::new(packed::LE);
    let silent = |_: &str| {};
    let mut most = 0;
    for chunk in chunks {
        let chunk = decoder.next(&mut &chunk[..]).expect("honest").expect("whole");
        session.take(&chunk, &silent);
        most = most.max(bytes_in(folder.path()));
    }
    let mut tally = session.finish(0, &silent);
    let most = most.max(bytes_in(folder.path()));
    (tally.sinks.remove(0), most, events_in(folder.path(), packs))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_capture_is_ever_larger_than_its_budget(
        budget_bytes in 2000..60_000u64,
        segment_bytes in prop_oneof![Just(0u64), 2000..30_000u64],
        counts in vec(0..300u64, 1..30),
        packs in any::<bool>(),
    ) {
        let mut writer = Writer::new(7);
        let mut chunks = vec![packed::hello(1, packed::LE)];
        chunks.extend(counts.iter().zip(1..).map(|(count, number)| match packs {
            true => writer.block(number, *count),
            false => chunk(CHUNK_EVENTS, &calls(7, *count, packed::LE), packed::LE),
        }));
        let events: u64 = counts.iter().map(|count| 2 * count).sum();
        chunks.push(packed::end(if packs { counts.len() as u64 } else { 0 }, events, &[]));
        let limits = CaptureLimits { segment_bytes, budget_bytes };
        let (tally, most, stored) = largest(&chunks, limits, packs);
        prop_assert!(most <= budget_bytes, "{} of {} bytes", most, budget_bytes);
        prop_assert_eq!((tally.emitted_events, tally.unaccounted()), (events, 0));
        prop_assert_eq!(tally.delivered_events, stored);
    }
}
