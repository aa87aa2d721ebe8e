//! The sink that passes a session on to another callsight: batches → the same bytes over TCP.
//!
//! Of a sender that packs, blocks are kept until the other side acknowledges them, 8 MiB at most,
//! so that a reconnect loses and repeats nothing; a connection on which it acknowledges nothing any
//! more is given up for another. Raw events are done with when the socket has them; where that
//! connection is lost, the sink is at its end. A side that does not keep up holds up nobody: this
//! sink's queue fills, and what comes then is dropped and counted.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use callsight_format::{
    ByteOrder, CHUNK_EVENTS, CHUNK_RAW_BYTES, Cause, ChunkHeader, GREETING_MAGIC, Handshake,
    REPLY_ACKNOWLEDGE, REPLY_GREETING, REPLY_HEADER_BYTES, REPLY_MAX_BYTES,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::{Amount, Batch, Content, Deadline, Losses, SessionMeta, Sink, Unpacking};

/// Bytes of chunks that may be on their way.
const WINDOW_BYTES: usize = 8 << 20;
/// How long one attempt to connect may take, and the pause behind one that failed.
const CONNECT_TIME: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long the other side may take to greet and to say what it has of the stream, before it is taken for
/// an older one, as by the drain; ...
const GREETING_TIME: Duration = Duration::from_secs(1);
/// ... one that takes the place of a side that did, before it is given up.
const SILENT_TIME: Duration = Duration::from_secs(5);
/// After so long without a sign of the other kernel the connection is lost.
const DEAD_PEER_MS: u32 = 6000;
/// For so long the other side may acknowledge nothing of what it was sent; as the drain has it.
const QUIET_TIME: Duration = Duration::from_secs(8);
/// Where a new connection brings no word either, twice as long, up to this, ...
const QUIET_MOST: Duration = Duration::from_secs(60);
/// ... and so long behind the last silence it is as if there had been none.
const QUIET_FORGET: Duration = Duration::from_secs(600);
/// How often a wait looks whether the session ends.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What is said of a side that does not greet.
const OLDER_SIDE: &str = "it does not greet, so it is an older callsight: it is sent raw events, and does \
                          not say what it has of them";

/// See the [module](self).
pub struct Forward {
    address: String,
    meta: Option<SessionMeta>,
    hello: Vec<u8>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Events of what waits.
    waiting_events: u64,
    link: Option<Link>,
    form: Form,
    unpacking: Unpacking,
    /// Events that connections took which are gone, of which the other side showed nothing.
    doubtful_events: u64,
    try_again: Instant,
    patience: Patience,
    connections: u32,
    trouble: Option<String>,
}

/// What the other side takes of a sender that packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// It has not said yet.
    Unknown,
    Raw,
    Blocks,
}

/// A chunk that is not known to have arrived.
struct Waiting {
    bytes: Vec<u8>,
    number: Option<u64>,
    hook_events: u64,
    is_block: bool,
}

/// A connection.
struct Link {
    socket: TcpStream,
    since: Instant,
    heard: Vec<u8>,
    greeted: bool,
    /// The other side has said what it has of the stream.
    acknowledges: bool,
    /// The other side has said what it has of the stream, or nobody will ask it.
    ready: bool,
    /// How much of what waits the socket has: whole chunks, and bytes of the next.
    sent_chunks: usize,
    sent_bytes: usize,
    /// Events that it took raw, and nothing shows that the other side read them.
    unshown_events: u64,
    /// When the other side last said something, or took of a chunk that no other is before.
    alive_at: Instant,
}

/// How long a silence is borne.
struct Patience {
    time: Duration,
    /// When it last was at its end.
    ended_at: Option<Instant>,
}

impl Forward {
    /// A sink for the callsight that listens at `address`, a host and a port.
    pub fn to(address: &str) -> Forward {
        Forward {
            address: address.to_owned(),
            meta: None,
            hello: Vec::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_events: 0,
            link: None,
            form: Form::Unknown,
            unpacking: Unpacking::default(),
            doubtful_events: 0,
            try_again: Instant::now(),
            patience: Patience { time: QUIET_TIME, ended_at: None },
            connections: 0,
            trouble: None,
        }
    }

