//! What the way out of the events costs: `cargo bench -p callsight-tests --bench wire`.
//!
//! One program of 26 threads (`traffic.c`), its events in a ring of 16 MiB, and each side's drain
//! and server behind it, in turn: ours, and those of C callsight 0.5.0 on a version 2 ring of the
//! same runtime. Prints the medians of the rounds: events per second of CPU time of the drain and of
//! the server (less what the server takes to start and end), bytes an event between them, and what
//! the ring dropped. `ROUNDS=9` runs more rounds. Asserts nothing: times are printed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use callsight_tests::{Ring, callsight, peer, root, runtime_object};
use tempfile::TempDir;

/// Whose drain and server.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Ours,
    Peers,
}

/// A kind of traffic: its name, and the arguments of the program.
const TRAFFIC: [(&str, &[&str]); 3] = [
    ("26 threads, 3 M events/s", &["240", "5000"]),
    ("26 threads, 10 M events/s", &["400", "1300"]),
    ("noise, 256 functions", &["150", "5000", "noise"]),
];

/// What one run gave.
struct Run {
    events: f64,
    dropped: f64,
    seconds: f64,
    drain_cpu: f64,
    server_cpu: f64,
    wire_bytes: f64,
}

/// A process whose CPU time is asked for.
struct Measured {
    child: Child,
    output: BufReader<std::process::ChildStderr>,
}

impl Measured {
    fn start(command: &mut Command) -> Measured {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let output = BufReader::new(child.stderr.take().expect("a pipe"));
        Measured { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    /// Waits for its end: the rest of what it said, and its CPU time in seconds.
    fn end(mut self) -> (String, f64) {
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("its output");
        let mut status = 0;
        // SAFETY: an all-zero rusage is one, and wait4 only writes to both.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            let pid = libc::wait4(self.child.id() as i32, &raw mut status, 0, &raw mut usage);
            assert!(pid > 0, "wait for a process");
            usage
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        (said, seconds(usage.ru_utime) + seconds(usage.ru_stime))
    }

    fn interrupt(&self) {
        // SAFETY: a signal to a child that was not reaped yet.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
    }
}

struct Bench {
    folder: TempDir,
    program: PathBuf,
    drains: [PathBuf; 2],
}

impl Bench {
    fn new() -> Bench {
        let folder = TempDir::new().expect("a folder");
        let program = folder.path().join("traffic");
        let source = root().join("tests/benches/traffic.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g", "-pthread", "-finstrument-functions"]).arg(source);
        ok(gcc.arg(runtime_object()).arg("-o").arg(&program));
        let ours = folder.path().join("ours");
        std::fs::create_dir(&ours).expect("a folder");
        for file in callsight_drain::files() {
            std::fs::write(ours.join(file.name), file.contents).expect("write a source");
        }
        let drain = folder.path().join("drain");
        let files = ["trace_stream.c", "zstd.c"].map(|name| ours.join(name));
        ok(Command::new("gcc").arg("-O2").args(files).arg("-o").arg(&drain));
        let drains = [drain, peer("trace_stream")];
        Bench { folder, program, drains }
    }

    fn server(&self, side: Side) -> (Measured, u16) {
        let out = self.folder.path().join("traces");
        let _ = std::fs::remove_dir_all(&out);
        let (program, port) = match side {
            Side::Ours => (callsight().to_owned(), 0),
            Side::Peers => (peer("callsight"), free_port()),
        };
        let mut command = on_one_stream(&program);
        command.args(["serve", "--host", "127.0.0.1", "--port", &port.to_string(), "--out"]);
        command.arg(&out).env("PYTHONUNBUFFERED", "1");
        let mut server = Measured::start(&mut command);
        let line = server.line();
        let port = line.split_once("listening on ").and_then(|(_, address)| {
            address.split([',', ' ', '\n']).next()?.rsplit_once(':')?.1.parse().ok()
        });
        (server, port.unwrap_or_else(|| panic!("no port in {line:?}")))
    }

    /// CPU time of a server that nobody connects to.
    fn idle_server(&self, side: Side) -> f64 {
        let (server, _) = self.server(side);
        std::thread::sleep(Duration::from_millis(300));
        server.interrupt();
        server.end().1
    }

    fn run(&self, side: Side, traffic: &[&str], idle: f64) -> Run {
        let ring = Ring::new();
        let (server, port) = self.server(side);
        let wire = Relay::to(port);
        let drain = &self.drains[usize::from(side == Side::Peers)];
        let mut draining = Measured::start(on_one_stream(drain).args([
            ring.name(),
            "127.0.0.1",
            &wire.port.to_string(),
        ]));
        if side == Side::Ours {
            draining.line(); // it waits for the ring
        }
        std::thread::sleep(Duration::from_millis(200));
        let printed = ok(Command::new(&self.program)
            .args(traffic)
            .env("TRACE_ENABLE", "1")
            .env("TRACE_SHM", ring.name())
            .env("TRACE_RING", if side == Side::Ours { "3" } else { "2" }));
        let (said, drain_cpu) = draining.end();
        server.interrupt();
        let (_, server_cpu) = server.end();
        let number = |before: &str| -> f64 {
            let word = said.lines().rev().find_map(|line| {
                line.split_once(before)?.0.rsplit([' ', '=']).next()?.parse().ok()
            });
            word.unwrap_or_else(|| {
                panic!("no number before {before:?} in what {drain:?} said: {said}")
            })
        };
        Run {
            events: number(" events forwarded"),
            dropped: number(" dropped"),
            seconds: printed.split(' ').next().and_then(|ms| ms.parse::<f64>().ok()).expect("ms")
                / 1000.0,
            drain_cpu,
            server_cpu: (server_cpu - idle).max(0.001),
            wire_bytes: wire.bytes.load(Ordering::Relaxed) as f64,
        }
    }
}

/// Passes on what goes through, and counts it.
struct Relay {
    port: u16,
    bytes: Arc<AtomicU64>,
}

impl Relay {
    fn to(port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let relay = Relay {
            port: listener.local_addr().expect("an address").port(),
            bytes: Arc::default(),
        };
        let bytes = relay.bytes.clone();
        std::thread::spawn(move || {
            let (client, _) = listener.accept().expect("a drain");
            let server = TcpStream::connect(("127.0.0.1", port)).expect("the server");
            let back = (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
            std::thread::spawn(move || pass(back.0, back.1, &AtomicU64::new(0)));
            pass(client, server, &bytes);
        });
        relay
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, bytes: &AtomicU64) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        bytes.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// `program`, all that it says on its standard error: the two sides do not agree on where.
fn on_one_stream(program: &Path) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", "exec \"$@\" >&2", "bash"]).arg(program);
    command
}

