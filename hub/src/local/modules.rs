//! A process that runs → the modules it has mapped, as the runtime would note them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use callsight_format::ModuleNote;
use object::{Object, ObjectSegment, ReadCache};
use rustix::fs::{major, minor};

use super::process::{Mapped, maps_of};

/// Where an ELF file lies in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Module {
    base: u64,
    end: u64,
    bias: u64,
    build_id: Vec<u8>,
    path: String,
}

impl Module {
    /// The bytes of its note.
    pub fn note(&self) -> Vec<u8> {
        let note = ModuleNote {
            base: self.base,
            size: self.end - self.base,
            bias: self.bias,
            build_id: &self.build_id,
            path: self.path.as_bytes(),
        };
        [&note.head()[..], note.build_id, note.path].concat()
    }
}

/// The modules of a process: runs of mappings of one file of which one may be executed.
///
/// # Errors
/// Why its map cannot be read.
pub(super) fn modules_of(pid: u32) -> io::Result<Vec<Module>> {
    let maps = maps_of(pid)?;
    let files = maps.iter().filter(|mapped| mapped.path.starts_with('/')).collect::<Vec<_>>();
    // As the runtime has it: the start of a file begins another run of it.
    let runs = files.chunk_by(|last, next| last.path == next.path && next.offset > 0);
    Ok(runs.filter(|run| run.iter().any(|mapped| mapped.is_executable)).map(module).collect())
}

fn module(run: &[&Mapped]) -> Module {
    let (first, last) = (run[0], run[run.len() - 1]);
    let mut module = Module {
        base: first.start,
        end: last.end,
        bias: first.start.wrapping_sub(first.offset),
        build_id: Vec::new(),
        path: first.path.clone(),
    };
    if let Some((bias, build_id)) = read_elf(first) {
        (module.bias, module.build_id) = (bias, build_id);
    }
    module
}

/// Bias and build-id, from the file that is mapped; `None` where its path leads to another by now.
fn read_elf(first: &Mapped) -> Option<(u64, Vec<u8>)> {
    let meta = fs::metadata(&first.path).ok()?;
    let device = (major(meta.dev()), minor(meta.dev()));
    if !meta.is_file() || (meta.ino(), device) != (first.inode, first.device) {
        return None;
    }
    let cache = ReadCache::new(File::open(&first.path).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    // The segment that begins in the first mapping says where that lies in the file's own terms.
    let bytes = first.end - first.start;
    let segment = elf.segments().find(|segment| {
        let offset = segment.file_range().0;
        offset >= first.offset && offset - first.offset < bytes
    })?;
    let address = segment.address().wrapping_sub(segment.file_range().0 - first.offset);
    let build_id = elf.build_id().ok().flatten().unwrap_or_default();
    Some((first.start.wrapping_sub(address), build_id.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_among_its_own_modules() {
        let modules = modules_of(std::process::id()).expect("the map");
        let exe = std::env::current_exe().expect("its path").display().to_string();
        let module = modules.iter().find(|module| module.path == exe).expect("the executable");
        let here = this_program_is_among_its_own_modules as *const () as u64;
        assert!((module.base..module.end).contains(&here));
        assert!(module.bias <= module.base);
        let note = module.note();
        let note = ModuleNote::parse(&note).expect("a note");
        assert_eq!((note.base, note.bias, note.path), (module.base, module.bias, exe.as_bytes()));
    }
}
