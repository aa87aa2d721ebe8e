//! Whose turn it is to make the ring of a name: programs that start together would each take the memory
//! of a whole ring before they see who was first, and a small /dev/shm has no room for that.
//!
//! The turn is the lock of an empty file beside the ring; it ends with its holder, however that ends.
//! Nothing but memory hangs on it, for who makes a ring first is decided by the name alone: where turns
//! cannot be taken nobody waits, and for a holder that is stopped nobody waits long.

use callsight_format::RING_UNBORN_PREFIX;

use crate::bytes::Text;
use crate::sys::{self, EAGAIN, Fd, O_CREAT, O_NOFOLLOW, O_RDWR};

/// No process has such a number (2^22 is the most), so that a file named by it is taken for what a maker
/// has left who is gone, and goes as that does.
pub const FIRST_NUMBER: u32 = 4_194_304_000;
const NUMBERS: u32 = 100_000_000;
/// How long one holder is waited for at least. To make 16 MiB takes 10 ms.
const PATIENCE_MS: u64 = 500;
/// How many holders, one after the other.
const HOLDERS: u64 = 4;

/// See the module.
pub struct Turn {
    path: Text<64>,
    patience_ms: u64,
    held: Option<Fd>,
    /// Device and number of the file whose lock is waited for, and since when.
    awaited: (u64, u64),
    awaited_ms: u64,
    waited_ms: u64,
}

impl Turn {
    /// Of the ring `name`, that has so many bytes. It is nobody's yet.
    pub fn of(name: &[u8], ring_bytes: u64) -> Turn {
        // FNV-1a; two names of one number take turns with each other.
        let hash = name.iter().fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let mut path = Text::new();
        path.push(b"/dev/shm/")
            .push(RING_UNBORN_PREFIX.as_bytes())
            .push_number(u64::from(FIRST_NUMBER + hash % NUMBERS));
        // 1 ms for each MiB, which a slow machine fills in that time.
        let patience_ms = PATIENCE_MS + (ring_bytes >> 20);
        let (awaited, awaited_ms, waited_ms) = ((0, 0), 0, 0);
        Turn { path, patience_ms, held: None, awaited, awaited_ms, waited_ms }
    }

    /// Whether it is ours now; where not, a while has passed.
    pub fn is_ours(&mut self) -> bool {
        let Some(path) = self.path.terminated() else { return true };
        let Ok(file) = Fd::open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0o600) else { return true };
        match file.try_lock() {
            Ok(()) if is_named(path, &file) => {
                self.held = Some(file);
                true
            }
            // Where it was free its last holder has just removed it.
            Ok(()) | Err(EAGAIN) => {
                self.wait_for(&file);
                self.waited_ms >= HOLDERS * self.patience_ms
            }
            Err(_) => true,
        }
    }

    fn wait_for(&mut self, file: &Fd) {
        let seen = file.stat().map_or((0, 0), |stat| (stat.dev, stat.ino));
        if seen != self.awaited {
            (self.awaited, self.awaited_ms) = (seen, 0);
        }
        // Hundreds may wait.
        let nap_ms = if self.awaited_ms < 16 { 1 } else { 4 };
        sys::sleep_ns(nap_ms * 1_000_000);
        self.awaited_ms += nap_ms;
        self.waited_ms += nap_ms;
        if self.awaited_ms >= self.patience_ms {
            self.remove(file);
        }
    }

    /// Removes the name of this file; whoever waits goes on with another.
    fn remove(&mut self, file: &Fd) {
        if let Some(path) = self.path.terminated()
            && is_named(path, file)
        {
            let _ = sys::unlink(path);
        }
    }

    /// The next one's.
    pub fn end(&mut self) {
        if let Some(file) = self.held.take() {
            self.remove(&file);
            // A child that was forked meanwhile has the descriptor, too.
            file.unlock();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the name `path` is that of `file` still.
fn is_named(path: &[u8], file: &Fd) -> bool {
    let same = |named: Fd| named.stat().is_ok_and(|named| file.stat() == Ok(named));
    Fd::open(path, O_RDWR | O_NOFOLLOW, 0).is_ok_and(same)
}
