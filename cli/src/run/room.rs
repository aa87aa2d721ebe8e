//! Whether the folder of a run took what the program had for it.

use std::path::Path;

use anyhow::{Context, bail};
use callsight_format::{FILE_FOLDER_MAX_BYTES, THREAD_NAMES_MAX_BYTES};
use rustix::fs::{Access, access, statvfs};

/// What a program leaves free unless `TRACE_MIN_FREE_MB` says otherwise.
const DEFAULT_MIN_FREE_MB: u64 = 64;
/// Less than this is no room for a first file even where nothing has to stay free.
const FIRST_FILE_BYTES: u64 = 64 << 10;

/// Refuses what a traced program could not take.
///
/// # Errors
/// The folder's path, or the names of threads, are too long.
pub fn check_lengths(folder: Option<&Path>, threads: Option<&str>) -> anyhow::Result<()> {
    if let Some(folder) = folder {
        let whole = std::path::absolute(folder).context("find the working directory")?;
        let bytes = whole.as_os_str().len();
        if bytes > FILE_FOLDER_MAX_BYTES {
            bail!(
                "record into {}: its path has {bytes} bytes, and a traced program takes \
                 {FILE_FOLDER_MAX_BYTES} at most: name another folder (--path)",
                whole.display()
            );
        }
    }
    match threads.map(str::len) {
        Some(bytes) if bytes > THREAD_NAMES_MAX_BYTES => bail!(
            "select threads: the list has {bytes} bytes, and a traced program takes \
             {THREAD_NAMES_MAX_BYTES} at most"
        ),
        _ => Ok(()),
    }
}

/// What keeps a program from making a file there now, as far as that shows.
pub fn obstacle(folder: &Path) -> Option<String> {
    if !folder.exists() {
        return Some("that is not there any more: it was removed or renamed meanwhile".into());
    }
    if let Err(error) = access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        return Some(format!("that cannot be written to ({error})"));
    }
    shortage(folder)
}

/// How little room there is, where a program would make no file for it.
pub fn shortage(folder: &Path) -> Option<String> {
    let asked = std::env::var("TRACE_MIN_FREE_MB").ok().and_then(|mb| mb.parse().ok());
    let min_free_mb: u64 = asked.unwrap_or(DEFAULT_MIN_FREE_MB);
    let disk = statvfs(folder).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let least = min_free_mb.saturating_mul(1 << 20).saturating_add(FIRST_FILE_BYTES);
    (free < least).then(|| {
        let free = free as f64 / f64::from(1 << 20);
        if min_free_mb == 0 {
            return format!("its disk has {free:.1} MiB free");
        }
        format!("its disk has {free:.1} MiB free, of which TRACE_MIN_FREE_MB leaves {min_free_mb} to others")
    })
}
