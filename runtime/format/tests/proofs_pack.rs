//! Any records → a block by the very C of the drain, under address and undefined-behaviour checks,
//! and by the packer of the tests → the same records again.

#[allow(dead_code, reason = "its own tests run with it")]
#[path = "packer.rs"]
mod packer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use callsight_format::*;
use packer::Packer;
use proptest::collection::vec;
use proptest::prelude::*;

/// Records as 33 bytes, the last one whether it is a note → blocks, each behind its length.
const HARNESS: &str = r#"
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "trace_shm.h"
#include "stream/base.h"
#include "stream/pack.h"

static void write_block(const struct pack *pack)
{
    static unsigned char out[PACK_MAX_BYTES];
    uint32_t count = (uint32_t)pack_block(pack, out);
    if (fwrite(&count, sizeof count, 1, stdout) != 1 || fwrite(out, count, 1, stdout) != 1)
        abort();
}

int main(void)
{
    static struct pack pack;
    struct callsight_block_header header = { .number = 1, .pid = 6, .tid = 7, .start = 8 };
    unsigned char record[33];
    crc_prepare();
    pack_begin(&pack, &header);
    while (fread(record, sizeof record, 1, stdin) == 1) {
        struct callsight_event event;
        memcpy(&event, record, sizeof event);
        if (pack_room(&pack) == 0) {
            write_block(&pack);
            header.number++;
            pack_begin(&pack, &header);
        }
        pack_record(&pack, &event, record[32]);
    }
    write_block(&pack);
    return 0;
}
"#;

/// The compiled harness.
static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join("pack.c"), folder.join("pack"));
    fs::write(&source, HARNESS).expect("write the harness");
    let format = Path::new(env!("CARGO_MANIFEST_DIR"));
    let drain = format.join("../../drain");
    let checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    // The parts of the drain that are not asked for here are there all the same.
    let words = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];
    let compiled = Command::new("cc")
        .args(["-O1", "-g", "-o"])
        .arg(&binary)
        .arg(&source)
        .args(checks)
        .args(words)
        .arg("-I")
        .arg(format)
        .arg("-I")
        .arg(drain)
        .status();
    assert!(compiled.expect("a compiler").success());
    binary
});

/// The blocks that C makes of these records.
fn packed_by_c(records: &[(Event, bool)]) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("records");
    let bytes: Vec<u8> = records
        .iter()
        .flat_map(|(event, note)| {
            event.to_bytes(ByteOrder::NATIVE).into_iter().chain([u8::from(*note)])
        })
        .collect();
    fs::write(&input, bytes).expect("write the records");
    let input = fs::File::open(&input).expect("the records");
    let ran = Command::new(&*BINARY).stdin(input).output().expect("run the harness");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let (mut rest, mut blocks) = (&ran.stdout[..], Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (block, behind) = behind.split_at(u32::from_ne_bytes(*length) as usize);
        blocks.push(block.to_vec());
        rest = behind;
    }
    blocks
}

/// The records in blocks, and how many of them have numbers.
fn unpacked(blocks: &[Vec<u8>]) -> (Vec<Event>, usize) {
    let mut unpacker = Box::new(Unpacker::new());
    let (mut records, mut numbered) = (Vec::new(), 0);
    for block in blocks {
        assert!(block.len() <= CHUNK_MAX_RAW_BYTES as usize);
        let header = unpacker.unpack(block, |event| records.push(*event)).expect("a block");
        numbered += header.numbered as usize;
    }
    (records, numbered)
}

fn packed_by_rust(records: &[(Event, bool)]) -> Vec<u8> {
    let header = BlockHeader { number: 1, pid: 6, tid: 7, start: 8, ..BlockHeader::default() };
    let mut packer = Packer::new(header);
    records.iter().for_each(|(event, note)| packer.push(event, *note));
    packer.finish()
}

/// A number that is near others, or any.
fn number(near: u64) -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0..near).prop_map(|number| 0x40_0000 + 16 * number), 1 => any::<u64>()]
}

