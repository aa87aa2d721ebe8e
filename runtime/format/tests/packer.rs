//! Records of one writer → a block, as `drain/stream/pack.h` makes it. For tests of what reads
//! blocks, which include this file by its path.

use std::collections::HashMap;

use callsight_format::{
    BLOCK_HEADER_BYTES, BLOCK_MAX_RECORDS, BlockHeader, ByteOrder, Event, KIND_ENTER, KIND_EXIT,
    OP_ENTER, OP_ENTER_NEW, OP_ENTER_PAIR, OP_EXIT, OP_EXIT_BELOW, OP_EXIT_NEW, OP_EXIT_PAIR,
    OP_FRAME, OP_NOTE, OP_RECORD, PACK_BELOW, PACK_FUNCTIONS, PACK_PAIRS, PACK_STACK, TIME_4_BYTES,
    TIME_8_BYTES, TIME_LONGER, crc32c,
};

#[derive(Clone, Copy, Default)]
struct Open {
    func: u64,
    call_site: u64,
    frame: u32,
    pair: usize,
}

/// A block that is being filled.
#[derive(Default)]
pub struct Packer {
    header: BlockHeader,
    last_ts: u64,
    last_func: u64,
    last_site: u64,
    base: u32,
    depth: usize,
    stack: Vec<Open>,
    /// Function, call site and step of each pair, and where each is.
    pairs: Vec<(u64, u64, u32)>,
    pair_of: HashMap<(u64, u64), usize>,
    /// The same of functions.
    functions: Vec<(u64, u32)>,
    function_of: HashMap<u64, usize>,
    /// What came next behind nothing (0), an enter (1) and an exit (2) of each pair, ...
    next: Vec<Option<usize>>,
    context: usize,
    ops: Vec<u8>,
    deltas: Vec<u8>,
    times: Vec<u8>,
    ids: Vec<u8>,
    names: Vec<u8>,
    frames: Vec<u8>,
    literals: Vec<u8>,
}

impl Packer {
    /// A block of the writer that `header` names. Counts and sizes in it are made here.
    pub fn new(header: BlockHeader) -> Packer {
        let header_bytes = BLOCK_HEADER_BYTES as u16;
        let header = BlockHeader { header_bytes, records: 0, calls: 0, numbered: 0, ..header };
        let stack = vec![Open::default(); PACK_STACK];
        Packer { header, stack, next: vec![None], ..Packer::default() }
    }

    /// Adds a record, or with `note` one of the drain's own, which has no number.
    pub fn push(&mut self, event: &Event, note: bool) {
        assert!(self.header.records < BLOCK_MAX_RECORDS, "the block is full");
        let frame = event.frame_units();
        if self.header.records == 0 {
            (self.header.first_ts, self.header.frame) = (event.ts, frame);
            (self.last_ts, self.base) = (event.ts, frame);
        }
        self.time(event.ts);
        let op = match event.kind {
            KIND_ENTER => self.enter(event.func, event.call_site, frame),
            KIND_EXIT => self.exit(event.func, event.call_site, frame),
            _ => {
                self.literals.extend_from_slice(&event.to_bytes(ByteOrder::Little)[8..]);
                if note { OP_NOTE } else { OP_RECORD }
            }
        };
        self.ops.push(op);
        self.header.records += 1;
        self.header.calls += u32::from(matches!(event.kind, KIND_ENTER | KIND_EXIT));
        self.header.numbered += u32::from(!note);
    }

    /// The block.
    pub fn finish(self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_HEADER_BYTES];
        let header = &self.header;
        block[4..6].copy_from_slice(&header.header_bytes.to_le_bytes());
        block[6..8].copy_from_slice(&header.flags.to_le_bytes());
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        let longs = [(8, header.number), (16, header.start), (24, header.first)];
        let more_longs = [(56, header.first_ts), (64, header.lost_total)];
        for (at, long) in longs.into_iter().chain(more_longs) {
            put(at, &long.to_le_bytes());
        }
        let words = [header.pid, header.tid, header.records, header.calls, header.numbered];
        let columns = [&self.times, &self.ids, &self.names, &self.frames, &self.literals];
        let sizes = columns.map(|column| column.len() as u32);
        let ends = header.lost.into_iter().chain([header.frame]).chain(sizes);
        let places = words.into_iter().zip((32..).step_by(4)).chain(ends.zip((72..).step_by(4)));
        places.for_each(|(word, at)| put(at, &word.to_le_bytes()));
        let columns = [&self.ops, &self.deltas].into_iter().chain(columns);
        columns.for_each(|column| block.extend_from_slice(column));
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    fn time(&mut self, ts: u64) {
        let delta = ts.wrapping_sub(self.last_ts);
        self.last_ts = ts;
        let above = delta.wrapping_sub(u64::from(TIME_LONGER));
        if delta < u64::from(TIME_LONGER) {
            self.deltas.push(delta as u8);
        } else if above >> 8 < u64::from(TIME_4_BYTES - TIME_LONGER) {
            self.deltas.push(TIME_LONGER + (above >> 8) as u8);
            self.times.push(above as u8);
        } else if let Ok(above) = u32::try_from(above) {
            self.deltas.push(TIME_4_BYTES);
            self.times.extend(above.to_le_bytes());
        } else {
            self.deltas.push(TIME_8_BYTES);
            self.times.extend(above.to_le_bytes());
        }
    }

