//! The names of all Redis keys.
//!
//! All of one shard carry the shard's hash tag, so that they lie in one slot and a script may touch
//! them together: `PREFIX:{SHARD}:KIND:…`. A stream's name stands last, or has its length before
//! it, so that no two things can have one name.

use crate::store::Partition;

/// The shard whose slot also holds what belongs to no shard.
const COMMON: u32 = 0;

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

    /// With what all names of a shard begin.
    pub(super) fn base(&self, shard: u32) -> String {
        format!("{}:{{{shard}}}:", self.prefix)
    }

    /// What there is one of for each stream in a shard: `jobs`, `states`, `expiry`, `letters`,
    /// `letters-order`, `letters-age`.
    pub(super) fn of_stream(&self, shard: u32, kind: &str, stream: &str) -> String {
        format!("{}:{{{shard}}}:{kind}:{stream}", self.prefix)
    }

    /// What there is one of for each partition in a shard: `fence`, `due`, `outbox`.
    pub(super) fn of_partition(&self, shard: u32, kind: &str, partition: &Partition) -> String {
        let Partition { stream, number } = partition;
        format!("{}:{{{shard}}}:{kind}:{number}:{stream}", self.prefix)
    }

    /// The last epoch given for a partition.
    pub(super) fn epoch(&self, partition: &Partition) -> String {
        self.of_partition(COMMON, "epoch", partition)
    }

    /// What there is one of: `store`, `partitions`, `marks`.
    pub(super) fn common(&self, kind: &str) -> String {
        format!("{}{kind}", self.base(COMMON))
    }
}
