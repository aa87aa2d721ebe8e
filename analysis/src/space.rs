//! Module notes of one process → which module an address belonged to, at any time.
//!
//! A plugin may be mapped where another one was before. A load is noticed late, so a module holds
//! from the moment its addresses were last given up; one that is never noticed has no names, and not those
//! of the one before. Knows nothing of ELF files.

/// A module at some addresses for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Lowest address.
    pub base: u64,
    /// Address behind the highest one.
    pub end: u64,
    /// What to subtract from a run-time address to get the address in the ELF file.
    pub bias: u64,
    /// GNU build-id; may be empty.
    pub build_id: Vec<u8>,
    /// Path of the file; may be empty.
    pub path: Vec<u8>,
    from: u64,
    to: u64,
}

impl Mapping {
    /// A mapping over `base..end` without a time.
    pub fn new(base: u64, end: u64, bias: u64, build_id: &[u8], path: &[u8]) -> Mapping {
        let (build_id, path) = (build_id.to_vec(), path.to_vec());
        Mapping { base, end, bias, build_id, path, from: 0, to: u64::MAX }
    }

    /// Whether any address of `base..end` is in it.
    pub fn overlaps(&self, base: u64, end: u64) -> bool {
        self.base < end && base < self.end
    }

    fn same_module(&self, other: &Mapping) -> bool {
        let what = |mapping: &Mapping| (mapping.base, mapping.end, mapping.bias);
        what(self) == what(other) && self.build_id == other.build_id && self.path == other.path
    }
}

/// What a process said about its modules, and when.
#[derive(Clone, Debug)]
pub enum ModuleEvent {
    /// A module is mapped.
    Loaded(Mapping),
    /// Nothing is mapped at `base..end` any more.
    Gone {
        /// Lowest address.
        base: u64,
        /// Address behind the highest one.
        end: u64,
    },
}

/// The modules of one process, over time.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: Vec<Mapping>,
    replaced: u64,
}

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// No module, ever.
    Nothing,
    /// This one, whenever.
    Always(usize),
    /// One or another, or none: ask [`AddressSpace::at`].
    ByTime,
}

impl AddressSpace {
    /// Puts events, each with its time and in any order, together.
    pub fn build(mut events: Vec<(u64, ModuleEvent)>) -> AddressSpace {
        events.sort_by_key(|(ts, _)| *ts);
        let mut builder = Builder::default();
        for (ts, event) in events {
            match event {
                ModuleEvent::Gone { base, end } => {
                    builder.close(base, end, ts);
                    builder.gone.push((ts, base, end));
                }
                ModuleEvent::Loaded(mapping) => builder.load(mapping, ts),
            }
        }
        AddressSpace { mappings: builder.mappings, replaced: builder.replaced }
    }

    /// A space in which everything belongs to one module.
    pub fn whole(bias: u64, path: &[u8]) -> AddressSpace {
        AddressSpace { mappings: vec![Mapping::new(0, u64::MAX, bias, b"", path)], replaced: 0 }
    }

    /// Whether no module is known.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Modules that came where another was that had not been seen to go: what was called there shortly before may
    /// have been either's.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// All mappings; the numbers of [`AddressSpace::find`] and [`AddressSpace::at`] count these.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// What lies at `address`.
    pub fn find(&self, address: u64) -> Hit {
        let mut holders = self.holders(address);
        match (holders.next(), holders.next()) {
            (None, _) => Hit::Nothing,
            (Some(index), None) if self.interval(index) == (0, u64::MAX) => Hit::Always(index),
            _ => Hit::ByTime,
        }
    }

    /// The one mapping that ever held `address`, where others never did.
    pub fn only(&self, address: u64) -> Option<usize> {
        let mut holders = self.holders(address);
        holders.next().filter(|_| holders.next().is_none())
    }

    /// The mapping that held `address` at `ts`.
    pub fn at(&self, address: u64, ts: u64) -> Option<usize> {
        self.holders(address).find(|index| {
            let (from, to) = self.interval(*index);
            (from..to).contains(&ts)
        })
    }

    /// From when to when a mapping held; the end is behind the last moment.
    pub fn interval(&self, index: usize) -> (u64, u64) {
        self.mappings.get(index).map_or((0, u64::MAX), |mapping| (mapping.from, mapping.to))
    }

    fn holders(&self, address: u64) -> impl Iterator<Item = usize> + '_ {
        let holds = move |mapping: &Mapping| mapping.base <= address && address < mapping.end;
        let indexed = self.mappings.iter().enumerate();
        indexed.filter(move |(_, mapping)| holds(mapping)).map(|(index, _)| index)
    }
}

