//! Keeps the digests of settled events for longer than the key record does. If an event has the sequence of a settled
//! event, the digest shows whether the event is a repeat of the settled event or another event.
//!
//! If the store numbers the events of a stream, another event may get the sequence of a settled event after the store
//! has gone back in time. When the store goes back, it loses the numbers of events together with the commits that
//! settled these events. The sequencer recovers the commits, but no process recovers the number of an event whose
//! publisher has ended. The store may give this number to another event of a later publisher.
//!
//! The key record has the digests of only the newest settled events. But the `CommitHistory` (`commit/recovery.rs`)
//! still has all lost commits, and therefore the digests of the events that these commits settled. The sequencer
//! collects the digests from the `CommitHistory` in two cases: at a recovery, and when an event arrives for a settled
//! sequence whose digest is not in the key record.
//!
//! A publisher that still runs writes its lost events again. The store must give each of these events its earlier
//! number: by this number, the sequencer recognises the event as a repeat.

use std::collections::{BTreeMap, VecDeque};

use crate::event::Key;
use crate::key_record::{AppliedCommit, Batch, EventDigests};

/// The estimated memory of one digest with its sequence, in bytes.
const DIGEST_BYTES: usize = 20;
/// The estimated memory of a key without its digests, in bytes.
const KEY_BYTES: usize = 300;

#[derive(Debug, Default)]
pub(super) struct SettledEvents {
    keys: BTreeMap<Key, KeyDigests>,
    /// The keys, in the order in which their first digests were recorded.
    order: VecDeque<Key>,
    /// The estimated memory of the keys and their digests.
    bytes: usize,
}

#[derive(Debug)]
struct KeyDigests {
    /// If a key begins again after its end, its sequences begin again too.
    incarnation: u64,
    digests: BTreeMap<u64, u32>,
}

