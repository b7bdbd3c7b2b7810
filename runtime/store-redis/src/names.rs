//! The names of all Redis keys.
//!
//! A name has the form `PREFIX:{SHARD}:KIND` or `PREFIX:{SHARD}:KIND:…`. All Redis keys of one shard have the shard's
//! hash tag, so they are in one slot, and one script may use them together. The name of a stream or destination comes
//! last, because it may contain colons. Two Redis keys therefore never have the same name.
//!
//! A shard has only a few Redis keys: all key records of a stream in a shard are fields of one hash. The caller of a
//! script must name every Redis key that the script uses. While a slot moves to another server, a script would not find
//! an unnamed Redis key that has already moved. If each record had its own Redis key, the caller would have to know,
//! before the script runs, all records that the script uses.

use ordain_store::Partition;

/// The shard whose slot also contains the data that belongs to no particular shard, such as the leases.
const COMMON_SHARD: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedisKeyKind {
    /// The description of the store: schema and number of shards.
    Store,
    /// The partitions that instances have claimed, or into whose queues a process was about to put events.
    Partitions,
    Marks,
    /// The time at which the membership of each instance (process) expires without a further heartbeat.
    Instances,
    /// The information that each instance publishes about itself, its report and the duration of its lease; and the
    /// version of the membership table.
    InstanceInfo,
    /// The lease of each partition: the epoch, the holder, and the time when the lease was granted or released.
    Leases,
    /// The rollout of each stream: the handler version that executes its events.
    Versions,
    /// Key records with their states, spilled events, dead letters, messages to be published, and fences.
    Data,
    /// The due index: for each key, the earliest time at which the owner must handle the key.
    Due,
    /// The expiry index: for each key record that expires, a time that is not later than the expiry time of the record.
    Expiry,
    Letters,
    /// The index of the dead letters, by the time when they were stored.
    LettersAge,
    /// The index of the spilled events, by key and sequence.
    Spilled,
    Ids,
    /// The data of a destination: counters, retained messages, ids, origins, queues, and records of writers.
    Log,
}

/// The name of each kind, and the Redis type of its values.
const KINDS: [(RedisKeyKind, &str, &str); 15] = [
    (RedisKeyKind::Store, "store", "hash"),
    (RedisKeyKind::Partitions, "partitions", "set"),
    (RedisKeyKind::Marks, "marks", "hash"),
    (RedisKeyKind::Instances, "instances", "zset"),
    (RedisKeyKind::InstanceInfo, "about", "hash"),
    (RedisKeyKind::Leases, "leases", "hash"),
    (RedisKeyKind::Versions, "versions", "hash"),
    (RedisKeyKind::Data, "data", "hash"),
    (RedisKeyKind::Due, "due", "zset"),
    (RedisKeyKind::Expiry, "expiry", "zset"),
    (RedisKeyKind::Letters, "letters", "zset"),
    (RedisKeyKind::LettersAge, "letters-age", "zset"),
    (RedisKeyKind::Spilled, "spilled", "zset"),
    (RedisKeyKind::Ids, "ids", "hash"),
    (RedisKeyKind::Log, "log", "hash"),
];

impl RedisKeyKind {
    fn name(self) -> &'static str {
        KINDS[self as usize].1
    }
}

#[derive(Debug, Clone)]
pub(super) struct RedisKeys {
    prefix: String,
}

impl RedisKeys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    fn named(&self, shard: u32, rest: std::fmt::Arguments<'_>) -> String {
        format!("{}:{{{shard}}}:{rest}", self.prefix)
    }

    /// Returns the name of a Redis key that exists once for each stream in each shard.
    pub(super) fn of_stream(&self, shard: u32, kind: RedisKeyKind, stream: &str) -> String {
        self.named(shard, format_args!("{}:{stream}", kind.name()))
    }

    pub(super) fn due(&self, shard: u32, partition: &Partition) -> String {
        self.of_partition(shard, RedisKeyKind::Due, partition)
    }

    fn of_partition(&self, shard: u32, kind: RedisKeyKind, partition: &Partition) -> String {
        let Partition { stream, number } = partition;
        self.named(shard, format_args!("{}:{number}:{stream}", kind.name()))
    }

    /// Returns the name of a Redis key that exists once in the store.
    pub(super) fn in_common_shard(&self, kind: RedisKeyKind) -> String {
        self.in_shard(COMMON_SHARD, kind)
    }

    /// Returns the name of a Redis key that exists once in each shard.
    pub(super) fn in_shard(&self, shard: u32, kind: RedisKeyKind) -> String {
        self.named(shard, format_args!("{}", kind.name()))
    }
}

pub(super) fn type_of(name: &str) -> Option<&'static str> {
    let (_, rest) = name.split_once("}:")?;
    let kind = rest.split(':').next()?;
    KINDS.iter().find(|(_, known, _)| *known == kind).map(|(.., redis_type)| *redis_type)
}

pub(super) fn escape_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_name_and_type() {
        for (at, (kind, name, kind_type)) in KINDS.iter().enumerate() {
            assert_eq!((*kind as usize, kind.name()), (at, *name));
            let names = RedisKeys::new("a:b");
            let partition = Partition { stream: "x}:y".into(), number: 3 };
            for key in [
                names.of_stream(1, *kind, "x}:y"),
                names.of_partition(1, *kind, &partition),
                names.in_common_shard(*kind),
            ] {
                assert_eq!(type_of(&key), Some(*kind_type), "{key}");
            }
        }
    }
}
