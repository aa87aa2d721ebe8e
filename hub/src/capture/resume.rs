//! Captures of earlier servers: which stream is where, and how far it got.
//!
//! Nothing in a file is believed: lengths are checked against the file, and the block that a stream
//! goes on behind is decompressed and compared with its checksum.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use callsight_format::{
    BlockHeader, ByteOrder, CHUNK_BLOCK, CHUNK_END, CHUNK_EVENTS, CHUNK_HEADER_BYTES, CHUNK_HELLO,
    CHUNK_MAX_RAW_BYTES, CHUNK_MAX_ZSTD_BYTES, CHUNK_SINK, Cause, ChunkHeader, FILE_HEADER_BYTES,
    FILE_VERSION_CHUNKS, FileHeader, Origin,
};
use zstd::bulk::Decompressor;

use super::directory::{Known, lock, segments_in};
use super::final_chunk::FinalChunk;
use super::guard::Contents;
use super::position::{self, Position, PositionFile};
use super::segment::Segment;
use super::{CaptureDir, CaptureLimits, ChunkCapture, EventCapture, event_file, writers};
use crate::session::{Books, Earlier, Had, Numbers, Part, RingId, WriterPart, ring_of};
use crate::stream::{Sender, StreamEnd, StreamId, inflate};
use crate::{Amount, Ending, Sink};

/// Most bytes of captures that are read for a sum: of the order of a second.
const MOST_LEFT_BYTES: u64 = 256 << 20;

/// A stream of which a capture is there.
pub struct Resumed {
    /// Number of its capture.
    pub id: u32,
    /// The last block in it.
    pub last_block: u64,
    /// Whether it is one of events, not of chunks.
    pub unpacked: bool,
    /// What takes the rest; `None` where the end is there too.
    pub capture: Option<Box<dyn Sink>>,
    /// What is in it of the ring, where that is known, and of each writer.
    pub(crate) earlier: Earlier,
}

impl CaptureDir {
    /// Takes up the capture of a stream, if there is one and nobody else writes to it: in the form in
    /// which it was begun, since a stream that is in two forms is two traces for a reader. What stands
    /// behind the last block that is known to be whole is cut off.
    pub fn resume(&self, stream: StreamId, limits: CaptureLimits) -> Option<Resumed> {
        let id = self.capture_of(stream)?;
        let seqs = self.segments(id);
        // Who writes has locked the first one that it made, and the last.
        let locked = |seq: u32| {
            let file = self.open_segment(id, seq).ok()?;
            lock(&file).ok().map(|()| file)
        };
        let (first, last) = (*seqs.first()?, *seqs.last()?);
        let first_file = locked(first)?;
        let _last_file = if last == first { None } else { Some(locked(last)?) };
        match PositionFile::open(self.position_path(id), stream) {
            Some((file, position)) => self.resume_events(id, limits, first_file, file, position),
            None => self.resume_chunks(id, limits, first_file, &seqs),
        }
    }

    /// Ends the captures of events of a ring that a killed server has left, but for that of `stream`,
    /// which goes on: each tells what it does not have, and says no more that it may go on.
    pub(crate) fn close_left(&self, ring: RingId, stream: StreamId, limits: CaptureLimits) {
        let left = self.positions().into_values().filter(|(of, position)| {
            position.part.ring == ring && *of != stream && !position.ended && !position.closed
        });
        for (of, position) in left {
            // Records without numbers do not show what is missing.
            let ending = Ending { cut: position.part.has_raw, ..Ending::default() };
            if let Some(mut capture) = self.resume(of, limits).and_then(|left| left.capture) {
                capture.close(&ending);
            }
        }
    }

    /// What captures of events have of a ring, each with its writers.
    pub(crate) fn parts(&self, ring: RingId) -> Vec<(Part, Vec<WriterPart>)> {
        let positions = self.positions().into_iter();
        let of_ring = positions.filter(|(_, (_, position))| position.part.ring == ring);
        let part = |(id, (_, position)): (u32, (StreamId, Position))| {
            let writers = self.writers_behind(id, &position);
            (position.part, writers.into_iter().flatten().collect())
        };
        of_ring.map(part).collect()
    }