    fn packs(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.stream.is_some())
    }

    fn is_closing(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.closing.is_set())
    }

    fn push(&mut self, chunk: Waiting) {
        self.waiting_bytes += chunk.bytes.len();
        self.waiting_events += chunk.hook_events;
        self.waiting.push_back(chunk);
    }

    /// The first chunk, which is done with.
    fn pop(&mut self) {
        let Some(done) = self.take_first() else { return };
        let packs = self.packs();
        if let Some(link) = &mut self.link {
            match link.sent_chunks {
                0 => link.sent_bytes = 0,
                _ => link.sent_chunks -= 1,
            }
            match done.number {
                // It has read this, and so all that came before.
                Some(_) => link.unshown_events = 0,
                None if packs => link.unshown_events += done.hook_events,
                None => {}
            }
        }
    }

    fn take_first(&mut self) -> Option<Waiting> {
        let first = self.waiting.pop_front()?;
        self.waiting_bytes -= first.bytes.len();
        self.waiting_events -= first.hook_events;
        Some(first)
    }

    /// Makes raw events of the first chunk where it is a block, of which nothing was sent.
    fn unpack_first(&mut self) -> io::Result<()> {
        let order = self.meta.as_ref().map_or(ByteOrder::NATIVE, |meta| meta.order);
        let Some(first) = self.waiting.front_mut() else { return Ok(()) };
        if !first.is_block {
            // The end of the stream is not acknowledged either.
            first.number = None;
            return Ok(());
        }
        let events = self.unpacking.raw_events(&first.bytes, order).map_err(io::Error::other)?;
        self.take_first();
        let parts = events.chunks(CHUNK_RAW_BYTES as usize);
        for part in parts.rev() {
            let bytes = event_chunk(part, order)?;
            let hook_events = Amount::of_events(part).events;
            self.waiting_bytes += bytes.len();
            self.waiting_events += hook_events;
            self.waiting.push_front(Waiting { bytes, number: None, hook_events, is_block: false });
        }
        Ok(())
    }

    /// Does what can be done within `time`, and at least once.
    fn work(&mut self, time: Duration) -> io::Result<()> {
        if self.link.is_none() {
            self.connect(time)?;
        }
        if let Some(link) = &mut self.link {
            link.wait(&self.waiting, time);
            if let Err(error) = self.exchange() {
                self.lose(error)?;
            }
        }
        Ok(())
    }

    fn exchange(&mut self) -> io::Result<()> {
        let packs = self.packs();
        let Some(link) = &mut self.link else { return Ok(()) };
        let mut acknowledged = None;
        link.hear()?;
        while let Some(reply) = link.next_reply()? {
            acknowledged = reply.or(acknowledged);
        }
        if link.acknowledges {
            self.form = Form::Blocks;
        }
        if packs && !link.ready {
            self.mind_greeting()?;
        }
        if let Some(number) = acknowledged {
            let done = |chunk: &Waiting| chunk.number.is_none_or(|of_chunk| of_chunk <= number);
            while self.waiting.front().is_some_and(done) {
                self.pop();
            }
        }
        if packs && self.form == Form::Raw {
            return self.send_raw();
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        link.send(&self.waiting, usize::MAX)?;
        if packs && self.patience.is_over(link.silence()) {
            return Err(io::Error::other("it acknowledges nothing any more"));
        }
        while self.waiting.front().is_some_and(|chunk| chunk.number.is_none())
            && self.has_sent_first()
        {
            self.pop();
        }
        Ok(())
    }

    /// The other side has not greeted yet: once it had the time to, it is an older one. One that takes
    /// the place of a side that did could not go on with the blocks that one had: nothing is sent.
    fn mind_greeting(&mut self) -> io::Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let silent = link.since.elapsed();
        match self.form {
            Form::Blocks if silent > SILENT_TIME => Err(io::Error::other(
                "it does not greet any more, as an older callsight would not, and is sent nothing",
            )),
            Form::Unknown | Form::Raw if silent > GREETING_TIME => {
                (self.form, link.ready) = (Form::Raw, true);
                self.trouble = Some(OLDER_SIDE.to_owned());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sends to a side that takes raw events, and acknowledges nothing.
    fn send_raw(&mut self) -> io::Result<()> {
        while self.link.as_ref().is_some_and(|link| link.ready) && !self.waiting.is_empty() {
            let begun = self.link.as_ref().is_some_and(|link| link.sent_bytes > 0);
            if !begun {
                self.unpack_first()?;
            }
            if let Some(link) = &mut self.link {
                link.send(&self.waiting, 1)?;
            }
            if !self.has_sent_first() {
                break;
            }
            self.pop();
        }
        Ok(())
    }

    /// What is wrong in the end; the last word is all that is said where it comes soon.
    fn unsettled(&self, what: &str) -> io::Error {
        match self.form {
            Form::Raw => io::Error::other(format!("{OLDER_SIDE}; {what}")),
            _ => io::Error::other(what.to_owned()),
        }
    }

    fn has_sent_first(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.sent_chunks > 0)
    }

    fn connect(&mut self, time: Duration) -> io::Result<()> {
        let pause = self.try_again.saturating_duration_since(Instant::now());
        if !pause.is_zero() {
            thread::sleep(pause.min(time));
            return Ok(());
        }
        match self.dial() {
            Ok(link) => {
                self.link = Some(link);
                self.connections += 1;
                Ok(())
            }
            Err(error) => self.lose(error),
        }
    }

    fn dial(&self) -> io::Result<Link> {
        let meta = self.meta.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut last = io::Error::other("no address is known for it");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                Ok(mut socket) => {
                    socket.set_nodelay(true)?;
                    if self.packs() {
                        // Also ends a connection whose other side only does not read, so it is
                        // for those that can be resumed.
                        sockopt::set_tcp_user_timeout(&socket, DEAD_PEER_MS)?;
                    }
                    socket.write_all(&Handshake::to_bytes(&meta.origin, meta.order))?;
                    socket.write_all(&self.hello)?;
                    socket.set_nonblocking(true)?;
                    return Ok(Link::on(socket, meta.stream.is_none()));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The connection is of no more use. Whether there will be another one depends on whether the
    /// other side could know what it has.
    fn lose(&mut self, error: io::Error) -> io::Result<()> {
        let unshown = self.link.take().map_or(0, |link| link.unshown_events);
        self.doubtful_events += unshown;
        self.try_again = Instant::now() + RETRY_PAUSE;
        if !self.packs() && self.connections > 0 {
            return Err(error);
        }
        self.trouble.get_or_insert_with(|| format!("{error}; it is tried again and again"));
        Ok(())
    }
}

impl Sink for Forward {
    fn name(&self) -> String {
        format!("forward to {}", self.address)
    }

    fn init(&mut self, meta: &SessionMeta) -> io::Result<()> {
        self.meta = Some(meta.clone());
        Ok(())
    }

    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        match batch.content() {
            Content::Sender(_) if self.packs() => self.hello = batch.bytes().to_vec(),
            content => {
                let bytes = match content {
                    Content::Events => event_chunk(batch.bytes(), batch.order())?,
                    _ => batch.bytes().to_vec(),
                };
                let is_block = matches!(content, Content::Block(_));
                let (number, hook_events) = (batch.number(), batch.hook_events());
                self.push(Waiting { bytes, number, hook_events, is_block });
            }
        }
        self.work(Duration::ZERO)?;
        while self.waiting_bytes > WINDOW_BYTES && !self.is_closing() {
            self.work(LOOK_AGAIN)?;
        }
        Ok(())
    }

    fn flush(&mut self, deadline: Deadline) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let left = deadline.left();
            if left.is_zero() {
                let chunks = crate::session::counted(self.waiting.len() as u64, "chunk");
                return Err(self.unsettled(&match self.form {
                    Form::Raw => format!("{chunks} had to be left"),
                    _ => format!("{chunks} not acknowledged"),
                }));
            }
            self.work(left.min(LOOK_AGAIN))?;
        }
        let seen_off = match &mut self.link {
            Some(link) if link.unshown_events > 0 => link.see_off(deadline),
            _ => return Ok(()),
        };
        if seen_off.is_err() && !deadline.left().is_zero() {
            self.doubtful_events += self.link.take().map_or(0, |link| link.unshown_events);
        }
        seen_off.map_err(|error| self.unsettled(&error.to_string()))
    }

    fn dropped(&self) -> Losses {
        let mut losses = Losses::default();
        losses.add(Cause::Unacked, self.waiting_events + self.doubtful_events);
        losses
    }

    fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn extent(&self) -> Option<String> {
        Some(crate::session::counted(self.connections, "connection"))
    }
}

