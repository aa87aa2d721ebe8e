//! A path → the CMakeLists.txt to edit, or what builds the project instead.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Plan, user_file};

/// File of a build system that is known but not edited, and its name.
const OTHERS: [(&str, &str); 7] = [
    ("Cargo.toml", "Cargo"),
    ("meson.build", "Meson"),
    ("GNUmakefile", "Make"),
    ("Makefile", "Make"),
    ("makefile", "Make"),
    ("configure", "configure and Make"),
    ("configure.ac", "configure and Make"),
];

/// A CMake project that can be edited.
#[derive(Clone, Debug)]
pub struct Project {
    /// Its top folder.
    pub root: PathBuf,
    /// Its top CMakeLists.txt; the file itself, where the name is a symbolic link.
    pub cmakelists: PathBuf,
    /// What is in it.
    pub text: Vec<u8>,
}

/// Looks at the folder `path`, or at the folder of the CMakeLists.txt that `path` is.
///
/// # Errors
/// It is not there, is built by something else, or cannot be edited safely.
pub fn project(path: &Path) -> Result<Project, Error> {
    let named = path.file_name().is_some_and(|name| name == "CMakeLists.txt") && path.is_file();
    let given = match path.parent() {
        Some(parent) if named && parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) if named => parent,
        _ => path,
    };
    if !given.is_dir() {
        return Err(Error::NoSuchFolder { path: path.to_owned() });
    }
    let root = fs::canonicalize(given).map_err(Error::io("open", given))?;
    let cmakelists = root.join("CMakeLists.txt");
    if cmakelists.symlink_metadata().is_err() {
        return Err(no_cmake(given));
    }
    let cmakelists = editable(&root, &cmakelists)?;
    let text = user_file::read(&cmakelists).map_err(Error::io("read", &cmakelists))?;
    if text.contains(&0) {
        let why = String::from("it is not text in UTF-8 (perhaps UTF-16); convert it first");
        return Err(Error::CannotEdit { path: cmakelists, why });
    }
    Ok(Project { root, cmakelists, text })
}

fn no_cmake(folder: &Path) -> Error {
    let path = folder.to_owned();
    match OTHERS.iter().find(|(file, _)| folder.join(file).exists()) {
        Some((_, system)) => Error::Unsupported { path, system },
        None => Error::NoBuildSystem { path },
    }
}

/// The file that `cmakelists` is or points to, if it is one of the project.
fn editable(root: &Path, cmakelists: &Path) -> Result<PathBuf, Error> {
    let refuse = |why: String| Err(Error::CannotEdit { path: cmakelists.to_owned(), why });
    let real = match fs::canonicalize(cmakelists) {
        Ok(real) => real,
        Err(error) => {
            return refuse(format!(
                "it is a symbolic link that leads nowhere ({error}); restore the file, or remove \
                 the link"
            ));
        }
    };
    if !real.starts_with(root) {
        let there = real.display();
        return refuse(format!(
            "it is a symbolic link to {there}, outside the project; \
             put a copy of that file in its place, or give the folder that has it"
        ));
    }
    let meta = fs::metadata(&real).map_err(Error::io("look at", &real))?;
    if !meta.is_file() {
        return refuse(String::from("it is not a file; move it away, so that CMake finds one"));
    }
    Ok(real)
}

/// Gives back a plan that leaves the CMakeLists.txt as it is, or may change it.
///
/// # Errors
/// It is read-only.
pub fn allowed(planned: Plan, cmakelists: &Path) -> Result<Plan, Error> {
    let changes = planned.changes().iter().any(|change| change.path == cmakelists);
    let meta = fs::metadata(cmakelists).map_err(Error::io("look at", cmakelists))?;
    if changes && meta.permissions().readonly() {
        let why = String::from("it is read-only; make it writable first (chmod u+w)");
        return Err(Error::CannotEdit { path: cmakelists.to_owned(), why });
    }
    Ok(planned)
}
