//! One drain after another on the same ring, and two at once.

use callsight_format::{
    Cause, END_DONE, END_STOPPED, EVENT_BYTES, PAGE_RETIRED, PageHeader, RingControl, RingLayout,
    RingWriter,
};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::support::{
    Capture, Drain, Ring, Server, TestProcess, Writer, drain_binary, wait_until, writer_at,
};

fn functions(capture: &Capture) -> Vec<u64> {
    capture.calls_of(9).iter().map(|event| event.func).collect()
}

/// As a drain leaves a page of the first writer that is killed while it frees it.
fn leave_half_freed(ring: &Ring, page: u32) {
    let at = ring.page(page);
    ring.free_bits(page).fetch_and(!(1 << (page % 64)), AcqRel);
    ring.u64(at + offset_of!(PageHeader, owner)).store(PAGE_RETIRED | 1, Relaxed);
    ring.u32(at + offset_of!(PageHeader, read)).store(RingLayout::of(1 << 20).page_bytes, Relaxed);
}

/// A drain ended by `signal` and its successor together bring every event once.
fn one_after_another(name: &str, signal: i32) {
    let server = Server::start();
    let ring = Ring::new(name, 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    let mut call = 0;
    let mut store = |count: u64| {
        for _ in 0..count {
            call += 1;
            assert!(writer.store(call));
        }
    };
    store(3000);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    server.wait(0, "the first part comes", |c| c.calls_of(9).len() == 3000);
    store(7);
    server.wait(0, "a part of a page comes", |c| c.calls_of(9).len() == 3007);
    // Taken, and `read` advanced: a drain that is killed here has nothing under way.
    let tail = offset_of!(callsight_format::RingHeader, tail);
    wait_until("the read position follows", || ring.u64(tail).load(Acquire) == 3007 * 32);
    drain.signal(signal);
    let (code, said) = drain.end();
    assert_eq!(code, (signal == libc::SIGTERM).then_some(0), "{said}");
    if signal == libc::SIGTERM {
        assert_eq!(server.whole(0).reason(), END_STOPPED);
        assert!(said.contains("stopped, 3007 events forwarded, 0 dropped"), "{said}");
    }
    assert!(ring.path().exists());
    let claims = ring.control(offset_of!(RingControl, drain_start)).load(Acquire) != 0;
    assert_eq!(claims, signal == libc::SIGKILL, "it gives its claim back if it can");
    if signal == libc::SIGKILL {
        ring.u64(tail).store(0, Relaxed);
        leave_half_freed(&ring, 63);
    }
    store(2000);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    drop(process);
    drain.end_well();
    assert_eq!(ring.u64(tail).load(Acquire), 5007 * 32);
    let (first, second) = (server.whole(0), server.whole(1));
    assert_eq!(functions(&first), (1..=3007).collect::<Vec<_>>());
    assert_eq!(functions(&second), (3008..=5007).collect::<Vec<_>>());
    assert_eq!(second.reason(), END_DONE);
    assert_eq!((second.emitted(), second.delivered()), (2000, 2000));
}

#[test]
fn a_name_that_a_next_drain_tells_is_no_older_than_what_it_stands_behind() {
    let server = Server::start();
    let ring = Ring::new("named-again", 1 << 20);
    let process = TestProcess::start();
    let tid = process.process.pid;
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, tid);
    assert!((1..=10).all(|call| writer.store(call)));
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let last =
        server.wait(0, "the calls come", |c| c.calls_of(tid).len() == 10).calls_of(tid)[9].ts;
    let tail = offset_of!(callsight_format::RingHeader, tail);
    wait_until("the read position follows", || ring.u64(tail).load(Acquire) == 10 * 32);
    drain.signal(libc::SIGTERM);
    drain.end();
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let capture = server.wait(1, "the name comes", |c| c.events.iter().any(|e| e.tid == tid));
    let times = capture.events.iter().filter(|event| event.tid == tid).map(|event| event.ts);
    assert!(times.min().is_some_and(|ts| ts >= last), "{:?}", capture.events);
    drop(process);
    drain.end_well();
}

