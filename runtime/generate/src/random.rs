//! Random numbers that are the same on every machine and in every version. A specification defines the output of the
//! generator `ChaCha8`, and this module defines how this output becomes numbers.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The purpose of a sequence of random numbers. Each purpose has its own sequence, so that an option for one purpose
/// does not affect the other purposes: for example, more losses do not change the keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum RandomPurpose {
    Keys,
    Arrivals,
    Orders,
    Payloads,
    Faults,
}

/// A sequence of random numbers.
pub(super) struct SeededRandom(ChaCha8Rng);

impl SeededRandom {
    pub(super) fn new(seed: u64, purpose: RandomPurpose) -> Self {
        let mut words = [0; 32];
        words[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(words);
        rng.set_stream(purpose as u64);
        Self(rng)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, which must not be 0. Some numbers are very slightly more likely than others,
    /// because `end` rarely divides 2^64; the difference is negligible.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number that is at least 0 and below 1, from 53 random bits.
    pub(super) fn unit(&mut self) -> f64 {
        const UNIT_RESOLUTION: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next() >> 11) as f64 * UNIT_RESOLUTION
    }

    /// Returns true with the given probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}
