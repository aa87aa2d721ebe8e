//! Directories and files → groups of segments, each in the order it was written.
//!
//! A group is everything one life of a process, or one stream, left behind: `exec` begins another life,
//! with files of its own under the same pid. Streams of one ring are one, wherever
//! they are: the drain was stopped and started again in between, or had two sinks. A file that cannot be used is a notice where its
//! directory was named, and an error where it was named itself. Reads headers only; knows nothing
//! of events.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use callsight_format::{
    ByteOrder, CHUNK_HEADER_BYTES, FILE_HEADER_BYTES, FILE_HEADER_MAPPED_BYTES,
    FILE_VERSION_CHUNKS, FILE_WINDOW_BYTES, FLAG_TICKS, FLAG_WRAPPED, FileHeader, HeaderError,
    Origin, SUMMARY_MAGIC,
};

use crate::Error;
use crate::chunks::begins_with_chunk;
use crate::sentences::Sentences;
use crate::streams::arrange;

/// The files of a request.
#[derive(Debug, Default)]
pub struct Capture {
    /// Event files, by who wrote them.
    pub groups: Vec<Group>,
    /// Summary files.
    pub summaries: Vec<PathBuf>,
    /// Files that were left out, and why.
    pub notices: Sentences,
}

/// The segments of one life of a process or of one stream, in the order they were written.
#[derive(Debug)]
pub struct Group {
    /// Pid of the process, or number of the (first) stream.
    pub id: u32,
    /// Whether a server wrote it; else the process itself.
    pub streamed: bool,
    /// Whether the segments are mapped windows, as our own runtime leaves them.
    pub mapped: bool,
    /// Clock and load words of the first segment.
    pub origin: Origin,
    /// Whether an older segment was rotated away.
    pub wrapped: bool,
    /// The files.
    pub segments: Vec<Segment>,
}

/// One event file.
#[derive(Debug)]
pub struct Segment {
    /// Where it is.
    pub path: PathBuf,
    /// Its header.
    pub header: FileHeader,
    /// Its number.
    pub seq: u32,
    /// The thread that began it, as its name says; 0 where it does not.
    pub opener: u32,
    /// Its size in bytes.
    pub bytes: u64,
    /// Byte order of its producer.
    pub order: ByteOrder,
    /// How many segments before this one are missing.
    pub missing_before: u32,
    /// Whether it is the first of a stream that takes up where another one ended.
    pub resumed: bool,
    /// Which stream of its group it is of, and which of the captures, of which several may hold the same
    /// stream.
    pub stream: u32,
    /// See `stream`.
    pub capture: u32,
    /// Of the files of processes the first ones, open: a program that records still may remove the oldest
    /// while they are read (`TRACE_FULL=wrap`).
    pub(crate) file: Option<Arc<File>>,
}

impl Capture {
    /// Finds the captures in `paths`, each a directory or a file.
    ///
    /// # Errors
    /// A path that cannot be read, a named file that is no capture, or nothing to report on.
    pub fn open(paths: &[PathBuf]) -> Result<Capture, Error> {
        let mut finder = Finder::default();
        for path in paths {
            if path.is_dir() {
                finder.add_directory(path)?;
            } else {
                finder.add_file(path)?;
            }
        }
        finder.finish()
    }
}

impl Segment {
    /// Its file, from `offset` to the end that it had when it was opened: who writes to it still may
    /// add more before it is read again.
    ///
    /// # Errors
    /// Why it cannot be opened or read.
    pub fn read_from(&self, offset: u64) -> io::Result<FileFrom> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::new(File::open(&self.path)?),
        };
        Ok(FileFrom { file, offset, end: self.bytes })
    }

    /// Whether it holds chunks, whose records are numbered.
    pub fn is_packed(&self) -> bool {
        self.header.version == FILE_VERSION_CHUNKS
    }
}

/// A file that others may read at the same time, each from a place of its own.
pub struct FileFrom {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl Read for FileFrom {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let want = left.min(buffer.len());
        let read = self.file.read_at(&mut buffer[..want], self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Group {
    /// How many segments are not there, as far as the numbers of the others tell.
    pub fn missing_segments(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.missing_before)).sum()
    }

