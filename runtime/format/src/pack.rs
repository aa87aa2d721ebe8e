//! A block → its records. The books it keeps are described in `block.rs`.
//!
//! Whatever is in a block, nothing is read beyond it and nothing is kept of it; one that contradicts
//! itself is an error.

use crate::{
    BlockError, BlockHeader, ByteOrder, EVENT_BYTES, Event, KIND_ENTER, KIND_EXIT, OP_ENTER,
    OP_ENTER_NEW, OP_ENTER_PAIR, OP_EXIT, OP_EXIT_BELOW, OP_EXIT_NEW, OP_EXIT_PAIR, OP_FRAME,
    OP_RECORD, PACK_BELOW, PACK_FUNCTIONS, PACK_PAIRS, PACK_STACK, TIME_4_BYTES, TIME_8_BYTES,
    TIME_LONGER,
};

/// A column that is read from its front.
struct Column<'a>(&'a [u8]);

impl<'a> Column<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BlockError> {
        let (front, rest) = self.0.split_first_chunk().ok_or(BlockError::Contents)?;
        self.0 = rest;
        Ok(*front)
    }

    fn byte(&mut self) -> Result<u8, BlockError> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// LEB128 (DWARF 5, section 7.6), at most 64 bits.
    fn number(&mut self) -> Result<u64, BlockError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(BlockError::Contents)
    }

    /// A zigzag number: 0, -1, 1, -2, ...
    fn distance(&mut self) -> Result<u64, BlockError> {
        let number = self.number()?;
        Ok(number >> 1 ^ (number & 1).wrapping_neg())
    }

    fn frame(&mut self) -> Result<u32, BlockError> {
        let [low, middle, high] = self.take()?;
        Ok(u32::from_le_bytes([low, middle, high, 0]))
    }
}

#[derive(Clone, Copy, Default)]
struct Pair {
    func: u64,
    call_site: u64,
    step: u32,
}

#[derive(Clone, Copy, Default)]
struct Function {
    func: u64,
    step: u32,
}

#[derive(Clone, Copy, Default)]
struct Open {
    func: u64,
    call_site: u64,
    frame: u32,
    pair: u32,
}

/// Takes blocks apart. 70 KiB: keep it in a box.
pub struct Unpacker {
    pairs: [Pair; PACK_PAIRS],
    /// Behind nothing; behind an enter and behind an exit of each pair: the pair that came next,
    /// plus one.
    next: [u16; 1 + 2 * PACK_PAIRS],
    functions: [Function; PACK_FUNCTIONS],
    stack: [Open; PACK_STACK],
    pair_count: usize,
    function_count: usize,
    depth: u32,
    /// Where in `next` the last call left us.
    context: usize,
    /// Frame under the outermost call.
    base: u32,
    last_func: u64,
    last_site: u64,
}

/// The columns of a block behind `ops` and `times`.
struct Columns<'a> {
    times: Column<'a>,
    ids: Column<'a>,
    names: Column<'a>,
    frames: Column<'a>,
    literals: Column<'a>,
}

impl Default for Unpacker {
    fn default() -> Unpacker {
        Unpacker::new()
    }
}

impl Unpacker {
    /// With empty books.
    pub const fn new() -> Unpacker {
        Unpacker {
            pairs: [Pair { func: 0, call_site: 0, step: 0 }; PACK_PAIRS],
            next: [0; 1 + 2 * PACK_PAIRS],
            functions: [Function { func: 0, step: 0 }; PACK_FUNCTIONS],
            stack: [Open { func: 0, call_site: 0, frame: 0, pair: 0 }; PACK_STACK],
            pair_count: 0,
            function_count: 0,
            depth: 0,
            context: 0,
            base: 0,
            last_func: 0,
            last_site: 0,
        }
    }

    /// Shows each record of a block, in order.
    ///
    /// # Errors
    /// What is wrong with the block. By then some of its records may have been shown.
    pub fn unpack(
        &mut self,
        block: &[u8],
        show: impl FnMut(&Event),
    ) -> Result<BlockHeader, BlockError> {
        let header = BlockHeader::parse(block)?;
        self.unpack_checked(&header, block, show)?;
        Ok(header)
    }