#[test]
fn a_stopped_drain_leaves_the_rest_to_the_next() {
    one_after_another("stopped", libc::SIGTERM);
}

#[test]
fn a_killed_drain_is_succeeded_without_a_gap_or_a_repeat() {
    one_after_another("drain-killed", libc::SIGKILL);
}

/// What the loss notes of thread 9 tell.
fn told(capture: &Capture) -> u64 {
    capture.losses_of(9).iter().map(|loss| loss.events).sum()
}

/// Losses before, during, between and at the end of two drains are told by one of them.
fn losses_over_two_drains(name: &str, signal: i32) {
    const NO_SLOT: u64 = 17;
    let server = Server::start();
    let ring = Ring::new(name, 4096);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    writer.tells_losses = true;
    let mut emitted = 0;
    let mut store = |writer: &mut Writer<'_>, count: u64| {
        (0..count).for_each(|_| {
            emitted += 1;
            writer.store(emitted);
        });
        emitted
    };
    store(&mut writer, 1000);
    let before = writer.lost();
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    // Pages are free again, so it tells what it lost, and loses more.
    wait_until("the first loss is told", || {
        store(&mut writer, 100);
        !server.capture(0).losses_of(9).is_empty()
    });
    let tail = ring.u64(offset_of!(callsight_format::RingHeader, tail));
    wait_until("all has come and nothing is under way", || {
        let records = server.events(0);
        let stored = ring.u64(offset_of!(callsight_format::RingHeader, dropped));
        stored.load(Acquire) == writer.lost()
            && tail.load(Acquire) == (records * EVENT_BYTES) as u64
    });
    drain.signal(signal);
    let (_, said) = drain.end();
    let first = server.whole(0);
    // One note in the ring at the takeover, and losses behind it that no note tells.
    store(&mut writer, 1000);
    ring.control(offset_of!(RingControl, no_slot)).store(NO_SLOT, Relaxed);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    wait_until("the next drain brings notes", || {
        store(&mut writer, 100);
        server.capture(1).losses_of(9).len() >= 2
    });
    let all = store(&mut writer, 1000);
    let lost = writer.lost();
    drop(process);
    let said_last = drain.end_well();
    let second = server.whole(1);
    assert!(before > 0 && told(&first) >= before && told(&first) < lost);
    assert_eq!(told(&first) + told(&second), lost, "by notes: once");
    // Whoever has none of the notes but the last knows all the same.
    assert!(second.blocks == 0 || second.lost_total == lost, "{}", second.lost_total);
    let calls = [&first, &second].map(|capture| functions(capture).len() as u64);
    assert_eq!(calls[0] + calls[1] + lost, all);
    if signal == libc::SIGTERM {
        assert_eq!((first.reason(), first.dropped_sum()), (END_STOPPED, told(&first)));
        let line = format!("{} events forwarded, {} dropped", calls[0], told(&first));
        assert!(said.contains(&line), "{said}");
    }
    assert_eq!(second.dropped_sum(), told(&second) + NO_SLOT);
    second.check_counts();
    let line = format!("{} events forwarded, {} dropped", calls[1], second.dropped_sum());
    assert!(said_last.contains(&line), "{said_last}");
}

#[test]
fn a_loss_is_told_by_the_stopped_drain_or_by_the_next() {
    losses_over_two_drains("losses-stopped", libc::SIGTERM);
}

#[test]
fn a_loss_is_told_by_the_killed_drain_or_by_the_next() {
    losses_over_two_drains("losses-killed", libc::SIGKILL);
}

