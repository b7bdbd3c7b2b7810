//! Which key comes next.

use super::options::{KeyChoice, Load};
use super::random::{For, Random};

/// Chooses keys by their number, from 0. Started again it chooses the same ones.
pub(super) struct Chooser {
    random: Random,
    keys: u64,
    /// Of each key: the random numbers up to its own last one. Empty for a uniform choice.
    bounds: Vec<u64>,
}

impl Chooser {
    pub(super) fn new(load: &Load) -> Self {
        let bounds = match load.key_choice {
            KeyChoice::Uniform => Vec::new(),
            KeyChoice::Zipf(exponent) => zipf(load.keys, exponent),
        };
        Self { random: Random::new(load.seed, For::Keys), keys: load.keys, bounds }
    }

    pub(super) fn next(&mut self) -> usize {
        if self.bounds.is_empty() {
            return self.random.below(self.keys) as usize;
        }
        let number = self.random.next();
        self.bounds.partition_point(|bound| *bound < number).min(self.bounds.len() - 1)
    }
}

/// The share of each key and those before it, of all 64-bit numbers.
fn zipf(keys: u64, exponent: f64) -> Vec<u64> {
    // Powers come from a library in plain arithmetic: those of the machines differ in last bits.
    let weight = |rank: u64| libm::pow(rank as f64, -exponent);
    let total: f64 = (1..=keys).map(weight).sum();
    let mut sum = 0.0;
    let bound = |rank: u64| {
        sum += weight(rank) / total;
        // A conversion that saturates: the last sum may be a bit above 1.
        (sum * (u64::MAX as f64)) as u64
    };
    (1..=keys).map(bound).collect()
}

/// How many events each key gets, by running through all choices.
pub(super) fn count(load: &Load) -> Vec<u64> {
    let mut chooser = Chooser::new(load);
    let mut counts = vec![0; load.keys as usize];
    for _ in 0..load.events {
        counts[chooser.next()] += 1;
    }
    counts
}
