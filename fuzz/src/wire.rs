//! The wire: handshake, chunks, blocks.

use callsight_format::{ByteOrder, CHUNK_MAX_RAW_BYTES, Handshake};
use callsight_hub::stream::{ChunkDecoder, Item};

use crate::script;

/// A stream of any bytes, or of right chunks with any payload. Wherever it is cut, it is the same;
/// and no chunk is longer than chunks may be.
pub fn wire(data: &[u8]) {
    let [mode, step, rest @ ..] = data else { return };
    let order = if mode & 2 == 0 { ByteOrder::Little } else { ByteOrder::Big };
    let _ = Handshake::parse(rest);
    let stream = if mode & 1 == 0 { script::chunks(rest, order) } else { rest.to_vec() };
    let whole = decode([&stream[..]], order);
    let pieces = decode(stream.chunks(usize::from(*step) + 1), order);
    assert_eq!(whole, pieces, "in pieces of {} bytes", usize::from(*step) + 1);
}

/// What is in the pieces of a stream, and how it ends.
fn decode<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    order: ByteOrder,
) -> (Vec<String>, String) {
    let mut decoder = ChunkDecoder::new(order);
    let mut items = Vec::new();
    for mut piece in pieces {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(chunk)) => {
                    if let Item::Block(block) = &chunk.item {
                        assert!(block.raw.len() <= CHUNK_MAX_RAW_BYTES as usize);
                        assert!(block.markers.len() <= block.header.records as usize);
                    }
                    items.push(format!("{chunk:?}"));
                }
                Ok(None) => break,
                Err(error) => return (items, error.to_string()),
            }
        }
    }
    let end = (decoder.is_between_chunks(), decoder.announced_records());
    (items, format!("{end:?}"))
}
