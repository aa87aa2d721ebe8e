//! What `/proc/self` says: environment, start time, mapped files.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::bytes::{self, Shared, Text};
use crate::filter;
use crate::sys::{self, Fd, O_NOFOLLOW, O_PATH, O_RDONLY};

/// Longest line or variable that is looked at; longer ones are skipped.
const ITEM_BYTES: usize = 8192;

/// Two buffers for the one thread that reads (the initialising one, or under the module lock).
static ITEM: Shared<[u8; ITEM_BYTES]> = Shared::new([0; ITEM_BYTES]);
static CHUNK: Shared<[u8; 4096]> = Shared::new([0; 4096]);

/// Cuts the file at `path` at each `end` byte and gives the pieces, without it, to `each`.
///
/// Whether the file could be read. Not reentrant: callers hold the module lock or initialise.
fn each_item(path: &[u8], end: u8, mut each: impl FnMut(&[u8])) -> bool {
    let Ok(file) = Fd::open(path, O_RDONLY, 0) else { return false };
    // SAFETY: see the note on reentrancy.
    let (item, chunk) = unsafe { (&mut *ITEM.get(), &mut *CHUNK.get()) };
    let mut len = 0;
    loop {
        let got = file.read(chunk);
        if got == 0 {
            break;
        }
        for &byte in chunk.get(..got).unwrap_or(&[]) {
            if byte == end {
                if let Some(whole) = item.get(..len) {
                    each(whole);
                }
                len = 0;
            } else {
                if let Some(place) = item.get_mut(len) {
                    *place = byte;
                }
                len += 1;
            }
        }
    }
    if let (1.., Some(rest)) = (len, item.get(..len)) {
        each(rest);
    }
    true
}

/// Gives each variable of the environment the process was started with.
///
/// Before libc is initialised `environ` is not yet set, so the kernel is asked first.
pub fn each_variable(mut each: impl FnMut(&[u8], &[u8])) {
    let read = each_item(b"/proc/self/environ\0", 0, |item| {
        if let Some(equals) = item.iter().position(|&byte| byte == b'=') {
            each(item.get(..equals).unwrap_or(&[]), item.get(equals + 1..).unwrap_or(&[]));
        }
    });
    if !read {
        each_libc_variable(each);
    }
}

/// The same from libc's `environ`, for systems without `/proc`.
fn each_libc_variable(mut each: impl FnMut(&[u8], &[u8])) {
    let mut at = crate::process::libc_environ();
    while !at.is_null() {
        // SAFETY: `environ` is a null-terminated array of zero-terminated strings.
        let text = unsafe { *at };
        if text.is_null() {
            break;
        }
        let mut len = 0;
        // SAFETY: as above.
        while unsafe { *text.add(len) } != 0 {
            len += 1;
        }
        // SAFETY: as above.
        let item = unsafe { core::slice::from_raw_parts(text, len) };
        if let Some(equals) = item.iter().position(|&byte| byte == b'=') {
            each(item.get(..equals).unwrap_or(&[]), item.get(equals + 1..).unwrap_or(&[]));
        }
        // SAFETY: not yet at the null.
        at = unsafe { at.add(1) };
    }
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Start time in clock ticks since boot.
    pub start: u64,
    /// It is a zombie, and not only its first thread is.
    pub has_ended: bool,
}

impl Stat {
    /// That of process `pid`; `None` where there is none, or it is hidden.
    pub fn of(pid: u32) -> Option<Stat> {
        let mut path = Text::<32>::new();
        path.push(b"/proc/").push_number(u64::from(pid)).push(b"/stat");
        let mut stat = None;
        each_item(path.terminated()?, 0, |text| stat = stat.or_else(|| Stat::parse(text)));
        stat
    }

