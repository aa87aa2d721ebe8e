//! Segments and folders that somebody removes, replaces or cuts short while a stream is stored in them.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use callsight_format::*;
use callsight_hub::capture::{CaptureDir, CaptureLimits, ChunkCapture, EventCapture};
use callsight_hub::stream::{ChunkDecoder, StreamId};
use callsight_hub::{Session, SessionMeta, Sink, Tally};
use common::packed::*;
use common::server::{NO_LIMITS, serve_in};
use common::*;

/// Enters and exits of a block.
const EVENTS: u64 = 10;
const BLOCKS: u64 = 12;

/// A folder of captures, of chunks or of events, and what is done to it.
struct Case {
    _parent: tempfile::TempDir,
    folder: PathBuf,
    packs: bool,
    tally: Tally,
    lines: Vec<String>,
}

impl Case {
    /// Stores the stream; behind some of its blocks `harm` does something to the folder.
    fn run(packs: bool, limits: CaptureLimits, behind: &[u64], harm: impl Fn(&Path)) -> Case {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("traces");
        let captures = CaptureDir::open(&folder).expect("a folder");
        let reserved = captures.reserve().expect("a number");
        let meta = SessionMeta::new(reserved.id(), "test", origin(), LE);
        let meta = SessionMeta { stream: StreamId::parse(&stream_id(1)), ..meta };
        let capture: Box<dyn Sink> = match packs {
            true => Box::new(ChunkCapture::new(reserved, limits)),
            false => Box::new(EventCapture::new(reserved, limits)),
        };
        let lines = Mutex::new(Vec::new());
        let say = |line: &str| lines.lock().expect("lines").push(line.to_owned());
        let mut session = Session::start(&meta, vec![capture]);
        let mut decoder = ChunkDecoder::new(LE);
        let mut take = |session: &mut Session, chunk: &[u8]| {
            let mut bytes = chunk;
            session.take(&decoder.next(&mut bytes).expect("honest").expect("whole"), &say);
            while session.acknowledged() < session.taken() {
                std::thread::yield_now();
            }
        };
        take(&mut session, &hello(1, LE));
        for (number, block) in (1..).zip(blocks(BLOCKS, EVENTS / 2)) {
            take(&mut session, &block);
            if behind.contains(&number) {
                harm(&folder);
            }
        }
        take(&mut session, &end(BLOCKS, EVENTS * BLOCKS, &[]));
        if behind.contains(&(BLOCKS + 1)) {
            harm(&folder);
        }
        let tally = session.finish(0, &say);
        let lines = lines.into_inner().expect("lines");
        Case { _parent: parent, folder, packs, tally, lines }
    }

    /// The segments that can be read, in order.
    fn segments(&self) -> Vec<PathBuf> {
        let paths = (0..100).map(|seq| self.folder.join(format!("trace.stream.1.{seq}.bin")));
        let is_whole = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.len() >= 80);
        paths.filter(is_whole).collect()
    }

    /// Everything was delivered or lost, what was delivered is there, and that some was not is said and
    /// told in the capture.
    fn check(&self, what: &str) -> u64 {
        let segments = self.segments();
        let there: u64 = match self.packs {
            true => segments.iter().map(|path| hooks_in_chunks(path)).sum(),
            false => segments.iter().map(|path| hooks_in_events(path)).sum(),
        };
        let sink = &self.tally.sinks[0];
        let lost = sink.dropped_events.of(Cause::Io);
        assert_eq!((sink.delivered_events, sink.unaccounted()), (there, 0), "{what}: {sink:?}");
        assert_eq!(there + lost, EVENTS * BLOCKS, "{what}: {sink:?}");
        assert!(
            self.lines.iter().any(|line| line.contains("somebody else has")),
            "{what}: {:?}",
            self.lines
        );
        lost
    }

    /// What the capture tells of losses.
    fn told(&self) -> Vec<(u32, u64)> {
        let segments = self.segments();
        match self.packs {
            true => last_of(segments.last().expect("a segment")).dropped,
            false => told(&segments.iter().flat_map(|path| whole_events(path)).collect::<Vec<_>>()),
        }
    }
}

/// The enters and exits of the whole chunks of a file that may end in the middle of one.
fn hooks_in_chunks(path: &Path) -> u64 {
    let bytes = fs::read(path).expect("read");
    let mut rest = &bytes[FILE_HEADER_BYTES..];
    let mut decoder = ChunkDecoder::new(LE);
    let mut events = 0;
    while let Ok(Some(chunk)) = decoder.next(&mut rest) {
        if let callsight_hub::stream::Item::Block(block) = chunk.item {
            events += u64::from(block.header.calls);
        }
    }
    events
}

/// The events of a file that may end in the middle of one.
fn whole_events(path: &Path) -> Vec<Event> {
    let bytes = fs::read(path).expect("read");
    let events = bytes[FILE_HEADER_BYTES..].chunks_exact(EVENT_BYTES);
    events.filter_map(|event| Event::parse(event, LE)).collect()
}

fn hooks_in_events(path: &Path) -> u64 {
    hooks(&whole_events(path)) as u64
}

fn newest(folder: &Path) -> PathBuf {
    let paths = (0..).map(|seq| folder.join(format!("trace.stream.1.{seq}.bin")));
    paths.take_while(|path| path.exists()).last().expect("a segment")
}

