//! Enter and exit events of one thread → finished calls.
//!
//! Events arrive in the thread's own order. An exit without its enter is counted by what explains
//! it, never an error: a ring that overflowed is an ordinary capture. Times are in the clock's
//! unit and never go back. Time inside a gap of lost events is nobody's: whoever ran then is
//! unknown, and a guess would show a call that never was. Knows nothing of symbols or files;
//! functions are numbers that the [`CallSink`] gives out.

use std::collections::hash_map::Entry;

use callsight_format::Event;
use rustc_hash::FxHashMap;

/// A function of the process, numbered from 0.
pub type FunctionId = u32;

/// Where calls go, and who knows which function an address is.
pub trait CallSink {
    /// The function entered at `address`.
    fn function(&mut self, address: u64, ts: u64) -> FunctionId;
    /// The same, of a function that may never have been entered.
    fn known_function(&self, address: u64, ts: u64) -> Option<FunctionId>;
    /// Address of the function that makes the call which returns to `site`; 0 where unknown.
    fn caller(&mut self, site: u64) -> u64;
    /// A call begins, inside `parent`. The sink may put its own numbers into `call`.
    fn opened(&mut self, call: &mut OpenCall, parent: Option<&OpenCall>);
    /// A call is over.
    fn closed(&mut self, call: &Closed);
}

/// A call that has not ended yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenCall {
    /// Run-time address of the function.
    pub address: u64,
    /// Return address in the caller.
    pub site: u64,
    /// The function.
    pub function: FunctionId,
    /// Stack pointer at its enter, in units of 16 bytes; 0 where unknown.
    pub frame_units: u32,
    /// The sink's node of its path, and its edge from the caller.
    pub node: u32,
    /// See `node`.
    pub edge: u32,
    entered: u64,
    children: u64,
    direct_callees: u64,
    all_callees: u64,
    /// Whether no other call of the function was open when it began, and is when it ends.
    outermost: bool,
}

/// A call that is over.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    /// What it was while it was open.
    pub call: OpenCall,
    /// From enter to exit.
    pub total_ticks: u64,
    /// The same without callees.
    pub self_ticks: u64,
    /// Calls it made itself.
    pub direct_callees: u64,
    /// Calls made in it, at any depth.
    pub all_callees: u64,
    /// Whether no other call of the function is open.
    pub outermost: bool,
    /// Whether no event was lost while it was open.
    pub certain: bool,
    /// Whether it ended; else the trace did.
    pub returned: bool,
}

/// What the matching of a thread found odd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Exits without an enter that nothing explains.
    pub unmatched_exits: u64,
    /// Exits whose enter is among lost events.
    pub exits_after_loss: u64,
    /// Exits of functions that a forked process had entered before the fork.
    pub inherited_exits: u64,
    /// Calls left without an exit: longjmp, an exception, a cancelled thread.
    pub skipped_calls: u64,
    /// Calls whose exit is among lost events.
    pub calls_cut_by_loss: u64,
    /// Calls that were open while events were lost.
    pub uncertain_calls: u64,
    /// Calls that had not returned at the end.
    pub unclosed_enters: u64,
    /// Time in which events were lost.
    pub gap_ticks: u64,
    /// How often recording was paused while calls were made.
    pub pauses: u64,
    /// Of those that loss explains, the ones where only a drain that was away explains it.
    pub mismatches_resumed: u64,
    /// The farthest step back of the clock that no signal handler explains.
    pub greatest_step_back: u64,
}

/// The open calls of one thread.
#[derive(Debug, Default)]
pub struct Stack {
    calls: Vec<OpenCall>,
    open: OpenFunctions,
    started: bool,
    now: u64,
    alive_until: u64,
    gap: u64,
    in_gap: bool,
    /// Whether the last that was told is a pause.
    in_pause: bool,
    /// Calls below this depth were open while events were lost.
    uncertain_below: usize,
    /// Lost events that may each be the enter of an exit to come.
    lost_events: u64,
    /// Whether nobody took events for a while; and calls below this depth were open then.
    resumed: bool,
    /// See `resumed`.
    resumed_below: usize,
    forked: bool,
    /// What was odd so far.
    pub tally: Tally,
}

impl Stack {
    /// A stack of a thread; `forked` if it may leave functions it never entered.
    pub fn new(forked: bool) -> Stack {
        Stack { forked, ..Stack::default() }
    }

    /// The thread entered a function.
    pub fn enter<S: CallSink>(&mut self, event: &Event, sink: &mut S) {
        let before = self.active();
        self.advance(event.ts);
        let frame_units = event.frame_units();
        self.close_frames_left_behind(frame_units, before, sink);
        self.close_call_made_again(event, before, sink);
        self.close_callees_left_behind(event, before, sink);
        let function = sink.function(event.func, event.ts);
        let outermost = !self.open.has(function);
        self.open.push(function);
        let mut call = OpenCall {
            address: event.func,
            site: event.call_site,
            function,
            frame_units,
            entered: self.active(),
            outermost,
            ..OpenCall::default()
        };
        sink.opened(&mut call, self.calls.last());
        self.calls.push(call);
    }

