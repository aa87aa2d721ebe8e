//! Durations → percentiles at most 1 % off.
//!
//! Log-linear: values below 64 have a bucket each, larger ones 64 buckets an octave, so that the
//! middle of a bucket is within 0.8 % of all its values (32 buckets would be within 1.6 %). Only
//! ranges in use are stored: a function is seldom spread over more than a few octaves, and twelve
//! thousand full tables would be 360 MB. Knows nothing of units.

const SUB_BITS: u32 = 6;
const SUB_BUCKETS: u64 = 1 << SUB_BITS;

/// A table may have this many buckets for each bucket in use.
const ROOM: usize = 16;

/// How many values fell where: a table of the range most values fall into, and a list for the
/// others, so that the size follows from the buckets in use.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    first: usize,
    counts: Vec<u64>,
    /// Buckets of `counts` that are not 0.
    used: usize,
    /// `(bucket, count)` of buckets outside of the table, in order.
    others: Vec<(u16, u64)>,
}

impl Histogram {
    /// Counts `value` once.
    #[inline]
    pub fn add(&mut self, value: u64) {
        let bucket = bucket(value);
        if let Some(count) = bucket.checked_sub(self.first).and_then(|at| self.counts.get_mut(at)) {
            self.used += usize::from(*count == 0);
            *count += 1;
            return;
        }
        self.add_other(bucket as u16);
    }

    fn add_other(&mut self, bucket: u16) {
        match self.others.binary_search_by_key(&bucket, |(other, _)| *other) {
            Ok(at) => self.others[at].1 += 1,
            Err(at) => {
                if self.others.is_empty() {
                    self.others.reserve_exact(1);
                }
                self.others.insert(at, (bucket, 1));
                self.widen();
            }
        }
    }

    /// Makes one table of everything, where it would not be much emptier than it is now.
    fn widen(&mut self) {
        let ends = self.others.first().zip(self.others.last());
        let Some((&(least, _), &(greatest, _))) = ends else { return };
        let (mut first, mut end) = (usize::from(least), usize::from(greatest) + 1);
        if !self.counts.is_empty() {
            first = first.min(self.first);
            end = end.max(self.first + self.counts.len());
        }
        let used = self.used + self.others.len();
        if used < 4 || end - first > ROOM * used {
            return;
        }
        let mut counts = vec![0; end - first];
        if !self.counts.is_empty() {
            counts[self.first - first..][..self.counts.len()].copy_from_slice(&self.counts);
        }
        for (bucket, count) in std::mem::take(&mut self.others) {
            counts[usize::from(bucket) - first] += count;
        }
        (self.first, self.counts, self.used) = (first, counts, used);
    }

    /// `(value, count)` of each bucket in use, smallest first; the value is the bucket's middle.
    pub fn values(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let (below, above) = self
            .others
            .split_at(self.others.partition_point(|(b, _)| usize::from(*b) < self.first));
        let counted = self.counts.iter().enumerate();
        let table = counted.map(|(at, count)| (self.first + at, *count));
        let wide = |(bucket, count): &(u16, u64)| (usize::from(*bucket), *count);
        let all = below.iter().map(wide).chain(table).chain(above.iter().map(wide));
        all.filter(|(_, count)| *count > 0).map(|(bucket, count)| (middle(bucket), count))
    }
}

fn bucket(value: u64) -> usize {
    if value < SUB_BUCKETS {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    ((u64::from(shift) + 1) * SUB_BUCKETS + ((value >> shift) - SUB_BUCKETS)) as usize
}

fn middle(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    if bucket < SUB_BUCKETS {
        return bucket as f64;
    }
    let shift = bucket / SUB_BUCKETS - 1;
    let start = (SUB_BUCKETS + bucket % SUB_BUCKETS) << shift;
    start as f64 + ((1u64 << shift) - 1) as f64 / 2.0
}

/// Values are put together when there are more of them than this.
const COMPACT_FROM: usize = 4096;

/// Values that differ by less are put together: 0.1 %, beside the 0.8 % of a bucket.
const COMPACT_RATIO: f64 = 1.001;

/// Values with their counts, in the unit of the report.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    values: Vec<(f64, u64)>,
    limit: usize,
    samples: u64,
    min: f64,
    max: f64,
}

