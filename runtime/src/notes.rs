//! Notes of this process as records: who it is, its modules, its threads' names and losses.
//!
//! Each function gives the `(func, call_site)` words of one record after the other to `put`,
//! which stores them wherever the sink wants them. `put` answers whether there was room; the
//! rest of a note is not offered after a no.

use callsight_format::{
    EVENT_BYTES, LossNote, ModuleNote, NOTE_LOSS, NOTE_MAX_BYTES, NOTE_MODULE, NOTE_MODULE_GONE,
    NOTE_PADDING, NOTE_PAUSE, NOTE_PIECE_BYTES, NOTE_PROCESS, NOTE_SEGMENT, NOTE_STOP,
    NOTE_THREAD_NAME, PAGE_HEADER_BYTES, PROCESS_AGAIN, PROCESS_NOTE_BYTES, ProcessNote,
    StopReason, note_records, note_words,
};

use crate::bytes::Shared;
use crate::modules::{self, Change, Module};
use crate::{filter, process, sys};

/// Stores one record of a note; `false` when there is no room.
pub type Put<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// A note of up to three parts, one behind the other.
fn write(code: u64, parts: [&[u8]; 3], put: Put) -> bool {
    let [first, second, third] = parts;
    let room = NOTE_MAX_BYTES - first.len() - second.len();
    let third = third.get(..room).unwrap_or(third);
    let bytes = first.len() + second.len() + third.len();
    let length = (bytes as u16).to_le_bytes();
    let byte = |at: usize| -> u8 {
        let parts = [&length[..], first, second, third];
        let mut at = at;
        for part in parts {
            if let Some(&byte) = part.get(at) {
                return byte;
            }
            at -= part.len();
        }
        0
    };
    (0..note_records(bytes)).all(|index| {
        let (func, site) = note_words(code, index, byte);
        put(func, site)
    })
}

/// Whether a process note begins a thread's life.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It does.
    No,
    /// It stands at the head of a segment file, so that this can be read alone.
    Yes,
}

/// Longest path in the note that each thread starts with: with the other records that a window
/// may begin with, and an event, it fits into the smallest page (230 bytes there).
fn thread_exe_bytes() -> usize {
    const OTHERS: usize = 2 * LOSS_RECORDS + PAUSE_RECORDS + 2;
    let slots = (process::window_mask() + 1 - PAGE_HEADER_BYTES) / EVENT_BYTES;
    slots.saturating_sub(OTHERS) * NOTE_PIECE_BYTES - PROCESS_NOTE_BYTES - 2
}

/// How many records the process note of a thread takes.
pub fn process_records() -> usize {
    note_records(PROCESS_NOTE_BYTES + process::identity().exe().len().min(thread_exe_bytes()))
}

/// Recording was paused before this.
pub fn pause(put: Put) -> bool {
    write(NOTE_PAUSE, [&[], &[], &[]], put)
}

/// How many records the note of a pause takes.
pub const PAUSE_RECORDS: usize = note_records(0);

/// Which process this is.
pub fn process(again: Again, put: Put) -> bool {
    let me = process::identity();
    let repeated = if again == Again::Yes { PROCESS_AGAIN } else { 0 };
    let limit = if again == Again::Yes { usize::MAX } else { thread_exe_bytes() };
    let note = ProcessNote {
        pid: me.pid,
        parent_pid: me.parent_pid,
        start: me.start,
        flags: me.flags | repeated,
        exe: &[],
    };
    let exe = me.exe().get(..limit).unwrap_or(me.exe());
    write(NOTE_PROCESS, [&note.head(), exe, &[]], put)
}

/// The calling thread's name.
pub fn thread_name(put: Put) -> bool {
    let name = sys::thread_name();
    if filter::forbids(filter::NAME) {
        return true;
    }
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    write(NOTE_THREAD_NAME, [name.get(..len).unwrap_or(&[]), &[], &[]], put)
}

/// The modules mapped now, all or what changed since the last look. `false` when not all fit;
/// what was not told then is told with the next `all`.
pub fn modules(all: bool, put: Put) -> bool {
    if filter::forbids(filter::LOOK) {
        return !all || kept_modules(put);
    }
    let mut fitted = true;
    modules::scan(all, |change| {
        fitted = fitted && tell(&change, put);
    });
    if modules::are_unreadable() {
        return stop(StopReason::NoModules, MAPS_UNREADABLE, put);
    }
    fitted
}

/// All modules, at the head of a segment; where somebody else is about to tell some, the next hook that can
/// tells all. `false` when not all fit.
pub fn modules_at_head(put: Put) -> bool {
    if filter::forbids(filter::LOOK) {
        return kept_modules(put);
    }
    let mut fitted = true;
    let told = modules::scan_unless_busy(|change| {
        fitted = fitted && tell(&change, put);
    });
    if !told {
        process::give_back_duty_to_tell_modules();
    } else if modules::are_unreadable() {
        return stop(StopReason::NoModules, MAPS_UNREADABLE, put);
    }
    fitted
}

