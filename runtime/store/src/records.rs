//! The records of a partition's keys. The owner of the partition loads the records, and changes them with commits.

use std::sync::Arc;

use async_trait::async_trait;
use ordain_core::{Batch, CommitReply, Key, KeySnapshot};

use super::{Partition, StoreError};

/// The identity of an owner of a partition. In each shard, the store has a fence for the partition: a record that
/// contains the claim of the present owner. The store refuses a commit under another claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The epoch of the owner's lease. Each new lease of the partition has a higher epoch than the earlier leases that
    /// the store still has.
    pub epoch: u64,
    /// A random number that distinguishes two owners with the same epoch. Such owners can exist after the store went
    /// back in time and lost an epoch: the store then grants this epoch a second time.
    pub random: u64,
}

/// The result of a successful claim of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedPartition {
    /// The claim, which the store has written into the fence of every shard.
    pub claim: Claim,
    /// For each shard, the number of the partition's last commit; 0 if the partition has no commit in the shard.
    pub commits: Vec<u64>,
}

/// The stored data of one key, or the reason why the data cannot be read. If a failure can also affect other keys, the
/// store returns a [`StoreError`] instead of this result.
pub type KeyResult<T> = Result<T, String>;

/// The records of a partition's keys.
#[async_trait]
pub trait RecordStore: Send + Sync {
    /// Claims a partition for a new owner: writes a claim with the epoch of the [lease](super::LeaseStore::lease) into
    /// the fence of each shard. From then on, the store answers commits under an older claim with
    /// [`CommitReply::Fenced`]. Fails with [`StoreError::InUse`] if the partition already has a claim with this epoch
    /// or a higher epoch. The caller then needs a new lease.
    async fn claim(
        &self,
        partition: &Partition,
        epoch: u64,
    ) -> Result<ClaimedPartition, StoreError>;

    /// Loads key records in the order of `keys`, at least one, until their total size reaches `bytes`. If a loaded
    /// record belongs to another partition, moves it to this partition. Neither returns nor changes the records of the
    /// remaining keys.
    async fn load(
        &self,
        partition: &Partition,
        keys: &[Key],
        bytes: usize,
    ) -> Result<Vec<KeyResult<Option<Box<KeySnapshot>>>>, StoreError>;

    /// Commits a batch durably. If the batch has the number of the last commit, returns the stored reply to that
    /// commit.
    async fn commit(&self, partition: &Partition, claim: Claim, batch: Arc<Batch>) -> CommitReply;
}
