//! Pages of a thread → what its own notes in them say of it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use callsight_format::{
    ByteOrder, Cause, LossNote, NOTE_LOSS, NOTE_PROCESS, NOTE_STOP, NoteAssembler, NotePiece,
    PROCESS_FORKED, ProcessNote, StopReason,
};

use super::pages::Page;
use crate::losses::Losses;

/// What a process runs, and where it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    /// Path of the executable.
    pub exe: Vec<u8>,
    pub parent_pid: u32,
    pub is_forked: bool,
}

/// What notes say.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnNotes {
    /// What its process runs, and when that was said.
    pub program: Option<(u64, Program)>,
    /// Whether its process ended its recording in order.
    pub has_end: bool,
    /// Losses that the ring counts, too. What a thread did before it was recorded is in no count of
    /// the ring, and told without a time.
    pub losses: Losses,
}

impl OwnNotes {
    /// Reads those in `pages`, which are of one thread and in order.
    pub fn of<'p>(pages: impl IntoIterator<Item = &'p Page>) -> OwnNotes {
        let (mut notes, mut assembler) = (OwnNotes::default(), NoteAssembler::default());
        for event in pages.into_iter().flat_map(Page::records) {
            let Some(piece) = NotePiece::of(event) else { continue };
            if let Some((code, note)) = assembler.push(&piece) {
                notes.take(event.ts, code, note);
            }
        }
        notes
    }

    fn take(&mut self, ts: u64, code: u64, note: &[u8]) {
        match code {
            NOTE_PROCESS => {
                let program = ProcessNote::parse(note).map(|note| (ts, Program::of(&note)));
                self.program = program.or(self.program.take());
            }
            NOTE_STOP => {
                let reason = ByteOrder::Little.u32(note, 0).and_then(StopReason::from_number);
                self.has_end |= reason == Some(StopReason::End);
            }
            NOTE_LOSS => {
                let timed = LossNote::parse(note).filter(|loss| (loss.first | loss.last) != 0);
                if let Some(loss) = timed {
                    let cause = Cause::from_number(loss.cause).unwrap_or(Cause::Full);
                    self.losses.add_told(cause, loss.events.cast_signed());
                }
            }
            _ => {}
        }
    }
}

impl Program {
    fn of(note: &ProcessNote<'_>) -> Program {
        let is_forked = note.flags & PROCESS_FORKED != 0;
        Program { exe: note.exe.to_vec(), parent_pid: note.parent_pid, is_forked }
    }
}

/// Whether a note names the executable that the kernel shows by now: it may be removed meanwhile, and
/// where a page has no room for a long path its beginning is noted.
pub(super) fn is_of(noted: &[u8], shown: &OsStr) -> bool {
    /// A page of any ring has room for so many.
    const NOTED_BYTES: usize = 200;
    match shown.as_bytes().strip_prefix(noted) {
        Some(rest) => rest.is_empty() || rest == b" (deleted)" || noted.len() >= NOTED_BYTES,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_known_by_its_note() {
        let is = |noted: &str, shown: &str| is_of(noted.as_bytes(), shown.as_ref());
        assert!(is("/bin/a", "/bin/a") && is("/bin/a", "/bin/a (deleted)"));
        assert!(!is("/bin/a", "/bin/ab") && !is("/bin/ab", "/bin/a"));
        let long = "/x".repeat(150);
        assert!(is(&long[..230], &long) && !is(&long[..230], &long[1..]));
    }
}
