//! Rings in shared memory: any bytes in one.

use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;

use callsight_format::{
    COMMAND_RECORD, EVENT_BYTES, PAGE_HEADER_BYTES, RING_CONTROL_OFFSET, RING_MAGIC, RING_VERSION,
    RingControl, RingHeader, RingLayout,
};
use tempfile::TempDir;

#[allow(dead_code, reason = "the files are taken whole")]
#[path = "../../hub/src/local/counts.rs"]
mod counts;
#[allow(dead_code, reason = "the files are taken whole")]
#[path = "../../hub/src/local/pages.rs"]
mod pages;
#[allow(dead_code, reason = "the files are taken whole")]
#[path = "../../hub/src/local/process.rs"]
mod process;
#[allow(dead_code, reason = "the files are taken whole")]
#[path = "../../hub/src/local/ring.rs"]
mod ring;
#[allow(dead_code, reason = "the files are taken whole")]
#[path = "../../hub/src/local/state.rs"]
mod state;

use counts::Counts;
use pages::pages_of;
use process::ProcessId;
use ring::RingFile;

/// The smallest ring: 4 pages.
const CAPACITY: u64 = 4096;
/// Whose pages are copied.
const PROCESS: ProcessId = ProcessId { pid: 7, start: 9 };

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir_in("/dev/shm").expect("a folder");
}

/// Any bytes as a ring, or a right ring with some words changed, and cut. It is refused, or what is
/// read of it stays within its bounds.
pub fn any_ring(data: &[u8]) {
    let [mode, low, high, rest @ ..] = data else { return };
    let mut bytes = if mode & 1 == 0 { changed(rest) } else { rest.to_vec() };
    if mode & 2 != 0 {
        bytes.truncate(usize::from(u16::from_le_bytes([*low, *high])));
    }
    FOLDER.with(|folder| {
        let path = folder.path().join("ring");
        fs::write(&path, bytes).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        if let Ok(ring) = RingFile::open_path(&path) {
            check(&ring);
        }
    });
}

/// A ring that is right, but for the words that `changes` says: an offset of two bytes, and the
/// word.
fn changed(changes: &[u8]) -> Vec<u8> {
    let layout = RingLayout::of(CAPACITY);
    let mut ring = vec![0; layout.total_bytes as usize];
    let mut put = |at: usize, word: u32| ring[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    put(offset_of!(RingHeader, version), RING_VERSION);
    put(offset_of!(RingHeader, capacity), layout.capacity);
    let control = |at: usize| RING_CONTROL_OFFSET + at;
    put(control(offset_of!(RingControl, page_bytes)), layout.page_bytes);
    put(control(offset_of!(RingControl, page_count)), layout.page_count);
    put(control(offset_of!(RingControl, slot_count)), layout.slot_count);
    put(control(offset_of!(RingControl, pages_offset)), layout.pages_offset);
    put(control(offset_of!(RingControl, command)), COMMAND_RECORD);
    ring[..RING_MAGIC.len()].copy_from_slice(&RING_MAGIC);
    for change in changes.as_chunks::<10>().0 {
        let (at, word) = change.split_at(2);
        let at = usize::from(u16::from_le_bytes([at[0], at[1]])) % (ring.len() - 7);
        ring[at..at + 8].copy_from_slice(word);
    }
    ring
}

fn check(ring: &RingFile) {
    let _ = (ring.origin(), ring.taken_bytes());
    let state = ring.state().expect("what was opened can be read");
    assert!(state.used_bytes <= u64::from(state.capacity), "{state:?}");
    assert!(state.held_events * EVENT_BYTES as u64 <= state.used_bytes, "{state:?}");
    let _ = (state.dropped_events(), state.is_used());
    let layout = ring.layout();
    if ring.version() != RING_VERSION {
        return;
    }
    let slots = (layout.page_bytes as usize - PAGE_HEADER_BYTES) / EVENT_BYTES;
    let writers = pages_of(ring, PROCESS).expect("what was opened can be read");
    for pages in writers.values() {
        assert!(pages.len() <= layout.page_count as usize);
        assert!(pages.values().all(|page| page.slots.len() <= slots));
    }
    let counts = Counts::read(ring).expect("what was opened can be read");
    assert!(counts.writers.len() <= layout.slot_count as usize);
    assert!(counts.of_nobody(true).sum() <= counts.of_nobody(false).sum());
    assert!(counts.of_nobody(false).sum() <= counts.dropped().sum());
}
