//! Pseudorandom choices: the same seed gives the same choices, on every machine and with every version of this
//! program's dependencies.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64: <https://prng.di.unimi.it/splitmix64.c>.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns another sequence, which choices from this one do not affect.
    pub(crate) fn fork(&self, label: u64) -> Self {
        let mut other = Self(self.0 ^ label.wrapping_mul(0xd6e8_feb8_6659_fd93));
        other.next();
        other
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The bias is 2^-50 for the numbers used here.
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// Returns one of `items`, which is not empty.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Returns one of `items`, with a probability proportional to its weight.
    pub(crate) fn weighted<'a, T>(&mut self, items: &'a [(usize, T)]) -> &'a T {
        let mut at = self.below(items.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in items {
            if at < *weight {
                return item;
            }
            at -= weight;
        }
        unreachable!("the draw is below the sum of the weights")
    }

    pub(crate) fn millis(&mut self, range: Range<usize>) -> Duration {
        Duration::from_millis((range.start + self.below(range.len())) as u64)
    }
}
