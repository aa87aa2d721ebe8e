//! Notes of modules that come and go → the address space of each process.

use callsight_format::{ByteOrder, ModuleNote};
use rustc_hash::FxHashMap;

use crate::space::{AddressSpace, Mapping, ModuleEvent};

/// Changes of modules that are followed in one process. Repeated notes are no changes.
const MOST_CHANGES: usize = 1 << 16;

/// What was said of modules, by process.
#[derive(Default)]
pub struct ModuleNotes {
    by_process: Vec<Vec<(u64, ModuleEvent)>>,
    /// Of threads that had not said whose they are.
    orphans: Vec<(u64, ModuleEvent)>,
    /// What was last said of the module at an address: each segment says all of them again.
    told: FxHashMap<(usize, u64), Mapping>,
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
        if process.is_some_and(|process| self.is_repeated(process, &event)) {
            return;
        }
        let events = match process {
            Some(process) => &mut self.by_process[process],
            None => &mut self.orphans,
        };
        if events.len() >= MOST_CHANGES {
            self.ignored += 1;
            return;
        }
        events.push((ts, event));
    }

    fn is_repeated(&mut self, process: usize, event: &ModuleEvent) -> bool {
        match event {
            ModuleEvent::Loaded(mapping) => {
                let before = self.told.insert((process, mapping.base), mapping.clone());
                before.as_ref() == Some(mapping)
            }
            ModuleEvent::Gone { base, .. } => {
                self.told.remove(&(process, *base));
                false
            }
        }
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
    use super::unescaped;

    #[test]
    fn a_newline_in_a_path_is_a_newline_again() {
        assert_eq!(unescaped(br"/a\012b/c\012"), b"/a\nb/c\n");
        assert_eq!(unescaped(br"/a\01/b\"), br"/a\01/b\");
    }
}
