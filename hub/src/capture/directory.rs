//! The folder of captures: numbers that are nobody else's, files that were not there before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

use super::position::{self, Position};
use super::resume::known_in;
use super::segment::Segment;
use crate::session::RingId;
use crate::stream::{Sender, StreamId};

/// How many numbers in a row may turn out taken by others before we give up.
const MAX_TRIES: u32 = 10_000;

/// A folder that takes captures of streams. Clones share the numbering.
#[derive(Clone, Debug)]
pub struct CaptureDir {
    path: PathBuf,
    next_id: Arc<AtomicU32>,
    /// What is in which capture; not known until somebody asks.
    known: Arc<Mutex<Option<Known>>>,
}

/// What the captures in a folder are of.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The newest capture of each stream.
    pub streams: HashMap<StreamId, u32>,
    /// The captures in chunks that earlier servers have left of each ring.
    pub chunks: HashMap<RingId, BTreeSet<u32>>,
    /// Of these, those in which a stream goes on here, and the last block that it had.
    pub taken_up: HashMap<u32, u64>,
}

impl Known {
    /// The captures in chunks that earlier servers have left of a ring, and how far each is theirs.
    pub fn left_of(&self, ring: RingId) -> Vec<(u32, u64)> {
        let ids = self.chunks.get(&ring).into_iter().flatten();
        ids.map(|id| (*id, self.taken_up.get(id).copied().unwrap_or(u64::MAX))).collect()
    }
}

/// A number of a capture and its first, empty file.
#[derive(Debug)]
pub struct Reserved {
    pub(super) directory: CaptureDir,
    pub(super) id: u32,
    pub(super) file: File,
}

