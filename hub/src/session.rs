//! One stream from its handshake to its end: items → sinks, and an account of every event.
//!
//! Free of sockets. What a person should see at once goes to `say`.

use std::time::{Duration, Instant};

use callsight_format::{ByteOrder, Cause};

use crate::stream::{Item, Sender, StreamEnd};
use crate::{Batch, Ending, LossWatch, Losses, SessionMeta, Sink, SinkTally};

/// How often growing losses are told while a stream runs.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// What became of the events of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Enters and exits that came.
    pub received_events: u64,
    /// Events lost before they got here, as the sender says.
    pub lost_before: Losses,
    /// Chunks of types that were not known.
    pub unknown_chunks: u64,
    /// Whether the sender said who it is: then it also says when it is done.
    pub named: bool,
    /// Whether the sender said that it is done.
    pub ended: bool,
    /// By sink.
    pub sinks: Vec<SinkTally>,
}

impl Tally {
    /// Enters and exits in the first sink, which is the capture.
    pub fn stored_events(&self) -> u64 {
        self.sinks.first().map_or(0, |sink| sink.stored_events)
    }

    /// What did not reach the first sink, on the way or there.
    pub fn dropped_events(&self) -> Losses {
        self.sinks
            .first()
            .map_or(self.lost_before, |sink| self.lost_before.plus(&sink.dropped_events))
    }
}

/// For people: `10 events, 1 segment, 7 dropped: 7 full`.
impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let segments = self.sinks.first().map_or(0, |sink| sink.segments);
        let dropped = self.dropped_events();
        let events = counted(self.stored_events(), "event");
        write!(f, "{events}, {}, {} dropped", counted(segments, "segment"), dropped.sum())?;
        if dropped.sum() > 0 {
            write!(f, ": {}", dropped.by_cause())?;
        }
        match self.unknown_chunks {
            0 => Ok(()),
            chunks => write!(f, "; {} of unknown type skipped", counted(chunks, "chunk")),
        }
    }
}

/// `1 event`, `2 events`.
pub(crate) fn counted(number: impl Into<u64>, what: &str) -> String {
    match number.into() {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// A sink of a session.
struct Attached {
    sink: Box<dyn Sink>,
    trouble_told: bool,
}

impl Attached {
    fn tell_trouble(&mut self, say: &dyn Fn(&str)) {
        if let Some(trouble) = self.sink.trouble().filter(|_| !self.trouble_told) {
            say(&format!("{}: {trouble}", self.sink.name()));
            self.trouble_told = true;
        }
    }
}

/// A running session.
pub struct Session {
    order: ByteOrder,
    sinks: Vec<Attached>,
    watch: LossWatch,
    /// Records received, markers included: what [`StreamEnd::delivered_records`] counts.
    records: u64,
    noticed_events: u64,
    next_notice: Option<Instant>,
    end: Option<StreamEnd>,
    tally: Tally,
}

impl Session {
    /// Starts a session with all of `sinks`.
    ///
    /// # Errors
    /// The first sink that cannot begin, and why.
    pub fn start(
        meta: &SessionMeta,
        mut sinks: Vec<Box<dyn Sink>>,
    ) -> Result<Session, (String, std::io::Error)> {
        for sink in &mut sinks {
            sink.init(meta).map_err(|error| (sink.name(), error))?;
        }
        Ok(Session {
            order: meta.order,
            sinks: sinks.into_iter().map(|sink| Attached { sink, trouble_told: false }).collect(),
            watch: LossWatch::default(),
            records: 0,
            noticed_events: 0,
            next_notice: None,
            end: None,
            tally: Tally::default(),
        })
    }

    /// Takes what a stream carries.
    pub fn take(&mut self, item: Item<'_>, say: &dyn Fn(&str)) {
        match item {
            Item::Events(bytes) => self.take_events(bytes, say),
            Item::Dropped { events } => self.take_notice(events, say),
            Item::Sender(sender) => self.take_sender(&sender, say),
            Item::End(end) => self.end = Some(end),
            Item::Unknown { .. } => self.tally.unknown_chunks += 1,
        }
    }

    /// Ends every sink and gives the account. `cut_records` were announced and did not come.
    pub fn finish(mut self, cut_records: u64, say: &dyn Fn(&str)) -> Tally {
        let mut lost_before = self.watch.told().raised_to(&self.stated());
        lost_before.add(Cause::Torn, cut_records);
        self.tally.lost_before = lost_before;
        self.tally.ended = self.end.is_some();
        self.say_how_it_ended(say);
        // A sender of version 2 never says that it is done; in the middle of a chunk it was not.
        let cut = self.end.is_none() && (self.tally.named || cut_records > 0);
        let ending = Ending { lost_before, cut };
        for attached in &mut self.sinks {
            let tally = attached.sink.close(&ending);
            attached.tell_trouble(say);
            self.tally.sinks.push(tally);
        }
        self.tally
    }

    fn take_events(&mut self, bytes: &[u8], say: &dyn Fn(&str)) {
        let batch = Batch::new(bytes, self.order);
        self.watch.observe(batch.bytes(), self.order);
        self.records += batch.records();
        self.tally.received_events += batch.hook_events();
        for attached in &mut self.sinks {
            attached.sink.write(&batch);
            attached.tell_trouble(say);
        }
    }

    fn take_notice(&mut self, events: u64, say: &dyn Fn(&str)) {
        if events <= self.noticed_events {
            return;
        }
        self.noticed_events = events;
        if self.next_notice.is_none_or(|at| Instant::now() >= at) {
            self.next_notice = Some(Instant::now() + NOTICE_INTERVAL);
            say(&format!("the sender has dropped {events} events so far (its ring was full)"));
        }
    }

    fn take_sender(&mut self, sender: &Sender, say: &dyn Fn(&str)) {
        if std::mem::replace(&mut self.tally.named, true) {
            return;
        }
        say(&format!("{sender}"));
        for Attached { sink, .. } in &mut self.sinks {
            if let Err(error) = sink.describe(sender) {
                say(&format!("{}: who is sending could not be stored ({error})", sink.name()));
            }
        }
    }

    /// What the sender says it lost. One that says who it is tells its losses in the events and
    /// at its end: what it has not told yet, the next sender of its ring will, so its notices
    /// count nothing. For others they do. The total of a notice has no cause; what goes beyond
    /// the causes known is for want of room in the ring, the only loss of a version 2 sender.
    fn stated(&self) -> Losses {
        let mut stated = match &self.end {
            Some(end) => end.dropped_events,
            None => self.watch.told(),
        };
        if self.tally.named {
            return stated;
        }
        stated.add(Cause::Full, self.noticed_events.saturating_sub(stated.sum()));
        stated
    }

    fn say_how_it_ended(&self, say: &dyn Fn(&str)) {
        let came = self.records;
        match &self.end {
            None if self.tally.named => {
                say("the stream was cut off: its sender never said that it is done, \
                 so what it still held is lost and not counted")
            }
            Some(StreamEnd { delivered_records: Some(sent), .. }) if *sent > came => {
                say(&format!("its sender counts {sent} records sent, but {came} came"));
            }
            _ => {}
        }
    }
}
