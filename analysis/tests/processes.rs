//! Notes about processes, threads and modules → whose calls they are.

mod common;

use callsight_format::{ByteOrder, Cause, MARK_BUDGET, MARK_CLOCK, Origin};
use common::{Captures, Records, assert_noticed, report, rows, ticks};

#[test]
fn threads_have_processes_and_names() {
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .name(7, "app")
        .thread(7, "enter a, exit a")
        .process(9, 7, "/bin/app")
        .name(9, "worker\n1")
        .thread(9, "enter a, exit a")
        .end(7);
    let report = report(records.file_mapped(60));
    let threads: Vec<(u32, u32, &str, u64)> = report
        .threads
        .iter()
        .map(|thread| (thread.pid, thread.tid, thread.name.as_str(), thread.events))
        .collect();
    assert_eq!(threads, [(7, 7, "app", 2), (7, 9, "worker1", 2)]);
    assert_eq!(report.processes.len(), 1);
    assert_eq!(report.processes[0].ended, Some(true));
}

#[test]
fn a_thread_id_that_is_handed_out_again_is_another_thread() {
    let records = Records::default()
        .process(9, 7, "/bin/app")
        .thread(9, "enter a")
        .process(9, 7, "/bin/app")
        .thread(9, "wait 900, exit a, enter b, exit b");
    let report = report(records.file_mapped(60));
    assert_eq!(rows(&report), "a 1 0/0, b 1 10/10");
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (1, 1));
    assert_eq!(report.threads.len(), 2);
}

#[test]
fn a_main_thread_that_says_twice_who_it_is_is_one_thread() {
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .thread(7, "enter p, exit p")
        .process(7, 7, "/bin/app")
        .thread(7, "enter m, exit m");
    let report = report(records.file_mapped(0));
    assert_eq!((report.threads.len(), report.processes.len(), report.events), (1, 1, 4));
}