    /// What captures of events have of the writers of a ring, but for one of these.
    pub(super) fn parts_but(&self, ring: RingId, id: u32) -> Vec<WriterPart> {
        let positions = self.positions().into_iter();
        let others =
            positions.filter(|(of, (_, position))| *of != id && position.part.ring == ring);
        let parts = others.map(|(of, (_, position))| self.writers_behind(of, &position));
        parts.flatten().flatten().collect()
    }

    /// What a capture has of each writer; the last one as the position has it.
    pub(super) fn writers_behind(&self, id: u32, position: &Position) -> Vec<Option<WriterPart>> {
        let mut writers = writers::read(&self.writers_path(id));
        // Where it would stand beyond the next one, the file is gone.
        if let Some((at, writer)) = position.writer.filter(|(at, _)| *at <= writers.len()) {
            writers.resize(writers.len().max(at + 1), None);
            writers[at] = Some(writer);
        }
        writers
    }

    fn resume_events(
        &self,
        id: u32,
        limits: CaptureLimits,
        first: File,
        file: PositionFile,
        position: Position,
    ) -> Option<Resumed> {
        let position = self.as_files_are(id, position)?;
        let (last_block, ended) = (position.number, position.ended);
        let mut capture: Option<Box<dyn Sink>> = None;
        if !ended {
            let at = (file, position);
            capture = Some(Box::new(EventCapture::resume(self.clone(), id, limits, first, at)?));
        }
        let directory = self.clone();
        let read = Box::new(move || Had {
            records: position.part.came.saturating_add(position.part.missing),
            writers: directory.writers_behind(id, &position),
        });
        let earlier = Earlier { part: Some(position.part), is_small: true, read };
        Some(Resumed { id, last_block, unpacked: true, capture, earlier })
    }

    /// Where the segment is not there in which a position ends, as in a copy that was made while another one
    /// was written: the position at the end of what is there. What it had behind that is lost.
    fn as_files_are(&self, id: u32, position: Position) -> Option<Position> {
        let there = self.segments(id);
        if there.contains(&position.seq) {
            return Some(position);
        }
        let seq = there.iter().copied().rfind(|seq| *seq < position.seq)?;
        let (mut records, mut bytes) = (0, 0);
        for earlier in there.into_iter().filter(|earlier| *earlier <= seq) {
            let file = self.open_segment(id, earlier).ok()?;
            bytes = file.metadata().ok()?.len();
            records += event_file::records_in(&file, bytes)?;
        }
        let Part { came, again, .. } = position.part;
        let mut lost = position.lost;
        let unstored = lost.of(Cause::Io).saturating_add(lost.of(Cause::Budget));
        let stored = came.saturating_sub(again).saturating_sub(unstored);
        lost.add(Cause::Io, stored.saturating_sub(records));
        Some(Position { seq, bytes, stop: None, lost, ..position })
    }

    fn resume_chunks(
        &self,
        id: u32,
        limits: CaptureLimits,
        first: File,
        seqs: &[u32],
    ) -> Option<Resumed> {
        let mut last: Option<(u32, File, Found)> = None;
        for seq in seqs.iter().rev().copied() {
            let file = self.open_segment(id, seq).ok()?;
            match (Found::in_segment(&file), &mut last) {
                // Its head was being written when its server was killed.
                (None, None) if seq > seqs[0] => self.discard_segment(id, seq),
                (None, _) => return None,
                (Some(found), None) => last = Some((seq, file, found)),
                // The last segment has no block yet.
                (Some(found), Some((_, _, last))) => last.last_block = found.last_block,
            }
            if last.as_ref().is_some_and(|(_, _, last)| last.last_block.is_some() || last.ended) {
                break;
            }
        }
        let (seq, file, found) = last?;
        self.go_on(id, limits, first, seq, file, found)
    }