    /// Whether its times are clock ticks rather than ns.
    pub fn in_ticks(&self) -> bool {
        self.origin.flags & FLAG_TICKS != 0
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match self.streamed {
            true => format!("stream {}", self.id),
            false => format!("process {}", self.id),
        }
    }
}

/// What belongs together. Files of another start of the clock words are of another process (or
/// another stream) that was given the same number, or of another life of the process: that begins a clock
/// of its own, which all its segments state.
/// Streams whose clock started at the same tick of the same ns are of one ring, in any directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    directory: PathBuf,
    streamed: bool,
    /// Number of the process or the stream, where the clock does not say more.
    id: Option<u32>,
    clock: OriginKey,
}

/// Start in ns and ticks, rate, load bias, whether in ticks. 0 where it does not tell apart.
type OriginKey = (u64, u64, u64, u64, u32);

#[derive(Default)]
struct Finder {
    found: BTreeMap<GroupKey, Vec<Placed>>,
    capture: Capture,
    seen: BTreeSet<PathBuf>,
    files: usize,
    /// How many files are kept open.
    kept_open: usize,
}

/// Where a segment stands in its group: stream, segment, thread. A process of ours has one
/// numbering for all threads, the reference one a thread; this order is right for both.
type Place = (u32, u32, u32);

/// A segment and where it stands.
type Placed = (Place, Segment);

enum Opened {
    Events { header: FileHeader, order: ByteOrder, bytes: u64, file: Option<File> },
    Summary,
}

/// How many files are kept open.
const MOST_KEPT_OPEN: usize = 128;

/// How often a folder is listed again of which a file was removed meanwhile.
const MOST_LISTINGS: usize = 50;

impl Finder {
    fn add_directory(&mut self, directory: &Path) -> Result<(), Error> {
        let fail = |why| Error::Read { path: directory.to_path_buf(), why };
        let mut opened = Vec::new();
        for listing in 1..=MOST_LISTINGS {
            let paths = captures_of(directory).map_err(fail)?;
            if paths.is_empty() {
                return Err(Error::NoCaptures { path: directory.to_path_buf() });
            }
            let kept_before = self.kept_open;
            opened = paths.into_iter().map(|path| (self.open(&path), path)).collect();
            if listing == MOST_LISTINGS || !opened.iter().any(|(opened, _)| is_gone(opened)) {
                break;
            }
            self.kept_open = kept_before;
        }
        let newest = newest_segments(&opened);
        for (opened, path) in opened {
            match opened {
                Ok(opened) => self.take(path, opened),
                Err(_) if is_behind(&path, &newest) && is_blank(&path) => self.files += 1,
                Err(error) => self.leave_out(&path, &error),
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path) -> Result<(), Error> {
        let why = |why| Error::Read { path: path.to_path_buf(), why };
        if !fs::metadata(path).map_err(why)?.is_file() {
            return Err(Error::NotAFile { path: path.to_path_buf() });
        }
        let opened = self.open(path)?;
        self.take(path.to_path_buf(), opened);
        Ok(())
    }

    /// Opens a file, and keeps it open where that helps.
    fn open(&mut self, path: &Path) -> Result<Opened, Error> {
        let mut opened = open(path)?;
        if let Opened::Events { header, file, .. } = &mut opened {
            match is_mapped(header) && self.kept_open < MOST_KEPT_OPEN {
                true => self.kept_open += 1,
                false => *file = None,
            }
        }
        Ok(opened)
    }

    fn leave_out(&mut self, path: &Path, error: &Error) {
        self.files += 1;
        self.capture.notices.leave_out(&path.display().to_string(), &error.to_string());
    }

    fn take(&mut self, path: PathBuf, opened: Opened) {
        self.files += 1;
        // The same file under another path is one file.
        if !self.seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            return;
        }
        let Opened::Events { header, order, bytes, file } = opened else {
            self.capture.summaries.push(path);
            return;
        };
        let name = NameNumbers::of(&path);
        let mapped = is_mapped(&header);
        if let Some(named) = name.filter(|_| mapped).filter(|named| !named.agrees_with(&header)) {
            self.capture.notices.say(format!(
                "left out: {}: it holds segment {} of process {}, not segment {} of process {}",
                path.display(),
                header.seq,
                header.pid,
                named.seq,
                named.id
            ));
            return;
        }
        let streamed = name.is_some_and(|name| name.streamed);
        let id = name.map_or(header.pid, |name| name.id);
        let one_ring = streamed && header.t0_ns != 0 && header.t0_ticks != 0;
        let FileHeader { t0_ns, t0_ticks, tick_hz, load_bias, .. } = header;
        let in_ticks = header.flags & FLAG_TICKS;
        let key = GroupKey {
            directory: path.parent().map(Path::to_path_buf).unwrap_or_default(),
            streamed,
            id: (!one_ring).then_some(id),
            clock: match one_ring {
                true => (t0_ns, t0_ticks, tick_hz, load_bias, in_ticks),
                false => (t0_ns, t0_ticks, 0, 0, in_ticks),
            },
        };
        let stream = if streamed { id } else { 0 };
        let place = name.map_or((stream, header.seq, 0), |name| (stream, name.seq, name.tid));
        let seq = name.map_or(header.seq, |name| name.seq);
        let segment = Segment {
            path,
            header,
            seq,
            opener: place.2,
            bytes,
            order,
            missing_before: 0,
            resumed: false,
            stream: 0,
            capture: 0,
            file: file.map(Arc::new),
        };
        self.found.entry(key).or_default().push((place, segment));
    }

    fn finish(mut self) -> Result<Capture, Error> {
        let taken = names_taken(&self.found);
        for (key, mut placed) in by_ring(self.found) {
            placed.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.path.cmp(&b.1.path)));
            placed.dedup_by(|a, b| a.1.path == b.1.path);
            let taken = taken.get(&(key.directory.clone(), key.id));
            self.capture.groups.push(group(&key, placed, taken));
        }
        self.capture.summaries.sort();
        self.capture.summaries.dedup();
        if self.capture.groups.is_empty() && self.capture.summaries.is_empty() {
            let first = self.capture.notices.into_lines().into_iter().next().unwrap_or_default();
            return Err(Error::NothingUsable { files: self.files, first });
        }
        Ok(self.capture)
    }
}

