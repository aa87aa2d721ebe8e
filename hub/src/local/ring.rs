//! A ring in shared memory, as an onlooker sees it.
//!
//! In: a name. Out: the bytes of a ring whose sizes hold. Nothing is mapped and nothing is changed: what is read is copied first, and every number of it is checked against the
//! size of the file before it is used.

use std::fs::{self, File};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use callsight_format::{
    ByteOrder, EVENT_BYTES, Event, Origin, RING_CONTROL_OFFSET, RING_HEADER_BYTES, RING_MAGIC,
    RING_VERSION, RING_VERSION_STREAM, RING_WRITERS_OFFSET, RingControl, RingHeader, RingLayout,
};
use rustix::fs::{FlockOperation, OFlags, flock, major, minor};

use super::process::{maps_of, other_pids, pid_namespace};
use crate::stream::in_one_line;

/// Where shared memory objects are.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";

/// Most bytes of the name of a file.
const NAME_BYTES: usize = 255;

/// Why a ring cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// No name of a shared memory object.
    #[error("use the ring name \"{}\": it must be like /callsight0", in_one_line(name))]
    Name {
        /// What was given.
        name: String,
    },
    /// The system refused.
    #[error("read the ring {}: {error}; `callsight rings` lists those that are there", shown(path))]
    Io {
        /// Its file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is none, or not one to trust.
    #[error("read the ring {}: {why}", shown(path))]
    Refused {
        /// Its file.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
}

/// A name that a ring can have, without its slash.
///
/// # Errors
/// It is none.
pub fn check_name(name: &str) -> Result<&str, RingError> {
    let base = name.strip_prefix('/').unwrap_or(name);
    let is_none = base.is_empty() || base.contains('/') || base == "." || base == "..";
    match is_none || base.len() > NAME_BYTES {
        true => Err(RingError::Name { name: name.to_owned() }),
        false => Ok(base),
    }
}

fn shown(path: &Path) -> String {
    in_one_line(&path.to_string_lossy())
}

/// A ring whose sizes hold.
#[derive(Debug)]
pub struct RingFile {
    path: PathBuf,
    file: File,
    device: u64,
    inode: u64,
    bytes: u64,
    is_foreign: bool,
    header: Bytes,
    layout: RingLayout,
}

/// Integers of this machine, at offsets; 0 beyond the end.
#[derive(Clone, Debug)]
pub(super) struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u16(&self, at: usize) -> u16 {
        self.0.get(at..at + 2).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]))
    }

    pub fn u32(&self, at: usize) -> u32 {
        ByteOrder::NATIVE.u32(&self.0, at).unwrap_or(0)
    }

    pub fn u64(&self, at: usize) -> u64 {
        ByteOrder::NATIVE.u64(&self.0, at).unwrap_or(0)
    }
}

impl RingFile {
    /// Opens the ring of this name, as `TRACE_SHM` has it.
    ///
    /// # Errors
    /// What is wrong with the name or with the ring.
    pub fn open(name: &str) -> Result<RingFile, RingError> {
        RingFile::open_path(&Path::new(SHARED_MEMORY).join(check_name(name)?))
    }