const MAPS_UNREADABLE: &[u8] = b"/proc/self/maps cannot be read";

/// Notes of the modules, each behind its length, for when `/proc` may not be looked at any more. The
/// modules themselves may be gone by then.
struct KeptModules {
    bytes: [u8; KEPT_BYTES],
    len: usize,
}

const KEPT_BYTES: usize = 64 << 10;
static KEPT: Shared<KeptModules> = Shared::new(KeptModules { bytes: [0; KEPT_BYTES], len: 0 });

/// Keeps the notes of what is mapped now; what of it has no room has no names then. Called before the
/// program sets a filter.
pub fn keep_modules() {
    if filter::forbids(filter::LOOK) {
        return;
    }
    // SAFETY: read where a filter forbids to look, which keeps this from being written again; two
    // threads that set the first one at once would be odd, and cost names.
    let KeptModules { bytes, len } = unsafe { &mut *KEPT.get() };
    *len = 0;
    modules::scan(true, |change| {
        let Change::Loaded(module, path) = change else { return };
        let note = note_of(module);
        let parts = [&note.head()[..], note.build_id, path];
        let length = parts.iter().map(|part| part.len()).sum::<usize>().min(NOTE_MAX_BYTES);
        let Some(place) = bytes.get_mut(*len..*len + 2 + length) else { return };
        let content = parts.into_iter().flatten();
        let content = (length as u16).to_le_bytes().into_iter().chain(content.copied());
        place.iter_mut().zip(content).for_each(|(place, byte)| *place = byte);
        *len += 2 + length;
    });
}

fn kept_modules(put: Put) -> bool {
    // SAFETY: as above.
    let KeptModules { bytes, len } = unsafe { &*KEPT.get() };
    let mut rest = bytes.get(..*len).unwrap_or(&[]);
    while let [low, high, behind @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let (note, next) = behind.split_at(length);
        if !write(NOTE_MODULE, [note, &[], &[]], put) {
            return false;
        }
        rest = next;
    }
    true
}

fn note_of(module: &Module) -> ModuleNote<'_> {
    ModuleNote {
        base: module.base as u64,
        size: module.size as u64,
        bias: module.bias as u64,
        build_id: module.build_id(),
        path: &[],
    }
}

/// What a change of the module map looks like as records.
fn tell(change: &Change, put: Put) -> bool {
    match change {
        Change::Loaded(module, path) => {
            let note = note_of(module);
            write(NOTE_MODULE, [&note.head(), note.build_id, path], put)
        }
        Change::Gone(module) => {
            let (base, size) = (module.base as u64, module.size as u64);
            write(NOTE_MODULE_GONE, [&base.to_le_bytes(), &size.to_le_bytes(), &[]], put)
        }
    }
}

/// The load bias of the executable, for headers that have room for one module only.
pub fn load_bias() -> u64 {
    modules::scan(true, |_| {}).map_or(0, |module: Module| module.bias as u64)
}

/// What the segment before this one was: its size.
pub fn segment(bytes_before: usize, put: Put) -> bool {
    write(NOTE_SEGMENT, [&(bytes_before as u64).to_le_bytes(), &[], &[]], put)
}

/// Why recording ended, or is not as asked for.
pub fn stop(reason: StopReason, text: &[u8], put: Put) -> bool {
    write(NOTE_STOP, [&(reason as u32).to_le_bytes(), text, &[]], put)
}

/// How many records [`loss`] takes.
pub const LOSS_RECORDS: usize = note_records(callsight_format::LOSS_NOTE_BYTES);

/// Events of this thread that are missing.
pub fn loss(note: &LossNote, put: Put) -> bool {
    write(NOTE_LOSS, [&note.to_bytes(), &[], &[]], put)
}

/// Fills the places of a loss note, perhaps with none.
pub fn loss_or_padding(note: Option<&LossNote>, put: Put) {
    match note {
        Some(note) => loss(note, put),
        None => (0..LOSS_RECORDS).all(|_| put(PADDING.0, PADDING.1)),
    };
}

/// `call_site` of the first record of a loss note: it alone holds the count, so that a count can
/// be raised in place with one store.
pub fn loss_count_word(note: &LossNote) -> u64 {
    let bytes = note.to_bytes();
    note_words(NOTE_LOSS, 0, |at| match at {
        0 => bytes.len() as u8,
        1 => 0,
        at => bytes.get(at - 2).copied().unwrap_or(0),
    })
    .1
}

/// What [`loss_count_word`] grows by with each event.
pub const ONE_LOST: u64 = 1 << 16;

/// The words of a record that fills an unused slot.
pub const PADDING: (u64, u64) = (NOTE_PADDING, 0);
