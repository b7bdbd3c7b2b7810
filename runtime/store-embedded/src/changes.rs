//! Converts a batch of the sequencer into one atomic write to the tables.
//!
//! The changes become visible when the engine commits them. The code in this module therefore reads the data as it was
//! before the batch. This is correct, because a batch has at most one write for each key. This module must check only
//! the conditions that each write names.

use std::collections::HashSet;

use fjall::{OwnedWriteBatch, Slice};
use ordain_core::{
    Batch, DeadLetter, Event, ExistingSpill, KeyWrite, StateUpdate, WriteCondition, WriteRefusal,
};

use super::keys;
use super::record::{self, EmbeddedRecord, INLINE_STATE_BYTES, RecordEnvelope, StateLocation};
use super::record_cache::RecordCache;
use super::shared::SharedStore;
use super::tables::{Tables, copy_key, is_damage};
use ordain_store::codec::{
    ACCEPTED_ID_BYTES, encode_accepted_id, encode_letter, encode_outbox_write, letter_time,
};
use ordain_store::{Partition, key_length_error};

/// The maximum number of ids that a write removes without first reading which of these ids exist. Normally all of them
/// exist, because sequences have no holes. The value is the default number of ids that the store remembers for a key.
const NAMED_IDS_LIMIT: u64 = 4_000;

pub(super) struct BatchChanges<'a> {
    pub(super) batch: OwnedWriteBatch,
    pub(super) outbox: Vec<u8>,
    pub(super) present: Vec<ExistingSpill>,
    pub(super) earliest: EarliestTimes,
    tables: &'a Tables,
    record_cache: &'a mut RecordCache,
    partition: &'a Partition,
    now: u64,
    /// The time from which the life of new data counts ([`MonotonicClock::life_start`]).
    ///
    /// [`MonotonicClock::life_start`]: ordain_store::clock::MonotonicClock::life_start
    life_start: u64,
    scratch: Vec<u8>,
}

impl<'a> BatchChanges<'a> {
    pub(super) fn new(
        tables: &'a Tables,
        recent: &'a mut RecordCache,
        partition: &'a Partition,
        now: u64,
        life_start: u64,
        writes: usize,
    ) -> Self {
        // The expected number of entries: one or two for each write, and a few for the fence and the outbox.
        let batch = OwnedWriteBatch::with_capacity(tables.db.clone(), writes + writes / 2 + 8);
        Self {
            batch,
            outbox: Vec::new(),
            present: Vec::new(),
            earliest: EarliestTimes::default(),
            tables,
            record_cache: recent,
            partition,
            now,
            life_start,
            scratch: Vec::new(),
        }
    }

    /// Adds the accepted writes to `batch`, and their messages to `outbox`. Returns the index of each refused write,
    /// with the reason.
    pub(super) fn writes(
        &mut self,
        writes: &[KeyWrite],
    ) -> fjall::Result<Vec<(usize, WriteRefusal)>> {
        // The tables are sorted by key, and neighboring entries share cache lines of the processor. The writes are
        // therefore applied in the order of their keys, which is faster.
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_unstable_by(|a, b| writes[*a].key.cmp(&writes[*b].key));
        let mut refused = Vec::new();
        for index in order {
            if let Some(refusal) = self.write(index, &writes[index])? {
                refused.push((index, refusal));
            }
        }
        refused.sort_unstable_by_key(|(index, _)| *index);
        self.present.sort_unstable_by_key(|present| (present.write, present.sequence));
        for (index, write) in writes.iter().enumerate() {
            if refused.binary_search_by_key(&index, |(refused, _)| *refused).is_err() {
                let incarnation = match write.record.incarnation {
                    0 => self.now,
                    since => since,
                };
                encode_outbox_write(&write.key, incarnation, &write.messages, &mut self.outbox);
            }
        }
        Ok(refused)
    }

    fn write(&mut self, index: usize, write: &KeyWrite) -> fjall::Result<Option<WriteRefusal>> {
        if let Some(words) = key_length_error(&write.key) {
            return Ok(Some(WriteRefusal::Corrupt(words)));
        }
        match self.check_and_apply(index, write) {
            Err(error) if is_damage(&error) => Ok(Some(WriteRefusal::Corrupt(error.to_string()))),
            other => other,
        }
    }

