//! Every byte layout of callsight, defined once: the event, the file, the ring and the wire.
//!
//! The runtime stores through these types, the host crates read through them, and cbindgen turns
//! them into `trace_shm.h` for the drain and for C users. No dependency, no unsafe, no allocation.
//!
//! All integers are in the producer's byte order; a reader finds it from the version word
//! ([`ByteOrder::of_version`]). What is marked (2) has the size, name and meaning of format
//! version 2, so that captures and streams of other version 2 tools and ours are interchangeable.
//!
//! Knows nothing of files, sockets, mappings or clocks.

#![no_std]
#![forbid(unsafe_code)]

mod block;
mod event;
mod file;
mod note;
mod order;
mod pack;
mod reply;
mod ring;
mod wire;

pub use block::*;
pub use event::*;
pub use file::*;
pub use note::*;
pub use order::*;
pub use pack::Unpacker;
pub use reply::*;
pub use ring::*;
pub use wire::*;