impl Patience {
    /// Whether a silence of this length is too long; the next may be longer.
    fn is_over(&mut self, silence: Duration) -> bool {
        let is_first = self.ended_at.is_none_or(|at| at.elapsed() >= QUIET_FORGET);
        let time = if is_first { QUIET_TIME } else { self.time };
        if silence < time {
            return false;
        }
        *self = Patience { time: (time * 2).min(QUIET_MOST), ended_at: Some(Instant::now()) };
        true
    }
}

/// Raw events as the chunk that their sender may have sent them in.
fn event_chunk(events: &[u8], order: ByteOrder) -> io::Result<Vec<u8>> {
    let frame = zstd::bulk::compress(events, 1)?;
    let (raw_len, zstd_len) = (events.len() as u32, frame.len() as u32);
    let header = ChunkHeader { kind: CHUNK_EVENTS, raw_len, zstd_len }.to_bytes(order);
    Ok([&header[..], &frame].concat())
}

impl Link {
    fn on(socket: TcpStream, ready: bool) -> Link {
        Link {
            socket,
            since: Instant::now(),
            heard: Vec::new(),
            greeted: false,
            acknowledges: false,
            ready,
            sent_chunks: 0,
            sent_bytes: 0,
            unshown_events: 0,
            alive_at: Instant::now(),
        }
    }