    fn go_on(
        &self,
        id: u32,
        limits: CaptureLimits,
        first: File,
        seq: u32,
        file: File,
        found: Found,
    ) -> Option<Resumed> {
        let last_block = found.last_block.unwrap_or(0);
        let directory = self.clone();
        let is_small = self.bytes_before(id, u32::MAX) <= MOST_LEFT_BYTES;
        let read = Box::new(move || directory.had_in_chunks(id, last_block));
        let resumed = |capture: Option<Box<dyn Sink>>| {
            let earlier = Earlier { part: None, is_small, read };
            Some(Resumed { id, last_block, unpacked: false, capture, earlier })
        };
        if found.ended {
            return resumed(None);
        }
        self.with_known(|known| known.taken_up.insert(id, last_block));
        let segment = Segment::reopen(file, found.end).ok()?;
        let mut capture = ChunkCapture::on(self.clone(), id, limits, Some(first), segment);
        capture.origin = found.header.origin();
        capture.order = found.order;
        capture.hello = found.hello;
        capture.segments = seq + 1;
        capture.closed_bytes = self.bytes_before(id, seq);
        capture.last_chunks.extend(found.last_chunk);
        if let Some(last) = found.last {
            capture.dropped_earlier = last.dropped;
            last.stop.into_iter().for_each(|mark| capture.stay_stopped(mark));
        }
        resumed(Some(Box::new(capture)))
    }

    /// What a capture of chunks has up to its last block; reads it all.
    fn had_in_chunks(&self, id: u32, last_block: u64) -> Had {
        let (mut numbers, mut records) = (Numbers::default(), 0u64);
        self.each_chunk(id, |kind, raw| match (kind, BlockHeader::parse(raw)) {
            (CHUNK_BLOCK, Ok(block)) if block.number <= last_block => {
                numbers.observe(&block, true, 0);
                records += Amount::of_block(&block).records;
            }
            (CHUNK_EVENTS, _) => records += Amount::of_events(raw).records,
            _ => {}
        });
        let mut writers: Vec<_> = numbers.parts().collect();
        writers.sort_by_key(|(at, _)| *at);
        let writers = writers.into_iter().map(|(_, writer)| Some(writer)).collect();
        Had { records: records.saturating_add(numbers.missing_records()), writers }
    }

    /// Tells `books` what earlier servers have left of a ring in chunks, as soon as nothing more comes;
    /// whether it is so little that it was read.
    pub(crate) fn tell_left(&self, ring: RingId, books: &Books) -> bool {
        let left = self.with_known(|known| known.left_of(ring));
        let bytes: u64 = left.iter().map(|(id, _)| self.bytes_before(*id, u32::MAX)).sum();
        if bytes > MOST_LEFT_BYTES {
            return false;
        }
        let among_them = Books::default();
        for (id, last_block) in left {
            let part = self.part_in_chunks(id, last_block, |block, late| {
                among_them.add(ring, block, late);
                let again = books.add(ring, block, late);
                again.into_iter().map(|numbers| numbers.end - numbers.start).sum()
            });
            let part = Part { ring, ..part };
            among_them.add_left(&part);
            books.add_left(&part);
        }
        books.told_earlier(ring, among_them.lost_between());
        true
    }

    /// What a capture of chunks has up to a block; `add` takes each block, with whether others had what
    /// comes before it, and says how many of its records came before.
    fn part_in_chunks(
        &self,
        id: u32,
        last_block: u64,
        mut add: impl FnMut(&BlockHeader, bool) -> u64,
    ) -> Part {
        let (mut numbers, mut part) = (Numbers::default(), Part::default());
        self.each_chunk(id, |kind, raw| match (kind, BlockHeader::parse(raw)) {
            (CHUNK_HELLO, _) => part.taken = Sender::parse(raw).taken,
            (CHUNK_BLOCK, Ok(block)) if block.number <= last_block => {
                let late = part.taken > 0 || part.has_raw;
                numbers.observe(&block, late, 0);
                part.came += Amount::of_block(&block).records;
                part.again += add(&block, late);
            }
            (CHUNK_EVENTS, _) => {
                part.came += Amount::of_events(raw).records;
                part.has_raw = true;
            }
            _ => {}
        });
        let is_first = part.taken == 0;
        part.missing = numbers.missing_records();
        part.lost = numbers.parts().map(|(_, writer)| writer.lost_here(is_first)).sum();
        part
    }

