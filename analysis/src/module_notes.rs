//! Notes of modules that come and go → the address space of each process.

use std::collections::BTreeMap;

use callsight_format::{ByteOrder, ModuleNote};

use crate::space::{AddressSpace, Mapping, ModuleEvent};

/// Notes of modules that are kept of one process at a time; half as many changes are followed.
const MOST_NOTES: usize = 1 << 16;

/// What was said of modules, by process.
#[derive(Default)]
pub struct ModuleNotes {
    by_process: Vec<Vec<(u64, ModuleEvent)>>,
    /// Of threads that had not said whose they are.
    orphans: Vec<(u64, ModuleEvent)>,
    /// Changes beyond those that are followed.
    pub ignored: u64,
}

impl ModuleNotes {
    /// Another process; they are numbered from 0.
    pub fn add_process(&mut self) {
        self.by_process.push(Vec::new());
    }

    /// A thread of `process`, where that is known, tells of a module that is mapped.
    pub fn loaded(&mut self, process: Option<usize>, ts: u64, note: &[u8]) {
        if let Some(note) = ModuleNote::parse(note) {
            let end = note.base.saturating_add(note.size);
            let path = unescaped(note.path);
            let mapping = Mapping::new(note.base, end, note.bias, note.build_id, &path);
            self.add(process, ts, ModuleEvent::Loaded(mapping));
        }
    }

    /// The same of one that is mapped no more.
    pub fn gone(&mut self, process: Option<usize>, ts: u64, note: &[u8]) {
        let word = |at| ByteOrder::Little.u64(note, at);
        if let (Some(base), Some(size)) = (word(0), word(8)) {
            let end = base.saturating_add(size);
            self.add(process, ts, ModuleEvent::Gone { base, end });
        }
    }

    fn add(&mut self, process: Option<usize>, ts: u64, event: ModuleEvent) {
        let events = match process {
            Some(process) => &mut self.by_process[process],
            None => &mut self.orphans,
        };
        if events.len() == MOST_NOTES {
            leave_out_repeated(events);
            if events.len() > MOST_NOTES / 2 {
                // These changes are all that is followed.
                self.ignored += (events.len() - MOST_NOTES / 2) as u64;
                events.truncate(MOST_NOTES / 2);
            }
        }
        events.push((ts, event));
    }

    /// The address space of each process, and last that of whoever did not say whose it is.
    pub fn finish(mut self) -> impl Iterator<Item = AddressSpace> {
        // With one process there is no doubt whose the orphans are.
        if let [only] = &mut self.by_process[..] {
            only.append(&mut self.orphans);
        }
        self.by_process.push(self.orphans);
        self.by_process.into_iter().map(AddressSpace::build)
    }
}

/// Leaves out notes that say again what was known by then: each segment says all modules. Files tell them in
/// no order of time: what is said again there may be a change between two others.
fn leave_out_repeated(events: &mut Vec<(u64, ModuleEvent)>) {
    events.sort_by_key(|(ts, _)| *ts);
    // By base; no two overlap.
    let mut known: BTreeMap<u64, Mapping> = BTreeMap::new();
    events.retain(|(_, event)| match event {
        ModuleEvent::Loaded(mapping) => {
            let is_change = known.get(&mapping.base) != Some(mapping);
            while is_change
                && let Some((&base, last)) = known.range(..mapping.end).next_back()
                && last.overlaps(mapping.base, mapping.end)
            {
                known.remove(&base);
            }
            if is_change {
                known.insert(mapping.base, mapping.clone());
            }
            is_change
        }
        ModuleEvent::Gone { base, .. } => {
            known.remove(base);
            true
        }
    });
}

/// A path as it is: `/proc/self/maps` writes a newline as `\012`, and nothing else in such a way.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let newline = rest.strip_prefix(br"\012");
        plain.push(if newline.is_some() { b'\n' } else { *first });
        rest = newline.unwrap_or(behind);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_a_later_place_in_the_file_makes_a_change_is_one() {
        let load = |ts| (ts, ModuleEvent::Loaded(Mapping::new(1000, 1100, 1000, b"", b"plugin")));
        let gone = |ts| (ts, ModuleEvent::Gone { base: 1000, end: 1100 });
        let mut notes = ModuleNotes::default();
        notes.add_process();
        // The third stands in a window that another thread had begun before.
        for (ts, event) in [load(10), load(30), gone(20)] {
            notes.add(Some(0), ts, event);
        }
        let spaces: Vec<_> = notes.finish().collect();
        let named = [15, 20, 25, 40].map(|ts| spaces[0].at(1050, ts).is_some());
        assert_eq!(named, [true; 4]);
    }

    #[test]
    fn what_every_segment_says_again_is_left_out_where_there_is_much_of_it() {
        let mut notes = ModuleNotes::default();
        notes.add_process();
        let mapping = Mapping::new(1000, 1100, 1000, b"", b"program");
        for ts in 0..3 * MOST_NOTES as u64 {
            notes.add(Some(0), ts, ModuleEvent::Loaded(mapping.clone()));
            assert!(notes.by_process[0].len() <= MOST_NOTES);
        }
        assert_eq!(notes.ignored, 0);
        for ts in 0..MOST_NOTES as u64 {
            let base = 1000 * (ts + 2);
            let other = Mapping::new(base, base + 10, base, b"", b"plugin");
            notes.add(Some(0), ts, ModuleEvent::Loaded(other));
        }
        assert!(notes.ignored > 0 && notes.by_process[0].len() <= MOST_NOTES);
    }

    #[test]
    fn a_module_that_comes_back_where_another_lay_across_it_is_a_change() {
        let load = |ts, base| {
            (ts, ModuleEvent::Loaded(Mapping::new(base, base + 100, base, b"", b"plugin")))
        };
        let mut notes = vec![load(10, 1000), load(20, 1050), load(30, 1050), load(40, 1000)];
        leave_out_repeated(&mut notes);
        assert_eq!(notes.iter().map(|(ts, _)| *ts).collect::<Vec<_>>(), [10, 20, 40]);
    }

    #[test]
    fn a_newline_in_a_path_is_a_newline_again() {
        assert_eq!(unescaped(br"/a\012b/c\012"), b"/a\nb/c\n");
        assert_eq!(unescaped(br"/a\01/b\"), br"/a\01/b\");
    }
}
