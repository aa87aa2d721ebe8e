//! Slots of a group in which no record was finished when it was first read.
//!
//! A program that still runs goes on storing there, and both passes have to see the same: what the
//! second one finds there beyond that is blanked. What comes behind the end that a file had then
//! is never read.

use callsight_format::EVENT_BYTES;

/// Stretches of slots that are remembered: a file with more is damaged, not written to.
const MOST_STRETCHES: usize = 1 << 20;

/// See the file's first lines.
#[derive(Clone, Debug, Default)]
pub struct Unfinished {
    /// In the order they were read.
    stretches: Vec<Stretch>,
}

/// Slots behind one another: from a byte of the file of that number to another one.
#[derive(Clone, Debug)]
struct Stretch {
    file: usize,
    from: u64,
    to: u64,
}

impl Unfinished {
    /// Adds the slot at byte `at` of a file. Those before it were added before.
    pub fn add(&mut self, file: usize, at: u64) {
        let to = at + EVENT_BYTES as u64;
        let has_room = self.stretches.len() < MOST_STRETCHES;
        match self.stretches.last_mut() {
            Some(last) if (last.file, last.to) == (file, at) => last.to = to,
            _ if has_room => self.stretches.push(Stretch { file, from: at, to }),
            _ => {}
        }
    }

    /// Blanks what was finished since in `slots`, which stand at `offset` of that file.
    pub fn blank(&self, file: usize, offset: u64, slots: &mut [u8]) {
        let end = offset + slots.len() as u64;
        let first = self.stretches.partition_point(|old| (old.file, old.to) <= (file, offset));
        let here = |old: &&Stretch| old.file == file && old.from < end;
        for old in self.stretches[first..].iter().take_while(here) {
            let from = (old.from.max(offset) - offset) as usize;
            let to = (old.to.min(end) - offset) as usize;
            let slots = slots[from..to].chunks_exact_mut(EVENT_BYTES);
            // The first word is stored last.
            slots.filter(|slot| slot[..8] != [0; 8]).for_each(|slot| slot.fill(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use callsight_format::{
        ByteOrder, Event, FILE_HEADER_BYTES, FILE_HEADER_MAPPED_BYTES, FileHeader, KIND_ENTER,
        KIND_EXIT, KIND_MARKER, NOTE_PROCESS, Origin, ProcessNote, note_records, note_words,
    };

    use super::*;
    use crate::capture::Capture;
    use crate::code::CodeFiles;
    use crate::matcher::match_calls;
    use crate::modules::Finder;
    use crate::survey::Survey;
    use crate::tables::Detail;

    /// A thread that begins and calls a function.
    fn thread(tid: u32) -> Vec<u8> {
        let ts = 1000 * u64::from(tid);
        let note = ProcessNote { pid: 7, parent_pid: 1, start: 5, flags: 0, exe: b"" };
        let note = [&note.head()[..], b"/bin/app"].concat();
        let len = (note.len() as u16).to_le_bytes();
        let whole = [&len[..], &note].concat();
        let pieces = (0..note_records(note.len())).map(|index| {
            let (func, call_site) =
                note_words(NOTE_PROCESS, index, |at| whole.get(at).copied().unwrap_or(0));
            Event { ts, func, call_site, tid, kind: KIND_MARKER, ..Event::default() }
        });
        let calls = [KIND_ENTER, KIND_EXIT].map(|kind| {
            let ts = ts + 10 + u64::from(kind);
            Event { ts, func: 16, tid, kind, ..Event::default() }
        });
        pieces.chain(calls).flat_map(|event| event.to_bytes(ByteOrder::Little)).collect()
    }

    /// A file of that header size, and `records` at these bytes behind the header.
    fn file(header_bytes: usize, bytes: usize, records: &[(usize, Vec<u8>)]) -> Vec<u8> {
        let mut header = FileHeader::new(Origin { t0_ns: 5, ..Origin::default() }, 7, 0);
        header.header_size = header_bytes as u32;
        let mut file = header.to_bytes(ByteOrder::Little).to_vec();
        file.resize(header_bytes + bytes, 0);
        for (at, records) in records {
            file[header_bytes + at..][..records.len()].copy_from_slice(records);
        }
        file
    }

    /// What is found in a file that is written to between the two passes: the process of each life,
    /// the events that the matching saw, and the records that were accounted for.
    fn found(name: &str, before: &[u8], after: &[u8]) -> (Vec<u32>, u64, u64) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(name);
        fs::write(&path, before).expect("write a capture");
        let capture = Capture::open(std::slice::from_ref(&path)).expect("a capture");
        let survey = Survey::of(&capture.groups[0]).expect("a survey");
        fs::write(&path, after).expect("write more of it");
        let finder = Finder::new(&[]).expect("a finder");
        let files = CodeFiles::new(&finder);
        let matched = match_calls(&capture.groups[0], &survey, &files, Detail::default());
        let lives = matched.expect("calls").lives;
        let starts = lives.iter().map(|life| survey.processes[life.process].start as u32);
        let events = lives.iter().map(|life| life.events).sum();
        (starts.collect(), events, survey.account.delivered)
    }

    #[test]
    fn threads_that_begin_between_the_passes_are_in_neither() {
        let (mapped, kept) = (FILE_HEADER_MAPPED_BYTES, "trace.7.7.0.bin");
        let window = 16 << 10;
        let len = thread(7).len();
        let before = file(mapped, 2 * window, &[(0, thread(7))]);
        let grown = |at: usize, bytes| file(mapped, bytes, &[(0, thread(7)), (at, thread(8))]);
        let alone = found(kept, &before, &before);
        assert_eq!((&alone.0[..], alone.1), (&[5][..], 2));
        // Into the same window, into another one, into one that was made since.
        for (at, windows) in [(len, 2), (window, 2), (2 * window, 4)] {
            let after = grown(at, windows * window);
            assert_eq!(found(kept, &before, &after), alone);
        }
    }

    #[test]
    fn what_a_server_stores_between_the_passes_is_in_neither() {
        let stored =
            |records: &[u8]| file(FILE_HEADER_BYTES, records.len(), &[(0, records.to_vec())]);
        let before = stored(&thread(7));
        let after = stored(&[thread(7), thread(8)].concat());
        let name = "trace.stream.1.0.bin";
        assert_eq!(found(name, &before, &after), found(name, &before, &before));
    }

    #[test]
    fn a_slot_that_is_torn_is_blanked_only_when_it_is_finished() {
        let mut unfinished = Unfinished::default();
        [32, 64, 128].into_iter().for_each(|at| unfinished.add(1, at));
        let of = |file: usize, first_word: u8| {
            let mut slots = vec![7; 160];
            slots.chunks_exact_mut(32).for_each(|slot| slot[..8].fill(first_word));
            unfinished.blank(file, 32, &mut slots);
            slots.chunks_exact(32).map(|slot| slot[31] == 0).collect::<Vec<_>>()
        };
        assert_eq!(of(1, 1), [true, true, false, true, false]);
        let others = [of(1, 0), of(0, 1), of(2, 1)];
        assert_eq!(others, [(); 3].map(|()| vec![false; 5]));
    }
}
