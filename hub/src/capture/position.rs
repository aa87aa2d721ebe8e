//! How far a capture of events has got of its stream, in a file beside it.
//!
//! Events have no numbers, so whoever goes on for a server that was killed could not tell by them which
//! blocks are there. `trace.stream.<id>.position` says it: it is written behind the events that it
//! speaks of and before their block is acknowledged, so that what stands behind them was not, and
//! comes again. It also says what the capture has of its ring, and of the writer of the last block: see
//! `writers`. Of always the same size, so that it needs no room on a disk that is full.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use callsight_format::{
    ByteOrder, CAUSES, Cause, EVENT_BYTES, Event, KIND_MARKER, STREAM_ID_BYTES, crc32c,
};

use super::directory::stream_id;
use super::tail::StopMark;
use crate::Losses;
use crate::session::{Part, WriterPart};
use crate::stream::StreamId;

/// First bytes of the file; the last one is its version.
const MAGIC: [u8; 8] = *b"CSPOSN\0\x02";
const LE: ByteOrder = ByteOrder::Little;
const LOSS_BYTES: usize = CAUSES * 8;
/// Where the fields are: eight numbers, the clock, the losses, the parts, the checksum.
const NUMBERS_AT: usize = MAGIC.len() + STREAM_ID_BYTES;
const CLOCK_AT: usize = NUMBERS_AT + 8 * 8;
const TOLD_AT: usize = CLOCK_AT + EVENT_BYTES;
const LOST_AT: usize = TOLD_AT + LOSS_BYTES;
const PART_AT: usize = LOST_AT + LOSS_BYTES;
const PLACE_AT: usize = PART_AT + Part::BYTES;
const WRITER_AT: usize = PLACE_AT + 8;
const CRC_AT: usize = WRITER_AT + WriterPart::BYTES;
const BYTES: usize = CRC_AT + 4;
/// The place of no writer.
const NO_PLACE: usize = usize::MAX;

/// What the file says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Position {
    /// The last block that is there.
    pub number: u64,
    /// The end of the stream is there, too, and told.
    pub ended: bool,
    /// Whoever wrote it is done with it.
    pub closed: bool,
    /// The segment in which it ends, and where its last event does.
    pub seq: u32,
    pub bytes: u64,
    pub last_ts: u64,
    pub clock: Option<Event>,
    /// Why nothing more is stored.
    pub stop: Option<StopMark>,
    /// Losses that notes among the events tell.
    pub told: Losses,
    /// Others that the capture has to tell.
    pub lost: Losses,
    /// What there is of the ring.
    pub part: Part,
    /// What there is of the writer of the last block with numbers, and its place in the file of writers.
    pub writer: Option<(usize, WriterPart)>,
}

impl Position {
    fn to_bytes(self, stream: StreamId) -> Vec<u8> {
        let StopMark { code, payload } = self.stop.unwrap_or(StopMark { code: 0, payload: 0 });
        let (ended, closed) = (u64::from(self.ended), u64::from(self.closed));
        let Position { number, seq, bytes, last_ts, .. } = self;
        let numbers = [number, ended, seq.into(), bytes, last_ts, code, payload, closed];
        let losses = [self.told, self.lost];
        let losses = losses.iter().flat_map(|some| Cause::all().map(|cause| some.of(cause)));
        let mut file = [&MAGIC[..], stream.bytes()].concat();
        file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        file.extend(self.clock.unwrap_or_default().to_bytes(LE));
        file.extend(losses.flat_map(u64::to_le_bytes));
        let (place, writer) = self.writer.unwrap_or((NO_PLACE, WriterPart::default()));
        file.extend(self.part.to_bytes());
        file.extend((place as u64).to_le_bytes());
        file.extend(writer.to_bytes());
        file.extend(crc32c(&file).to_le_bytes());
        file
    }

