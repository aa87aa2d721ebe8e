//! Connections that have not shaken hands yet.
//!
//! They cost a descriptor and 64 bytes each, no thread: somebody who connects and says nothing
//! keeps nobody out. When the lobby is full, the one that has waited longest goes.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use callsight_format::{
    ByteOrder, HANDSHAKE_BYTES, HANDSHAKE_DEADLINE_S, Handshake, HeaderError, Origin,
};

/// Most connections that wait.
const MAX_WAITING: usize = 256;

/// A connection with a whole handshake.
pub(super) struct Arrival {
    pub socket: Arc<TcpStream>,
    pub peer: SocketAddr,
    pub origin: Origin,
    pub order: ByteOrder,
}

/// What became of a connection.
pub(super) enum Outcome {
    Arrived(Arrival),
    Refused { peer: SocketAddr, reason: String },
}

struct Guest {
    socket: TcpStream,
    peer: SocketAddr,
    bytes: [u8; HANDSHAKE_BYTES],
    filled: usize,
    deadline: Instant,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Lobby {
    guests: VecDeque<Guest>,
}

impl Lobby {
    /// Lets a connection in; the outcome is that of another one which has to leave for it, or of
    /// this one where it cannot be used.
    pub fn enter(&mut self, socket: TcpStream, peer: SocketAddr) -> Option<Outcome> {
        if let Err(error) = socket.set_nonblocking(true) {
            return Some(Outcome::Refused { peer, reason: error.to_string() });
        }
        let deadline = Instant::now() + Duration::from_secs(HANDSHAKE_DEADLINE_S.into());
        let bytes = [0; HANDSHAKE_BYTES];
        self.guests.push_back(Guest { socket, peer, bytes, filled: 0, deadline });
        if self.guests.len() <= MAX_WAITING {
            return None;
        }
        let oldest = self.guests.pop_front()?;
        let reason = format!("no handshake yet, and more than {MAX_WAITING} connections wait");
        Some(Outcome::Refused { peer: oldest.peer, reason })
    }

    /// The sockets to wait for.
    pub fn sockets(&self) -> impl Iterator<Item = &TcpStream> {
        self.guests.iter().map(|guest| &guest.socket)
    }

    /// Reads what has come, and takes out everyone whose case is settled.
    pub fn look(&mut self) -> Vec<Outcome> {
        let now = Instant::now();
        let mut settled = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.look(now) {
                Ok(None) => self.guests.push_back(guest),
                Ok(Some((origin, order))) => {
                    let Guest { socket, peer, .. } = guest;
                    let socket = Arc::new(socket);
                    settled.push(Outcome::Arrived(Arrival { socket, peer, origin, order }));
                }
                Err(reason) => settled.push(Outcome::Refused { peer: guest.peer, reason }),
            }
        }
        settled
    }
}

impl Guest {
    fn look(&mut self, now: Instant) -> Result<Option<(Origin, ByteOrder)>, String> {
        while self.filled < HANDSHAKE_BYTES {
            match self.socket.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err("it closed before its handshake was whole".to_owned()),
                Ok(more) => self.filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        match Handshake::parse(&self.bytes[..self.filled]) {
            Ok(opening) => Ok(Some(opening)),
            Err(HeaderError::Short { .. }) if now < self.deadline => Ok(None),
            Err(HeaderError::Short { .. }) => {
                Err(format!("no handshake within {HANDSHAKE_DEADLINE_S} s"))
            }
            Err(HeaderError::Magic) => Err("it does not begin with a handshake".to_owned()),
            Err(error) => Err(format!("its handshake: {error}")),
        }
    }
}
