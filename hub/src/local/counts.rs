//! What a ring counts as dropped: by each writer, and by those that have no place in it (any more).

use std::mem::offset_of;

use callsight_format::{
    Cause, RING_CAUSES, RING_CONTROL_OFFSET, RING_WRITER_BYTES, RING_WRITERS_OFFSET, RingControl,
    RingWriter,
};

use super::process::ProcessId;
use super::ring::{Bytes, RingError, RingFile};
use crate::losses::Losses;

/// The counts of a ring, at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// The slots that are somebody's.
    pub writers: Vec<WriterCount>,
    /// By threads that found no slot.
    pub no_slot: u64,
    /// In slots that were given back, and torn records of any writer.
    pub retired: Losses,
    /// Records emitted in slots that were given back.
    pub retired_emitted: u64,
}

/// A slot: whose it is now, and what all threads that had it dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriterCount {
    pub slot: u64,
    pub process: ProcessId,
    pub tid: u32,
    pub dropped: Losses,
    /// It has left out calls in a pause, and no record tells that.
    pub owes_pause: bool,
}

impl Counts {
    /// Reads them from a ring as it is now.
    pub fn read(ring: &RingFile) -> Result<Counts, RingError> {
        let start = ring.read(0, ring.layout().pages_offset as usize)?;
        Ok(Counts::of(&start, ring.layout().slot_count))
    }

    /// Reads them from the bytes before the pages.
    pub fn of(start: &Bytes, slot_count: u32) -> Counts {
        let control = |at: usize| start.u64(RING_CONTROL_OFFSET + at);
        let writers = (0..u64::from(slot_count)).map(|slot| WriterCount::of(start, slot));
        Counts {
            writers: writers.filter(|writer| writer.process.pid != 0).collect(),
            no_slot: control(offset_of!(RingControl, no_slot)),
            retired: by_cause(
                start,
                RING_CONTROL_OFFSET + offset_of!(RingControl, retired_dropped),
            ),
            retired_emitted: control(offset_of!(RingControl, retired_emitted)),
        }
    }

    /// All that is dropped.
    pub fn dropped(&self) -> Losses {
        let writers = self.writers.iter().map(|writer| &writer.dropped);
        let sum = writers.fold(self.retired, Losses::plus);
        sum.plus(&self.of_no_slot())
    }

    /// What is counted of no writer that is named, and may be of `process`. The slots of one that is
    /// alive are its own as long as it is: what others gave back is none of its business.
    pub fn of_nobody(&self, is_alive: bool) -> Losses {
        match is_alive && self.retired_emitted > 0 {
            true => self.of_no_slot(),
            false => self.retired.plus(&self.of_no_slot()),
        }
    }

    fn of_no_slot(&self) -> Losses {
        let mut losses = Losses::default();
        losses.add(Cause::NoSlot, self.no_slot);
        losses
    }
}

impl WriterCount {
    fn of(start: &Bytes, slot: u64) -> WriterCount {
        let at = RING_WRITERS_OFFSET + slot as usize * RING_WRITER_BYTES;
        let pid = start.u32(at + offset_of!(RingWriter, pid));
        WriterCount {
            slot,
            process: ProcessId { pid, start: start.u64(at + offset_of!(RingWriter, start)) },
            tid: start.u32(at + offset_of!(RingWriter, tid)),
            dropped: by_cause(start, at + offset_of!(RingWriter, dropped)),
            owes_pause: start.u16(at + offset_of!(RingWriter, pause_untold)) != 0,
        }
    }
}

/// Counts by cause that stand one behind the other.
fn by_cause(bytes: &Bytes, at: usize) -> Losses {
    let mut losses = Losses::default();
    for (index, cause) in Cause::all().into_iter().take(RING_CAUSES).enumerate() {
        losses.add(cause, bytes.u64(at + 8 * index));
    }
    losses
}
