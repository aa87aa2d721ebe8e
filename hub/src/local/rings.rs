//! The rings of this machine: which there are, and which nobody uses any more.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use callsight_format::{RING_MAGIC, RING_SPARE_PREFIX, RING_UNBORN_PREFIX};

use super::process::ProcessId;
use super::ring::{RingError, RingFile, SHARED_MEMORY};

/// Nobody makes a ring for so long. Its maker may be a process that cannot be seen from here.
const UNBORN: Duration = Duration::from_secs(60);

/// Something of callsight in shared memory, of this user.
#[derive(Debug)]
pub enum Found {
    /// A ring.
    Ring(RingFile),
    /// A ring that its maker has not named yet, or never will; or one that a drain has made in advance.
    Unborn(Unborn),
    /// It begins like a ring, but it cannot be used as one.
    Damaged {
        /// Its name, as `TRACE_SHM` would have it.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// What is wrong with it.
        error: RingError,
    },
}

impl Found {
    /// Its name, as `TRACE_SHM` would have it.
    pub fn name(&self) -> String {
        match self {
            Found::Ring(ring) => ring.name(),
            Found::Unborn(unborn) => unborn.name(),
            Found::Damaged { name, .. } => name.clone(),
        }
    }
}

/// See [`Found::Unborn`].
#[derive(Debug)]
pub struct Unborn {
    path: PathBuf,
    /// Its maker.
    pub maker: u32,
    /// Whether a drain has made it in advance for a ring of another name.
    pub is_spare: bool,
    /// Its bytes.
    pub bytes: u64,
    /// Whether its maker is gone, for some time.
    pub is_abandoned: bool,
    /// Whether its maker is of another pid namespace.
    pub is_foreign: bool,
}

impl Unborn {
    /// Its name, as `TRACE_SHM` would have it.
    pub fn name(&self) -> String {
        format!("/{}", self.path.file_name().unwrap_or_default().to_string_lossy())
    }

    /// Whether nobody waits with it for a process, by the lock that its maker holds on a spare one
    /// for as long: that tells of makers of another pid namespace, too.
    pub fn is_let_go(&self) -> bool {
        self.is_spare && RingFile::open_path(&self.path).is_ok_and(|ring| ring.lock_out_drains())
    }

    /// Removes it.
    ///
    /// # Errors
    /// Why it cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// All of this user's, by name.
///
/// # Errors
/// Why the folder of shared memory cannot be read.
pub fn rings_here() -> io::Result<Vec<Found>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(SHARED_MEMORY)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths.iter().filter_map(|path| find(path)).collect())
}

fn find(path: &Path) -> Option<Found> {
    let meta = fs::symlink_metadata(path).ok()?;
    if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let name = path.file_name()?.to_string_lossy();
    if name.starts_with(RING_SPARE_PREFIX) {
        return Some(Found::Unborn(spare(&RingFile::open_path(path).ok()?, &meta)));
    }
    if let Some(maker) = name.strip_prefix(RING_UNBORN_PREFIX) {
        return Some(Found::Unborn(unborn(path, maker.parse().ok()?, &meta)));
    }
    match RingFile::open_path(path) {
        Ok(ring) => Some(Found::Ring(ring)),
        Err(error) => begins_like_a_ring(path).then(|| Found::Damaged {
            name: format!("/{name}"),
            bytes: meta.len(),
            error,
        }),
    }
}

fn unborn(path: &Path, maker: u32, meta: &Metadata) -> Unborn {
    let age = meta.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
    let is_abandoned = age > UNBORN && !ProcessId { pid: maker, start: 0 }.is_alive();
    let (path, bytes) = (path.to_owned(), meta.len());
    Unborn { path, maker, is_spare: false, bytes, is_abandoned, is_foreign: false }
}

fn spare(ring: &RingFile, meta: &Metadata) -> Unborn {
    let is_foreign = ring.is_foreign();
    let of_here = unborn(ring.path(), ring.spare_maker(), meta);
    let is_abandoned = of_here.is_abandoned && !is_foreign;
    Unborn { is_spare: true, is_foreign, is_abandoned, ..of_here }
}

/// Asked only of regular files, which cannot hold up whoever opens them.
fn begins_like_a_ring(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; RING_MAGIC.len()];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == RING_MAGIC
}
