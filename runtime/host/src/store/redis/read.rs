//! What the owner of a partition reads. Must change nothing.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, Key, Loaded, TakenId};
use redis::Value;

use super::record::Record;
use super::value::{array, bytes, number, parts, strange};
use crate::store::codec::{decode_outbox, decode_taken_id};
use crate::store::{OutboxEntry, Partition, StoreError};

/// An event with its sequence.
pub(super) type Numbered = (u64, Arc<Event>);

/// A key's answer to a load.
pub(super) type LoadedKey = Result<Option<Box<Loaded>>, String>;

/// What `load` answered of one key.
pub(super) fn loaded(value: Value, now: u64) -> LoadedKey {
    let [record, state, ids] = match value {
        Value::Nil => return Ok(None),
        Value::Array(parts) => {
            let parts: Result<[Value; 3], _> = parts.try_into();
            parts.map_err(|_| "the server's answer has another form".to_owned())?
        }
        words => {
            let words = bytes(words).unwrap_or_default();
            return Err(String::from_utf8_lossy(&words).into_owned());
        }
    };
    let record = bytes(record).unwrap_or_default();
    let record = Record::parse(&record).map_err(|error| error.to_string())?;
    let left = |at: u64| at.saturating_sub(now);
    Ok(Some(Box::new(Loaded {
        state: bytes(state),
        ids: ids_from(record.job.ids_from, ids)?,
        due_in: record.due_at.map(left),
        expire_in: record.expire_at.map(left),
        job: record.job.to_job(),
    })))
}

fn ids_from(from: u64, ids: Value) -> Result<Vec<TakenId>, String> {
    let Value::Array(ids) = ids else { return Ok(Vec::new()) };
    let mut taken = Vec::with_capacity(ids.len());
    for id in ids {
        let id = bytes(id).unwrap_or_default();
        let (sequence, rest) = id.split_first_chunk().ok_or("an id that it took is cut off")?;
        let sequence = u64::from_be_bytes(*sequence);
        let id = decode_taken_id(sequence, rest)
            .map_err(|error| format!("sequence {sequence}: {error}"))?;
        if sequence >= from {
            taken.push(id);
        }
    }
    Ok(taken)
}

/// A spilled event.
pub(super) fn spilled(key: &str, member: Value) -> Result<Numbered, StoreError> {
    let member = bytes(member).ok_or_else(|| strange("a read of spilled events"))?;
    let bad = |words: &str| StoreError::Corrupt(format!("key {key:?}, a spilled event: {words}"));
    let sequence = member.first_chunk().ok_or_else(|| bad("it is cut off"))?;
    let sequence = u64::from_be_bytes(*sequence);
    if member.len() < 16 {
        return Err(bad("it is cut off"));
    }
    let event = Event::decode(member.slice(16..))
        .map_err(|error| bad(&format!("sequence {sequence}: {error}")))?;
    Ok((sequence, Arc::new(event)))
}

/// What one shard has in a partition's due index.
pub(super) struct Due {
    pub(super) now: u64,
    /// What was asked for.
    pub(super) entries: Vec<(u64, Key)>,
    /// The one after that.
    pub(super) next: Option<(u64, Key)>,
}

impl Due {
    pub(super) fn read(answer: Value) -> Result<Self, StoreError> {
        let what = "a read of the due index";
        let [now, entries, next] = parts(answer, what)?;
        let now = number(&now).ok_or_else(|| strange(what))?;
        let entry = |at: &Value, key: Value| -> Result<(u64, Key), StoreError> {
            let at = number(at).ok_or_else(|| strange(what))?;
            let key = bytes(key).ok_or_else(|| strange(what))?;
            Ok((at, String::from_utf8_lossy(&key).into()))
        };
        let mut read = Vec::new();
        let mut values = array(entries, what)?.into_iter();
        while let (Some(at), Some(key)) = (values.next(), values.next()) {
            read.push(entry(&at, key)?);
        }
        let next = match next {
            Value::Nil => None,
            next => {
                let [at, key] = parts(next, what)?;
                Some(entry(&at, key)?)
            }
        };
        Ok(Self { now, entries: read, next })
    }

    /// All shards' entries in one order: those before the first that some shard has left out.
    pub(super) fn merge(shards: Vec<Self>, limit: usize) -> (Vec<(u64, Key)>, Option<u64>) {
        let now = shards.iter().map(|shard| shard.now).max().unwrap_or_default();
        let next = shards.iter().filter_map(|shard| shard.next.clone()).min();
        let mut all: Vec<_> = shards.into_iter().flat_map(|shard| shard.entries).collect();
        all.sort_unstable();
        let known = next.as_ref().map_or(all.len(), |next| all.partition_point(|it| it < next));
        let taken = known.min(limit);
        let next = [next, all.get(taken).cloned()].into_iter().flatten().min();
        all.truncate(taken);
        (all, next.map(|(at, _)| at.saturating_sub(now)))
    }
}

/// Entries of an outbox, as `XRANGE` answers them.
pub(super) fn outbox(
    partition: &Partition,
    shard: u32,
    answer: Value,
) -> Result<Vec<OutboxEntry>, StoreError> {
    let what = "a read of the outbox";
    let mut entries = Vec::new();
    for entry in array(answer, what)? {
        let [id, fields] = parts(entry, what)?;
        let id = super::value::text(id).ok_or_else(|| strange(what))?;
        let bad = |words: String| {
            StoreError::Corrupt(format!(
                "stream {:?}, partition {}, shard {shard}, outbox entry {id}: {words}",
                partition.stream, partition.number
            ))
        };
        let number = id.split_once('-').and_then(|(number, _)| number.parse().ok());
        let number = number.ok_or_else(|| bad("it has no number of a commit".to_owned()))?;
        let [_, value] = parts(fields, what)?;
        let value = bytes(value).ok_or_else(|| strange(what))?;
        entries.push(decode_entry(number, &value).map_err(bad)?);
    }
    Ok(entries)
}

/// The time of the commit, which is the incarnation of the jobs that it made, and its messages.
fn decode_entry(number: u64, value: &Bytes) -> Result<OutboxEntry, String> {
    let time = value.first_chunk().ok_or("it is cut off")?;
    let time = u64::from_le_bytes(*time);
    let mut entry = decode_outbox(number, &value.slice(8..)).map_err(|error| error.to_string())?;
    for message in entry.messages.iter_mut().filter(|message| message.incarnation == 0) {
        message.incarnation = time;
    }
    Ok(entry)
}