#[derive(Default)]
struct Builder {
    mappings: Vec<Mapping>,
    /// Numbers of those that hold now.
    open: Vec<usize>,
    /// `(time, base, end)` of what was given up.
    gone: Vec<(u64, u64, u64)>,
    replaced: u64,
}

impl Builder {
    fn load(&mut self, mut mapping: Mapping, ts: u64) {
        let known = self.open.iter().any(|open| self.mappings[*open].same_module(&mapping));
        if mapping.base >= mapping.end || known {
            return;
        }
        // Another module still open there was given up unnoticed, at the latest now.
        let replaced = self.close(mapping.base, mapping.end, ts);
        self.replaced += u64::from(replaced);
        let last_gone = self.gone.iter().rev().find(|(_, base, end)| mapping.overlaps(*base, *end));
        mapping.from = match (replaced, last_gone) {
            (true, _) => ts,
            (false, Some((gone_at, _, _))) => *gone_at,
            (false, None) => 0,
        };
        self.open.push(self.mappings.len());
        self.mappings.push(mapping);
    }

    /// Ends what is open in `base..end`; says whether anything was.
    fn close(&mut self, base: u64, end: u64, ts: u64) -> bool {
        let before = self.open.len();
        let mappings = &mut self.mappings;
        self.open.retain(|open| {
            let overlaps = mappings[*open].overlaps(base, end);
            if overlaps {
                mappings[*open].to = ts;
            }
            !overlaps
        });
        self.open.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(ts: u64, name: &str, base: u64) -> (u64, ModuleEvent) {
        let mapping = Mapping::new(base, base + 100, base, b"", name.as_bytes());
        (ts, ModuleEvent::Loaded(mapping))
    }

    fn gone(ts: u64, base: u64) -> (u64, ModuleEvent) {
        (ts, ModuleEvent::Gone { base, end: base + 100 })
    }

    /// The module at address 1050 at each of `times`.
    fn modules(events: Vec<(u64, ModuleEvent)>, times: &[u64]) -> String {
        let space = AddressSpace::build(events);
        let name = |ts: &u64| match space.find(1050) {
            Hit::Nothing => "-".to_string(),
            Hit::Always(index) => String::from_utf8_lossy(&space.mappings[index].path).into_owned(),
            Hit::ByTime => match space.at(1050, *ts) {
                Some(index) => String::from_utf8_lossy(&space.mappings[index].path).into_owned(),
                None => "?".to_string(),
            },
        };
        times.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_module_holds_for_calls_before_it_was_noticed() {
        assert_eq!(modules(vec![load(50, "app", 1000)], &[1, 49, 50, 99]), "app app app app");
    }

    #[test]
    fn a_plugin_in_the_place_of_another_holds_from_the_moment_that_one_went() {
        let events = vec![load(10, "pa", 1000), gone(20, 1000), load(30, "pb", 1000)];
        assert_eq!(modules(events.clone(), &[5, 19, 20, 25, 40]), "pa pa pb pb pb");
        assert_eq!(AddressSpace::build(events).replaced(), 0);
    }

    #[test]
    fn what_came_behind_a_plugin_unnoticed_has_not_its_names() {
        let events = vec![load(10, "pa", 1000), gone(20, 1000)];
        assert_eq!(modules(events, &[5, 19, 20, 25]), "pa pa ? ?");
        let events =
            vec![load(10, "pa", 1000), gone(20, 1000), load(30, "pb", 1000), gone(40, 1000)];
        assert_eq!(modules(events, &[19, 20, 39, 40]), "pa pb pb ?");
    }

    #[test]
    fn a_plugin_that_replaces_another_unnoticed_holds_from_its_note() {
        let events = vec![load(10, "pa", 1000), load(30, "pb", 1020)];
        assert_eq!(modules(events.clone(), &[5, 29, 30]), "pa pa pb");
        assert_eq!(AddressSpace::build(events).replaced(), 1);
    }

    #[test]
    fn a_note_repeated_in_every_segment_is_one_module() {
        let events = vec![load(10, "app", 1000), load(20, "app", 1000), load(30, "app", 1000)];
        assert_eq!(AddressSpace::build(events).mappings().len(), 1);
    }

    #[test]
    fn an_address_of_no_module_is_nobodys() {
        assert_eq!(modules(vec![load(10, "app", 5000)], &[20]), "-");
    }
}
