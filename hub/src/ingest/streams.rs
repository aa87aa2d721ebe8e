//! The open streams by their id: a sender that connects again goes on in the same session.

use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::Session;
use crate::stream::StreamId;
use crate::sync::{AtomicU64, Mutex, MutexGuard, thread};

/// How many streams are remembered that have ended, for senders that did not hear it.
const REMEMBERED: usize = 1024;

/// A stream that is open, on whatever connection.
#[derive(Default)]
pub(super) struct Entry {
    /// Gone when the stream has ended.
    session: Mutex<Option<Session>>,
    /// Which connection it is on: each new one has the next number.
    connection: AtomicU64,
    socket: Mutex<Option<Arc<TcpStream>>>,
}

/// A connection's part in a stream.
pub(super) struct Share {
    entry: Arc<Entry>,
    connection: u64,
}

impl Share {
    /// Of a stream that nobody else can join.
    pub fn alone(session: Session) -> Share {
        let entry = Entry { session: Mutex::new(Some(session)), ..Entry::default() };
        Share { entry: Arc::new(entry), connection: 0 }
    }

    /// Whether another connection has the stream now.
    pub fn is_over(&self) -> bool {
        self.entry.connection.load(Ordering::Acquire) != self.connection
    }

    /// Does something with the session; `None` where it is another connection's, or has ended.
    pub fn with<T>(&self, act: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let mut session = locked(&self.entry.session);
        if self.is_over() { None } else { session.as_mut().map(act) }
    }

    /// Says that this connection is no more; the stream waits for the next.
    pub fn leave(&self) {
        let mut socket = locked(&self.entry.socket);
        if !self.is_over() {
            *socket = None;
        }
    }

    /// Takes the session out to end it, while whoever connects again waits; `None` where it is
    /// another connection's.
    pub fn end<T>(&self, act: impl FnOnce(Session) -> T) -> Option<T> {
        let mut session = locked(&self.entry.session);
        if self.is_over() { None } else { session.take().map(act) }
    }
}

/// What somebody who says which stream it is finds.
pub(super) enum Joined {
    /// The stream is open, and this connection has it now.
    Open(Share),
    /// It has ended, and this number says so.
    Ended(u64),
}

/// All streams of senders that pack.
#[derive(Default)]
pub(super) struct Streams {
    open: Mutex<HashMap<StreamId, Arc<Entry>>>,
    ended: Mutex<VecDeque<(StreamId, u64)>>,
}

impl Streams {
    /// Joins a stream on `socket`; one that is not open is begun, while others wait. A connection
    /// that it is still on is closed.
    ///
    /// # Errors
    /// Why it could not be begun.
    pub fn join(
        &self,
        stream: StreamId,
        socket: &Arc<TcpStream>,
        begin: impl FnOnce() -> Result<Begun, String>,
    ) -> Result<Joined, String> {
        loop {
            let mut open = locked(&self.open);
            if let Some(number) = self.ended(stream) {
                return Ok(Joined::Ended(number));
            }
            let Some(entry) = open.get(&stream).cloned() else {
                let entry = Arc::new(Entry::default());
                let mut session = locked(&entry.session);
                open.insert(stream, Arc::clone(&entry));
                drop(open);
                let begun = begin().inspect_err(|_| self.forget(stream))?;
                match begun {
                    Begun::Ended(number) => {
                        self.remember_end(stream, number);
                        return Ok(Joined::Ended(number));
                    }
                    Begun::Session(begun) => *session = Some(*begun),
                }
                // Whoever has come meanwhile has put its own there.
                locked(&entry.socket).get_or_insert_with(|| Arc::clone(socket));
                drop(session);
                return Ok(Joined::Open(Share { entry, connection: 0 }));
            };
            drop(open);
            if let Some(share) = take_over(&entry, socket) {
                return Ok(Joined::Open(share));
            }
            // It is being ended; then it is remembered, or can be begun again.
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// A stream has ended with this number.
    pub fn remember_end(&self, stream: StreamId, number: u64) {
        let mut ended = locked(&self.ended);
        ended.push_back((stream, number));
        let surplus = ended.len().saturating_sub(REMEMBERED);
        ended.drain(..surplus);
        drop(ended);
        self.forget(stream);
    }

    /// A stream is open no more.
    pub fn forget(&self, stream: StreamId) {
        locked(&self.open).remove(&stream);
    }

    fn ended(&self, stream: StreamId) -> Option<u64> {
        let ended = locked(&self.ended);
        ended.iter().find(|(id, _)| *id == stream).map(|(_, number)| *number)
    }
}

/// How a stream begins.
pub(super) enum Begun {
    /// As a session, new or where an earlier server ended.
    Session(Box<Session>),
    /// Not at all: an earlier server had all of it, as this number says.
    Ended(u64),
}

fn take_over(entry: &Arc<Entry>, socket: &Arc<TcpStream>) -> Option<Share> {
    // First the number: the other connection's thread then lets go of the session.
    let connection = entry.connection.fetch_add(1, Ordering::AcqRel) + 1;
    if let Some(other) = locked(&entry.socket).replace(Arc::clone(socket)) {
        let _ = other.shutdown(Shutdown::Both);
    }
    let session = locked(&entry.session);
    session.is_some().then(|| Share { entry: Arc::clone(entry), connection })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
