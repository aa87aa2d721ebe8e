//! Rings made by hand, whole and damaged: what an onlooker makes of them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use callsight_format::{
    Cause, FLAG_TICKS, KIND_ENTER, KIND_EXIT, KIND_MARKER, PAGE_HEADER_BYTES, PAGE_RETIRED,
    PROCESS_ATTACHED, PageHeader, RING_PROCESSES_OFFSET, RING_WRITERS_OFFSET, RingProcess,
    RingWriter,
};

use super::super::counts::Counts;
use super::super::image::Amounts;
use super::super::pages::{WriterKey, keep_latest, pages_of};
use super::super::process::ProcessId;
use super::super::snapshot::Look;
use super::super::state::{Member, RingCommand, RingState};
use super::*;

/// A ring in a folder of its own.
struct Made {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
    layout: RingLayout,
}

impl Made {
    fn new() -> Made {
        let layout = RingLayout::of(65536);
        let folder = tempfile::tempdir().expect("a folder");
        let mut made = Made { folder, bytes: vec![0; layout.total_bytes as usize], layout };
        made.bytes[..8].copy_from_slice(&RING_MAGIC);
        made.put32(offset_of!(RingHeader, version), RING_VERSION);
        made.put32(offset_of!(RingHeader, capacity), layout.capacity);
        made.put32(offset_of!(RingHeader, flags), FLAG_TICKS);
        let control = |at: usize| RING_CONTROL_OFFSET + at;
        made.put32(control(offset_of!(RingControl, page_bytes)), layout.page_bytes);
        made.put32(control(offset_of!(RingControl, page_count)), layout.page_count);
        made.put32(control(offset_of!(RingControl, slot_count)), layout.slot_count);
        made.put32(control(offset_of!(RingControl, pages_offset)), layout.pages_offset);
        made.put32(control(offset_of!(RingControl, command)), 1);
        made
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn put64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn attach(&mut self, entry: usize, id: ProcessId) {
        let at = RING_PROCESSES_OFFSET + entry * size_of::<RingProcess>();
        self.put32(at + offset_of!(RingProcess, state), PROCESS_ATTACHED);
        self.put32(at + offset_of!(RingProcess, pid), id.pid);
        self.put64(at + offset_of!(RingProcess, start), id.start);
    }

    fn made_in(&mut self, pid_namespace: u64) {
        self.put64(RING_CONTROL_OFFSET + offset_of!(RingControl, pid_namespace), pid_namespace);
    }

    /// A page of the writer in slot 0 with these kinds of records, the times of which go on from
    /// its number; a kind of 255 is a slot that is not stored.
    fn page(&mut self, index: u32, process: ProcessId, first: u64, kinds: &[u8]) {
        let at = self.layout.page_offset(index) as usize;
        self.put64(at + offset_of!(PageHeader, owner), 1 | PAGE_RETIRED);
        self.put32(at + offset_of!(PageHeader, pid), process.pid);
        self.put32(at + offset_of!(PageHeader, tid), 77);
        self.put64(at + offset_of!(PageHeader, start), process.start);
        self.put64(at + offset_of!(PageHeader, first), first);
        for (slot, kind) in kinds.iter().enumerate().filter(|(_, kind)| **kind != 255) {
            let event = Event { ts: first + slot as u64 + 1, kind: *kind, ..Event::default() };
            let slot = at + PAGE_HEADER_BYTES + slot * EVENT_BYTES;
            self.bytes[slot..slot + EVENT_BYTES]
                .copy_from_slice(&event.to_bytes(ByteOrder::NATIVE));
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("ring")
    }

    fn open(&self) -> Result<RingFile, RingError> {
        fs::write(self.path(), &self.bytes).expect("write the ring");
        fs::set_permissions(self.path(), Permissions::from_mode(0o600)).expect("its mode");
        RingFile::open_path(&self.path())
    }

    fn state(&self) -> RingState {
        self.open().expect("a ring").state().expect("its state")
    }
}

fn lives(state: &RingState) -> Vec<Option<bool>> {
    state.processes.iter().map(|member| member.is_alive).collect()
}

const DEAD: ProcessId = ProcessId { pid: u32::MAX / 2 - 1, start: 5 };

#[test]
fn a_ring_tells_who_uses_it_what_it_holds_and_what_was_dropped() {
    let mut made = Made::new();
    let me = ProcessId::now(std::process::id()).expect("this process");
    made.attach(1, me);
    made.attach(7, DEAD);
    made.page(3, DEAD, 0, &[KIND_MARKER, KIND_ENTER, 255, KIND_EXIT]);
    // Named by writers: one that is in the table, and one that found it full.
    let hidden = ProcessId::now(std::os::unix::process::parent_id()).expect("the parent");
    for (slot, id) in [(0, me), (3, hidden), (4, hidden)] {
        let at = RING_WRITERS_OFFSET + slot * size_of::<RingWriter>();
        made.put32(at + offset_of!(RingWriter, pid), id.pid);
        made.put64(at + offset_of!(RingWriter, start), id.start);
    }
    let writer = RING_WRITERS_OFFSET + offset_of!(RingWriter, dropped);
    made.put64(writer + 8 * Cause::Full as usize, 4);
    let retired = RING_CONTROL_OFFSET + offset_of!(RingControl, retired_dropped);
    made.put64(retired + 8 * Cause::Full as usize, 3);
    made.put64(RING_CONTROL_OFFSET + offset_of!(RingControl, no_slot), 2);
    let state = made.state();
    assert_eq!(
        (lives(&state), state.living().count(), state.is_used()),
        (vec![Some(true), Some(false), Some(true)], 2, true)
    );
    assert_eq!((state.used_bytes, state.held_events), (1024, 2));
    let dropped: Vec<_> = state.dropped.clone().into_iter().collect();
    assert_eq!(dropped, [(Cause::Full, 7), (Cause::NoSlot, 2)]);
    assert_eq!((state.command, state.drain), (Some(RingCommand::Record), None));
    // What a drain has taken is not there for the next.
    let read = made.layout.page_offset(3) as usize + offset_of!(PageHeader, read);
    made.put32(read, (PAGE_HEADER_BYTES + 2 * EVENT_BYTES) as u32);
    assert_eq!(made.state().held_events, 1);
}

#[test]
fn of_a_ring_of_another_pid_namespace_nobody_is_dead_and_it_is_not_abandoned() {
    let mut made = Made::new();
    made.attach(0, ProcessId::now(std::process::id()).expect("this process"));
    made.attach(1, DEAD);
    let own = pid_namespace().expect("/proc of its own");
    let look = |made: &Made| {
        let (ring, state) = (made.open().expect("a ring"), made.state());
        let executable = state.processes[0].executable();
        (ring.is_foreign(), lives(&state), executable.is_some(), state.is_used())
    };
    let here = (false, vec![Some(true), Some(false)], true, true);
    for namespace in [0, own] {
        made.made_in(namespace);
        assert_eq!(look(&made), here, "{namespace}");
    }
    made.made_in(own + 1);
    assert_eq!(look(&made), (true, vec![None, None], false, true));
    assert_eq!(made.state().living().count(), 0);

    let mut nobodys = Made::new();
    let is_abandoned = |made: &Made| made.open().expect("a ring").is_abandoned(&made.state());
    assert!(is_abandoned(&nobodys));
    nobodys.made_in(own + 1);
    assert!(!is_abandoned(&nobodys));
}

#[test]
fn who_does_not_know_its_own_number_knows_nobody_of_a_ring_of_version_3() {
    let mut made = Made::new();
    for (namespace, own, foreign) in
        [(0, Some(7), false), (7, Some(7), false), (7, Some(0), false), (7, Some(8), true)]
    {
        made.made_in(namespace);
        assert_eq!(is_foreign(&Bytes(made.bytes.clone()), own), foreign, "{namespace}, {own:?}");
    }
    made.made_in(0);
    assert!(is_foreign(&Bytes(made.bytes.clone()), None));
    made.put32(offset_of!(RingHeader, version), RING_VERSION_STREAM);
    assert!(!is_foreign(&Bytes(made.bytes.clone()), None));
}

#[test]
fn every_damaged_word_of_a_header_is_refused_or_harmless() {
    // All of the header and the control block, some of the entries of processes behind them.
    let words = (0..RING_PROCESSES_OFFSET / 4)
        .chain((RING_PROCESSES_OFFSET / 4..RING_WRITERS_OFFSET / 4).step_by(7));
    let mut refused = 0;
    for word in words {
        for change in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let mut made = Made::new();
            made.page(0, DEAD, u64::MAX - 1, &[KIND_ENTER]);
            made.put32(4 * word, change);
            match made.open() {
                // Whatever it says, it is read to its end.
                Ok(ring) => {
                    drop((ring.state().expect("a state"), ring.is_abandoned(&made.state())))
                }
                Err(RingError::Refused { .. }) => refused += 1,
                Err(error) => panic!("word {word} as {change:x}: {error}"),
            }
        }
    }
    // Magic, version, capacity and the four sizes, but for the values that they have.
    assert!((30..=40).contains(&refused), "{refused}");
}

#[test]
fn every_cut_of_a_ring_is_refused() {
    let made = Made::new();
    for bytes in [0, 7, 95, 96, 255, 4095, 4096, made.bytes.len() - 1] {
        let cut = Made { bytes: made.bytes[..bytes].to_vec(), ..Made::new() };
        let error = cut.open().expect_err("a cut ring").to_string();
        assert!(error.starts_with(&format!("read the ring {}", cut.path().display())), "{error}");
    }
}

#[test]
fn what_others_may_write_and_what_is_no_file_is_refused() {
    let made = Made::new();
    made.open().expect("a ring");
    fs::set_permissions(made.path(), Permissions::from_mode(0o660)).expect("its mode");
    let why = |path: &Path| RingFile::open_path(path).expect_err("not to be trusted").to_string();
    assert!(why(&made.path()).contains("mode 0600"));
    let link = made.folder.path().join("link");
    std::os::unix::fs::symlink(made.path(), &link).expect("a link");
    assert!(why(&link).contains("link"));
    assert!(why(made.folder.path()).contains("no shared memory object"));
    for name in ["", "/", "/a/b", "..", "/."] {
        assert!(matches!(RingFile::open(name), Err(RingError::Name { .. })), "{name}");
    }
}

#[test]
fn pages_are_copied_by_writer_in_the_order_of_their_numbers() {
    let mut made = Made::new();
    let process = ProcessId { pid: 9, start: 8 };
    made.page(5, process, 0, &[KIND_ENTER; 29]);
    made.page(2, process, 29, &[255, 255, KIND_EXIT, 255, KIND_EXIT]);
    made.page(7, ProcessId { pid: 9, start: 7 }, 60, &[KIND_ENTER]);
    let writers = pages_of(&made.open().expect("a ring"), process).expect("its pages");
    let pages = &writers[&WriterKey { tid: 77, slot: 0 }];
    assert_eq!(writers.len(), 1);
    let numbers: Vec<_> = pages.values().map(|page| (page.first, page.end())).collect();
    assert_eq!(numbers, [(0, 29), (29, 34)]);
    assert_eq!(pages[&29].slots.iter().flatten().count(), 2);
    // The next one that is there begins at 40.
    made.page(3, process, 40, &[KIND_ENTER; 3]);
    made.page(4, process, 43, &[KIND_EXIT]);
    let mut writers = pages_of(&made.open().expect("a ring"), process).expect("its pages");
    let pages = writers.get_mut(&WriterKey { tid: 77, slot: 0 }).expect("its pages");
    keep_latest(pages);
    assert_eq!(pages.keys().collect::<Vec<_>>(), [&40, &43]);
}

#[test]
fn an_owner_of_a_page_that_there_is_not_is_nobodys() {
    let mut made = Made::new();
    made.page(0, DEAD, 0, &[KIND_ENTER]);
    let at = made.layout.page_offset(0) as usize;
    for owner in [0, PAGE_RETIRED, u64::MAX, 1 << 40] {
        made.put64(at, owner);
        let ring = made.open().expect("a ring");
        ring.state().expect("its state");
        let member = Member { id: DEAD, is_attached: true, is_alive: Some(false) };
        assert_eq!(Look::at(&ring, member).expect("its pages").image().amounts().untold, 0);
    }
}

impl Made {
    /// A slot of this process, that dropped so many events for want of room.
    fn writer(&mut self, slot: usize, process: ProcessId, tid: u32, full: u64) {
        let at = RING_WRITERS_OFFSET + slot * size_of::<RingWriter>();
        self.put32(at + offset_of!(RingWriter, pid), process.pid);
        self.put32(at + offset_of!(RingWriter, tid), tid);
        self.put64(at + offset_of!(RingWriter, start), process.start);
        self.put64(at + offset_of!(RingWriter, dropped) + 8 * Cause::Full as usize, full);
    }

