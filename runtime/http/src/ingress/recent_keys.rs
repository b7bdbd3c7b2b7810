//! Values that a process remembers for recent keys, within fixed limits of memory and age.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum number of keys in each generation of [`RecentKeys`]. Without values, both generations take about 2.4
/// megabytes at most. Values of 24 bytes take about 6.3 megabytes more.
const GENERATION_KEYS_LIMIT: usize = 1 << 16;
/// The time after which a new generation of [`RecentKeys`] begins. A value can become outdated: for example, the store
/// can forget a key.
const GENERATION_INTERVAL: Duration = Duration::from_mins(1);

/// A value for each recent key. The keys are digests. The values are in two generations. When a new generation begins,
/// the older of the two is forgotten.
pub(super) struct RecentKeys<V> {
    recent: HashMap<u64, V>,
    earlier: HashMap<u64, V>,
    since: Instant,
}

impl<V> RecentKeys<V> {
    pub(super) fn new(now: Instant) -> Self {
        Self { recent: HashMap::new(), earlier: HashMap::new(), since: now }
    }

    pub(super) fn get(&self, key: u64) -> Option<&V> {
        self.recent.get(&key).or_else(|| self.earlier.get(&key))
    }

    pub(super) fn insert(&mut self, key: u64, value: V, now: Instant) {
        if self.recent.len() >= GENERATION_KEYS_LIMIT {
            self.begin_generation(now);
        }
        self.recent.insert(key, value);
    }

    pub(super) fn expire(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age >= GENERATION_INTERVAL {
            self.begin_generation(now);
        }
        if age >= 2 * GENERATION_INTERVAL {
            self.earlier.clear();
        }
    }

    fn begin_generation(&mut self, now: Instant) {
        self.earlier = std::mem::take(&mut self.recent);
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_forgotten_by_number_and_by_age() {
        let start = Instant::now();
        let mut keys = RecentKeys::new(start);
        let limit = GENERATION_KEYS_LIMIT as u64;
        (0..=limit).for_each(|key| keys.insert(key, (), start));
        assert!((0..=limit).all(|key| keys.get(key).is_some()), "the full generation stays");
        (limit..=2 * limit).for_each(|key| keys.insert(key, (), start));
        let is_known = |key| keys.get(key).is_some();
        assert!(!is_known(0) && is_known(limit) && is_known(2 * limit));
        for (periods, is_known) in [(0, true), (1, true), (2, false)] {
            let mut keys = RecentKeys::new(start);
            keys.insert(1, (), start);
            keys.expire(start + periods * GENERATION_INTERVAL);
            assert_eq!(keys.get(1).is_some(), is_known, "after {periods} periods");
        }
        keys = RecentKeys::new(start);
        keys.insert(1, (), start);
        (1..=2).for_each(|period| keys.expire(start + period * GENERATION_INTERVAL));
        assert!(keys.get(1).is_none(), "also if requests arrive all the time");
    }
}
