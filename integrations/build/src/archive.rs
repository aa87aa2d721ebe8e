//! One object → a static library that holds it, with the index that linkers look into.
//!
//! The format is the System V one of GNU `ar`: a magic line, then members, each a 60-byte header of
//! text and its bytes, padded to an even length. Member `/` is the index: big-endian counts and
//! offsets, then the names. Member `//` holds member names longer than 15 bytes, which ours is;
//! `/0` refers to it. Dates, owners and modes are fixed, so that equal input gives equal bytes.

use object::{Object, ObjectSymbol};

use crate::Error;

const MAGIC: &[u8] = b"!<arch>\n";
const HEADER_BYTES: usize = 60;
/// A static library of one member, `name`.
///
/// # Errors
/// `object` is not an object file.
pub fn archive_of(name: &str, object: &[u8]) -> Result<Vec<u8>, Error> {
    let symbols = index_names(object)?;
    let names = format!("{name}/\n");
    let index_bytes = 4 + 4 * symbols.len() + symbols.iter().map(|s| s.len() + 1).sum::<usize>();
    let object_at = MAGIC.len() + 2 * HEADER_BYTES + even(index_bytes) + even(names.len());

    let mut index = Vec::with_capacity(index_bytes);
    index.extend_from_slice(&(symbols.len() as u32).to_be_bytes());
    for _ in &symbols {
        index.extend_from_slice(&(object_at as u32).to_be_bytes());
    }
    for symbol in &symbols {
        index.extend_from_slice(symbol);
        index.push(0);
    }

    let mut archive = MAGIC.to_vec();
    push_member(&mut archive, "/", &index);
    push_member(&mut archive, "//", names.as_bytes());
    push_member(&mut archive, "/0", object);
    Ok(archive)
}

/// Names that a linker may pull the object in for.
fn index_names(object: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let file = object::File::parse(object)?;
    let globals = file.symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    Ok(globals.map(|symbol| symbol.name_bytes().map(<[u8]>::to_vec)).collect::<Result<_, _>>()?)
}

fn push_member(archive: &mut Vec<u8>, name: &str, data: &[u8]) {
    let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, "100644", data.len());
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(data);
    if data.len() % 2 == 1 {
        archive.push(b'\n');
    }
}

fn even(bytes: usize) -> usize {
    bytes + bytes % 2
}
