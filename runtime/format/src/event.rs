//! The event (2): 32 bytes, the same in a window, a file and a stream.

use crate::ByteOrder;

/// Bytes of one [`Event`].
pub const EVENT_BYTES: usize = 32;

/// [`Event::kind`]: a function was entered.
pub const KIND_ENTER: u8 = 0;
/// [`Event::kind`]: a function is about to return.
pub const KIND_EXIT: u8 = 1;
/// [`Event::kind`]: not a call; `func` holds a marker code (`MARK_*`), `call_site` its payload.
pub const KIND_MARKER: u8 = 2;
/// [`Event::kind`]: hardware counter deltas of the exit right before it.
pub const KIND_COUNTERS: u8 = 3;

/// One enter or exit of a function, or a marker.
///
/// `ts` is stored last, with release order: a slot whose `ts` is 0 holds no event yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Clock ticks, or nanoseconds when [`FLAG_TICKS`](crate::FLAG_TICKS) is clear. Never 0.
    pub ts: u64,
    /// Address of the function in the traced process, or the marker code.
    pub func: u64,
    /// Return address in the caller, or the marker payload.
    pub call_site: u64,
    /// Kernel thread id.
    pub tid: u32,
    /// One of `KIND_*`.
    pub kind: u8,
    /// Bits 4 to 27 of the stack pointer at the hook, low byte first; 0 from other producers.
    pub frame: [u8; 3],
}

const _: () = assert!(size_of::<Event>() == EVENT_BYTES);

impl Event {
    /// Decodes the 32 bytes of one event. `None` where `bytes` is shorter.
    #[inline]
    pub fn parse(bytes: &[u8], order: ByteOrder) -> Option<Event> {
        let tail: [u8; 4] = bytes.get(28..32)?.try_into().ok()?;
        Some(Event {
            ts: order.u64(bytes, 0)?,
            func: order.u64(bytes, 8)?,
            call_site: order.u64(bytes, 16)?,
            tid: order.u32(bytes, 24)?,
            kind: tail[0],
            frame: [tail[1], tail[2], tail[3]],
        })
    }

    /// The event as a producer of byte order `order` stores it.
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        bytes[0..8].copy_from_slice(&order.put_u64(self.ts));
        bytes[8..16].copy_from_slice(&order.put_u64(self.func));
        bytes[16..24].copy_from_slice(&order.put_u64(self.call_site));
        bytes[24..28].copy_from_slice(&order.put_u32(self.tid));
        bytes[28] = self.kind;
        bytes[29..32].copy_from_slice(&self.frame);
        bytes
    }

    /// Bits 4 to 27 of the stack pointer at the hook as one number, in units of 16 bytes.
    #[inline]
    pub fn frame_units(&self) -> u32 {
        u32::from_le_bytes([self.frame[0], self.frame[1], self.frame[2], 0])
    }
}

/// Marker (2): the capture reached its budget. Payload: the budget in bytes.
pub const MARK_BUDGET: u64 = 1;
/// Marker (2): free space fell below the floor. Payload: the floor in bytes.
pub const MARK_NO_SPACE: u64 = 2;
/// Marker (2): writing failed. Payload: errno.
pub const MARK_WRITE_ERROR: u64 = 3;
/// Marker (2): the event limit was reached. Payload: the limit in events.
pub const MARK_MAX_EVENTS: u64 = 4;
/// Marker (2): a segment was rotated away. Payload: events lost with it, and with those before it that its
/// own markers tell. `frame` is [`wrap_frame`] of its number, 0 where that is not told. The marker stands
/// before the file is removed: where the file of that number is there, nothing of it was lost.
pub const MARK_WRAP: u64 = 5;

/// What [`Event::frame_units`] of a [`MARK_WRAP`] is for the segment of this number; never 0.
pub fn wrap_frame(number: u32) -> u32 {
    number % 0xff_ffff + 1
}

/// Marker (2): a clock anchor. `ts` is in ticks, the payload is `CLOCK_MONOTONIC` in ns at that
/// instant. The closing one is the last record of a file; any number may stand before it.
pub const MARK_CLOCK: u64 = 6;
/// Markers (2) 7 to 11: set-up of hardware counters. A reader without counters skips them.
pub const MARK_COUNTER_FIRST: u64 = 7;
/// See [`MARK_COUNTER_FIRST`].
pub const MARK_COUNTER_LAST: u64 = 11;
