//! What stands in a file of events.

use std::fs::File;
use std::os::unix::fs::FileExt;

use callsight_format::{ByteOrder, FILE_HEADER_BYTES, FileHeader};

use super::guard::Contents;
use super::segment::HEAD_BYTES;
use crate::{Amount, LossWatch};

/// Bytes of events that are read at once, to be counted.
const COUNTED_BYTES: u64 = 1 << 20;

/// What stands in a file of events from the one byte to the other.
pub(super) fn contents_of(file: &File, order: ByteOrder, from: u64, to: u64) -> Contents {
    let (mut amount, mut watch) = (Amount::default(), LossWatch::default());
    let mut at = from.max(HEAD_BYTES);
    while at < to {
        let mut events = vec![0; (to - at).min(COUNTED_BYTES) as usize];
        if file.read_exact_at(&mut events, at).is_err() {
            break;
        }
        at += events.len() as u64;
        amount = amount.plus(Amount::of_events(&events));
        watch.observe(&events, order);
    }
    Contents { amount, told: watch.told() }
}

/// How many records stand in the first `bytes` of a file of events; `None` where it is none.
pub(super) fn records_in(file: &File, bytes: u64) -> Option<u64> {
    let mut head = [0; FILE_HEADER_BYTES];
    file.read_exact_at(&mut head, 0).ok()?;
    let (_, order) = FileHeader::parse(&head).ok()?;
    Some(contents_of(file, order, HEAD_BYTES, bytes).amount.records)
}
