//! The queues of the sinks, whose batches are shared by a count of references, under every schedule
//! of two threads that three interruptions can bring about (loom): the very file of the crate. A
//! wait with a time limit never runs out here, so that a wake-up which is missing is a deadlock.
//!
//! What the test `schedules` tries at random with more threads, this tries to the end with few.

#![allow(dead_code, reason = "the file is taken whole")]

#[path = "../src/session/lanes.rs"]
mod lanes;

/// What that file finds in the crate.
mod sync {
    use std::sync::LockResult;
    use std::time::Duration;

    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread;

    /// Loom's, with the waits that it lacks.
    pub struct Condvar(loom::sync::Condvar);

    /// No wait runs out.
    pub struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        pub fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub fn new() -> Condvar {
            Condvar(loom::sync::Condvar::new())
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        pub fn wait_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            mut condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<MutexGuard<'a, T>> {
            while condition(&mut guard) {
                guard = self.0.wait(guard)?;
            }
            Ok(guard)
        }

        pub fn wait_timeout_while<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
            condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            let waited = self.wait_while(guard, condition).unwrap_or_else(|e| e.into_inner());
            Ok((waited, WaitTimeoutResult))
        }
    }
}
mod tally {
    pub use callsight_hub::SinkTally;
}
use callsight_hub::{
    Amount, BATCH_BYTES, Batch, Deadline, Dropped, Ending, Losses, SessionMeta, Sink,
};

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use callsight_format::{ByteOrder, EVENT_BYTES, Origin};
use lanes::Lanes;

const TIME: Duration = Duration::from_secs(2);
/// Events of a batch.
const EVENTS: u64 = 3;

/// Fails at its batch number `fails_at`, if there is one; counts those that began to be written.
struct Counting {
    seen: u64,
    fails_at: u64,
}

impl Sink for Counting {
    fn name(&self) -> String {
        "counting".to_owned()
    }
    fn init(&mut self, _: &SessionMeta) -> io::Result<()> {
        Ok(())
    }
    fn write(&mut self, _: &Batch) -> io::Result<()> {
        self.seen += 1;
        if self.seen == self.fails_at { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }
}

/// Runs `model` under every schedule with three interruptions at most.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let schedules = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let schedules = schedules.load(Relaxed);
    assert!(schedules > 10, "{schedules} schedules");
}

/// The lanes of sinks that fail at these batches.
fn lanes_of(fail_at: &[u64]) -> Lanes {
    let meta = SessionMeta::new(1, "test", Origin::default(), ByteOrder::NATIVE);
    let sink =
        |fails_at: &u64| Box::new(Counting { seen: 0, fails_at: *fails_at }) as Box<dyn Sink>;
    Lanes::start(&meta, fail_at.iter().map(sink).collect(), 0)
}

fn batch() -> Arc<Batch> {
    let events = [0; EVENTS as usize * EVENT_BYTES];
    Arc::new(Batch::of_events(&events, ByteOrder::NATIVE))
}

/// Offers batches and ends; what each sink got, of how many batches. No batch is held by anybody
/// once its sinks have ended.
fn run(lanes: Lanes, batches: usize) -> Vec<u64> {
    let batches: Vec<_> = (0..batches).map(|_| batch()).collect();
    for batch in &batches {
        lanes.wait_for_room(TIME);
        lanes.offer(batch);
    }
    let tallies = lanes.finish(Ending::default(), TIME);
    for tally in &tallies {
        let all = batches.len() as u64 * EVENTS;
        assert_eq!((tally.emitted_events, tally.unaccounted()), (all, 0), "{tally:?}");
    }
    drop(lanes);
    tallies.iter().map(|tally| tally.delivered_events / EVENTS).collect()
}

#[test]
fn every_batch_reaches_its_sink_and_is_let_go() {
    check(|| {
        let lanes = lanes_of(&[0]);
        let batch = batch();
        lanes.offer(&batch);
        lanes.offer(&batch);
        let tallies = lanes.finish(Ending::default(), TIME);
        assert_eq!(tallies[0].delivered_events, 2 * EVENTS);
        assert_eq!(Arc::strong_count(&batch), 1, "a sink that has ended still holds a batch");
    });
}

#[test]
fn a_sink_that_fails_at_any_batch_has_what_came_before() {
    for fails_at in [1, 2] {
        check(move || assert_eq!(run(lanes_of(&[fails_at]), 2), [fails_at - 1]));
    }
}

#[test]
fn two_sinks_share_a_batch_and_one_that_fails_costs_the_other_nothing() {
    check(|| assert_eq!(run(lanes_of(&[1, 0]), 1), [0, 1]));
}

#[test]
fn a_session_that_is_dropped_ends_its_sinks() {
    check(|| {
        let lanes = lanes_of(&[0]);
        lanes.offer(&batch());
        drop(lanes);
    });
}