/// Puts together what several directories have of one ring. Events have no numbers that would show what
/// is there twice: those of one directory at most.
fn by_ring(found: BTreeMap<GroupKey, Vec<Placed>>) -> Vec<(GroupKey, Vec<Placed>)> {
    let is_packed = |placed: &[Placed]| placed.iter().all(|(_, segment)| segment.is_packed());
    let mut groups: Vec<(GroupKey, Vec<Placed>)> = Vec::new();
    let mut rings: BTreeMap<OriginKey, usize> = BTreeMap::new();
    for (key, placed) in found {
        let is_ring = key.streamed && key.id.is_none();
        let known = rings.get(&key.clock).copied().filter(|_| is_ring);
        match known {
            Some(at) if is_packed(&placed) || is_packed(&groups[at].1) => {
                groups[at].1.extend(placed);
            }
            _ => {
                if is_ring {
                    rings.entry(key.clock).or_insert(groups.len());
                }
                groups.push((key, placed));
            }
        }
    }
    groups
}

/// Thread and number of segments of processes of ours, by folder and pid. A life leaves out the numbers
/// under which another one has a file of the same thread id.
type NamesTaken = BTreeMap<(PathBuf, Option<u32>), BTreeSet<(u32, u32)>>;

fn names_taken(found: &BTreeMap<GroupKey, Vec<Placed>>) -> NamesTaken {
    let mut taken = NamesTaken::new();
    for (key, placed) in found.iter().filter(|(key, _)| !key.streamed) {
        let mapped = placed.iter().filter(|(_, segment)| is_mapped(&segment.header));
        let names = mapped.map(|(_, segment)| (segment.opener, segment.seq));
        taken.entry((key.directory.clone(), key.id)).or_default().extend(names);
    }
    taken
}

