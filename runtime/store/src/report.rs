//! How an instance is doing: what it has to do of each of its partitions, for whoever looks at all
//! instances together.

use std::collections::BTreeMap;

use ordain_core::{LaneState, Stats};
use serde::{Deserialize, Serialize};

/// What an instance has to do. Others may be of another version: what one does not know it passes
/// over, and what is missing has a default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// By stream and partition.
    pub partitions: BTreeMap<String, BTreeMap<u32, Work>>,
}

/// What is to be done of a partition, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// Events that wait in the broker to be delivered; `None` where nobody knows.
    pub lag: Option<u64>,
    /// Keys in memory with an event that can run.
    pub ready_keys: u64,
    /// Keys in memory that stand still.
    pub blocked_keys: u64,
}

/// What lanes do that stand still.
pub const BLOCKED: [LaneState; 5] = [
    LaneState::Waiting,
    LaneState::Version,
    LaneState::Retrying,
    LaneState::Parked,
    LaneState::Broken,
];

impl Work {
    /// What is to be done of a partition that is driven here.
    pub fn of(stats: &Stats, lag: Option<u64>) -> Self {
        let blocked: usize = BLOCKED.into_iter().map(|state| stats.lanes_in(state)).sum();
        Self {
            lag,
            ready_keys: stats.lanes_in(LaneState::Ready) as u64,
            blocked_keys: blocked as u64,
        }
    }

    /// Of this and another one together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let lag = match (self.lag, other.lag) {
            (Some(lag), Some(more)) => Some(lag.saturating_add(more)),
            (lag, more) => lag.or(more),
        };
        Self {
            lag,
            ready_keys: self.ready_keys.saturating_add(other.ready_keys),
            blocked_keys: self.blocked_keys.saturating_add(other.blocked_keys),
        }
    }

    /// How many instances have enough to do, where each is to have so much of the lag: one at least,
    /// and no more than there are partitions.
    pub fn wanted_instances(self, lag_per_instance: u64, partitions: u32) -> u64 {
        let wanted = self.lag.unwrap_or(0).div_ceil(lag_per_instance.max(1));
        wanted.clamp(1, u64::from(partitions.max(1)))
    }
}

impl Report {
    /// As it is kept.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers can always be written")
    }

    /// What an instance wrote. What cannot be read says nothing.
    pub fn decode(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Adds a partition.
    pub fn add(&mut self, stream: &str, partition: u32, work: Work) {
        self.partitions.entry(stream.to_owned()).or_default().insert(partition, work);
    }

    /// Of one partition.
    pub fn of(&self, stream: &str, partition: u32) -> Option<Work> {
        self.partitions.get(stream)?.get(&partition).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_wanted_by_lag_within_the_partitions() {
        let wanted = |lag| Work { lag, ..Work::default() }.wanted_instances(1_000, 8);
        assert_eq!([None, Some(0), Some(1), Some(1_000)].map(wanted), [1; 4]);
        assert_eq!([Some(1_001), Some(7_000), Some(7_001)].map(wanted), [2, 7, 8]);
        assert_eq!(wanted(Some(u64::MAX)), 8);
        assert_eq!(Work { lag: Some(5), ..Work::default() }.wanted_instances(0, 0), 1);
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut report = Report::default();
        let work = Work { lag: Some(3), ready_keys: 1, blocked_keys: 2 };
        report.add("orders", 7, work);
        assert_eq!(Report::decode(&report.encode()), report);
        assert_eq!((report.of("orders", 7), report.of("orders", 6)), (Some(work), None));
        assert_eq!(Report::decode("{\"partitions\":7}"), Report::default());
        let sum = work.and(Work::default()).and(work);
        assert_eq!(sum, Work { lag: Some(6), ready_keys: 2, blocked_keys: 4 });
    }
}
