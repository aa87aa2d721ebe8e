//! What is shipped compiles everywhere without a word, and its parts agree with Rust.

use std::io::Write;
use std::process::{Command, Stdio};

use callsight_format::RingLayout;

use crate::support::{compile, drain_binary, sources};

#[test]
fn both_compilers_are_silent_in_every_c_standard() {
    let dir = sources();
    for compiler in ["gcc", "clang"] {
        for standard in ["c99", "c11", "c17"] {
            for file in ["trace_stream.c", "zstd.c"] {
                let flags = "-O2 -Wall -Wextra -Wpedantic -Werror -fsyntax-only";
                compile(dir.path(), &format!("{compiler} -std={standard} {flags} {file}"));
            }
        }
    }
}

#[test]
fn the_line_of_the_quick_start_builds_it() {
    let help = Command::new(drain_binary()).arg("--help").output().expect("run it");
    assert!(help.status.success());
    assert!(
        String::from_utf8_lossy(&help.stdout).contains("trace_stream [OPTIONS] SHM [HOST PORT]")
    );
}

#[test]
fn the_vendored_files_are_whole_and_small() {
    let [stream, shm, zstd, header, license] = callsight_drain::files();
    assert_eq!(stream.name, "trace_stream.c");
    assert!(!stream.contents.contains("\"stream/"), "its parts are inside");
    assert_eq!(shm.contents, callsight_drain::TRACE_SHM_H);
    assert!(header.contents.contains("ZSTD_compress2"));
    assert!(license.contents.contains("Redistribution and use in source"));
    let first_lines: String = zstd.contents.lines().take(40).collect();
    assert!(first_lines.contains("Meta Platforms") && first_lines.contains("Redistribution"));
    assert!(zstd.contents.len() < 1 << 20, "{} bytes", zstd.contents.len());
}

const LAYOUT: &str = r#"
#define main trace_stream_main
#include "trace_stream.c"
#undef main
int main(void)
{
    unsigned long long asked;
    while (scanf("%llu", &asked) == 1) {
        struct layout l = layout_of(asked);
        printf("%u %u %u %u %u %llu\n", l.page_bytes, l.page_count, l.slot_count,
               l.pages_offset, l.capacity, (unsigned long long)l.total_bytes);
    }
    return 0;
}
"#;

#[test]
fn c_and_rust_lay_out_every_ring_alike() {
    let dir = sources();
    std::fs::write(dir.path().join("layout.c"), LAYOUT).expect("write the harness");
    compile(dir.path(), "cc -o layout layout.c zstd.c");
    let powers = (0..41).flat_map(|bits| [1u64 << bits, (1 << bits) + 1, (1 << bits) - 1]);
    let strides = (0..70_000).map(|step| step * 61_357);
    let sizes: Vec<u64> = powers.chain(strides).chain([u64::MAX, 3 << 20, 100_000]).collect();
    let input: String = sizes.iter().map(|size| format!("{size}\n")).collect();
    let lines = through(&dir.path().join("layout"), input.as_bytes());
    let lines = String::from_utf8(lines).expect("numbers");
    assert_eq!(lines.lines().count(), sizes.len());
    for (line, asked) in lines.lines().zip(sizes) {
        let l = RingLayout::of(asked);
        let (pages, slots, offset) = (l.page_count, l.slot_count, l.pages_offset);
        let (page, capacity, total) = (l.page_bytes, l.capacity, l.total_bytes);
        assert_eq!(line, format!("{page} {pages} {slots} {offset} {capacity} {total}"), "{asked}");
    }
}

const PACK: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include "zstd.h"
int main(int argc, char **argv)
{
    static char raw[1 << 20], out[1 << 21];
    size_t count = fread(raw, 1, sizeof raw, stdin);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_C_COMPRESSION_LEVEL, atoi(argv[argc - 1]));
    size_t packed = ZSTD_compress2(context, out, sizeof out, raw, count);
    fwrite(out, 1, packed, stdout);
    ZSTD_freeCCtx(context);
    return ZSTD_isError(packed) != 0;
}
"#;

#[test]
fn the_full_zstd_unpacks_what_the_small_one_packs() {
    let dir = sources();
    std::fs::write(dir.path().join("pack.c"), PACK).expect("write the harness");
    compile(dir.path(), "cc -O2 -o pack pack.c zstd.c");
    let text = callsight_drain::ZSTD_C.as_bytes();
    let noise: Vec<u8> =
        (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for raw in [&text[..0], &text[..1], &text[..65_536], &text[..700_000], &noise, &[0; 65_536]] {
        for level in ["1", "2"] {
            let packed = through_with(&dir.path().join("pack"), &[level], raw);
            let size = zstd::zstd_safe::get_frame_content_size(&packed).expect("a frame");
            assert_eq!(size, Some(raw.len() as u64), "the frame holds its content size");
            let unpacked = zstd::bulk::decompress(&packed, raw.len()).expect("unpack");
            assert!(unpacked == raw, "{} bytes at level {level}", raw.len());
        }
    }
}

fn through(program: &std::path::Path, input: &[u8]) -> Vec<u8> {
    through_with(program, &[], input)
}

fn through_with(program: &std::path::Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(&input).expect("write"));
    let output = child.wait_with_output().expect("read");
    writer.join().expect("no panic");
    assert!(output.status.success());
    output.stdout
}
