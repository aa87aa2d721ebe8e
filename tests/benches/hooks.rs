//! What a pair of hooks costs: `cargo bench -p callsight-tests`.
//!
//! One workload (`work.c`) under the floor (two clock reads and two 32-byte stores), under ours,
//! under C callsight 0.5.0 and under uftrace, all in one run and in turn, so that the machine's
//! moods meet all of them. Prints the medians of the rounds as CPU time of the calling thread, as
//! ratios to the floor and to the empty pair, instructions a pair as callgrind counts them, and what
//! a start takes.
//! `ROUNDS=9 cargo bench -p callsight-tests` runs more rounds. Asserts nothing: times are printed.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use callsight_format::{COMMAND_PAUSE, RING_CONTROL_OFFSET, RingControl};
use callsight_tests::{Drain, Hooks, Ring, Server, Shell, root};
use tempfile::TempDir;

/// Calls of the leaf in one loop, and in bursts with pauses.
const LEAF_CALLS: &str = "4000000";
/// The bursts hold the start of recording, 0.3 ms at most: less than one in a hundred.
const BURST_CALLS: &str = "2400000";
/// The usual size of a ring. Its drain keeps up with the bursts; with a loop of nothing but calls
/// (100 million events a second) no drain does, so there is no ring in the loop's columns.
const RING_BYTES: &str = "16777216";

/// How a program is run for a row.
#[derive(Clone, Copy)]
enum Mode {
    /// As it is.
    Plain,
    /// Recording into files on a memory file system.
    Files,
    /// Summing its calls up there.
    Summary,
    /// With a ring that says pause.
    Paused,
    /// Recording into a ring whose drain sends to a server; the peer's ends where `true`.
    Ring { peers: bool },
    /// Under uftrace, with these options.
    Uftrace(&'static str),
}

/// A line of the table.
struct Row {
    name: &'static str,
    program: PathBuf,
    mode: Mode,
    loop_ns: Vec<f64>,
    bursts_ns: Vec<f64>,
    /// Most events that one run of the bursts dropped.
    dropped: u64,
}

struct Bench {
    folder: TempDir,
    /// A ring that says pause.
    paused: Ring,
}

impl Bench {
    /// Compiles `name` from the workload and what its hooks are.
    fn program(&self, name: &str, flags: &[&str], link: &[PathBuf]) -> PathBuf {
        let program = self.folder.path().join(name);
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g", "-pthread"]).args(flags).arg(source("work.c")).args(link);
        self.ok(gcc.arg("-o").arg(&program), "gcc");
        program
    }

    /// A hook file of this folder as an object.
    fn object(&self, name: &str) -> PathBuf {
        let object = self.folder.path().join(name).with_extension("o");
        self.ok(
            Command::new("gcc").args(["-O2", "-c"]).arg(source(name)).arg("-o").arg(&object),
            "gcc",
        );
        object
    }

    fn ok(&self, command: &mut Command, what: &str) -> String {
        let ran = Shell::new(self.folder.path()).command(command, what);
        assert_eq!(ran.code, 0, "{ran}");
        ran.stdout
    }

    /// ns a call of one run of `row` under `work MODE N`, and the events its drain saw dropped.
    fn run(&self, row: &Row, mode: &str, calls: &str) -> (f64, u64) {
        let shell = self.shell(row.mode);
        let work = format!("{} {mode} {calls}", row.program.display());
        let mut dropped = 0;
        let printed = match row.mode {
            Mode::Plain | Mode::Files | Mode::Summary | Mode::Paused => shell.ok(&work).stdout,
            Mode::Ring { peers } => {
                let (printed, lost) = in_a_ring(&shell, peers, &work);
                dropped = lost;
                printed
            }
            Mode::Uftrace(options) => {
                shell
                    .ok(&format!("uftrace record --no-libcall {options} -d traces/u {work}"))
                    .stdout
            }
        };
        let ns = printed.split_whitespace().rev().nth(1).and_then(|ns| ns.parse().ok());
        (ns.unwrap_or_else(|| panic!("{work}: {printed:?}")), dropped)
    }

