//! What the owner of a partition reads. Every read is of one snapshot, so that a job, its state
//! and its ids belong together. Must change nothing.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{Readable, Snapshot};
use ordain_core::{Cause, Event, Key, LetterContent, Loaded, SpillPage, TakenId};

use super::keys;
use super::record::{Record, State};
use super::shared::Shared;
use super::tables::{detach, is_damage, read_error};
use super::writer::read_number;
use ordain_store::codec::{decode_letter, decode_outbox, decode_spilled, decode_taken_id};
use ordain_store::{OfKey, OutboxEntry, Partition, StoreError, too_long};

/// Bytes of outbox entries read at once, after the first: as many as four full commits.
const OUTBOX_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of events found at once, after the first; a later round of replay finds the others.
const FIND_BYTES: usize = 16 * 1024 * 1024;

/// An event with its sequence.
type Numbered = (u64, Arc<Event>);

/// A key's answer to a load.
pub(super) type LoadedKey = OfKey<Option<Box<Loaded>>>;

/// What was read of a key: a damaged block of a file is its own, and no reason to stop others.
pub(super) fn of_key<T>(read: fjall::Result<OfKey<T>>) -> Result<OfKey<T>, StoreError> {
    match read {
        Ok(read) => Ok(read),
        Err(error) if is_damage(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(read_error(&error)),
    }
}

/// Loads jobs as they are, whatever their partition.
pub(super) fn load(
    shared: &Shared,
    stream: &str,
    keys: &[Key],
    bytes: usize,
) -> Result<Vec<LoadedKey>, StoreError> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let (mut jobs, mut read) = (Vec::with_capacity(keys.len()), 0);
    for key in keys {
        let job = of_key(load_one(shared, &snapshot, stream, key, now))?;
        if let Ok(Some(job)) = &job {
            read += job.memory();
        }
        jobs.push(job);
        if read >= bytes {
            break;
        }
    }
    Ok(jobs)
}

fn load_one(
    shared: &Shared,
    snapshot: &Snapshot,
    stream: &str,
    key: &Key,
    now: u64,
) -> fjall::Result<LoadedKey> {
    if let Some(words) = too_long(key) {
        return Ok(Err(words));
    }
    let tables = &shared.tables;
    let place = keys::job(stream, key);
    let Some(stored) = snapshot.get(&tables.jobs, &place)? else { return Ok(Ok(None)) };
    let record = match Record::parse(&stored) {
        Ok(record) => record,
        Err(error) => return Ok(Err(error.to_string())),
    };
    if record.envelope.expired(now) {
        return Ok(Ok(None));
    }
    let state = match record.state {
        State::None => None,
        State::Inline(state) => Some(Bytes::copy_from_slice(state)),
        State::Beside(size) => {
            let state = snapshot.get(&tables.states, &place)?.map(detach);
            match state.filter(|state| state.len() as u64 == size) {
                Some(state) => Some(state),
                None => return Ok(Err(format!("its state of {size} bytes is not there"))),
            }
        }
    };
    let ids = match ids(shared, snapshot, stream, key, record.job.ids_from)? {
        Ok(ids) => ids,
        Err(words) => return Ok(Err(words)),
    };
    let (due_in, expire_in) = (record.envelope.due_in(now), record.envelope.expire_in(now));
    let job = record.job.to_job();
    Ok(Ok(Some(Box::new(Loaded { job, state, ids, due_in, expire_in }))))
}

fn ids(
    shared: &Shared,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
    from: u64,
) -> fjall::Result<Result<Vec<TakenId>, String>> {
    let mut ids = Vec::new();
    if from == 0 {
        return Ok(Ok(ids));
    }
    let range = keys::event(stream, key, from)..keys::event(stream, key, u64::MAX);
    for entry in snapshot.range(&shared.tables.ids, range) {
        let (place, value) = entry.into_inner()?;
        let sequence = sequence_of(&place);
        match decode_taken_id(sequence, &value) {
            Ok(id) => ids.push(id),
            Err(error) => return Ok(Err(format!("sequence {sequence}: {error}"))),
        }
    }
    Ok(Ok(ids))
}

