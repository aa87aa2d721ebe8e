//! The signals that ask a process to end.

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Those of SIGINT, SIGTERM and SIGHUP that this process was not started to ignore.
///
/// `nohup` ignores SIGHUP and a shell script's `&` ignores SIGINT for what they start; catching
/// one of them would undo that, and a program started from here would inherit the change.
pub fn ending_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_signals(&status);
    let is_ignored = |signal: i32| ignored >> (signal - 1) & 1 == 1;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal)).collect()
}

/// Has this process asked to end when `parent`, which has started it, is gone, however that ended;
/// whether it is still there. It is the thread that counts: the one that has started us has to stay.
///
/// # Errors
/// Why the system does not do that.
pub fn end_with_parent(parent: u32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have ended before.
    let now = getppid().map(Pid::as_raw_pid);
    Ok(now.is_some_and(|now| now.cast_unsigned() == parent))
}

/// The mask behind `SigIgn:` (proc_pid_status(5)): bit 0 is signal 1. None where it is not told.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_found() {
        assert_eq!(ignored_signals("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"), 4097);
        assert_eq!(ignored_signals("SigIgn:\tnone\n"), 0);
        assert_eq!(ignored_signals(""), 0);
    }
}