/// The writer of a dead process with 5 records and 3 drops is freed by a drain that is killed behind
/// `stores` steps of moving one of its counts, which `pad` names, and then by another one.
fn freed_by_two(pad: u32, count: u64, stores: usize) {
    let server = Server::start();
    let ring = Ring::new(&format!("freed-{pad}-{stores}"), 65536);
    let mut process = TestProcess::start();
    ring.attach(0, process.process);
    Writer::new(&ring, process.process, 9);
    process.kill(true);
    let writer = |at: usize| ring.u64(writer_at(0) + at);
    let dropped = offset_of!(RingWriter, dropped) + 8 * Cause::Full as usize;
    let retired = ring.control(offset_of!(RingControl, retired_emitted));
    let full = offset_of!(RingControl, retired_dropped) + 8 * Cause::Full as usize;
    let retired_full = ring.control(full);
    writer(offset_of!(RingWriter, stored)).store(5, Relaxed);
    writer(dropped).store(3, Relaxed);
    writer(offset_of!(RingWriter, told)).store(3, Relaxed);
    // What was retired before, and what it comes to with this count.
    retired.store(100, Relaxed);
    retired_full.store(10, Relaxed);
    writer(offset_of!(RingWriter, untold_first)).store(100 + count, Relaxed);
    writer(offset_of!(RingWriter, untold_last)).store(10 + count, Relaxed);
    ring.u32(writer_at(0) + offset_of!(RingWriter, moves)).store(pad, Relaxed);
    let of_cause = pad == Cause::Full as u32 + 1;
    let moved = if of_cause { dropped } else { offset_of!(RingWriter, stored) };
    let steps: [&dyn Fn(); 3] = [
        &|| retired.store(100 + count, Relaxed),
        &|| retired_full.store(10 + if of_cause { count } else { 0 }, Relaxed),
        &|| writer(moved).store(0, Relaxed),
    ];
    steps[..stores].iter().for_each(|step| step());
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    assert_eq!((retired.load(Acquire), retired_full.load(Acquire)), (108, 13), "{pad} {stores}");
    assert_eq!(ring.u32(writer_at(0)).load(Acquire), 0, "the slot is free");
}

#[test]
fn a_writer_is_counted_once_wherever_the_drain_that_frees_it_is_killed() {
    for stores in 0..=3 {
        freed_by_two(Cause::Full as u32 + 1, 3, stores);
        freed_by_two(callsight_format::RING_CAUSES as u32 + 1, 5, stores);
    }
}

#[test]
fn a_second_drain_is_refused() {
    let server = Server::start();
    let ring = Ring::new("second", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let first = Drain::start(&drain_binary(), &ring.name, server.port);
    server.wait(0, "the first is at work", |c| !c.hello.is_empty());
    let (code, said) = Drain::start(&drain_binary(), &ring.name, server.port).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("another trace_stream is reading it"), "{said}");
    drop(process);
    first.end_well();
}

#[test]
fn a_drain_that_only_left_its_pid_counts_too() {
    let server = Server::start();
    let ring = Ring::new("pid", 65536);
    let (other, process) = (TestProcess::start(), TestProcess::start());
    ring.attach(0, process.process);
    let words = u64::from(other.process.pid) << if cfg!(target_endian = "big") { 0 } else { 32 };
    // `command` and `drain_pid` are one aligned word of eight bytes.
    ring.control(offset_of!(RingControl, command)).fetch_or(words, Relaxed);
    ring.control(offset_of!(RingControl, drain_start)).store(other.process.start, Relaxed);
    let (code, said) = Drain::start(&drain_binary(), &ring.name, server.port).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&format!("process {} is reading it", other.process.pid)), "{said}");
    drop(other);
    drop(process);
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
}

#[test]
fn a_server_that_goes_away_is_named_and_kills_nobody() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let ring = Ring::new("server-gone", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    let drain = Drain::start(&drain_binary(), &ring.name, port);
    let (socket, _) = listener.accept().expect("the drain connects");
    drop((socket, listener));
    (1..=1000).for_each(|call| assert!(writer.store(call)));
    let (code, said) = drain.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("send to 127.0.0.1 port {port}: ")), "{said}");
    assert!(ring.path().exists(), "the ring is there for the next drain");
    let last = said.lines().last().expect("a line");
    assert!(last.contains("stopped, ") && last.contains("left_in_ring="), "{said}");
    let server = Server::start();
    drop(process);
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    let rest = functions(&server.whole(0));
    let first = rest.first().copied().unwrap_or(1001);
    assert_eq!(rest, (first..=1000).collect::<Vec<_>>(), "no gap in the rest");
}
