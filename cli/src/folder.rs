//! Folders of captures: who records into one, and what is no run's to remove.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A folder in which something is recorded, for as long as this is held. Whoever is killed holds
/// nothing any more.
pub struct Claim {
    _directory: File,
}

impl Claim {
    /// Claims a folder that this process alone records into; `None` where somebody else does.
    ///
    /// # Errors
    /// Why the folder cannot be opened.
    pub fn alone(folder: &Path) -> io::Result<Option<Claim>> {
        Claim::by(folder, FlockOperation::NonBlockingLockExclusive)
    }

    /// Claims a folder that several may record into.
    ///
    /// # Errors
    /// As [`Claim::alone`].
    pub fn beside_others(folder: &Path) -> io::Result<Option<Claim>> {
        Claim::by(folder, FlockOperation::NonBlockingLockShared)
    }

    fn by(folder: &Path, how: FlockOperation) -> io::Result<Option<Claim>> {
        let directory = File::open(folder)?;
        // Where there are no locks, nobody has one.
        let taken = flock(&directory, how) == Err(Errno::WOULDBLOCK);
        Ok((!taken).then_some(Claim { _directory: directory }))
    }
}

/// Whether a server's streams are there: beside each it keeps a `trace.stream.N.json`.
///
/// # Errors
/// Why the folder cannot be read.
pub fn holds_received(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("trace.stream.") && name.ends_with(".json") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The folder beside `folder` of this number: `traces-2` beside `traces`; `None` where it has no name of
/// its own.
pub fn sibling(folder: &Path, number: u32) -> Option<PathBuf> {
    let mut name = OsString::from(folder.file_name()?);
    name.push(format!("-{number}"));
    Some(folder.with_file_name(name))
}
