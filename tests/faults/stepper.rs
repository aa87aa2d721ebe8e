//! A program that is stepped through its hooks, one instruction at a time.
//!
//! Stronger than named points in the code: it can be stopped, and killed, behind every instruction
//! of reserving a slot, storing an event, claiming a page and leaving one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::scene::{Scene, tally};
use crate::truth::Truth;

/// A traced `tally` that stands at an instruction between its two traps.
pub struct Stepped {
    /// Its process id.
    pub pid: i32,
    file: PathBuf,
    is_over: bool,
}

impl Stepped {
    /// Starts one that will make `calls` calls, up to its first trap. Only the thread that started
    /// it can step it.
    #[expect(clippy::zombie_processes, reason = "`kill` waits for it, as a tracer has to")]
    pub fn start(scene: &Scene, name: &str, calls: u32) -> Stepped {
        let file = scene.path(name);
        let mut command = Command::new(tally());
        command.arg(&file).args(["1", &calls.to_string(), "0", "step"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        scene.tracing().prepare(&mut command);
        // SAFETY: between fork and exec, one system call that takes no lock.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        let child = command.spawn().expect("start a stepped program");
        let stepped = Stepped { pid: child.id().cast_signed(), file, is_over: false };
        assert_eq!(stepped.wait(), Some(libc::SIGTRAP), "stops at its first instruction");
        stepped.request(libc::PTRACE_CONT);
        assert_eq!(stepped.wait(), Some(libc::SIGTRAP), "stops at its first trap");
        stepped
    }

    /// Goes `count` instructions on.
    pub fn step(&mut self, count: usize) {
        for _ in 0..count {
            self.request(libc::PTRACE_SINGLESTEP);
            assert_eq!(self.wait(), Some(libc::SIGTRAP), "one instruction");
        }
    }

    /// Every instruction it executes up to its second trap.
    pub fn path(&mut self) -> Vec<u64> {
        let mut path = Vec::new();
        loop {
            let at = self.instruction();
            if self.byte_at(at) == 0xcc {
                return path;
            }
            path.push(at);
            self.step(1);
        }
    }

    /// Where the kernel's code for reading clocks is in it; nowhere, when it has none.
    pub fn clock_code(&self) -> Range<u64> {
        let file = format!("/proc/{}/maps", self.pid);
        let maps = std::fs::read_to_string(&file).expect("the maps of a stopped program");
        let range = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(|line| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(number(start)?..number(end)?)
        });
        range.unwrap_or(0..0)
    }

    /// What it counted.
    pub fn truth(&self) -> Truth {
        Truth::read(&self.file)
    }

    /// Kills it where it stands.
    pub fn kill(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        // SAFETY: the child is not reaped yet, so its pid is no one else's.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        while self.wait().is_some() {}
    }

    fn request(&self, request: libc::c_uint) {
        // SAFETY: the child is stopped and ours; no memory of this process is touched.
        let done = unsafe { libc::ptrace(request, self.pid, 0, 0) };
        assert_eq!(done, 0, "step process {}", self.pid);
    }

    /// The signal it stopped with; `None` when it has ended.
    fn wait(&self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is ours to write.
        let found = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(found, self.pid, "wait for process {}", self.pid);
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn instruction(&self) -> u64 {
        unreachable!("nothing is stepped here, see `obstacle`")
    }

    #[cfg(target_arch = "x86_64")]
    fn instruction(&self) -> u64 {
        // SAFETY: registers are numbers, for which zero is a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the child is stopped; `registers` is as large as the kernel writes.
        let done = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut registers) };
        assert_eq!(done, 0, "read the registers of process {}", self.pid);
        registers.rip
    }

    fn byte_at(&self, at: u64) -> u8 {
        // SAFETY: the child is stopped; the word comes back as the result.
        let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.pid, at, 0) };
        word.to_le_bytes()[0]
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        self.kill();
    }
}

/// After how many steps a program is at an instruction of interest: each of the first two calls,
/// and all that are executed seldom, which is where pages are claimed and left.
pub fn points(path: &[u64], calls: u32) -> Vec<usize> {
    let mut visits = BTreeMap::<u64, usize>::new();
    path.iter().for_each(|at| *visits.entry(*at).or_default() += 1);
    let usual = calls as usize;
    let first_calls = 2 * path.len() / usual;
    let is_seldom = |at: &u64| visits[at] * 4 < usual;
    (0..path.len()).filter(|step| *step < first_calls || is_seldom(&path[*step])).collect()
}

/// Instructions of a call with both its hooks, but for its first and last one: the usual number,
/// and the most. Those of the kernel's `clock_code` count once a call: it reads a clock again when the
/// kernel has just changed it, which comes often to a program that takes a step at a time.
pub fn costs(path: &[u64], clock_code: &Range<u64>, calls: u32) -> (usize, usize) {
    let visits = |of: u64| path.iter().filter(|at| **at == of).count();
    let once_a_call = path.iter().find(|at| visits(**at) == calls as usize).expect("a loop");
    let begins: Vec<usize> = (0..path.len()).filter(|step| path[*step] == *once_a_call).collect();
    let cost = |pair: &[usize]| {
        let (reads, rest): (Vec<u64>, Vec<u64>) =
            path[pair[0]..pair[1]].iter().partition(|at| clock_code.contains(at));
        rest.len() + BTreeSet::from_iter(reads).len()
    };
    let mut costs: Vec<usize> = begins.windows(2).map(cost).collect();
    costs.sort_unstable();
    (costs[costs.len() / 2], costs[costs.len() - 1])
}

/// Why programs cannot be stepped here, if so.
pub fn obstacle() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the traps and registers are those of x86-64".to_owned());
    }
    let mut command = Command::new("true");
    // SAFETY: between fork and exec, one system call that takes no lock.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    match command.spawn() {
        Ok(mut child) => {
            // It stands at its first instruction.
            let _ = child.kill();
            let _ = child.wait();
            None
        }
        Err(error) => Some(format!("ptrace: {error}")),
    }
}
