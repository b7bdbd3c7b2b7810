//! Chooses the key of each event.

use super::options::{KeyChoice, LoadOptions};
use super::random::{RandomPurpose, SeededRandom};

/// A chooser of keys. Keys are numbered from 0. For orders, the number is the number of a slot (see `population`): one
/// order after the other uses the slot. A new chooser with the same options makes the same choices.
pub(super) struct KeyChooser {
    random: SeededRandom,
    keys: u64,
    /// For each key, the highest random number that selects it. Empty for a uniform choice.
    bounds: Vec<u64>,
}

impl KeyChooser {
    pub(super) fn new(load: &LoadOptions) -> Self {
        let bounds = match load.key_choice {
            KeyChoice::Uniform => Vec::new(),
            KeyChoice::Zipf(exponent) => zipf(load.keys, exponent),
        };
        Self { random: SeededRandom::new(load.seed, RandomPurpose::Keys), keys: load.keys, bounds }
    }

    pub(super) fn next(&mut self) -> usize {
        if self.bounds.is_empty() {
            return self.random.below(self.keys) as usize;
        }
        let number = self.random.next();
        self.bounds.partition_point(|bound| *bound < number).min(self.bounds.len() - 1)
    }
}

/// Returns the bound of each key: the share of the events that the key and all keys before it have together, multiplied
/// by the largest 64-bit number.
fn zipf(keys: u64, exponent: f64) -> Vec<u64> {
    // `libm` computes powers in plain arithmetic, which has the same result on every machine. The results of the math
    // libraries of different systems may differ in the last bits.
    let weight = |rank: u64| libm::pow(rank as f64, -exponent);
    let total: f64 = (1..=keys).map(weight).sum();
    let mut sum = 0.0;
    let bound = |rank: u64| {
        sum += weight(rank) / total;
        // The conversion saturates: the last sum may be slightly above 1.
        (sum * (u64::MAX as f64)) as u64
    };
    (1..=keys).map(bound).collect()
}

/// Returns the number of events of each key; for orders, of each slot. To count the events, this function chooses the
/// key of every event of the load in advance.
pub(super) fn count(load: &LoadOptions) -> Vec<u64> {
    let mut chooser = KeyChooser::new(load);
    let mut counts = vec![0; load.keys as usize];
    for _ in 0..load.events {
        counts[chooser.next()] += 1;
    }
    counts
}