fn group(key: &GroupKey, placed: Vec<Placed>, taken: Option<&BTreeSet<(u32, u32)>>) -> Group {
    let first_stream = placed.first().map_or(0, |((stream, ..), _)| *stream);
    let wrapped = placed.iter().any(|(_, segment)| segment.header.flags & FLAG_WRAPPED != 0);
    let placed = placed.into_iter().map(|((stream, ..), segment)| (stream, segment));
    let mut segments = match key.streamed {
        true => arrange(placed.collect()),
        false => placed.map(|(_, segment)| segment).collect(),
    };
    let first = segments.first().map(|segment| segment.header).unwrap_or_default();
    // The reference numbers segments by thread, and skips numbers that are taken.
    if key.streamed || is_mapped(&first) {
        number(&mut segments, taken);
    }
    Group {
        id: key.id.unwrap_or(first_stream),
        streamed: key.streamed,
        mapped: is_mapped(&first),
        origin: first.origin(),
        wrapped,
        segments,
    }
}

/// Finds what is missing in each capture, and where another stream goes on.
fn number(segments: &mut [Segment], taken: Option<&BTreeSet<(u32, u32)>>) {
    let (mut next, mut last) = (0, (0, 0));
    for segment in segments {
        if (segment.stream, segment.capture) != last {
            segment.resumed = segment.stream != last.0;
            (next, last) = (0, (segment.stream, segment.capture));
        }
        let (opener, left_out) = (segment.opener, next..segment.seq.max(next));
        let names = (opener, left_out.start)..(opener, left_out.end);
        let of_others = taken.map_or(0, |taken| taken.range(names).count() as u32);
        segment.missing_before = left_out.end - left_out.start - of_others;
        next = segment.seq.saturating_add(1);
    }
}

/// The files of a folder that have the name of a capture, sorted.
fn captures_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if is_capture_name(&path) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_gone(opened: &Result<Opened, Error>) -> bool {
    matches!(opened, Err(Error::Read { why, .. }) if why.kind() == io::ErrorKind::NotFound)
}

/// The highest number of the segments that are here of each process of ours, by pid.
fn newest_segments(opened: &[(Result<Opened, Error>, PathBuf)]) -> BTreeMap<u32, u32> {
    let mut newest = BTreeMap::new();
    for (opened, path) in opened {
        if let (Ok(Opened::Events { header, .. }), Some(name)) = (opened, NameNumbers::of(path))
            && is_mapped(header)
            && name.agrees_with(header)
        {
            let seq = newest.entry(name.id).or_insert(name.seq);
            *seq = name.seq.max(*seq);
        }
    }
    newest
}

/// Whether its process has other segments here, and this is a later one.
fn is_behind(path: &Path, newest: &BTreeMap<u32, u32>) -> bool {
    NameNumbers::of(path)
        .filter(|name| !name.streamed)
        .is_some_and(|name| newest.get(&name.id).is_some_and(|seq| name.seq > *seq))
}

/// Whether its program was killed before it wrote the header, so that nothing is lost: the file is empty,
/// or has only the room that is reserved first. Of 508 wrapping programs that were killed, 8 left
/// the one and 15 the other.
fn is_blank(path: &Path) -> bool {
    let first_bytes = 2 * FILE_WINDOW_BYTES as u64;
    let is_small = fs::metadata(path).is_ok_and(|file| file.len() <= first_bytes);
    is_small && fs::read(path).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0))
}

fn is_mapped(header: &FileHeader) -> bool {
    header.header_size as usize == FILE_HEADER_MAPPED_BYTES
}

/// A header, and as much of what is behind it as shows what that is.
const HEAD_BYTES: usize = FILE_HEADER_BYTES + CHUNK_HEADER_BYTES + 4;

