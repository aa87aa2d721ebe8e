//! The sink that keeps the latest events of every writer in memory, for whoever looks in.
//!
//! All sessions of a server share one model; what it holds is bounded, oldest out first.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use callsight_format::Event;

use crate::{Batch, Content, SessionMeta, Sink, Unpacking};

/// Most writers; a new one takes the place of the one that was silent longest.
const MAX_WRITERS: usize = 1024;
/// Events kept of each: 32 KiB.
const LATEST_EVENTS: usize = 1024;

/// A thread that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId {
    /// The session it is of.
    pub session: u32,
    /// Its process; 0 where its events do not say.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

#[derive(Default)]
struct Writer {
    latest: VecDeque<Event>,
    /// When something came last, as a count of batches.
    seen_at: u64,
}

#[derive(Default)]
struct State {
    writers: HashMap<WriterId, Writer>,
    sessions: usize,
    events: u64,
    batches: u64,
}

/// See the [module](self). Clones are the same model.
#[derive(Clone, Default)]
pub struct Model(Arc<Mutex<State>>);

/// What a model holds, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Sessions that are open.
    pub sessions: usize,
    /// Writers of which something is held.
    pub writers: usize,
    /// Enters and exits that came so far.
    pub events: u64,
}

impl Model {
    /// A sink that feeds it.
    pub fn sink(&self) -> Box<dyn Sink> {
        Box::new(ModelSink { model: self.clone(), session: None, unpacking: Unpacking::default() })
    }

    /// What is held, in numbers.
    pub fn overview(&self) -> Overview {
        let state = self.state();
        Overview { sessions: state.sessions, writers: state.writers.len(), events: state.events }
    }

    /// The writers, in order.
    pub fn writers(&self) -> Vec<WriterId> {
        let mut writers: Vec<_> = self.state().writers.keys().copied().collect();
        writers.sort_unstable();
        writers
    }

    /// The latest events of a writer, oldest first.
    pub fn latest(&self, writer: WriterId) -> Vec<Event> {
        let state = self.state();
        state
            .writers
            .get(&writer)
            .map_or(Vec::new(), |writer| writer.latest.iter().copied().collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn writer(&mut self, id: WriterId) -> &mut Writer {
        if self.writers.len() >= MAX_WRITERS && !self.writers.contains_key(&id) {
            let silent = self.writers.iter().min_by_key(|(_, writer)| writer.seen_at);
            if let Some(silent) = silent.map(|(id, _)| *id) {
                self.writers.remove(&silent);
            }
        }
        let seen_at = self.batches;
        let writer = self.writers.entry(id).or_default();
        writer.seen_at = seen_at;
        writer
    }
}

struct ModelSink {
    model: Model,
    session: Option<u32>,
    unpacking: Unpacking,
}

impl Sink for ModelSink {
    fn name(&self) -> String {
        "model".to_owned()
    }

    fn init(&mut self, meta: &SessionMeta) -> io::Result<()> {
        self.session = Some(meta.id);
        self.model.state().sessions += 1;
        Ok(())
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        let pid = if let Content::Block(header) = batch.content() { header.pid } else { 0 };
        let session = self.session.unwrap_or_default();
        let mut state = self.model.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.batches += 1;
        state.events += batch.hook_events();
        let show = |event: &Event| {
            let latest = &mut state.writer(WriterId { session, pid, tid: event.tid }).latest;
            if latest.len() == LATEST_EVENTS {
                latest.pop_front();
            }
            latest.push_back(*event);
        };
        self.unpacking.events(batch, show).map_err(io::Error::other)
    }
}

impl Drop for ModelSink {
    fn drop(&mut self) {
        if let Some(session) = self.session {
            let mut state = self.model.state();
            state.sessions -= 1;
            state.writers.retain(|writer, _| writer.session != session);
        }
    }
}
