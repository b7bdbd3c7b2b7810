//! Remembers the digests of settled events for longer than the key record, so that the sequencer does not mistake
//! another event with the sequence of a settled event for a repeat of the settled event.
//!
//! Such an event arrives if the store numbers the events of a stream and goes back in time: the store loses the numbers
//! together with the commits. The sequencer recovers the commits, but no process recovers the number of an event whose
//! publisher has ended. A later publisher may then get this number for another event. The key record has the digests of
//! the last settled events only. But the commits of all lost events are still in the [`CommitHistory`], so the digests
//! of these events are known. The sequencer collects the digests from the history when it needs them: at a recovery, and
//! when the key record does not have the digest of an event that arrives again.
//!
//! After a recovery, the driver raises the counters of the keys in the store, so that later events get higher numbers.
//!
//! [`CommitHistory`]: super::commit::CommitHistory

use std::collections::BTreeMap;

use crate::event::Key;
use crate::key_record::{AppliedCommit, Batch, ContentDigests, WriteCondition};

/// The maximum memory of the digests of one partition, in bytes, by the two estimates below. Above the limit, the
/// sequencer forgets whole keys, in the order of their names.
const BYTES_LIMIT: usize = 10 << 20;
/// The estimated memory of one digest with its sequence, in bytes.
const DIGEST_BYTES: usize = 20;
/// The estimated memory of a key without its digests, in bytes.
const KEY_BYTES: usize = 250;

/// The digests of settled events.
#[derive(Debug, Default)]
pub(super) struct SettledEvents {
    /// The digests of the events of each key, by sequence.
    digests: BTreeMap<Key, BTreeMap<u64, u32>>,
    /// The estimated memory of the digests, in bytes.
    bytes: usize,
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
            // The key has no record: it is new, or it begins again after its end.
            if write.condition == WriteCondition::Absent {
                self.forget(&write.key);
            }
        }
        for (key, sequence, digest) in early_digests {
            self.record(key, [(*sequence, *digest)]);
        }
        for write in batch.applied_writes(applied) {
            self.record(&write.key, write.record.digests.sequences(write.record.next));
        }
    }

    fn record(&mut self, key: &Key, digests: impl IntoIterator<Item = (u64, u32)>) {
        if !self.digests.contains_key(key) {
            self.bytes += KEY_BYTES + key.len();
        }
        let of_key = self.digests.entry(key.clone()).or_default();
        let before = of_key.len();
        let last = of_key.last_key_value().map(|(sequence, _)| *sequence);
        of_key.extend(digests.into_iter().filter(|(sequence, _)| Some(*sequence) > last));
        self.bytes += DIGEST_BYTES * (of_key.len() - before);
        while self.bytes > BYTES_LIMIT
            && let Some((key, _)) = self.digests.first_key_value()
        {
            let key = key.clone();
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(forgotten) = self.digests.remove(key) {
            self.bytes -= KEY_BYTES + key.len() + DIGEST_BYTES * forgotten.len();
        }
    }

    /// Returns whether `content` differs from the content of the event that was settled with this sequence. Returns
    /// `None` if no digest of that event is in memory.
    pub(super) fn differs(&self, key: &Key, sequence: u64, content: u64) -> Option<bool> {
        let settled = self.digests.get(key)?.get(&sequence)?;
        Some(*settled != ContentDigests::short(content))
    }
}
