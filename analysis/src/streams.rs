//! Captures of the streams of one ring, in any directories → which hold the same stream, and which
//! stream comes after which.
//!
//! A stream that went to a file and to a server, or that was copied, says the same of itself in each
//! capture. Within a directory streams are numbered as they began; between directories each says how
//! many records of its ring other drains had taken before it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use callsight_format::{ByteOrder, CHUNK_HELLO, HELLO_STREAM, HELLO_TAKEN, STREAM_ID_BYTES};

use crate::capture::Segment;
use crate::chunks::Chunk;
use crate::ledger::field;
use crate::packed::open;

/// A stream, as one directory has it.
struct Stored {
    directory: PathBuf,
    number: u32,
    id: Option<[u8; STREAM_ID_BYTES]>,
    /// What was taken before it, or before one that began sooner.
    taken: u64,
    segments: Vec<Segment>,
}

/// Puts the segments of one ring into order: streams as they began, behind one another the captures
/// that hold the same one, each with its segments. `placed` tells the number of a segment's stream.
pub fn arrange(placed: Vec<(u32, Segment)>) -> Vec<Segment> {
    let mut all = stored(placed);
    all.sort_by(|a, b| (a.taken, a.number, &a.directory).cmp(&(b.taken, b.number, &b.directory)));
    let mut streams: Vec<Vec<Stored>> = Vec::new();
    for stored in all {
        let same = |others: &Vec<Stored>| stored.id.is_some() && others[0].id == stored.id;
        match streams.iter().position(same) {
            Some(at) => streams[at].push(stored),
            None => streams.push(vec![stored]),
        }
    }
    let mut capture = 0;
    let mut segments = Vec::new();
    for (stream, captures) in streams.into_iter().enumerate() {
        for stored in captures {
            segments.extend(stored.segments.into_iter().map(|segment| Segment {
                stream: stream as u32,
                capture,
                ..segment
            }));
            capture += 1;
        }
    }
    segments
}

/// The captures of streams, by directory and number.
fn stored(placed: Vec<(u32, Segment)>) -> Vec<Stored> {
    let mut by_place: BTreeMap<(PathBuf, u32), Vec<Segment>> = BTreeMap::new();
    for (number, segment) in placed {
        let directory = segment.path.parent().map(Path::to_path_buf).unwrap_or_default();
        by_place.entry((directory, number)).or_default().push(segment);
    }
    // One alone is in order, whatever it says of itself.
    let several = by_place.len() > 1;
    let mut last: (PathBuf, u64) = Default::default();
    let captures = by_place.into_iter().map(|((directory, number), segments)| {
        let said = several.then(|| segments.iter().find_map(said_by)).flatten();
        let (id, taken) = said.unwrap_or_default();
        if last.0 != directory {
            last = (directory.clone(), 0);
        }
        last.1 = last.1.max(taken);
        Stored { directory, number, id, taken: last.1, segments }
    });
    captures.collect()
}

/// Which stream the sender says it has, and what was taken before.
fn said_by(segment: &Segment) -> Option<(Option<[u8; STREAM_ID_BYTES]>, u64)> {
    if !segment.is_packed() {
        return None;
    }
    let mut chunks = open(segment).ok()?;
    let Chunk::Other(CHUNK_HELLO, fields) = chunks.next().ok()?? else { return None };
    let taken = field(fields, HELLO_TAKEN).and_then(|taken| ByteOrder::Little.u64(taken, 0));
    let id = field(fields, HELLO_STREAM).and_then(|id| id.try_into().ok());
    Some((id, taken.unwrap_or(0)))
}