    /// Applies a write if its condition holds. First reads all entries on which the write depends. If one of these
    /// entries is damaged, the store refuses the whole write, and the write changes nothing.
    fn check_and_apply(
        &mut self,
        index: usize,
        write: &KeyWrite,
    ) -> fjall::Result<Option<WriteRefusal>> {
        let tables = self.tables;
        let table_key = Slice::from(keys::key_record(&self.partition.stream, &write.key));
        let stored = self.record_cache.get(tables, &table_key)?;
        let old = match stored.as_deref().map(EmbeddedRecord::parse).transpose() {
            Ok(old) => old,
            Err(error) => return Ok(Some(WriteRefusal::Corrupt(error.to_string()))),
        };
        let expired = old.as_ref().is_some_and(|old| old.envelope.is_expired(self.now));
        let live = old.as_ref().filter(|_| !expired);
        if let Some(refusal) = check_condition(write, live, self.partition.number) {
            return Ok(Some(refusal));
        }
        if let Some(old) = &old
            && expired
        {
            // A separate batch removes the expired key record, because no batch may write a record twice. If the
            // process ends between the two batches, nothing is lost: readers already ignore an expired key record.
            let mut leftover = OwnedWriteBatch::with_capacity(tables.db.clone(), 8);
            remove_record(tables, self.record_cache, &mut leftover, &table_key, old)?;
            leftover.commit()?;
        }
        let found = self.read_related(write, live)?;
        self.apply(index, write, table_key, live, found);
        Ok(None)
    }

    /// Reads the other entries, besides the key record, that the write changes. Usually there are none.
    fn read_related(
        &self,
        write: &KeyWrite,
        old: Option<&EmbeddedRecord<'_>>,
    ) -> fjall::Result<RelatedEntries> {
        let mut found = RelatedEntries::default();
        let Some(old) = old else { return Ok(found) };
        let stream = &self.partition.stream;
        let event_at = |sequence| keys::event(stream, &write.key, sequence);
        let stored = old.key_record.spilled;
        let remaining = write.record.spilled.count;
        for (sequence, event) in &write.spill {
            if stored.spans(*sequence)
                && let Some(stored_bytes) = self.tables.spill.get(event_at(*sequence))?
            {
                let stored_event = Event::decode(stored_bytes.into());
                let same = stored_event.is_ok_and(|stored_event| event.repeats(&stored_event));
                found.present.push((*sequence, same));
            }
        }
        let next = write.record.next;
        // If the new record has no spilled events, remove all spilled events of the key, even events with a sequence of
        // `next` or higher.
        let end = if remaining == 0 { u64::MAX } else { next };
        if stored.count > 0 && stored.first < end {
            found.settled = in_range(&self.tables.spill, event_at(stored.first), event_at(end))?;
        }
        // If the new record remembers no ids, remove the ids of all settled events: the ids below the next sequence.
        let to = if write.record.ids_from == 0 { next } else { write.record.ids_from };
        let from = old.key_record.ids_from;
        if from != 0 && from < to {
            found.old_ids = if to - from > NAMED_IDS_LIMIT {
                in_range(&self.tables.ids, event_at(from), event_at(to))?
            } else {
                (from..to).map(|sequence| event_at(sequence).into()).collect()
            };
        }
        Ok(found)
    }

    fn apply(
        &mut self,
        index: usize,
        write: &KeyWrite,
        table_key: Slice,
        old: Option<&EmbeddedRecord<'_>>,
        found: RelatedEntries,
    ) {
        self.spill(index, write, &found.present);
        self.ids(write);
        for event in found.settled {
            self.batch.remove(&self.tables.spill, event);
        }
        for id in found.old_ids {
            self.batch.remove(&self.tables.ids, id);
        }
        let before = old.map(|old| old.envelope).unwrap_or_default();
        let envelope = RecordEnvelope {
            due_at: write.due_in.map_or(0, |ms| self.now.saturating_add(ms)),
            expire_at: write.expire_in.map_or(0, |ms| self.life_start.saturating_add(ms)),
            expiry_entry: before.expiry_entry,
        };
        let state = old.map(|old| old.state).unwrap_or_default();
        let state = self.state(&write.state, &table_key, state);
        self.due(&write.key, before.due_at, envelope.due_at);
        let envelope = self.expiry(&table_key, envelope);
        self.scratch.clear();
        record::encode(&envelope, state, &write.record, self.now, &mut self.scratch);
        let record = Slice::from(self.scratch.as_slice());
        self.record_cache.put(&table_key, record.clone());
        self.batch.insert(&self.tables.jobs, table_key, record);

        for id in &write.removed_letters {
            let letter = keys::letter(&self.partition.stream, id);
            self.batch.remove(&self.tables.letters, letter);
        }
        self.letters(&write.letters);
    }

