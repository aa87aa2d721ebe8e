//! Captures made by hand: events written as words → files → a report, written as words again.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use callsight_analysis::{Error, Options, Report, analyze};
use callsight_format::{
    ByteOrder, Cause, Event, FILE_HEADER_MAPPED_BYTES, FILE_MAGIC, FLAG_BIG_ENDIAN, FLAG_TICKS,
    FileHeader, KIND_ENTER, KIND_EXIT, KIND_MARKER, LossNote, ModuleNote, NOTE_LOSS, NOTE_MODULE,
    NOTE_MODULE_GONE, NOTE_PAUSE, NOTE_PROCESS, NOTE_STOP, NOTE_THREAD_NAME, Origin, PROCESS_AGAIN,
    PROCESS_FORKED, ProcessNote, StopReason, note_records, note_words,
};
use tempfile::TempDir;

/// Records of any number of threads, in the order they stand in a file.
#[derive(Clone, Default)]
pub struct Records {
    /// The records so far.
    pub events: Vec<Event>,
    /// Time of the last one, less 1000.
    pub ts: u64,
}

impl Records {
    /// Records of thread `tid` as `script` says: `enter a`, `exit a`, `wait 500`; functions are
    /// letters, at the address of the letter times 16, or `@` and an address; ` from 77` adds the
    /// return address, ` sp 1600` behind it the stack pointer.
    pub fn thread(mut self, tid: u32, script: &str) -> Records {
        for step in script.split(", ") {
            let (step, stack_pointer) = step.split_once(" sp ").unwrap_or((step, "0"));
            let (step, site) = step.split_once(" from ").unwrap_or((step, "0"));
            let (verb, what) = step.split_once(' ').expect("a verb and a word");
            match verb {
                "enter" => {
                    self.push(tid, KIND_ENTER, address(what));
                    let event = self.events.last_mut().expect("one");
                    event.call_site = site.parse().expect("a number");
                    let stack_pointer: u32 = stack_pointer.parse().expect("a number");
                    event.frame.copy_from_slice(&(stack_pointer / 16).to_le_bytes()[..3]);
                }
                "exit" => self.push(tid, KIND_EXIT, address(what)),
                "wait" => self.ts += what.parse::<u64>().expect("a number"),
                other => panic!("{other} is no verb"),
            }
        }
        self
    }

    fn push(&mut self, tid: u32, kind: u8, func: u64) {
        self.ts += 10;
        let event = Event { ts: 1000 + self.ts, func, tid, kind, ..Event::default() };
        self.events.push(event);
    }

    /// A marker of version 2.
    pub fn mark(mut self, tid: u32, code: u64, payload: u64) -> Records {
        self.push(tid, KIND_MARKER, code);
        self.events.last_mut().expect("one").call_site = payload;
        self
    }

    /// A note of thread `tid`.
    pub fn note(mut self, tid: u32, code: u64, note: &[u8]) -> Records {
        let len = (note.len() as u16).to_le_bytes();
        for index in 0..note_records(note.len()) {
            let (func, call_site) = note_words(code, index, |at| match at {
                0 | 1 => len[at],
                _ => note.get(at - 2).copied().unwrap_or(0),
            });
            self.push(tid, KIND_MARKER, func);
            self.events.last_mut().expect("one").call_site = call_site;
        }
        self
    }

    /// Thread `tid` begins in process `pid`.
    pub fn process(self, tid: u32, pid: u32, exe: &str) -> Records {
        self.process_of(tid, pid, 1, exe, 0)
    }

    /// The same after a fork from `parent`.
    pub fn forked(self, tid: u32, pid: u32, exe: &str) -> Records {
        self.process_of(tid, pid, 1, exe, PROCESS_FORKED)
    }

    /// The main thread of `pid` begins, which process `parent` has forked.
    pub fn child_of(self, parent: u32, pid: u32, exe: &str) -> Records {
        self.process_of(pid, pid, parent, exe, PROCESS_FORKED)
    }

    /// The opener of a segment file, thread `tid`, says whose it is.
    pub fn again(self, tid: u32, pid: u32, exe: &str) -> Records {
        self.process_of(tid, pid, 1, exe, PROCESS_AGAIN)
    }

    fn process_of(self, tid: u32, pid: u32, parent_pid: u32, exe: &str, flags: u32) -> Records {
        let note = ProcessNote { pid, parent_pid, start: u64::from(pid) + 7, flags, exe: b"" };
        self.note(tid, NOTE_PROCESS, &[&note.head()[..], exe.as_bytes()].concat())
    }

    /// Thread `tid` says its name.
    pub fn name(self, tid: u32, name: &str) -> Records {
        self.note(tid, NOTE_THREAD_NAME, name.as_bytes())
    }

    /// A module is mapped at `base`.
    pub fn module(self, tid: u32, base: u64, size: u64, build_id: &[u8], path: &str) -> Records {
        let note = ModuleNote { base, size, bias: base, build_id, path: b"" };
        self.note(tid, NOTE_MODULE, &[&note.head()[..], build_id, path.as_bytes()].concat())
    }

    /// Nothing is mapped at `base` any more.
    pub fn gone(self, tid: u32, base: u64, size: u64) -> Records {
        let note = [base.to_le_bytes(), size.to_le_bytes()].concat();
        self.note(tid, NOTE_MODULE_GONE, &note)
    }

    /// Thread `tid` lost events.
    pub fn lost(self, tid: u32, cause: u32, events: u64) -> Records {
        let note = LossNote { cause, events, first: 0, last: 0 };
        self.note(tid, NOTE_LOSS, &note.to_bytes())
    }

