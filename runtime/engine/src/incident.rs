//! Reports events that the store lost before the stream read them, as far as this process can determine. Also counts
//! the losses of each partition.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ordain_core::QueueLoss;
use ordain_publish::incident::{EventsLost, IncidentSubject, record, time_text};
use ordain_store::Partition;

/// The losses that this process has found in the store's data of a partition.
#[derive(Debug, Default)]
pub struct LossCounts {
    lost_events: AtomicU64,
    /// For each shard that has gone back in time, the number of losses of the partition's data that this process has
    /// found.
    rollbacks: Mutex<BTreeMap<u32, u64>>,
}

impl LossCounts {
    /// Returns the number of events of the partition that this process put into the store, and that the store lost
    /// before the stream read them. Includes only the losses that this process can determine. For partition 0, the
    /// number includes lost events without a known partition.
    pub fn lost_events(&self) -> u64 {
        self.lost_events.load(Ordering::Relaxed)
    }

    /// Returns, for each shard, the number of times that this process has found a loss of the partition's data. Omits
    /// the shards in which this process has found no loss.
    pub fn rollbacks(&self) -> BTreeMap<u32, u64> {
        self.lock_rollbacks().clone()
    }

    /// Records that a shard has gone back in time, and has lost data of the partition.
    pub(crate) fn add_rollback(&self, shard: u32) {
        *self.lock_rollbacks().entry(shard).or_default() += 1;
    }

    pub(crate) fn add_rollbacks(&self, shards: &[usize]) {
        for shard in shards {
            self.add_rollback(*shard as u32);
        }
    }

    fn add_lost_events(&self, shard: u32, events: u64) {
        self.lost_events.fetch_add(events, Ordering::Relaxed);
        self.add_rollback(shard);
    }

    fn lock_rollbacks(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        self.rollbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the loss to `counts`. `safe` is the value of [`EventsLost::safe`]. `words` describe the loss and the action
/// that the producers must take.
pub(crate) fn report_lost_events(
    partition: &Partition,
    shard: u32,
    loss: QueueLoss,
    safe: Option<u64>,
    counts: &LossCounts,
    words: &str,
) {
    let QueueLoss { entries, since } = loss;
    counts.add_lost_events(shard, entries);
    let since = time_text(since);
    let incident = EventsLost { shard, events: entries, since: since.clone(), safe };
    tracing::error!(
        stream = &*partition.stream,
        partition = partition.number,
        shard,
        events = entries,
        %since,
        safe,
        cloudevent = record(&partition.stream, IncidentSubject::Partition(partition.number), &incident),
        "{words}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_by_shard() {
        let counts = LossCounts::default();
        counts.add_rollback(3);
        counts.add_lost_events(3, 40);
        counts.add_lost_events(1, 2);
        assert_eq!(counts.lost_events(), 42);
        assert_eq!(counts.rollbacks(), BTreeMap::from([(1, 1), (3, 2)]));
    }
}
