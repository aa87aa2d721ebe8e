//! Behind damage, the next whole chunk.

use std::io::{self, Read};

use callsight_format::{ByteOrder, CHUNK_HELLO};

use crate::script;

#[allow(dead_code, reason = "the file is taken whole")]
#[path = "../../analysis/src/chunks.rs"]
mod chunks;

use chunks::{Chunk, Chunks, Damage};

/// Any bytes behind a whole chunk: that one is found, no more is skipped than was there, and it is
/// all the same if the bytes come one by one.
pub fn resync(data: &[u8]) {
    let [mode, rest @ ..] = data else { return };
    let order = ByteOrder::Little;
    let between = if mode & 1 == 0 { script::chunks(rest, order) } else { rest.to_vec() };
    let whole = script::chunk(CHUNK_HELLO, b"who", order);
    let file = [&whole[..], &between, &whole].concat();
    let (found, damage) = chunks_of(&file[..]);
    assert_eq!(found.first().map(String::as_str), Some("2 [119, 104, 111]"));
    let most = file.len() - whole.len();
    assert!(damage.bytes <= most as u64, "{damage:?} of {most} bytes");
    assert!(damage.places <= damage.bytes, "{damage:?}");
    assert_eq!((found, damage), chunks_of(Slowly(&file)), "with one byte at a time");
}

fn chunks_of(source: impl Read) -> (Vec<String>, Damage) {
    let mut chunks = Chunks::new(source, ByteOrder::Little).expect("memory");
    let mut found = Vec::new();
    while let Some(chunk) = chunks.next().expect("no error in memory") {
        found.push(match chunk {
            Chunk::Block(header, raw) => format!("{header:?} {raw:?}"),
            Chunk::Other(kind, raw) => format!("{kind} {raw:?}"),
        });
    }
    (found, chunks.damage)
}

/// A source that gives a byte at a time.
struct Slowly<'a>(&'a [u8]);

impl Read for Slowly<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = out.len().min(1);
        self.0.read(&mut out[..count])
    }
}
