//! Captures that somebody removes or cuts short while the drain writes to them: what is gone is counted,
//! and the rest of the stream is in another file.

use std::fs::{self, File};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Acquire;

use callsight_format::{
    ByteOrder, CHUNK_HEADER_BYTES, Cause, ChunkHeader, EVENT_BYTES, FILE_HEADER_BYTES, RingHeader,
    SINK_DROPPED,
};

use crate::support::{
    Drain, Ring, TestProcess, Writer, drain_binary, read_capture, read_rest, wait_until,
};

const CALLS: u64 = 100_000;
const HALF: u64 = CALLS / 2;

/// What a drain made of [`CALLS`] calls, with something done to its file behind half of them.
struct Drained {
    dir: tempfile::TempDir,
    said: String,
    code: Option<i32>,
}

impl Drained {
    fn with(name: &str, harm: impl Fn(&Path)) -> Drained {
        let dir = tempfile::tempdir().expect("a folder");
        let ring = Ring::new(name, 1 << 20);
        let process = TestProcess::start();
        ring.attach(0, process.process);
        let folder = dir.path().join("captures");
        let words = ["--file", folder.to_str().expect("UTF-8"), &ring.name];
        let drain = Drain::with_arguments(&drain_binary(), &words);
        let mut writer = Writer::new(&ring, process.process, 7);
        for call in 1..=CALLS {
            wait_until("there is room", || writer.store_where_room(call));
            if call == HALF {
                let tail = ring.u64(offset_of!(RingHeader, tail));
                let stored = HALF * EVENT_BYTES as u64;
                wait_until("half is in the file", || tail.load(Acquire) == stored);
                harm(&folder);
            }
        }
        writer.retire();
        drop(process);
        let (code, said) = drain.end();
        Drained { dir, said, code }
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.path().join(format!("captures/trace.stream.{number}.0.bin"))
    }

    /// The calls in a file are those from `first` on, and so many are gone.
    #[track_caller]
    fn check(&self, number: u32, first: u64, gone: u64) {
        let counts = format!("file: {} delivered, {gone} dropped (io {gone})", CALLS - gone);
        assert!(self.said.contains(&counts), "{counts}: {}", self.said);
        assert!(self.said.contains("unaccounted=0"), "{}", self.said);
        assert_eq!(self.code, Some(1), "{}", self.said);
        let (capture, tail) = read_rest(&self.path(number));
        assert!(capture.calls_of(7).iter().map(|event| event.func).eq(first..=CALLS));
        assert_eq!(capture.emitted(), CALLS);
        let io = (Cause::Io as u32).to_le_bytes();
        let told = tail.iter().find(|(key, value)| *key == SINK_DROPPED && value[..4] == io);
        let (_, value) = told.expect("the last chunk tells it");
        // Events, and records with numbers.
        assert_eq!(value[4..], [gone.to_le_bytes(), gone.to_le_bytes()].concat());
    }
}

#[test]
fn the_folder_is_removed() {
    let drained = Drained::with("gone-folder", |folder| {
        fs::remove_dir_all(folder).expect("remove it");
    });
    assert!(drained.said.contains("was removed while it was written to"), "{}", drained.said);
    drained.check(1, HALF + 1, HALF);
}

#[test]
fn the_file_is_replaced_by_another() {
    let drained = Drained::with("gone-replaced", |folder| {
        let other = folder.join("other");
        fs::write(&other, "something else").expect("write it");
        fs::rename(&other, folder.join("trace.stream.1.0.bin")).expect("replace it");
    });
    assert_eq!(fs::read(drained.path(1)).expect("it is there"), b"something else");
    drained.check(2, HALF + 1, HALF);
}

#[test]
fn the_file_is_cut_to_nothing() {
    let drained = Drained::with("gone-cut", |folder| {
        File::create(folder.join("trace.stream.1.0.bin")).expect("cut it");
    });
    assert!(drained.said.contains("was cut short while it was written to"), "{}", drained.said);
    assert_eq!(fs::metadata(drained.path(1)).expect("it is there").len(), 0);
    drained.check(2, HALF + 1, HALF);
}

/// Where a chunk ends that is about in the middle.
fn a_chunks_end(path: &Path) -> usize {
    let bytes = fs::read(path).expect("read it");
    let mut at = FILE_HEADER_BYTES;
    while at < bytes.len() / 2 {
        let header = bytes[at..at + CHUNK_HEADER_BYTES].try_into().expect("a header");
        let header = ChunkHeader::parse(header, ByteOrder::NATIVE);
        at += CHUNK_HEADER_BYTES + header.zstd_len as usize;
    }
    at
}

#[test]
fn what_stands_in_front_of_the_cut_is_delivered() {
    let drained = Drained::with("gone-part", |folder| {
        let path = folder.join("trace.stream.1.0.bin");
        let file = File::options().write(true).open(&path).expect("open it");
        // In the middle of a chunk.
        file.set_len(a_chunks_end(&path) as u64 + 5).expect("cut it");
    });
    let path = drained.path(1);
    let file = File::options().write(true).open(&path).expect("open it");
    file.set_len(fs::metadata(&path).expect("it is there").len() - 5).expect("cut it");
    let kept = read_capture(&path).0.calls_of(7).len() as u64;
    assert!((1..HALF).contains(&kept), "{kept}");
    drained.check(2, HALF + 1, HALF - kept);
}

#[test]
fn the_folder_is_removed_and_cannot_be_made_again() {
    let drained = Drained::with("gone-parent", |folder| {
        fs::remove_dir_all(folder).expect("remove it");
        fs::write(folder, "a file").expect("put something in its place");
    });
    let said = &drained.said;
    assert_eq!(drained.code, Some(1), "{said}");
    assert!(said.contains("file: 0 delivered, 100000 dropped"), "{said}");
    assert!(said.contains("unaccounted=0"), "{said}");
}