    fn parse(file: &[u8]) -> Option<(StreamId, Position)> {
        let is_whole = LE.u32(file, CRC_AT) == Some(crc32c(file.get(..CRC_AT)?));
        let stream = StreamId::parse(file.get(MAGIC.len()..NUMBERS_AT)?)?;
        if !is_whole || !file.starts_with(&MAGIC) {
            return None;
        }
        let number = |at: usize| LE.u64(file, NUMBERS_AT + 8 * at);
        let losses = |from: usize| {
            let mut losses = Losses::default();
            for (at, cause) in Cause::all().into_iter().enumerate() {
                losses.add(cause, LE.u64(file, from + 8 * at).unwrap_or(0));
            }
            losses
        };
        let place = usize::try_from(LE.u64(file, PLACE_AT)?).ok()?;
        let writer = (place, WriterPart::parse(&file[WRITER_AT..])?);
        let clock = Event::parse(file.get(CLOCK_AT..TOLD_AT)?, LE);
        let mark = StopMark { code: number(5)?, payload: number(6)? };
        let position = Position {
            number: number(0)?,
            ended: number(1)? != 0,
            closed: number(7)? != 0,
            seq: number(2)?.try_into().ok()?,
            bytes: number(3)?,
            last_ts: number(4)?,
            clock: clock.filter(|clock| clock.kind == KIND_MARKER),
            stop: Some(mark).filter(|mark| mark.code != 0),
            told: losses(TOLD_AT),
            lost: losses(LOST_AT),
            part: Part::parse(&file[PART_AT..])?,
            writer: Some(writer).filter(|(place, _)| *place != NO_PLACE),
        };
        Some((stream, position))
    }
}

/// The file.
pub(super) struct PositionFile {
    file: File,
    path: PathBuf,
    stream: StreamId,
}

impl PositionFile {
    /// A new one, in place of one that is there.
    pub fn create(path: PathBuf, stream: StreamId) -> io::Result<PositionFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        Ok(PositionFile { file, path, stream })
    }

    /// The one that is there, and what it says.
    pub fn open(path: PathBuf, stream: StreamId) -> Option<(PositionFile, Position)> {
        let (_, position) = read(&path).filter(|(of, _)| *of == stream)?;
        let file = OpenOptions::new().write(true).open(&path).ok()?;
        Some((PositionFile { file, path, stream }, position))
    }

    /// Says something else.
    pub fn store(&mut self, position: &Position) -> io::Result<()> {
        self.file.write_all_at(&position.to_bytes(self.stream), 0)
    }

    /// Removes it: one that is not true any more would make a later server cut off what is there.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What such files in a folder say: of which capture, of which stream, what.
pub(super) fn all_in(folder: &Path) -> impl Iterator<Item = (u32, StreamId, Position)> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let id = stream_id(name.to_str().filter(|name| name.ends_with(".position"))?)?;
        let (stream, position) = read(&entry.path())?;
        Some((id, stream, position))
    })
}

/// What such a file says, and of which stream.
fn read(path: &Path) -> Option<(StreamId, Position)> {
    let mut bytes = [0; BYTES];
    File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
    Position::parse(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_stored_and_a_damaged_one_is_none() {
        let stream = StreamId::parse(&[7; STREAM_ID_BYTES]).expect("an id");
        let mut full = Position {
            number: 1 << 40,
            ended: true,
            closed: true,
            seq: 9,
            bytes: 1 << 33,
            last_ts: 77,
            clock: Some(Event { ts: 5, func: 1, kind: KIND_MARKER, ..Event::default() }),
            stop: Some(StopMark { code: 3, payload: 28 }),
            part: Part { ring: 5, taken: 6, has_raw: true, ..Part::default() },
            writer: Some((3, WriterPart { tid: 9, pid: 8, end: 7, ..WriterPart::default() })),
            ..Position::default()
        };
        full.told.add(Cause::Full, 12);
        full.lost.add(Cause::Io, u64::MAX);
        for position in [Position::default(), full] {
            let bytes = position.to_bytes(stream);
            assert_eq!(bytes.len(), BYTES);
            assert_eq!(Position::parse(&bytes), Some((stream, position)));
            for at in 0..BYTES {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert_eq!(Position::parse(&damaged), None, "byte {at}");
                assert_eq!(Position::parse(&bytes[..at]), None, "cut at {at}");
            }
        }
    }
}