    /// The same of a block that was checked: `header` is what [`BlockHeader::parse`] made of it.
    ///
    /// # Errors
    /// See [`Unpacker::unpack`].
    pub fn unpack_checked(
        &mut self,
        header: &BlockHeader,
        block: &[u8],
        mut show: impl FnMut(&Event),
    ) -> Result<(), BlockError> {
        let mut rest = block.get(usize::from(header.header_bytes)..).ok_or(BlockError::Short)?;
        let mut column = |bytes: u32| {
            let (column, behind) =
                rest.split_at_checked(bytes as usize).ok_or(BlockError::Short)?;
            rest = behind;
            Ok(column)
        };
        let ops = column(header.records)?;
        let times = column(header.records)?;
        let mut columns = Columns {
            times: Column(column(header.time_bytes)?),
            ids: Column(column(header.id_bytes)?),
            names: Column(column(header.name_bytes)?),
            frames: Column(column(header.frame_bytes)?),
            literals: Column(column(header.literal_bytes)?),
        };
        self.begin(header);
        let mut ts = header.first_ts;
        let mut calls = 0;
        // One place for all of them: a record that is moved is read with wider loads than it was
        // stored with, which costs more than all else that is done for it.
        let mut event = Event::default();
        for (op, time) in ops.iter().zip(times) {
            ts = ts.wrapping_add(read_time(*time, &mut columns.times)?);
            self.record(*op, header.tid, &mut columns, &mut event)?;
            event.ts = ts;
            calls += u32::from(matches!(event.kind, KIND_ENTER | KIND_EXIT));
            show(&event);
        }
        let Columns { times, ids, names, frames, literals } = columns;
        let left = [times.0, ids.0, names.0, frames.0, literals.0];
        if left.iter().any(|column| !column.is_empty()) || calls != header.calls {
            return Err(BlockError::Contents);
        }
        Ok(())
    }

    fn begin(&mut self, header: &BlockHeader) {
        self.pair_count = 0;
        self.function_count = 0;
        self.depth = 0;
        self.context = 0;
        self.next[0] = 0;
        self.base = header.frame;
        self.last_func = 0;
        self.last_site = 0;
    }

    #[inline]
    fn record(
        &mut self,
        op: u8,
        tid: u32,
        columns: &mut Columns<'_>,
        event: &mut Event,
    ) -> Result<(), BlockError> {
        event.tid = tid;
        if op == OP_EXIT {
            return self.exit(0, event);
        }
        let framed = op & OP_FRAME != 0;
        match op & !OP_FRAME {
            OP_ENTER => {
                let next = usize::from(self.next[self.context]);
                let pair = next.checked_sub(1).ok_or(BlockError::Contents)?;
                self.enter(pair, framed, &mut columns.frames, event)
            }
            OP_ENTER_PAIR => {
                let pair = self.known_pair(&mut columns.ids)?;
                self.enter(pair, framed, &mut columns.frames, event)
            }
            OP_ENTER_NEW => {
                let (pair, function) = self.new_pair(columns)?;
                self.enter(pair, framed, &mut columns.frames, event)?;
                self.functions[function].step = self.pairs[pair].step;
                Ok(())
            }
            OP_EXIT_BELOW if !framed => self.exit(u32::from(columns.ids.byte()?), event),
            OP_EXIT_PAIR if !framed => {
                let pair = self.known_pair(&mut columns.ids)?;
                self.stray_exit(pair, &mut columns.frames, event)
            }
            OP_EXIT_NEW if !framed => {
                let (pair, _) = self.new_pair(columns)?;
                self.stray_exit(pair, &mut columns.frames, event)
            }
            OP_RECORD => {
                *event = literal(&mut columns.literals)?;
                Ok(())
            }
            _ => Err(BlockError::Contents),
        }
    }

    /// The caller of what comes next.
    fn top(&self) -> Option<&Open> {
        let below = self.depth.checked_sub(1)?;
        Some(&self.stack[below as usize % PACK_STACK])
    }

    #[inline]
    fn enter(
        &mut self,
        index: usize,
        framed: bool,
        frames: &mut Column<'_>,
        event: &mut Event,
    ) -> Result<(), BlockError> {
        let above = self.top().map_or(self.base, |open| open.frame);
        // A pair that was foreseen may have been forgotten since.
        let pair = self.pairs[..self.pair_count].get_mut(index).ok_or(BlockError::Contents)?;
        if framed {
            pair.step = frames.frame()?;
        }
        let Pair { func, call_site, step } = *pair;
        let frame = above.wrapping_sub(step) & 0xff_ffff;
        self.next[self.context] = index as u16 + 1;
        self.stack[self.depth as usize % PACK_STACK] =
            Open { func, call_site, frame, pair: index as u32 };
        self.depth += 1;
        self.context = 1 + 2 * index;
        put_call(event, KIND_ENTER, func, call_site, frame);
        Ok(())
    }