    /// How long the other side has been silent, with something on its way to it.
    fn silence(&self) -> Duration {
        match (self.sent_chunks, self.sent_bytes) {
            (0, 0) => Duration::ZERO,
            _ => self.alive_at.elapsed(),
        }
    }

    /// Waits until the socket says something, or takes what there is to send.
    fn wait(&self, waiting: &VecDeque<Waiting>, time: Duration) {
        let sends = self.ready && self.sent_chunks < waiting.len();
        let wanted = if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let nanoseconds = i64::from(time.subsec_nanos());
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: nanoseconds };
        // An error here is a signal; the socket is looked at anyway.
        let _ = poll(&mut [PollFd::new(&self.socket, wanted)], Some(&timeout));
    }

    fn hear(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => {
                    let closed = "the other side closed the connection";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed));
                }
                Ok(len) => {
                    self.heard.extend_from_slice(&bytes[..len]);
                    self.alive_at = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the next whole reply; `Some(None)` for one that acknowledges nothing.
    fn next_reply(&mut self) -> io::Result<Option<Option<u64>>> {
        let le = ByteOrder::Little;
        let (Some(kind), Some(bytes)) = (le.u32(&self.heard, 0), le.u32(&self.heard, 4)) else {
            return Ok(None);
        };
        if bytes > REPLY_MAX_BYTES {
            return Err(io::Error::other("it says what is no reply"));
        }
        let end = REPLY_HEADER_BYTES + bytes as usize;
        let Some(payload) = self.heard.get(REPLY_HEADER_BYTES..end) else { return Ok(None) };
        let number = match kind {
            REPLY_GREETING if payload.starts_with(&GREETING_MAGIC) => {
                self.greeted = true;
                None
            }
            REPLY_ACKNOWLEDGE if self.greeted => le.u64(payload, 0),
            _ => None,
        };
        self.acknowledges |= number.is_some();
        self.ready |= self.acknowledges;
        self.heard.drain(..end);
        Ok(Some(number))
    }

    /// Ends a connection whose other side acknowledges nothing, and waits until it has closed its end:
    /// then it has read all.
    fn see_off(&mut self, deadline: Deadline) -> io::Result<()> {
        let _ = self.socket.shutdown(Shutdown::Write);
        while !deadline.left().is_zero() {
            self.wait(&VecDeque::new(), deadline.left());
            match self.hear() {
                Ok(()) => self.heard.clear(),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("it has not shown that it read all"))
    }

    /// Sends what the socket takes of the first `most` chunks.
    fn send(&mut self, waiting: &VecDeque<Waiting>, most: usize) -> io::Result<()> {
        while let Some(chunk) =
            waiting.get(self.sent_chunks).filter(|_| self.ready && self.sent_chunks < most)
        {
            match self.socket.write(&chunk.bytes[self.sent_bytes..]) {
                Ok(sent) => {
                    self.sent_bytes += sent;
                    if self.sent_chunks == 0 {
                        self.alive_at = Instant::now();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.sent_bytes == chunk.bytes.len() {
                self.sent_chunks += 1;
                self.sent_bytes = 0;
            }
        }
        Ok(())
    }
}
