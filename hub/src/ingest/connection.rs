//! One connection: socket → decoder → session, until it ends, breaks the protocol or is stopped.
//!
//! Which stream it is shows in its first chunk. One of a sender that packs is greeted then, and not
//! sooner: a sender of version 2 never reads, and closing a socket with something unread in it
//! throws away what it has not sent yet.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use callsight_format::{ByteOrder, Origin};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::later::Later;
use super::lobby::Arrival;
use super::replies::Replies;
use super::streams::{Begun, Joined, Share};
use super::{STOP_POLL, Seat, Server};
use crate::capture::{ChunkCapture, EventCapture};
use crate::session::{RingId, ring_of};
use crate::stream::{Chunk, ChunkDecoder, Item, Sender, StreamError, StreamId};
use crate::{Host, Session, SessionMeta, Sink};

/// How long after the stop a stream that keeps sending is still read.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// How long a stream waits for its sender to connect again.
const RECONNECT_TIME: Duration = Duration::from_secs(30);

/// How soon what has been stored is acknowledged.
const ACKNOWLEDGE_POLL: Duration = Duration::from_millis(10);

/// Bytes read at once: a chunk of raw events, compressed, several times over.
const READ_BYTES: usize = 64 << 10;

/// Why reading ended.
enum Ending {
    /// The sender closed.
    Closed,
    /// The server was stopped.
    Stopped,
    /// The sender broke the protocol.
    Breach(StreamError),
    /// The connection broke.
    Broken(io::Error),
    /// The sender has connected again.
    Replaced,
    /// No session could be begun.
    Refused(String),
}

/// What a connection carries.
enum Part {
    /// Nothing has come yet.
    Unknown,
    /// A stream that ends with this connection.
    Alone(Share),
    /// A stream that may go on on another one.
    Packs(Share, StreamId, Replies),
    /// A stream that has ended already.
    Ended(Replies),
}

struct Connection<'a> {
    server: &'a Server,
    stop: &'a AtomicBool,
    stopped_at: Cell<Option<Instant>>,
    peer: SocketAddr,
    socket: Arc<TcpStream>,
    origin: Origin,
    order: ByteOrder,
    part: Part,
}

/// Serves one connection to its end.
///
/// # Errors
/// Why nothing could be received at all.
pub(super) fn serve<'a>(
    arrival: Arrival,
    seat: Seat<'a>,
    server: &'a Server,
    stop: &'a AtomicBool,
) -> Result<(), String> {
    let Arrival { socket, peer, origin, order } = arrival;
    prepare(&socket).map_err(|error| error.to_string())?;
    let (part, stopped_at) = (Part::Unknown, Cell::default());
    let mut connection = Connection { server, stop, stopped_at, peer, socket, origin, order, part };
    let mut decoder = ChunkDecoder::new(order);
    let mut ending = connection.receive(&mut decoder);
    if matches!(connection.part, Part::Unknown) && !matches!(ending, Ending::Refused(_)) {
        // A stream of nothing is a stream.
        match connection.begin_alone() {
            Ok(part) => connection.part = part,
            Err(reason) => ending = Ending::Refused(reason),
        }
    }
    if let Ending::Refused(reason) = ending {
        return Err(reason);
    }
    connection.end(ending, &decoder, seat);
    Ok(())
}

/// An end for a peer that vanished: after a minute of silence, then six probes 10 s apart.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(socket, 6)?;
    Ok(())
}

