//! Static memory, a lock, and byte strings without an allocator: texts, numbers, comparison.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::sys;

/// Memory that several threads reach; every user says why it is alone with it.
#[repr(transparent)]
pub struct Shared<T>(UnsafeCell<T>);

// SAFETY: handing out a pointer is not an access; the unsafe accesses state who else may be there.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Wraps a value for a `static`.
    pub const fn new(value: T) -> Shared<T> {
        Shared(UnsafeCell::new(value))
    }

    /// Where it is.
    pub const fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// A lock for threads of one process. Its holders have blocked signals, so none of their own
/// hooks can want it.
pub struct Lock(AtomicBool);

/// The lock is held.
pub struct Held<'a>(&'a Lock);

impl Lock {
    /// A free lock.
    pub const fn new() -> Lock {
        Lock(AtomicBool::new(false))
    }

    /// Waits for the lock.
    pub fn take(&self) -> Held<'_> {
        while self.0.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            sys::yield_now();
        }
        Held(self)
    }

    /// Takes the lock where nobody has it.
    pub fn try_take(&self) -> Option<Held<'_>> {
        self.0.compare_exchange(false, true, Acquire, Relaxed).ok().map(|_| Held(self))
    }

    /// In a forked child: whoever held it lives on in the parent only.
    pub fn reset(&self) {
        self.0.store(false, Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Release);
    }
}

/// A text of at most `N` bytes, a zero byte included; what does not fit makes it `overflown`.
pub struct Text<const N: usize> {
    bytes: MaybeUninit<[u8; N]>,
    len: usize,
    overflown: bool,
}

impl<const N: usize> Text<N> {
    /// An empty text.
    pub const fn new() -> Text<N> {
        Text { bytes: MaybeUninit::uninit(), len: 0, overflown: false }
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        (self.len, self.overflown) = (0, false);
    }

    /// Adds one byte.
    pub fn push_byte(&mut self, byte: u8) {
        if self.len + 1 >= N {
            self.overflown = true;
            return;
        }
        // SAFETY: `len` is below N.
        unsafe { (self.bytes.as_mut_ptr() as *mut u8).add(self.len).write(byte) };
        self.len += 1;
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) -> &mut Self {
        for &byte in bytes {
            self.push_byte(byte);
        }
        self
    }

    /// Adds a text; what did not fit into that does not fit into this one either.
    pub fn push_text<const M: usize>(&mut self, text: &Text<M>) -> &mut Self {
        self.overflown |= text.overflown;
        self.push(text.as_bytes())
    }

    /// Whether something did not fit.
    pub fn is_overflown(&self) -> bool {
        self.overflown
    }

    /// Makes it a text in which something did not fit.
    pub fn overflow(&mut self) {
        self.overflown = true;
    }

    /// Adds a number in decimal.
    pub fn push_number(&mut self, number: u64) -> &mut Self {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push_byte(b'0' + (number % 10) as u8);
        self
    }

    /// The bytes so far.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes were written.
        unsafe { core::slice::from_raw_parts(self.bytes.as_ptr() as *const u8, self.len) }
    }

    /// The bytes and a zero byte; `None` when something did not fit.
    pub fn terminated(&mut self) -> Option<&[u8]> {
        if self.overflown {
            return None;
        }
        // SAFETY: `push_byte` keeps `len` below N, so there is room for one more byte.
        unsafe {
            let start = self.bytes.as_mut_ptr() as *mut u8;
            start.add(self.len).write(0);
            Some(core::slice::from_raw_parts(start, self.len + 1))
        }
    }
}

/// Whether `bytes` starts with `prefix`.
pub fn starts_with(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.len() >= prefix.len() && bytes.iter().zip(prefix).all(|(a, b)| a == b)
}

/// Whether both are the same bytes.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && starts_with(a, b)
}

/// The number that `bytes` spell in decimal, after any blanks; `None` for anything else.
pub fn number(bytes: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    let mut digits = 0;
    for &byte in bytes {
        match byte {
            b' ' | b'\t' if digits == 0 => {}
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                digits += 1;
            }
            _ => return None,
        }
    }
    (digits > 0).then_some(value)
}

/// What [`hash`] begins with.
pub const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

/// One byte more of an FNV-1a hash (Fowler, Noll and Vo).
pub fn hash(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
}

/// Copies as much of `from` as fits; how many bytes.
pub fn copy(to: &mut [u8], from: &[u8]) -> usize {
    let mut count = 0;
    for (to, &from) in to.iter_mut().zip(from) {
        *to = from;
        count += 1;
    }
    count
}

/// Whether `name` matches the glob: `*`, `?`, `[a-c]`, `[!x]`, everything else itself.
pub fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(&byte) = name.get(n) {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'[') => class(pattern.get(p..).unwrap_or(&[]), byte),
            Some(&same) if same == byte => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(step), _) => {
                p += step;
                n += 1;
            }
            (None, Some((after, taken))) => {
                star = Some((after, taken + 1));
                p = after;
                n = taken + 1;
            }
            (None, None) => return false,
        }
    }
    while let Some(b'*') = pattern.get(p) {
        p += 1;
    }
    p == pattern.len()
}

/// How many pattern bytes the `[...]` at the start takes, if `byte` is in it. Without a closing
/// bracket `[` stands for itself.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    let (mut at, mut found) = (first, false);
    while let Some(&low) = pattern.get(at) {
        if low == b']' && at > first {
            return (found != negated).then_some(at + 1);
        }
        if let (Some(b'-'), Some(&high)) = (pattern.get(at + 1), pattern.get(at + 2))
            && high != b']'
        {
            found |= (low..=high).contains(&byte);
            at += 3;
        } else {
            found |= low == byte;
            at += 1;
        }
    }
    (byte == b'[').then_some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_in_zero_or_says_that_it_did_not_fit() {
        let mut text = Text::<8>::new();
        text.push(b"a").push_number(1005).push(b"/");
        assert_eq!(text.terminated(), Some(&b"a1005/\0"[..]));
        text.push(b"xy");
        assert_eq!(text.terminated(), None);
    }

    #[test]
    fn numbers_are_whole_or_nothing() {
        assert_eq!(number(b" 64"), Some(64));
        assert_eq!(number(b"0"), Some(0));
        for bad in [&b""[..], b" ", b"6 4", b"-1", b"1e3", b"99999999999999999999"] {
            assert_eq!(number(bad), None);
        }
    }

    #[test]
    fn globs_match_as_in_a_shell() {
        for (pattern, name, matches) in [
            ("worker-*", "worker-12", true),
            ("worker-*", "main", false),
            ("*", "", true),
            ("w?rk", "work", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("*er*2", "worker-12", true),
            ("[", "[", true),
            ("[]]", "]", true),
            ("a*b*c", "a-b-b", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes()), matches, "{pattern} {name}");
        }
    }
}
