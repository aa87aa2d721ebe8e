//! Why a project cannot be changed, in one sentence each: what was being done, to what, and what
//! would help.

use std::io;
use std::path::PathBuf;

use crate::RUNTIME_TRIPLE;
use crate::block::BlockError;
use crate::scan::ScanError;

/// Why there is no plan, or why it was not carried out. Nothing has been changed then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not there.
    #[error(
        "add callsight to {}: that is no folder; give the one with the project's top \
         CMakeLists.txt",
        path.display()
    )]
    NoSuchFolder {
        /// The path.
        path: PathBuf,
    },
    /// The folder has nothing that builds it.
    #[error(
        "add callsight to {}: no build system found; give the folder with the project's top \
         CMakeLists.txt",
        path.display()
    )]
    NoBuildSystem {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is built by something that is not edited.
    #[error(
        "add callsight to {}: it is built by {system}, and this version edits CMake projects only; \
         by hand: `callsight init --prefix DIR`, then compile with -finstrument-functions and link \
         DIR/lib/callsight/{RUNTIME_TRIPLE}/callsight_runtime.o into the executable",
        path.display()
    )]
    Unsupported {
        /// The folder.
        path: PathBuf,
        /// What builds it.
        system: &'static str,
    },
    /// A file is to be edited that cannot be.
    #[error("edit {}: {why}", path.display())]
    CannotEdit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what would help.
        why: String,
    },
    /// The selection is not one that the build understands.
    #[error("read {}:{line}: `{said}` is not understood: {help}", path.display())]
    Selection {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is there.
        said: String,
        /// What can be there.
        help: &'static str,
    },
    /// A file is in the way that callsight did not write.
    #[error(
        "write {}: there is one that `callsight init` did not write; move it away, or remove it",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A file changed between plan and apply.
    #[error("change {}: something else has changed it just now; try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{doing} {}: {why}{}", path.display(), help_with(why))]
    Io {
        /// What was being done: `read`, `write`, ...
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// The system refused, and then refused to let go back.
    #[error(
        "{cause}; and these could not be put back: {}",
        left.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    HalfDone {
        /// What went wrong first.
        cause: Box<Error>,
        /// Files that are not what they were.
        left: Vec<PathBuf>,
    },
}

impl Error {
    /// An [`Error::Io`].
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |why| Error::Io { doing, path, why }
    }

    /// What a [`BlockError`] in the file `path` means to its owner.
    pub(crate) fn block(path: PathBuf, error: BlockError, by_hand: &str) -> Error {
        let why = match error {
            BlockError::HalfOpen(half) => format!(
                "line {} has a callsight marker without its counterpart; restore or remove the \
                 lines from `# >>> callsight` to `# <<< callsight`",
                half.line
            ),
            BlockError::Scan(ScanError::Syntax { line, what }) => {
                format!("line {line}: {what}; CMake has to read it first")
            }
            BlockError::Scan(ScanError::NoProject) => format!(
                "it calls neither project() nor cmake_minimum_required(); give the folder of the \
                 project's top CMakeLists.txt, or add behind project() by hand: {by_hand}"
            ),
        };
        Error::CannotEdit { path, why }
    }
}

/// What helps where the system refused, if anything is known to.
fn help_with(why: &io::Error) -> &'static str {
    use io::ErrorKind::*;
    match why.kind() {
        StorageFull | QuotaExceeded => "; make room on that disk and try again",
        PermissionDenied | ReadOnlyFilesystem => "; it has to be readable and writable for you",
        NotADirectory | AlreadyExists => "; a file is in its place: move that away",
        NotFound => "; name a folder that can be made",
        _ => "",
    }
}
