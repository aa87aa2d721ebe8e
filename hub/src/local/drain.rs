//! The drain of a program that is run here: a process of its own, started before the program and
//! waited for behind it.
//!
//! Whatever becomes of it, the program is none the wiser. What it says is handed on line by line.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::net::Ipv6Addr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::figures::Account;
use super::launch::{Signals, send};
use super::process::ProcessId;
use super::ring::RingFile;
use super::state::RingState;
use crate::stream::in_one_line;

/// How long a drain may take until it waits for the program: finding its server may take some time.
const START: Duration = Duration::from_secs(5);
/// How long a drain may get no further once the program has ended. A server that is away for less
/// loses nothing.
const STALL: Duration = Duration::from_secs(10);
/// The same where no ring was ever made.
const NO_RING: Duration = Duration::from_millis(500);
/// How long it may take to end once it is told to: it goes on as long as its server takes what it has.
const KILL_AFTER: Duration = Duration::from_secs(60);
/// How long it may be stopped meanwhile, by a signal or a debugger: it gets no further then.
const KILL_STOPPED_AFTER: Duration = Duration::from_secs(5);
/// How long the last lines of one that has ended may take.
const LAST_LINES: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(10);
/// How its first line begins when it is ready: it waits for a ring.
const READY: &str = "trace_stream: waiting for a program";