    /// An exit of the call that is `below` the top of the stack.
    #[inline]
    fn exit(&mut self, below: u32, event: &mut Event) -> Result<(), BlockError> {
        let depth = self.depth.checked_sub(below + 1).ok_or(BlockError::Contents)?;
        if below >= PACK_BELOW {
            return Err(BlockError::Contents);
        }
        self.depth = depth;
        let Open { func, call_site, frame, pair } = self.stack[depth as usize % PACK_STACK];
        self.context = 2 + 2 * pair as usize;
        put_call(event, KIND_EXIT, func, call_site, frame);
        Ok(())
    }

    /// An exit of a call that began before the block, or that nobody knows of.
    fn stray_exit(
        &mut self,
        index: usize,
        frames: &mut Column<'_>,
        event: &mut Event,
    ) -> Result<(), BlockError> {
        let frame = frames.frame()?.wrapping_add(self.base) & 0xff_ffff;
        if self.depth == 0 {
            self.base = frame;
        }
        let Pair { func, call_site, .. } = self.pairs[index];
        self.context = 2 + 2 * index;
        put_call(event, KIND_EXIT, func, call_site, frame);
        Ok(())
    }

    fn known_pair(&self, ids: &mut Column<'_>) -> Result<usize, BlockError> {
        let index = usize::try_from(ids.number()?).map_err(|_| BlockError::Contents)?;
        if index < self.pair_count { Ok(index) } else { Err(BlockError::Contents) }
    }

    /// A pair that was not known, and the number of its function.
    fn new_pair(&mut self, columns: &mut Columns<'_>) -> Result<(usize, usize), BlockError> {
        if self.pair_count == PACK_PAIRS {
            self.pair_count = 0;
            self.context = 0;
        }
        let function = match columns.ids.number()? as usize {
            0 => self.new_function(&mut columns.names)?,
            number if number <= self.function_count => number - 1,
            _ => return Err(BlockError::Contents),
        };
        let near = self.top().map_or(self.last_site, |caller| caller.func);
        let call_site = near.wrapping_add(columns.names.distance()?);
        self.last_site = call_site;
        let Function { func, step } = self.functions[function];
        let index = self.pair_count;
        self.pairs[index] = Pair { func, call_site, step };
        self.next[1 + 2 * index] = 0;
        self.next[2 + 2 * index] = 0;
        self.pair_count += 1;
        Ok((index, function))
    }

    fn new_function(&mut self, names: &mut Column<'_>) -> Result<usize, BlockError> {
        if self.function_count == PACK_FUNCTIONS {
            self.function_count = 0;
        }
        self.last_func = self.last_func.wrapping_add(names.distance()?);
        let index = self.function_count;
        self.functions[index] = Function { func: self.last_func, step: 0 };
        self.function_count += 1;
        Ok(index)
    }
}

#[inline]
fn put_call(event: &mut Event, kind: u8, func: u64, call_site: u64, frame: u32) {
    let [low, middle, high, _] = frame.to_le_bytes();
    event.func = func;
    event.call_site = call_site;
    event.kind = kind;
    event.frame = [low, middle, high];
}

/// A record that is no call, as it is but for its time.
fn literal(literals: &mut Column<'_>) -> Result<Event, BlockError> {
    let mut bytes = [0; EVENT_BYTES];
    bytes[8..].copy_from_slice(&literals.take::<{ EVENT_BYTES - 8 }>()?);
    Event::parse(&bytes, ByteOrder::Little).ok_or(BlockError::Contents)
}

/// The time since the record before.
#[inline]
fn read_time(time: u8, more: &mut Column<'_>) -> Result<u64, BlockError> {
    let shortest = u64::from(TIME_LONGER);
    Ok(match time {
        ..TIME_LONGER => u64::from(time),
        TIME_LONGER..TIME_4_BYTES => {
            shortest + (u64::from(time - TIME_LONGER) << 8) + u64::from(more.byte()?)
        }
        TIME_4_BYTES => shortest + u64::from(u32::from_le_bytes(more.take()?)),
        TIME_8_BYTES => shortest.wrapping_add(u64::from_le_bytes(more.take()?)),
    })
}
