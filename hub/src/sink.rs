//! A destination of a session's events.
//!
//! A sink that fails says so and counts what it could not take; it never stops the session, the
//! traced program or another sink. A sink is an implementation of [`Sink`]:
//!
//! ```
//! use callsight_hub::{Batch, Ending, SessionMeta, Sink, SinkTally};
//!
//! /// Counts calls and keeps nothing.
//! #[derive(Default)]
//! struct Counter(SinkTally);
//!
//! impl Sink for Counter {
//!     fn name(&self) -> String {
//!         "counter".to_owned()
//!     }
//!     fn init(&mut self, _meta: &SessionMeta) -> std::io::Result<()> {
//!         Ok(())
//!     }
//!     fn write(&mut self, batch: &Batch<'_>) {
//!         self.0.stored_events += batch.hook_events();
//!     }
//!     fn close(&mut self, _ending: &Ending) -> SinkTally {
//!         std::mem::take(&mut self.0)
//!     }
//! }
//! ```

use std::io;
use std::mem::offset_of;

use callsight_format::{ByteOrder, EVENT_BYTES, Event, KIND_ENTER, KIND_EXIT, Origin};

use crate::Losses;
use crate::stream::Sender;

/// What is known of a session when it starts.
#[derive(Clone, Debug)]
pub struct SessionMeta {
    /// Number of the session, unique in its directory of captures.
    pub id: u32,
    /// Where it comes from: the address of a device.
    pub peer: String,
    /// What its clock words mean.
    pub origin: Origin,
    /// Byte order of its events.
    pub order: ByteOrder,
}

/// Whole events as they came, in the sender's byte order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl<'a> Batch<'a> {
    /// A batch of `bytes`, without a part of an event at the end.
    pub fn new(bytes: &'a [u8], order: ByteOrder) -> Batch<'a> {
        Batch { bytes: &bytes[..bytes.len() - bytes.len() % EVENT_BYTES], order }
    }

    /// The events as bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Their byte order.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// How many events there are, markers included.
    pub fn records(&self) -> u64 {
        (self.bytes.len() / EVENT_BYTES) as u64
    }

    /// How many of them are enters and exits.
    pub fn hook_events(&self) -> u64 {
        hook_events(self.bytes)
    }
}

/// How many of these events are enters and exits; markers and counters are about them.
pub(crate) fn hook_events(events: &[u8]) -> u64 {
    let kind = |event: &&[u8]| matches!(event[offset_of!(Event, kind)], KIND_ENTER | KIND_EXIT);
    events.chunks_exact(EVENT_BYTES).filter(kind).count() as u64
}

/// What became of the events a sink was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkTally {
    /// Enters and exits that arrived.
    pub stored_events: u64,
    /// Enters and exits that did not.
    pub dropped_events: Losses,
    /// Files or connections it took.
    pub segments: u32,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// What was lost on the way here, whether or not a note of the events tells it. A sink adds
    /// what stands in no note that it has kept.
    pub lost_before: Losses,
    /// The stream broke off: what its sender still held is lost and not counted.
    pub cut: bool,
}

/// A destination of events. See the [module](self) for an example.
pub trait Sink: Send {
    /// What it is called in messages.
    fn name(&self) -> String;

    /// Makes ready for a session.
    ///
    /// # Errors
    /// Why it cannot; it is then given nothing.
    fn init(&mut self, meta: &SessionMeta) -> io::Result<()>;

    /// Learns who is sending. May come at any time, once.
    ///
    /// # Errors
    /// Why that could not be stored; events go on.
    fn describe(&mut self, sender: &Sender) -> io::Result<()> {
        let _ = sender;
        Ok(())
    }

    /// Takes events, or counts them as dropped.
    fn write(&mut self, batch: &Batch<'_>);

    /// Why it takes nothing more, for people; `None` while it does.
    fn trouble(&self) -> Option<&str> {
        None
    }

    /// Ends, and gives the account.
    fn close(&mut self, ending: &Ending) -> SinkTally;
}