impl Reserved {
    /// The number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl CaptureDir {
    /// Makes the folder where it is missing; numbers go on after the highest one in it.
    ///
    /// # Errors
    /// Why the folder cannot be made or read.
    pub fn open(path: &Path) -> io::Result<CaptureDir> {
        fs::create_dir_all(path)?;
        let mut highest = 0;
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            highest = highest.max(name.to_str().and_then(stream_id).unwrap_or(0));
        }
        let next_id = Arc::new(AtomicU32::new(highest.saturating_add(1)));
        Ok(CaptureDir { path: path.to_owned(), next_id, known: Arc::default() })
    }

    /// Takes the next number and makes its first file.
    ///
    /// # Errors
    /// Why no file can be made.
    pub fn reserve(&self) -> io::Result<Reserved> {
        for _ in 0..MAX_TRIES {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            match self.new_segment(id, 0) {
                // Another server writes here too.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => return Ok(Reserved { directory: self.clone(), id, file }),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// A further segment with its head, or no file at all.
    pub(super) fn create_segment(&self, id: u32, seq: u32, head: &[u8]) -> io::Result<Segment> {
        let mut segment = Segment::new(self.new_segment(id, seq)?);
        let begun = segment.append_whole(head);
        begun.inspect_err(|_| self.discard_segment(id, seq))?;
        Ok(segment)
    }

    /// Removes a segment that could not get its head.
    pub(super) fn discard_segment(&self, id: u32, seq: u32) {
        let _ = fs::remove_file(self.segment_path(id, seq));
    }

    /// Stores who is sending in `trace.stream.<id>.json`, whole or not at all.
    pub(super) fn write_sender(&self, id: u32, sender: &Sender) -> io::Result<()> {
        let path = self.path.join(format!("trace.stream.{id}.json"));
        let part = path.with_extension("json.part");
        let mut json = serde_json::to_string_pretty(&sender.to_json())?;
        json.push('\n');
        let stored = fs::write(&part, json).and_then(|()| fs::rename(&part, &path));
        stored.inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })
    }

    /// The capture that has a stream.
    pub(super) fn capture_of(&self, stream: StreamId) -> Option<u32> {
        self.with_known(|known| known.streams.get(&stream).copied())
    }

    /// Remembers which capture has a stream.
    pub(super) fn remember(&self, stream: StreamId, id: u32) {
        self.with_known(|known| known.streams.insert(stream, id));
    }

    /// Whether what is there of a ring is in events; `None` where there is nothing, or both.
    pub(crate) fn is_unpacked(&self, ring: RingId) -> Option<bool> {
        let in_chunks = self.with_known(|known| known.chunks.contains_key(&ring));
        let in_events = self.positions().values().any(|(_, position)| position.part.ring == ring);
        (in_chunks != in_events).then_some(in_events)
    }

    pub(super) fn with_known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        look(known.get_or_insert_with(|| known_in(&self.path)))
    }

    /// Opens a segment that is there.
    pub(super) fn open_segment(&self, id: u32, seq: u32) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.segment_path(id, seq))
    }

    /// The numbers of the segments that are there, in order.
    pub(super) fn segments(&self, id: u32) -> Vec<u32> {
        let mut seqs: Vec<u32> =
            segments_in(&self.path).filter_map(|(of, seq, _)| (of == id).then_some(seq)).collect();
        seqs.sort_unstable();
        seqs
    }

    /// A file that was not there before, locked so that no other server takes a stream up that goes on
    /// here: where there are no locks there is nothing to be done about that. The folder is made again
    /// where somebody has removed it.
    fn new_segment(&self, id: u32, seq: u32) -> io::Result<File> {
        let path = self.segment_path(id, seq);
        let file = match new_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.path)?;
                new_file(&path)
            }
            made => made,
        }?;
        let _ = lock(&file);
        Ok(file)
    }

    /// The file that says how far a capture of events has got.
    pub(super) fn position_path(&self, id: u32) -> PathBuf {
        self.path.join(format!("trace.stream.{id}.position"))
    }

    /// The file that says what a capture of events has of each writer.
    pub(super) fn writers_path(&self, id: u32) -> PathBuf {
        self.path.join(format!("trace.stream.{id}.writers"))
    }

    /// What is said of the captures of events that are here, by their numbers.
    pub(super) fn positions(&self) -> BTreeMap<u32, (StreamId, Position)> {
        let all = position::all_in(&self.path);
        all.map(|(id, stream, position)| (id, (stream, position))).collect()
    }

    fn segment_path(&self, id: u32, seq: u32) -> PathBuf {
        self.path.join(format!("trace.stream.{id}.{seq}.bin"))
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// Takes a capture for ourselves, by its first file.
pub(super) fn lock(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

/// The segments of captures of streams in a folder: capture, number, path.
pub(super) fn segments_in(folder: &Path) -> impl Iterator<Item = (u32, u32, PathBuf)> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let numbers = name.to_str()?.strip_prefix("trace.stream.")?.strip_suffix(".bin")?;
        let (id, seq) = numbers.split_once('.')?;
        Some((id.parse().ok()?, seq.parse().ok()?, entry.path()))
    })
}

/// The number in the name of anything that belongs to a capture of a stream.
pub(super) fn stream_id(name: &str) -> Option<u32> {
    name.strip_prefix("trace.stream.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_after_the_highest_one_whatever_its_file() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["trace.stream.9.3.bin", "trace.stream.12.json", "trace.7.8.0.bin", "x"] {
            fs::write(dir.path().join(name), "").expect("write");
        }
        let captures = CaptureDir::open(dir.path()).expect("open");
        assert_eq!(captures.reserve().expect("reserve").id(), 13);
        assert_eq!(captures.clone().reserve().expect("reserve").id(), 14);
    }

    #[test]
    fn two_servers_in_one_folder_never_share_a_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let one = CaptureDir::open(dir.path()).expect("open");
        let other = CaptureDir::open(dir.path()).expect("open");
        let ids = [&one, &other, &one].map(|captures| captures.reserve().expect("reserve").id());
        assert_eq!(ids, [1, 2, 3]);
    }

    #[test]
    fn who_is_sending_is_stored_whole_beside_the_capture() {
        let dir = tempfile::tempdir().expect("a folder");
        let captures = CaptureDir::open(dir.path()).expect("open");
        let sender = Sender { host: "board \"7\"".to_owned(), ..Sender::default() };
        captures.write_sender(3, &sender).expect("write");
        let json = fs::read_to_string(dir.path().join("trace.stream.3.json")).expect("read");
        assert_eq!(json, "{\n  \"host\": \"board \\\"7\\\"\"\n}\n");
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1);
    }
}
