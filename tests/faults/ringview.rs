//! A ring as anyone who may read it sees it.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use callsight_format::{
    ByteOrder, PageHeader, RING_CONTROL_OFFSET, RING_WRITER_BYTES, RING_WRITERS_OFFSET,
    RingControl, RingHeader, RingLayout, RingWriter,
};
use callsight_tests::Ring;

/// The bytes of a ring at one moment.
pub struct RingView(Vec<u8>);

/// The shared memory object of a ring.
pub fn ring_file(ring: &Ring) -> PathBuf {
    Path::new("/dev/shm").join(ring.name().trim_start_matches('/'))
}

/// Process id of the drain that has a ring, 0 for none; `None` where there is no ring.
pub fn drain_pid(ring: &Ring) -> Option<u32> {
    let mut bytes = [0; 4];
    let at = RING_CONTROL_OFFSET + offset_of!(RingControl, drain_pid);
    File::open(ring_file(ring)).ok()?.read_exact_at(&mut bytes, at as u64).ok()?;
    Some(u32::from_ne_bytes(bytes))
}

impl RingView {
    /// Reads it; `None` where there is none, or none that is whole.
    pub fn of(ring: &Ring) -> Option<RingView> {
        let bytes = std::fs::read(ring_file(ring)).ok()?;
        let view = RingView(bytes);
        (view.0.len() as u64 == view.layout()?.total_bytes).then_some(view)
    }

    fn layout(&self) -> Option<RingLayout> {
        let capacity = ByteOrder::NATIVE.u32(&self.0, offset_of!(RingHeader, capacity))?;
        Some(RingLayout::of(u64::from(capacity)))
    }

    fn u32(&self, at: usize) -> u32 {
        ByteOrder::NATIVE.u32(&self.0, at).expect("inside the ring")
    }

    fn u64(&self, at: usize) -> u64 {
        ByteOrder::NATIVE.u64(&self.0, at).expect("inside the ring")
    }

    /// The processes that have writer slots or pages.
    pub fn holders(&self) -> Vec<u32> {
        let layout = self.layout().expect("read before");
        let slots = (0..layout.slot_count as usize)
            .map(|slot| {
                RING_WRITERS_OFFSET + slot * RING_WRITER_BYTES + offset_of!(RingWriter, pid)
            })
            .map(|at| self.u32(at));
        let pages = (0..layout.page_count)
            .map(|page| layout.page_offset(page) as usize)
            .filter(|at| self.u64(at + offset_of!(PageHeader, owner)) != 0)
            .map(|at| self.u32(at + offset_of!(PageHeader, pid)));
        let mut holders: Vec<u32> = slots.chain(pages).filter(|pid| *pid != 0).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }
}