/// See [`Store::read_spill`](ordain_store::Store::read_spill).
pub(super) fn spill(
    shared: &Shared,
    stream: &str,
    key: &Key,
    from: u64,
    limit: usize,
    bytes: usize,
) -> fjall::Result<OfKey<SpillPage>> {
    let snapshot = shared.tables.db.snapshot();
    let (mut events, mut memory) = (Vec::new(), 0);
    if has_expired(shared, &snapshot, stream, key)? {
        return Ok(Ok((events, true)));
    }
    let range = keys::event(stream, key, from)..keys::event(stream, key, u64::MAX);
    for entry in snapshot.range(&shared.tables.spill, range) {
        let (place, value) = entry.into_inner()?;
        if !events.is_empty() && events.len() >= limit {
            return Ok(Ok((events, false)));
        }
        let sequence = sequence_of(&place);
        let event = match decode_spilled(key, sequence, detach(value)) {
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

/// Whether what is spilled for a key is a leftover of a job that is no more.
fn has_expired(
    shared: &Shared,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
) -> fjall::Result<bool> {
    let stored = snapshot.get(&shared.tables.jobs, keys::job(stream, key))?;
    let record = stored.as_deref().and_then(|bytes| Record::parse(bytes).ok());
    Ok(record.is_some_and(|record| record.envelope.expired(shared.clock.now())))
}

/// See [`Store::find`](ordain_store::Store::find).
pub(super) fn find(
    shared: &Shared,
    stream: &str,
    key: &Key,
    missing: &[RangeInclusive<u64>],
    within: u64,
) -> fjall::Result<OfKey<Vec<Numbered>>> {
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let put_from = now.saturating_sub(within);
    let mut found = Found::default();
    let expired = has_expired(shared, &snapshot, stream, key)?;
    for range in missing {
        let first = found.events.len();
        if !expired && let Err(words) = spilled(shared, &snapshot, stream, key, range, &mut found)?
        {
            return Ok(Err(words));
        }
        far_ahead(shared, &snapshot, stream, key, range, put_from, now, &mut found)?;
        // A stable sort: what is spilled stays before a letter of the same sequence.
        found.events[first..].sort_by_key(|(sequence, _)| *sequence);
        if found.full() {
            break;
        }
    }
    found.events.dedup_by_key(|(sequence, _)| *sequence);
    Ok(Ok(found.events))
}

/// Missing events, up to a limit of memory.
#[derive(Default)]
struct Found {
    events: Vec<Numbered>,
    memory: usize,
}

impl Found {
    fn push(&mut self, sequence: u64, event: Arc<Event>) {
        self.memory += event.memory();
        self.events.push((sequence, event));
    }

    fn full(&self) -> bool {
        self.memory >= FIND_BYTES
    }
}

fn spilled(
    shared: &Shared,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
    range: &RangeInclusive<u64>,
    found: &mut Found,
) -> fjall::Result<OfKey<()>> {
    let place = |sequence| keys::event(stream, key, sequence);
    let range = place(*range.start())..=place(*range.end());
    for entry in snapshot.range(&shared.tables.spill, range) {
        let (place, value) = entry.into_inner()?;
        let sequence = sequence_of(&place);
        match decode_spilled(key, sequence, detach(value)) {
            Ok(event) => found.push(sequence, event),
            Err(words) => return Ok(Err(words)),
        }
        if found.full() {
            break;
        }
    }
    Ok(Ok(()))
}

/// Events that are kept as `far-ahead` letters put at this time or later.
#[allow(clippy::too_many_arguments, reason = "what a read is of, and where it goes")]
fn far_ahead(
    shared: &Shared,
    snapshot: &Snapshot,
    stream: &str,
    key: &str,
    range: &RangeInclusive<u64>,
    put_from: u64,
    now: u64,
    found: &mut Found,
) -> fjall::Result<()> {
    // Behind the last one: there is none of the largest number.
    let end = range.end().saturating_add(1);
    let place = |sequence| keys::letter_sequence(stream, key, sequence);
    for entry in snapshot.range(&shared.tables.letters, place(*range.start())..place(end)) {
        if found.full() {
            break;
        }
        let value: Bytes = entry.value()?.into();
        // A letter that cannot be read is no replay source, and no reason to stop.
        let Ok(stored) = decode_letter(&value) else { continue };
        if stored.letter.cause == Cause::FarAhead
            && stored.at >= put_from
            && shared.letter_lives(stored.at, now)
            && let LetterContent::Event(event) = stored.letter.content
        {
            found.push(stored.letter.id.sequence, event);
        }
    }
    Ok(())
}

/// Entries, and the ms to the next one.
type DueEntries = (Vec<(u64, Key)>, Option<u64>);

/// See [`Store::due`](ordain_store::Store::due).
pub(super) fn due(
    shared: &Shared,
    partition: &Partition,
    after: Option<&(u64, Key)>,
    limit: usize,
    future: bool,
) -> Result<DueEntries, StoreError> {
    let mark = shared.due.get(partition);
    let snapshot = shared.tables.db.snapshot();
    let now = shared.clock.now();
    let all = keys::due_all(partition);
    let start = match after {
        None => keys::due_from(partition, mark.from),
        Some((at, key)) => keys::after(keys::due(partition, *at, key)),
    };
    let range = start..keys::after(keys::due_from(partition, u64::MAX));
    // Only a read from the beginning knows that nothing is before its first entry.
    let advance = |to: u64| {
        if after.is_none() {
            shared.due.advance(partition, mark, to);
        }
    };
    let (mut due, mut first) = (Vec::new(), None);
    for entry in snapshot.range(&shared.tables.times, range) {
        let entry = entry.key().map_err(|error| read_error(&error))?;
        let Some((at, key)) = keys::split_due(&all, &entry) else { continue };
        let first = *first.get_or_insert(at);
        if !is_due(shared, &snapshot, partition, &key, at, now)? {
            continue;
        }
        if (at > now && !future) || due.len() >= limit {
            advance(first.min(now));
            return Ok((due, Some(at.saturating_sub(now))));
        }
        due.push((at, key));
    }
    advance(first.unwrap_or(now).min(now));
    Ok((due, None))
}

/// Whether an entry is about a job that is there: one that has expired keeps its entry until it
/// is swept, and one that cannot be read can never be moved on.
fn is_due(
    shared: &Shared,
    snapshot: &Snapshot,
    partition: &Partition,
    key: &str,
    at: u64,
    now: u64,
) -> Result<bool, StoreError> {
    let place = keys::job(&partition.stream, key);
    let stored = match snapshot.get(&shared.tables.jobs, place) {
        Err(error) if !is_damage(&error) => return Err(read_error(&error)),
        stored => stored.ok().flatten(),
    };
    let record = stored.as_deref().and_then(|bytes| Record::parse(bytes).ok());
    Ok(record.is_some_and(|record| record.envelope.due_at == at && !record.envelope.expired(now)))
}

/// See [`Store::outbox`](ordain_store::Store::outbox).
#[allow(clippy::similar_names, reason = "both are the words for what they are")]
pub(super) fn outbox(
    shared: &Shared,
    partition: &Partition,
    shard: u32,
    after: u64,
    limit: usize,
) -> Result<Vec<OutboxEntry>, StoreError> {
    let tables = &shared.tables;
    let snapshot = tables.db.snapshot();
    let done = snapshot.get(&tables.meta, keys::done(partition, shard));
    let after = read_number(done.map_err(|error| read_error(&error))?).max(after);
    let Some(first) = after.checked_add(1) else { return Ok(Vec::new()) };
    let range = keys::outbox(partition, shard, first)..=keys::outbox(partition, shard, u64::MAX);
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for entry in snapshot.range(&tables.outbox, range) {
        let (place, value) = entry.into_inner().map_err(|error| read_error(&error))?;
        if !entries.is_empty() && (entries.len() >= limit || bytes + value.len() > OUTBOX_BYTES) {
            break;
        }
        bytes += value.len();
        let number = keys::outbox_number(&place).unwrap_or_default();
        entries.push(decode_outbox(number, &value.into()).map_err(|error| {
            StoreError::Corrupt(format!(
                "stream {:?}, partition {}, shard {shard}, commit {number}: {error}",
                partition.stream, partition.number
            ))
        })?);
    }
    Ok(entries)
}

/// See [`Store::mark`](ordain_store::Store::mark).
pub(super) fn mark(shared: &Shared, name: &str) -> Result<Option<Bytes>, StoreError> {
    let value = shared.tables.meta.get(keys::mark(name)).map_err(|error| read_error(&error))?;
    Ok(value.map(detach))
}

/// The marks whose names begin so, by the rest of their names.
pub(super) fn marks(shared: &Shared, begin: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let mut found = Vec::new();
    let place = keys::mark(begin);
    for guard in shared.tables.meta.prefix(&place) {
        let (name, value) = guard.into_inner().map_err(|error| read_error(&error))?;
        let name = String::from_utf8_lossy(&name[place.len()..]).into_owned();
        found.push((name, value.to_vec()));
    }
    Ok(found)
}

/// The sequence at the end of a place that [`keys::event`] made.
fn sequence_of(place: &[u8]) -> u64 {
    place.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
