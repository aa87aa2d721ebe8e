//! Device ingest: sockets in, captures out.
//!
//! One thread accepts and holds newcomers in a lobby until their handshake is whole; a stream
//! then gets a thread of its own. What one connection does never reaches another: each has its
//! own decoder, session and files, and a panic ends only its own. A sender that packs says which
//! stream it has; when its connection is gone the stream waits for the next one.

mod connection;
mod later;
mod lobby;
mod replies;
mod streams;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::capture::{CaptureDir, CaptureLimits};
use crate::session::{Books, counted, give_up};
use crate::{Sink, SinkTally, Tally};
use lobby::{Arrival, Lobby, Outcome};
use streams::Streams;

/// One of a bounded number of places; free again when it is dropped.
struct Seat<'a>(&'a AtomicUsize);

impl<'a> Seat<'a> {
    fn take(taken: &'a AtomicUsize) -> Option<Seat<'a>> {
        let more = |seats: usize| (seats < MAX_STREAMS).then_some(seats + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Seat(taken))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Most streams at once: 256 threads, and with the lobby half of the usual 1024 descriptors.
const MAX_STREAMS: usize = 256;

/// How often a thread that waits looks whether it should stop.
const STOP_POLL: Duration = Duration::from_millis(100);

/// Where to listen and where to write.
pub struct Options {
    /// Host name or address to listen on.
    pub host: String,
    /// Port; 0 for any that is free.
    pub port: u16,
    /// Folder of the captures; made where it is missing.
    pub out: PathBuf,
    /// How much a stream may take.
    pub limits: CaptureLimits,
    /// Ends by itself after this many streams.
    pub streams: Option<u32>,
    /// Takes what people should see, a line at a time.
    pub say: Box<dyn Fn(&str) + Send + Sync>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody listens there.
    #[error("listen on {at}: the port is in use; end the other server or choose another --port")]
    InUse {
        /// Host and port.
        at: String,
    },
    /// Any other reason not to listen.
    #[error("listen on {at}: {error}; {}", help_with_listening(error))]
    Listen {
        /// Host and port.
        at: String,
        /// Why.
        error: io::Error,
    },
    /// The folder cannot be used.
    #[error(
        "open the folder {} for captures: {error}; --out wants a folder that can be made and \
         written to",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

fn help_with_listening(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "choose a --port from 1024 on",
        _ => "--host wants an address of this machine, 0.0.0.0 for all of them",
    }
}

/// What a server did in its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Streams that ended.
    pub streams: u32,
    /// Of these, those of which an earlier server has the beginning.
    pub resumed_streams: u32,
    /// Rings of which an earlier server has too much to be counted here.
    pub uncounted_rings: u32,
    /// Connections that never became a stream.
    pub refused: u32,
    /// Connections closed because what came was damaged or against the limits.
    pub rejected: u32,
    /// Enters and exits stored, each once.
    pub stored_events: u64,
    /// Those stored once more, of another drain of the same ring.
    pub again_events: u64,
    /// Events lost, before they came or here.
    pub dropped_events: u64,
    /// Events that no count knows of; 0, or callsight has miscounted.
    pub unaccounted: i128,
}

impl Totals {
    /// So many events came twice, and were stored the second time alone.
    fn correct(&mut self, stored_later: u64) {
        let events = stored_later.min(self.again_events).min(self.dropped_events);
        self.again_events -= events;
        self.dropped_events -= events;
        self.stored_events += events;
    }

    fn count(&mut self, tally: &Tally) {
        self.streams += 1;
        self.resumed_streams += u32::from(tally.resumed_behind.is_some_and(|block| block > 0));
        let again = tally.again_events.min(tally.stored_events());
        self.again_events += again;
        self.stored_events += tally.stored_events() - again;
        // What came twice and was not stored the second time is counted, or there, by the first.
        let dropped = tally.dropped_events().beyond(&tally.again_lost).sum();
        self.dropped_events += dropped.saturating_sub(tally.again_events - again);
        self.unaccounted += tally.sinks.iter().map(SinkTally::unaccounted).sum::<i128>();
    }
}

/// For people: `2 streams, 10 events (3 of them came twice), 0 dropped, unaccounted=0, without what an
/// earlier server had of 1 stream, 1 connection refused`.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (streams, events) =
            (counted(self.streams, "stream"), counted(self.stored_events, "event"));
        write!(f, "{streams}, {events}")?;
        if self.again_events > 0 {
            write!(f, " ({} of them came twice)", self.again_events)?;
        }
        let Totals { dropped_events, unaccounted, .. } = self;
        write!(f, ", {dropped_events} dropped, unaccounted={unaccounted}")?;
        for (number, of) in [(self.resumed_streams, "stream"), (self.uncounted_rings, "ring")] {
            if number > 0 {
                write!(f, ", without what an earlier server had of {}", counted(number, of))?;
            }
        }
        for (connections, how) in [(self.refused, "refused"), (self.rejected, "rejected")] {
            if connections > 0 {
                write!(f, ", {} {how}", counted(connections, "connection"))?;
            }
        }
        Ok(())
    }
}

/// Makes a sink of one more kind for each stream; called on the thread of that sink, so that it may block or
/// panic as the sink itself may.
pub type MakeSink = Box<dyn Fn() -> Box<dyn Sink> + Send + Sync>;

/// What becomes of a stream beside its capture, and how that is kept.
#[derive(Default)]
pub struct Destinations {
    /// Captures hold events, also of senders that pack: for tools that read no chunks.
    pub unpacked: bool,
    /// The other sinks of every stream.
    pub sinks: Vec<MakeSink>,
}

