//! Keeps the digests of settled events for longer than the key record does. If an event has the sequence of a settled
//! event, the digest shows whether the event is a repeat of the settled event or another event.
//!
//! Another event arrives under the same sequence if the store numbers the events of a stream and goes back in time: the
//! store loses the numbers together with the commits. The sequencer recovers the commits, but no process recovers the
//! number of an event whose publisher has ended. A later publisher may then get this number for another event. The key
//! record has the digests of only the last settled events. But the [`CommitHistory`] still has the commits of all lost
//! events, and so the digests of these events. The sequencer collects the digests from the history when it needs them:
//! at a recovery, and when an event arrives again whose digest is not in the key record.
//!
//! After a recovery, the driver raises the counters of the keys in the store, so that later events get higher numbers.
//!
//! [`CommitHistory`]: super::commit::CommitHistory

use std::collections::BTreeMap;

use crate::event::Key;
use crate::key_record::{AppliedCommit, Batch, ContentDigests, KeyStatus, WriteCondition};

/// The maximum number of digests in memory. Above the limit, the sequencer removes all digests of a key, then those of
/// the next key, until the number is within the limit. This number of digests takes about 10 MB.
const DIGESTS_LIMIT: usize = 500_000;

/// A key of recovered commits, and the sequence that the key has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredKey {
    /// The key.
    pub key: Key,
    /// The next sequence to settle. All lower sequences are settled.
    pub next: u64,
    /// `true` if the key has ended.
    pub has_ended: bool,
}

/// The digests of settled events, and the keys of recovered commits.
#[derive(Debug, Default)]
pub(super) struct SettledEvents {
    /// The digests of the events of each key, by sequence.
    digests: BTreeMap<Key, BTreeMap<u64, u32>>,
    /// The number of digests.
    count: usize,
    /// The keys of recovered commits that the driver has not taken yet, each with `next` and whether the key has ended.
    recovered_keys: BTreeMap<Key, (u64, bool)>,
}

impl SettledEvents {
    /// Records the events that an applied commit settled. `early_digests` contains the key, sequence and digest of each
    /// event whose digest is not in the key records of the batch.
    pub(super) fn record_commit(
        &mut self,
        batch: &Batch,
        applied: &AppliedCommit,
        early_digests: &[(Key, u64, u32)],
    ) {
        for write in batch.applied_writes(applied) {
            // The key had no record before this write: it is new, or it begins again after its end.
            if write.condition == WriteCondition::Absent
                && let Some(forgotten) = self.digests.remove(&write.key)
            {
                self.count -= forgotten.len();
            }
        }
        for (key, sequence, digest) in early_digests {
            self.record(key, [(*sequence, *digest)]);
        }
        for write in batch.applied_writes(applied) {
            self.record(&write.key, write.record.digests.sequences(write.record.next));
        }
    }

    /// Records the keys of a recovered commit.
    pub(super) fn record_recovered_keys(&mut self, batch: &Batch, applied: &AppliedCommit) {
        for write in batch.applied_writes(applied) {
            let has_ended = write.record.status == KeyStatus::Completed;
            self.recovered_keys.insert(write.key.clone(), (write.record.next, has_ended));
        }
    }

    fn record(&mut self, key: &Key, digests: impl IntoIterator<Item = (u64, u32)>) {
        let of_key = self.digests.entry(key.clone()).or_default();
        let before = of_key.len();
        let last = of_key.last_key_value().map(|(sequence, _)| *sequence);
        of_key.extend(digests.into_iter().filter(|(sequence, _)| Some(*sequence) > last));
        self.count += of_key.len() - before;
        while self.count > DIGESTS_LIMIT
            && let Some((_, forgotten)) = self.digests.pop_first()
        {
            self.count -= forgotten.len();
        }
    }

    /// Returns whether `content` differs from the content of the event that was settled with this sequence. Returns
    /// `None` if no digest of that event is in memory.
    pub(super) fn differs(&self, key: &Key, sequence: u64, content: u64) -> Option<bool> {
        let settled = self.digests.get(key)?.get(&sequence)?;
        Some(*settled != ContentDigests::short(content))
    }

    /// Removes and returns the keys that were recovered since the last call.
    pub(super) fn take_recovered_keys(&mut self) -> Vec<RecoveredKey> {
        let keys = std::mem::take(&mut self.recovered_keys).into_iter();
        keys.map(|(key, (next, has_ended))| RecoveredKey { key, next, has_ended }).collect()
    }
}
