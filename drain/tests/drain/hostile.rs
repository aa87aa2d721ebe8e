//! Rings that lie: refused with a sentence, or read without harm; never a signal, never a hang.

use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};

use callsight_format::{
    PAGE_HEADER_BYTES, PageHeader, RING_BITMAP_OFFSET, RING_CONTROL_BYTES, RING_CONTROL_OFFSET,
    RING_HEADER_BYTES, RING_PROCESSES_OFFSET, RING_VERSION_STREAM, RING_WRITERS_OFFSET,
    RingControl, RingHeader,
};

use crate::support::{
    Drain, Process, Ring, Server, TestProcess, Writer, drain_binary, own_pid_namespace,
    sanitized_binary,
};

/// Runs the drain on a ring that may be anything; its exit code.
fn survives(binary: &Path, ring: &Ring, server: &Server, what: &str) -> i32 {
    let mut drain = Drain::start(binary, &ring.name, server.port);
    // A ring may claim that some process is still at work, and then we have to say when to end.
    drain.stop_after(std::time::Duration::from_millis(300));
    let (code, said) = drain.end();
    let code = code.unwrap_or_else(|| panic!("{what}: ended by a signal: {said}"));
    assert!([0, 2].contains(&code), "{what}: {said}");
    assert_eq!(code == 2, !said.contains(" events forwarded"), "{what}: {said}");
    code
}

fn filled(name: &str) -> Ring {
    let ring = Ring::new(name, 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    (1..=40).for_each(|call| assert!(writer.store(call)));
    ring
}

#[test]
fn every_word_of_the_header_may_lie() {
    let server = Server::start();
    let sizes = [
        offset_of!(RingHeader, version),
        offset_of!(RingHeader, capacity),
        RING_CONTROL_OFFSET + offset_of!(RingControl, page_bytes),
        RING_CONTROL_OFFSET + offset_of!(RingControl, page_count),
        RING_CONTROL_OFFSET + offset_of!(RingControl, slot_count),
        RING_CONTROL_OFFSET + offset_of!(RingControl, pages_offset),
    ];
    let words: Vec<usize> = (0..RING_CONTROL_OFFSET + RING_CONTROL_BYTES).step_by(4).collect();
    std::thread::scope(|scope| {
        // Half of the time is waiting, so several at once.
        for (lane, words) in words.chunks(11).enumerate() {
            let (server, sizes) = (&server, &sizes);
            scope.spawn(move || {
                for at in words {
                    lie_in_word(&filled(&format!("header-{lane}-{at}")), *at, sizes, server);
                }
            });
        }
    });
}

fn lie_in_word(ring: &Ring, at: usize, sizes: &[usize], server: &Server) {
    let true_value = ring.u32(at).load(Relaxed);
    for lie in [0, 1, u32::MAX, true_value.wrapping_add(1), true_value.wrapping_sub(1)] {
        // Nobody has attached yet, or there is no ring yet: it waits, as it must.
        let waits = lie == 0 && (at < 8 || (80..88).contains(&at));
        let other_version = at == offset_of!(RingHeader, version) && lie == RING_VERSION_STREAM;
        if lie == true_value || waits || other_version || !ring.path().exists() {
            continue;
        }
        ring.u32(at).store(lie, Release);
        let code = survives(&drain_binary(), ring, server, &format!("{lie:#x} at {at}"));
        if sizes.contains(&at) || at < 8 {
            assert_eq!(code, 2, "{lie:#x} at {at}");
        }
        ring.u32(at).store(true_value, Release);
    }
}

#[test]
fn the_tables_and_pages_may_hold_anything() {
    let server = Server::start();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // Small numbers pass more checks than large ones.
        if seed & 3 == 0 { seed >> 8 } else { (seed >> 8) & 0x7f }
    };
    for round in 0..12 {
        let ring = filled(&format!("tables-{round}"));
        let pages = ring.page(0);
        for _ in 0..300 {
            let (from, to) = match random() % 4 {
                0 => (RING_BITMAP_OFFSET, RING_PROCESSES_OFFSET),
                1 => (RING_PROCESSES_OFFSET, RING_WRITERS_OFFSET),
                2 => (RING_WRITERS_OFFSET, pages),
                _ => (pages, ring.bytes()),
            };
            let at = from + random() as usize % (to - from);
            ring.u64(at / 8 * 8).store(random(), Release);
        }
        survives(&sanitized_binary(), &ring, &server, &format!("round {round}"));
    }
}

