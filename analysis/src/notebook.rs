//! Pieces of notes, as they come between the records of many threads → whole notes.

use callsight_format::{Event, NoteAssembler, NotePiece};
use rustc_hash::FxHashMap;

/// Most threads whose notes are put together at once. Pieces of a note come close together, and
/// damaged files could name four billion threads.
const MAX_OPEN_NOTES: usize = 4096;

/// Notes of which some pieces have come. An assembler is 4.6 KiB, so only threads in the middle
/// of a note have one; two where a note of a module meets the head of a segment, which has others.
#[derive(Default)]
pub struct NoteBook {
    open: FxHashMap<(u32, u64), Box<NoteAssembler>>,
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
        let key = (event.tid, piece.code);
        let open = self.open.remove(&key);
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
                self.open.insert(key, assembler);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use callsight_format::{KIND_MARKER, NOTE_MODULE, NOTE_PROCESS, note_records, note_words};

    use super::*;

    /// The words of the records of a note of `bytes` bytes.
    fn words(code: u64, bytes: u8) -> Vec<(u64, u64)> {
        let byte = |at| if at == 0 { bytes } else { u8::from(at > 1) };
        (0..note_records(bytes.into())).map(|index| note_words(code, index, byte)).collect()
    }

    #[test]
    fn a_note_that_stands_among_the_pieces_of_another_breaks_neither() {
        let (outer, inner) = (words(NOTE_MODULE, 100), words(NOTE_PROCESS, 60));
        let (first, rest) = outer.split_at(2);
        let mut book = NoteBook::default();
        let mut whole = Vec::new();
        for (func, call_site) in [first, &inner, rest].concat() {
            let event = Event { tid: 7, kind: KIND_MARKER, func, call_site, ..Event::default() };
            let piece = NotePiece::of(&event).expect("a piece");
            book.push(&event, &piece, |code, bytes| whole.push((code, bytes.len())));
        }
        assert_eq!(whole, [(NOTE_PROCESS, 60), (NOTE_MODULE, 100)]);
        assert_eq!(book.broken(), 0);
    }
}
