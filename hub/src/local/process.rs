//! Processes of this machine, as `/proc` shows them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A process: its pid may be another's later, its start time tells them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// Start time (field 22 of `/proc/PID/stat`); 0 where it is not known.
    pub start: u64,
}

impl ProcessId {
    /// The process that has this pid now; `None` where there is none, or it is hidden.
    pub fn now(pid: u32) -> Option<ProcessId> {
        Stat::read(pid).map(|stat| ProcessId { pid, start: stat.start })
    }

    /// Whether it still runs. One that cannot be looked at does, as far as is known here.
    pub fn is_alive(self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return false;
        }
        match Stat::read(self.pid) {
            // A zombie is dead, unless it is only the first thread that has ended.
            Some(stat) if stat.is_zombie && stat.threads <= 1 => false,
            Some(stat) => self.start == 0 || stat.start == self.start,
            None => true,
        }
    }

    /// Whether it is stopped, by a signal or by a debugger.
    pub(super) fn is_stopped(self) -> bool {
        Stat::read(self.pid).is_some_and(|stat| stat.is_stopped)
    }

    /// The file it runs, where that may be known.
    pub fn executable(self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// Whether it has this thread.
    pub(super) fn has_thread(self, tid: u32) -> bool {
        fs::symlink_metadata(format!("/proc/{}/task/{tid}", self.pid)).is_ok()
    }

    /// What its thread is called now; `None` where it has no such thread, or nobody may ask.
    pub(super) fn thread_name(self, tid: u32) -> Option<Vec<u8>> {
        let mut name = fs::read(format!("/proc/{}/task/{tid}/comm", self.pid)).ok()?;
        name.pop_if(|last| *last == b'\n');
        Some(name)
    }

    /// The process that started it; 0 where that is not known.
    pub(super) fn parent(self) -> u32 {
        Stat::read(self.pid).map_or(0, |stat| stat.parent)
    }
}

/// The pid namespace of this process: inode of `/proc/self/ns/pid`, 0 where nobody says. `None` where
/// `/proc` is that of another one: what it says of a pid is of another process.
pub(super) fn pid_namespace() -> Option<u64> {
    let own = std::process::id().to_string();
    match fs::read_link("/proc/self") {
        Ok(shown) if shown.as_os_str() != own.as_str() => None,
        Ok(_) => Some(fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())),
        // In a namespace that it does not show we have no number, but the link is there.
        Err(_) if fs::symlink_metadata("/proc/self").is_ok() => None,
        Err(_) => Some(0),
    }
}

struct Stat {
    is_zombie: bool,
    is_stopped: bool,
    parent: u32,
    threads: u64,
    start: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Stat> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&text))
    }

    /// The name in field 2 may hold anything, but the last parenthesis is its end.
    fn parse(text: &str) -> Option<Stat> {
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            is_zombie: matches!(field(3)?, "Z" | "X"),
            is_stopped: matches!(field(3)?, "T" | "t"),
            parent: field(4)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start: field(22)?.parse().ok()?,
        })
    }
}

/// A mapping of a process: a line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub start: u64,
    pub end: u64,
    pub is_executable: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    pub inode: u64,
    /// As the kernel shows it, line ends escaped.
    pub path: String,
}

impl Mapped {
    fn parse(line: &str) -> Option<Mapped> {
        let mut words = line.splitn(6, ' ');
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        Some(Mapped {
            start: hex(start)?,
            end: hex(end)?,
            is_executable: rights.contains('x'),
            offset,
            device: (hex(major)? as u32, hex(minor)? as u32),
            inode: words.next()?.parse().ok()?,
            path: words.next().unwrap_or_default().trim_start().to_owned(),
        })
    }
}

/// What a process has mapped, in the order of addresses.
///
/// # Errors
/// Why that cannot be read: the process is gone, or another user's.
pub(super) fn maps_of(pid: u32) -> io::Result<Vec<Mapped>> {
    let text = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(Mapped::parse).collect())
}

/// Pids of all processes but this one.
pub(super) fn other_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_behind_any_name_are_found() {
        let text = "7 (a) b) 1 2) S 3 4 5 0 -1 6 7 8 9 10 11 12 13 14 20 0 2 0 4711 22 23\n";
        let stat = Stat::parse(text).expect("a stat line");
        assert_eq!((stat.is_zombie, stat.parent, stat.threads, stat.start), (false, 3, 2, 4711));
        assert!(Stat::parse("7 (a) S 3").is_none());
        assert!(Stat::parse("").is_none());
    }

    #[test]
    fn the_first_thread_is_called_as_its_program_and_one_that_is_not_there_nothing() {
        let me = ProcessId { pid: std::process::id(), start: 0 };
        let exe = std::env::current_exe().expect("its path");
        let name = me.thread_name(me.pid).expect("a name");
        let file = exe.file_name().expect("a file").as_encoded_bytes();
        assert_eq!(name, &file[..file.len().min(15)]);
        assert_eq!(me.thread_name(u32::MAX), None);
    }

    #[test]
    fn a_line_of_the_maps_is_read() {
        let line = "7f00-7f10 r-xp 00001000 fe:0a 42    /usr/lib/a b.so (deleted)";
        let mapped = Mapped::parse(line).expect("a mapping");
        assert_eq!((mapped.start, mapped.end, mapped.offset), (0x7f00, 0x7f10, 0x1000));
        assert_eq!((mapped.is_executable, mapped.device, mapped.inode), (true, (0xfe, 10), 42));
        assert_eq!(mapped.path, "/usr/lib/a b.so (deleted)");
        assert_eq!(Mapped::parse("7f00-7f10 rw-p 0 00:00 0").expect("a mapping").path, "");
    }

    #[test]
    fn this_process_is_alive_and_one_of_another_start_is_not() {
        let me = ProcessId::now(std::process::id()).expect("this process");
        assert!(me.is_alive() && ProcessId { start: 0, ..me }.is_alive());
        assert!(!ProcessId { start: me.start + 1, ..me }.is_alive());
        assert!(!ProcessId { pid: 0, start: 0 }.is_alive());
        assert!(!ProcessId { pid: u32::MAX, start: 0 }.is_alive());
    }
}
