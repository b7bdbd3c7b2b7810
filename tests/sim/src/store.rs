//! The simulated store. It follows the rules of the real stores, but keeps its data in plain maps, without I/O. The
//! store never acts on its own: it only answers requests of the world.

mod commit;
mod rollback;

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{
    AcceptedId, AppliedCommit, DeadLetter, Event, Key, KeyRecord, KeySnapshot, LetterContent,
    LetterId,
};

pub(crate) use commit::{Message, Post};
pub(crate) use rollback::{RolledBackPart, restore};

use crate::StoreFault;

/// The time of the store's clock, in ms, at virtual time 0. The clocks of the owners show other times.
const STORE_EPOCH: u64 = 1_700_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) epoch: u64,
    pub(crate) random: u64,
}

/// The fence of a partition in a shard: the claim of the owner, and the last commit with its reply.
#[derive(Debug, Clone)]
struct Fence {
    claim: Claim,
    last: u64,
    reply: AppliedCommit,
}

/// The content of the store for one key.
#[derive(Debug, Clone)]
pub(crate) struct StoredKey {
    pub(crate) key_record: KeyRecord,
    pub(crate) state: Option<Bytes>,
    pub(crate) ids: BTreeMap<u64, AcceptedId>,
    pub(crate) spill: BTreeMap<u64, Arc<Event>>,
    /// The time of the key's entry in the due index, by the store's clock.
    pub(crate) due_at: Option<u64>,
    /// The time at which the store removes the key, by the store's clock.
    pub(crate) expires_at: Option<u64>,
    /// The record cannot be read any more.
    pub(crate) corrupt: bool,
}

impl StoredKey {
    fn new(key_record: KeyRecord) -> Self {
        Self {
            key_record,
            state: None,
            ids: BTreeMap::new(),
            spill: BTreeMap::new(),
            due_at: None,
            expires_at: None,
            corrupt: false,
        }
    }
}

/// Outboxes by (partition, shard) and number of the commit.
type Outboxes = BTreeMap<(u32, u32), BTreeMap<u64, Vec<Post>>>;

#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) records: BTreeMap<Key, StoredKey>,
    pub(crate) letters: BTreeMap<LetterId, DeadLetter>,
    pub(crate) fault: Option<StoreFault>,
    shards: u32,
    epoch: u64,
    fences: BTreeMap<(u32, u32), Fence>,
    outbox: Outboxes,
}

impl Store {
    pub(crate) fn new(shards: u32) -> Self {
        Self {
            records: BTreeMap::new(),
            letters: BTreeMap::new(),
            fault: None,
            shards,
            epoch: 0,
            fences: BTreeMap::new(),
            outbox: BTreeMap::new(),
        }
    }

    pub(crate) fn time(now: u64) -> u64 {
        STORE_EPOCH + now
    }

