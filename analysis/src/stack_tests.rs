//! Events written as words → calls written as `a(b(c))`, and a naive matcher beside the real one.

use std::collections::BTreeMap;

use callsight_format::{KIND_ENTER, KIND_EXIT};
use fastrand::Rng;

use super::*;

/// Keeps every call; functions are letters.
#[derive(Default)]
struct Recorder {
    open: usize,
    calls: Vec<Closed>,
    /// How many calls were open around each.
    depths: Vec<usize>,
}

impl CallSink for Recorder {
    fn function(&mut self, address: u64, _ts: u64) -> FunctionId {
        address as FunctionId
    }
    fn known_function(&self, address: u64, _ts: u64) -> Option<FunctionId> {
        Some(address as FunctionId)
    }
    fn caller(&mut self, site: u64) -> u64 {
        site / 100
    }
    fn opened(&mut self, _call: &mut OpenCall, _parent: Option<&OpenCall>) {
        self.open += 1;
    }
    fn closed(&mut self, call: &Closed) {
        self.open -= 1;
        self.depths.push(self.open);
        self.calls.push(*call);
    }
}

impl Recorder {
    /// The calls as a tree; `?` marks an uncertain call, `~` one that did not return.
    fn tree(&self) -> String {
        let mut inside: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (call, depth) in self.calls.iter().zip(&self.depths) {
            let callees = inside.remove(&(depth + 1)).unwrap_or_default().join(" ");
            let name = char::from(call.call.function as u8);
            let doubt = if call.certain { "" } else { "?" };
            let open = if call.returned { "" } else { "~" };
            let callees = if callees.is_empty() { callees } else { format!("({callees})") };
            inside.entry(*depth).or_default().push(format!("{name}{doubt}{open}{callees}"));
        }
        inside.remove(&0).unwrap_or_default().join(" ")
    }
}

/// Runs `script`: `enter a`, `enter a @ 400` (stack pointer), `enter a by m1 @ 400` (from the first
/// place in `m`), `exit a`, `lost 3`, `a pause`; the clock moves by 10 at each step, `wait 500` moves it on,
/// `back 3` turns it back.
fn run(script: &str, forked: bool) -> (Recorder, Tally) {
    let (mut stack, mut recorder, mut ts) = (Stack::new(forked), Recorder::default(), 10_000u64);
    for step in script.split(", ").filter(|step| !step.is_empty()) {
        let words: Vec<&str> = step.split(' ').collect();
        let number = || words[words.len() - 1].parse::<u64>().expect("a number");
        let units = if words.contains(&"@") { number() as u32 / 16 } else { 0 };
        let func = u64::from(words[1].as_bytes()[0]);
        let [low, middle, high, _] = units.to_le_bytes();
        let call_site = match words.get(2..4) {
            Some(["by", place]) => {
                let [function, number] = place.as_bytes() else { panic!("{place} is no place") };
                u64::from(*function) * 100 + u64::from(*number)
            }
            _ => 0,
        };
        let mut event = Event { func, call_site, frame: [low, middle, high], ..Event::default() };
        ts += 10;
        event.ts = ts;
        match words[0] {
            "enter" => {
                event.kind = KIND_ENTER;
                stack.enter(&event, &mut recorder);
            }
            "exit" => {
                event.kind = KIND_EXIT;
                stack.exit(&event, &mut recorder);
            }
            "lost" => stack.lost(number()),
            "a" => stack.paused(),
            "wait" => ts += number(),
            "back" => ts -= 10 + number(),
            other => panic!("{other} is no step"),
        }
    }
    stack.finish(&mut recorder);
    (recorder, stack.tally)
}

/// Runs `script`, compares the calls with `tree`, gives what was odd.
fn check(script: &str, tree: &str) -> Tally {
    let (recorder, tally) = run(script, false);
    assert_eq!(recorder.tree(), tree, "{script}");
    tally
}

