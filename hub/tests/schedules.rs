//! Start, stop, failure and reconnect under thousands of schedules: the very files of the crate, on
//! a scheduler that decides at every lock who goes on. A wait with a time limit never runs out
//! here, so that a wake-up which is missing is a deadlock, and found.

#![allow(dead_code, reason = "the files are taken whole")]

#[path = "../src/session/lanes.rs"]
mod lanes;
#[path = "../src/ingest/streams.rs"]
mod streams;

/// What those files find in the crate.
mod sync {
    pub use shuttle::sync::atomic::AtomicU64;
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub use shuttle::thread;
}
mod tally {
    pub use callsight_hub::SinkTally;
}
mod stream {
    pub use callsight_hub::stream::StreamId;
}
use callsight_hub::{
    Amount, BATCH_BYTES, Batch, Deadline, Dropped, Ending, Losses, SessionMeta, Sink,
};

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use callsight_format::{ByteOrder, EVENT_BYTES, Origin};
use lanes::Lanes;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use streams::{Begun, Joined, Share, Streams};

const SCHEDULES: usize = 2000;
const TIME: Duration = Duration::from_secs(2);

/// A sink that fails at its batch number `fails_at`, by a panic or an error, or never.
struct Counting {
    seen: u64,
    fails_at: u64,
    panics: bool,
}

impl Sink for Counting {
    fn name(&self) -> String {
        "counting".to_owned()
    }
    fn init(&mut self, _: &SessionMeta) -> io::Result<()> {
        if self.fails_at == 0 { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }
    fn write(&mut self, _: &Batch) -> io::Result<()> {
        self.seen += 1;
        match (self.seen == self.fails_at, self.panics) {
            (true, true) => std::panic::resume_unwind(Box::new("by intention")),
            (true, false) => Err(io::ErrorKind::Other.into()),
            (false, _) => Ok(()),
        }
    }
}

fn counting(fails_at: u64, panics: bool) -> Box<dyn Sink> {
    Box::new(Counting { seen: 0, fails_at, panics })
}

/// Two sinks and four batches; what each sink delivered.
fn run_lanes(sinks: Vec<Box<dyn Sink>>) -> Vec<u64> {
    let meta = SessionMeta::new(1, "test", Origin::default(), ByteOrder::NATIVE);
    let lanes = Lanes::start(&meta, sinks, 0);
    let batch = Arc::new(Batch::of_events(&[0; 3 * EVENT_BYTES], ByteOrder::NATIVE));
    for _ in 0..4 {
        lanes.wait_for_room(TIME);
        lanes.offer(&batch);
    }
    let tallies = lanes.finish(Ending::default(), TIME);
    for tally in &tallies {
        assert_eq!((tally.emitted_events, tally.unaccounted()), (12, 0), "{tally:?}");
    }
    // Every reference is back but ours, whatever the sinks did.
    drop(lanes);
    tallies.iter().map(|tally| tally.delivered_events).collect()
}

#[test]
fn every_event_is_accounted_for_and_every_sink_ends_under_every_schedule() {
    let check = || assert_eq!(run_lanes(vec![counting(9, false), counting(9, false)]), [12, 12]);
    shuttle::check_random(check, SCHEDULES);
    shuttle::check_pct(check, SCHEDULES, 3);
}

#[test]
fn a_sink_that_fails_at_any_batch_costs_only_its_own_events_under_every_schedule() {
    for (fails_at, panics) in [(0, false), (1, true), (2, false), (4, true)] {
        let check = move || {
            let delivered = run_lanes(vec![counting(fails_at, panics), counting(9, false)]);
            assert_eq!(delivered, [3 * fails_at.saturating_sub(1), 12]);
        };
        shuttle::check_random(check, SCHEDULES / 2);
    }
}

/// A session, as far as `streams` knows it: blocks each taken once, by whichever connection.
pub struct Session {
    taken: u64,
    /// The connections that had it, in order.
    owners: Vec<u64>,
    /// Shared by all sessions of a test: how many are open.
    open: Arc<AtomicU64>,
}

impl Session {
    /// Connection `me` does something with it: nobody may who had to give it up.
    fn is_of(&mut self, me: u64) {
        if !self.owners.contains(&me) {
            self.owners.push(me);
        }
        assert_eq!(self.owners.last(), Some(&me), "it has another owner");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Server {
    streams: Streams,
    open: Arc<AtomicU64>,
    /// What sessions that ended had taken.
    stored: Mutex<u64>,
    socket: Arc<TcpStream>,
}

const BLOCKS: u64 = 3;

impl Server {
    fn join(&self) -> Joined {
        let id = stream::StreamId::parse(&[1; 16]).expect("an id");
        let begin = || {
            assert_eq!(self.open.fetch_add(1, Ordering::SeqCst), 0, "two sessions of a stream");
            let taken = *self.stored.lock().expect("no panic");
            let session = Session { taken, owners: Vec::new(), open: Arc::clone(&self.open) };
            Ok(Begun::Session(Box::new(session)))
        };
        self.streams.join(id, &self.socket, begin).expect("it begins")
    }

    /// Connection `me`: sends what is missing, one block at a time, at most `count` of them; then it is
    /// gone. Whoever has the stream then ends it, as after the time for a reconnect.
    fn connect(&self, me: u64, count: u64) {
        let Joined::Open(share) = self.join() else { return };
        for _ in 0..count {
            let take = |session: &mut Session| {
                session.is_of(me);
                session.taken = BLOCKS.min(session.taken + 1);
            };
            if share.with(take).is_none() {
                return;
            }
        }
        share.leave();
        self.end(me, &share);
    }

    fn end(&self, me: u64, share: &Share) {
        share.end(|mut session| {
            session.is_of(me);
            *self.stored.lock().expect("no panic") = session.taken;
            let id = stream::StreamId::parse(&[1; 16]).expect("an id");
            let ended = session.taken == BLOCKS;
            drop(session);
            if ended {
                self.streams.remember_end(id, BLOCKS + 1);
            } else {
                self.streams.forget(id);
            }
        });
    }
}

#[test]
fn a_stream_has_one_session_at_a_time_and_goes_on_under_every_schedule() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let socket = Arc::new(TcpStream::connect(at).expect("a socket"));
    let check = move || {
        let server = Arc::new(Server {
            streams: Streams::default(),
            open: Arc::new(AtomicU64::new(0)),
            stored: Mutex::new(0),
            socket: Arc::clone(&socket),
        });
        let connections = [(1, 1), (2, 2), (3, 1)].map(|(me, count)| {
            let server = Arc::clone(&server);
            shuttle::thread::spawn(move || server.connect(me, count))
        });
        connections.into_iter().for_each(|connection| connection.join().expect("no panic"));
        // A last connection finds the stream as the others left it, or ended.
        server.connect(4, BLOCKS);
        assert_eq!(*server.stored.lock().expect("no panic"), BLOCKS);
        assert!(matches!(server.join(), Joined::Ended(number) if number == BLOCKS + 1));
        assert_eq!(server.open.load(Ordering::SeqCst), 0);
    };
    shuttle::check_random(check.clone(), SCHEDULES);
    shuttle::check_pct(check, SCHEDULES, 3);
}
