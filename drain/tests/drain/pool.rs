//! Version 3: what reaches the server, in which order, and what is told of the rest.

use std::path::Path;

use callsight_format::{
    Cause, END_DONE, Event, HELLO_ARCH, HELLO_BUILD_ID, HELLO_CLOCK, HELLO_EXE, HELLO_HOSTNAME,
    HELLO_OS, HELLO_PID, LossNote, NOTE_LOSS, NOTE_PROCESS, Origin, PROCESS_FREE, PageHeader,
    ProcessNote, RingControl, RingHeader, RingProcess,
};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::support::{
    Capture, Drain, Process, Ring, Server, TestProcess, Writer, drain_binary, sanitized_binary,
    wait_until, writer_at,
};

/// The functions entered by a thread, in order.
fn functions(capture: &Capture, tid: u32) -> Vec<u64> {
    capture.calls_of(tid).iter().map(|event| event.func).collect()
}

#[test]
fn the_handshake_and_the_hello_say_who_sends() {
    let server = Server::start();
    let ring = Ring::new("hello", 65536);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut process = TestProcess::start();
    ring.attach(0, process.process);
    let capture = server.wait(0, "the hello comes", |c| !c.hello.is_empty());
    let origin = Origin {
        flags: 1,
        load_bias: 0x5555_0000,
        tick_hz: 1_000_000_000,
        t0_ticks: 77,
        t0_ns: 88,
        hook_ns: 12,
    };
    assert_eq!(capture.origin, Some(origin));
    let field = |key| capture.hello.iter().find(|(k, _)| *k == key).map(|(_, v)| v.clone());
    assert_eq!(field(HELLO_PID), Some(process.process.pid.to_le_bytes().to_vec()));
    let exe = std::fs::read_link(format!("/proc/{}/exe", process.process.pid)).expect("an exe");
    assert_eq!(field(HELLO_EXE), Some(exe.to_str().expect("a path").as_bytes().to_vec()));
    assert_eq!(field(HELLO_BUILD_ID).map(|id| id.len()), Some(20));
    assert_eq!(field(HELLO_ARCH), Some(std::env::consts::ARCH.as_bytes().to_vec()));
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    assert_eq!(field(HELLO_CLOCK), Some(boot_id.trim().as_bytes().to_vec()));
    assert!(field(HELLO_OS).is_some_and(|os| os.starts_with(b"Linux ")));
    assert!(field(HELLO_HOSTNAME).is_some());
    process.kill(true);
    drain.end_well();
}