    fn control64(&mut self, at: usize, value: u64) {
        self.put64(RING_CONTROL_OFFSET + at, value);
    }

    fn amounts(&self, process: ProcessId) -> Amounts {
        let is_alive = Some(process != DEAD);
        let member = Member { id: process, is_attached: true, is_alive };
        Look::at(&self.open().expect("a ring"), member).expect("its pages").image().amounts()
    }
}

#[test]
fn what_a_ring_counts_of_a_process_its_snapshot_tells() {
    let mut made = Made::new();
    made.page(3, DEAD, 0, &[KIND_ENTER, 255, KIND_EXIT]);
    // Whose thread was another when the page was filled; one without a page; and another process's.
    made.writer(0, DEAD, 78, 4);
    made.writer(2, DEAD, 79, 10);
    let me = ProcessId::now(std::process::id()).expect("this process");
    made.writer(3, me, 80, 100);
    made.control64(offset_of!(RingControl, no_slot), 1000);
    made.control64(offset_of!(RingControl, retired_dropped), 20000);
    made.control64(offset_of!(RingControl, retired_emitted), 20001);
    let amounts = made.amounts(DEAD);
    assert_eq!((amounts.untold, amounts.of_nobody, amounts.left_out), (21014, 21000, 1));
    assert_eq!(made.state().dropped_events(), amounts.untold + 100);
    // What is retired in the life of a process is of others.
    made.attach(0, me);
    let ring = made.open().expect("a ring");
    let counts = Counts::read(&ring).expect("its counts");
    assert_eq!([true, false].map(|is_alive| counts.of_nobody(is_alive).sum()), [1000, 21000]);
}
