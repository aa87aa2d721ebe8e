//! Chance that can be had again: one seed → the same schedule of every row.

/// A generator of numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The numbers of the row `name` under `seed`; rows do not depend on which others run.
    pub fn of(seed: u64, name: &str) -> Chance {
        let mut chance = Chance(seed);
        for byte in name.bytes() {
            chance.0 = chance.next() ^ u64::from(byte);
        }
        chance
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `range`, which is not empty.
    pub fn of_range(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// An index into `count` things.
    pub fn index(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Holds in `percent` of a hundred cases.
    pub fn holds(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_name_are_a_schedule() {
        let numbers = |seed, name| {
            let mut chance = Chance::of(seed, name);
            [(); 4].map(|()| chance.next())
        };
        assert_eq!(numbers(7, "F1"), numbers(7, "F1"));
        assert_ne!(numbers(7, "F1"), numbers(7, "F2"));
        assert_ne!(numbers(7, "F1"), numbers(8, "F1"));
    }
}
