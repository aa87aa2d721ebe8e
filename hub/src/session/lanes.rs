//! A thread and a bounded queue for each sink: batches in, never waiting; an account of each out.
//!
//! At any moment, for every lane: events offered = delivered + dropped by the sink + dropped here
//! + in the queue + in the sink's hands.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use callsight_format::Cause;

use super::tally::SinkTally;
use crate::sync::{Condvar, Mutex, MutexGuard, thread};
use crate::{Amount, BATCH_BYTES, Batch, Deadline, Dropped, Ending, Losses, SessionMeta, Sink};

/// Bytes that may wait for a sink: 64 batches of the largest size.
const QUEUE_BYTES: usize = 64 * BATCH_BYTES;
/// How long a sink may take to say what it is called.
const NAME_TIME: Duration = Duration::from_secs(1);
/// What a smaller batch counts as. Blocks of a quiet writer take 200 bytes, and 64 of those would
/// be full before the thread of a sink that is well has been woken up.
const LEAST_BYTES: usize = 4 << 10;

/// The sinks of a session at work.
pub(super) struct Lanes {
    shared: Arc<Shared>,
}

struct Shared {
    lanes: Mutex<Vec<Lane>>,
    /// Something is there for a sink.
    work: Condvar,
    /// A sink has taken something, or has ended.
    progress: Condvar,
}

#[derive(Default)]
struct Lane {
    name: String,
    named: bool,
    queue: VecDeque<Arc<Batch>>,
    queued_bytes: usize,
    /// What is in the batch that the sink is writing.
    in_hand: Option<Amount>,
    offered_events: u64,
    written_events: u64,
    /// Of those written, what the sink does not have.
    dropped_there: Losses,
    /// What it was not given.
    dropped_here: Dropped,
    /// Number of the last batch offered, and of the last one that is done with.
    offered_number: u64,
    done_number: u64,
    extent: Option<String>,
    trouble: Option<String>,
    trouble_told: bool,
    closing: Option<(Ending, Deadline)>,
    state: LaneState,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum LaneState {
    #[default]
    Runs,
    /// It takes nothing more.
    Dead,
    /// It ended in order.
    Closed,
}

fn weight(batch: &Batch) -> usize {
    batch.bytes().len().max(LEAST_BYTES)
}

impl Lane {
    fn runs(&self) -> bool {
        self.state == LaneState::Runs
    }

    fn has_room(&self) -> bool {
        self.queued_bytes < QUEUE_BYTES
    }

    fn offer(&mut self, batch: &Arc<Batch>) {
        self.offered_events += batch.hook_events();
        self.offered_number = batch.number().unwrap_or(self.offered_number);
        if !self.runs() {
            self.dropped_here.add(Cause::SinkDead, batch.amount());
        } else if self.has_room() || batch.is_control() {
            self.queued_bytes += weight(batch);
            self.queue.push_back(Arc::clone(batch));
        } else {
            self.dropped_here.add(Cause::Queue, batch.amount());
        }
        self.settle();
    }

    /// Where nothing waits, all that was offered is done with.
    fn settle(&mut self) {
        if self.queue.is_empty() && self.in_hand.is_none() {
            self.done_number = self.offered_number;
        }
    }

    fn written(&mut self, number: Option<u64>, state: SinkState) {
        self.written_events += self.in_hand.take().unwrap_or_default().events;
        self.done_number = number.unwrap_or(self.done_number);
        self.hear(state);
        self.settle();
    }

    /// What a sink says of itself. It cannot have dropped more than it was given.
    fn hear(&mut self, state: SinkState) {
        let is_wrong = state.dropped.sum() > self.written_events;
        self.dropped_there = state.dropped.up_to(self.written_events);
        // Without the numbers, which change with each batch: it is said once.
        let wrong =
            "says that it dropped more events than it was given; all of those count as dropped";
        self.notice(state.trouble.or(is_wrong.then(|| wrong.to_owned())));
    }

    fn take(&mut self) -> Option<Arc<Batch>> {
        let batch = self.queue.pop_front()?;
        self.queued_bytes -= weight(&batch);
        self.in_hand = Some(batch.amount());
        Some(batch)
    }

    /// Remembers what is wrong now, to be told unless it has been.
    fn notice(&mut self, trouble: Option<String>) {
        if trouble.is_some() && trouble != self.trouble {
            self.trouble = trouble;
            self.trouble_told = false;
        }
    }

