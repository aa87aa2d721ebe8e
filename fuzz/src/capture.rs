//! The capture reader: a file of any bytes is a report or a sentence.

use std::path::PathBuf;
use std::{fs, io};

use callsight_analysis::{Options, analyze};
use callsight_format::{
    ByteOrder, FILE_HEADER_BYTES, FILE_VERSION_CHUNKS, FileHeader, FileHeader as Header, Origin,
};
use tempfile::TempDir;

use crate::script;

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir().expect("a folder");
}

/// Any bytes as a file; or behind a right header any events, or right chunks with any payload.
pub fn capture(data: &[u8]) {
    let [mode, rest @ ..] = data else { return };
    let order = if mode & 4 == 0 { ByteOrder::Little } else { ByteOrder::Big };
    let (name, bytes) = match mode & 3 {
        0 => ("trace.stream.1.0.bin", of_chunks(rest, order)),
        1 => ("trace.7.7.0.bin", of_events(rest, order)),
        2 => ("trace.7.7.0.bin", rest.to_vec()),
        _ => ("trace.7.summary.0.bin", rest.to_vec()),
    };
    FOLDER.with(|folder| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("a file");
        report(path);
    });
}

fn of_chunks(rest: &[u8], order: ByteOrder) -> Vec<u8> {
    let header = Header { version: FILE_VERSION_CHUNKS, ..FileHeader::new(origin(), 1, 0) };
    [&header.to_bytes(order)[..], &script::chunks(rest, order)].concat()
}

fn of_events(rest: &[u8], order: ByteOrder) -> Vec<u8> {
    let header: [u8; FILE_HEADER_BYTES] = FileHeader::new(origin(), 7, 0).to_bytes(order);
    [&header[..], rest].concat()
}

fn origin() -> Origin {
    Origin { t0_ns: 5, t0_ticks: 9, ..Origin::default() }
}

/// All ways to tell what is in the file.
fn report(path: PathBuf) {
    let Ok(report) = analyze(&[path], &Options::default()) else { return };
    report.write_text(&mut io::sink(), 10).expect("no error in memory");
    report.write_json(&mut io::sink(), 10).expect("no error in memory");
    report.write_folded(&mut io::sink(), 10).expect("no error in memory");
    report.write_callers(&mut io::sink(), 10).expect("no error in memory");
}
