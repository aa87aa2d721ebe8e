//! A destination of a session's events.
//!
//! Each sink of a session has a thread and a bounded queue of its own, so that none can hold up or
//! harm the session, the traced program or another sink. One that fails or panics is dead from then
//! on, and what it does not get is counted. A sink is an implementation of [`Sink`]:
//!
//! ```
//! use std::collections::HashMap;
//! use std::io;
//!
//! use callsight_format::KIND_ENTER;
//! use callsight_hub::{Batch, SessionMeta, Sink, Unpacking};
//!
//! /// Counts the calls of each function.
//! #[derive(Default)]
//! struct Calls {
//!     by_function: HashMap<u64, u64>,
//!     unpacking: Unpacking,
//! }
//!
//! impl Sink for Calls {
//!     fn name(&self) -> String {
//!         "calls".to_owned()
//!     }
//!     fn init(&mut self, meta: &SessionMeta) -> io::Result<()> {
//!         println!("counting calls of {}", meta.peer);
//!         Ok(())
//!     }
//!     fn write(&mut self, batch: &Batch) -> io::Result<()> {
//!         let count = &mut self.by_function;
//!         self.unpacking
//!             .events(batch, |event| {
//!                 if event.kind == KIND_ENTER {
//!                     *count.entry(event.func).or_default() += 1;
//!                 }
//!             })
//!             .map_err(io::Error::other)
//!     }
//! }
//!
//! // A session runs it, with any other sinks; at the end it says what became of every event.
//! use callsight_format::{ByteOrder, Origin};
//! use callsight_hub::stream::{Chunk, Item};
//! use callsight_hub::Session;
//!
//! let meta = SessionMeta::new(1, "a test", Origin::default(), ByteOrder::NATIVE);
//! let mut session = Session::start(&meta, vec![Box::new(Calls::default())]);
//! let events = [0u8; 64]; // two enters of function 0
//! let say = |line: &str| println!("{line}");
//! session.take(&Chunk { bytes: &[], item: Item::Events(&events) }, &say);
//! let tally = session.finish(0, &say);
//! assert_eq!((tally.sinks[0].delivered_events, tally.sinks[0].unaccounted()), (2, 0));
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use callsight_format::{ByteOrder, Origin};

use crate::stream::StreamId;
use crate::{Batch, Dropped, Losses};

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
    /// Which stream it is, of a sender that packs: then every batch is a chunk as it came.
    pub stream: Option<StreamId>,
    /// Tells a sink that waits for something that the session ends.
    pub closing: Closing,
}

impl SessionMeta {
    /// Of a sender that sends raw events.
    pub fn new(id: u32, peer: &str, origin: Origin, order: ByteOrder) -> SessionMeta {
        let peer = peer.to_owned();
        SessionMeta { id, peer, origin, order, stream: None, closing: Closing::default() }
    }
}

/// Whether a session ends. Clones tell of the same one.
#[derive(Clone, Debug, Default)]
pub struct Closing(Arc<AtomicBool>);

impl Closing {
    /// Whether it does.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The moment by which something must be done.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub fn after(time: Duration) -> Deadline {
        Deadline(Instant::now() + time)
    }

    /// How long there is left.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// How a session ended, for one of its sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// What was lost on the way here, whether or not a note of the events tells it. A sink adds
    /// what stands in no note that it has kept.
    pub lost_before: Losses,
    /// What this sink was not given: its queue was full.
    pub not_given: Dropped,
    /// Records of the sender's ring that no stream brought, and that nobody else tells: most are what
    /// a drain held that was killed.
    pub lost_between: u64,
    /// The stream broke off: what its sender still held is lost and not counted.
    pub cut: bool,
    /// Another stream goes on with the numbers of this one: what is lost in between is counted.
    pub taken_up: bool,
}

/// A destination of events. See the [module](self) for an example.
///
/// All of it is called on a thread of the sink's own, in this order: `name`, `init`, any number of
/// `write` with `dropped` and `trouble` behind each, `flush`, `close`, and once more `dropped` and
/// `trouble`, with `extent`.
///
/// A panic of any of these, or an error of `init` or `write`, is the end of the sink, and of nothing
/// else: it is given nothing more, and that counts as dropped (`sink_dead`). So does the last batch where
/// `write` failed, or `dropped` or `trouble` panicked behind it; of those before, what `dropped` said last
/// stands. Only behind a `flush` that failed or panicked `close` is called all the same.
///
/// Where one of them blocks, `dropped` and `trouble` too, only what is for this sink waits: up to the
/// bound of its queue. One that blocks at the end of its session is left behind on its thread, and what it
/// was not done with counts as dropped.
pub trait Sink: Send {
    /// What it is called in messages.
    fn name(&self) -> String;

    /// Makes ready for a session.
    ///
    /// # Errors
    /// Why it cannot; it is then given nothing.
    fn init(&mut self, meta: &SessionMeta) -> io::Result<()>;

    /// Takes a batch, in whatever time that needs. Batches that come meanwhile wait in a queue of
    /// 16 MiB; when that is full they are dropped for this sink alone, and counted.
    ///
    /// # Errors
    /// Why it takes nothing more, this batch included.
    fn write(&mut self, batch: &Batch) -> io::Result<()>;

    /// Brings what it was given to where it belongs, as far as that is done by the deadline.
    ///
    /// # Errors
    /// Why it could not; what is not there counts in [`Sink::dropped`].
    fn flush(&mut self, deadline: Deadline) -> io::Result<()> {
        let _ = deadline;
        Ok(())
    }

    /// Ends.
    fn close(&mut self, ending: &Ending) {
        let _ = ending;
    }

    /// Events it was given and does not have, by cause, as of now; no more than it was given count. All
    /// others count as delivered.
    fn dropped(&self) -> Losses {
        Losses::default()
    }

    /// What is wrong with it, for people, where it goes on all the same; said when it changes.
    fn trouble(&self) -> Option<&str> {
        None
    }

    /// How much there is of it, for people: `3 segments`.
    fn extent(&self) -> Option<String> {
        None
    }
}