    /// Thread `tid` lost events before what is here of it.
    pub fn lost_before(self, tid: u32) -> Records {
        let note = LossNote { cause: Cause::Unacked as u32, events: 0, first: 0, last: 1 };
        self.note(tid, NOTE_LOSS, &note.to_bytes())
    }

    /// Recording of thread `tid` was paused before this.
    pub fn paused(self, tid: u32) -> Records {
        self.note(tid, NOTE_PAUSE, &[])
    }

    /// The process of `tid` ends its recording in order.
    pub fn end(self, tid: u32) -> Records {
        self.note(tid, NOTE_STOP, &(StopReason::End as u32).to_le_bytes())
    }

    /// The bytes of a file of version 2 whose times are in ns.
    pub fn file(&self, order: ByteOrder) -> Vec<u8> {
        let flags = if order == ByteOrder::Big { FLAG_BIG_ENDIAN } else { 0 };
        self.file_of(Origin { flags, t0_ns: 5, ..Origin::default() }, order)
    }

    /// The same with these clock words.
    pub fn file_of(&self, origin: Origin, order: ByteOrder) -> Vec<u8> {
        let mut bytes = FileHeader::new(origin, 0, 0).to_bytes(order).to_vec();
        bytes.extend(self.bytes(order));
        bytes
    }

    /// The bytes of a version 1 file.
    pub fn file_v1(&self) -> Vec<u8> {
        let words = [1u32.to_le_bytes(), 32u32.to_le_bytes()].concat();
        [&FILE_MAGIC[..], &words, &self.bytes(ByteOrder::Little)].concat()
    }

    /// The bytes of a file as the runtime maps it, its slots up to `slots` unused.
    pub fn file_mapped(&self, slots: usize) -> Vec<u8> {
        self.file_mapped_of(Origin { t0_ns: 5, ..Origin::default() }, slots)
    }

    /// The same with these clock words.
    pub fn file_mapped_of(&self, origin: Origin, slots: usize) -> Vec<u8> {
        let mut header = FileHeader::new(origin, 0, 0);
        header.header_size = FILE_HEADER_MAPPED_BYTES as u32;
        let mut bytes = header.to_bytes(ByteOrder::Little).to_vec();
        bytes.resize(FILE_HEADER_MAPPED_BYTES, 0);
        bytes.extend(self.bytes(ByteOrder::Little));
        bytes.resize(FILE_HEADER_MAPPED_BYTES + 32 * slots.max(self.events.len()), 0);
        bytes
    }

    fn bytes(&self, order: ByteOrder) -> Vec<u8> {
        self.events.iter().flat_map(|event| event.to_bytes(order)).collect()
    }
}

fn address(word: &str) -> u64 {
    match word.strip_prefix('@') {
        Some(number) => number.parse().expect("an address"),
        None => u64::from(word.as_bytes()[0]) * 16,
    }
}

/// A clock that counts 2 ticks a ns and says so.
pub fn ticks(tick_hz: u64) -> Origin {
    Origin { flags: FLAG_TICKS, tick_hz, t0_ticks: 1000, t0_ns: 5, ..Origin::default() }
}

/// A directory with files.
pub struct Captures {
    directory: TempDir,
}

impl Captures {
    /// Files by name.
    pub fn new(files: &[(&str, Vec<u8>)]) -> Captures {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, bytes) in files {
            let bytes = placed(name, bytes.clone());
            fs::write(directory.path().join(name), bytes).expect("write a capture");
        }
        Captures { directory }
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The report on the directory.
    pub fn analyze(&self) -> Result<Report, Error> {
        self.analyze_with(&Options::default())
    }

    /// The report on the directory, as asked for.
    pub fn analyze_with(&self, options: &Options) -> Result<Report, Error> {
        analyze(&[PathBuf::from(self.directory.path())], options)
    }
}

/// A mapped segment says which one it is.
fn placed(name: &str, mut bytes: Vec<u8>) -> Vec<u8> {
    let numbers: Vec<u32> = name.split('.').filter_map(|part| part.parse().ok()).collect();
    let (pid_at, seq_at) = (offset_of!(FileHeader, pid), offset_of!(FileHeader, seq));
    if let ([pid, _, seq], Ok((header, ByteOrder::Little))) =
        (&numbers[..], FileHeader::parse(&bytes))
        && header.header_size as usize == FILE_HEADER_MAPPED_BYTES
    {
        bytes[pid_at..pid_at + 4].copy_from_slice(&pid.to_le_bytes());
        bytes[seq_at..seq_at + 4].copy_from_slice(&seq.to_le_bytes());
    }
    bytes
}

/// The report on one file.
pub fn report(bytes: Vec<u8>) -> Report {
    Captures::new(&[("trace.7.7.0.bin", bytes)]).analyze().expect("a report")
}

/// `name calls total/self` of each function, by name. Unnamed functions of [`Records::thread`]
/// are their letters again.
pub fn rows(report: &Report) -> String {
    let mut lines: Vec<String> = report
        .rows
        .iter()
        .map(|row| {
            format!("{} {} {}/{}", letter(row.address), row.calls, row.total_ns, row.self_ns)
        })
        .collect();
    lines.sort();
    lines.join(", ")
}

fn letter(address: u64) -> String {
    match u8::try_from(address / 16) {
        Ok(letter) if letter.is_ascii_alphabetic() => char::from(letter).to_string(),
        _ => format!("@{address}"),
    }
}

/// Whether a notice of the report holds `words`.
#[track_caller]
pub fn assert_noticed(report: &Report, words: &str) {
    let found = report.notices.iter().any(|notice| notice.contains(words));
    assert!(found, "no notice of {words:?} in {:#?}", report.notices);
}
