//! The pages of the ring under every schedule and every order of stores that the memory model
//! allows (loom): claim, publish, read, wrap, reclaim, and the death of a writer at any step.
//!
//! The words of a ring live at addresses of a map, which loom cannot watch, and half of the
//! protocol is C. So `pages/` holds a model: pages of two slots in place of 500, and each function
//! named after the one it stands for, with the same loads and stores in the same order.

#[path = "pages/drain.rs"]
mod drain;
#[path = "pages/ring.rs"]
mod ring;
#[path = "pages/writer.rs"]
mod writer;

use drain::Drain;
use loom::sync::Arc;
use loom::thread;
use ring::{Ring, SLOTS};
use writer::Writer;

/// How often a thread is interrupted at most where it could go on: three find what two threads can
/// do to each other in one page, and more take hours.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A thread of its own, whose process ends behind `records` records or after `steps` stores.
fn start(ring: &Arc<Ring>, slot: usize, records: u64, steps: usize) -> thread::JoinHandle<Writer> {
    let ring = Arc::clone(ring);
    thread::spawn(move || {
        let mut writer = Writer::new(slot, steps);
        let end = (0..records).try_for_each(|_| writer.record(&ring));
        writer.was_killed = end.is_err();
        ring.writers[slot].die();
        writer
    })
}

/// Drains what the dead have left, and compares it with what they did.
fn settle(ring: &Ring, mut drain: Drain, writers: &[Writer]) {
    for _ in 0..=2 * ring.pages.len() {
        drain.pass(ring, true);
        drain.free_orphans(ring);
    }
    for writer in writers {
        drain.check(ring, writer);
    }
    for (index, page) in ring.pages.iter().enumerate() {
        assert_eq!(page.owner.unsync_load(), 0, "page {index} is nobody's and not free");
        assert_ne!(ring.free.unsync_load() & 1 << index, 0, "page {index} is free and not found");
    }
}

const FOR_EVER: usize = usize::MAX;

#[test]
fn records_are_delivered_once_and_in_order_while_pages_are_used_again() {
    check(3, || {
        let ring = Arc::new(Ring::new(2, 1));
        let writer = start(&ring, 0, 2 * SLOTS as u64 + 1, FOR_EVER);
        let mut drain = Drain::new(&ring);
        drain.pass(&ring, false);
        drain.pass(&ring, true);
        settle(&ring, drain, &[writer.join().expect("no panic")]);
    });
}

#[test]
fn what_finds_no_page_is_counted_and_numbered() {
    check(3, || {
        let ring = Arc::new(Ring::new(1, 1));
        let writer = start(&ring, 0, 2 * SLOTS as u64 + 1, FOR_EVER);
        let mut drain = Drain::new(&ring);
        drain.pass(&ring, true);
        settle(&ring, drain, &[writer.join().expect("no panic")]);
    });
}

#[test]
fn two_writers_never_have_the_same_page() {
    check(3, || {
        let ring = Arc::new(Ring::new(2, 2));
        let one = start(&ring, 0, 1, FOR_EVER);
        let two = start(&ring, 1, 1, FOR_EVER);
        let mut drain = Drain::new(&ring);
        drain.pass(&ring, false);
        drain.free_orphans(&ring);
        settle(&ring, drain, &[one, two].map(|writer| writer.join().expect("no panic")));
    });
}

#[test]
fn a_page_of_a_dead_writer_is_another_writers() {
    check(3, || {
        let ring = Arc::new(Ring::new(1, 2));
        let one = start(&ring, 0, 1, FOR_EVER);
        let two = start(&ring, 1, 1, FOR_EVER);
        let mut drain = Drain::new(&ring);
        drain.pass(&ring, true);
        settle(&ring, drain, &[one, two].map(|writer| writer.join().expect("no panic")));
    });
}

#[test]
fn a_writer_that_is_killed_at_any_store_costs_at_most_the_record_it_was_storing() {
    let mut killed = 0;
    for steps in 0.. {
        let has_ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ended = std::sync::Arc::clone(&has_ended);
        check(2, move || {
            let ring = Arc::new(Ring::new(2, 1));
            let writer = start(&ring, 0, SLOTS as u64 + 1, steps);
            let mut drain = Drain::new(&ring);
            drain.pass(&ring, true);
            let writer = writer.join().expect("no panic");
            ended.store(!writer.was_killed, std::sync::atomic::Ordering::Relaxed);
            settle(&ring, drain, &[writer]);
        });
        if has_ended.load(std::sync::atomic::Ordering::Relaxed) {
            break;
        }
        killed += 1;
    }
    assert!(killed >= 20, "killed at {killed} places");
}

#[test]
fn a_thread_that_takes_over_the_slot_of_one_that_ended_goes_on_with_its_numbers() {
    check(3, || {
        let ring = Arc::new(Ring::new(2, 1));
        let threads = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut first = Writer::new(0, FOR_EVER);
                for _ in 0..=SLOTS {
                    first.record(&ring).expect("it is not killed");
                }
                let mut second = first.adopt(&ring).expect("it is not killed");
                second.record(&ring).expect("it is not killed");
                ring.writers[0].die();
                second
            })
        };
        let mut drain = Drain::new(&ring);
        drain.pass(&ring, true);
        settle(&ring, drain, &[threads.join().expect("no panic")]);
    });
}