    /// Goes through the chunks of a capture: the kind of each, and what is in it.
    fn each_chunk(&self, id: u32, mut hear: impl FnMut(u32, &[u8])) {
        for seq in self.segments(id) {
            let file = self.open_segment(id, seq);
            let Some(mut reader) = file.as_ref().ok().and_then(Reader::open) else { continue };
            let mut at = reader.header.header_size.into();
            while let Some(place) = reader.chunk_at(at) {
                at = place.end();
                if let Some(raw) = reader.payload(&place) {
                    hear(place.header.kind, raw);
                }
            }
        }
    }

    /// Bytes of the segments before this one.
    pub(super) fn bytes_before(&self, id: u32, seq: u32) -> u64 {
        let bytes = |seq| self.open_segment(id, seq).and_then(|file| file.metadata());
        let before = self.segments(id).into_iter().take_while(|before| *before < seq);
        before.filter_map(|seq| bytes(seq).ok()).map(|meta| meta.len()).sum()
    }
}

/// What the captures in a folder are of, as their files say. What cannot be read is nothing.
pub(super) fn known_in(folder: &Path) -> Known {
    let mut known = Known::default();
    let mut add = |stream: StreamId, id: u32| {
        let newest = known.streams.entry(stream).or_insert(id);
        *newest = id.max(*newest);
    };
    for (id, _, path) in segments_in(folder) {
        if let Some((sender, origin)) = File::open(path).ok().and_then(|file| sender_in(&file)) {
            sender.stream.into_iter().for_each(|stream| add(stream, id));
            known.chunks.entry(ring_of(&sender, &origin)).or_default().insert(id);
        }
    }
    position::all_in(folder).for_each(|(id, stream, _)| add(stream, id));
    known
}

/// What stands in a file of chunks from the one byte to the other, as far as it is whole.
pub(super) fn contents_of(file: &File, from: u64, to: u64) -> Contents {
    let mut amount = Amount::default();
    let Some(mut reader) = Reader::open(file) else { return Contents::default() };
    let mut at = from.max(reader.header.header_size.into());
    while let Some(place) = reader.chunk_at(at).filter(|place| place.end() <= to) {
        at = place.end();
        let kind = place.header.kind;
        let Some(raw) = reader.payload(&place) else { continue };
        match (kind, BlockHeader::parse(raw)) {
            (CHUNK_BLOCK, Ok(block)) => amount = amount.plus(Amount::of_block(&block)),
            (CHUNK_EVENTS, _) => amount = amount.plus(Amount::of_events(raw)),
            _ => {}
        }
    }
    Contents { amount, ..Contents::default() }
}

fn sender_in(file: &File) -> Option<(Sender, Origin)> {
    let mut reader = Reader::open(file)?;
    let hello = reader.chunk_at(reader.header.header_size.into())?;
    let raw = reader.payload(&hello).filter(|_| hello.header.kind == CHUNK_HELLO)?;
    let sender = Sender::parse(raw);
    Some((sender, reader.header.origin()))
}

/// What a segment ends with.
struct Found {
    header: FileHeader,
    order: ByteOrder,
    hello: Vec<u8>,
    /// Where the last chunk ends that is worth keeping.
    end: u64,
    /// That chunk: where it begins, and what is in it.
    last_chunk: Option<(u64, Amount)>,
    last_block: Option<u64>,
    ended: bool,
    /// What an earlier server had to say in the end.
    last: Option<FinalChunk>,
}