    fn state<'s>(
        &mut self,
        change: &'s StateUpdate,
        table_key: &Slice,
        before: StateLocation<'s>,
    ) -> StateLocation<'s> {
        let after = match change {
            StateUpdate::Keep => return before,
            StateUpdate::Put(state) if state.len() <= INLINE_STATE_BYTES => {
                StateLocation::Inline(state)
            }
            StateUpdate::Put(state) => {
                self.batch.insert(&self.tables.states, table_key.clone(), state.clone());
                return StateLocation::Separate(state.len() as u64);
            }
            StateUpdate::Delete => StateLocation::None,
        };
        if matches!(before, StateLocation::Separate(_)) {
            self.batch.remove(&self.tables.states, table_key.clone());
        }
        after
    }

    fn due(&mut self, key: &str, before: u64, after: u64) {
        if before == after {
            return;
        }
        if before != 0 {
            self.batch.remove(&self.tables.times, keys::due(self.partition, before, key));
        }
        if after != 0 {
            self.batch.insert(&self.tables.times, keys::due(self.partition, after, key), b"");
            self.earliest.due = self.earliest.due.min(after);
        }
    }

    /// Updates the expiry entry of a key record. Keeps an entry whose time is not later than the new expiry time: when
    /// the time of the entry comes, the sweep moves the entry. One such move costs less than a move with every write.
    fn expiry(&mut self, table_key: &[u8], mut envelope: RecordEnvelope) -> RecordEnvelope {
        let entry = envelope.expiry_entry;
        let at = envelope.expire_at;
        if entry != 0 && at != 0 && entry <= at {
            return envelope;
        }
        if entry != 0 {
            self.batch.remove(&self.tables.times, keys::expiry(entry, table_key));
        }
        if at != 0 {
            self.batch.insert(&self.tables.times, keys::expiry(at, table_key), b"");
            self.earliest.expiry = self.earliest.expiry.min(at);
        }
        envelope.expiry_entry = at;
        envelope
    }

    fn spill(&mut self, index: usize, write: &KeyWrite, present: &[(u64, bool)]) {
        for (sequence, event) in &write.spill {
            if let Some(&(sequence, same)) = present.iter().find(|(there, _)| there == sequence) {
                self.present.push(ExistingSpill { write: index, sequence, same });
            } else if *sequence >= write.record.next {
                let table_key = keys::event(&self.partition.stream, &write.key, *sequence);
                let mut value = Vec::with_capacity(event.encoded_len());
                event.encode(&mut value);
                self.batch.insert(&self.tables.spill, table_key, value);
            }
        }
    }

    fn ids(&mut self, write: &KeyWrite) {
        let from = write.record.ids_from;
        for id in write.ids.iter().filter(|id| from != 0 && id.sequence >= from) {
            let mut value = Vec::with_capacity(ACCEPTED_ID_BYTES);
            encode_accepted_id(id, &mut value);
            let table_key = keys::event(&self.partition.stream, &write.key, id.sequence);
            self.batch.insert(&self.tables.ids, table_key, value);
        }
    }

    /// Adds the orphan dead letters to the batch of the engine. Returns the indexes of the letters that are not new,
    /// because the store already has them, or because `batch` repeats them.
    pub(super) fn put_orphan_letters(
        &mut self,
        batch: &Batch,
        shared: &SharedStore,
    ) -> fjall::Result<Vec<usize>> {
        let mut known = Vec::new();
        let mut checked = HashSet::new();
        for (at, letter) in batch.letters.iter().enumerate() {
            let table_key = keys::letter(&self.partition.stream, &letter.id);
            let stored_at = match self.tables.letters.get(&table_key) {
                Err(error) if !is_damage(&error) => return Err(error),
                read => read.ok().flatten().and_then(|letter| letter_time(&letter)),
            };
            let lives = stored_at.is_some_and(|put| shared.is_letter_live(put, self.now));
            if !checked.insert(table_key) || lives {
                known.push(at);
            }
        }
        self.letters(&batch.letters);
        Ok(known)
    }

    fn letters(&mut self, letters: &[DeadLetter]) {
        for letter in letters {
            let table_key = keys::letter(&self.partition.stream, &letter.id);
            let mut value = Vec::new();
            encode_letter(letter, self.life_start, &mut value);
            let age = keys::letter_age(self.life_start, &table_key);
            self.earliest.letter = self.life_start;
            self.batch.insert(&self.tables.times, age, b"");
            self.batch.insert(&self.tables.letters, table_key, value);
        }
    }
}

