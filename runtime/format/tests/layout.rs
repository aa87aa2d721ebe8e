//! `trace_shm.h` as C compilers understand it against the Rust types: sizes, fields, constants.
//!
//! bindgen lays the committed header out for each target as clang does; no field, offset, size or
//! constant may differ from Rust's on this machine. gcc, g++ and clang compile it without a word.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use callsight_format::*;

/// Targets that differ in word size, alignment of 64-bit integers and byte order.
const TARGETS: [&str; 6] = [
    "x86_64-unknown-linux-gnu",
    "i686-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "armv7-unknown-linux-gnueabihf",
    "riscv64-unknown-linux-gnu",
    "s390x-unknown-linux-gnu",
];

fn header() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("trace_shm.h")
}

/// bindgen's Rust text for the header as `target` lays it out, its layout assertions included.
fn bindings(target: &str) -> String {
    bindgen::Builder::default()
        .header(header().to_str().expect("a UTF-8 path"))
        // Freestanding: clang's own stdint.h, so that no C library of the target is needed.
        .clang_args(["-target", target, "-ffreestanding", "-std=c11"])
        .layout_tests(true)
        .formatter(bindgen::Formatter::None)
        .generate()
        .expect("bindgen reads trace_shm.h")
        .to_string()
        // The text is one line of tokens, set apart as the token printer likes.
        .split_whitespace()
        .collect()
}

/// `field` → offset, and the size under the empty name.
type Layout = BTreeMap<String, usize>;

/// What clang says of `name`, out of bindgen's assertions.
fn c_layout(bindings: &str, name: &str) -> Layout {
    let number = |text: &str| -> usize {
        let digits = text.split_once('-').expect("an assertion").1;
        digits.split_once("usize").expect("a number").0.parse().expect("a number")
    };
    let size = format!("[\"Sizeof{name}\"]");
    let after = bindings.split_once(&size).unwrap_or_else(|| panic!("{name} is not in C")).1;
    let mut layout = Layout::from([(String::new(), number(after))]);
    let offset = format!("[\"Offsetoffield:{name}::");
    for at in bindings.split(&offset).skip(1) {
        let (field, rest) = at.split_once('"').expect("a quoted name");
        layout.insert(field.to_owned(), number(rest));
    }
    layout
}

/// The layout of a Rust type; a field left out of the list does not compile.
macro_rules! rust_layout {
    ($type:ident { $($field:ident),* $(,)? }) => {{
        let _all_fields_named = |value: $type| { let $type { $($field: _),* } = value; };
        let mut layout = Layout::from([(String::new(), size_of::<$type>())]);
        $(layout.insert(stringify!($field).to_owned(), core::mem::offset_of!($type, $field));)*
        layout
    }};
}

