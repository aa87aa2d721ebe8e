//! Return addresses → the functions they lie in, so that a call shows who really made it.
//!
//! Read from the symbol tables of the modules a process named, once a module. Where a file is
//! missing, stripped or of another build, nobody knows, and nothing is concluded.

use std::cell::RefCell;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::modules::{Finder, Module, ModuleKey, Source};
use crate::space::AddressSpace;
use crate::survey::Process;

/// Start and end of each function of a file, in order.
type Ranges = Rc<[(u64, u64)]>;

/// The function ranges of all files that were asked for.
pub struct CodeFiles<'f> {
    finder: &'f Finder,
    ranges: RefCell<FxHashMap<ModuleKey, Ranges>>,
}

impl<'f> CodeFiles<'f> {
    /// Nothing is read yet.
    pub fn new(finder: &'f Finder) -> CodeFiles<'f> {
        CodeFiles { finder, ranges: RefCell::default() }
    }

    fn of(&self, module: &Module) -> Ranges {
        if let Some(ranges) = self.ranges.borrow().get(&module.key) {
            return ranges.clone();
        }
        let ranges: Ranges = match self.finder.find(module) {
            Ok(Source::Binary(binary)) => binary.functions().into(),
            // A file of another build ends the report later, where names are looked for.
            _ => Rc::new([]),
        };
        self.ranges.borrow_mut().insert(module.key.clone(), ranges.clone());
        ranges
    }
}

/// The code of one process.
pub struct CodeMap<'s> {
    process: &'s Process,
    files: &'s CodeFiles<'s>,
    /// Run-time address of the function around each return address; 0 where unknown.
    callers: FxHashMap<u64, u64>,
}

impl<'s> CodeMap<'s> {
    /// The code of `process`.
    pub fn new(process: &'s Process, files: &'s CodeFiles<'s>) -> CodeMap<'s> {
        CodeMap { process, files, callers: FxHashMap::default() }
    }

    /// The modules of the process.
    pub fn space(&self) -> &'s AddressSpace {
        &self.process.space
    }

    /// Run-time address of the function that makes the call which returns to `site`; 0 where
    /// unknown.
    pub fn caller(&mut self, site: u64) -> u64 {
        if let Some(caller) = self.callers.get(&site) {
            return *caller;
        }
        let caller = self.look_up(site).unwrap_or(0);
        self.callers.insert(site, caller);
        caller
    }

    fn look_up(&self, site: u64) -> Option<u64> {
        let index = self.space().only(site).filter(|_| self.process.modules_known)?;
        let mapping = &self.space().mappings()[index];
        let ranges = self.files.of(&Module::of(mapping, self.process)?);
        // A call may be the last instruction of its function.
        let address = site.wrapping_sub(mapping.bias).checked_sub(1)?;
        let behind = ranges.partition_point(|(start, _)| *start <= address);
        let (start, end) = *ranges.get(behind.checked_sub(1)?)?;
        (address < end).then(|| start.wrapping_add(mapping.bias))
    }
}
