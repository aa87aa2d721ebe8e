//! Pieces of notes, as they come between the records of many threads → whole notes.

use callsight_format::{Event, NoteAssembler, NotePiece};
use rustc_hash::FxHashMap;

/// Most threads whose notes are put together at once. Pieces of a note come close together, and
/// damaged files could name four billion threads.
const MAX_OPEN_NOTES: usize = 4096;

/// Notes of which some pieces have come. An assembler is 4.6 KiB, so only threads in the middle
/// of a note have one.
#[derive(Default)]
pub struct NoteBook {
    open: FxHashMap<u32, Box<NoteAssembler>>,
    spare: Option<Box<NoteAssembler>>,
    started: u64,
    completed: u64,
}

impl NoteBook {
    /// Notes of which a piece is missing.
    pub fn broken(&self) -> u64 {
        self.started - self.completed
    }

    /// Takes the next piece of a thread's note; shows `whole` code and bytes of the note that it
    /// completes.
    pub fn push(&mut self, event: &Event, piece: &NotePiece, whole: impl FnOnce(u64, &[u8])) {
        let open = self.open.remove(&event.tid);
        let mut assembler = match piece.index {
            0 => {
                self.started += 1;
                open.or_else(|| self.spare.take()).unwrap_or_default()
            }
            _ => match open {
                Some(assembler) => assembler,
                None => return,
            },
        };
        match assembler.push(piece) {
            Some((code, bytes)) => {
                self.completed += 1;
                whole(code, bytes);
                self.spare = Some(assembler);
            }
            None => {
                if self.open.len() >= MAX_OPEN_NOTES {
                    self.open.clear();
                }
                self.open.insert(event.tid, assembler);
            }
        }
    }
}