    pub(super) fn open_path(path: &Path) -> Result<RingFile, RingError> {
        let io = |error| RingError::Io { path: path.to_owned(), error };
        let refused = |why| RingError::Refused { path: path.to_owned(), why };
        // Neither a link nor a pipe: whoever may write to the folder may have put anything there.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let file =
            File::options().read(true).custom_flags(flags.cast_signed()).open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(refused("it is no shared memory object"));
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(refused("it belongs to another user; run callsight as that user"));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(refused("other users may open it; a ring has mode 0600"));
        }
        let header = Bytes(read_up_to(&file, 0, RING_WRITERS_OFFSET).map_err(io)?);
        let layout = check(&header, meta.len()).map_err(refused)?;
        let is_foreign = is_foreign(&header, pid_namespace());
        let (device, inode, bytes) = (meta.dev(), meta.ino(), meta.len());
        let path = path.to_owned();
        Ok(RingFile { path, file, device, inode, bytes, is_foreign, header, layout })
    }

    /// The drain that made it in advance; 0 for none.
    pub(super) fn spare_maker(&self) -> u32 {
        self.header.u32(RING_CONTROL_OFFSET + offset_of!(RingControl, spare_maker))
    }

    /// Whether it is for the processes of another pid namespace: which of them live cannot be told
    /// from here.
    pub fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Opens it once more, so that its words can be changed.
    ///
    /// # Errors
    /// Why not; its name may be another's by now.
    pub fn open_to_write(&self) -> Result<File, RingError> {
        let io = |error| RingError::Io { path: self.path.clone(), error };
        let file = open(&self.path, true).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if (meta.dev(), meta.ino()) != (self.device, self.inode) {
            let why = "another ring has its name by now";
            return Err(RingError::Refused { path: self.path.clone(), why });
        }
        Ok(file)
    }

    /// Its name, as `TRACE_SHM` has it.
    pub fn name(&self) -> String {
        let base = self.path.file_name().unwrap_or_default();
        format!("/{}", base.to_string_lossy())
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes, all in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.u32(offset_of!(RingHeader, version))
    }

    /// What its clock words mean; from the moment it was opened.
    pub fn origin(&self) -> Origin {
        let header = &self.header;
        Origin {
            flags: header.u32(offset_of!(RingHeader, flags)),
            load_bias: header.u64(offset_of!(RingHeader, load_bias)),
            tick_hz: header.u64(offset_of!(RingHeader, tick_hz)),
            t0_ticks: header.u64(offset_of!(RingHeader, t0_ticks)),
            t0_ns: header.u64(offset_of!(RingHeader, t0_ns)),
            hook_ns: header.u64(offset_of!(RingHeader, hook_ns)),
        }
    }

    /// Bytes of records that drains had taken when it was opened.
    pub fn taken_bytes(&self) -> u64 {
        self.header.u64(offset_of!(RingHeader, tail))
    }

    /// Where everything is in a version 3 ring.
    pub(super) fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Copies `count` bytes from `offset` on; fewer where the file was cut short.
    pub(super) fn read(&self, offset: u64, count: usize) -> Result<Bytes, RingError> {
        let bytes = read_up_to(&self.file, offset, count);
        bytes.map(Bytes).map_err(|error| RingError::Io { path: self.path.clone(), error })
    }

    /// Pids of processes beside this one that have it mapped, whatever they do with it.
    pub fn mapped_by(&self) -> Vec<u32> {
        let maps = |pid: &u32| self.is_mapped_by(*pid) == Some(true);
        other_pids().into_iter().filter(maps).collect()
    }

    /// Whether this process has it mapped; `None` where that may not be known.
    pub(super) fn is_mapped_by(&self, pid: u32) -> Option<bool> {
        let device = (major(self.device), minor(self.device));
        let maps = maps_of(pid).ok()?;
        Some(maps.iter().any(|mapped| mapped.inode == self.inode && mapped.device == device))
    }

    /// Takes the lock that a drain holds while it reads the ring, until this value is dropped;
    /// `false` where a drain has it.
    pub fn lock_out_drains(&self) -> bool {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    pub(super) fn let_drains_in(&self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }

    /// Removes its name, unless that is another ring's by now; whether it was removed.
    ///
    /// # Errors
    /// Why it could not be removed.
    pub fn remove(&self) -> Result<bool, RingError> {
        let io = |error| RingError::Io { path: self.path.clone(), error };
        match fs::symlink_metadata(&self.path) {
            Ok(meta) if meta.dev() == self.device && meta.ino() == self.inode => {
                fs::remove_file(&self.path).map_err(io)?;
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io(error)),
        }
    }
}

/// An event that is whole: a slot without a time holds none.
pub(super) fn stored(slot: &[u8]) -> Option<Event> {
    Event::parse(slot, ByteOrder::NATIVE).filter(|event| event.ts != 0)
}

/// Neither a link nor a pipe: whoever may write to the folder may have put anything there.
fn open(path: &Path, to_write: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    File::options().read(true).write(to_write).custom_flags(flags).open(path)
}

/// Whether a ring that begins like this is for others than processes of the namespace `own`
/// ([`pid_namespace`]). Version 2 knows no processes, and nothing of namespaces.
fn is_foreign(header: &Bytes, own: Option<u64>) -> bool {
    let made_in = header.u64(RING_CONTROL_OFFSET + offset_of!(RingControl, pid_namespace));
    let differs = own.is_none_or(|own| made_in != 0 && own != 0 && made_in != own);
    header.u32(offset_of!(RingHeader, version)) == RING_VERSION && differs
}

fn read_up_to(file: &File, offset: u64, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut filled = 0;
    while filled < count {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// The layout that the first bytes state, where it is one and the file has as many bytes.
fn check(header: &Bytes, file_bytes: u64) -> Result<RingLayout, &'static str> {
    const CONTRADICTION: &str = "its header is damaged: its sizes contradict each other";
    const CUT: &str = "its header states more bytes than it has";
    if header.0.get(..RING_MAGIC.len()) != Some(&RING_MAGIC) {
        return Err("it is not a ring of callsight");
    }
    let capacity = header.u32(offset_of!(RingHeader, capacity));
    let layout = RingLayout::of(u64::from(capacity));
    match header.u32(offset_of!(RingHeader, version)) {
        RING_VERSION => {
            let stated = |at: usize| header.u32(RING_CONTROL_OFFSET + at);
            let agree = capacity == layout.capacity
                && stated(offset_of!(RingControl, page_bytes)) == layout.page_bytes
                && stated(offset_of!(RingControl, page_count)) == layout.page_count
                && stated(offset_of!(RingControl, slot_count)) == layout.slot_count
                && stated(offset_of!(RingControl, pages_offset)) == layout.pages_offset;
            match agree {
                true if layout.total_bytes <= file_bytes => Ok(layout),
                true => Err(CUT),
                false => Err(CONTRADICTION),
            }
        }
        RING_VERSION_STREAM if (capacity as usize) < EVENT_BYTES => Err(CONTRADICTION),
        RING_VERSION_STREAM if RING_HEADER_BYTES as u64 + u64::from(capacity) > file_bytes => {
            Err(CUT)
        }
        RING_VERSION_STREAM => Ok(layout),
        _ => Err("it has a version that this callsight does not know; it reads 2 and 3"),
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