    /// It takes nothing more, and nothing of what waits will be delivered.
    fn die(&mut self, why: String) {
        self.state = LaneState::Dead;
        let in_hand = self.in_hand.take().unwrap_or_default();
        let lost = self.queue.drain(..).fold(in_hand, |lost, batch| lost.plus(batch.amount()));
        self.dropped_here.add(Cause::SinkDead, lost);
        self.queued_bytes = 0;
        self.notice(Some(why));
        self.settle();
    }

    fn tally(&mut self) -> SinkTally {
        let delivered_events = self.written_events.saturating_sub(self.dropped_there.sum());
        SinkTally {
            name: self.name.clone(),
            emitted_events: self.offered_events,
            delivered_events,
            dropped_events: self.dropped_here.events.plus(&self.dropped_there),
            extent: self.extent.take(),
            trouble: self.trouble.clone(),
        }
    }
}

impl Lanes {
    /// Gives every sink a thread, which begins with `init`. Batches up to number `done` are done
    /// with already.
    pub fn start(meta: &SessionMeta, sinks: Vec<Box<dyn Sink>>, done: u64) -> Lanes {
        let (offered_number, done_number) = (done, done);
        // What it is called until it says so.
        let lane = |at| {
            let name = format!("sink {}", at + 1);
            Lane { name, offered_number, done_number, ..Lane::default() }
        };
        let shared = Arc::new(Shared {
            lanes: Mutex::new((0..sinks.len()).map(lane).collect()),
            work: Condvar::new(),
            progress: Condvar::new(),
        });
        for (at, sink) in sinks.into_iter().enumerate() {
            let (meta, lane) = (meta.clone(), Arc::clone(&shared));
            let name = format!("sink {} {at}", meta.id);
            let work = move || lane.run(at, sink, &meta);
            if let Err(error) = thread::Builder::new().name(name).spawn(work) {
                shared.lock()[at].die(format!("no thread for it ({error})"));
            }
        }
        Lanes { shared }
    }

    /// Hands a batch to every sink, which keeps it or counts it; waits for none.
    pub fn offer(&self, batch: &Arc<Batch>) {
        self.shared.lock().iter_mut().for_each(|lane| lane.offer(batch));
        self.shared.work.notify_all();
    }

    /// Counts what no batch could be made for.
    pub fn refuse(&self, amount: Amount, number: Option<u64>) {
        for lane in self.shared.lock().iter_mut() {
            lane.offered_events += amount.events;
            lane.offered_number = number.unwrap_or(lane.offered_number);
            lane.dropped_here.add(Cause::Queue, amount);
            lane.settle();
        }
    }