impl SettledEvents {
    /// For each write that settled more events than its key record has digests, `evicted_digests` has its position, and
    /// the sequences and digests that the record lacks. Beyond `bytes_limit` bytes, whole keys are forgotten, in the
    /// order in which they were first recorded.
    pub(super) fn record_commit(
        &mut self,
        batch: &Batch,
        applied: &AppliedCommit,
        evicted_digests: &[(usize, Vec<(u64, u32)>)],
        bytes_limit: usize,
    ) {
        for (position, write) in batch.applied_writes(applied) {
            let record = &write.record;
            let incarnation =
                if record.incarnation == 0 { applied.time } else { record.incarnation };
            let at = evicted_digests.binary_search_by_key(&position, |evicted| evicted.0);
            let evicted = at.map_or(&[][..], |at| &evicted_digests[at].1);
            let digests = record.digests.sequences(record.next);
            self.record(&write.key, incarnation, evicted.iter().copied().chain(digests));
        }
        while self.bytes > bytes_limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.forget(&oldest);
        }
    }

    fn record(&mut self, key: &Key, incarnation: u64, digests: impl Iterator<Item = (u64, u32)>) {
        if !self.keys.contains_key(key) {
            self.bytes += KEY_BYTES + key.len();
            self.order.push_back(key.clone());
        }
        let new = || KeyDigests { incarnation, digests: BTreeMap::new() };
        let of_key = self.keys.entry(key.clone()).or_insert_with(new);
        if of_key.incarnation != incarnation {
            self.bytes -= DIGEST_BYTES * of_key.digests.len();
            *of_key = new();
        }
        let before = of_key.digests.len();
        let last = of_key.digests.last_key_value().map(|(sequence, _)| *sequence);
        of_key.digests.extend(digests.filter(|(sequence, _)| Some(*sequence) > last));
        self.bytes += DIGEST_BYTES * (of_key.digests.len() - before);
    }

    fn forget(&mut self, key: &Key) {
        if let Some(forgotten) = self.keys.remove(key) {
            self.bytes -= KEY_BYTES + key.len() + DIGEST_BYTES * forgotten.digests.len();
        }
    }

    /// Returns whether an event differs from the event that was settled with this sequence in this incarnation of the
    /// key. `digests` are the digests of the event ([`Event::repeat_digests`]). Returns `None` if no digest of the
    /// settled event is in memory.
    ///
    /// [`Event::repeat_digests`]: crate::event::Event::repeat_digests
    pub(super) fn differs(
        &self,
        key: &Key,
        incarnation: u64,
        sequence: u64,
        digests: impl IntoIterator<Item = u64>,
    ) -> Option<bool> {
        let of_key = self.keys.get(key).filter(|of_key| of_key.incarnation == incarnation)?;
        let settled = of_key.digests.get(&sequence)?;
        Some(!EventDigests::matches(*settled, digests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_record::{KeyRecord, KeyWrite, StateUpdate, WriteCondition, WriteRefusal};

    const A: u64 = 1;
    const B: u64 = 2;

    fn write(key: &str, incarnation: u64, next: u64, contents: &[u64]) -> KeyWrite {
        let digests = contents.iter().map(|content| EventDigests::short(*content)).collect();
        KeyWrite {
            key: key.into(),
            condition: WriteCondition::Next(1),
            record: KeyRecord { incarnation, digests, ..KeyRecord::new(next, 0) },
            state: StateUpdate::Keep,
            messages: Vec::new(),
            letters: Vec::new(),
            removed_letters: Vec::new(),
            spill: Vec::new(),
            ids: smallvec::SmallVec::new(),
            due_in: None,
            expire_in: None,
        }
    }

    fn record(
        settled_events: &mut SettledEvents,
        writes: Vec<KeyWrite>,
        refused: Vec<(usize, WriteRefusal)>,
        evicted: &[(usize, Vec<(u64, u32)>)],
        bytes_limit: usize,
    ) {
        let batch = Batch {
            shard: 0,
            number: 1,
            writes,
            letters: Vec::new(),
            forward: false,
            repeated: false,
        };
        let applied = AppliedCommit { time: 100, refused, ..AppliedCommit::default() };
        settled_events.record_commit(&batch, &applied, evicted, bytes_limit);
    }

    #[test]
    fn digests_outlive_the_key_record() {
        let mut settled = SettledEvents::default();
        let evicted = [(0, vec![(1, EventDigests::short(A)), (2, EventDigests::short(B))])];
        record(&mut settled, vec![write("k", 0, 4, &[A])], vec![], &evicted, 1 << 20);
        record(&mut settled, vec![write("k", 100, 5, &[B])], vec![], &[], 1 << 20);
        let differs = |sequence, content| settled.differs(&"k".into(), 100, sequence, [content; 2]);
        assert_eq!([differs(1, A), differs(1, B)], [Some(false), Some(true)]);
        assert_eq!([differs(3, A), differs(4, B), differs(5, A)], [Some(false), Some(false), None]);
    }

    #[test]
    fn digests_of_an_earlier_incarnation_do_not_count() {
        let mut settled = SettledEvents::default();
        record(&mut settled, vec![write("k", 7, 9, &[A; 8])], vec![], &[], 1 << 20);
        assert_eq!(settled.differs(&"k".into(), 8, 3, [B; 2]), None, "the key has begun again");
        record(&mut settled, vec![write("k", 8, 4, &[B; 3])], vec![], &[], 1 << 20);
        assert_eq!(settled.differs(&"k".into(), 8, 3, [B; 2]), Some(false));
        assert_eq!(settled.differs(&"k".into(), 8, 5, [B; 2]), None);
    }

    #[test]
    fn refused_writes_settle_no_event() {
        let mut settled = SettledEvents::default();
        let evicted = [(0, vec![(1, EventDigests::short(A))])];
        let refused = vec![(0, WriteRefusal::Next(Some(2)))];
        record(&mut settled, vec![write("k", 7, 3, &[A])], refused, &evicted, 1 << 20);
        assert_eq!(settled.differs(&"k".into(), 7, 1, [A; 2]), None);
        assert_eq!(settled.bytes, 0);
    }

    #[test]
    fn oldest_keys_are_forgotten_above_the_limit() {
        let mut settled = SettledEvents::default();
        for key in ["z", "a", "m"] {
            record(&mut settled, vec![write(key, 7, 2, &[A])], vec![], &[], 700);
        }
        let known = ["z", "a", "m"].map(|key| settled.differs(&key.into(), 7, 1, [A; 2]).is_some());
        assert_eq!(known, [false, true, true]);
        let of_key = KEY_BYTES + 1 + DIGEST_BYTES;
        assert_eq!(settled.bytes, 2 * of_key);
    }
}