/// Where a server listens: `HOST:PORT`, with brackets around an IPv6 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name or address.
    pub host: String,
    /// Port, not 0.
    pub port: u16,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
        let port = port.parse().ok().filter(|port| *port != 0);
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let has_blank = host.contains(|c: char| c.is_whitespace() || c.is_control());
        let is_host = !host.is_empty() && !has_blank && (bare.is_some() || !host.contains(':'));
        let is_v6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
        match port {
            Some(port) if is_host => Ok(Address { host: host.to_owned(), port }),
            // Nobody knows where the port begins.
            Some(port) if is_v6(host) => {
                Err(format!("an IPv6 address needs brackets before its port, like [{host}]:{port}"))
            }
            _ if is_v6(text) => {
                Err(format!("an IPv6 address needs brackets and a port, like [{text}]:9001"))
            }
            _ if has_blank => Err(format!("its host {host:?} has a blank in it")),
            _ => Err("it must be HOST:PORT, like 192.168.1.5:9001 or [::1]:9001".to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Which ring to drain, and to where.
#[derive(Clone, Debug)]
pub struct DrainPlan {
    /// What runs a drain; its arguments follow.
    pub command: Vec<OsString>,
    /// Name of the ring, as `TRACE_SHM` has it.
    pub ring: String,
    /// Folder of a capture.
    pub file: Option<PathBuf>,
    /// Most bytes of that capture; 0 for no limit.
    pub budget_bytes: u64,
    /// A server.
    pub live: Option<Address>,
}

impl DrainPlan {
    fn arguments(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        if let Some(folder) = &self.file {
            line.extend(["--file".into(), folder.into()]);
            if self.budget_bytes > 0 {
                line.extend(["--budget".into(), self.budget_bytes.to_string().into()]);
            }
        }
        line.extend(self.live.is_some().then(|| "--reconnect".into()));
        line.push(self.ring.clone().into());
        if let Some(server) = &self.live {
            line.extend([server.host.clone().into(), server.port.to_string().into()]);
        }
        line
    }
}

/// A running drain.
#[derive(Debug)]
pub struct DrainProcess {
    child: Child,
    ring: String,
    started: Instant,
    /// Ends with the drain's last line.
    ready: Receiver<()>,
    account: SharedAccount,
}

/// What a drain has told, as far as its lines came.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedAccount(Arc<Mutex<Account>>);

impl SharedAccount {
    pub fn now(&self) -> Account {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn hear(&self, line: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hear(line);
    }
}

/// How a drain ended.
#[derive(Debug)]
pub struct DrainEnd {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether it was told to end, from here.
    pub was_told: bool,
    /// The ring, where it is still there, and what it holds.
    pub left: Option<(RingFile, RingState)>,
}

impl DrainProcess {
    /// Starts a drain. `say` gets its lines.
    ///
    /// # Errors
    /// Why it could not be started.
    pub fn spawn(
        plan: &DrainPlan,
        say: impl Fn(&str) + Send + 'static,
    ) -> io::Result<DrainProcess> {
        let (program, first) = plan.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(first)
            .args(plan.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A terminal's interrupt is for the program, which may do what it likes with it; the
            // drain ends after it.
            .process_group(0)
            .spawn()?;
        let (tell, ready) = channel();
        let lines = child.stderr.take().map(BufReader::new);
        let account = SharedAccount::default();
        let heard = account.clone();
        let say = move |line: &str| {
            heard.hear(line);
            say(line);
        };
        thread::spawn(move || lines.map(|lines| hand_on(lines, &tell, say)));
        let (ring, started) = (plan.ring.clone(), Instant::now());
        Ok(DrainProcess { child, ring, started, ready, account })
    }

    /// Starts a drain and waits until it waits for the program, or has something to do. `say` gets
    /// its lines.
    ///
    /// # Errors
    /// Why it could not be started; what it said itself was handed to `say`.
    pub fn start(
        plan: &DrainPlan,
        say: impl Fn(&str) + Send + 'static,
    ) -> io::Result<DrainProcess> {
        let mut drain = DrainProcess::spawn(plan, say)?;
        match drain.ready.recv_timeout(START) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => Ok(drain),
            Err(RecvTimeoutError::Disconnected) => match drain.child.wait()? {
                // There was a ring already, and it has been drained.
                status if status.success() => Ok(drain),
                status => Err(io::Error::other(format!("the drain ended at once ({status})"))),
            },
        }
    }

    /// Where what it tells is noted.
    pub(super) fn account(&self) -> SharedAccount {
        self.account.clone()
    }

    /// How it ended, and after how long, where it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<(ExitStatus, Duration)>> {
        Ok(self.child.try_wait()?.map(|status| (status, self.started.elapsed())))
    }

    /// Waits for its end, however long that takes; once `stop` is set, it is told to end.
    ///
    /// # Errors
    /// Why it cannot be waited for.
    pub fn wait(mut self, stop: &AtomicBool) -> io::Result<ExitStatus> {
        let mut told: Option<Told> = None;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.hear_out();
                return Ok(status);
            }
            match &mut told {
                Some(told) => drop(told.insist(&self.child)),
                None if stop.load(Ordering::Relaxed) => told = Some(Told::to_end(&self.child)),
                None => {}
            }
            thread::sleep(POLL);
        }
    }

    /// Waits for its end, behind that of the program. One that gets no further is told to end, unless
    /// it was stopped and goes on when it is told to; so is one that waits for a ring that nobody has
    /// made (`ring_was_made`), and when this process is asked to end; asked twice, it ends it.
    ///
    /// # Errors
    /// Why it cannot be waited for.
    pub fn finish(mut self, ring_was_made: bool, say: impl Fn(&str)) -> io::Result<DrainEnd> {
        let signals = Signals::catch()?;
        let patience = if ring_was_made { STALL } else { NO_RING };
        let mut watch = Watch::new();
        let mut told: Option<Told> = None;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            let stalled = watch.look(&self.ring) >= patience;
            match (&mut told, signals.take().is_some()) {
                (Some(_), true) => send(&self.child, Signal::KILL),
                (Some(told), false) => {
                    if let Some(why) = told.insist(&self.child) {
                        say(&format!("the drain {why} and is killed"));
                    }
                }
                (None, true) => told = Some(Told::to_end(&self.child)),
                (None, false) if stalled && !self.gets_on(&mut watch, &say) => {
                    if ring_was_made {
                        let seconds = patience.as_secs();
                        say(&format!(
                            "the drain got no further for {seconds} s and is told to end"
                        ));
                    }
                    told = Some(Told::to_end(&self.child));
                }
                (None, false) => {}
            }
            thread::sleep(POLL);
        };
        self.hear_out();
        Ok(DrainEnd { status, was_told: told.is_some(), left: look_at(&self.ring) })
    }

    /// Whether it may get further all the same: it was only stopped, or waits for a process that the
    /// program has left behind.
    fn gets_on(&self, watch: &mut Watch, say: &impl Fn(&str)) -> bool {
        if is_stopped(&self.child) && watch.wakes() {
            say("the drain was stopped and is told to go on");
            send(&self.child, Signal::CONT);
            return true;
        }
        watch.waits_for_program(&self.ring, say)
    }

    /// Waits for its last lines; a process that still writes its file may hold the pipe open.
    fn hear_out(&self) {
        let begin = Instant::now();
        while begin.elapsed() < LAST_LINES
            && self.ready.recv_timeout(POLL) != Err(RecvTimeoutError::Disconnected)
        {}
    }
}