    /// Fields 3, 20 and 22 of the line. The name in field 2 may hold anything, so count from its `)`.
    fn parse(text: &[u8]) -> Option<Stat> {
        let close = text.iter().rposition(|&byte| byte == b')')?;
        let mut fields = text.get(close + 2..)?.split(|&byte| byte == b' ');
        let is_zombie = matches!(fields.next()?, b"Z" | b"X");
        let threads = bytes::number(fields.nth(16)?)?;
        let start = bytes::number(fields.nth(1)?)?;
        Some(Stat { start, has_ended: is_zombie && threads <= 1 })
    }
}

/// Whether this process runs in the memory of process `pid`, its parent: the child of a `vfork`. Nobody
/// says so, but what is mapped here is then mapped there. `false` where that cannot be tried.
pub fn is_in_memory_of(pid: u32) -> bool {
    // The parent may be trying the same just now.
    (0..3).all(|_| grows_with_us(pid))
}

fn grows_with_us(pid: u32) -> bool {
    // More than what threads of that process map meanwhile, in pages of any size.
    const BYTES: usize = 256 << 20;
    const LARGEST_PAGE_BYTES: u64 = 64 << 10;
    const GROWS: u64 = BYTES as u64 / LARGEST_PAGE_BYTES / 2;
    let Some(before) = mapped_pages(pid) else { return false };
    let Ok(at) = sys::reserve_addresses(BYTES, 4096) else { return false };
    let during = mapped_pages(pid).unwrap_or(0);
    sys::unmap(at, BYTES);
    during >= before + GROWS && mapped_pages(pid).is_some_and(|after| after + GROWS <= during)
}

/// How many pages process `pid` has mapped, with or without memory in them.
fn mapped_pages(pid: u32) -> Option<u64> {
    let mut path = Text::<32>::new();
    path.push(b"/proc/").push_number(u64::from(pid)).push(b"/statm");
    let mut text = [0; 32];
    let len = Fd::open(path.terminated()?, O_RDONLY, 0).ok()?.read(&mut text);
    bytes::number(text.get(..len)?.split(|&byte| byte == b' ').next()?)
}

/// The pid namespace of this process, `pid` in it: inode of `/proc/self/ns/pid`, 0 where nobody says.
/// `None` where `/proc` is that of another one: what it says of a pid is of another process.
pub fn pid_namespace(pid: u32) -> Option<u64> {
    let mut shown = [0; 16];
    match sys::read_link(b"/proc/self\0", &mut shown) {
        Ok(len) if shown.get(..len).and_then(bytes::number) != Some(u64::from(pid)) => None,
        Ok(_) => Some(own_namespace().unwrap_or(0)),
        // In a namespace that it does not show we have no number, but the link is there.
        Err(sys::ENOENT) if Fd::open(b"/proc/self\0", O_PATH | O_NOFOLLOW, 0).is_ok() => None,
        Err(_) => Some(0),
    }
}

fn own_namespace() -> Option<u64> {
    let mut link = [0; 32];
    let len = sys::read_link(b"/proc/self/ns/pid\0", &mut link).ok()?;
    bytes::number(link.get(..len)?.strip_prefix(b"pid:[")?.strip_suffix(b"]")?)
}

/// One line of `/proc/self/maps` that names a file.
pub struct Mapping<'a> {
    /// First address.
    pub start: usize,
    /// Address behind the last.
    pub end: usize,
    /// May be read.
    pub readable: bool,
    /// May be executed.
    pub executable: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device, and its inode.
    file: [u64; 3],
    /// Path as the kernel shows it.
    pub path: &'a [u8],
}

impl Mapping<'_> {
    /// Where it is, and of what.
    pub fn place(&self) -> Place {
        let [major, minor, inode] = self.file;
        [self.start as u64, self.end as u64, self.offset, major, minor, inode]
    }
}