/// `(total, self)` of each call, in the order they ended.
fn times(script: &str) -> Vec<(u64, u64)> {
    let (recorder, _) = run(script, false);
    recorder.calls.iter().map(|call| (call.total_ticks, call.self_ticks)).collect()
}

#[test]
fn a_call_made_anew_among_lost_events_leaves_no_frames_behind() {
    // In truth the second `p` was entered from `x2`, of which nobody knows, and `q` is inlined in it.
    let script = "enter p by x1 @ 800, lost 3, enter q by x2 @ 760, enter e by p1 @ 700, \
                  exit e, exit q, exit p";
    let (_, tally) = run(script, false);
    assert_eq!(tally.skipped_calls, 0);
}

#[test]
fn calls_nest() {
    let tally = check("enter a, enter b, exit b, enter b, exit b, exit a", "a(b b)");
    assert_eq!(tally, Tally::default());
}

#[test]
fn a_longjmp_closes_the_frames_it_skipped() {
    let tally = check("enter a, enter b, enter c, exit a", "a(b(c))");
    assert_eq!((tally.skipped_calls, tally.unmatched_exits), (2, 0));
}

#[test]
fn skipped_frames_end_at_the_last_event_inside_them() {
    let script = "enter a, enter b, enter c, exit c, wait 1000, exit a";
    assert_eq!(times(script), [(10, 10), (20, 10), (1050, 1030)]);
}

#[test]
fn a_call_from_an_older_frame_closes_the_frames_a_longjmp_left() {
    let script =
        "enter a @ 900, enter b @ 800, enter c @ 700, enter d @ 800, exit d, exit b, exit a";
    let tally = check(script, "a(b(c d))");
    assert_eq!((tally.skipped_calls, tally.unmatched_exits), (1, 0));
}

#[test]
fn inlined_functions_share_a_frame() {
    let tally = check("enter a @ 800, enter b @ 800, exit b, exit a", "a(b)");
    assert_eq!(tally, Tally::default());
}

#[test]
fn a_call_shows_that_what_its_caller_called_before_is_over() {
    // `t` threw through `s`; `n` needs more stack than they did, but `m` made the call.
    let script = "enter m @ 900, enter s by m1 @ 800, enter t by s1 @ 700, \
                  enter n by m2 @ 600, exit n, exit m";
    let tally = check(script, "m(s(t) n)");
    assert_eq!((tally.skipped_calls, tally.unmatched_exits), (2, 0));
}

#[test]
fn a_call_out_of_an_inlined_function_closes_nothing() {
    let script = "enter m @ 900, enter f by m1 @ 800, enter g by m1 @ 800, enter k by f1 @ 700, \
                  exit k, exit g, exit f, exit m";
    assert_eq!(check(script, "m(f(g(k)))"), Tally::default());
}

#[test]
fn a_call_on_another_stack_closes_nothing_there() {
    let script = "enter m @ 900, enter f by m1 @ 800, enter c @ 9000000, enter g by f1 @ 700, \
                  exit g, exit c, exit f, exit m";
    assert_eq!(check(script, "m(f(c(g)))"), Tally::default());
}

#[test]
fn a_frame_on_another_stack_leaves_this_one_alone() {
    let script = "enter a @ 1600, enter b @ 900000, exit b, exit a";
    assert_eq!(check(script, "a(b)"), Tally::default());
}

#[test]
fn a_stack_pointer_across_the_wrap_of_its_28_bits_is_near() {
    assert!(is_gone(FRAME_MODULUS - 2, 3));
    assert!(!is_gone(3, FRAME_MODULUS - 2));
    assert!(!is_gone(0, 5) && !is_gone(5, 0) && !is_gone(5, 5));
}

#[test]
fn an_exit_of_nothing_is_counted() {
    assert_eq!(check("exit a, enter b, exit c, exit b", "b").unmatched_exits, 2);
}

#[test]
fn a_forked_process_leaves_what_its_parent_entered() {
    let (recorder, tally) = run("enter b, exit b, exit a, exit m", true);
    assert_eq!((recorder.tree().as_str(), tally.inherited_exits), ("b", 2));
    assert_eq!(tally.unmatched_exits, 0);
}