impl Distribution {
    /// Adds `(value, count)` pairs whose exact extremes are `min` and `max`.
    pub fn extend(&mut self, values: impl Iterator<Item = (f64, u64)>, min: f64, max: f64) {
        let had = self.samples;
        for (value, count) in values {
            self.samples += count;
            self.values.push((value, count));
        }
        if self.samples > had {
            self.min = if had == 0 { min } else { self.min.min(min) };
            self.max = if had == 0 { max } else { self.max.max(max) };
        }
        if self.values.len() > self.limit.max(COMPACT_FROM) {
            self.compact();
            self.limit = 2 * self.values.len();
        }
    }

    fn compact(&mut self) {
        self.values.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.values.dedup_by(|next, kept| {
            let near = next.0 <= kept.0 * COMPACT_RATIO;
            kept.1 += if near { next.1 } else { 0 };
            near
        });
    }

    /// How many values there are.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The least and the greatest value; `None` without a value.
    pub fn extremes(&self) -> Option<(f64, f64)> {
        (self.samples > 0).then_some((self.min, self.max))
    }

    /// The durations that a share of each of `shares` (0 to 1) of the values does not exceed;
    /// `None` without a value. `shares` ascend.
    pub fn percentiles<const N: usize>(mut self, shares: [f64; N]) -> Option<[f64; N]> {
        if self.samples == 0 {
            return None;
        }
        self.values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut values = self.values.iter();
        let (mut value, mut below) = (self.min, 0);
        Some(shares.map(|share| {
            let rank = ((share * self.samples as f64).ceil() as u64).clamp(1, self.samples);
            while below < rank {
                let Some((next, count)) = values.next() else { break };
                (value, below) = (*next, below + count);
            }
            value.clamp(self.min, self.max)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 50th and 99th percentile of `values`.
    fn percentiles(values: &[u64]) -> [f64; 2] {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        let (min, max) = (*values.iter().min().expect("one"), *values.iter().max().expect("one"));
        let mut distribution = Distribution::default();
        distribution.extend(histogram.values(), min as f64, max as f64);
        distribution.percentiles([0.5, 0.99]).expect("values")
    }

    #[test]
    fn one_value_is_its_own_percentile() {
        for value in [0, 1, 63, 64, 1_636_000_123, u64::MAX] {
            assert_eq!(percentiles(&[value]), [value as f64; 2]);
        }
    }

    #[test]
    fn every_bucket_is_within_1_percent_of_its_values() {
        let edges = (0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit) - 1, (3u64 << bit) / 2]);
        for value in edges.chain(1..5000) {
            let off = (middle(bucket(value)) - value as f64).abs();
            assert!(off <= 0.008 * value as f64, "{value} is {off} off");
        }
    }

    #[test]
    fn buckets_ascend_without_a_gap() {
        let mut last = bucket(0);
        for value in 1..100_000 {
            let next = bucket(value);
            assert!(next == last || next == last + 1, "{value}");
            last = next;
        }
    }

    #[test]
    fn the_rank_is_the_nearest_one() {
        assert_eq!(percentiles(&[10, 20, 30, 40]), [20.0, 40.0]);
        let many: Vec<u64> = (1..=60).collect();
        assert_eq!(percentiles(&many), [30.0, 60.0]);
    }

    #[test]
    fn values_in_any_order_give_the_same_table() {
        let (mut up, mut down) = (Histogram::default(), Histogram::default());
        (0..1000).for_each(|i| up.add(i * i));
        (0..1000).rev().for_each(|i| down.add(i * i));
        assert!(up.values().eq(down.values()));
        assert!(up.values().is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(up.values().map(|(_, count)| count).sum::<u64>(), 1000);
    }

    #[test]
    fn a_table_stays_small_where_values_are_few_and_far_apart() {
        let mut histogram = Histogram::default();
        (0..60).for_each(|bit| histogram.add(1 << bit));
        assert!(histogram.counts.len() <= ROOM * 60, "{}", histogram.counts.len());
        let values: Vec<f64> = histogram.values().map(|(value, _)| value).collect();
        assert_eq!(values.len(), 60);
        assert!(values.is_sorted());
        (0..100_000).for_each(|value| histogram.add(1000 + value % 50));
        histogram.add(1 << 62);
        let all: u64 = histogram.values().map(|(_, count)| count).sum();
        assert_eq!(all, 100_061);
    }
}
