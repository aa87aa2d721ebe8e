//! Sinks that fail, panic, lag or block, beside one that is well.

mod common;

use std::io;
use std::sync::mpsc::{Receiver, Sender as Knob, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use callsight_format::*;
use callsight_hub::stream::{Chunk, Item};
use callsight_hub::{Batch, Deadline, Host, Session, SessionMeta, Sink, Tally, Unpacking};
use common::*;

const ORDER: ByteOrder = ByteOrder::NATIVE;
/// Events of each batch here.
const EVENTS: u64 = 20;

/// Batches of that size that a queue takes: 16 MiB, each counted as 4 KiB.
const QUEUE: u64 = 4096;

/// What a sink of these tests does with each batch.
type Act = Box<dyn FnMut(&Batch) -> io::Result<()> + Send>;

struct Acting {
    name: &'static str,
    init: io::Result<()>,
    act: Act,
}

impl Sink for Acting {
    fn name(&self) -> String {
        self.name.to_owned()
    }
    fn init(&mut self, _: &SessionMeta) -> io::Result<()> {
        std::mem::replace(&mut self.init, Ok(()))
    }
    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        (self.act)(batch)
    }
}

fn sink(
    name: &'static str,
    act: impl FnMut(&Batch) -> io::Result<()> + Send + 'static,
) -> Box<dyn Sink> {
    Box::new(Acting { name, init: Ok(()), act: Box::new(act) })
}

/// A sink that keeps the times of the events it got.
fn keeping(kept: &Arc<Mutex<Vec<u64>>>) -> Box<dyn Sink> {
    let (kept, mut unpacking) = (Arc::clone(kept), Unpacking::default());
    sink("well", move |batch| {
        let mut kept = kept.lock().expect("no panic");
        unpacking.events(batch, |event| kept.push(event.ts)).map_err(io::Error::other)
    })
}

/// A sink that waits for a knob to be turned, once a batch.
fn waiting(name: &'static str) -> (Knob<()>, Box<dyn Sink>) {
    let (knob, turned): (_, Receiver<()>) = channel();
    let sink = sink(name, move |_| {
        // A knob that is gone holds nobody up.
        let _ = turned.recv();
        Ok(())
    });
    (knob, sink)
}

/// Runs a session of `batches` batches, each with [`EVENTS`] events.
fn run(batches: u64, sinks: Vec<Box<dyn Sink>>) -> (Tally, Vec<String>) {
    run_behind(batches, sinks, |_| ())
}

/// The same; each batch waits for what `wait` waits for, told how many came before.
fn run_behind(batches: u64, sinks: Vec<Box<dyn Sink>>, wait: impl Fn(u64)) -> (Tally, Vec<String>) {
    let said = Mutex::new(Vec::new());
    let say = |line: &str| said.lock().expect("lines").push(line.to_owned());
    let mut session = Session::start(&SessionMeta::new(1, "test", origin(), ORDER), sinks);
    for number in 0..batches {
        wait(number);
        take(&mut session, number, &say);
    }
    let tally = session.finish(0, &say);
    for sink in &tally.sinks {
        assert_eq!((sink.emitted_events, sink.unaccounted()), (batches * EVENTS, 0), "{sink:?}");
    }
    (tally, said.into_inner().expect("lines"))
}

fn take(session: &mut Session, number: u64, host: &dyn Host) {
    let event =
        |at: u64| Event { ts: 1 + number * EVENTS + at, kind: (at % 2) as u8, ..Event::default() };
    let events: Vec<u8> = (0..EVENTS).flat_map(|at| event(at).to_bytes(ORDER)).collect();
    session.take(&Chunk { bytes: &[], item: Item::Events(&events) }, host);
}

/// Waits until a sink has the events of so many batches. A queue can be full on a busy machine although
/// its sink is well.
fn wait_for(kept: &Mutex<Vec<u64>>, batches: u64) {
    let started = Instant::now();
    while (kept.lock().expect("no panic").len() as u64) < batches * EVENTS {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not get {batches} batches");
        std::thread::yield_now();
    }
}