impl Found {
    /// Goes through a segment from its head, then back to its last whole block; `None` where it has
    /// no head.
    fn in_segment(file: &File) -> Option<Found> {
        let mut reader = Reader::open(file)?;
        let hello = reader.chunk_at(reader.header.header_size.into())?;
        reader.payload(&hello).filter(|_| hello.header.kind == CHUNK_HELLO)?;
        let mut found = Found {
            header: reader.header,
            order: reader.order,
            hello: reader.bytes(&hello)?,
            end: hello.end(),
            last_chunk: None,
            last_block: None,
            ended: false,
            last: None,
        };
        let mut places = vec![];
        let mut at = hello.end();
        while let Some(place) = reader.chunk_at(at) {
            at = place.end();
            places.push(place);
        }
        // What a killed server leaves is a part of a chunk. Behind anything else there may be more
        // that is whole, which must not be cut off.
        if !reader.is_part_of_chunk(at) {
            return None;
        }
        let mut kept = false;
        for place in places.iter().rev() {
            let Some(raw) = reader.payload(place) else { continue };
            match place.header.kind {
                CHUNK_SINK if !kept => found.last = Some(FinalChunk::parse(raw)),
                CHUNK_END => {
                    found.ended = true;
                    found.last_block = StreamEnd::parse(raw).blocks;
                    return Some(found);
                }
                CHUNK_BLOCK => {
                    let Ok(block) = BlockHeader::parse(raw) else { continue };
                    found.keep(&mut kept, place, Amount::of_block(&block));
                    found.last_block = Some(block.number);
                    break;
                }
                CHUNK_EVENTS => {
                    let amount = Amount::of_events(raw);
                    found.keep(&mut kept, place, amount);
                }
                _ => {}
            }
        }
        Some(found)
    }

    fn keep(&mut self, kept: &mut bool, place: &Place, amount: Amount) {
        if !std::mem::replace(kept, true) {
            self.end = place.end();
            self.last_chunk = Some((place.at, amount));
        }
    }
}

/// A chunk in a file.
struct Place {
    at: u64,
    header: ChunkHeader,
}

impl Place {
    fn has_sane_lengths(&self) -> bool {
        let ChunkHeader { raw_len, zstd_len, .. } = self.header;
        raw_len <= CHUNK_MAX_RAW_BYTES && (1..=CHUNK_MAX_ZSTD_BYTES).contains(&zstd_len)
    }

    fn end(&self) -> u64 {
        self.at + CHUNK_HEADER_BYTES as u64 + u64::from(self.header.zstd_len)
    }
}

/// Reads chunks of a file of version 3.
struct Reader<'a> {
    file: &'a File,
    file_bytes: u64,
    header: FileHeader,
    order: ByteOrder,
    zstd: Decompressor<'static>,
    raw: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn open(file: &'a File) -> Option<Reader<'a>> {
        let mut bytes = [0; FILE_HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let (header, order) = FileHeader::parse(&bytes).ok()?;
        let file_bytes = file.metadata().ok()?.len();
        let (zstd, raw) = (Decompressor::default(), Vec::new());
        (header.version == FILE_VERSION_CHUNKS).then_some(Reader {
            file,
            file_bytes,
            header,
            order,
            zstd,
            raw,
        })
    }

    /// The chunk at byte `at`, if one is there that can be whole.
    fn chunk_at(&self, at: u64) -> Option<Place> {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        let place = Place { at, header: ChunkHeader::parse(bytes, self.order) };
        (place.has_sane_lengths() && place.end() <= self.file_bytes).then_some(place)
    }

    /// Whether what stands from byte `at` on is nothing, or a chunk that was not written to its end.
    fn is_part_of_chunk(&self, at: u64) -> bool {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        if self.file.read_exact_at(&mut bytes, at).is_err() {
            return true;
        }
        let place = Place { at, header: ChunkHeader::parse(bytes, self.order) };
        place.has_sane_lengths() && place.end() > self.file_bytes
    }

    fn bytes(&self, place: &Place) -> Option<Vec<u8>> {
        let mut bytes = vec![0; (place.end() - place.at) as usize];
        self.file.read_exact_at(&mut bytes, place.at).ok()?;
        Some(bytes)
    }

    /// What is in the chunk, decompressed.
    fn payload(&mut self, place: &Place) -> Option<&[u8]> {
        let chunk = self.bytes(place)?;
        let frame = &chunk[CHUNK_HEADER_BYTES..];
        inflate(&mut self.zstd, frame, place.header.raw_len, &mut self.raw).ok()?;
        Some(&self.raw)
    }
}
