//! A drain that is there as long as its program runs: when it dies, another one takes its place.
//!
//! In: what to drain. Out: how its drains ended, and what they told. What one leaves in the ring the next one
//! finds there, so that nothing is lost but what the ring has no room for meanwhile.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::drain::{DrainEnd, DrainPlan, DrainProcess, SharedAccount};
use super::figures::PastDrain;
use super::launch::captures_in;
use super::ring::RingFile;

/// How often it is looked at. A ring of 16 MiB holds half a million events, so that a program that
/// calls a lot fills it in a tenth of a second.
const POLL: Duration = Duration::from_millis(5);
/// How many drains in a row may die behind the program's end.
const LAST_TRIES: u32 = 5;
/// One that lived so long did not die of what it found.
const LIVED: Duration = Duration::from_secs(1);

/// What gets lines for the user.
type Say = fn(&str);

/// See the module.
#[derive(Debug)]
pub struct KeptDrain {
    plan: Replacement,
    over: Arc<AtomicBool>,
    /// Gives the drain that is there when the program is `over`.
    keeper: Option<JoinHandle<io::Result<Kept>>>,
}

/// The last drain so far, and those before it.
struct Kept {
    last: DrainProcess,
    before: Vec<Gone>,
}

/// A drain that has ended; its last lines may still come.
struct Gone(ExitStatus, SharedAccount);

impl Gone {
    fn drain(self) -> PastDrain {
        PastDrain { status: self.0, account: self.1.now() }
    }
}

/// How a program's drains ended.
#[derive(Debug)]
pub struct KeptEnd {
    /// The last one.
    pub last: DrainEnd,
    /// All of them, the last one too, in their order.
    pub drains: Vec<PastDrain>,
}

impl KeptDrain {
    /// Starts a drain and waits until it waits for the program. `say` gets the lines of all its
    /// drains, `note` what becomes of them.
    ///
    /// # Errors
    /// As [`DrainProcess::start`].
    pub fn start(plan: DrainPlan, say: Say, note: Say) -> io::Result<KeptDrain> {
        let plan = Replacement::of(plan, say, note);
        let drain = DrainProcess::start(&plan.plan, say)?;
        let over = Arc::new(AtomicBool::new(false));
        let (kept, ends) = (plan.clone(), Arc::clone(&over));
        let keeper = thread::spawn(move || keep(drain, &kept, &ends));
        Ok(KeptDrain { plan, over, keeper: Some(keeper) })
    }

    /// Waits for its end, behind that of the program, as [`DrainProcess::finish`] does.
    ///
    /// # Errors
    /// Why it cannot be waited for.
    pub fn finish(mut self, ring_was_made: bool) -> io::Result<KeptEnd> {
        let Kept { last: drain, before: mut gone } = self.last()?;
        let mut account = drain.account();
        let mut last = drain.finish(ring_was_made, self.plan.note)?;
        for _ in 0..LAST_TRIES {
            if last.was_told || last.left.is_none() || !is_replaced(last.status) {
                break;
            }
            self.plan.tell(last.status);
            gone.push(Gone(last.status, account));
            let drain = self.plan.start()?;
            account = drain.account();
            last = drain.finish(true, self.plan.note)?;
        }
        gone.push(Gone(last.status, account));
        Ok(KeptEnd { last, drains: gone.into_iter().map(Gone::drain).collect() })
    }

    fn last(&mut self) -> io::Result<Kept> {
        self.over.store(true, Ordering::Relaxed);
        let gone = || io::Error::other("its keeper is gone");
        self.keeper.take().ok_or_else(gone)?.join().map_err(|_| gone())?
    }
}

impl Drop for KeptDrain {
    fn drop(&mut self) {
        // Where it was not finished, there is no program, and the drain is told to end.
        drop(self.last());
    }
}

