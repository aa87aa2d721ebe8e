//! Version 2: the ring of one byte stream, as programs of the public C callsight fill it.

use std::mem::offset_of;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use callsight_format::{
    ByteOrder, Cause, END_DONE, EVENT_BYTES, Event, KIND_MARKER, LossNote, NOTE_LOSS,
    RING_HEADER_BYTES, RingHeader, note_records, note_words,
};

use crate::support::{Drain, Ring, Server, drain_binary};

/// Appends event number `call`; whether there was room.
pub fn append(ring: &Ring, capacity: u64, call: u64) -> bool {
    append_event(ring, capacity, &Event { ts: 1000 + call, func: call, tid: 9, ..Event::default() })
}

/// Whether there is room for one more, which nobody but the caller takes.
pub fn has_room(ring: &Ring, capacity: u64) -> bool {
    let word = |at: usize| ring.u64(at).load(Acquire);
    let used = word(offset_of!(RingHeader, head)) - word(offset_of!(RingHeader, tail));
    used + EVENT_BYTES as u64 <= capacity
}

fn append_event(ring: &Ring, capacity: u64, event: &Event) -> bool {
    let head = ring.u64(offset_of!(RingHeader, head));
    let lock = ring.u32(offset_of!(RingHeader, lock));
    while lock.swap(1, Acquire) != 0 {
        std::thread::yield_now();
    }
    let at = head.load(Relaxed);
    let fits = has_room(ring, capacity);
    for (index, word) in event.to_bytes(ByteOrder::NATIVE).chunks(8).enumerate() {
        let place = RING_HEADER_BYTES + ((at + 8 * index as u64) % capacity) as usize;
        if fits {
            let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
            ring.u64(place).store(word, Relaxed);
        }
    }
    if fits {
        head.store(at + EVENT_BYTES as u64, Release);
    } else {
        ring.u64(offset_of!(RingHeader, dropped)).fetch_add(1, AcqRel);
    }
    lock.store(0, Release);
    fits
}

fn name_of(path: &std::path::Path) -> String {
    format!("/{}", path.file_name().expect("a name").to_str().expect("text"))
}

#[test]
fn a_byte_ring_wraps_anywhere_and_counts_what_it_dropped() {
    // No multiple of an event: some events lie across the end.
    const CAPACITY: u64 = 5000;
    let server = Server::start();
    let ring = Ring::of_bytes("wrap", CAPACITY as u32);
    ring.begin();
    ring.writers().store(1, Release);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let stored: Vec<u64> = (1..=50_000).filter(|call| append(&ring, CAPACITY, *call)).collect();
    ring.writers().store(0, Release);
    let path = ring.unmap();
    drain.end_well();
    let capture = server.whole(0);
    let functions: Vec<u64> = capture.calls_of(9).iter().map(|event| event.func).collect();
    assert!(functions == stored);
    assert_eq!((capture.emitted(), capture.reason()), (50_000, END_DONE));
    capture.check_counts();
    assert!(!path.exists());
}

#[test]
fn the_last_drain_of_a_byte_ring_tells_what_it_dropped() {
    const CAPACITY: u64 = 3200;
    let server = Server::start();
    let ring = Ring::of_bytes("bytes-restart", CAPACITY as u32);
    ring.begin();
    ring.writers().store(1, Release);
    let mut stored = (1..=500).filter(|call| append(&ring, CAPACITY, *call)).count();
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    server.wait(0, "the first part comes", |c| c.calls_of(9).len() == stored);
    drain.signal(libc::SIGTERM);
    let (_, said) = drain.end();
    assert!(said.contains(&format!("stopped, {stored} events forwarded, 0 dropped")), "{said}");
    assert!(said.contains(&format!("left_in_ring={}", 500 - stored)), "{said}");
    stored += (501..=1000).filter(|call| append(&ring, CAPACITY, *call)).count();
    let path = ring.unmap();
    Drain::start(&drain_binary(), &name_of(&path), server.port).end_well();
    let (first, second) = (server.whole(0), server.whole(1));
    assert_eq!(first.dropped_sum(), 0);
    assert_eq!(second.dropped_sum(), 1000 - stored as u64);
    second.check_counts();
}