    fn top(&self) -> Option<&Open> {
        Some(&self.stack[self.depth.checked_sub(1)? % PACK_STACK])
    }

    fn enter(&mut self, func: u64, call_site: u64, frame: u32) -> u8 {
        let above = self.top().map_or(self.base, |open| open.frame);
        let foreseen = self.next[self.context]
            .filter(|pair| self.pairs.get(*pair).is_some_and(|p| (p.0, p.1) == (func, call_site)));
        let known = self.pair_of.get(&(func, call_site)).copied();
        let mut made = None;
        let (mut op, pair) = match (foreseen, known) {
            (Some(pair), _) => (OP_ENTER, pair),
            (None, Some(pair)) => {
                number(&mut self.ids, pair as u64);
                (OP_ENTER_PAIR, pair)
            }
            (None, None) => {
                made = Some(self.new_pair(func, call_site));
                (OP_ENTER_NEW, self.pairs.len() - 1)
            }
        };
        self.next[self.context] = Some(pair);
        let step = above.wrapping_sub(frame) & 0xff_ffff;
        if step != self.pairs[pair].2 {
            op |= OP_FRAME;
            self.frames.extend_from_slice(&step.to_le_bytes()[..3]);
            self.pairs[pair].2 = step;
        }
        if let Some(function) = made {
            self.functions[function].1 = step;
        }
        self.stack[self.depth % PACK_STACK] = Open { func, call_site, frame, pair };
        self.depth += 1;
        self.context = 1 + 2 * pair;
        op
    }

    fn exit(&mut self, func: u64, call_site: u64, frame: u32) -> u8 {
        for below in 0..self.depth.min(PACK_BELOW as usize) {
            let at = self.depth - 1 - below;
            let open = &self.stack[at % PACK_STACK];
            if (open.func, open.call_site, open.frame) != (func, call_site, frame) {
                continue;
            }
            self.depth = at;
            self.context = 2 + 2 * open.pair;
            if below == 0 {
                return OP_EXIT;
            }
            self.ids.push(below as u8);
            return OP_EXIT_BELOW;
        }
        let (op, pair) = match self.pair_of.get(&(func, call_site)).copied() {
            Some(pair) => {
                number(&mut self.ids, pair as u64);
                (OP_EXIT_PAIR, pair)
            }
            None => {
                self.new_pair(func, call_site);
                (OP_EXIT_NEW, self.pairs.len() - 1)
            }
        };
        self.frames.extend_from_slice(&frame.wrapping_sub(self.base).to_le_bytes()[..3]);
        if self.depth == 0 {
            self.base = frame;
        }
        self.context = 2 + 2 * pair;
        op
    }

    /// Tells a pair that is not known; gives the number of its function.
    fn new_pair(&mut self, func: u64, call_site: u64) -> usize {
        if self.pairs.len() == PACK_PAIRS {
            self.pairs.clear();
            self.pair_of.clear();
            self.context = 0;
        }
        let function = self.function(func);
        let near = self.top().map_or(self.last_site, |open| open.func);
        distance(&mut self.names, call_site, near);
        self.last_site = call_site;
        let pair = self.pairs.len();
        self.pairs.push((func, call_site, self.functions[function].1));
        self.pair_of.insert((func, call_site), pair);
        self.next.resize(self.next.len().max(3 + 2 * pair), None);
        self.next[1 + 2 * pair..3 + 2 * pair].fill(None);
        function
    }