prop_compose! {
    /// A record; one that is no call may be of any thread, and a note.
    fn record(functions: u64)(
        step in prop_oneof![4 => 0..300u64, 2 => 0..20_000u64, 1 => 0..1u64 << 40, 1 => any::<u64>()],
        kind in prop_oneof![9 => Just(KIND_ENTER), 8 => Just(KIND_EXIT), 1 => 2..=u8::MAX],
        func in number(functions),
        call_site in number(functions),
        frame in prop_oneof![4 => (0..4u8).prop_map(|low| [low, 0, 0]), 1 => any::<[u8; 3]>()],
        tid in any::<u32>(),
        is_note in any::<bool>(),
    ) -> (u64, Event, bool) {
        let is_call = kind <= KIND_EXIT;
        let tid = if is_call { 7 } else { tid };
        (step, Event { ts: 0, func, call_site, tid, kind, frame }, is_note && !is_call)
    }
}

/// Records of one thread, whose times go on from each other.
fn records(most: usize) -> impl Strategy<Value = Vec<(Event, bool)>> {
    let functions = prop_oneof![Just(3u64), Just(100), Just(5000)];
    functions.prop_flat_map(move |functions| vec(record(functions), 1..most)).prop_map(|records| {
        let mut ts = 0u64;
        let mut event = |(step, event, is_note): (u64, Event, bool)| {
            ts = ts.wrapping_add(step);
            (Event { ts, ..event }, is_note)
        };
        records.into_iter().map(&mut event).collect()
    })
}

/// Every exit has a call to end, now and then one below the top of the stack.
fn with_calls_to_end(mut records: Vec<(Event, bool)>) -> Vec<(Event, bool)> {
    let mut open: Vec<Event> = Vec::new();
    for (event, _) in &mut records {
        match event.kind {
            KIND_ENTER => open.push(*event),
            KIND_EXIT => {
                let gone = event.func as usize % 40;
                open.truncate(if gone < 3 { open.len().saturating_sub(gone) } else { open.len() });
                let call = open.pop().unwrap_or(*event);
                *event = Event { ts: event.ts, kind: KIND_EXIT, ..call };
            }
            _ => {}
        }
    }
    records
}

fn check(records: &[(Event, bool)]) -> Result<(), TestCaseError> {
    let numbered = records.iter().filter(|(_, is_note)| !is_note).count();
    let events: Vec<Event> = records.iter().map(|(event, _)| *event).collect();
    let blocks = packed_by_c(records);
    prop_assert_eq!(unpacked(&blocks), (events.clone(), numbered));
    if records.len() <= BLOCK_MAX_RECORDS as usize {
        let block = packed_by_rust(records);
        if let [of_c] = &blocks[..] {
            prop_assert!(*of_c == block, "C and Rust pack differently");
        }
        prop_assert_eq!(unpacked(&[block]), (events, numbered));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_packed_is_unpacked_whatever_it_is(records in records(400)) {
        check(&records)?;
    }

    #[test]
    fn calls_that_end_are_unpacked_as_they_were(records in records(4000)) {
        check(&with_calls_to_end(records))?;
    }

    #[test]
    fn a_block_of_any_bytes_is_refused_or_read(
        records in records(40),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut block = packed_by_rust(&records);
        for (at, byte) in changes {
            let at = at.index(block.len());
            block[at] = byte;
        }
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        let mut count = 0u32;
        let mut unpacker = Box::new(Unpacker::new());
        let header = unpacker.unpack(&block, |_| count += 1);
        if let Ok(header) = header {
            prop_assert_eq!(count, header.records);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..Default::default() })]

    #[test]
    fn more_than_fits_into_a_block_goes_on_in_the_next(records in records(400)) {
        let many: Vec<_> = records.iter().cycle().take(40_000).copied().collect();
        prop_assert!(packed_by_c(&many).len() > 2);
        check(&many)?;
    }
}