fn is_whole(kept: &Arc<Mutex<Vec<u64>>>, batches: u64) -> bool {
    kept.lock().expect("no panic").iter().copied().eq(1..=batches * EVENTS)
}

#[test]
fn a_sink_that_panics_hurts_no_other() {
    let kept = Arc::default();
    let mut left = 3;
    let panics = sink("panics", move |_| {
        left -= 1;
        assert!(left > 0, "by intention");
        Ok(())
    });
    let (tally, said) = run(1000, vec![panics, keeping(&kept)]);
    assert!(is_whole(&kept, 1000));
    assert_eq!(tally.sinks[1].delivered_events, 1000 * EVENTS);
    assert_eq!(tally.sinks[0].delivered_events, 2 * EVENTS);
    assert_eq!(tally.sinks[0].dropped_events.by_cause(), "19960 sink_dead");
    assert_eq!(said, ["panics: failed (it panicked: by intention)"]);
}

#[test]
fn a_sink_that_blocks_for_ever_is_left_behind_and_hurts_no_other() {
    let kept = Arc::default();
    let (knob, blocks) = waiting("blocks");
    let sinks = vec![keeping(&kept), blocks];
    let (tally, said) = run_behind(6000, sinks, |batches| wait_for(&kept, batches));
    assert!(is_whole(&kept, 6000));
    let [well, blocked] = &tally.sinks[..] else { panic!("two sinks") };
    assert_eq!(well.delivered_events, 6000 * EVENTS);
    assert_eq!(blocked.delivered_events, 0);
    // One in its hands, and its queue.
    assert_eq!(blocked.dropped_events.of(Cause::SinkDead), (QUEUE + 1) * EVENTS);
    assert_eq!(blocked.dropped_events.of(Cause::Queue), (6000 - QUEUE - 1) * EVENTS);
    assert!(said[0].starts_with("blocks: it did not end within 2 s"), "{said:?}");
    drop(knob);
}

#[test]
fn a_sink_that_cannot_begin_or_write_is_dead_with_its_reason() {
    let kept = Arc::default();
    let init = Err(io::ErrorKind::StorageFull.into());
    let never = Acting { name: "never", init, act: Box::new(|_| panic!("it has not begun")) };
    let fails = sink("fails", |_| Err(io::ErrorKind::BrokenPipe.into()));
    let (tally, mut said) = run(50, vec![Box::new(never), fails, keeping(&kept)]);
    assert!(is_whole(&kept, 50));
    for dead in &tally.sinks[..2] {
        assert_eq!(dead.dropped_events.of(Cause::SinkDead), 50 * EVENTS);
    }
    said.sort();
    assert_eq!(said, ["fails: failed (broken pipe)", "never: cannot be begun (no storage space)"]);
}

#[test]
fn a_lone_sink_that_lags_is_waited_for() {
    let slow = sink("slow", |_| {
        std::thread::sleep(Duration::from_micros(300));
        Ok(())
    });
    let (tally, _) = run(1000, vec![slow]);
    assert_eq!(tally.sinks[0].delivered_events, 1000 * EVENTS);
}

#[test]
fn a_full_queue_drops_the_newest_and_goes_on_with_what_comes_later() {
    let (knob, lags) = waiting("lags");
    let kept = Arc::default();
    let sinks = vec![lags, keeping(&kept)];
    let mut session = Session::start(&SessionMeta::new(1, "test", origin(), ORDER), sinks);
    let say = |_: &str| {};
    for number in 0..QUEUE + 30 {
        wait_for(&kept, number);
        take(&mut session, number, &say);
    }
    wait_for(&kept, QUEUE + 30);
    for _ in 0..100 {
        knob.send(()).expect("it listens");
    }
    for number in QUEUE + 30..QUEUE + 40 {
        take(&mut session, number, &say);
    }
    drop(knob);
    let tally = session.finish(0, &say);
    let lags = &tally.sinks[0];
    let dropped = lags.dropped_events.of(Cause::Queue);
    assert_eq!(lags.delivered_events + dropped, (QUEUE + 40) * EVENTS);
    // One was in its hands, 29 found no room; of the last ten some may not have either.
    assert!((29 * EVENTS..=40 * EVENTS).contains(&dropped), "{dropped}");
    assert_eq!(tally.sinks[1].delivered_events, (QUEUE + 40) * EVENTS);
}

