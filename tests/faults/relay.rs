//! A network between a drain and a server: slow, late, unsteady, breaking, hanging; by a seed.
//!
//! It works on the bytes of a connection, above TCP: a packet that is lost or overtaken shows
//! there as a wait, at most of a retransmission timeout, and that is what it makes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::seed::Chance;

/// Bytes that travel together.
const PIECE_BYTES: usize = 8 << 10;
/// Pieces under way; more wait at the sender.
const PIECES: usize = 16;
/// What a lost packet costs at least: the kernel's smallest retransmission timeout.
const RESEND: Duration = Duration::from_millis(200);

/// What the network does to a piece.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Bytes a second towards the server; 0 for any.
    pub bytes_per_second: u64,
    /// Every piece takes this long, and up to as much again.
    pub delay: Duration,
    /// Pieces in a hundred that are lost and sent again.
    pub loss_percent: u64,
    /// In ten thousand pieces, how often the connection breaks.
    pub breaks: u64,
    /// Connections that hang.
    pub hang: Option<Hang>,
}

/// Connections on which at some time nothing arrives any more, either way, though both ends are there.
#[derive(Clone, Copy, Debug)]
pub struct Hang {
    /// How many do, before the others.
    pub connections: u64,
    /// Behind how many bytes towards the server the first one does; the others at once.
    pub behind_bytes: u64,
    /// Whether bytes are taken all the same, and thrown away.
    pub swallows: bool,
}

/// A connection, as its two ways see it.
#[derive(Clone)]
struct Passage {
    weather: Weather,
    hang: Option<Hang>,
    hangs: Arc<AtomicBool>,
    /// Whether the weather is better now.
    clear: Arc<AtomicBool>,
}

impl Passage {
    fn weather(&self) -> Weather {
        if self.clear.load(Ordering::Relaxed) { Weather::default() } else { self.weather }
    }

    /// Whether so many bytes that came towards the server pass; it may be for ever that they do not.
    fn passes(&self, came: u64) -> bool {
        let Some(hang) = self.hang else { return true };
        if came > hang.behind_bytes {
            self.hangs.store(true, Ordering::Relaxed);
        }
        let hangs = self.hangs.load(Ordering::Relaxed);
        if hangs && !hang.swallows {
            loop {
                std::thread::park();
            }
        }
        !hangs
    }
}

/// A port of 127.0.0.1 behind which another one is.
pub struct Relay {
    /// Where it listens.
    pub port: u16,
    connections: Arc<AtomicU64>,
    /// Whether the weather is better now.
    clear: Arc<AtomicBool>,
}

impl Relay {
    /// Leads to port `to`. It lasts as long as this process.
    pub fn start(to: u16, weather: Weather, chance: &mut Chance) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicU64::new(0));
        let clear = Arc::new(AtomicBool::new(false));
        let (counted, cleared) = (Arc::clone(&connections), Arc::clone(&clear));
        let seed = chance.next();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                // Where nobody listens, it closes as the kernel would.
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let [out, home] = ["out", "home"].map(|way| Chance::of(seed ^ number, way));
                let mut hang = weather.hang.filter(|hang| number < hang.connections);
                if let (Some(hang), 1..) = (&mut hang, number) {
                    hang.behind_bytes = 0;
                }
                let (hangs, clear) = (Arc::default(), Arc::clone(&cleared));
                let there = Passage { weather, hang, hangs, clear };
                let mut back = there.clone();
                back.weather.bytes_per_second = 0;
                back.hang = hang.map(|hang| Hang { behind_bytes: u64::MAX, ..hang });
                carry(&near, &far, there, out);
                carry(&far, &near, back, home);
            }
        });
        Relay { port, connections, clear }
    }

    /// From now on it does no harm.
    pub fn clear_up(&self) {
        self.clear.store(true, Ordering::Relaxed);
    }

    /// How many connections there have been.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

/// A piece, and when it arrives; an empty one is the end.
type Piece = (Instant, Vec<u8>);

fn carry(from: &TcpStream, to: &TcpStream, passage: Passage, chance: Chance) {
    let (sender, receiver) = sync_channel(PIECES);
    let (source, ends) = (copy_of(from), [copy_of(from), copy_of(to)]);
    std::thread::spawn(move || take(source, &sender, &passage, chance));
    std::thread::spawn(move || deliver(ends, &receiver));
}

fn copy_of(socket: &TcpStream) -> TcpStream {
    socket.try_clone().expect("another handle of a socket")
}

fn take(mut source: TcpStream, sender: &SyncSender<Piece>, passage: &Passage, mut chance: Chance) {
    let mut bytes = [0; PIECE_BYTES];
    let mut arrives = Instant::now();
    let mut came = 0;
    loop {
        let count = source.read(&mut bytes).unwrap_or(0);
        came += count as u64;
        if !passage.passes(came) && count > 0 {
            continue;
        }
        let weather = passage.weather();
        let spread = weather.delay.mul_f64(1.0 + chance.of_range(0..1000) as f64 / 1000.0);
        // Never before what was sent before: TCP puts it in order again.
        arrives = arrives.max(Instant::now() + spread);
        if chance.holds(weather.loss_percent) {
            arrives += RESEND;
        }
        if weather.bytes_per_second > 0 {
            arrives +=
                Duration::from_secs(1).mul_f64(count as f64 / weather.bytes_per_second as f64);
        }
        let breaks = count > 0 && chance.of_range(0..10_000) < weather.breaks;
        let piece = if breaks { Vec::new() } else { bytes[..count].to_vec() };
        let is_last = piece.is_empty();
        if sender.send((arrives, piece)).is_err() || is_last {
            return;
        }
    }
}

fn deliver([from, mut to]: [TcpStream; 2], receiver: &Receiver<Piece>) {
    for (arrives, piece) in receiver {
        std::thread::sleep(arrives.saturating_duration_since(Instant::now()));
        if piece.is_empty() || to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
