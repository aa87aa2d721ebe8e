//! The wire of a device: bytes in, items out.

mod decoder;
mod frame;
mod sender;

pub use decoder::{ChunkDecoder, Item, StreamError};
pub use frame::FrameError;
pub use sender::{Sender, StreamEnd, printable};
