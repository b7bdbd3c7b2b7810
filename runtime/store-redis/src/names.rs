//! The names of all Redis keys.
//!
//! All Redis keys of one shard have the shard's hash tag, so that they are in one slot and one script may use them
//! together: `PREFIX:{SHARD}:KIND:…`. The name of a stream comes last, so that two Redis keys never have the same name.
//! A shard has only a few Redis keys, and a key record has no Redis key of its own. The reason: a caller must name all
//! Redis keys of a script before the script runs. While a slot moves to another server, a script would not find a moved
//! key that the caller did not name.

use ordain_store::Partition;

/// The shard whose slot also contains the data that belongs to no shard.
const COMMON_SHARD: u32 = 0;

/// The kind of data under a Redis key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedisKeyKind {
    /// The description of the store: schema and number of shards.
    Store,
    /// All partitions that an instance ever claimed, or to whose queue an instance ever wrote.
    Partitions,
    /// Marks: small values by name.
    Marks,
    /// The time at which the membership of each instance (process) expires without a further heartbeat.
    Instances,
    /// The information that each instance publishes about itself.
    InstanceInfo,
    /// The lease of each partition: its owner, with an epoch.
    Leases,
    /// The handler version that executes the events of each stream.
    Versions,
    /// Key records with their states, spilled events, letters, messages to publish, fences.
    Data,
    /// The due index: the time at which each key must be processed again by its owner.
    Due,
    /// The time at which the record of each key expires.
    Expiry,
    /// Dead letters by key and sequence.
    Letters,
    /// Dead letters by age.
    LettersAge,
    /// Spilled events by key and sequence.
    Spilled,
    /// Ids of the events that a key has accepted, in blocks.
    Ids,
    /// The data of a destination: counts, retained messages, and queues.
    Log,
}

/// The name of each kind, and its type in Redis.
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

/// The names of a store's Redis keys.
#[derive(Debug, Clone)]
pub(super) struct RedisKeys {
    prefix: String,
}

impl RedisKeys {
    /// Creates the names with this common prefix.
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    fn named(&self, shard: u32, rest: std::fmt::Arguments<'_>) -> String {
        format!("{}:{{{shard}}}:{rest}", self.prefix)
    }

    /// Returns the Redis key of a kind that each stream has once in each shard.
    pub(super) fn of_stream(&self, shard: u32, kind: RedisKeyKind, stream: &str) -> String {
        self.named(shard, format_args!("{}:{stream}", kind.name()))
    }

    /// Returns the Redis key of the due index of a partition in a shard.
    pub(super) fn due(&self, shard: u32, partition: &Partition) -> String {
        self.of_partition(shard, RedisKeyKind::Due, partition)
    }

    fn of_partition(&self, shard: u32, kind: RedisKeyKind, partition: &Partition) -> String {
        let Partition { stream, number } = partition;
        self.named(shard, format_args!("{}:{number}:{stream}", kind.name()))
    }

    /// Returns the Redis key of a kind that the store has once.
    pub(super) fn in_common_shard(&self, kind: RedisKeyKind) -> String {
        self.in_shard(COMMON_SHARD, kind)
    }

    /// Returns the Redis key of a kind that each shard has once.
    pub(super) fn in_shard(&self, shard: u32, kind: RedisKeyKind) -> String {
        self.named(shard, format_args!("{}", kind.name()))
    }
}

/// Returns the type that the Redis key with this name must have.
pub(super) fn type_of(name: &str) -> Option<&'static str> {
    let (_, rest) = name.split_once("}:")?;
    let kind = rest.split(':').next()?;
    KINDS.iter().find(|(_, known, _)| *known == kind).map(|(.., redis_type)| *redis_type)
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