fn rust_layouts() -> Vec<(&'static str, Layout)> {
    vec![
        ("callsight_event", rust_layout!(Event { ts, func, call_site, tid, kind, frame })),
        (
            "callsight_file_header",
            rust_layout!(FileHeader {
                magic,
                version,
                event_size,
                header_size,
                flags,
                load_bias,
                tick_hz,
                t0_ticks,
                t0_ns,
                hook_ns,
                pid,
                seq,
                reserved,
            }),
        ),
        (
            "callsight_summary_header",
            rust_layout!(SummaryHeader {
                magic,
                version,
                record_size,
                header_size,
                flags,
                load_bias,
                tick_hz,
                t0_ticks,
                t0_ns,
                hook_ns,
                pid,
                tid,
                records,
                span,
                truncated,
                counter_n,
                pad,
                counter_type,
                pad2,
                counter_config,
                counter_self,
                counter_read_ns,
                counter_skipped,
                counter_mux,
            }),
        ),
        (
            "callsight_summary_record",
            rust_layout!(SummaryRecord {
                func,
                calls,
                inclusive,
                own,
                min,
                max,
                histogram,
                counter_calls,
                counter_inclusive,
                counter_own,
            }),
        ),
        (
            "callsight_ring_header",
            rust_layout!(RingHeader {
                magic,
                version,
                capacity,
                writers,
                lock,
                head,
                tail,
                dropped,
                flags,
                told,
                load_bias,
                tick_hz,
                t0_ticks,
                t0_ns,
                hook_ns,
            }),
        ),
        (
            "callsight_ring_control",
            rust_layout!(RingControl {
                page_bytes,
                page_count,
                slot_count,
                pages_offset,
                command,
                drain_pid,
                drain_start,
                no_slot,
                retired_emitted,
                retired_dropped,
                spare_maker,
                greeted_by,
                pid_namespace,
                reserved,
            }),
        ),
        ("callsight_ring_process", rust_layout!(RingProcess { state, pid, start, reserved })),
        (
            "callsight_ring_writer",
            rust_layout!(RingWriter {
                pid,
                tid,
                start,
                page,
                moves,
                pause_untold,
                stored,
                dropped,
                told,
                untold_first,
                untold_last,
                begin,
            }),
        ),
        (
            "callsight_page_header",
            rust_layout!(PageHeader {
                owner,
                pid,
                tid,
                start,
                first,
                lost_before,
                read,
                pad,
                lost_total,
                begin,
                begin_lost,
                reserved,
            }),
        ),
        (
            "callsight_handshake",
            rust_layout!(Handshake {
                magic,
                version,
                event_size,
                flags,
                pad,
                load_bias,
                tick_hz,
                t0_ticks,
                t0_ns,
                hook_ns,
            }),
        ),
        ("callsight_chunk_header", rust_layout!(ChunkHeader { kind, raw_len, zstd_len })),
        (
            "callsight_block_header",
            rust_layout!(BlockHeader {
                crc,
                header_bytes,
                flags,
                number,
                start,
                first,
                pid,
                tid,
                records,
                calls,
                numbered,
                pad,
                first_ts,
                lost_total,
                lost,
                frame,
                time_bytes,
                id_bytes,
                name_bytes,
                frame_bytes,
                literal_bytes,
            }),
        ),
    ]
}

#[test]
fn every_field_stands_where_rust_has_it_on_every_target() {
    for target in TARGETS {
        let bindings = bindings(target);
        let rust = rust_layouts();
        for (name, layout) in &rust {
            assert_eq!(&c_layout(&bindings, name), layout, "{name} on {target}");
        }
        let structs = bindings.matches("pubstructcallsight_").count();
        assert_eq!(structs, rust.len(), "structs of the header that this test does not compare");
    }
}

/// `name = value` of every integer constant, enumerators included, as clang evaluates them.
fn c_constants(bindings: &str) -> BTreeMap<String, u64> {
    let mut constants = BTreeMap::new();
    for item in bindings.split("pubconst").skip(1) {
        let (name, rest) = item.split_once(':').expect("a typed constant");
        let (kind, value) = rest.split_once('=').expect("a value");
        let value = value.split_once(';').expect("an end").0;
        if kind.starts_with('&') || !name.contains("CALLSIGHT_") {
            continue;
        }
        let name = name.rsplit_once("CALLSIGHT_").expect("the prefix").1;
        // bindgen writes a constant above i64::MAX as the negative number of the same bits.
        let value: i128 = value.parse().unwrap_or_else(|_| panic!("not an integer: {item}"));
        constants.insert(name.to_owned(), value as u64);
    }
    constants
}

macro_rules! rust_constants {
    ($($name:ident),* $(,)?) => {
        BTreeMap::from([$((stringify!($name).to_owned(), u64::try_from($name).expect("positive"))),*])
    };
}

