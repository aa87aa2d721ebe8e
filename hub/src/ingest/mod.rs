//! Device ingest: sockets in, captures out.
//!
//! One thread accepts and holds newcomers in a lobby until their handshake is whole; a stream
//! then gets a thread of its own. What one connection does never reaches another: each has its
//! own decoder, session and files, and a panic ends only its own.

mod connection;
mod lobby;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Tally;
use crate::capture::{CaptureDir, CaptureLimits};
use crate::session::counted;
use lobby::{Arrival, Lobby, Outcome};

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
    /// Connections that never became a stream.
    pub refused: u32,
    /// Enters and exits stored.
    pub stored_events: u64,
    /// Events lost, before they came or here.
    pub dropped_events: u64,
}

impl Totals {
    fn count(&mut self, tally: &Tally) {
        self.streams += 1;
        self.stored_events += tally.stored_events();
        self.dropped_events += tally.dropped_events().sum();
    }
}

/// For people: `2 streams, 10 events, 0 dropped, 1 connection refused`.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { streams, refused, stored_events, dropped_events } = self;
        let (streams, events) = (counted(*streams, "stream"), counted(*stored_events, "event"));
        write!(f, "{streams}, {events}, {dropped_events} dropped")?;
        match *refused {
            0 => Ok(()),
            refused => write!(f, ", {} refused", counted(refused, "connection")),
        }
    }
}

/// A server that listens.
pub struct Server {
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
    captures: CaptureDir,
    open_streams: AtomicUsize,
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
            listener,
            address,
            captures,
            open_streams: AtomicUsize::new(0),
            totals: Mutex::default(),
        })
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
        self.totals().clone()
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
        if self.open_streams.load(Ordering::Relaxed) >= MAX_STREAMS {
            return self.refuse(peer, &format!("{MAX_STREAMS} streams are open already"));
        }
        self.open_streams.fetch_add(1, Ordering::Relaxed);
        let stream = move || {
            self.serve_stream(&arrival, stop);
            // Before the socket closes: whoever sees that may connect again at once.
            self.open_streams.fetch_sub(1, Ordering::Relaxed);
            drop(arrival);
        };
        let name = format!("stream {peer}");
        if let Err(error) = thread::Builder::new().name(name).spawn_scoped(scope, stream) {
            self.open_streams.fetch_sub(1, Ordering::Relaxed);
            self.refuse(peer, &format!("no thread for it ({error})"));
        }
    }

    fn serve_stream(&self, arrival: &Arrival, stop: &AtomicBool) {
        let peer = arrival.peer;
        let serve = || connection::serve(arrival, &self.captures, self.options.limits, stop, self);
        match catch_unwind(AssertUnwindSafe(serve)) {
            Ok(Ok(tally)) => self.totals().count(&tally),
            Ok(Err(reason)) => self.refuse(peer, &reason),
            Err(_) => {
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