    /// The thread left a function.
    pub fn exit<S: CallSink>(&mut self, event: &Event, sink: &mut S) {
        let before = self.active();
        self.advance(event.ts);
        match self.calls.last() {
            Some(top) if top.address == event.func => {}
            _ => match sink.known_function(event.func, event.ts) {
                Some(function) if self.open.has(function) => {
                    self.close_frames_above(function, before, sink);
                }
                _ => return self.exit_of_nothing(),
            },
        }
        self.close_top(self.active(), true, sink);
    }

    /// Events of the thread were lost here.
    pub fn lost(&mut self, events: u64) {
        self.in_gap = true;
        self.uncertain_below = self.calls.len();
        self.lost_events = self.lost_events.saturating_add(events);
    }

    /// Recording was paused before this: what was called meanwhile is as if it had been lost, any
    /// number of events, though it is no loss.
    pub fn paused(&mut self) {
        // A writer may say it twice of one pause.
        self.tally.pauses += u64::from(!self.in_pause);
        self.in_pause = true;
        self.lost(u64::MAX);
    }

    /// Nobody took events for a while. Perhaps there was none; what does not match tells.
    pub fn resumed(&mut self) {
        self.resumed = true;
        self.resumed_below = self.calls.len();
    }

    /// The thread was alive at `ts`, and perhaps longer in what it had called by then.
    pub fn alive(&mut self, ts: u64) {
        self.alive_until = self.alive_until.max(ts);
    }

    /// The trace of the thread ends here. Open calls end with it.
    pub fn finish<S: CallSink>(&mut self, sink: &mut S) {
        if self.started && !self.in_gap {
            self.now = self.now.max(self.alive_until);
        }
        self.tally.unclosed_enters += self.calls.len() as u64;
        while !self.calls.is_empty() {
            self.close_top(self.active(), false, sink);
        }
        self.tally.gap_ticks = self.gap;
    }