#[test]
fn a_quiet_threads_event_arrives_while_it_lives() {
    let server = Server::start();
    let ring = Ring::new("quiet", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut writer = Writer::new(&ring, process.process, 7);
    for call in 1..=3 {
        assert!(writer.store(call));
        server.wait(0, "the event arrives", |c| c.calls_of(7).len() == call as usize);
    }
    assert!(drain.is_running());
    drop(process);
    drain.end_well();
    assert!(!ring.path().exists(), "the name is gone with the last process");
}

/// Eight threads in a ring too small for them: all of it, in order, or told.
fn overload(binary: &Path, name: &str, calls: u64) {
    let server = Server::start();
    let ring = Ring::new(name, 64 << 10);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = Drain::start(binary, &ring.name, server.port);
    let stored: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|tid| {
                let mut writer = Writer::new(&ring, process.process, 100 + tid);
                writer.keeps_full_page = tid % 2 == 0;
                scope.spawn(move || {
                    let stored = (1..=calls).filter(|call| writer.store(*call)).collect();
                    writer.retire();
                    stored
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    drop(process);
    drain.end_well();
    let capture = server.whole(0);
    for (tid, stored) in (100..).zip(&stored) {
        assert!(functions(&capture, tid) == *stored, "thread {tid}");
        let told: u64 = capture.losses_of(tid).iter().map(|loss| loss.events).sum();
        assert_eq!(told, calls - stored.len() as u64, "thread {tid}");
    }
    capture.check_counts();
    assert_eq!(capture.emitted(), 8 * calls);
    assert_eq!(capture.reason(), END_DONE);
    assert_eq!(capture.dropped_for(Cause::Full), capture.emitted() - capture.delivered());
}

#[test]
fn delivered_and_dropped_are_all_that_was_emitted() {
    overload(&drain_binary(), "overload", 200_000);
}

#[test]
fn the_same_under_the_sanitizers() {
    overload(&sanitized_binary(), "sanitized", 20_000);
}

#[test]
fn pages_of_a_writer_leave_in_the_order_of_their_numbers() {
    let server = Server::start();
    let ring = Ring::new("order", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    let mut call = 0;
    for page in [60, 3, 41, 2, 1, 62] {
        assert!(writer.claim_page(page));
        for _ in 0..5 {
            call += 1;
            assert!(writer.store(call));
        }
        writer.retire();
    }
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    drop(process);
    drain.end_well();
    assert_eq!(functions(&server.whole(0), 9), (1..=30).collect::<Vec<_>>());
}

#[test]
fn a_page_missed_by_a_look_is_not_overtaken_when_a_slot_changed_hands() {
    let server = Server::start();
    let ring = Ring::new("hands", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut writer = Writer::new(&ring, process.process, 100);
    let fill = |writer: &mut Writer<'_>, page: u32, calls: [u64; 2]| {
        wait_until("the page is free", || writer.claim_page(page));
        // The bit is a hint: with it still set, the drain passes the page by most of the time.
        ring.free_bits(page).fetch_or(u64::from(page == 5) << page, Acquire);
        calls.iter().for_each(|call| assert!(writer.store(*call)));
        writer.retire();
    };
    let lives = 100..140;
    for tid in lives.clone() {
        // The slot's former owner leaves a page, met after those of the new one.
        fill(&mut writer, 50, [7, 8]);
        writer.hand_over(tid + 1);
        fill(&mut writer, 5, [1, 2]);
        fill(&mut writer, 10, [3, 4]);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    drop(process);
    drain.end_well();
    let capture = server.whole(0);
    for tid in lives.skip(1) {
        assert_eq!(functions(&capture, tid), [1, 2, 3, 4, 7, 8], "thread {tid}");
    }
}

#[test]
fn a_slot_that_is_stored_late_keeps_its_place() {
    let server = Server::start();
    let ring = Ring::new("late", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut writer = Writer::new(&ring, process.process, 9);
    let late = writer.reserve().expect("room");
    (2..=50).for_each(|call| assert!(writer.store(call)));
    server.wait(0, "the stream begins", |c| !c.hello.is_empty());
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(server.capture(0).events.is_empty(), "nothing may overtake it");
    writer.store_at(late, 1);
    server.wait(0, "all arrive", |c| c.calls_of(9).len() == 50);
    drop(process);
    drain.end_well();
    assert_eq!(functions(&server.whole(0), 9), (1..=50).collect::<Vec<_>>());
}

#[test]
fn a_torn_event_is_left_out_and_told_where_it_was() {
    let server = Server::start();
    let ring = Ring::new("torn", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut writer = Writer::new(&ring, process.process, 9);
    assert!(writer.store(1));
    let torn = writer.reserve().expect("room");
    writer.store_words(torn, 0xbad);
    (2..=100).for_each(|call| assert!(writer.store(call)));
    let capture = server.wait(0, "those behind it come", |c| c.calls_of(9).len() == 100);
    assert_eq!(functions(&capture, 9), (1..=100).collect::<Vec<_>>());
    let losses = capture.losses_of(9);
    assert_eq!(losses.len(), 1);
    assert_eq!((losses[0].cause, losses[0].events), (Cause::Torn as u32, 1));
    assert_eq!(capture.events[1].func & 0xffff, callsight_format::NOTE_LOSS, "in its place");
    drop(process);
    drain.end_well();
    let capture = server.whole(0);
    capture.check_counts();
    assert_eq!((capture.emitted(), capture.dropped_for(Cause::Torn)), (101, 1));
}

#[test]
fn a_slot_never_stored_at_the_end_of_a_full_page_is_counted() {
    let server = Server::start();
    let ring = Ring::new("last-slot", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    (1..=29).for_each(|call| assert!(writer.store(call)));
    writer.reserve().expect("the last slot of the page");
    (30..=40).for_each(|call| assert!(writer.store(call)));
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    drop(process);
    drain.end_well();
    let capture = server.whole(0);
    capture.check_counts();
    assert_eq!(functions(&capture, 9), (1..=40).collect::<Vec<_>>());
    assert_eq!((capture.emitted(), capture.dropped_for(Cause::Torn)), (41, 1));
}

#[test]
fn a_slot_stored_late_counts_where_its_page_was_left_for_no_other() {
    let server = Server::start();
    let ring = Ring::new("left", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    // The handler of a signal found the page full and no other one free: it left the page, and the
    // call that it interrupted has yet to store its event.
    let mut writer = Writer::new(&ring, process.process, 9);
    (1..=29).for_each(|call| assert!(writer.store(call)));
    let late = writer.reserve().expect("the last slot of the page");
    writer.retire();
    server.wait(0, "those before it come", |c| c.calls_of(9).len() == 29);
    std::thread::sleep(std::time::Duration::from_millis(100));
    writer.store_at(late, 30);
    let never = writer.reserve().expect("a page");
    writer.retire();
    assert_ne!(late, never);
    server.wait(0, "the late one comes, and what never does is told", |c| {
        c.calls_of(9).len() == 30 && c.losses_of(9).len() == 1
    });
    drop(process);
    drain.end_well();
    let capture = server.whole(0);
    capture.check_counts();
    assert_eq!(functions(&capture, 9), (1..=30).collect::<Vec<_>>());
    assert_eq!((capture.emitted(), capture.dropped_for(Cause::Torn)), (31, 1));
}

/// A process killed in the middle of everything, reaped by its parent or not.
fn killed(name: &str, reap: bool) {
    let server = Server::start();
    let ring = Ring::new(name, 64 << 10);
    let mut process = TestProcess::start();
    ring.attach(0, process.process);
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut writer = Writer::new(&ring, process.process, 9);
    let mut other = Writer::new(&ring, process.process, 10);
    (1..=100).for_each(|call| assert!(writer.store(call)));
    other.reserve().expect("room");
    assert!(other.store(1));
    let torn = writer.reserve().expect("room");
    writer.store_words(torn, 0xbad);
    // One more thread has a slot and no tid, one a page and no header.
    ring.u32(writer_at(90)).store(process.process.pid, Relaxed);
    ring.u64(ring.page(63) + offset_of!(PageHeader, owner)).store(91, Relaxed);
    process.kill(reap);
    drain.end_well();
    let capture = server.whole(0);
    capture.check_counts();
    assert_eq!(functions(&capture, 9), (1..=100).collect::<Vec<_>>());
    assert_eq!(functions(&capture, 10), [1]);
    assert_eq!((capture.emitted(), capture.dropped_for(Cause::Torn)), (103, 2));
    assert_eq!(ring.writers().load(Acquire), 0);
    assert_eq!(ring.u32(ring.process(0)).load(Acquire), PROCESS_FREE);
    for page in 0..ring.layout.page_count {
        let words = (0..ring.layout.page_bytes as usize).step_by(8);
        assert!(words.map(|at| ring.u64(ring.page(page) + at)).all(|w| w.load(Acquire) == 0));
    }
}

#[test]
fn a_killed_process_is_read_to_its_last_whole_event() {
    killed("killed", true);
}

#[test]
fn a_zombie_is_dead() {
    killed("zombie", false);
}

#[test]
fn what_a_dead_writer_did_not_tell_is_told_for_it() {
    let server = Server::start();
    let ring = Ring::new("untold", 4096);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    (1..=1000).for_each(|call| {
        writer.store(call);
    });
    ring.control(offset_of!(RingControl, no_slot)).store(17, Relaxed);
    drop(process);
    let said = Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    let capture = server.whole(0);
    let kept = capture.calls_of(9).len() as u64;
    let losses = capture.losses_of(9);
    assert_eq!(losses.len(), 1);
    assert_eq!((losses[0].cause, losses[0].events), (Cause::Full as u32, 1000 - kept));
    assert_eq!(capture.dropped_for(Cause::NoSlot), 17);
    assert_eq!(capture.emitted(), 1017);
    capture.check_counts();
    assert!(said.contains(&format!("(full {}, no_slot 17)", 1000 - kept)), "{said}");
}

#[test]
fn processes_that_ended_before_the_drain_began_are_delivered() {
    let server = Server::start();
    let ring = Ring::new("before", 1 << 20);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    (1..=5000).for_each(|call| assert!(writer.store(call)));
    writer.retire();
    ring.detach(0);
    drop(process);
    let path = ring.unmap();
    let name = format!("/{}", path.file_name().expect("a name").to_str().expect("text"));
    Drain::start(&drain_binary(), &name, server.port).end_well();
    assert_eq!(functions(&server.whole(0), 9), (1..=5000).collect::<Vec<_>>());
    assert!(!path.exists());
}

#[test]
fn a_process_that_is_gone_is_named_by_its_own_note() {
    let server = Server::start();
    let ring = Ring::new("exe", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let Process { pid, start } = process.process;
    let exe = b"/opt/a program/bin/app";
    let head = ProcessNote { pid, parent_pid: 1, start, flags: 0, exe }.head();
    let mut writer = Writer::new(&ring, process.process, 9);
    assert!(writer.claim());
    writer.store_note(NOTE_PROCESS, &[&head[..], exe].concat());
    assert!(writer.store(1));
    drop(process);
    let said = Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    let hello = server.whole(0).hello;
    let field = |key| hello.iter().find(|(k, _)| *k == key).map(|(_, value)| &value[..]);
    assert_eq!(field(HELLO_PID), Some(&pid.to_le_bytes()[..]));
    assert_eq!(field(HELLO_EXE), Some(&exe[..]));
    assert!(said.contains("done, 1 events forwarded, 0 dropped"), "notes are no events: {said}");
}

#[test]
fn the_ring_lives_as_long_as_one_process_of_it() {
    let server = Server::start();
    let ring = Ring::new("two", 1 << 20);
    let (first, second) = (TestProcess::start(), TestProcess::start());
    ring.attach(0, first.process);
    ring.attach(1, second.process);
    let mut drain = Drain::start(&drain_binary(), &ring.name, server.port);
    let mut writer = Writer::new(&ring, second.process, 9);
    assert!(writer.store(1));
    drop(first);
    wait_until("the dead one is freed", || ring.writers().load(Acquire) == 1);
    assert!(writer.store(2));
    server.wait(0, "both events come", |c| c.calls_of(9).len() == 2);
    assert!(drain.is_running());
    ring.detach(1);
    assert!(writer.store(3), "late events are stored too");
    drop(second);
    drain.end_well();
    assert_eq!(functions(&server.whole(0), 9), [1, 2, 3]);
}

#[test]
fn a_lock_whose_holder_is_dead_is_taken_over() {
    let server = Server::start();
    let ring = Ring::new("lock", 65536);
    let mut process = TestProcess::start();
    ring.attach(0, process.process);
    assert!(Writer::new(&ring, process.process, 9).store(1));
    ring.u32(offset_of!(RingHeader, lock)).store(process.process.pid, Relaxed);
    process.kill(true);
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    assert_eq!(ring.writers().load(Acquire), 0);
    assert_eq!(ring.u32(offset_of!(RingHeader, lock)).load(Acquire), 0);
}

#[test]
fn a_reused_pid_is_another_process() {
    let server = Server::start();
    let ring = Ring::new("reused", 65536);
    let this = Process::this();
    let former = Process { start: this.start - 1, ..this };
    ring.attach(0, former);
    assert!(Writer::new(&ring, former, 9).store(1));
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    assert_eq!(functions(&server.whole(0), 9), [1]);
    let state = ring.process(0) + offset_of!(RingProcess, state);
    assert_eq!(ring.u32(state).load(Acquire), PROCESS_FREE);
}

#[test]
fn events_arrive_byte_for_byte() {
    let server = Server::start();
    let ring = Ring::new("bytes", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 9);
    let at = writer.reserve().expect("room");
    let event = Event { ts: 5, func: 6, call_site: 7, tid: 9, kind: 1, frame: [1, 2, 3] };
    writer.store_whole(at, &event);
    drop(process);
    Drain::start(&drain_binary(), &ring.name, server.port).end_well();
    assert_eq!(server.whole(0).events, [event]);
}

#[test]
fn a_loss_that_only_a_note_tells_is_in_the_last_line() {
    let server = Server::start();
    let ring = Ring::new("noted", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 7);
    assert!((1..=3).all(|call| writer.store(call)));
    let note = LossNote { cause: Cause::Stopped as u32, events: 4321, first: 0, last: 0 };
    writer.store_note(NOTE_LOSS, &note.to_bytes());
    writer.retire();
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    drop(process);
    let said = drain.end_well();
    assert!(said.contains("3 events forwarded, 4321 dropped (stopped 4321)"), "{said}");
}

#[test]
fn a_loss_that_only_a_note_tells_hides_none_that_its_writer_did_not_tell() {
    let server = Server::start();
    let ring = Ring::new("noted-too", 65536);
    let process = TestProcess::start();
    ring.attach(0, process.process);
    let mut writer = Writer::new(&ring, process.process, 7);
    let mut other = Writer::new(&ring, process.process, 8);
    assert!(writer.store(1));
    let note = LossNote { cause: Cause::Stopped as u32, events: 4321, first: 0, last: 0 };
    writer.store_note(NOTE_LOSS, &note.to_bytes());
    writer.retire();
    while other.claim() {}
    assert!(!writer.store(2) && !writer.store(3));
    let drain = Drain::start(&drain_binary(), &ring.name, server.port);
    drop(process);
    let said = drain.end_well();
    assert!(said.contains("1 events forwarded, 4323 dropped (full 2, stopped 4321)"), "{said}");
    assert_eq!(server.whole(0).losses_of(7).iter().map(|loss| loss.events).sum::<u64>(), 4323);
}