#[test]
fn with_every_sink_dead_a_session_still_counts() {
    let (tally, _) = run(500, vec![sink("dies", |_| panic!("by intention"))]);
    assert_eq!(tally.sinks[0].dropped_events.of(Cause::SinkDead), 500 * EVENTS);
    assert_eq!(tally.dropped_events().sum(), 500 * EVENTS);
}

#[test]
fn what_a_sink_says_it_does_not_have_is_not_delivered() {
    struct Halves(u64);
    impl Sink for Halves {
        fn name(&self) -> String {
            "halves".to_owned()
        }
        fn init(&mut self, _: &SessionMeta) -> io::Result<()> {
            Ok(())
        }
        fn write(&mut self, batch: &Batch) -> io::Result<()> {
            self.0 += batch.hook_events() / 2;
            Ok(())
        }
        fn flush(&mut self, deadline: Deadline) -> io::Result<()> {
            assert!(deadline.left() <= Duration::from_secs(2));
            self.0 += 1;
            Ok(())
        }
        fn dropped(&self) -> callsight_hub::Losses {
            let mut losses = callsight_hub::Losses::default();
            losses.add(Cause::Unacked, self.0);
            losses
        }
    }
    let (tally, _) = run(10, vec![Box::new(Halves(0))]);
    assert_eq!(tally.sinks[0].delivered_events, 10 * EVENTS - 101);
    assert_eq!(tally.sinks[0].dropped_events.by_cause(), "101 unacked");
}

/// A sink that says strange things of itself.
#[derive(Default)]
struct Strange {
    has_no_name: bool,
    dropped: Vec<(Cause, u64)>,
}

impl Sink for Strange {
    fn name(&self) -> String {
        assert!(!self.has_no_name, "by intention");
        "strange".to_owned()
    }
    fn init(&mut self, _: &SessionMeta) -> io::Result<()> {
        Ok(())
    }
    fn write(&mut self, _: &Batch) -> io::Result<()> {
        assert!(!self.has_no_name, "it was given something all the same");
        Ok(())
    }
    fn dropped(&self) -> callsight_hub::Losses {
        let mut losses = callsight_hub::Losses::default();
        self.dropped.iter().for_each(|(cause, events)| losses.add(*cause, *events));
        losses
    }
}

#[test]
fn a_sink_that_panics_when_asked_for_its_name_hurts_no_other() {
    let kept = Arc::default();
    let nameless = Strange { has_no_name: true, ..Strange::default() };
    let (tally, said) = run(50, vec![Box::new(nameless), keeping(&kept)]);
    assert!(is_whole(&kept, 50));
    assert_eq!(tally.sinks[0].dropped_events.of(Cause::SinkDead), 50 * EVENTS);
    assert_eq!(said, ["sink 1: does not say its name (it panicked: by intention)"]);
}

/// A sink that panics when it is asked about its third batch.
#[derive(Default)]
struct Secretive {
    written: u64,
    panics_about_trouble: bool,
}

impl Sink for Secretive {
    fn name(&self) -> String {
        "secretive".to_owned()
    }
    fn init(&mut self, _: &SessionMeta) -> io::Result<()> {
        Ok(())
    }
    fn write(&mut self, _: &Batch) -> io::Result<()> {
        self.written += 1;
        assert!(self.written <= 3, "it was given something all the same");
        Ok(())
    }
    fn dropped(&self) -> callsight_hub::Losses {
        assert!(self.written < 3 || self.panics_about_trouble, "by intention");
        let mut losses = callsight_hub::Losses::default();
        losses.add(Cause::Io, self.written);
        losses
    }
    fn trouble(&self) -> Option<&str> {
        assert!(self.written < 3, "by intention");
        None
    }
}

