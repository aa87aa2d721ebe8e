//! The wire of a device: bytes in, items out.

mod decoder;
mod frame;
mod sender;

pub use decoder::{Block, Chunk, ChunkDecoder, Item, StreamError};
pub use frame::FrameError;
pub(crate) use frame::inflate;
pub use sender::{Sender, StreamEnd, StreamId, in_one_line, printable};
