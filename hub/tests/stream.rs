//! The decoder, from arrays of bytes: at every split, in both byte orders, with every lie.

mod common;

use callsight_format::*;
use callsight_hub::stream::{Chunk, ChunkDecoder, Item, StreamError};
use common::{calls, chunk, decode, end_loss, fields};

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

/// One of every kind of chunk.
fn whole_stream(order: ByteOrder) -> Vec<u8> {
    let hello = fields(&[(HELLO_HOSTNAME, b"board"), (HELLO_EXE, b"/bin/app")]);
    let loss = end_loss(Cause::Torn, 2);
    let end = fields(&[(END_REASON, &END_DONE.to_le_bytes()), (END_DROPPED, &loss)]);
    let dropped = order.put_u64(77);
    [
        chunk(CHUNK_HELLO, &hello, order),
        chunk(CHUNK_EVENTS, &calls(1, 3, order), order),
        chunk(CHUNK_EVENTS, &[], order),
        chunk(9, b"of a later version", order),
        chunk(CHUNK_DROPPED, &dropped, order),
        chunk(CHUNK_EVENTS, &calls(2, 40, order), order),
        chunk(CHUNK_END, &end, order),
    ]
    .concat()
}

#[test]
fn a_stream_is_the_same_wherever_it_is_cut() {
    for order in ORDERS {
        let bytes = whole_stream(order);
        let whole = decode([&bytes[..]], order);
        assert_eq!((whole.0.len(), &whole.1), (7, &Ok((true, 0))));
        for at in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(decode([head, tail], order), whole, "cut at {at}");
        }
        assert_eq!(decode(bytes.chunks(1), order), whole);
        assert_eq!(decode(bytes.chunks(7), order), whole);
    }
}

#[test]
fn a_stream_that_ends_anywhere_gives_the_chunks_before() {
    let order = ByteOrder::Big;
    let bytes = whole_stream(order);
    let (whole, _) = decode([&bytes[..]], order);
    let mut ends = 0;
    for at in 0..=bytes.len() {
        let (items, ended) = decode([&bytes[..at]], order);
        let (done, _) = ended.expect("honest");
        assert_eq!(items[..], whole[..items.len()]);
        ends += usize::from(done);
    }
    assert_eq!(ends, 8, "the start and the end of each of 7 chunks");
}

#[test]
fn both_byte_orders_give_the_events_as_they_were_sent() {
    for order in ORDERS {
        let sent = calls(7, 500, order);
        let bytes = chunk(CHUNK_EVENTS, &sent, order);
        let mut decoder = ChunkDecoder::new(order);
        let whole = Chunk { bytes: &bytes, item: Item::Events(&sent) };
        assert_eq!(decoder.next(&mut &bytes[..]), Ok(Some(whole)));
        let bytes = chunk(CHUNK_DROPPED, &order.put_u64(5), order);
        let whole = Chunk { bytes: &bytes, item: Item::Dropped { events: 5 } };
        assert_eq!(decoder.next(&mut &bytes[..]), Ok(Some(whole)));
    }
}

/// What becomes of a chunk whose header states these lengths over a payload of 64 bytes.
fn lie(kind: u32, raw_len: u32, zstd_len: Option<u32>) -> Result<usize, StreamError> {
    let order = ByteOrder::NATIVE;
    let payload = zstd::bulk::compress(&[1; 64], 1).expect("compress");
    let zstd_len = zstd_len.unwrap_or(payload.len() as u32);
    let header = ChunkHeader { kind, raw_len, zstd_len }.to_bytes(order);
    let (items, ended) = decode([&header[..], &payload], order);
    ended.map(|_| items.len())
}

#[test]
fn every_length_that_lies_is_refused() {
    use StreamError::*;
    assert_eq!(lie(CHUNK_EVENTS, 64, None), Ok(1));
    for kind in [CHUNK_EVENTS, CHUNK_DROPPED, CHUNK_HELLO, CHUNK_END, 3, 99] {
        for found in [CHUNK_MAX_RAW_BYTES + 32, 1 << 31, u32::MAX] {
            assert_eq!(lie(kind, found, None), Err(RawLength { found }));
        }
        for found in [CHUNK_MAX_ZSTD_BYTES + 1, 1 << 31, u32::MAX] {
            assert_eq!(lie(kind, 64, Some(found)), Err(ZstdLength { found }));
        }
    }
    for found in [1, 31, 33, 65] {
        assert_eq!(lie(CHUNK_EVENTS, found, None), Err(PartEvent { found }));
    }
    for found in [0, 3, 9, 64] {
        assert_eq!(lie(CHUNK_DROPPED, found, None), Err(Notice { found }));
    }
    for kind in [CHUNK_EVENTS, CHUNK_HELLO, CHUNK_END] {
        for raw_len in [0, 32, 96, CHUNK_MAX_RAW_BYTES] {
            assert!(matches!(lie(kind, raw_len, None), Err(Frame { .. })), "{kind} {raw_len}");
        }
        assert!(matches!(lie(kind, 64, Some(0)), Err(Frame { .. })), "{kind}");
        assert!(matches!(lie(kind, 64, Some(5)), Err(Frame { .. })), "{kind}");
    }
}

