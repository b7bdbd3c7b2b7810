//! Computes the delays between tries. The delays grow exponentially, and contain jitter: a random part, computed from a
//! seed.

use crate::settings::BackoffBounds;

#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the generator splitmix64, by Sebastiano Vigna (public domain). Its numbers are random
    /// enough to spread retries.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the delay before the next try. `tries` is the number of earlier delays; 0 for the first delay. The delay
    /// is random between the lower bound and a ceiling. The ceiling is the lower bound doubled `tries` times, but at
    /// most the upper bound.
    pub(super) fn delay(&mut self, backoff: BackoffBounds, tries: u32) -> u64 {
        let ceiling = backoff.longest_delay(tries);
        backoff.min + self.next() % (ceiling - backoff.min + 1)
    }
}
