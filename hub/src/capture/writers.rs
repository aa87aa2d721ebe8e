//! What a capture of events has of each writer, in a file beside it: `trace.stream.<id>.writers`.
//!
//! One slot a thread, in the order in which they came. The slot that was stored last may be missing or
//! damaged where the server was killed: the position has it, too.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use callsight_format::{ByteOrder, crc32c};

use crate::session::WriterPart;

/// A writer, a checksum, and nothing.
const SLOT_BYTES: usize = WriterPart::BYTES + 8;

/// The file.
pub(super) struct WritersFile {
    file: File,
    path: PathBuf,
}

impl WritersFile {
    /// A new one, in place of one that is there.
    pub fn create(path: PathBuf) -> io::Result<WritersFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        Ok(WritersFile { file, path })
    }

    /// The one that is there.
    pub fn open(path: PathBuf) -> io::Result<WritersFile> {
        let file = OpenOptions::new().write(true).open(&path)?;
        Ok(WritersFile { file, path })
    }

    /// Says what there is of the writer `at`.
    pub fn store(&mut self, at: usize, writer: &WriterPart) -> io::Result<()> {
        let mut slot = writer.to_bytes().to_vec();
        slot.extend(crc32c(&slot).to_le_bytes());
        slot.resize(SLOT_BYTES, 0);
        self.file.write_all_at(&slot, (at * SLOT_BYTES) as u64)
    }

    /// Removes it, as it is not true any more.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What such a file says, each at its place; `None` where a slot is not whole, or nothing at all where
/// there is no file.
pub(super) fn read(path: &Path) -> Vec<Option<WriterPart>> {
    let slots = fs::read(path).unwrap_or_default();
    slots.chunks(SLOT_BYTES).map(parse).collect()
}

fn parse(slot: &[u8]) -> Option<WriterPart> {
    let writer = slot.get(..WriterPart::BYTES)?;
    let is_whole = ByteOrder::Little.u32(slot, WriterPart::BYTES) == Some(crc32c(writer));
    WriterPart::parse(writer).filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_read_as_it_was_stored_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("trace.stream.1.writers");
        let writer = |tid| WriterPart { tid, pid: 7, start: 1 << 40, end: 9, ..Default::default() };
        let mut file = WritersFile::create(path.clone()).expect("a file");
        for at in [0, 2] {
            file.store(at, &writer(at as u32)).expect("store");
        }
        assert_eq!(read(&path), [Some(writer(0)), None, Some(writer(2))]);
        let whole = fs::read(&path).expect("read");
        for at in 0..WriterPart::BYTES + 4 {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(&path, damaged).expect("write");
            assert_eq!(read(&path), [None, None, Some(writer(2))], "byte {at}");
        }
        assert_eq!(read(&dir.path().join("none")), []);
    }
}
