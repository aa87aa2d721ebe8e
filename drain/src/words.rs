//! The words of a version 3 ring that others than its drain and its processes may change: what the
//! ring is told to do.
//!
//! Knows nothing of pages; whoever comes here has checked that the file is a ring.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::thread;
use std::time::Duration;

use callsight_format::{COMMAND_CLOSED, RING_CONTROL_OFFSET, RingControl, RingHeader};

/// How often the lock is asked for: half a second in all, as a traced process does.
const LOCK_TRIES: u32 = 500;

/// The first page of a ring, mapped.
#[derive(Debug)]
pub struct RingWords {
    base: *mut u8,
}

/// Bytes that are mapped: header and control block.
const MAPPED_BYTES: usize = 4096;

impl RingWords {
    /// Maps the start of a ring that was opened for reading and writing.
    ///
    /// # Errors
    /// Why it cannot be mapped; a file shorter than a page cannot.
    pub fn map(ring: &File) -> io::Result<RingWords> {
        if ring.metadata()?.len() < MAPPED_BYTES as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (shared, file) = (libc::MAP_SHARED, ring.as_raw_fd());
        // SAFETY: a new mapping, of a file that has these bytes; nothing of ours is replaced.
        let base = unsafe { libc::mmap(ptr::null_mut(), MAPPED_BYTES, access, shared, file, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(RingWords { base: base.cast() })
    }

    /// Tells the ring what to do (`COMMAND_*`); `false` where it is finished, and stays so.
    pub fn tell(&self, command: u32) -> bool {
        // One exchange needs no lock: a drain that closes the ring wins, before or after it.
        let told = |now| (now != COMMAND_CLOSED).then_some(command);
        self.command().fetch_update(AcqRel, Acquire, told).is_ok()
    }

    /// Finishes the ring, so that a process which comes to it makes a new one, unless `is_used`
    /// says that somebody has come; whether it is finished now.
    pub fn close_unless(&self, is_used: impl FnOnce() -> bool) -> bool {
        let locked = self.lock();
        let closes = locked && !is_used();
        if closes {
            self.command().store(COMMAND_CLOSED, Release);
        }
        if locked {
            self.lock_word().store(0, Release);
        }
        closes
    }

    /// The lock for attaching and detaching, which holds its owner's thread id.
    fn lock(&self) -> bool {
        let word = self.lock_word();
        let me = std::process::id();
        for _ in 0..LOCK_TRIES {
            let owner = word.load(Relaxed);
            let is_free = owner == 0 || is_gone(owner);
            if is_free && word.compare_exchange(owner, me, AcqRel, Relaxed).is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    fn lock_word(&self) -> &AtomicU32 {
        self.word(offset_of!(RingHeader, lock))
    }

    fn command(&self) -> &AtomicU32 {
        self.word(RING_CONTROL_OFFSET + offset_of!(RingControl, command))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is the offset of an aligned field in the mapped page, which lives as long
        // as `self`, and which everybody changes by atomic operations only.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }
}

impl Drop for RingWords {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.cast(), MAPPED_BYTES) };
    }
}

fn is_gone(thread: u32) -> bool {
    let Ok(thread) = i32::try_from(thread) else { return true };
    // SAFETY: signal 0 only asks.
    let asked = unsafe { libc::kill(thread, 0) };
    asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsight_format::{COMMAND_PAUSE, COMMAND_RECORD};
    use std::os::unix::fs::FileExt;

    fn ring(command: u32, lock: u32) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(MAPPED_BYTES as u64).expect("its size");
        let at = RING_CONTROL_OFFSET + offset_of!(RingControl, command);
        file.write_all_at(&command.to_ne_bytes(), at as u64).expect("its command");
        file.write_all_at(&lock.to_ne_bytes(), offset_of!(RingHeader, lock) as u64)
            .expect("its lock");
        file
    }

    fn word(file: &File, at: usize) -> u32 {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, at as u64).expect("a word");
        u32::from_ne_bytes(bytes)
    }

    fn command(file: &File) -> u32 {
        word(file, RING_CONTROL_OFFSET + offset_of!(RingControl, command))
    }

    #[test]
    fn a_finished_ring_is_told_nothing() {
        let file = ring(COMMAND_RECORD, 0);
        let words = RingWords::map(&file).expect("a map");
        assert!(words.tell(COMMAND_PAUSE));
        assert_eq!(command(&file), COMMAND_PAUSE);
        assert!(words.close_unless(|| false));
        assert!(!words.tell(COMMAND_RECORD));
        assert_eq!(command(&file), COMMAND_CLOSED);
    }

    #[test]
    fn a_ring_is_not_finished_while_somebody_uses_it_or_holds_its_lock() {
        let file = ring(COMMAND_RECORD, 0);
        assert!(!RingWords::map(&file).expect("a map").close_unless(|| true));
        let held = ring(COMMAND_RECORD, std::process::id());
        assert!(!RingWords::map(&held).expect("a map").close_unless(|| false));
        for file in [file, held] {
            assert_eq!(command(&file), COMMAND_RECORD);
        }
    }

    #[test]
    fn the_lock_of_a_dead_thread_is_taken_over_and_given_back() {
        let file = ring(COMMAND_RECORD, i32::MAX as u32);
        assert!(RingWords::map(&file).expect("a map").close_unless(|| false));
        assert_eq!(word(&file, offset_of!(RingHeader, lock)), 0);
    }

    #[test]
    fn what_is_shorter_than_a_page_is_not_mapped() {
        let file = tempfile::tempfile().expect("a file");
        assert!(RingWords::map(&file).is_err());
    }
}
