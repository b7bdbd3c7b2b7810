//! The names of all Redis keys.
//!
//! All of one shard carry the shard's hash tag, so that they lie in one slot and a script may touch
//! them together: `PREFIX:{SHARD}:KIND:…`. A stream's name stands last, so that no two things can
//! have one name. There are few of them, none for a job alone: a script must name all that it
//! touches before it runs, or a slot that moves would hide some of it.

use crate::store::Partition;

/// The shard whose slot also holds what belongs to no shard.
const COMMON: u32 = 0;

/// What each kind is.
const TYPES: [(&str, &str); 11] = [
    ("store", "hash"),
    ("partitions", "set"),
    ("marks", "hash"),
    ("epoch", "string"),
    ("data", "hash"),
    ("due", "zset"),
    ("expiry", "zset"),
    ("letters", "zset"),
    ("letters-age", "zset"),
    ("spilled", "zset"),
    ("ids", "hash"),
];

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

    /// What there is one of for each stream in a shard: `data`, `expiry`, `letters`, `letters-age`,
    /// `spilled`, `ids`.
    pub(super) fn of_stream(&self, shard: u32, kind: &str, stream: &str) -> String {
        self.named(shard, format_args!("{kind}:{stream}"))
    }

    /// The due index of a partition in a shard.
    pub(super) fn due(&self, shard: u32, partition: &Partition) -> String {
        let Partition { stream, number } = partition;
        self.named(shard, format_args!("due:{number}:{stream}"))
    }

    /// The last epoch given for a partition.
    pub(super) fn epoch(&self, partition: &Partition) -> String {
        let Partition { stream, number } = partition;
        self.named(COMMON, format_args!("epoch:{number}:{stream}"))
    }

    /// What there is one of: `store`, `partitions`, `marks`.
    pub(super) fn common(&self, kind: &str) -> String {
        self.named(COMMON, format_args!("{kind}"))
    }
}

/// The type that a key of this name has to have.
pub(super) fn type_of(name: &str) -> Option<&'static str> {
    let (_, rest) = name.split_once("}:")?;
    let kind = rest.split(':').next()?;
    TYPES.iter().find(|(known, _)| *known == kind).map(|(_, it)| *it)
}