#[test]
fn a_sink_that_panics_when_asked_what_it_dropped_has_not_got_its_last_batch() {
    for panics_about_trouble in [false, true] {
        let kept = Arc::default();
        let secretive = Secretive { panics_about_trouble, ..Secretive::default() };
        let (tally, said) = run(50, vec![Box::new(secretive), keeping(&kept)]);
        assert!(is_whole(&kept, 50));
        let dropped = &tally.sinks[0].dropped_events;
        assert_eq!((dropped.of(Cause::SinkDead), dropped.of(Cause::Io)), (48 * EVENTS, 2));
        assert_eq!(tally.sinks[0].delivered_events, 2 * EVENTS - 2);
        assert_eq!(said, ["secretive: failed (it panicked: by intention)"]);
    }
}

/// A sink that blocks for ever when it is asked for its name.
struct Speechless(Mutex<Receiver<()>>);

impl Sink for Speechless {
    fn name(&self) -> String {
        let _ = self.0.lock().expect("no panic").recv();
        "speechless".to_owned()
    }
    fn init(&mut self, _: &SessionMeta) -> io::Result<()> {
        Ok(())
    }
    fn write(&mut self, _: &Batch) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_sink_that_never_says_its_name_is_left_behind_and_hurts_no_other() {
    let kept = Arc::default();
    let (knob, turned): (Knob<()>, _) = channel();
    let speechless = Box::new(Speechless(Mutex::new(turned)));
    let (tally, said) = run(50, vec![speechless, keeping(&kept)]);
    assert!(is_whole(&kept, 50));
    assert_eq!(tally.sinks[1].delivered_events, 50 * EVENTS);
    assert_eq!(tally.sinks[0].dropped_events.of(Cause::SinkDead), 50 * EVENTS);
    assert_eq!(said, ["sink 1: it did not end within 2 s and was left behind"]);
    drop(knob);
}

/// What panics wherever it is touched: dropped, or made a text.
#[derive(Debug)]
struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        // One panic while another one is under way would end the process.
        assert!(std::thread::panicking(), "dropped");
    }
}

impl std::fmt::Display for Explosive {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("shown")
    }
}

impl std::error::Error for Explosive {}

#[test]
fn what_a_sink_fails_with_is_its_own_and_may_panic_too() {
    let payload = sink("payload", |_| std::panic::panic_any(Explosive));
    let error = sink("error", |_| Err(io::Error::other(Explosive)));
    for (bad, why) in [(payload, "it panicked: "), (error, "it panicked: shown")] {
        let (kept, name) = (Arc::default(), bad.name());
        let (tally, said) = run(50, vec![bad, keeping(&kept)]);
        assert!(is_whole(&kept, 50));
        assert_eq!(tally.sinks[0].dropped_events.of(Cause::SinkDead), 50 * EVENTS);
        assert_eq!(said, [format!("{name}: failed ({why})")]);
    }
}

#[test]
fn a_sink_that_claims_to_have_dropped_more_than_it_got_has_dropped_all_of_it() {
    for dropped in [
        vec![(Cause::Io, 50 * EVENTS + 1)],
        vec![(Cause::Unacked, u64::MAX), (Cause::Rejected, u64::MAX)],
    ] {
        let (kept, strange) = (Arc::default(), Strange { dropped, ..Strange::default() });
        let (tally, said) = run(50, vec![Box::new(strange), keeping(&kept)]);
        assert!(is_whole(&kept, 50));
        let strange = &tally.sinks[0];
        assert_eq!((strange.delivered_events, strange.dropped_events.sum()), (0, 50 * EVENTS));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("strange: says that it dropped more"), "{said:?}");
        assert_eq!(strange.trouble.as_deref(), said[0].strip_prefix("strange: "));
    }
}
