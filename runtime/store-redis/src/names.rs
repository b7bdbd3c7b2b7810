//! The names of all Redis keys.
//!
//! All of one shard carry the shard's hash tag, so that they lie in one slot and a script may touch
//! them together: `PREFIX:{SHARD}:KIND:…`. A stream's name stands last, so that no two things can
//! have one name. There are few of them, none for a job alone: a script must name all that it
//! touches before it runs, or a slot that moves would hide some of it.

use ordain_store::Partition;

/// The shard whose slot also holds what belongs to no shard.
const COMMON: u32 = 0;

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// What this store is: schema, shards.
    Store,
    /// All partitions that were ever claimed.
    Partitions,
    /// Small values by name.
    Marks,
    /// Until when each instance is heard of.
    Instances,
    /// What the instances are.
    About,
    /// Who has which partition.
    Leases,
    /// Which handler version executes the events of a stream.
    Versions,
    /// Jobs with their states, spilled events, letters, messages to publish, fences.
    Data,
    /// When which key is to be looked at.
    Due,
    /// When which job ends.
    Expiry,
    /// Dead letters by key and sequence.
    Letters,
    /// Dead letters by age.
    LettersAge,
    /// Spilled events by key and sequence.
    Spilled,
    /// Ids that a key has taken, in blocks.
    Ids,
    /// Of a destination: counts, what is kept for replay and what waits.
    Log,
}

/// Its name, and its type in Redis.
const KINDS: [(Kind, &str, &str); 15] = [
    (Kind::Store, "store", "hash"),
    (Kind::Partitions, "partitions", "set"),
    (Kind::Marks, "marks", "hash"),
    (Kind::Instances, "instances", "zset"),
    (Kind::About, "about", "hash"),
    (Kind::Leases, "leases", "hash"),
    (Kind::Versions, "versions", "hash"),
    (Kind::Data, "data", "hash"),
    (Kind::Due, "due", "zset"),
    (Kind::Expiry, "expiry", "zset"),
    (Kind::Letters, "letters", "zset"),
    (Kind::LettersAge, "letters-age", "zset"),
    (Kind::Spilled, "spilled", "zset"),
    (Kind::Ids, "ids", "hash"),
    (Kind::Log, "log", "hash"),
];

impl Kind {
    fn name(self) -> &'static str {
        KINDS[self as usize].1
    }
}

/// Makes names.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    /// With what all of them begin.
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    fn named(&self, shard: u32, rest: std::fmt::Arguments<'_>) -> String {
        format!("{}:{{{shard}}}:{rest}", self.prefix)
    }

    /// What there is one of for each stream in a shard.
    pub(super) fn of_stream(&self, shard: u32, kind: Kind, stream: &str) -> String {
        self.named(shard, format_args!("{}:{stream}", kind.name()))
    }

    /// The due index of a partition in a shard.
    pub(super) fn due(&self, shard: u32, partition: &Partition) -> String {
        self.of_partition(shard, Kind::Due, partition)
    }

    fn of_partition(&self, shard: u32, kind: Kind, partition: &Partition) -> String {
        let Partition { stream, number } = partition;
        self.named(shard, format_args!("{}:{number}:{stream}", kind.name()))
    }

    /// What there is one of in a store.
    pub(super) fn common(&self, kind: Kind) -> String {
        self.in_shard(COMMON, kind)
    }

    /// What there is one of in a shard.
    pub(super) fn in_shard(&self, shard: u32, kind: Kind) -> String {
        self.named(shard, format_args!("{}", kind.name()))
    }
}

/// The type that a key of this name has to have.
pub(super) fn type_of(name: &str) -> Option<&'static str> {
    let (_, rest) = name.split_once("}:")?;
    let kind = rest.split(':').next()?;
    KINDS.iter().find(|(_, known, _)| *known == kind).map(|(.., it)| *it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_at_its_place() {
        for (at, (kind, name, kind_type)) in KINDS.iter().enumerate() {
            assert_eq!((*kind as usize, kind.name()), (at, *name));
            let names = Names::new("a:b");
            let partition = Partition { stream: "x}:y".into(), number: 3 };
            for key in [
                names.of_stream(1, *kind, "x}:y"),
                names.of_partition(1, *kind, &partition),
                names.common(*kind),
            ] {
                assert_eq!(type_of(&key), Some(*kind_type), "{key}");
            }
        }
    }
}
