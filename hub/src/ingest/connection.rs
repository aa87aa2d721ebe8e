//! One stream: socket → decoder → session, until it ends, breaks the protocol or is stopped.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::lobby::Arrival;
use super::{STOP_POLL, Server};
use crate::capture::{CaptureDir, CaptureLimits, CaptureSink};
use crate::stream::{ChunkDecoder, StreamError};
use crate::{Session, SessionMeta, Sink, Tally};

/// How long after the stop a stream that keeps sending is still read.
const STOP_GRACE: Duration = Duration::from_secs(2);

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
}

/// Serves one stream to its end.
///
/// # Errors
/// Why nothing could be received at all.
pub(super) fn serve(
    arrival: &Arrival,
    captures: &CaptureDir,
    limits: CaptureLimits,
    stop: &AtomicBool,
    server: &Server,
) -> Result<Tally, String> {
    let Arrival { socket, peer, origin, order } = arrival;
    prepare(socket).map_err(|error| error.to_string())?;
    let reserved =
        captures.reserve().map_err(|error| format!("no capture can be made for it ({error})"))?;
    let meta =
        SessionMeta { id: reserved.id(), peer: peer.to_string(), origin: *origin, order: *order };
    let sink = CaptureSink::new(reserved, limits);
    let name = sink.name();
    let say = |line: &str| server.say(&format!("{peer}: {line}"));
    let mut session = Session::start(&meta, vec![Box::new(sink)])
        .map_err(|(sink, error)| format!("{sink} cannot be begun ({error})"))?;
    let mut decoder = ChunkDecoder::new(*order);
    let ending = receive(socket, &mut decoder, &mut session, stop, &say);
    tell_ending(&ending, &decoder, &name, &say);
    let cut_records = match ending {
        // After a breach nobody knows what was meant to come.
        Ending::Breach(_) => 0,
        _ => decoder.announced_records(),
    };
    let tally = session.finish(cut_records, &say);
    server.say(&format!("{peer} -> {name} ({tally})"));
    Ok(tally)
}

/// Blocking reads that look at the stop flag, and an end for a peer that vanished: after a
/// minute of silence, then six probes 10 s apart.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(STOP_POLL))?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(socket, 6)?;
    Ok(())
}

fn receive(
    mut socket: &TcpStream,
    decoder: &mut ChunkDecoder,
    session: &mut Session,
    stop: &AtomicBool,
    say: &dyn Fn(&str),
) -> Ending {
    let mut bytes = vec![0; READ_BYTES];
    let mut stopped_at = None;
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        match socket.read(&mut bytes) {
            Ok(0) => return Ending::Closed,
            Ok(len) => {
                if let Err(error) = feed(&bytes[..len], decoder, session, say) {
                    return Ending::Breach(error);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if stopping => {
                    return Ending::Stopped;
                }
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                _ => return Ending::Broken(error),
            },
        }
        if stopping && stopped_at.get_or_insert_with(Instant::now).elapsed() > STOP_GRACE {
            return Ending::Stopped;
        }
    }
}

fn feed(
    mut bytes: &[u8],
    decoder: &mut ChunkDecoder,
    session: &mut Session,
    say: &dyn Fn(&str),
) -> Result<(), StreamError> {
    while let Some(item) = decoder.next(&mut bytes)? {
        session.take(item, say);
    }
    Ok(())
}

fn tell_ending(ending: &Ending, decoder: &ChunkDecoder, name: &str, say: &dyn Fn(&str)) {
    match ending {
        Ending::Breach(error) => say(&format!("closed: {error}; what came before is in {name}")),
        Ending::Broken(error) => say(&format!("the connection broke ({error})")),
        Ending::Stopped => say("the server stops while this stream is open"),
        Ending::Closed if !decoder.is_between_chunks() => say("it closed in the middle of a chunk"),
        Ending::Closed => {}
    }
}