    fn function(&mut self, func: u64) -> usize {
        if let Some(function) = self.function_of.get(&func) {
            number(&mut self.ids, *function as u64 + 1);
            return *function;
        }
        if self.functions.len() == PACK_FUNCTIONS {
            self.functions.clear();
            self.function_of.clear();
        }
        self.function_of.insert(func, self.functions.len());
        self.functions.push((func, 0));
        number(&mut self.ids, 0);
        distance(&mut self.names, func, self.last_func);
        self.last_func = func;
        self.functions.len() - 1
    }
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
fn distance(out: &mut Vec<u8>, value: u64, near: u64) {
    let distance = value.wrapping_sub(near);
    number(out, distance << 1 ^ (distance >> 63).wrapping_neg());
}

#[cfg(test)]
mod tests {
    use callsight_format::{KIND_MARKER, Unpacker};

    use super::*;

    /// Numbers that look random, the same each time (xorshift64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    /// Calls as a program makes them, and such as none makes: recursion, exits of calls that nobody
    /// knows, longjmp, clocks that step back, more functions and deeper stacks than are remembered.
    fn events(random: &mut Random, count: usize) -> Vec<(Event, bool)> {
        let functions = [3, 40, 700, 5000][random.below(4) as usize];
        let exits = 35 + random.below(20);
        let (mut open, mut ts): (Vec<Event>, u64) = (Vec::new(), random.below(1 << 40));
        let mut next = || {
            let step = 1 << [3, 7, 11, 20, 36][random.below(5) as usize];
            ts = ts.wrapping_add(random.below(step));
            ts = if random.below(50) == 0 { ts.wrapping_sub(random.below(1 << 20)) } else { ts };
            let chosen = random.below(100);
            if chosen < exits {
                open.truncate(
                    open.len() - random.below(40).saturating_sub(36) as usize % (open.len() + 1),
                );
                if let Some(call) = open.pop() {
                    return (Event { ts, kind: KIND_EXIT, ..call }, false);
                }
            }
            let func = 0x40_0000 + 16 * random.below(functions);
            let call_site = random.below(functions) << [2, 30][random.below(2) as usize];
            let frame =
                (random.below(1 << 24) as u32 >> [0, 20][random.below(2) as usize]).to_le_bytes();
            let kind = if chosen == 98 { KIND_EXIT } else { KIND_ENTER };
            let frame = [frame[0], frame[1], frame[2]];
            let call = Event { ts, func, call_site, tid: 7, kind, frame };
            if chosen == 99 {
                return (Event { tid: 9, kind: KIND_MARKER, ..call }, random.below(2) == 0);
            }
            if kind == KIND_ENTER {
                open.push(call);
            }
            (call, false)
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let mut unpacker = Box::new(Unpacker::new());
        let (mut ops, mut bytes, mut records) = ([0u32; 16], 0, 0);
        for seed in 1..200u64 {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let most = 1 << random.below(14);
            let count = random.below(most) as usize + 1;
            let events = events(&mut random, count);
            let told = BlockHeader {
                number: seed,
                start: 1 << 40,
                first: 5,
                pid: 6,
                tid: 7,
                lost_total: 8,
                lost: [1, 2, 3, 4],
                ..BlockHeader::default()
            };
            let mut packer = Packer::new(told);
            events.iter().for_each(|(event, note)| packer.push(event, *note));
            packer.ops.iter().for_each(|op| ops[usize::from(*op)] += 1);
            let block = packer.finish();
            let mut unpacked = Vec::new();
            let header = unpacker.unpack(&block, |event| unpacked.push(*event)).expect("a block");
            assert!(unpacked.iter().eq(events.iter().map(|(event, _)| event)), "seed {seed}");
            let numbered = events.iter().filter(|(_, note)| !note).count();
            assert_eq!((header.records, header.numbered), (count as u32, numbered as u32));
            assert_eq!(
                (
                    header.number,
                    header.start,
                    header.first,
                    header.pid,
                    header.tid,
                    header.lost_total,
                    header.lost
                ),
                (seed, 1 << 40, 5, 6, 7, 8, [1, 2, 3, 4])
            );
            (bytes, records) = (bytes + block.len(), records + count);
        }
        let framed = [OP_ENTER, OP_ENTER_PAIR, OP_ENTER_NEW].map(|op| op | OP_FRAME);
        let plain = OP_EXIT..=OP_RECORD;
        for op in plain.chain(framed).chain([OP_NOTE]) {
            assert!(ops[usize::from(op)] > 10, "op {op} in {ops:?}");
        }
        assert!(bytes < 32 * records, "{bytes} bytes of {records} records");
    }
}
