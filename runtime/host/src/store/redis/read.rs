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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64, key: &str) -> (u64, Key) {
        (at, key.into())
    }

    fn shard(now: u64, entries: &[(u64, &str)], next: Option<(u64, &str)>) -> Due {
        let entries = entries.iter().map(|(at, key)| entry(*at, key)).collect();
        Due { now, entries, next: next.map(|(at, key)| entry(at, key)) }
    }

    #[test]
    fn due_entries_of_shards_are_put_in_one_order() {
        let shards = || {
            vec![
                shard(100, &[(10, "a"), (30, "c")], None),
                shard(100, &[], Some((150, "z"))),
                shard(100, &[(20, "b"), (30, "b")], None),
            ]
        };
        let all = [entry(10, "a"), entry(20, "b"), entry(30, "b"), entry(30, "c")];
        assert_eq!(Due::merge(shards(), 10), (all.to_vec(), Some(50)));
        // Those that are left out for the limit are the next ones, though they have passed.
        assert_eq!(Due::merge(shards(), 3), (all[..3].to_vec(), Some(0)));
        assert_eq!(Due::merge(shards(), 0), (vec![], Some(0)));
        assert_eq!(Due::merge(Vec::new(), 3), (vec![], None));
    }

    /// A shard that was cut hides what lies between its cut and the entries of the others.
    #[test]
    fn due_entries_end_where_a_shard_was_cut() {
        let shards = vec![
            shard(100, &[(10, "a"), (40, "d")], Some((50, "e"))),
            shard(90, &[(20, "b")], Some((30, "c"))),
            shard(95, &[(30, "b"), (60, "f")], None),
        ];
        let known = vec![entry(10, "a"), entry(20, "b"), entry(30, "b")];
        assert_eq!(Due::merge(shards, 10), (known, Some(0)));

        // By the latest clock, and what is next may be an entry that was cut off.
        let shards = vec![
            shard(100, &[(10, "a")], Some((130, "e"))),
            shard(90, &[(20, "b")], Some((120, "c"))),
        ];
        assert_eq!(Due::merge(shards, 10), (vec![entry(10, "a"), entry(20, "b")], Some(20)));
    }

    /// Whoever goes on behind the last one gets each entry once, whatever the cuts.
    #[test]
    fn due_entries_are_all_met_by_going_on() {
        let all: Vec<Vec<(u64, String)>> = (0..3)
            .map(|shard| {
                (0..20 * (shard + 1)).map(|it| (it * 7 % 50, format!("{shard}/{it}"))).collect()
            })
            .collect();
        let (mut met, mut after) = (Vec::new(), None);
        loop {
            let read = |entries: &Vec<(u64, String)>| {
                let mut entries: Vec<_> = entries.iter().map(|(at, key)| entry(*at, key)).collect();
                entries.sort();
                entries.retain(|it| after.as_ref().is_none_or(|after| it > after));
                let next = entries.get(3).cloned();
                entries.truncate(3);
                Due { now: 100, entries, next }
            };
            let (entries, next) = Due::merge(all.iter().map(read).collect(), 4);
            assert!(entries.len() <= 4 && (next.is_none() || !entries.is_empty()));
            met.extend(entries);
            after = met.last().cloned();
            if next.is_none() {
                break;
            }
        }
        let mut expected: Vec<_> = all.iter().flatten().map(|(at, key)| entry(*at, key)).collect();
        expected.sort();
        assert_eq!(met, expected);
    }
}