fn open(path: &Path) -> Result<Opened, Error> {
    let fail = |why: io::Error| Error::Read { path: path.to_path_buf(), why };
    let mut file = File::open(path).map_err(fail)?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    file.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.starts_with(&SUMMARY_MAGIC) {
        return Ok(Opened::Summary);
    }
    match FileHeader::parse(&bytes) {
        Ok((mut header, order)) => {
            // What stands behind a header says more than one damaged bit in it.
            let behind = bytes.get(FILE_HEADER_BYTES..).unwrap_or_default();
            if begins_with_chunk(behind, order) {
                header.version = FILE_VERSION_CHUNKS;
                header.header_size = FILE_HEADER_BYTES as u32;
            }
            let bytes = file.metadata().map_err(fail)?.len();
            Ok(Opened::Events { header, order, bytes, file: Some(file) })
        }
        Err(why) => Err(Error::Header { path: path.to_path_buf(), why: name(why, &bytes) }),
    }
}

/// An empty file says more than "another first word" would.
fn name(error: HeaderError, bytes: &[u8]) -> HeaderError {
    match bytes.iter().all(|byte| *byte == 0) {
        true => HeaderError::Short { found: 0 },
        false => error,
    }
}

fn is_capture_name(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.starts_with("trace.") && name.ends_with(".bin")
}

/// The numbers in the name of an event file.
#[derive(Clone, Copy)]
struct NameNumbers {
    streamed: bool,
    id: u32,
    tid: u32,
    seq: u32,
}

impl NameNumbers {
    /// Whether a segment of ours is where it was written.
    fn agrees_with(&self, header: &FileHeader) -> bool {
        (self.id, self.seq) == (header.pid, header.seq)
    }

    fn of(path: &Path) -> Option<NameNumbers> {
        let name = path.file_name()?.to_str()?;
        let parts: Vec<&str> =
            name.strip_prefix("trace.")?.strip_suffix(".bin")?.split('.').collect();
        let [first, second, third] = parts[..] else { return None };
        let seq = third.parse().ok()?;
        Some(match first {
            "stream" => NameNumbers { streamed: true, id: second.parse().ok()?, tid: 0, seq },
            pid => {
                let (id, tid) = (pid.parse().ok()?, second.parse().ok()?);
                NameNumbers { streamed: false, id, tid, seq }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes event files with these names, gives the names of each group in order.
    fn groups(names: &[&str]) -> Vec<Vec<String>> {
        let directory = tempfile::tempdir().expect("a directory");
        for name in names {
            let header = FileHeader::new(Origin::default(), 0, 0).to_bytes(ByteOrder::Little);
            fs::write(directory.path().join(name), header).expect("write");
        }
        let capture = Capture::open(&[directory.path().to_path_buf()]).expect("a capture");
        let name = |segment: &Segment| {
            segment.path.file_name().expect("a name").to_string_lossy().into_owned()
        };
        capture.groups.iter().map(|group| group.segments.iter().map(name).collect()).collect()
    }

    #[test]
    fn segment_10_comes_after_segment_2() {
        let names = ["trace.7.7.10.bin", "trace.7.7.2.bin", "trace.7.7.0.bin"];
        let expected = ["trace.7.7.0.bin", "trace.7.7.2.bin", "trace.7.7.10.bin"];
        assert_eq!(groups(&names), [expected]);
    }

    #[test]
    fn streams_and_processes_of_one_number_stay_apart() {
        let names = ["trace.1.1.0.bin", "trace.stream.1.0.bin", "trace.stream.2.0.bin"];
        assert_eq!(groups(&names), names.map(|name| vec![name.to_string()]));
    }

    #[test]
    fn a_directory_without_captures_says_so() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("trace.1.1.0.bin")).expect("a directory of that name");
        let error = Capture::open(&[directory.path().to_path_buf()]).expect_err("nothing there");
        assert!(matches!(error, Error::NoCaptures { .. }), "{error}");
    }

    #[test]
    fn a_named_file_that_is_no_capture_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notes.txt");
        fs::write(&path, "not a capture at all, but long enough to hold one").expect("write");
        let error = Capture::open(&[path]).expect_err("no capture");
        assert!(error.to_string().contains("not a callsight capture"), "{error}");
    }

    #[test]
    fn a_missing_path_names_itself() {
        let error = Capture::open(&[PathBuf::from("/nonexistent/traces")]).expect_err("missing");
        assert!(error.to_string().contains("/nonexistent/traces"), "{error}");
    }
}