/// Replaces the drain of a running program; the last one may have ended, too.
fn keep(mut drain: DrainProcess, plan: &Replacement, over: &AtomicBool) -> io::Result<Kept> {
    let mut before = Vec::new();
    let (mut ring_was_there, mut pauses) = (false, Pauses::of_the_killed());
    while !over.load(Ordering::Relaxed) {
        thread::sleep(POLL);
        let ring_is_there = || RingFile::open(&plan.plan.ring).is_ok();
        ring_was_there = ring_was_there || ring_is_there();
        let Some((status, lived)) = drain.ended()? else { continue };
        // Behind a ring that is finished none is needed until a program makes another.
        if !is_replaced(status) || (ring_was_there && !ring_is_there()) {
            continue;
        }
        plan.tell(status);
        if status.signal().is_some() {
            thread::sleep(pauses.next(lived));
        }
        match plan.start() {
            Ok(another) => {
                before.push(Gone(status, drain.account()));
                drain = another;
            }
            Err(error) => (plan.note)(&format!("start another drain: {error}")),
        }
    }
    Ok(Kept { last: drain, before })
}

/// A drain that failed has said why, and so would the next one. One that ended well may have left a
/// ring to the next: one that was made behind its own.
fn is_replaced(status: ExitStatus) -> bool {
    status.success() || status.signal().is_some()
}

/// How a drain is replaced.
#[derive(Clone, Debug)]
struct Replacement {
    plan: DrainPlan,
    say: Say,
    note: Say,
    /// The captures that were there before.
    earlier: Vec<PathBuf>,
}

impl Replacement {
    fn of(plan: DrainPlan, say: Say, note: Say) -> Replacement {
        let earlier = captures_of(&plan);
        Replacement { plan, say, note, earlier }
    }

    fn tell(&self, status: ExitStatus) {
        if status.signal().is_some() {
            (self.note)(&format!(
                "the drain was killed ({status}); another one takes what it left"
            ));
        }
    }

    fn start(&self) -> io::Result<DrainProcess> {
        let plan = DrainPlan { budget_bytes: self.budget_bytes(), ..self.plan.clone() };
        DrainProcess::spawn(&plan, self.say)
    }

    /// What is left of the budget for the captures of all its drains.
    fn budget_bytes(&self) -> u64 {
        match self.plan.budget_bytes {
            0 => 0,
            // Not 0, which would be no limit.
            budget => budget.saturating_sub(self.written_bytes()).max(1),
        }
    }

    /// Bytes of the captures that its drains have made.
    fn written_bytes(&self) -> u64 {
        let made = captures_of(&self.plan).into_iter().filter(|path| !self.earlier.contains(path));
        made.filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum()
    }
}

fn captures_of(plan: &DrainPlan) -> Vec<PathBuf> {
    let captures = plan.file.as_deref().map(captures_in);
    captures.and_then(Result::ok).unwrap_or_default()
}

/// How long to wait before something that died is started again: not at all after a long life, and
/// longer and longer where it dies at once.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Pauses {
    /// From `first` up to `most`, each twice the one before.
    pub fn between(first: Duration, most: Duration) -> Pauses {
        Pauses { first, most, next: first }
    }

    /// Those before a drain that was killed is replaced: its program goes on filling the ring.
    pub fn of_the_killed() -> Pauses {
        Pauses::between(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// The one after such a life.
    pub fn next(&mut self, lived: Duration) -> Duration {
        if lived >= LIVED {
            self.next = self.first;
            return Duration::ZERO;
        }
        let pause = self.next;
        self.next = (2 * pause).min(self.most);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_dies_at_once_is_waited_for_longer_and_longer() {
        let ms = Duration::from_millis;
        let mut pauses = Pauses::between(ms(10), ms(50));
        let lives = [0, 0, 500, 999, 0, 1000, 0].map(ms);
        let waited = lives.map(|lived| pauses.next(lived).as_millis());
        assert_eq!(waited, [10, 20, 40, 50, 50, 0, 10]);
    }

    #[test]
    fn the_drains_of_a_run_share_its_budget() {
        let folder = tempfile::tempdir().expect("a folder");
        let capture = |name: &str| {
            std::fs::write(folder.path().join(name), [0; 100]).expect("write a capture");
        };
        let plan = |budget_bytes| DrainPlan {
            command: Vec::new(),
            ring: "/r".to_owned(),
            file: Some(folder.path().to_owned()),
            budget_bytes,
            live: None,
        };
        capture("trace.stream.1.0.bin");
        let plans = [0, 50, 1000].map(|budget| Replacement::of(plan(budget), |_| (), |_| ()));
        capture("trace.stream.2.0.bin");
        assert_eq!(plans.map(|plan| plan.budget_bytes()), [0, 1, 900]);
    }
}