impl Drop for DrainProcess {
    /// A drain that nobody waits for any more, because there is no program, is told to end.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let mut told = Told::to_end(&self.child);
        while matches!(self.child.try_wait(), Ok(None)) {
            told.insist(&self.child);
            thread::sleep(POLL);
        }
    }
}

/// A drain that was told to end.
struct Told {
    at: Instant,
    stopped_since: Option<Instant>,
    is_killed: bool,
}

impl Told {
    fn to_end(drain: &Child) -> Told {
        send(drain, Signal::TERM);
        // One that is stopped hears of it only when it goes on.
        send(drain, Signal::CONT);
        Told { at: Instant::now(), stopped_since: None, is_killed: false }
    }

    /// Kills it when it has had its time; why, the first time.
    fn insist(&mut self, drain: &Child) -> Option<String> {
        self.stopped_since =
            is_stopped(drain).then(|| self.stopped_since.unwrap_or_else(Instant::now));
        let is_over = self.at.elapsed() >= KILL_AFTER;
        let stays_stopped = self.stopped_since.is_some_and(|at| at.elapsed() >= KILL_STOPPED_AFTER);
        if self.is_killed || !(is_over || stays_stopped) {
            return None;
        }
        send(drain, Signal::KILL);
        self.is_killed = true;
        Some(match stays_stopped {
            true => "is stopped again and again".to_owned(),
            false => format!("did not end within {} s", KILL_AFTER.as_secs()),
        })
    }
}

fn is_stopped(drain: &Child) -> bool {
    // The child is not waited for yet, so its pid is still its own.
    ProcessId { pid: drain.id(), start: 0 }.is_stopped()
}

/// Hands the lines of a drain on, but for the one that says that it is ready.
fn hand_on(lines: BufReader<impl Read>, ready: &Sender<()>, say: impl Fn(&str)) {
    for line in lines.split(b'\n') {
        let Ok(line) = line else { return };
        let line = in_one_line(&String::from_utf8_lossy(&line));
        if line.starts_with(READY) {
            // Whoever waited for it may have lost patience.
            let _ = ready.send(());
        } else {
            say(&line);
        }
    }
}

fn look_at(ring: &str) -> Option<(RingFile, RingState)> {
    let ring = RingFile::open(ring).ok()?;
    let state = ring.state().ok()?;
    Some((ring, state))
}

/// Whether a drain gets on, as its ring shows.
struct Watch {
    taken_bytes: Option<u64>,
    since: Instant,
    has_said: bool,
    has_woken: bool,
}

impl Watch {
    fn new() -> Watch {
        Watch { taken_bytes: None, since: Instant::now(), has_said: false, has_woken: false }
    }

    /// Whether one that is stopped is told to go on, once; it has its time again then.
    fn wakes(&mut self) -> bool {
        if self.has_woken {
            return false;
        }
        (self.has_woken, self.since) = (true, Instant::now());
        true
    }