    /// Whether a call is open.
    pub fn is_open(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The last time at which the thread was seen; 0 before its first event.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The clock of durations: stands still in gaps.
    fn active(&self) -> u64 {
        self.now - self.gap
    }

    fn advance(&mut self, ts: u64) {
        // A signal handler may come between the reading of the clock and the storing of the event:
        // the event then stands behind the handler's calls. Those are over, so what is open now was
        // open when the clock was read.
        if ts < self.now && self.calls.last().is_some_and(|top| top.entered > ts) {
            self.tally.greatest_step_back = self.tally.greatest_step_back.max(self.now - ts);
        }
        let next = self.now.max(ts);
        // Lost events before the first one of a thread are before its time.
        if self.in_gap && self.started {
            self.gap += next - self.now;
        }
        (self.in_gap, self.in_pause) = (false, false);
        self.started = true;
        self.now = next;
    }

    fn close_frames_left_behind<S: CallSink>(&mut self, units: u32, at: u64, sink: &mut S) {
        while let Some(top) = self.calls.last() {
            if !is_gone(top.frame_units, units) {
                return;
            }
            self.skip_top(at, sink);
        }
    }

    /// A call that was open while events were lost, and is made again from the same place on the same
    /// frame, has returned meanwhile, as in any loop. Were it a recursion that is inlined in itself,
    /// one more call would be doubtful; taken for one, a loop's call would hold all that follows.
    fn close_call_made_again<S: CallSink>(&mut self, event: &Event, at: u64, sink: &mut S) {
        let Some(top) = self.calls.last() else { return };
        let doubtful = self.calls.len() <= self.uncertain_below;
        let again = (top.address, top.site, top.frame_units)
            == (event.func, event.call_site, event.frame_units());
        if doubtful && again && top.frame_units != 0 {
            self.skip_top(at, sink);
        }
    }

    /// Calls that a longjmp or an exception left may lie lower in the stack than the next call, but
    /// that one tells who made it: whatever that function had called before is over.
    fn close_callees_left_behind<S: CallSink>(&mut self, event: &Event, at: u64, sink: &mut S) {
        let Some(top) = self.calls.last() else { return };
        // The same place again: the body of the new call is inlined in that of the open one.
        if event.frame_units() == 0 || event.call_site == top.site {
            return;
        }
        let caller = sink.caller(event.call_site);
        if caller == 0 || caller == top.address {
            return;
        }
        let Some(function) = sink.known_function(caller, event.ts) else { return };
        if !self.open.has(function) {
            return;
        }
        if let Some(kept) = self.calls_kept_by(function, event.frame_units()) {
            while self.calls.len() > kept {
                self.skip_top(at, sink);
            }
        }
    }

    /// How many calls are still open when the nearest open call of `function` makes one at
    /// `units`: itself, those around it, those inlined in it. `None` where another stack is
    /// involved, or the place does not fit; or where that call was open when events were lost, and one
    /// above it is since: it may have returned meanwhile, and been made anew.
    fn calls_kept_by(&self, function: FunctionId, units: u32) -> Option<usize> {
        let nearest = self.calls.iter().rposition(|call| call.function == function)?;
        if nearest < self.uncertain_below && self.calls.len() > self.uncertain_below {
            return None;
        }
        let caller = &self.calls[nearest];
        let below = |units: u32| is_gone(units, caller.frame_units);
        let inlined = self.calls[nearest + 1..].iter().take_while(|call| call.site == caller.site);
        let kept = nearest + 1 + inlined.count();
        let all_below = self.calls[kept..].iter().all(|call| below(call.frame_units));
        (all_below && below(units)).then_some(kept)
    }

    fn close_frames_above<S: CallSink>(&mut self, function: FunctionId, at: u64, sink: &mut S) {
        while self.calls.last().is_some_and(|top| top.function != function) {
            self.skip_top(at, sink);
        }
    }

    /// Ends a call whose exit never came, at the last event inside it.
    fn skip_top<S: CallSink>(&mut self, at: u64, sink: &mut S) {
        let open = self.calls.len();
        if open > self.uncertain_below && open <= self.resumed_below {
            self.tally.mismatches_resumed += 1;
            self.uncertain_below = open;
        }
        match open <= self.uncertain_below {
            true => self.tally.calls_cut_by_loss += 1,
            false => self.tally.skipped_calls += 1,
        }
        self.close_top(at, true, sink);
    }

    fn exit_of_nothing(&mut self) {
        let tally = &mut self.tally;
        if self.lost_events > 0 {
            self.lost_events -= 1;
            tally.exits_after_loss += 1;
        } else if self.forked {
            tally.inherited_exits += 1;
        } else if self.resumed {
            tally.exits_after_loss += 1;
            tally.mismatches_resumed += 1;
        } else {
            tally.unmatched_exits += 1;
        }
    }

    fn close_top<S: CallSink>(&mut self, at: u64, returned: bool, sink: &mut S) {
        let Some(call) = self.calls.pop() else { return };
        self.open.pop(call.function);
        let depth = self.calls.len();
        let total_ticks = at - call.entered;
        let certain = depth >= self.uncertain_below;
        self.uncertain_below = self.uncertain_below.min(depth);
        self.resumed_below = self.resumed_below.min(depth);
        self.tally.uncertain_calls += u64::from(!certain);
        if let Some(parent) = self.calls.last_mut() {
            parent.children += total_ticks;
            parent.direct_callees += 1;
            parent.all_callees += call.all_callees + 1;
        }
        sink.closed(&Closed {
            total_ticks,
            self_ticks: total_ticks - call.children,
            direct_callees: call.direct_callees,
            all_callees: call.all_callees,
            outermost: call.outermost,
            certain,
            returned,
            call,
        });
    }
}

/// How far apart two frames of one stack may be for the older one to count as gone: beyond that
/// the thread is on another stack (a signal's, a coroutine's).
const NEAR_BYTES: u32 = 256 << 10;

/// Frame units wrap at this number.
const FRAME_MODULUS: u32 = 1 << 24;

/// Whether a call entered with the stack pointer at `open` is over when another is entered at
/// `entered`, nearer to the start of the same stack. Equal is not gone: inlined functions share
/// a frame.
fn is_gone(open: u32, entered: u32) -> bool {
    let up = entered.wrapping_sub(open) % FRAME_MODULUS;
    open != 0 && entered != 0 && up > 0 && up < NEAR_BYTES / 16
}

/// Depth up to which open functions are looked through one by one: 64 numbers are four cache
/// lines, and a lookup in a table takes as long.
const SHALLOW: usize = 64;

/// Which functions have open calls. A thread costs what it has open, however many functions the
/// process has.
#[derive(Debug, Default)]
struct OpenFunctions {
    shallow: Vec<FunctionId>,
    /// How many calls of each function are open below those.
    deep: FxHashMap<FunctionId, u32>,
    deep_calls: usize,
}

impl OpenFunctions {
    #[inline]
    fn push(&mut self, function: FunctionId) {
        if self.shallow.len() < SHALLOW {
            return self.shallow.push(function);
        }
        self.deep_calls += 1;
        *self.deep.entry(function).or_default() += 1;
    }

    /// The last one pushed, which was `function`, is over.
    #[inline]
    fn pop(&mut self, function: FunctionId) {
        if self.deep_calls == 0 {
            self.shallow.pop();
            return;
        }
        self.deep_calls -= 1;
        if let Entry::Occupied(mut count) = self.deep.entry(function) {
            match *count.get() {
                1 => drop(count.remove()),
                _ => *count.get_mut() -= 1,
            }
        }
    }

    #[inline]
    fn has(&self, function: FunctionId) -> bool {
        self.shallow.contains(&function) || self.deep_calls > 0 && self.deep.contains_key(&function)
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
