//! Reads the events of a key that wait in the store. Spilled events wait until their key can execute them. Events in
//! early dead letters ([`ordain_core::Cause::waits_for_earlier`]) wait too, because their key could not hold them when
//! they arrived.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fjall::{Readable, Snapshot};
use ordain_core::{DeadLetter, Event, Key, LetterContent, SpillPage};

use super::read::{of_key, sequence_of};
use super::record::EmbeddedRecord;
use super::shared::SharedStore;
use super::tables::into_owned_bytes;
use super::{EmbeddedStore, keys};
use ordain_store::codec::{decode_letter, decode_spilled};
use ordain_store::{
    EarlyLetters, FOUND_BYTES_LIMIT, FoundEvents, KeyResult, Partition, SpillArea, StoreError,
};

#[async_trait]
impl SpillArea for EmbeddedStore {
    async fn read_spill(
        &self,
        partition: &Partition,
        key: &Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<KeyResult<SpillPage>, StoreError> {
        let stream = partition.stream.clone();
        let key = key.clone();
        let read = move |shared: &SharedStore| {
            of_key(shared, spilled_page(shared, &stream, &key, from, limit, bytes))
        };
        self.read(read).await
    }

    async fn find_missing(
        &self,
        partition: &Partition,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        within: u64,
    ) -> Result<KeyResult<FoundEvents>, StoreError> {
        let stream = partition.stream.clone();
        let key = key.clone();
        let missing = missing.to_vec();
        let read = move |shared: &SharedStore| {
            of_key(shared, find(shared, &stream, &key, &missing, within))
        };
        self.read(read).await
    }

    async fn early_letters(
        &self,
        partition: &Partition,
        key: &Key,
        sequences: &RangeInclusive<u64>,
        within: u64,
    ) -> Result<KeyResult<EarlyLetters>, StoreError> {
        let stream = partition.stream.clone();
        let key = key.clone();
        let sequences = sequences.clone();
        let read = move |shared: &SharedStore| {
            let snapshot = shared.tables.db.snapshot();
            let read = early_letters(shared, &snapshot, &stream, &key, &sequences, within);
            of_key(shared, read.map(Ok))
        };
        self.read(read).await
    }
}

fn spilled_page(
    shared: &SharedStore,
    stream: &str,
    key: &Key,
    from: u64,
    limit: usize,
    bytes: usize,
) -> fjall::Result<KeyResult<SpillPage>> {
    let snapshot = shared.tables.db.snapshot();
    let mut events = Vec::new();
    let mut memory = 0;
    if has_expired(shared, &snapshot, stream, key)? {
        return Ok(Ok((events, true)));
    }
    let range = keys::event(stream, key, from)..keys::event(stream, key, u64::MAX);
    for entry in snapshot.range(&shared.tables.spill, range) {
        let (table_key, value) = entry.into_inner()?;
        if !events.is_empty() && events.len() >= limit {
            return Ok(Ok((events, false)));
        }
        let sequence = sequence_of(&table_key);
        let event = match decode_spilled(key, sequence, into_owned_bytes(value)) {
            Ok(event) => event,
            Err(words) => return Ok(Err(words)),
        };
        memory += event.memory();
        if !events.is_empty() && memory > bytes {
            return Ok(Ok((events, false)));
        }
        events.push((sequence, event));
    }
    Ok(Ok((events, true)))
}

/// Returns whether the key record has expired. Spilled events of the key are then left over from the expired record,
/// and no read may return them.
fn has_expired(
    shared: &SharedStore,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
) -> fjall::Result<bool> {
    let stored = snapshot.get(&shared.tables.jobs, keys::key_record(stream, key))?;
    let record = stored.as_deref().and_then(|bytes| EmbeddedRecord::parse(bytes).ok());
    Ok(record.is_some_and(|record| record.envelope.is_expired(shared.clock.now())))
}

fn find(
    shared: &SharedStore,
    stream: &str,
    key: &Key,
    missing: &[RangeInclusive<u64>],
    within: u64,
) -> fjall::Result<KeyResult<FoundEvents>> {
    let snapshot = shared.tables.db.snapshot();
    let mut found = complete_search();
    let mut memory = 0;
    let expired = has_expired(shared, &snapshot, stream, key)?;
    for range in missing {
        if memory >= FOUND_BYTES_LIMIT {
            found.until = *range.start();
            break;
        }
        let first = found.events.len();
        if !expired {
            match spilled(shared, &snapshot, stream, key, range)? {
                Ok(spilled) => {
                    found.events.extend(spilled.events);
                    found.until = spilled.until;
                }
                Err(words) => return Ok(Err(words)),
            }
        }
        let EarlyLetters { letters, until } =
            early_letters(shared, &snapshot, stream, key, range, within)?;
        found.events.extend(letters.into_iter().filter_map(early_event));
        if until <= *range.end() {
            found.until = found.until.min(until);
        }
        // The sort is stable, so a spilled event stays before the event of a letter with the same sequence.
        found.events[first..].sort_by_key(|(sequence, _)| *sequence);
        memory += found.events[first..].iter().map(|(_, event)| event.memory()).sum::<usize>();
        if found.until != u64::MAX {
            break;
        }
    }
    found.events.dedup_by_key(|(sequence, _)| *sequence);
    Ok(Ok(found))
}

/// Returns the result of a search that has found nothing yet. The search must set `until` if it ends early.
fn complete_search() -> FoundEvents {
    FoundEvents { events: Vec::new(), until: u64::MAX }
}

/// Returns the spilled events with sequences in `range`. Ends before the next event when the memory of the events
/// reaches [`FOUND_BYTES_LIMIT`].
fn spilled(
    shared: &SharedStore,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
    range: &RangeInclusive<u64>,
) -> fjall::Result<KeyResult<FoundEvents>> {
    let mut found = complete_search();
    let mut memory = 0;
    let event_at = |sequence| keys::event(stream, key, sequence);
    let range = event_at(*range.start())..=event_at(*range.end());
    for entry in snapshot.range(&shared.tables.spill, range) {
        let (table_key, value) = entry.into_inner()?;
        let sequence = sequence_of(&table_key);
        if memory >= FOUND_BYTES_LIMIT {
            found.until = sequence;
            break;
        }
        match decode_spilled(key, sequence, into_owned_bytes(value)) {
            Ok(event) => {
                memory += event.memory();
                found.events.push((sequence, event));
            }
            Err(words) => return Ok(Err(words)),
        }
    }
    Ok(Ok(found))
}

/// Returns the early dead letters ([`ordain_core::Cause::waits_for_earlier`]) in `range` that have an event, and that
/// were stored at most `within` ms ago. Ends before the next letter when the memory of the events reaches
/// [`FOUND_BYTES_LIMIT`].
fn early_letters(
    shared: &SharedStore,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
    range: &RangeInclusive<u64>,
    within: u64,
) -> fjall::Result<EarlyLetters> {
    let now = shared.clock.now();
    let put_from = now.saturating_sub(within);
    let mut letters = Vec::new();
    let mut memory = 0;
    // `end` is exclusive. At the largest `u64`, the addition does not change the number, but no event has this
    // sequence.
    let end = range.end().saturating_add(1);
    let letter_at = |sequence| keys::letter_sequence(stream, key, sequence);
    for entry in snapshot.range(&shared.tables.letters, letter_at(*range.start())..letter_at(end)) {
        let (table_key, value) = entry.into_inner()?;
        if memory >= FOUND_BYTES_LIMIT
            && let Some(id) = keys::split_letter(&table_key)
        {
            return Ok(EarlyLetters { letters, until: id.sequence });
        }
        let Ok(stored) = decode_letter(&Bytes::from(value)) else { continue };
        if stored.letter.cause.waits_for_earlier()
            && stored.at >= put_from
            && shared.is_letter_live(stored.at, now)
            && let LetterContent::Event(event) = &stored.letter.content
        {
            memory += event.memory();
            letters.push(stored.letter);
        }
    }
    Ok(EarlyLetters { letters, until: end })
}

fn early_event(letter: DeadLetter) -> Option<(u64, Arc<Event>)> {
    match letter.content {
        LetterContent::Event(event) => Some((letter.id.sequence, event)),
        LetterContent::Nothing | LetterContent::Raw(_) => None,
    }
}
