//! Random numbers that are the same on every machine and stay the same: `ChaCha8` is specified, and
//! what is made of its words is written here.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What a stream of numbers is for. Each has its own, so that an option that concerns one leaves
/// the others as they are: more losses do not mean other keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum For {
    Keys,
    Arrivals,
    Lives,
    Payloads,
    Faults,
}

/// A stream of random numbers.
pub(super) struct Random(ChaCha8Rng);

impl Random {
    pub(super) fn new(seed: u64, purpose: For) -> Self {
        let mut words = [0; 32];
        words[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(words);
        rng.set_stream(purpose as u64);
        Self(rng)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`, which is not 0. Its bias is that of 64 bits: none that counts.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// A number from 0 to below 1, of 53 bits.
    pub(super) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next() >> 11) as f64 * STEP
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}