#[test]
fn a_forked_child_leaves_what_its_parent_entered() {
    let files = [
        ("trace.7.7.0.bin", {
            let parent = Records::default().process(7, 7, "/bin/app");
            parent.thread(7, "enter m, enter f, exit f, exit m").end(7).file_mapped(40)
        }),
        ("trace.8.8.0.bin", {
            let child = Records::default().forked(8, 8, "/bin/app");
            child.thread(8, "enter c, exit c, exit f, exit m").end(8).file_mapped(40)
        }),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!((report.totals.unmatched_exits, report.totals.inherited_exits), (0, 2));
    assert_noticed(&report, "2 exits are of functions that a forked process had entered");
    assert!(!report.notices.iter().any(|notice| notice.contains("runs")), "a fork is no run");
}

#[test]
fn exec_makes_another_process_with_modules_of_its_own() {
    let records = Records::default()
        .process(7, 7, "/bin/one")
        .module(7, 4096, 4096, &[1], "/bin/one")
        .thread(7, "enter @5000")
        .process(7, 7, "/bin/two")
        .module(7, 4096, 4096, &[2], "/bin/two")
        .thread(7, "enter @5000, exit @5000")
        .end(7);
    let report = report(records.file_mapped(60));
    let mut modules: Vec<(&str, u64)> =
        report.rows.iter().map(|row| (row.module.as_str(), row.calls)).collect();
    modules.sort_unstable();
    assert_eq!(modules, [("/bin/one", 1), ("/bin/two", 1)]);
}

#[test]
fn the_head_of_a_later_segment_ends_no_life() {
    let files = [
        ("trace.7.7.0.bin", {
            let first = Records::default().again(7, 7, "/bin/app").process(7, 7, "/bin/app");
            first.thread(7, "enter m, enter a, exit a").file_mapped(0)
        }),
        ("trace.7.9.1.bin", {
            let mut second = Records { ts: 5000, ..Records::default() };
            second = second.again(7, 7, "/bin/app").thread(7, "exit m");
            second
                .again(9, 7, "/bin/app")
                .process(9, 7, "/bin/app")
                .thread(9, "enter a, exit a")
                .file_mapped(0)
        }),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!((report.totals.unmatched_exits, report.totals.unclosed_enters), (0, 0));
    assert_eq!((report.threads.len(), report.processes.len()), (2, 1));
    assert!(report.notices.iter().all(|notice| !notice.contains("runs")), "{:?}", report.notices);
}

#[test]
fn exec_of_the_same_program_at_another_address_has_modules_of_its_own() {
    let image = |base: u64, t0_ns: u64| {
        let origin = Origin { t0_ns, ..Origin::default() };
        Records::default()
            .again(7, 7, "/bin/app")
            .module(7, base, 4096, &[1], "/bin/app")
            .process(7, 7, "/bin/app")
            .thread(7, &format!("enter @{}", base + 64))
            .file_mapped_of(origin, 0)
    };
    let files = [("trace.7.7.0.bin", image(8192, 5)), ("trace.7.7.1.bin", image(40960, 6))];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!((report.rows.len(), report.rows[0].calls, report.rows[0].address), (1, 2, 64));
    assert_eq!(report.processes.len(), 2);
}

#[test]
fn a_forked_child_has_the_modules_of_the_life_that_forked_it() {
    let began = |t0_ns: u64| Origin { t0_ns, ..Origin::default() };
    let parent = |base: u64, t0_ns: u64| {
        let records = Records::default().process(7, 7, "/bin/app");
        records.module(7, base, 4096, &[1], "/bin/app").end(7).file_mapped_of(began(t0_ns), 0)
    };
    let child = Records::default().child_of(7, 8, "/bin/app").thread(8, "enter @8224, exit @8224");
    let files = [
        ("trace.7.7.0.bin", parent(8192, 5)),
        ("trace.7.7.1.bin", parent(40_960, 6)),
        ("trace.8.8.0.bin", child.end(8).file_mapped_of(began(5), 0)),
    ];
    let report = Captures::new(&files).analyze().expect("a report");
    let rows: Vec<_> = report.rows.iter().map(|row| (row.module.as_str(), row.address)).collect();
    assert_eq!(rows, [("/bin/app", 32)]);
}

#[test]
fn plugins_at_one_address_in_turn_are_two_rows() {
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .thread(7, "enter @5000, exit @5000")
        .module(7, 4096, 4096, &[1], "/lib/pa.so")
        .thread(7, "enter @5000, exit @5000")
        .gone(7, 4096, 4096)
        .thread(7, "enter @5000, exit @5000")
        .module(7, 4096, 4096, &[2], "/lib/pb.so")
        .thread(7, "enter @5000, exit @5000, enter @5000, exit @5000")
        .end(7);
    let report = report(records.file_mapped(80));
    let mut calls: Vec<(&str, u64)> =
        report.rows.iter().map(|row| (row.module.as_str(), row.calls)).collect();
    calls.sort_unstable();
    assert_eq!(calls, [("/lib/pa.so", 2), ("/lib/pb.so", 3)]);
    assert_noticed(&report, "1 function of /lib/pa.so has no name");
}

#[test]
fn one_build_in_two_processes_at_two_addresses_is_one_row() {
    let process = |pid: u32, base: u64| {
        Records::default()
            .process(pid, pid, "/bin/app")
            .module(pid, base, 4096, &[9], "/bin/app")
            .thread(pid, &format!("enter @{0}, exit @{0}", base + 64))
            .end(pid)
            .file_mapped(60)
    };
    let files = [("trace.7.7.0.bin", process(7, 8192)), ("trace.8.8.0.bin", process(8, 40960))];
    let report = Captures::new(&files).analyze().expect("a report");
    assert_eq!((report.rows.len(), report.rows[0].calls, report.rows[0].address), (1, 2, 64));
    assert_noticed(&report, "2 runs are added up here: process 7 (/bin/app), process 8 (/bin/app)");
}

#[test]
fn losses_are_told_by_cause_and_explain_what_is_missing() {
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .thread(7, "enter a, enter b")
        .lost(7, 0, 5)
        .thread(7, "wait 90000, exit c, exit a, enter d, exit d")
        .lost(7, 6, 2)
        .end(7);
    let report = report(records.file_mapped(60));
    assert_eq!((report.losses["full"], report.losses["io"]), (5, 2));
    assert_eq!((report.totals.unmatched_exits, report.totals.exits_after_loss), (0, 1));
    assert_eq!((report.totals.calls_cut_by_loss, report.totals.uncertain_calls), (1, 2));
    assert!(report.rows.iter().all(|row| row.self_ns < 1000), "no time out of the gap");
    assert_noticed(&report, "7 events were lost: 5 full, 2 io");
    let a = report.rows.iter().find(|row| row.address == 16 * u64::from(b'a')).expect("a");
    assert_eq!((a.durations, a.uncertain), (None, 1));
}

#[test]
fn losses_before_a_thread_says_who_it_is_explain_its_exits() {
    let records = Records::default()
        .lost(9, 0, 3)
        .process(9, 7, "/bin/app")
        .thread(9, "exit a, enter b, exit b")
        .lost(9, 0, 1)
        .process(9, 7, "/bin/app")
        .thread(9, "exit a, exit a");
    let report = report(records.file_mapped(0));
    assert_eq!((report.totals.unmatched_exits, report.totals.exits_after_loss), (1, 2));
}

#[test]
fn losses_of_nobody_explain_exits_of_anybody() {
    let records = Records::default().thread(7, "exit a, exit b, exit c").lost(0, 0, 2);
    let report = report(records.file(ByteOrder::Little));
    assert_eq!((report.totals.unmatched_exits, report.totals.exits_after_loss), (1, 2));
}

#[test]
fn a_main_thread_that_waits_is_in_its_functions_until_the_process_ends() {
    let records = Records::default()
        .process(7, 7, "/bin/app")
        .thread(7, "enter m")
        .process(9, 7, "/bin/app")
        .thread(9, "enter w, wait 400, enter x, exit x");
    let report = report(records.file_mapped(60));
    let m = report.rows.iter().find(|row| row.address == 16 * u64::from(b'm')).expect("m");
    assert!(m.total_ns > 400 && m.not_returned == 1, "{m:?}");
}

#[test]
fn an_anchor_ahead_of_its_event_stretches_no_call() {
    let mut records = Records::default().process(7, 7, "/bin/app").thread(7, "enter a, enter b");
    let ts = 1000 + records.ts;
    records = records.mark(7, MARK_CLOCK, ts + 5000);
    records.events.last_mut().expect("the anchor").ts = ts + 5000;
    let report = report(records.thread(7, "exit b, exit a").file_mapped(0));
    assert!(report.rows.iter().all(|row| row.total_ns <= 50), "{:?}", report.rows);
    assert!(report.notices.iter().all(|notice| !notice.contains("stepped back")));
}

#[test]
fn a_process_that_did_not_end_is_named() {
    let records = Records::default().process(7, 7, "/bin/app").thread(7, "enter a, enter b");
    let report = report(records.file_mapped(500));
    assert_eq!(report.processes[0].ended, Some(false));
    // Nothing in a file of its own says whether it runs still.
    assert_noticed(
        &report,
        "process 7 (/bin/app) did not end in order (killed, _exit or exec), or had not ended yet",
    );
    assert_eq!(report.totals.unclosed_enters, 2);
}

#[test]
fn what_is_said_of_a_hundred_processes_is_said_once() {
    let files: Vec<(String, Vec<u8>)> = (1..=100)
        .map(|pid| {
            let origin = Origin { t0_ns: u64::from(pid), ..ticks(1_000_000_000) };
            let mut records = Records::default().child_of(1, pid, "/bin/app");
            records = records.thread(pid, "enter a, exit a").lost(pid, Cause::Io as u32, 2);
            records = records.mark(pid, MARK_BUDGET, 8 << 20);
            (format!("trace.{pid}.{pid}.0.bin"), records.file_mapped_of(origin, 0))
        })
        .collect();
    let empty = (101..=200).map(|pid| (format!("trace.{pid}.{pid}.0.bin"), Vec::new()));
    let files: Vec<_> = files.into_iter().chain(empty).collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let report = Captures::new(&files).analyze().expect("a report");
    assert_noticed(&report, "200 events were lost: 200 io");
    let first = "process 1, process 2, process 3 and 97 more";
    assert_noticed(&report, &format!("{first}: no closing clock anchor"));
    assert_noticed(&report, &format!("{first}: recording stopped at the disk budget of 8.0 MiB"));
    assert_noticed(&report, "trace.103.103.0.bin and 97 more: only 0 bytes");
    assert!(report.notices.len() < 10, "{:#?}", report.notices);
}

#[test]
fn a_newline_in_the_path_of_the_program_is_no_other_module() {
    let records = Records::default()
        .process(7, 7, "/bin/a\npp")
        .module(7, 0, 1 << 20, &[1], "/bin/a\\012pp")
        .thread(7, "enter a, exit a");
    let report = report(records.file_mapped(0));
    assert!(report.rows[0].in_main_module, "{:?}", report.rows);
    assert_eq!(report.rows[0].function, "app+0x610");
}

#[test]
fn more_processes_than_a_capture_can_have_are_counted() {
    let mut records = Records::default();
    for pid in 1..=65_539 {
        records = records.process(pid, pid, "").thread(pid, "enter a, exit a");
    }
    let report = report(records.file_mapped(0));
    assert_eq!(report.rows.iter().map(|row| row.calls).sum::<u64>(), 65_539);
    assert_noticed(&report, "3 processes are not told apart");
}

#[test]
fn an_exit_of_a_forked_process_that_lost_events_is_explained_by_these_first() {
    let exits = |lost: u64| {
        let child = Records::default().forked(8, 8, "/bin/app").lost(8, Cause::Full as u32, lost);
        let totals = report(child.thread(8, "exit a").end(8).file(ByteOrder::Little)).totals;
        (totals.inherited_exits, totals.exits_after_loss)
    };
    assert_eq!([exits(0), exits(2)], [(1, 0), (0, 1)]);
}