fn rust_constants() -> BTreeMap<String, u64> {
    let mut constants = rust_constants![
        EVENT_BYTES,
        KIND_ENTER,
        KIND_EXIT,
        KIND_MARKER,
        KIND_COUNTERS,
        MARK_BUDGET,
        MARK_NO_SPACE,
        MARK_WRITE_ERROR,
        MARK_MAX_EVENTS,
        MARK_WRAP,
        MARK_CLOCK,
        MARK_COUNTER_FIRST,
        MARK_COUNTER_LAST,
        FILE_VERSION,
        FILE_VERSION_CHUNKS,
        FILE_HEADER_BYTES,
        FILE_HEADER_V1_BYTES,
        FILE_HEADER_MAPPED_BYTES,
        FILE_WINDOW_BYTES,
        FILE_FOLDER_MAX_BYTES,
        THREAD_NAMES_MAX_BYTES,
        PROCESS_AGAIN,
        FLAG_TICKS,
        FLAG_WRAPPED,
        FLAG_BIG_ENDIAN,
        SUMMARY_VERSION,
        SUMMARY_HEADER_BYTES,
        SUMMARY_HEADER_V1_BYTES,
        SUMMARY_RECORD_BYTES,
        SUMMARY_RECORD_V1_BYTES,
        SUMMARY_BUCKETS,
        NOTE_PIECE_BYTES,
        NOTE_MAX_BYTES,
        NOTE_PROCESS,
        NOTE_THREAD_NAME,
        NOTE_MODULE,
        NOTE_MODULE_GONE,
        NOTE_LOSS,
        NOTE_STOP,
        NOTE_PADDING,
        NOTE_SEGMENT,
        NOTE_PAUSE,
        CAUSES,
        RING_CAUSES,
        PROCESS_FORKED,
        PROCESS_NOTE_BYTES,
        MODULE_NOTE_BYTES,
        LOSS_NOTE_BYTES,
        SEGMENT_NOTE_BYTES,
        FIRST_PID_NAMESPACE,
        RING_VERSION,
        RING_VERSION_STREAM,
        RING_HEADER_BYTES,
        RING_DEFAULT_BYTES,
        RING_MIN_BYTES,
        RING_CONTROL_OFFSET,
        RING_CONTROL_BYTES,
        RING_BITMAP_OFFSET,
        RING_BITMAP_WORDS,
        RING_MAX_PAGES,
        RING_PROCESSES_OFFSET,
        RING_PROCESSES,
        RING_PROCESS_BYTES,
        RING_WRITERS_OFFSET,
        RING_WRITER_BYTES,
        PAGE_HEADER_BYTES,
        COMMAND_RECORD,
        COMMAND_PAUSE,
        COMMAND_STOP,
        COMMAND_CLOSED,
        PROCESS_FREE,
        PROCESS_ATTACHED,
        PROCESS_DETACHED,
        PAGE_RETIRED,
        STREAM_VERSION,
        HANDSHAKE_BYTES,
        CHUNK_HEADER_BYTES,
        CHUNK_MAX_RAW_BYTES,
        CHUNK_MAX_ZSTD_BYTES,
        CHUNK_MAX_WINDOW_BYTES,
        CHUNK_RAW_BYTES,
        HANDSHAKE_DEADLINE_S,
        STREAM_PORT,
        CHUNK_EVENTS,
        CHUNK_DROPPED,
        CHUNK_HELLO,
        CHUNK_BLOCK,
        CHUNK_END,
        CHUNK_SINK,
        HELLO_HOSTNAME,
        HELLO_OS,
        HELLO_ARCH,
        HELLO_CLOCK,
        HELLO_PID,
        HELLO_EXE,
        HELLO_BUILD_ID,
        HELLO_SERVICE_ID,
        HELLO_TOKEN,
        HELLO_STREAM,
        STREAM_ID_BYTES,
        HELLO_TAKEN,
        END_REASON,
        END_RING_DROPPED,
        END_EMITTED,
        END_DELIVERED,
        END_DROPPED,
        END_BLOCKS,
        END_SINK_DROPPED,
        END_DONE,
        END_STOPPED,
        SINK_DROPPED,
        SINK_REASON,
        SINK_STOP,
        REPLY_HEADER_BYTES,
        REPLY_MAX_BYTES,
        REPLY_GREETING,
        REPLY_ACKNOWLEDGE,
        REPLY_PING,
        REPLY_COMMAND,
        GREETING_VERSION,
        GREETING_BYTES,
        BLOCK_HEADER_BYTES,
        BLOCK_MAX_RECORDS,
        PACK_PAIRS,
        PACK_FUNCTIONS,
        PACK_STACK,
        PACK_BELOW,
        OP_EXIT,
        OP_ENTER,
        OP_ENTER_PAIR,
        OP_ENTER_NEW,
        OP_EXIT_BELOW,
        OP_EXIT_PAIR,
        OP_EXIT_NEW,
        OP_RECORD,
        OP_FRAME,
        OP_NOTE,
        TIME_LONGER,
        TIME_4_BYTES,
        TIME_8_BYTES,
    ];
    for cause in Cause::all() {
        constants.insert(format!("CAUSE_{}", cause.name().to_uppercase()), cause as u64);
    }
    let reasons = [
        ("RING_UNUSABLE", StopReason::RingUnusable),
        ("END", StopReason::End),
        ("NO_MODULES", StopReason::NoModules),
        ("CUT", StopReason::Cut),
        ("CLOSED", StopReason::Closed),
        ("GOES_ON", StopReason::GoesOn),
    ];
    for (name, reason) in reasons {
        constants.insert(format!("STOP_REASON_{name}"), reason as u64);
    }
    constants
}