    fn has_fault(&self, fault: StoreFault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the claim, and for each shard the number of the partition's last commit.
    pub(crate) fn claim(&mut self, partition: u32, random: u64) -> (Claim, Vec<u64>) {
        self.epoch += 1;
        let claim = Claim { epoch: self.epoch, random };
        let commits = (0..self.shards)
            .map(|shard| {
                let fence = self.fences.entry((partition, shard)).or_insert_with(|| Fence {
                    claim,
                    last: 0,
                    reply: AppliedCommit::default(),
                });
                fence.claim = claim;
                fence.last
            })
            .collect();
        (claim, commits)
    }

    /// No owner of the run has written this record.
    pub(crate) fn import(&mut self, key: &Key, partition: u32, next: u64) {
        let mut key_record = KeyRecord::new(next, partition);
        key_record.incarnation = Self::time(0);
        self.records.insert(key.clone(), StoredKey::new(key_record));
    }

    /// Returns the expired key records.
    pub(crate) fn expire(&mut self, now: u64) -> Vec<(Key, StoredKey)> {
        let time = Self::time(now);
        self.records
            .extract_if(.., |_, record| record.expires_at.is_some_and(|at| at <= time))
            .collect()
    }

    /// Assigns the key to the partition of the request.
    pub(crate) fn load(
        &mut self,
        partition: u32,
        key: &Key,
        now: u64,
    ) -> Result<Option<Box<KeySnapshot>>, String> {
        let Some(record) = self.records.get_mut(key) else { return Ok(None) };
        if record.corrupt {
            return Err("simulated: not readable".into());
        }
        if record.key_record.partition != partition {
            record.key_record.partition = partition;
            record.key_record.takeovers += 1;
        }
        Ok(Some(Box::new(KeySnapshot {
            record: record.key_record.clone(),
            state: record.state.clone(),
            ids: record.ids.values().copied().collect(),
            now: Self::time(now),
            due_in: record.due_at.map(|at| at.saturating_sub(Self::time(now))),
            expire_in: record.expires_at.map(|at| at.saturating_sub(Self::time(now))),
            moved_from: None,
        })))
    }

    /// Returns a page of a key's spilled events, and true if the page is the last page.
    pub(crate) fn read_spill(
        &self,
        key: &Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) -> (Vec<(u64, Arc<Event>)>, bool) {
        let Some(record) = self.records.get(key) else { return (Vec::new(), true) };
        let mut events = Vec::new();
        let mut size = 0;
        let mut rest = record.spill.range(from..);
        for (&sequence, event) in rest.by_ref() {
            size += event.memory();
            if !events.is_empty() && (events.len() >= limit || size > bytes) {
                return (events, false);
            }
            events.push((sequence, event.clone()));
        }
        (events, true)
    }

    /// Searches the spilled events, and the dead letters with a cause for which
    /// [`ordain_core::Cause::waits_for_earlier`] returns true.
    pub(crate) fn find(
        &self,
        key: &Key,
        missing: &[RangeInclusive<u64>],
    ) -> Vec<(u64, Arc<Event>)> {
        let mut found = BTreeMap::new();
        let letters = self.letters.range(LetterId { key: key.clone(), sequence: 0, tag: 0 }..);
        for (id, letter) in letters.take_while(|(id, _)| id.key == *key) {
            if letter.cause.waits_for_earlier()
                && let LetterContent::Event(event) = &letter.content
            {
                found.insert(id.sequence, event.clone());
            }
        }
        if let Some(record) = self.records.get(key) {
            found.extend(record.spill.clone());
        }
        found.retain(|sequence, _| missing.iter().any(|range| range.contains(sequence)));
        found.into_iter().collect()
    }

    /// Returns dead letters with a cause for which [`ordain_core::Cause::waits_for_earlier`] returns true.
    pub(crate) fn early_letters(
        &self,
        key: &Key,
        sequences: &RangeInclusive<u64>,
    ) -> Vec<DeadLetter> {
        let id = |sequence, tag| LetterId { key: key.clone(), sequence, tag };
        let range = id(*sequences.start(), 0)..=id(*sequences.end(), u64::MAX);
        let letters = self.letters.range(range).map(|(_, letter)| letter);
        letters.filter(|letter| letter.cause.waits_for_earlier()).cloned().collect()
    }

    /// Returns entries of the due index, and the time in ms until the first entry after the returned entries is due.
    /// With `all`, the result also contains entries that are not due yet.
    pub(crate) fn due(
        &self,
        partition: u32,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
        now: u64,
    ) -> (Vec<(u64, Key)>, Option<u64>) {
        let time = Self::time(now);
        let index: std::collections::BTreeSet<(u64, Key)> = self
            .records
            .iter()
            .filter(|(_, record)| record.key_record.partition == partition)
            .filter_map(|(key, record)| Some((record.due_at?, key.clone())))
            .collect();
        let start = after.map_or(Bound::Unbounded, |entry| Bound::Excluded(entry.clone()));
        let mut rest = index.range((start, Bound::Unbounded)).peekable();
        let mut entries = Vec::new();
        while let Some((at, _)) = rest.peek()
            && entries.len() < limit
            && (all || *at <= time)
        {
            entries.extend(rest.next().cloned());
        }
        (entries, rest.next().map(|(at, _)| at.saturating_sub(time)))
    }

    /// Oldest first.
    pub(crate) fn outbox(&self, partition: u32, shard: u32) -> Vec<(u64, Vec<Post>)> {
        let entries = self.outbox.get(&(partition, shard));
        entries.into_iter().flatten().map(|(number, list)| (*number, list.clone())).collect()
    }

    pub(crate) fn outbox_done(&mut self, partition: u32, shard: u32, through: u64) {
        if let Some(entries) = self.outbox.get_mut(&(partition, shard)) {
            entries.retain(|number, _| *number > through);
        }
    }

    /// Returns the number of messages and dead letters in the outboxes of one partition, or of all partitions for
    /// `None`.
    pub(crate) fn outbox_len(&self, partition: Option<u32>) -> usize {
        let of = |other: &u32| partition.is_none_or(|partition| partition == *other);
        let entries = self.outbox.iter().filter(|((partition, _), _)| of(partition));
        entries.flat_map(|(_, entries)| entries.values()).map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests;