impl Host for Connection<'_> {
    fn say(&self, line: &str) {
        self.server.say(&format!("{}: {line}", self.peer));
    }

    fn waits(&self) -> bool {
        !self.has_stopped_for(STOP_GRACE)
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Connection<'_> {
    fn has_stopped_for(&self, time: Duration) -> bool {
        if !self.stop.load(Ordering::Relaxed) {
            return false;
        }
        let stopped_at = self.stopped_at.get().unwrap_or_else(Instant::now);
        self.stopped_at.set(Some(stopped_at));
        stopped_at.elapsed() >= time
    }

    fn receive(&mut self, decoder: &mut ChunkDecoder) -> Ending {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            match (&*self.socket).read(&mut bytes) {
                Ok(0) => return self.closed(),
                Ok(len) => {
                    if let Err(ending) = self.feed(&bytes[..len], decoder) {
                        return ending;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let came = self.wait();
                    if !came && self.stop.load(Ordering::Relaxed) {
                        return Ending::Stopped;
                    }
                }
                Err(error) => return Ending::Broken(error),
            }
            if self.acknowledge().is_none() {
                return Ending::Replaced;
            }
            if self.has_stopped_for(STOP_GRACE) {
                return Ending::Stopped;
            }
        }
    }

    /// The other side closed, or a newer connection of the same sender closed this one.
    fn closed(&self) -> Ending {
        match &self.part {
            Part::Packs(share, ..) if share.is_over() => Ending::Replaced,
            _ => Ending::Closed,
        }
    }

    /// Waits for bytes, or until something may have been stored that is not acknowledged.
    fn wait(&self) -> bool {
        let all_told = match &self.part {
            Part::Packs(share, _, replies) => {
                share.with(|session| session.taken()).is_none_or(|taken| replies.has_told(taken))
            }
            _ => true,
        };
        let timeout = if all_told { STOP_POLL } else { ACKNOWLEDGE_POLL };
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as _ };
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        // An error here is a signal; the socket is read anyway.
        poll(&mut sockets, Some(&timeout)).unwrap_or(1) > 0 || !all_told
    }

    fn feed(&mut self, mut bytes: &[u8], decoder: &mut ChunkDecoder) -> Result<(), Ending> {
        if let Part::Packs(_, _, replies) = &mut self.part {
            replies.received(bytes.len());
        }
        while let Some(chunk) = decoder.next(&mut bytes).map_err(Ending::Breach)? {
            if let Part::Unknown = self.part {
                self.part = self.open(&chunk).map_err(Ending::Refused)?;
            }
            if let Part::Alone(share) | Part::Packs(share, ..) = &self.part {
                share.with(|session| session.take(&chunk, self)).ok_or(Ending::Replaced)?;
            }
        }
        Ok(())
    }

    /// Tells what has been stored; `None` where that is another connection's business now.
    fn acknowledge(&mut self) -> Option<()> {
        match &mut self.part {
            Part::Packs(share, _, replies) => {
                replies.tell(share.with(|session| session.acknowledged())?);
                replies.send(&self.socket);
            }
            Part::Ended(replies) => replies.send(&self.socket),
            _ => {}
        }
        Some(())
    }

    /// Finds out by its first chunk which stream this is.
    fn open(&self, first: &Chunk<'_>) -> Result<Part, String> {
        let Item::Sender(sender @ Sender { stream: Some(stream), .. }) = &first.item else {
            return self.begin_alone();
        };
        let replies = Replies::greet(&self.socket);
        let (streams, stream) = (&self.server.streams, *stream);
        let begin = || {
            let ring = ring_of(sender, &self.origin);
            self.learn(ring, stream);
            self.begin(Some((stream, ring)))
        };
        Ok(match streams.join(stream, &self.socket, begin)? {
            Joined::Ended(number) => Part::Ended(replies.begin(number)),
            Joined::Open(share) => {
                let acknowledged = share.with(|session| session.acknowledged()).unwrap_or(0);
                Part::Packs(share, stream, replies.begin(acknowledged))
            }
        })
    }

    /// Finds out what captures of earlier servers have of the ring of a stream.
    fn learn(&self, ring: RingId, stream: StreamId) {
        let Server { captures, options, books, .. } = self.server;
        books.learn(ring, || {
            captures.close_left(ring, stream, options.limits);
            captures.parts(ring)
        });
    }

    /// A stream that no other connection can join.
    fn begin_alone(&self) -> Result<Part, String> {
        self.begin(None).map(|begun| match begun {
            Begun::Session(session) => Part::Alone(Share::alone(*session)),
            Begun::Ended(_) => Part::Unknown,
        })
    }

    fn begin(&self, of: Option<(StreamId, RingId)>) -> Result<Begun, String> {
        let Server { captures, options, unpacked, sinks, .. } = self.server;
        let stream = of.map(|(stream, _)| stream);
        let others = || sinks.iter().map(Later::boxed);
        if let Some(resumed) = stream.and_then(|stream| captures.resume(stream, options.limits)) {
            let Some(capture) = resumed.capture else {
                return Ok(Begun::Ended(resumed.last_block.saturating_add(1)));
            };
            let form = match (resumed.unpacked, *unpacked) {
                (false, true) => ", in chunks, as it began",
                (true, false) => ", in events, as it began",
                _ => "",
            };
            let (name, block) = (capture.name(), resumed.last_block);
            self.say(&format!("goes on in {name} behind block {block}{form}"));
            let sinks = std::iter::once(capture).chain(others());
            let meta = self.meta(resumed.id, stream);
            let session = Session::resume(&meta, sinks.collect(), block);
            let session = session.among(&self.server.books).behind(resumed.earlier);
            return Ok(Begun::Session(Box::new(session)));
        }
        let reserved = captures
            .reserve()
            .map_err(|error| format!("no capture can be made for it ({error})"))?;
        let meta = self.meta(reserved.id(), stream);
        let capture: Box<dyn Sink> = match of.is_some_and(|(_, ring)| !self.unpacks(ring)) {
            true => Box::new(ChunkCapture::new(reserved, options.limits)),
            false => Box::new(EventCapture::new(reserved, options.limits)),
        };
        let sinks = std::iter::once(capture).chain(others()).collect();
        let session = Session::start(&meta, sinks).among(&self.server.books);
        Ok(Begun::Session(Box::new(session)))
    }

    /// Whether a new stream of a ring is stored in events. All of a ring is in one form: which records two
    /// drains sent is known by numbers, which events have only beside them, for a server of that form.
    fn unpacks(&self, ring: RingId) -> bool {
        let asked = self.server.unpacked;
        let began = self.server.captures.is_unpacked(ring).unwrap_or(asked);
        if began != asked {
            let form = if began { "events" } else { "chunks" };
            self.say(&format!("is stored in {form}, as what came of its ring before"));
        }
        began
    }

    fn meta(&self, id: u32, stream: Option<StreamId>) -> SessionMeta {
        let meta = SessionMeta::new(id, &self.peer.to_string(), self.origin, self.order);
        SessionMeta { stream, ..meta }
    }

    /// The connection is of no more use: ends its stream, or waits for the next one of it.
    fn end(mut self, ending: Ending, decoder: &ChunkDecoder, seat: Seat<'_>) {
        if let Ending::Breach(_) = ending {
            self.server.totals().rejected += 1;
        }
        let cut_records = match ending {
            // After a breach nobody knows what was meant to come.
            Ending::Breach(_) => 0,
            _ => decoder.announced_records(),
        };
        match std::mem::replace(&mut self.part, Part::Unknown) {
            Part::Unknown | Part::Ended(_) => {}
            Part::Alone(share) => {
                self.tell_ending(&ending, decoder, &share);
                self.finish(&share, cut_records, None);
                // The seat before the socket: whoever sees that close may connect again at once.
                drop(seat);
            }
            Part::Packs(share, stream, _) => {
                self.tell_ending(&ending, decoder, &share);
                share.leave();
                drop(seat);
                // The sender may need that to see that it has to connect again.
                let _ = self.socket.shutdown(Shutdown::Both);
                if share.with(|session| session.has_ended()) == Some(true) || self.waited(&share) {
                    self.finish(&share, 0, Some(stream));
                }
            }
        }
    }

    /// Waits for the sender to connect again; whether it did not, and the stream is at its end.
    fn waited(&self, share: &Share) -> bool {
        let Some(_seat) = Seat::take(&self.server.waiting_streams) else { return true };
        if !self.stop.load(Ordering::Relaxed) && !share.is_over() {
            let seconds = RECONNECT_TIME.as_secs();
            self.say(&format!("its connection is gone; the stream waits {seconds} s for another"));
        }
        let until = Instant::now() + RECONNECT_TIME;
        let may_come = || {
            let taken_up = share.with(|session| session.is_taken_up()).unwrap_or(false);
            !taken_up && Instant::now() < until && !self.stop.load(Ordering::Relaxed)
        };
        while !share.is_over() && may_come() {
            thread::sleep(STOP_POLL);
        }
        !share.is_over()
    }

    /// Ends the stream, unless another connection has it by now.
    fn finish(&self, share: &Share, cut_records: u64, stream: Option<StreamId>) {
        let tally = share.end(|session| {
            let (name, number) = (session.name(), session.taken());
            let tally = session.finish(cut_records, self);
            let streams = &self.server.streams;
            match stream {
                Some(stream) if tally.ended => streams.remember_end(stream, number),
                Some(stream) => streams.forget(stream),
                None => {}
            }
            (name, tally)
        });
        if let Some((name, tally)) = tally {
            self.server.say(&format!("{} -> {name} ({tally})", self.peer));
            tally.other_sinks().for_each(|account| self.say(&account));
            self.server.totals().count(&tally);
        }
    }

    fn tell_ending(&self, ending: &Ending, decoder: &ChunkDecoder, share: &Share) {
        let name = share.with(|session| session.name()).unwrap_or_default();
        match ending {
            Ending::Breach(error) => {
                self.say(&format!("closed: {error}; what came before is in {name}"));
            }
            Ending::Broken(error) => self.say(&format!("the connection broke ({error})")),
            Ending::Stopped => self.say("the server stops while this stream is open"),
            Ending::Closed if !decoder.is_between_chunks() => {
                self.say("it closed in the middle of a chunk");
            }
            Ending::Replaced => self.say("its sender has connected again"),
            Ending::Closed | Ending::Refused(_) => {}
        }
    }
}

/// A fault while a stream is served must not leave others waiting for it.
impl Drop for Connection<'_> {
    fn drop(&mut self) {
        if let (true, Part::Packs(_, stream, _)) = (thread::panicking(), &self.part) {
            self.server.streams.forget(*stream);
        }
    }
}