#[test]
fn every_constant_has_the_value_rust_gives_it() {
    for target in TARGETS {
        assert_eq!(c_constants(&bindings(target)), rust_constants(), "on {target}");
    }
}

#[test]
fn the_words_that_are_text_are_those_of_rust() {
    let bindings = bindings(TARGETS[0]);
    let magics = [
        ("FILE", FILE_MAGIC),
        ("SUMMARY", SUMMARY_MAGIC),
        ("RING", RING_MAGIC),
        ("STREAM", STREAM_MAGIC),
    ];
    for (name, magic) in magics {
        let mut text = magic.escape_ascii().to_string().replace("\\x00", "\\0");
        text.push_str("\\0"); // the terminator of a C string
        let wanted = format!("CALLSIGHT_{name}_MAGIC:&[u8;9usize]=b\"{text}\"");
        let found = bindings.replace("&[u8;9]", "&[u8;9usize]");
        assert!(found.contains(&wanted), "{wanted} in {found}");
    }
    for prefix in [RING_UNBORN_PREFIX, RING_SPARE_PREFIX] {
        let prefix = format!("=b\"{prefix}\\0\"");
        assert!(bindings.contains(&prefix), "{prefix} in {bindings}");
    }
}

/// Compiles a program that includes the header twice; no compiler may say a word.
fn compiles(compiler: &str, language: &str, flags: &[&str]) {
    let include = "#include \"trace_shm.h\"\n";
    let program = format!(
        "{include}{include}int main(void) {{ return sizeof(struct callsight_event) != 32; }}\n"
    );
    let mut child = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
        .arg(env!("CARGO_MANIFEST_DIR"))
        .args(flags)
        .args(["-x", language, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("run {compiler}: {error}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(program.as_bytes()).expect("hand the program over");
    drop(stdin);
    let output = child.wait_with_output().expect("wait for the compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{compiler} {flags:?}: {said}");
}

#[test]
fn c_compilers_take_the_header_twice_without_a_warning() {
    for compiler in ["gcc", "clang"] {
        for standard in ["-std=c99", "-std=c11", "-std=c17"] {
            compiles(compiler, "c", &[standard]);
        }
        compiles(compiler, "c", &["-std=c99", "-m32", "-ffreestanding"]);
    }
}

#[test]
fn cpp_compilers_take_the_header_twice_without_a_warning() {
    for compiler in ["g++", "clang++"] {
        for standard in ["-std=c++11", "-std=c++17"] {
            compiles(compiler, "c++", &[standard]);
        }
    }
}
