//! The report of an instance: the pending work of each of its partitions, for processes that observe all instances.

use std::collections::BTreeMap;

use ordain_core::{LaneState, Stats};
use serde::{Deserialize, Serialize};

/// The pending work of an instance. Other instances may run another version of the program: unknown fields are ignored,
/// and missing fields have defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceReport {
    /// The pending work, by stream and partition.
    pub partitions: BTreeMap<String, BTreeMap<u32, PendingWork>>,
}

/// The pending work of one or more partitions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PendingWork {
    /// The number of events that wait for delivery, in the broker or in the store; `None` if unknown.
    pub lag: Option<u64>,
    /// The number of keys in memory with an event that the handler can execute now, but that no worker executes yet.
    pub ready_keys: u64,
    /// The number of keys in memory whose lane is in one of the [`BLOCKED_STATES`].
    pub blocked_keys: u64,
}

/// The states in which a lane (the in-memory queue of one key) cannot execute its next event.
pub const BLOCKED_STATES: [LaneState; 5] = [
    LaneState::Waiting,
    LaneState::Version,
    LaneState::Retrying,
    LaneState::Parked,
    LaneState::Broken,
];

impl PendingWork {
    /// Returns the pending work of a partition of this instance, from the statistics of its sequencer and the lag.
    pub fn from_stats(stats: &Stats, lag: Option<u64>) -> Self {
        let blocked: usize = BLOCKED_STATES.into_iter().map(|state| stats.lanes_in(state)).sum();
        Self {
            lag,
            ready_keys: stats.lanes_in(LaneState::Ready) as u64,
            blocked_keys: blocked as u64,
        }
    }

    /// Returns the sum of two amounts of work. The lag of the sum is unknown only if both lags are unknown.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
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

    /// Returns the number of instances that the lag requires if each instance handles `lag_per_instance` events: at
    /// least one instance, and at most one for each partition. An unknown lag counts as 0.
    pub fn wanted_instances(self, lag_per_instance: u64, partitions: u32) -> u64 {
        let wanted = self.lag.unwrap_or(0).div_ceil(lag_per_instance.max(1));
        wanted.clamp(1, u64::from(partitions.max(1)))
    }
}

impl InstanceReport {
    /// Encodes the report for the store.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers always serialize")
    }

    /// Decodes the report of an instance. Returns the default, a report without partitions, if the report is
    /// unreadable.
    pub fn decode(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Sets the work of a partition.
    pub fn add(&mut self, stream: &str, partition: u32, work: PendingWork) {
        self.partitions.entry(stream.to_owned()).or_default().insert(partition, work);
    }

    /// Returns the work of one partition; `None` if the report does not contain the partition.
    pub fn get(&self, stream: &str, partition: u32) -> Option<PendingWork> {
        self.partitions.get(stream)?.get(&partition).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_determines_instances_up_to_the_partitions() {
        let wanted = |lag| PendingWork { lag, ..PendingWork::default() }.wanted_instances(1_000, 8);
        assert_eq!([None, Some(0), Some(1), Some(1_000)].map(wanted), [1; 4]);
        assert_eq!([Some(1_001), Some(7_000), Some(7_001)].map(wanted), [2, 7, 8]);
        assert_eq!(wanted(Some(u64::MAX)), 8);
        assert_eq!(
            PendingWork { lag: Some(5), ..PendingWork::default() }.wanted_instances(0, 0),
            1
        );
    }

    #[test]
    fn report_is_read_as_written() {
        let mut report = InstanceReport::default();
        let work = PendingWork { lag: Some(3), ready_keys: 1, blocked_keys: 2 };
        report.add("orders", 7, work);
        assert_eq!(InstanceReport::decode(&report.encode()), report);
        assert_eq!((report.get("orders", 7), report.get("orders", 6)), (Some(work), None));
        assert_eq!(InstanceReport::decode("{\"partitions\":7}"), InstanceReport::default());
        let sum = work.plus(PendingWork::default()).plus(work);
        assert_eq!(sum, PendingWork { lag: Some(6), ready_keys: 2, blocked_keys: 4 });
    }
}