#[test]
fn calls_that_never_returned_run_to_the_end() {
    let tally = check("enter m, enter q, enter q, wait 60, enter x, exit x", "m~(q~(q~(x)))");
    assert_eq!(tally.unclosed_enters, 3);
    assert_eq!(times("enter m, enter x, exit x"), [(10, 10), (20, 10)]);
}

#[test]
fn a_loss_explains_as_many_exits_as_events_were_lost() {
    let tally = check("enter a, lost 1, exit b, exit c, exit a", "a?");
    assert_eq!((tally.exits_after_loss, tally.unmatched_exits), (1, 1));
    assert_eq!(tally.uncertain_calls, 1);
}

#[test]
fn a_call_whose_exit_was_lost_is_no_longjmp() {
    let tally = check("enter a, enter b, lost 2, exit a", "a?(b?)");
    assert_eq!((tally.calls_cut_by_loss, tally.skipped_calls), (1, 0));
}

#[test]
fn calls_after_a_loss_are_certain_again() {
    let tally = check("enter a, lost 9, enter b, exit b, exit a, enter c, exit c", "a?(b) c");
    assert_eq!(tally.uncertain_calls, 1);
}

#[test]
fn a_gap_is_in_no_functions_time() {
    let script = "enter a, enter b, lost 7, wait 5000, exit b, exit a";
    assert_eq!(times(script), [(0, 0), (20, 20)]);
    assert_eq!(run(script, false).1.gap_ticks, 5030);
}

#[test]
fn a_call_made_again_after_a_loss_is_not_in_itself() {
    let loop_of = |missing: &str| {
        format!(
            "enter m @ 900, enter t by m1 @ 800, enter u by t1 @ 700, {missing}, \
             enter t by m1 @ 800, exit t, enter t by m1 @ 800, exit t, exit m"
        )
    };
    let tally = check(&loop_of("lost 9"), "m?(t?(u?) t t)");
    assert_eq!((tally.calls_cut_by_loss, tally.skipped_calls, tally.pauses), (2, 0, 0));
    let tally = check(&loop_of("a pause"), "m?(t?(u?) t t)");
    assert_eq!((tally.calls_cut_by_loss, tally.skipped_calls, tally.pauses), (2, 0, 1));
}

#[test]
fn a_pause_told_twice_is_one_and_one_before_the_first_call_counts() {
    let tally = check("a pause, enter a, a pause, a pause, exit b, exit a, a pause", "a?");
    assert_eq!((tally.pauses, tally.exits_after_loss, tally.unmatched_exits), (3, 1, 0));
}

#[test]
fn recursion_knows_its_outermost_call() {
    let (recorder, _) = run("enter r, enter r, enter r, exit r, exit r, exit r", false);
    let outermost: Vec<bool> = recorder.calls.iter().map(|call| call.outermost).collect();
    assert_eq!(outermost, [false, false, true]);
}

#[test]
fn a_clock_that_steps_back_gives_no_negative_time() {
    let script = "enter a, enter b, back 500, exit b, wait 600, exit a";
    assert_eq!(times(script).len(), 2);
    assert_eq!(run(script, false).1.greatest_step_back, 490);
}

#[test]
fn callees_are_counted_at_one_level_and_at_all() {
    let (recorder, _) = run("enter a, enter b, enter c, exit c, exit b, exit a", false);
    let a = recorder.calls[2];
    assert_eq!((a.direct_callees, a.all_callees), (1, 2));
}

#[test]
fn exits_of_nothing_under_many_open_calls_are_quick() {
    let (mut stack, mut recorder) = (Stack::new(false), Recorder::default());
    for ts in 1..200_000 {
        stack.enter(&Event { ts, func: 5, ..Event::default() }, &mut recorder);
    }
    // Each of these would walk 200,000 calls: 4e10 steps, which no test run survives.
    for ts in 200_000..400_000 {
        stack.exit(&Event { ts, func: 6, kind: KIND_EXIT, ..Event::default() }, &mut recorder);
    }
    assert_eq!(stack.tally.unmatched_exits, 200_000);
}