/// Longest `/proc/self/maps` that is kept.
const KEPT_BYTES: usize = 16 << 10;
static KEPT: Shared<[u8; KEPT_BYTES]> = Shared::new([0; KEPT_BYTES]);
/// How many bytes are kept, and for how many readers.
static KEPT_LEN: AtomicUsize = AtomicUsize::new(0);
static KEPT_FOR: AtomicU32 = AtomicU32::new(0);

/// Reads the mappings once for the next two that ask, as a process does at its first hook: the
/// kernel takes 20 to 50 µs to write them down. For the thread that initialises the process.
pub fn keep_mappings() {
    let Ok(file) = Fd::open(MAPS, O_RDONLY, 0) else { return };
    // SAFETY: see the note on reentrancy.
    let len = file.read_all(unsafe { &mut *KEPT.get() });
    KEPT_LEN.store(len, Relaxed);
    KEPT_FOR.store(if len < KEPT_BYTES { 2 } else { 0 }, Relaxed);
}

/// Gives each mapping of a file, in order of address. Whether the kernel told.
pub fn each_mapping(mut each: impl FnMut(&Mapping)) -> bool {
    let mut number = bytes::HASH_START;
    let mut give = |mapping: &Mapping| {
        if mapping.executable {
            number = hash_program(number, mapping.place());
        }
        each(mapping);
    };
    let readers = KEPT_FOR.load(Relaxed);
    let is_read = if readers > 0 {
        KEPT_FOR.store(readers - 1, Relaxed);
        // SAFETY: see the note on reentrancy.
        let kept = unsafe { &*KEPT.get() }.get(..KEPT_LEN.load(Relaxed)).unwrap_or(&[]);
        kept.split(|&byte| byte == b'\n').filter_map(parse_mapping).for_each(|at| give(&at));
        true
    } else {
        each_item(MAPS, b'\n', |line| {
            if let Some(mapping) = parse_mapping(line) {
                give(&mapping);
            }
        })
    };
    GIVEN.store(if is_read { number } else { 0 }, Relaxed);
    is_read
}

const MAPS: &[u8] = b"/proc/self/maps\0";

/// [`programs_mapped`] of the mappings that were last given to somebody; 0 where it is not known.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Whether other files may be mapped for execution than [`each_mapping`] has last given. To ask takes a
/// tenth of what reading them all takes.
pub fn may_have_changed() -> bool {
    let given = GIVEN.load(Relaxed);
    let now = || programs_mapped(&Fd::open(MAPS, O_RDONLY, 0).ok()?);
    given == 0 || now() != Some(given)
}

/// What the kernel is asked of a mapping, and answers: its `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct MappingQuery {
    bytes: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    /// Of the name and of the build-id; 0: not asked for.
    lengths: [u32; 2],
    places: [u64; 2],
}

/// The request for that: `_IOWR('f', 17, struct procmap_query)`, kernel 6.11.
pub const PROCMAP_QUERY: usize = 3 << 30 | size_of::<MappingQuery>() << 16 | 0x66 << 8 | 17;
const _: () = assert!(PROCMAP_QUERY == 0xc068_6611);

/// Asks for the mapping at `address`, or from it on, of which `flags` are true.
///
/// # Errors
/// errno: `ENOENT` where there is none, others where the kernel is too old to be asked, or may not be.
fn ask(maps: &Fd, flags: u64, address: u64) -> Result<MappingQuery, isize> {
    if filter::forbids(filter::QUERY) {
        return Err(sys::EPERM);
    }
    let bytes = size_of::<MappingQuery>() as u64;
    let mut query = MappingQuery { bytes, flags, address, ..MappingQuery::default() };
    // SAFETY: the kernel reads and writes one such structure, and no name is asked for.
    unsafe { maps.ask(PROCMAP_QUERY, &mut query) }?;
    Ok(query)
}