    /// The environment for a row, with an empty folder for its captures.
    fn shell(&self, mode: Mode) -> Shell {
        let traces = self.folder.path().join("traces");
        let _ = std::fs::remove_dir_all(&traces);
        std::fs::create_dir(&traces).expect("make a folder");
        let plain = Shell::new(self.folder.path()).env("TRACE_DIR", &traces);
        let on = plain.clone().env("TRACE_ENABLE", "1").env("TRACE_MAX_MB", "4096");
        match mode {
            Mode::Plain | Mode::Uftrace(_) => plain,
            Mode::Files => on,
            Mode::Summary => on.env("TRACE_MODE", "summary"),
            Mode::Paused => on.env("TRACE_SHM", self.paused.name()),
            Mode::Ring { .. } => on.env("TRACE_SHM_SIZE", RING_BYTES),
        }
    }

    /// Instructions a pair, call site included: the difference of two runs under callgrind.
    fn instructions(&self, row: &Row) -> f64 {
        let run = |calls: u32| -> f64 {
            let script = format!(
                "valgrind --tool=callgrind --callgrind-out-file=/dev/null {} leaf {calls} 2>&1",
                row.program.display()
            );
            let printed = self.shell(row.mode).ok(&script).stdout;
            let line = printed.lines().find_map(|line| line.split_once("Collected : "));
            line.and_then(|(_, n)| n.trim().parse().ok()).unwrap_or_else(|| panic!("{printed}"))
        };
        (run(150_000) - run(50_000)) / 100_000.0
    }
}

/// Runs `work` with a ring, its drain and a server; what it printed, and the events dropped.
fn in_a_ring(shell: &Shell, peers: bool, work: &str) -> (String, u64) {
    let ring = Ring::new();
    let (server, drain);
    if peers {
        server = Server::peers(shell);
        drain = Drain::peers(shell, &ring, server.port);
    } else {
        server = Server::ours(shell, &["--out", "traces"]);
        drain = Drain::ours(shell, &ring, server.port);
    }
    let printed = shell.clone().env("TRACE_SHM", ring.name()).ok(work).stdout;
    let drained = drain.finish().all();
    server.stop();
    let before = drained.rsplit_once(" dropped").map(|(before, _)| before);
    let dropped = before.and_then(|text| text.rsplit(' ').next()).and_then(|n| n.parse().ok());
    (printed, dropped.unwrap_or_else(|| panic!("no count of drops in {drained:?}")))
}

fn source(name: &str) -> PathBuf {
    root().join("tests/benches").join(name)
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn rows(bench: &Bench) -> Vec<Row> {
    let hooked = Hooks::Ours.flags();
    let plain = bench.program("plain", &[], &[]);
    let empty = bench.program("empty", hooked, &[bench.object("empty.c")]);
    let floor = bench.program("floor", hooked, &[bench.object("floor.c")]);
    let ours = bench.program("ours", hooked, &Hooks::Ours.link());
    let peer = bench.program("peer", hooked, &Hooks::Peer.link());
    let none = bench.program("none", hooked, &[]);
    pause(bench, &ours);
    let row = |name, program: &PathBuf, mode| Row {
        name,
        program: program.clone(),
        mode,
        loop_ns: Vec::new(),
        bursts_ns: Vec::new(),
        dropped: 0,
    };
    vec![
        row("plain", &plain, Mode::Plain),
        row("empty pair", &empty, Mode::Plain),
        row("floor", &floor, Mode::Plain),
        row("ours, disabled", &ours, Mode::Plain),
        row("ours, paused", &ours, Mode::Paused),
        row("ours, summary", &ours, Mode::Summary),
        row("ours, file", &ours, Mode::Files),
        row("ours, ring and drain", &ours, Mode::Ring { peers: false }),
        row("C callsight, disabled", &peer, Mode::Plain),
        row("C callsight, summary", &peer, Mode::Summary),
        row("C callsight, file", &peer, Mode::Files),
        row("C callsight, ring and drain", &peer, Mode::Ring { peers: true }),
        row("uftrace, off", &none, Mode::Uftrace("--disable")),
        row("uftrace, on", &none, Mode::Uftrace("")),
    ]
}

fn print_times(rows: &[Row]) {
    let of = |name: &str, bursts: bool| {
        let row = rows.iter().find(|row| row.name == name).expect("a row");
        median(if bursts { &row.bursts_ns } else { &row.loop_ns })
    };
    println!(
        "ns a call (enter, leaf, exit), thread CPU time, medians of {}",
        rows[0].loop_ns.len()
    );
    println!(
        "{:28} {:>9} {:>7} {:>7}   {:>9} {:>7} {:>7}",
        "", "loop", "/floor", "/empty", "bursts", "/floor", "/empty"
    );
    let columns = |ns: f64, bursts: bool| {
        let (floor, empty) = (of("floor", bursts), of("empty pair", bursts));
        format!("{ns:9.2} {:7.2} {:7.2}", ns / floor, ns / empty)
    };
    for row in rows {
        let tight = match &row.loop_ns[..] {
            [] => format!("{:>9} {:>7} {:>7}", "-", "-", "-"),
            ns => columns(median(ns), false),
        };
        println!("{:28} {tight}   {}", row.name, columns(median(&row.bursts_ns), true));
        if row.dropped > 0 {
            println!("    up to {} events of a run of the bursts were dropped", row.dropped);
        }
    }
}

fn print_instructions(bench: &Bench, rows: &[Row]) {
    println!("\ninstructions a pair, call site included, without the leaf (callgrind)");
    let plain = bench.instructions(&rows[0]);
    for row in rows {
        let counted = !matches!(row.mode, Mode::Ring { .. } | Mode::Uftrace(_));
        if counted && row.name != "plain" {
            println!("{:28} {:7.1}", row.name, bench.instructions(row) - plain);
        }
    }
}

/// What a process takes from its start to its end, in turn; without the drain, whose start is not
/// the program's.
fn print_starts(bench: &Bench, rows: &[Row]) {
    const STARTS: usize = 101;
    let alone = |row: &&Row| !matches!(row.mode, Mode::Ring { .. } | Mode::Uftrace(_));
    let mut starts_us: Vec<(&Row, Vec<f64>)> =
        rows.iter().filter(alone).map(|row| (row, Vec::new())).collect();
    for _ in 0..STARTS {
        for (row, times_us) in &mut starts_us {
            let mut command = Command::new(&row.program);
            command.args(["leaf", "1"]).stdout(Stdio::null());
            let shell = bench.shell(row.mode);
            let command = shell.prepare(&mut command);
            let begin = Instant::now();
            assert!(command.status().expect("run the workload").success());
            times_us.push(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    println!("\nstart to end of a process with one call, wall time, us: median of {STARTS}, added");
    let plain = median(&starts_us[0].1);
    for (row, times_us) in &starts_us {
        println!("{:28} {:7.0} {:7.0}", row.name, median(times_us), median(times_us) - plain);
    }
}

/// Makes the ring of `bench`, which `program` records into once, say pause.
fn pause(bench: &Bench, program: &Path) {
    bench.shell(Mode::Paused).ok(&format!("{} leaf 1", program.display()));
    let path = Path::new("/dev/shm").join(&bench.paused.name()[1..]);
    let ring = std::fs::File::options().write(true).open(path).expect("a ring");
    let place = RING_CONTROL_OFFSET + std::mem::offset_of!(RingControl, command);
    ring.write_all_at(&COMMAND_PAUSE.to_ne_bytes(), place as u64).expect("write to the ring");
}

fn main() {
    // On a memory file system: the disk of the machine is not what is measured.
    let folder = TempDir::with_prefix_in("callsight-bench-", "/dev/shm").expect("a folder");
    let bench = Bench { folder, paused: Ring::new() };
    let rounds = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let mut rows = rows(&bench);
    for _ in 0..rounds {
        for row in &mut rows {
            if !matches!(row.mode, Mode::Ring { .. }) {
                row.loop_ns.push(bench.run(row, "leaf", LEAF_CALLS).0);
            }
            let (ns, dropped) = bench.run(row, "bursts", BURST_CALLS);
            row.bursts_ns.push(ns);
            row.dropped = row.dropped.max(dropped);
        }
    }
    print_times(&rows);
    print_instructions(&bench, &rows);
    print_starts(&bench, &rows);
}