#[test]
fn a_chunk_under_way_says_how_many_events_it_announced() {
    let order = ByteOrder::NATIVE;
    let bytes = chunk(CHUNK_EVENTS, &calls(1, 100, order), order);
    let mut decoder = ChunkDecoder::new(order);
    assert_eq!(decoder.next(&mut &bytes[..bytes.len() - 1]), Ok(None));
    assert_eq!((decoder.announced_records(), decoder.is_between_chunks()), (200, false));
    assert!(matches!(decoder.next(&mut &bytes[bytes.len() - 1..]), Ok(Some(_))));
    assert_eq!((decoder.announced_records(), decoder.is_between_chunks()), (0, true));
}

#[test]
fn no_flipped_bit_in_a_stream_is_a_panic() {
    let order = ByteOrder::Little;
    let bytes = whole_stream(order);
    for bit in 0..bytes.len() * 8 {
        let mut bent = bytes.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        let (items, _) = decode([&bent[..]], order);
        assert!(items.len() <= 8, "bit {bit}");
    }
}

#[test]
fn a_token_is_not_passed_on() {
    let id = [7; STREAM_ID_BYTES];
    let said = [(HELLO_TOKEN, &b"secret"[..]), (HELLO_HOSTNAME, b"board"), (HELLO_STREAM, &id)];
    let sent = chunk(CHUNK_HELLO, &fields(&said), ByteOrder::Big);
    let mut decoder = ChunkDecoder::new(ByteOrder::Big);
    let first = decoder.next(&mut &sent[..]).expect("honest").expect("whole");
    assert_eq!(first.bytes, chunk(CHUNK_HELLO, &fields(&said[1..]), ByteOrder::Big));
    assert!(matches!(first.item, Item::Sender(sender) if sender.host == "board"));
    let without = chunk(CHUNK_HELLO, &fields(&said[1..]), ByteOrder::Big);
    let second = decoder.next(&mut &without[..]).expect("honest").expect("whole");
    assert_eq!(second.bytes, without, "as it came");
}

#[test]
fn a_block_comes_with_its_bytes_and_its_markers() {
    let mut writer = common::packed::Writer::new(3);
    let note = Event { ts: 9, func: 300, kind: KIND_MARKER, tid: 3, ..Event::default() };
    let sent = writer.block_with(5, 40, &[note]);
    let mut decoder = ChunkDecoder::new(ByteOrder::Little);
    let whole = decoder.next(&mut &sent[..]).expect("honest").expect("whole");
    assert_eq!(whole.bytes, sent);
    let Item::Block(block) = whole.item else { panic!("a block") };
    assert_eq!((block.header.number, block.header.calls, block.markers), (5, 80, &[note][..]));
    assert_eq!(BlockHeader::parse(block.raw), Ok(block.header));
}

#[test]
fn a_block_that_makes_no_sense_is_refused() {
    let order = ByteOrder::Little;
    let raw = |number| {
        let sent = common::packed::Writer::new(3).block(number, 40);
        zstd::bulk::decompress(&sent[CHUNK_HEADER_BYTES..], 1 << 20).expect("a frame")
    };
    let refused = |raw: &[u8]| decode([&chunk(CHUNK_BLOCK, raw, order)[..]], order).1.err();
    assert_eq!(refused(&raw(1)), None);
    assert_eq!(refused(&raw(0)), Some(StreamError::Block(BlockError::Contents)));
    assert_eq!(refused(&raw(1)[..60]), Some(StreamError::Block(BlockError::Short)));
    let whole = raw(1);
    for bit in 0..whole.len() * 8 {
        let mut bent = whole.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(refused(&bent), Some(StreamError::Block(_))), "bit {bit}");
    }
}
