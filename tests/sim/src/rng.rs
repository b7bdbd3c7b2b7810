//! The only source of random numbers of the simulation. The module implements its own generator, so that a seed plays
//! the same run with every version of every library.

/// A `SplitMix64` generator: small, fast, and random enough for choices.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// Returns a random number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `chance` in a thousand.
    pub(crate) fn permille(&mut self, chance: u32) -> bool {
        self.below(1000) < u64::from(chance)
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns the position of a random choice. A choice with a weight of 2 is twice as likely as a choice with a
    /// weight of 1. If all weights are 0, returns 0.
    pub(crate) fn pick_weighted<T>(&mut self, choices: &[T], weight: impl Fn(&T) -> u64) -> usize {
        let mut left = self.below(choices.iter().map(&weight).sum());
        let is_picked = |choice: &T| {
            let weight = weight(choice);
            let is_picked = left < weight;
            left = left.saturating_sub(weight);
            is_picked
        };
        choices.iter().position(is_picked).unwrap_or_default()
    }
}

pub(crate) fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x6f72_6461_696e, |hash, part| scramble(hash ^ part.wrapping_mul(3)))
}

fn scramble(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_seed_never_change() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.next(), 0x910a_2dec_8902_5cc1);
        assert!((0..1000).all(|_| (3..=5).contains(&rng.between(3, 5))));
    }
}