/// The earliest times of the new entries in the time index, for each kind of entry; `u64::MAX` if there is no new
/// entry.
pub(super) struct EarliestTimes {
    pub(super) due: u64,
    pub(super) expiry: u64,
    pub(super) letter: u64,
    pub(super) retained: u64,
}

impl Default for EarliestTimes {
    fn default() -> Self {
        Self { due: u64::MAX, expiry: u64::MAX, letter: u64::MAX, retained: u64::MAX }
    }
}

/// The entries, besides the key record, that a write changes.
#[derive(Default)]
struct RelatedEntries {
    /// The events of the write that the store already has as spilled events: for each event, its sequence, and `true`
    /// if the stored event has the same content.
    present: Vec<(u64, bool)>,
    /// The table keys of the spilled events that the write removes: events below the new `next`, or all events if the
    /// new record has no spilled events.
    settled: Vec<Slice>,
    /// The table keys of the ids that the write removes, because the new record no longer remembers them.
    old_ids: Vec<Slice>,
}

fn check_condition(
    write: &KeyWrite,
    stored: Option<&EmbeddedRecord<'_>>,
    partition: u32,
) -> Option<WriteRefusal> {
    let takeovers = write.record.takeovers;
    match (write.condition, stored.map(|record| &record.key_record)) {
        (WriteCondition::Absent, None) => None,
        (WriteCondition::Next(_), None) => Some(WriteRefusal::Next(None)),
        (_, Some(record)) if record.partition != partition => {
            Some(WriteRefusal::Partition(record.next))
        }
        (WriteCondition::Next(_), Some(record)) if record.takeovers != takeovers => {
            Some(WriteRefusal::Partition(record.next))
        }
        (WriteCondition::Next(next), Some(record)) if record.next == next => {
            let is_older = write.record.rollout_number() < record.rollout_number;
            is_older.then_some(WriteRefusal::Version)
        }
        (_, Some(record)) => Some(WriteRefusal::Next(Some(record.next))),
    }
}

/// Removes all data of a key except its dead letters. Returns the number of removed entries.
pub(super) fn remove_record(
    tables: &Tables,
    recent: &mut RecordCache,
    batch: &mut OwnedWriteBatch,
    table_key: &[u8],
    record: &EmbeddedRecord<'_>,
) -> fjall::Result<usize> {
    let before = batch.len();
    batch.remove(&tables.jobs, table_key);
    recent.remove(table_key);
    if matches!(record.state, StateLocation::Separate(_)) {
        batch.remove(&tables.states, table_key);
    }
    if record.envelope.expiry_entry != 0 {
        batch.remove(&tables.times, keys::expiry(record.envelope.expiry_entry, table_key));
    }
    let Some((stream, key)) = keys::split_key_record(table_key) else {
        return Ok(batch.len() - before);
    };
    if record.envelope.due_at != 0 {
        let partition = Partition { stream: stream.into(), number: record.key_record.partition };
        batch.remove(&tables.times, keys::due(&partition, record.envelope.due_at, key));
    }
    let event_at = |sequence| keys::event(stream, key, sequence);
    for (table, any) in [
        (&tables.spill, record.key_record.spilled.count > 0),
        (&tables.ids, record.key_record.ids_from > 0),
    ] {
        if any {
            for entry in in_range(table, event_at(0), event_at(u64::MAX))? {
                batch.remove(table, entry);
            }
        }
    }
    Ok(batch.len() - before)
}

fn in_range(table: &fjall::Keyspace, from: Vec<u8>, to: Vec<u8>) -> fjall::Result<Vec<Slice>> {
    if from >= to {
        return Ok(Vec::new());
    }
    table.range(from..to).map(copy_key).collect()
}
