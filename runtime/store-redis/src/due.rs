//! The due index: for each partition, a list of keys, each with the earliest time at which the owner must handle the
//! key.

use async_trait::async_trait;
use futures_util::future::try_join_all;
use ordain_core::Key;
use redis::Value;

use super::RedisStore;
use super::names::RedisKeyKind;
use super::value::{array, bytes, number, parts, unexpected_reply};
use ordain_store::{DueIndex, Partition, StoreError};

/// A part of the number of entries that a read requests from each shard. The share of a shard is the limit of the read
/// divided by the number of shards. The read requests from each shard twice this share plus `SPARE_ENTRIES`, but never
/// more than its limit. The share alone would often not be enough, because shards have different numbers of entries.
const SPARE_ENTRIES: usize = 16;

#[async_trait]
impl DueIndex for RedisStore {
    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError> {
        let shard_limit = (limit / self.shards as usize * 2 + SPARE_ENTRIES).min(limit);
        let shards = (0..self.shards)
            .map(|shard| read_shard(self, partition, shard, after, shard_limit, all));
        Ok(ShardDueEntries::merge(try_join_all(shards).await?, limit))
    }
}

async fn read_shard(
    store: &RedisStore,
    partition: &Partition,
    shard: u32,
    after: Option<&(u64, Key)>,
    limit: usize,
    all: bool,
) -> Result<ShardDueEntries, StoreError> {
    let script = &store.scripts.due;
    let [data] = store.stream_keys(shard, &partition.stream, [RedisKeyKind::Data]);
    let keys = [data, store.names.due(shard, partition)];
    let mut after = after.cloned();
    loop {
        let mut call = store.script_call(script, &keys);
        call.arg(&partition.number.to_le_bytes()[..]).arg(limit).arg(u8::from(all));
        match &after {
            None => call.arg("").arg(""),
            Some((at, key)) => call.arg(at).arg(key.as_bytes()),
        };
        let due = ShardDueEntries::read(store.run_script(script, call).await?, &keys[1])?;
        // One call examines a limited number of entries. If the call returned no entry, the loop continues after the
        // last examined entry.
        match due.next {
            Some(next) if due.entries.is_empty() && next.0 <= due.now && limit > 0 => {
                after = Some(next);
            }
            _ => return Ok(due),
        }
    }
}

struct ShardDueEntries {
    now: u64,
    entries: Vec<(u64, Key)>,
    /// The first entry after `entries`. If the read ended because it had examined the maximum number of entries, this
    /// is the last examined entry instead.
    next: Option<(u64, Key)>,
}

impl ShardDueEntries {
    fn read(answer: Value, index: &str) -> Result<Self, StoreError> {
        let what = "a read of the due index";
        let [now, entries, next] = parts(answer, what)?;
        let now = number(&now).ok_or_else(|| unexpected_reply(what))?;
        let entry = |at: &Value, key: Value| -> Result<(u64, Key), StoreError> {
            let at = number(at).ok_or_else(|| unexpected_reply(what))?;
            let key = bytes(key).ok_or_else(|| unexpected_reply(what))?;
            let key = std::str::from_utf8(&key).map_err(|_| {
                StoreError::Corrupt(format!(
                    "the sorted set {index} contains the member \"{}\", which is not a key, because it is not \
                     UTF-8: remove this member",
                    key.escape_ascii()
                ))
            })?;
            Ok((at, key.into()))
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

    /// Merges the entries of all shards in order, at most `limit` entries. The result ends before the first entry that
    /// the read of a shard has omitted. Also returns the time, in ms, until the next entry is due; `None` if no entry
    /// follows.
    fn merge(shards: Vec<Self>, limit: usize) -> (Vec<(u64, Key)>, Option<u64>) {
        let now = shards.iter().map(|shard| shard.now).max().unwrap_or_default();
        let next = shards.iter().filter_map(|shard| shard.next.clone()).min();
        let mut all: Vec<_> = shards.into_iter().flat_map(|shard| shard.entries).collect();
        all.sort_unstable();
        let known =
            next.as_ref().map_or(all.len(), |next| all.partition_point(|entry| entry < next));
        let taken = known.min(limit);
        let next = [next, all.get(taken).cloned()].into_iter().flatten().min();
        all.truncate(taken);
        (all, next.map(|(at, _)| at.saturating_sub(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64, key: &str) -> (u64, Key) {
        (at, key.into())
    }

    fn shard(now: u64, entries: &[(u64, &str)], next: Option<(u64, &str)>) -> ShardDueEntries {
        let entries = entries.iter().map(|(at, key)| entry(*at, key)).collect();
        ShardDueEntries { now, entries, next: next.map(|(at, key)| entry(at, key)) }
    }

    #[test]
    fn due_entries_of_shards_are_merged_in_order() {
        let shards = || {
            vec![
                shard(100, &[(10, "a"), (30, "c")], None),
                shard(100, &[], Some((150, "z"))),
                shard(100, &[(20, "b"), (30, "b")], None),
            ]
        };
        let all = [entry(10, "a"), entry(20, "b"), entry(30, "b"), entry(30, "c")];
        assert_eq!(ShardDueEntries::merge(shards(), 10), (all.to_vec(), Some(50)));
        // An entry that the limit omits is the next entry, even if the entry is already due.
        assert_eq!(ShardDueEntries::merge(shards(), 3), (all[..3].to_vec(), Some(0)));
        assert_eq!(ShardDueEntries::merge(shards(), 0), (vec![], Some(0)));
        assert_eq!(ShardDueEntries::merge(Vec::new(), 3), (vec![], None));
    }

    /// If the read of a shard is truncated, the entries that it omits may precede entries of other shards.
    #[test]
    fn due_entries_end_where_a_shard_was_truncated() {
        let shards = vec![
            shard(100, &[(10, "a"), (40, "d")], Some((50, "e"))),
            shard(90, &[(20, "b")], Some((30, "c"))),
            shard(95, &[(30, "b"), (60, "f")], None),
        ];
        let known = vec![entry(10, "a"), entry(20, "b"), entry(30, "b")];
        assert_eq!(ShardDueEntries::merge(shards, 10), (known, Some(0)));

        // The time until the next entry is measured from the latest clock of all shards. Here, the next entry is an
        // entry that the read of a shard did not return.
        let shards = vec![
            shard(100, &[(10, "a")], Some((130, "e"))),
            shard(90, &[(20, "b")], Some((120, "c"))),
        ];
        assert_eq!(
            ShardDueEntries::merge(shards, 10),
            (vec![entry(10, "a"), entry(20, "b")], Some(20))
        );
    }

    /// A caller that repeats the read, each time after the last returned entry, gets each entry once, wherever the read
    /// of a shard is truncated.
    #[test]
    fn due_entries_are_all_returned_by_repeated_reads() {
        let all: Vec<Vec<(u64, String)>> = (0..3)
            .map(|shard| {
                (0..20 * (shard + 1))
                    .map(|number| (number * 7 % 50, format!("{shard}/{number}")))
                    .collect()
            })
            .collect();
        let mut met = Vec::new();
        let mut after = None;
        loop {
            let read = |entries: &Vec<(u64, String)>| {
                let mut entries: Vec<_> = entries.iter().map(|(at, key)| entry(*at, key)).collect();
                entries.sort();
                entries.retain(|entry| after.as_ref().is_none_or(|after| entry > after));
                let next = entries.get(3).cloned();
                entries.truncate(3);
                ShardDueEntries { now: 100, entries, next }
            };
            let (entries, next) = ShardDueEntries::merge(all.iter().map(read).collect(), 4);
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