#[test]
fn a_page_header_that_lies_is_named() {
    let server = Server::start();
    let owner = offset_of!(PageHeader, owner);
    let read = offset_of!(PageHeader, read);
    for (at, value) in [
        (owner, 1 << 40),
        (owner, u64::MAX),
        (owner, 129),
        (read, 1),
        (read, 63),
        (read, 65),
        (read, 1025),
        (read, 0xffff_ffff),
    ] {
        let ring = filled("page");
        ring.u64(ring.page(0) + at).store(value, Release);
        let (code, said) = Drain::start(&drain_binary(), &ring.name, server.port).end();
        assert_eq!(code, Some(2), "{value:#x}: {said}");
        assert!(said.contains("page 0 is damaged"), "{said}");
    }
}

#[test]
fn a_ring_cut_short_is_refused_wherever_it_is_cut() {
    let server = Server::start();
    let whole = filled("whole").bytes() as u64;
    for bytes in [RING_HEADER_BYTES as u64, 255, 4095, 4096, 5000, whole - 4096, whole - 1] {
        let ring = filled("short");
        ring.file().set_len(bytes).expect("cut it");
        let (code, said) = Drain::start(&drain_binary(), &ring.name, server.port).end();
        assert_eq!(code, Some(2), "{bytes}: {said}");
        assert!(said.contains("states more bytes than it has"), "{bytes}: {said}");
    }
}

#[test]
fn a_ring_cut_short_under_the_drain_ends_it_with_a_sentence() {
    let server = Server::start();
    for bytes in [0, 4096, 12288 + PAGE_HEADER_BYTES as u64] {
        let ring = Ring::new("shrunk", 1 << 20);
        ring.attach(0, Process::this());
        let drain = Drain::start(&drain_binary(), &ring.name, server.port);
        std::thread::sleep(std::time::Duration::from_millis(100));
        ring.file().set_len(bytes).expect("cut it");
        let (code, said) = drain.end();
        assert_eq!(code, Some(2), "{bytes}: {said}");
        assert!(said.contains("made smaller while it was in use"), "{bytes}: {said}");
    }
}

#[test]
fn a_ring_of_another_pid_namespace_is_refused_and_left_as_it_is() {
    let server = Server::start();
    let start = |ring: &Ring| Drain::start(&drain_binary(), &ring.name, server.port);
    let ring = filled("foreign");
    ring.made_in(own_pid_namespace() + 1);
    let before = std::fs::read(ring.path()).expect("read it");
    let (code, said) = start(&ring).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("it is of another pid namespace") && said.lines().count() == 1, "{said}");
    assert!(std::fs::read(ring.path()).expect("it is there") == before, "it was changed");
    // One of here, whose process is dead by now.
    ring.made_in(own_pid_namespace());
    let said = start(&ring).end_well();
    assert!(said.contains("40 events forwarded"), "{said}");
}

#[test]
fn a_drain_that_cannot_know_who_lives_waits_for_no_ring() {
    let name = format!("/callsight-test-{}-unseen", std::process::id());
    let mut command = std::process::Command::new("unshare");
    // Its /proc is still that of the test.
    command.args(["--map-root-user", "--pid", "--fork"]).arg(drain_binary());
    command.args([&name, "127.0.0.1", "9"]);
    let (code, said) = Drain::of(command).end();
    if said.starts_with("unshare: ") {
        return eprintln!("SKIP a_drain_that_cannot_know_who_lives_waits_for_no_ring: {said}");
    }
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/proc is that of another pid namespace"), "{said}");
}

#[test]
fn a_file_without_a_header_is_refused_after_a_while() {
    let ring = filled("empty");
    ring.u64(0).store(0, Release);
    let (code, said) = Drain::start(&drain_binary(), &ring.name, 9).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("it has no header"), "{said}");
}

#[test]
fn a_byte_ring_that_lies_is_refused() {
    let server = Server::start();
    let head = offset_of!(RingHeader, head);
    let tail = offset_of!(RingHeader, tail);
    for (at, value) in [(head, 1 << 40), (head, 65537), (tail, 1), (tail, u64::MAX / 2)] {
        let ring = Ring::of_bytes("lies", 65536);
        ring.begin();
        ring.u64(at).store(value, Release);
        let (code, said) = Drain::start(&drain_binary(), &ring.name, server.port).end();
        assert_eq!(code, Some(2), "{value:#x} at {at}: {said}");
        assert!(said.contains("more bytes than it has room for"), "{said}");
    }
    for capacity in [0, 1, 31, 65537, u32::MAX] {
        let ring = Ring::of_bytes("size", 65536);
        ring.begin();
        ring.u32(offset_of!(RingHeader, capacity)).store(capacity, Release);
        let (code, said) = Drain::start(&drain_binary(), &ring.name, server.port).end();
        assert_eq!(code, Some(2), "{capacity}: {said}");
    }
}