/// A number for the mappings of files that may be executed, as [`hash_program`] makes it of each: as good as
/// never the same for others. `None` where the kernel is too old to be asked, or may not be.
fn programs_mapped(maps: &Fd) -> Option<u64> {
    /// Of the next mapping from the address on: executable, and of a file.
    const NEXT_PROGRAM: u64 = 0x4 | 0x10 | 0x20;
    let (mut number, mut address) = (bytes::HASH_START, 0);
    loop {
        let query = match ask(maps, NEXT_PROGRAM, address) {
            Ok(query) => query,
            Err(sys::ENOENT) => return Some(number),
            Err(_) => return None,
        };
        address = query.end;
        let [major, minor] = query.device.map(u64::from);
        let MappingQuery { start, end, offset, inode, .. } = query;
        number = hash_program(number, [start, end, offset, major, minor, inode]);
    }
}

/// What tells a mapping from others: start, end and offset in the file, major and minor number of its device,
/// inode.
pub type Place = [u64; 6];

/// Whether a mapping that was read a moment ago is still there; where the kernel cannot be asked, yes.
pub fn is_mapped(place: Place) -> bool {
    const THIS_OF_A_FILE: u64 = 0x20;
    let [start, _, offset, major, minor, inode] = place;
    let Ok(maps) = Fd::open(MAPS, O_RDONLY, 0) else { return true };
    match ask(&maps, THIS_OF_A_FILE, start) {
        Ok(found) => {
            let device = found.device.map(u64::from);
            (found.start, found.offset, device, found.inode)
                == (start, offset, [major, minor], inode)
        }
        Err(errno) => errno != sys::ENOENT,
    }
}

/// The next [`may_have_changed`] says yes: not all of what was given was there any more.
pub fn look_again() {
    GIVEN.store(0, Relaxed);
}

fn hash_program(number: u64, place: Place) -> u64 {
    place.into_iter().flat_map(u64::to_le_bytes).fold(number, bytes::hash)
}

fn parse_mapping(line: &[u8]) -> Option<Mapping<'_>> {
    let path = line.iter().position(|&byte| byte == b'/')?;
    let mut fields = line.get(..path)?.split(|&byte| byte == b' ');
    let mut range = fields.next()?.split(|&byte| byte == b'-');
    let rights = fields.next()?;
    Some(Mapping {
        start: hex(range.next()?)? as usize,
        end: hex(range.next()?)? as usize,
        readable: rights.first() == Some(&b'r'),
        executable: rights.get(2) == Some(&b'x'),
        offset: hex(fields.next()?)?,
        file: {
            let mut device = fields.next()?.split(|&byte| byte == b':');
            let (major, minor) = (hex(device.next()?)?, hex(device.next()?)?);
            [major, minor, bytes::number(fields.next()?)?]
        },
        path: line.get(path..)?,
    })
}

fn hex(text: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for &byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        value = (value << 4) | u64::from(digit);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_full_of_blanks_and_brackets_does_not_shift_the_start_time() {
        let stat = b"7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(Stat::parse(stat), Some(Stat { start: 4242, has_ended: false }));
    }

    #[test]
    fn a_zombie_has_ended_unless_other_threads_go_on() {
        let zombie = b"7 (a) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4242 20";
        assert_eq!(Stat::parse(zombie), Some(Stat { start: 4242, has_ended: true }));
        let leader = b"7 (a) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 2 18 4242 20";
        assert_eq!(Stat::parse(leader), Some(Stat { start: 4242, has_ended: false }));
    }

    #[test]
    fn a_mapping_line_is_taken_apart() {
        let line = b"7f00-7fff r-xp 00001000 08:01 12  /usr/lib/my lib.so (deleted)";
        let mapping = parse_mapping(line).expect("a file mapping");
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f00, 0x7fff, 0x1000));
        assert!(mapping.readable && mapping.executable);
        assert_eq!(mapping.path, b"/usr/lib/my lib.so (deleted)");
        assert!(parse_mapping(b"7f00-7fff rw-p 00000000 00:00 0 [heap]").is_none());
    }
}