fn cut(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("open");
    file.set_len(bytes).expect("cut");
}

/// A size of segments of which the stream makes several.
fn several(packs: bool) -> u64 {
    if packs { 1300 } else { 3000 }
}

#[test]
fn a_folder_that_is_removed_is_made_again_and_what_was_in_it_is_lost() {
    for packs in [true, false] {
        for segment_bytes in [0, several(packs)] {
            let limits = CaptureLimits { segment_bytes, budget_bytes: 0 };
            for behind in [1, 5, BLOCKS] {
                let case = Case::run(packs, limits, &[behind], |folder| {
                    fs::remove_dir_all(folder).expect("remove");
                });
                let what = format!("packs {packs}, segments of {segment_bytes}, behind {behind}");
                assert_eq!(case.check(&what), EVENTS * behind, "{what}");
                assert_eq!(case.told(), [(Cause::Io as u32, EVENTS * behind)], "{what}");
                assert!(case.folder.join("trace.stream.1.json").exists(), "{what}");
            }
        }
    }
}

#[test]
fn what_is_removed_behind_the_end_of_the_stream_is_lost_and_its_end_is_stored_again() {
    for packs in [true, false] {
        let case = Case::run(packs, NO_LIMITS, &[BLOCKS + 1], |folder| {
            fs::remove_dir_all(folder).expect("remove");
        });
        assert_eq!(case.check("behind the end"), EVENTS * BLOCKS);
        assert_eq!(case.told(), [(Cause::Io as u32, EVENTS * BLOCKS)]);
        let chunks = if packs { chunks_of(&case.segments()[0]) } else { continue };
        assert!(chunks.iter().any(|(kind, ..)| *kind == CHUNK_END), "no end");
    }
}

#[test]
fn a_segment_that_is_cut_short_loses_what_was_behind_the_cut() {
    for packs in [true, false] {
        for bytes in [0, 50, 80, 300, 500] {
            let case = Case::run(packs, NO_LIMITS, &[6], |folder| cut(&newest(folder), bytes));
            let what = format!("packs {packs}, cut at {bytes}");
            let lost = case.check(&what);
            assert!((1..=EVENTS * 6).contains(&lost), "{what}: {lost}");
            assert_eq!(case.told(), [(Cause::Io as u32, lost)], "{what}");
        }
    }
}

#[test]
fn a_segment_that_is_replaced_is_lost_and_the_other_file_is_left_alone() {
    for packs in [true, false] {
        let case = Case::run(packs, NO_LIMITS, &[4], |folder| {
            let other = folder.join("other");
            fs::write(&other, "of somebody else").expect("write");
            fs::rename(&other, newest(folder)).expect("replace");
        });
        assert_eq!(case.check("replaced"), EVENTS * 4);
        let other = fs::read(case.folder.join("trace.stream.1.0.bin")).expect("read");
        assert_eq!(other, b"of somebody else");
    }
}

#[test]
fn segments_that_were_done_with_are_looked_at_in_the_end() {
    for packs in [true, false] {
        let limits = CaptureLimits { segment_bytes: several(packs), budget_bytes: 0 };
        for (what, harm) in [
            ("removed", (|path| fs::remove_file(path).expect("remove")) as fn(&Path)),
            ("cut", |path| cut(path, fs::metadata(path).expect("a file").len() - 70)),
        ] {
            let case = Case::run(packs, limits, &[BLOCKS], |folder| {
                assert!(newest(folder) != folder.join("trace.stream.1.0.bin"));
                harm(&folder.join("trace.stream.1.0.bin"));
            });
            let lost = case.check(what);
            assert!(lost > 0);
            assert_eq!(case.told(), [(Cause::Io as u32, lost)], "{what}, packs {packs}");
        }
    }
}

#[test]
fn a_folder_that_is_removed_again_and_again_loses_each_part_once() {
    for packs in [true, false] {
        let case = Case::run(packs, NO_LIMITS, &[2, 3, 7, 9], |folder| {
            fs::remove_dir_all(folder).expect("remove");
        });
        assert_eq!(case.check("again and again"), EVENTS * 9);
    }
}

#[test]
fn a_folder_that_is_moved_away_keeps_what_is_in_it_and_what_comes() {
    for packs in [true, false] {
        let case = Case::run(packs, NO_LIMITS, &[5], |folder| {
            fs::rename(folder, folder.with_extension("moved")).expect("move");
        });
        let path = case.folder.with_extension("moved").join("trace.stream.1.0.bin");
        let there = if packs { hooks_in_chunks(&path) } else { hooks_in_events(&path) };
        assert_eq!(case.tally.sinks[0].delivered_events, there);
        assert_eq!(there, EVENTS * BLOCKS);
    }
}

#[test]
fn a_server_whose_folder_was_removed_takes_the_next_stream_all_the_same() {
    let served = serve_in(|at, folder| {
        fs::remove_dir_all(folder).expect("remove");
        let mut device = Device::connect(at, 1);
        blocks(3, EVENTS / 2).iter().for_each(|block| device.send(block));
        device.end(3, 3 * EVENTS);
    });
    assert_eq!(numbers_of(&served.captures()[0]), [1, 2, 3]);
    assert_eq!((served.totals.refused, served.totals.dropped_events), (0, 0));
}