/// What the rules say, with a plain list and no shortcut: `(function, total)` and unmatched exits.
fn naive(events: &[Event]) -> (Vec<(u64, u64)>, u64) {
    let (mut open, mut calls, mut unmatched): (Vec<(u64, u64)>, _, _) = (vec![], vec![], 0);
    let mut last = 0;
    for event in events {
        if event.kind == KIND_ENTER {
            open.push((event.func, event.ts));
        } else if let Some(at) = open.iter().rposition(|(func, _)| *func == event.func) {
            while open.len() > at + 1 {
                let (func, entered) = open.pop().expect("deeper");
                calls.push((func, last - entered));
            }
            let (func, entered) = open.pop().expect("the call");
            calls.push((func, event.ts - entered));
        } else {
            unmatched += 1;
        }
        last = event.ts;
    }
    while let Some((func, entered)) = open.pop() {
        calls.push((func, last - entered));
    }
    (calls, unmatched)
}

#[test]
fn random_events_match_as_a_naive_matcher_does_and_self_times_sum_to_the_roots() {
    let mut random = Rng::with_seed(1);
    for _ in 0..300 {
        let mut ts = 1;
        let events: Vec<Event> = (0..random.u64(..200))
            .map(|_| {
                ts += random.u64(..50);
                let kind = if random.u64(..9) < 5 { KIND_ENTER } else { KIND_EXIT };
                Event { ts, func: 1 + random.u64(..6), kind, ..Event::default() }
            })
            .collect();
        let (mut stack, mut recorder) = (Stack::new(false), Recorder::default());
        for event in &events {
            match event.kind {
                KIND_ENTER => stack.enter(event, &mut recorder),
                _ => stack.exit(event, &mut recorder),
            }
        }
        stack.finish(&mut recorder);
        let found: Vec<(u64, u64)> = recorder
            .calls
            .iter()
            .map(|call| (u64::from(call.call.function), call.total_ticks))
            .collect();
        assert_eq!((found, stack.tally.unmatched_exits), naive(&events));
        let own: u64 = recorder.calls.iter().map(|call| call.self_ticks).sum();
        let calls = recorder.calls.iter().zip(&recorder.depths);
        let roots = calls.filter(|(_, depth)| **depth == 0);
        assert_eq!(own, roots.map(|(call, _)| call.total_ticks).sum::<u64>());
    }
}

#[test]
fn a_thread_costs_what_it_has_open_however_many_functions_there_are() {
    let (mut stack, mut recorder) = (Stack::new(false), Recorder::default());
    for func in 1..100_000u64 {
        stack.enter(&Event { ts: func, func, ..Event::default() }, &mut recorder);
        stack.exit(&Event { ts: func, func, ..Event::default() }, &mut recorder);
    }
    assert!(stack.open.shallow.capacity() <= SHALLOW && stack.open.deep.capacity() == 0);
}

#[test]
fn a_handler_between_the_clock_and_the_event_is_no_step_back() {
    // The exit of `b` read the clock before the handler `h` ran for 5020, and stands behind it.
    let script =
        "enter a, enter b, enter h, wait 5000, exit h, back 5025, exit b, wait 5040, exit a";
    let (recorder, tally) = run(script, false);
    assert_eq!(recorder.tree(), "a(b(h))");
    assert_eq!(tally.greatest_step_back, 0);
    let own: u64 = recorder.calls.iter().map(|call| call.self_ticks).sum();
    assert_eq!(recorder.calls.last().map(|call| call.total_ticks), Some(own));
}

#[test]
fn an_enter_that_a_handler_came_before_is_no_step_back() {
    let script =
        "enter a, enter h, wait 5000, exit h, back 5015, enter b, wait 5040, exit b, exit a";
    assert_eq!(run(script, false).1.greatest_step_back, 0);
}