/// As our runtime does in front of the next event of a thread that has lost some.
fn append_loss(ring: &Ring, capacity: u64, cause: Cause, events: u64, ts: u64) {
    let note = LossNote { cause: cause as u32, events, first: ts, last: ts }.to_bytes();
    let bytes = [&(note.len() as u16).to_le_bytes()[..], &note].concat();
    for index in 0..note_records(note.len()) {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let (func, call_site) = note_words(NOTE_LOSS, index, byte);
        let kind = KIND_MARKER;
        let event = Event { ts: 1, func, call_site, tid: 9, kind, ..Event::default() };
        assert!(append_event(ring, capacity, &event));
    }
}

#[test]
fn losses_that_notes_in_a_byte_ring_tell_are_told_once() {
    const CAPACITY: u64 = 65536;
    let server = Server::start();
    let ring = Ring::of_bytes("bytes-notes", CAPACITY as u32);
    ring.begin();
    ring.writers().store(1, Release);
    let dropped = ring.u64(offset_of!(RingHeader, dropped));
    dropped.store(70, Release);
    (1..=10).for_each(|call| assert!(append(&ring, CAPACITY, call)));
    append_loss(&ring, CAPACITY, Cause::Full, 70, 5);
    // Calls before the thread was one that is recorded: in no count of the ring.
    append_loss(&ring, CAPACITY, Cause::Stopped, 4, 0);
    assert!(append(&ring, CAPACITY, 11));
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    server.wait(0, "the first part comes", |c| c.calls_of(9).len() == 11);
    dropped.store(100, Release);
    drain.signal(libc::SIGTERM);
    let (_, said) = drain.end();
    assert!(said.contains("11 events forwarded, 74 dropped (full 70, stopped 4)"), "{said}");
    assert!(said.contains("left_in_ring=30"), "{said}");
    append_loss(&ring, CAPACITY, Cause::Full, 20, 5);
    assert!(append(&ring, CAPACITY, 12));
    let path = ring.unmap();
    let said = Drain::start(&drain_binary(), &name_of(&path), server.port).end_well();
    assert!(said.contains("1 events forwarded, 30 dropped (full 30)"), "{said}");
    let (first, second) = (server.whole(0), server.whole(1));
    assert_eq!((first.dropped_for(Cause::Full), first.dropped_for(Cause::Stopped)), (70, 4));
    assert_eq!((second.emitted(), second.delivered(), second.dropped_sum()), (34, 4, 30));
}

#[test]
fn a_program_that_was_gone_before_is_delivered() {
    let server = Server::start();
    // Whether it left in order, or was killed and is still counted.
    for (stream, writers) in [0, 1].into_iter().enumerate() {
        let ring = Ring::of_bytes("gone", 65536);
        ring.begin();
        ring.writers().store(writers, Release);
        (1..=100).for_each(|call| assert!(append(&ring, 65536, call)));
        let path = ring.unmap();
        Drain::start(&drain_binary(), &name_of(&path), server.port).end_well();
        assert_eq!(server.whole(stream).calls_of(9).len(), 100);
    }
}

#[test]
fn a_lock_that_nobody_gives_back_ends_in_the_delivery_of_what_is_there() {
    let server = Server::start();
    let ring = Ring::of_bytes("held", 65536);
    ring.begin();
    (1..=10).for_each(|call| assert!(append(&ring, 65536, call)));
    ring.u32(offset_of!(RingHeader, lock)).store(1, Release);
    let path = ring.unmap();
    Drain::start(&drain_binary(), &name_of(&path), server.port).end_well();
    assert_eq!(server.whole(0).calls_of(9).len(), 10);
}

#[test]
fn a_writer_that_still_has_it_mapped_is_waited_for() {
    let server = Server::start();
    let ring = Ring::of_bytes("mapped", 65536);
    ring.begin();
    ring.writers().store(1, Release);
    let mut drain = Drain::start(&drain_binary(), &ring.name, server.port);
    assert!(append(&ring, 65536, 1));
    server.wait(0, "it comes", |c| c.calls_of(9).len() == 1);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(drain.is_running());
    assert!(append(&ring, 65536, 2));
    server.wait(0, "the second comes", |c| c.calls_of(9).len() == 2);
    ring.unmap();
    drain.end_well();
}
