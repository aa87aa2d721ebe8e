//! Files of a project, as they are found there: whatever has their name, reading it never waits for
//! anybody, and has an end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Most bytes of a file that is read. The largest of ours has 2 MiB, and the largest CMakeLists.txt that we
/// have seen 0.1.
const MOST_BYTES: u64 = 16 << 20;

/// The contents of the regular file `path`, or that it leads to.
///
/// # Errors
/// Why it cannot be read, or that it is none, or that it is too large to be what it should be.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Before it is opened: opening does something to some devices.
    check(path.metadata()?.is_file())?;
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    // A pipe may have come in its place, of which nothing is read.
    check(file.metadata()?.is_file())?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(io::Error::other(format!("it has more than {} MiB", MOST_BYTES >> 20))),
        false => Ok(bytes),
    }
}

fn check(is_file: bool) -> io::Result<()> {
    match is_file {
        true => Ok(()),
        false => Err(io::Error::other("it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_of_a_sane_size_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let why = |name: &str| read(&path(name)).expect_err(name).to_string();
        std::fs::write(path("text"), "text").expect("write");
        std::os::unix::fs::symlink(path("text"), path("link")).expect("a link");
        assert_eq!(read(&path("link")).expect("a file"), b"text");
        File::create(path("huge")).and_then(|file| file.set_len(1 << 40)).expect("a huge file");
        assert_eq!(why("huge"), "it has more than 16 MiB");
        std::os::unix::fs::symlink("/dev/zero", path("zero")).expect("a link");
        std::fs::create_dir(path("folder")).expect("a folder");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), mode).expect("a pipe");
        for name in ["zero", "folder", "fifo"] {
            assert_eq!(why(name), "it is no regular file", "{name}");
        }
        let none = read(&path("none")).expect_err("nothing");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
