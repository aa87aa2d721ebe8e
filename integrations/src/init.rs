//! A CMake project → the plan that adopts it: one block in its CMakeLists.txt, one folder beside it.

use std::path::Path;

use crate::block;
use crate::detect::{self, Project};
use crate::selection::{self, NotUnderstood};
use crate::state::{ORIGINAL, RECORD, State, print_of};
use crate::vendor::{self, FOLDER, SELECTION, VendoredFile};
use crate::{Error, Plan, plan};

/// How to adopt a project.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Vendor the drain too. A project that has it keeps it.
    pub stream: bool,
}

/// Plans the adoption of the project at `path`; where it is adopted already, what is out of date.
///
/// # Errors
/// The project cannot be edited safely; the message says why and what would help.
pub fn plan_init(path: &Path, options: &Options) -> Result<Plan, Error> {
    let project = detect::project(path)?;
    let folder = project.root.join(FOLDER);
    if folder.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
        return Err(Error::Foreign { path: folder });
    }
    let before = State::read(&folder)?;
    let known = before.clone().unwrap_or_default();
    let mut state = State { stream: options.stream || known.stream, ..State::default() };
    let mut planned = Plan::of(&project.root);
    for file in vendor::project_files(state.stream) {
        plan_file(&mut planned, &mut state, &known, &folder, file)?;
    }
    let edited = plan_original(&mut planned, &mut state, &known, &folder, &project)?;
    let record = folder.join(RECORD);
    let old = plan::read_if_there(&record)?;
    planned.set(record, old, Some(state.to_text().into_bytes()));
    // Last: as long as this is not done, the project does not look into the folder.
    planned.set(project.cmakelists.clone(), Some(project.text), Some(edited));
    detect::allowed(planned, &project.cmakelists)
}

/// Plans one vendored file: created, brought up to date, or left as the user made it.
fn plan_file(
    planned: &mut Plan,
    state: &mut State,
    known: &State,
    folder: &Path,
    file: VendoredFile,
) -> Result<(), Error> {
    let path = folder.join(&file.name);
    let old = plan::read_if_there(&path)?;
    let print = print_of(&file.bytes);
    let now = old.as_deref().map(print_of);
    let written = known.files.get(&file.name);
    let is_ours = now.is_none() || now.as_ref() == written || now.as_ref() == Some(&print);
    if is_ours {
        state.files.insert(file.name, print);
        planned.set(path, old, Some(file.bytes));
        return Ok(());
    }
    let is_selection = file.name == SELECTION;
    if let (true, Some(kept)) = (is_selection, old) {
        selection::read(&kept).map_err(|NotUnderstood { line, said }| Error::Selection {
            path: path.clone(),
            line,
            said,
            help: selection::HELP,
        })?;
    }
    let Some(written) = written else {
        // A selection is the user's, whoever wrote it: one may be kept from an earlier time.
        return if is_selection { Ok(()) } else { Err(Error::Foreign { path }) };
    };
    if !is_selection {
        planned.notes.push(format!(
            "{FOLDER}/{} was changed by hand and is kept; remove it and run init again for the \
             current one",
            file.name
        ));
    }
    state.files.insert(file.name, written.clone());
    Ok(())
}

/// Plans the copy of the CMakeLists.txt as it was, and its print; gives the text with the block.
fn plan_original(
    planned: &mut Plan,
    state: &mut State,
    known: &State,
    folder: &Path,
    project: &Project,
) -> Result<Vec<u8>, Error> {
    let refuse = |error| Error::block(project.cmakelists.clone(), error, &vendor::block_line());
    let edited = block::set(&project.text, &vendor::block()).map_err(refuse)?;
    let path = folder.join(ORIGINAL);
    let old = plan::read_if_there(&path)?;
    if edited == project.text {
        // Nothing to edit: what was there before is remembered as it was.
        (state.edited, state.original) = (known.edited.clone(), known.original.clone());
        return Ok(edited);
    }
    let original = without_block(&project.text);
    state.edited = print_of(&edited);
    state.original = print_of(&original);
    planned.set(path, old, Some(original));
    Ok(edited)
}

fn without_block(text: &[u8]) -> Vec<u8> {
    match block::find(text) {
        Ok(Some(range)) => block::cut_out(text, range),
        _ => text.to_vec(),
    }
}