/// A server that listens.
pub struct Server {
    options: Options,
    unpacked: bool,
    sinks: Vec<Arc<MakeSink>>,
    listener: TcpListener,
    address: SocketAddr,
    captures: CaptureDir,
    streams: Streams,
    books: Arc<Books>,
    open_connections: AtomicUsize,
    waiting_streams: AtomicUsize,
    totals: Mutex<Totals>,
}

impl Server {
    /// Listens, then makes the folder: a server that cannot start leaves nothing behind.
    ///
    /// # Errors
    /// Why it cannot start.
    pub fn bind(options: Options) -> Result<Server, BindError> {
        let at = format!("{}:{}", options.host, options.port);
        let bound = TcpListener::bind((options.host.as_str(), options.port))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { at },
            _ => BindError::Listen { at, error },
        })?;
        let captures = CaptureDir::open(&options.out)
            .map_err(|error| BindError::Folder { path: options.out.clone(), error })?;
        Ok(Server {
            options,
            unpacked: false,
            sinks: Vec::new(),
            listener,
            address,
            captures,
            streams: Streams::default(),
            books: Arc::default(),
            open_connections: AtomicUsize::new(0),
            waiting_streams: AtomicUsize::new(0),
            totals: Mutex::default(),
        })
    }

    /// With other destinations than a capture of what came.
    pub fn with_destinations(self, destinations: Destinations) -> Server {
        let Destinations { unpacked, sinks } = destinations;
        Server { unpacked, sinks: sinks.into_iter().map(Arc::new).collect(), ..self }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Receives until `stop` is set, or the given number of streams has ended. What the kernel
    /// holds of open streams by then is still received; every file is finished in order.
    pub fn run(&self, stop: &AtomicBool) -> Totals {
        thread::scope(|scope| {
            let mut lobby = Lobby::default();
            while !stop.load(Ordering::Relaxed) && !self.has_enough() {
                self.wait(&lobby);
                self.welcome(&mut lobby, scope, stop);
            }
            // Whoever was in time to connect and shake hands is still a stream.
            self.welcome(&mut lobby, scope, stop);
        });
        let behind = self.books.behind_others().into_iter();
        let uncounted = behind.filter(|ring| !self.captures.tell_left(*ring, &self.books)).count();
        let mut totals = self.totals().clone();
        totals.uncounted_rings = uncounted as u32;
        // Captures of events are not given what came before, wherever it went.
        let is_in_chunks = |ring| self.captures.is_unpacked(ring) != Some(true);
        totals.correct(self.books.stored_later(is_in_chunks));
        totals.dropped_events = totals.dropped_events.saturating_add(self.books.lost_between());
        totals
    }

    /// Waits for a newcomer or for bytes of one in the lobby.
    fn wait(&self, lobby: &Lobby) {
        let newcomer = PollFd::new(&self.listener, PollFlags::IN);
        let guests = lobby.sockets().map(|socket| PollFd::new(socket, PollFlags::IN));
        let mut sockets: Vec<PollFd<'_>> = std::iter::once(newcomer).chain(guests).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: STOP_POLL.as_nanos() as _ };
        // An error here is a signal; the sockets are looked at anyway.
        let _ = poll(&mut sockets, Some(&timeout));
    }

    fn welcome<'scope, 'env>(
        &'env self,
        lobby: &mut Lobby,
        scope: &'scope Scope<'scope, 'env>,
        stop: &'env AtomicBool,
    ) {
        loop {
            match self.listener.accept() {
                Ok((socket, peer)) => {
                    if let Some(outcome) = lobby.enter(socket, peer) {
                        self.settle(outcome, scope, stop);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    // Out of descriptors, most likely: the connection waits in the backlog.
                    self.say(&format!("accept a connection: {error}"));
                    thread::sleep(STOP_POLL);
                    break;
                }
            }
        }
        for outcome in lobby.look() {
            self.settle(outcome, scope, stop);
        }
    }

    fn settle<'scope, 'env>(
        &'env self,
        outcome: Outcome,
        scope: &'scope Scope<'scope, 'env>,
        stop: &'env AtomicBool,
    ) {
        match outcome {
            Outcome::Refused { peer, reason } => self.refuse(peer, &reason),
            Outcome::Arrived(arrival) => self.begin_stream(arrival, scope, stop),
        }
    }

    fn begin_stream<'scope, 'env>(
        &'env self,
        arrival: Arrival,
        scope: &'scope Scope<'scope, 'env>,
        stop: &'env AtomicBool,
    ) {
        let peer = arrival.peer;
        let Some(seat) = Seat::take(&self.open_connections) else {
            return self.refuse(peer, &format!("{MAX_STREAMS} streams are open already"));
        };
        let stream = move || self.serve_stream(arrival, seat, stop);
        let name = format!("stream {peer}");
        if let Err(error) = thread::Builder::new().name(name).spawn_scoped(scope, stream) {
            self.refuse(peer, &format!("no thread for it ({error})"));
        }
    }

    fn serve_stream<'a>(&'a self, arrival: Arrival, seat: Seat<'a>, stop: &AtomicBool) {
        let peer = arrival.peer;
        let serve = || connection::serve(arrival, seat, self, stop);
        match catch_unwind(AssertUnwindSafe(serve)) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => self.refuse(peer, &reason),
            Err(panic) => {
                give_up(panic);
                self.totals().streams += 1;
                self.say(&format!("{peer}: ended by a fault of callsight; its files stay"));
            }
        }
    }

    fn has_enough(&self) -> bool {
        self.options.streams.is_some_and(|wanted| self.totals().streams >= wanted)
    }

    fn refuse(&self, peer: SocketAddr, reason: &str) {
        self.totals().refused += 1;
        self.say(&format!("{peer}: refused: {reason}"));
    }

    fn say(&self, line: &str) {
        (self.options.say)(line);
    }

    fn totals(&self) -> std::sync::MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