    /// How long nothing has changed.
    fn look(&mut self, ring: &str) -> Duration {
        let taken_bytes = RingFile::open(ring).ok().map(|ring| ring.taken_bytes());
        if taken_bytes != self.taken_bytes {
            (self.taken_bytes, self.since) = (taken_bytes, Instant::now());
        }
        self.since.elapsed()
    }

    /// Whether a process that the program has left behind goes on recording.
    fn waits_for_program(&mut self, ring: &str, say: impl Fn(&str)) -> bool {
        let Some((_, state)) = look_at(ring) else { return false };
        let Some(member) = state.living().next() else { return false };
        if !self.has_said {
            let pid = member.id.pid;
            say(&format!("process {pid} of the program goes on recording; Ctrl-C ends the wait"));
        }
        self.has_said = true;
        self.since = Instant::now();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, host, port) in [
            ("a.example:9001", "a.example", 9001),
            ("[::1]:1", "::1", 1),
            ("1.2.3.4:65535", "1.2.3.4", 65535),
        ] {
            let address: Address = text.parse().expect("an address");
            assert_eq!((address.host.as_str(), address.port), (host, port));
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "a", ":1", "a:", "a:0", "a:65536", "::1:9001", "[]:1", "a:1 ", " a:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for (text, like) in [
            ("::1", "[::1]:9001"),
            ("::1:9953", "[::1]:9953"),
            ("fe80::abcd", "[fe80::abcd]:9001"),
            ("1:2:3:4:5:6:7:8", "[1:2:3:4:5:6:7:8]:9001"),
        ] {
            let why = text.parse::<Address>().expect_err("no brackets");
            assert!(why.ends_with(&format!("like {like}")), "{why}");
        }
    }

    /// A drain that hears nothing and stops itself whenever it goes on.
    fn stopping_drain(said: &Said) -> DrainProcess {
        let script = "trap '' TERM; while :; do kill -STOP $$; done";
        let plan = DrainPlan {
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            ring: "/callsight-test-none".to_owned(),
            file: None,
            budget_bytes: 0,
            live: None,
        };
        let said = Arc::clone(said);
        let drain = DrainProcess::spawn(&plan, move |line| hear(&said, line)).expect("a drain");
        while !is_stopped(&drain.child) {
            thread::yield_now();
        }
        drain
    }

    type Said = Arc<Mutex<Vec<String>>>;

    fn hear(said: &Said, line: &str) {
        said.lock().expect("lines").push(line.to_owned());
    }

    #[test]
    fn a_drain_that_stays_stopped_is_told_to_go_on_then_to_end_and_then_killed() {
        let said = Said::default();
        let end = stopping_drain(&said).finish(false, |line| hear(&said, line)).expect("its end");
        assert_eq!((end.status.signal(), end.was_told), (Some(9), true));
        let said = said.lock().expect("lines");
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].ends_with("told to go on") && said[1].ends_with("is killed"), "{said:?}");
    }

    #[test]
    fn a_drain_that_nobody_waits_for_is_gone_even_where_it_is_stopped() {
        let drain = stopping_drain(&Said::default());
        let id = ProcessId::now(drain.child.id()).expect("it is there");
        drop(drain);
        assert!(!id.is_alive());
    }

    #[test]
    fn a_plan_is_a_command_line() {
        let mut plan = DrainPlan {
            command: Vec::new(),
            ring: "/r".to_owned(),
            file: Some("dir".into()),
            budget_bytes: 5,
            live: Some(Address { host: "h".to_owned(), port: 7 }),
        };
        assert_eq!(
            plan.arguments(),
            ["--file", "dir", "--budget", "5", "--reconnect", "/r", "h", "7"]
        );
        plan.live = None;
        plan.budget_bytes = 0;
        assert_eq!(plan.arguments(), ["--file", "dir", "/r"]);
    }
}
