//! An adopted project → the plan that takes callsight out of it, byte for byte.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::block::{self, BlockError};
use crate::detect::{self, Project};
use crate::state::{ORIGINAL, RECORD, State, print_of};
use crate::vendor::{self, FOLDER};
use crate::{Error, Plan, plan};

/// Plans to take callsight out of the project at `path`: the CMakeLists.txt becomes what it was,
/// and every file that `init` wrote and nobody changed goes.
///
/// # Errors
/// The project cannot be edited safely; the message says why and what would help.
pub fn plan_undo(path: &Path) -> Result<Plan, Error> {
    let project = detect::project(path)?;
    let folder = project.root.join(FOLDER);
    let mut planned = Plan::of(&project.root);
    let state = match folder.is_dir() {
        true => State::read(&folder)?,
        false => None,
    };
    plan_cmakelists(&mut planned, state.as_ref(), &folder, &project)?;
    match state {
        Some(state) => plan_folder(&mut planned, &state, &folder)?,
        None if folder.is_dir() && !planned.is_empty() => planned
            .notes
            .push(format!("{FOLDER}/ stays: it has no record of what `callsight init` wrote")),
        None => {}
    }
    detect::allowed(planned, &project.cmakelists)
}

fn plan_cmakelists(
    planned: &mut Plan,
    state: Option<&State>,
    folder: &Path,
    project: &Project,
) -> Result<(), Error> {
    let refuse = |half| {
        let line = vendor::block_line();
        Error::block(project.cmakelists.clone(), BlockError::HalfOpen(half), &line)
    };
    let original = match state {
        Some(state) if state.edited == print_of(&project.text) => {
            let saved = plan::read_if_there(&folder.join(ORIGINAL))?;
            saved.filter(|saved| state.original == print_of(saved))
        }
        _ => None,
    };
    let restored = match (original, block::find(&project.text).map_err(refuse)?) {
        (Some(original), _) => original,
        (None, Some(range)) => block::cut_out(&project.text, range),
        (None, None) => return Ok(()),
    };
    planned.set(project.cmakelists.clone(), Some(project.text.clone()), Some(restored));
    Ok(())
}

/// Plans the end of `folder`: what is as it was written goes, the rest stays and is named.
fn plan_folder(planned: &mut Plan, state: &State, folder: &Path) -> Result<(), Error> {
    let mut ours: BTreeSet<PathBuf> = [RECORD, ORIGINAL].map(|name| folder.join(name)).into();
    for (name, print) in &state.files {
        let path = folder.join(name);
        // The record is a file like others: a name in it that leads elsewhere is not followed.
        if Path::new(name).components().any(|part| part.as_os_str() == "..")
            || Path::new(name).is_absolute()
        {
            continue;
        }
        if plan::read_if_there(&path)?.is_some_and(|bytes| print_of(&bytes) == *print) {
            ours.insert(path);
        }
    }
    for path in files_below(folder)? {
        if !ours.contains(&path) {
            let name = path.strip_prefix(&planned.root).unwrap_or(&path).display();
            let why = match state.files.keys().any(|name| folder.join(name) == path) {
                true => "it was changed by hand",
                false => "`callsight init` did not write it",
            };
            planned.notes.push(format!("{name} stays: {why}"));
        }
    }
    for path in ours {
        let old = plan::read_if_there(&path)?;
        planned.folders.extend(
            path.ancestors().skip(1).take_while(|at| at.starts_with(folder)).map(Path::to_owned),
        );
        planned.set(path, old, None);
    }
    planned.folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
    planned.folders.dedup();
    Ok(())
}

/// Every file below `folder`, in order of name.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
            let path = entry.map_err(Error::io("list", &folder))?.path();
            match path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    Ok(files)
}
