//! Changes to files: shown, made all or not at all.
//!
//! A plan holds every file as it is and as it shall be. To apply it, each new file is written beside
//! its place under another name, then all are renamed into place; when anything fails, what was
//! done is taken back.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Error, user_file};

/// One file, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// Its contents now; `None` where it is not there.
    pub old: Option<Vec<u8>>,
    /// Its contents afterwards; `None` where it is to go.
    pub new: Option<Vec<u8>>,
}

impl Change {
    /// `created`, `changed` or `removed`.
    pub fn kind(&self) -> &'static str {
        match (&self.old, &self.new) {
            (None, _) => "created",
            (Some(_), Some(_)) => "changed",
            (Some(_), None) => "removed",
        }
    }
}

/// What would be done to a project.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(crate) root: PathBuf,
    pub(crate) changes: Vec<Change>,
    pub(crate) notes: Vec<String>,
    /// Folders that go if they are empty afterwards, innermost first.
    pub(crate) folders: Vec<PathBuf>,
}

impl Plan {
    /// A plan for the folder `root` that does nothing yet.
    pub(crate) fn of(root: &Path) -> Plan {
        Plan { root: root.to_owned(), ..Plan::default() }
    }

    /// Adds a change, unless the file is already as it shall be.
    pub(crate) fn set(&mut self, path: PathBuf, old: Option<Vec<u8>>, new: Option<Vec<u8>>) {
        if old != new {
            self.changes.push(Change { path, old, new });
        }
    }

    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Every file that would change.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// What else a person should know, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// `change` as a path within the project.
    pub fn name_of<'a>(&self, change: &'a Change) -> &'a Path {
        change.path.strip_prefix(&self.root).unwrap_or(&change.path)
    }

    /// The edits of files that are there and stay, as a unified diff. Files that come or go as a
    /// whole are not in it.
    pub fn diff(&self) -> String {
        let edits = self.changes.iter().filter_map(|change| {
            let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
            let name = self.name_of(change).display();
            let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
            let diff = similar::TextDiff::from_lines(old.as_ref(), new.as_ref());
            let (before, after) = (format!("a/{name}"), format!("b/{name}"));
            Some(diff.unified_diff().context_radius(3).header(&before, &after).to_string())
        });
        edits.collect()
    }

    /// Makes the changes.
    ///
    /// # Errors
    /// What the system refused. Everything is as it was then, but for [`Error::HalfDone`].
    pub fn apply(&self) -> Result<(), Error> {
        let mut journal = Journal::default();
        let done = self.stage(&mut journal).and_then(|()| journal.commit(&self.changes));
        if let Err(cause) = done {
            let left = journal.take_back(&self.changes);
            return Err(match left.is_empty() {
                true => cause,
                false => Error::HalfDone { cause: Box::new(cause), left },
            });
        }
        for folder in &self.folders {
            // One with a file in it stays, as it should.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }

    /// Writes every new file beside its place.
    fn stage(&self, journal: &mut Journal) -> Result<(), Error> {
        for change in &self.changes {
            if read_if_there(&change.path)? != change.old {
                return Err(Error::Changed { path: change.path.clone() });
            }
            let staged = match &change.new {
                Some(bytes) => {
                    journal.create_folders(change.path.parent().unwrap_or(&self.root))?;
                    Some(stage(&change.path, bytes, journal)?)
                }
                None => None,
            };
            journal.staged.push(staged);
        }
        Ok(())
    }
}

/// What has been done so far.
#[derive(Default)]
struct Journal {
    folders: Vec<PathBuf>,
    temporary: Vec<PathBuf>,
    /// The temporary file of each change, in their order; `None` for a removal.
    staged: Vec<Option<PathBuf>>,
    committed: usize,
}

impl Journal {
    fn create_folders(&mut self, folder: &Path) -> Result<(), Error> {
        // A relative path ends in the empty one, which is the folder we are in.
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing = folder.ancestors().take_while(is_missing);
        for folder in missing.collect::<Vec<_>>().into_iter().rev() {
            fs::create_dir(folder).map_err(Error::io("create the folder", folder))?;
            self.folders.push(folder.to_owned());
        }
        Ok(())
    }

    /// Renames staged files into place, and removes what is to go.
    fn commit(&mut self, changes: &[Change]) -> Result<(), Error> {
        for (change, staged) in changes.iter().zip(&self.staged) {
            match staged {
                Some(staged) => {
                    fs::rename(staged, &change.path).map_err(Error::io("write", &change.path))?
                }
                None => fs::remove_file(&change.path).map_err(Error::io("remove", &change.path))?,
            }
            self.committed += 1;
        }
        Ok(())
    }

    /// Undoes everything; gives the files that could not be put back.
    fn take_back(&self, changes: &[Change]) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for change in changes[..self.committed].iter().rev() {
            let done = match &change.old {
                Some(old) => fs::write(&change.path, old),
                None => fs::remove_file(&change.path),
            };
            if done.is_err() {
                left.push(change.path.clone());
            }
        }
        for path in &self.temporary {
            // Those that were renamed are not there any more.
            let _ = fs::remove_file(path);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
        left
    }
}

/// Writes `bytes` beside `path`, with the permissions of the file there; gives the name.
fn stage(path: &Path, bytes: &[u8], journal: &mut Journal) -> Result<PathBuf, Error> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".callsight-{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut file = File::create_new(&temporary).map_err(Error::io("write", path))?;
    journal.temporary.push(temporary.clone());
    file.write_all(bytes).map_err(Error::io("write", path))?;
    if let Some(permissions) = permissions_of(path) {
        file.set_permissions(permissions).map_err(Error::io("write", path))?;
    }
    file.sync_all().map_err(Error::io("write", path))?;
    Ok(temporary)
}

fn permissions_of(path: &Path) -> Option<Permissions> {
    fs::metadata(path).ok().map(|meta| meta.permissions())
}

/// The contents of `path`, or `None` where there is no such file.
///
/// # Errors
/// It is there and cannot be read, or is no file: a symbolic link may lead out of the project.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
        Ok(meta) if meta.is_file() => {
            Ok(Some(user_file::read(path).map_err(Error::io("read", path))?))
        }
        Ok(_) => Err(Error::Foreign { path: path.to_owned() }),
    }
}
