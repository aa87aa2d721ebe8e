//! What a server says to a sender: greeting and acknowledgements, without ever waiting.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use callsight_format::{REPLY_ACKNOWLEDGE, REPLY_GREETING, greeting, reply};
use rustix::net::{SendFlags, send};

/// At most one acknowledgement in this time, ...
const PAUSE: Duration = Duration::from_millis(10);
/// ... but for streams that bring this much meanwhile.
const PAUSE_BYTES: usize = 1 << 20;

/// The replies on one connection.
pub(super) struct Replies {
    /// What the socket has not taken yet.
    pending: Vec<u8>,
    /// The last number told; `None` before the first.
    told: Option<u64>,
    told_at: Instant,
    bytes_since: usize,
}

impl Replies {
    /// Greets at once: a sender that hears nothing takes us for a server of version 2.
    pub fn greet(socket: &TcpStream) -> Replies {
        let mut replies =
            Replies { pending: Vec::new(), told: None, told_at: Instant::now(), bytes_since: 0 };
        replies.push(REPLY_GREETING, greeting());
        replies.send(socket);
        replies
    }

    /// Tells what is there of the stream.
    pub fn begin(mut self, acknowledged: u64) -> Replies {
        self.acknowledge(acknowledged);
        self
    }

    /// Counts bytes that came.
    pub fn received(&mut self, bytes: usize) {
        self.bytes_since += bytes;
    }

    /// Tells the number where it is due.
    pub fn tell(&mut self, acknowledged: u64) {
        let due = self.told_at.elapsed() >= PAUSE || self.bytes_since >= PAUSE_BYTES;
        if due && self.pending.is_empty() && self.told.is_none_or(|told| acknowledged > told) {
            self.acknowledge(acknowledged);
        }
    }

    /// Whether `acknowledged` has been told and is on its way.
    pub fn has_told(&self, acknowledged: u64) -> bool {
        self.told == Some(acknowledged) && self.pending.is_empty()
    }

    /// Gives the socket what it takes now. A connection that broke is found out by reading.
    pub fn send(&mut self, socket: &TcpStream) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while !self.pending.is_empty() {
            match send(socket, &self.pending, flags) {
                Ok(sent) if sent > 0 => drop(self.pending.drain(..sent)),
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }

    fn acknowledge(&mut self, number: u64) {
        self.push(REPLY_ACKNOWLEDGE, number.to_le_bytes());
        self.told = Some(number);
        self.told_at = Instant::now();
        self.bytes_since = 0;
    }

    fn push<const N: usize>(&mut self, kind: u32, payload: [u8; N]) {
        let (header, payload) = reply(kind, payload);
        self.pending.extend(header);
        self.pending.extend(payload);
    }
}