fn ok(command: &mut Command) -> String {
    let ran = command.output().unwrap_or_else(|error| panic!("run {command:?}: {error}"));
    assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    listener.local_addr().expect("an address").port()
}

fn median(runs: &[Run], of: impl Fn(&Run) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    assert!(Path::new(&peer("callsight")).exists(), "tests/setup makes the peer");
    let bench = Bench::new();
    let idle = [Side::Ours, Side::Peers].map(|side| bench.idle_server(side));
    println!("medians of {rounds} rounds in turn; M events a second of CPU time\n");
    for (name, traffic) in TRAFFIC {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for side in [Side::Ours, Side::Peers] {
                let at = usize::from(side == Side::Peers);
                runs[at].push(bench.run(side, traffic, idle[at]));
            }
        }
        println!("{name}");
        println!(
            "  {:12} {:>8} {:>8} {:>10} {:>10} {:>9}",
            "", "drain", "server", "bytes", "emitted", "dropped"
        );
        let rate =
            |runs: &[Run], cpu: fn(&Run) -> f64| median(runs, |run| run.events / cpu(run) / 1e6);
        let drain = runs.each_ref().map(|runs| rate(runs, |run| run.drain_cpu));
        let server = runs.each_ref().map(|runs| rate(runs, |run| run.server_cpu));
        let bytes = runs.each_ref().map(|runs| median(runs, |run| run.wire_bytes / run.events));
        for (at, who) in ["ours", "C callsight"].into_iter().enumerate() {
            let emitted = median(&runs[at], |run| (run.events + run.dropped) / run.seconds / 1e6);
            let dropped = median(&runs[at], |run| run.dropped / (run.events + run.dropped) * 100.0);
            println!(
                "  {who:12} {:8.1} {:8.1} {:10.3} {emitted:8.1}/s {dropped:8.1}%",
                drain[at], server[at], bytes[at]
            );
        }
        println!(
            "  ours / C     {:8.2} {:8.2} {:10.3}\n",
            drain[0] / drain[1],
            server[0] / server[1],
            bytes[0] / bytes[1]
        );
    }
}