    /// Waits until a sink that still takes something has room for it, or there is no such sink.
    pub fn wait_for_room(&self, at_most: Duration) -> bool {
        let full = |lanes: &mut Vec<Lane>| {
            let mut running = lanes.iter().filter(|lane| lane.runs()).peekable();
            running.peek().is_some() && !running.any(|lane| lane.has_room())
        };
        let lanes = self.shared.lock();
        let waited = self.shared.progress.wait_timeout_while(lanes, at_most, full);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// What the first sink is called; waits a moment for it to say so.
    pub fn first_name(&self) -> String {
        let unnamed =
            |lanes: &mut Vec<Lane>| lanes.first().is_some_and(|lane| lane.runs() && !lane.named);
        let lanes = self.shared.lock();
        let waited = self.shared.progress.wait_timeout_while(lanes, NAME_TIME, unnamed);
        let (lanes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        lanes.first().map_or(String::new(), |lane| lane.name.clone())
    }

    /// The number of the last batch that the first sink is done with.
    pub fn done_number(&self) -> u64 {
        self.shared.lock().first().map_or(0, |lane| lane.done_number)
    }

    /// What is wrong with which sink, each once.
    pub fn troubles(&self) -> Vec<(String, String)> {
        let tell = |lane: &mut Lane| {
            let trouble = lane.trouble.clone().filter(|_| !lane.trouble_told)?;
            lane.trouble_told = true;
            Some((lane.name.clone(), trouble))
        };
        self.shared.lock().iter_mut().filter_map(tell).collect()
    }

    /// Ends every sink behind what waits for it; one that is not done by the deadline is left
    /// behind, and what it has not got is counted.
    pub fn finish(&self, ending: Ending, within: Duration) -> Vec<SinkTally> {
        // A sink that flushes to the end of its time is not left behind for that.
        let deadline = Deadline::after(within * 3 / 4);
        let mut lanes = self.shared.lock();
        for lane in lanes.iter_mut() {
            lane.closing = Some((Ending { not_given: lane.dropped_here, ..ending }, deadline));
        }
        self.shared.work.notify_all();
        let running = |lanes: &mut Vec<Lane>| lanes.iter().any(Lane::runs);
        let waited = self.shared.progress.wait_timeout_while(lanes, within, running);
        let (mut lanes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        for lane in lanes.iter_mut().filter(|lane| lane.runs()) {
            lane.die(format!("it did not end within {} s and was left behind", within.as_secs()));
        }
        lanes.iter_mut().map(Lane::tally).collect()
    }
}

/// A session that ended by a fault of its own leaves its sinks to end by themselves.
impl Drop for Lanes {
    fn drop(&mut self) {
        let ending = Ending { cut: true, ..Ending::default() };
        for lane in self.shared.lock().iter_mut() {
            lane.closing.get_or_insert((ending, Deadline::after(Duration::ZERO)));
        }
        self.shared.work.notify_all();
    }
}

/// What a sink says of itself.
struct SinkState {
    dropped: Losses,
    trouble: Option<String>,
}

impl SinkState {
    fn of(sink: &dyn Sink) -> SinkState {
        SinkState { dropped: sink.dropped(), trouble: sink.trouble().map(str::to_owned) }
    }
}

/// What a sink has to do next.
enum Work {
    Write(Arc<Batch>),
    Close(Box<Ending>, Deadline),
    LeftBehind,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, at: usize, change: impl FnOnce(&mut Lane)) {
        change(&mut self.lock()[at]);
        self.progress.notify_all();
    }

    /// The life of a sink.
    fn run(&self, at: usize, mut sink: Box<dyn Sink>, meta: &SessionMeta) {
        let ended = self.serve(at, &mut *sink, meta);
        let dropped = guarded(|| {
            drop(sink);
            Ok(())
        });
        if let Err(why) = ended.and(dropped) {
            self.change(at, |lane| {
                if lane.runs() {
                    lane.die(why)
                }
            });
        }
        self.change(at, |lane| {
            if lane.runs() {
                lane.state = LaneState::Closed;
            }
        });
    }

    fn serve(&self, at: usize, sink: &mut dyn Sink, meta: &SessionMeta) -> Result<(), String> {
        let name = guarded(|| Ok(sink.name()));
        let name = name.map_err(|why| format!("does not say its name ({why})"))?;
        self.change(at, |lane| (lane.name, lane.named) = (name, true));
        guarded(|| sink.init(meta)).map_err(|why| format!("cannot be begun ({why})"))?;
        loop {
            match self.next(at) {
                Work::Write(batch) => {
                    let number = batch.number();
                    guarded(|| sink.write(&batch)).map_err(|why| format!("failed ({why})"))?;
                    // Its buffer goes back before anybody sees that it is done with.
                    drop(batch);
                    let state = guarded(|| Ok(SinkState::of(sink)));
                    let state = state.map_err(|why| format!("failed ({why})"))?;
                    self.change(at, |lane| lane.written(number, state));
                }
                Work::Close(ending, deadline) => {
                    let flushed = guarded(|| sink.flush(deadline));
                    let closed = guarded(|| {
                        sink.close(&ending);
                        Ok((SinkState::of(sink), sink.extent()))
                    });
                    let (state, extent) = closed?;
                    self.change(at, |lane| {
                        lane.extent = extent;
                        let trouble = flushed.err().or(state.trouble);
                        lane.hear(SinkState { trouble, ..state });
                    });
                    return Ok(());
                }
                Work::LeftBehind => return Ok(()),
            }
        }
    }

    fn next(&self, at: usize) -> Work {
        let idle = |lanes: &mut Vec<Lane>| {
            let lane = &lanes[at];
            lane.runs() && lane.queue.is_empty() && lane.closing.is_none()
        };
        let waited = self.work.wait_while(self.lock(), idle);
        let mut lanes = waited.unwrap_or_else(PoisonError::into_inner);
        let lane = &mut lanes[at];
        if let Some(batch) = lane.take() {
            drop(lanes);
            self.progress.notify_all();
            return Work::Write(batch);
        }
        match lane.closing {
            Some((ending, deadline)) if lane.runs() => Work::Close(Box::new(ending), deadline),
            _ => Work::LeftBehind,
        }
    }
}

/// Runs what a sink does; a panic is an error of that sink. So is one of what it failed with, which
/// is its own, too: it is made a text and given up in here.
fn guarded<T>(act: impl FnOnce() -> io::Result<T>) -> Result<T, String> {
    let act = || act().map_err(|error| error.to_string());
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => done,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            give_up(panic);
            Err(format!("it panicked: {}", text.unwrap_or_default()))
        }
    }
}

/// Drops what somebody has panicked with. Where that panics again, nothing it panics with is touched.
pub(crate) fn give_up(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}
