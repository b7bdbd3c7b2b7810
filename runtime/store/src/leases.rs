//! The membership of instances (processes) and their leases of partitions, as the store keeps them. A lease is the
//! right of an instance to a partition.
//!
//! In a store on a server, an instance is a member as long as it writes heartbeats. In the embedded store, an instance
//! is a member from its first heartbeat until it leaves or its process ends. A lease ends when its holder releases the
//! lease, or is no longer a member. The holder uses the epoch of the lease in its [claim](super::RecordStore::claim).
//! The correctness of commits does not depend on leases. Even if two instances act as owners of a partition, the store
//! accepts the commits of only one of them, because the fence of each shard contains the claim of the current owner.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ordain_core::Rollout;

use super::{Partition, StoreError};

/// The id of one process from its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u64);

impl InstanceId {
    /// Returns a random id. In practice, no two processes get the same id.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for InstanceId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// A heartbeat of an instance.
#[derive(Debug, Clone, Copy)]
pub struct HeartbeatRequest<'a> {
    /// The id of the instance.
    pub id: InstanceId,
    /// The instance's information: an encoded [`InstanceInfo`](super::InstanceInfo). If the information has changed,
    /// the membership table gets a new version, and the answers to the next heartbeats of the other instances contain
    /// the table.
    pub info: &'a str,
    /// The report to store; `None` keeps the stored report. A new report does not change the version of the table.
    pub report: Option<&'a str>,
    /// The duration of the membership after this heartbeat, if no further heartbeat follows. A store on a server may
    /// end the membership after nine tenths of this duration, or some seconds after this duration
    /// ([`LeaseStore::heartbeat`]). The embedded store ignores this duration.
    pub lease: Duration,
    /// The version of the membership table that the instance knows.
    pub known_version: MembershipVersion,
}

/// The version of a membership table; 0 stands for no table. Each change of the table, except new reports and renewals
/// of memberships, gives the table a new, random version. The store may go back in time (lose its newest writes), and
/// lose a change of the table. If an instance knows the lost change, the version that it knows differs from the present
/// version. The answer to its next heartbeat then contains the table.
pub type MembershipVersion = u64;

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The time for which the membership lasts without another heartbeat. `None` if the membership lasts as long as the
    /// instance runs.
    pub valid_for: Option<Duration>,
    /// The table, if its version differs from the version that the instance knows; otherwise `None`.
    pub table: Option<MembershipTable>,
}

/// All members, leases and rollouts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MembershipTable {
    /// The version of the table.
    pub membership_version: MembershipVersion,
    /// The current members.
    pub members: BTreeMap<InstanceId, MemberRecord>,
    /// The newest lease of each partition that was ever leased.
    pub leases: BTreeMap<Partition, Lease>,
    /// The current rollout of each stream: the handler version that executes its events.
    pub versions: BTreeMap<Arc<str>, Arc<Rollout>>,
}

impl MembershipTable {
    /// Returns the member that holds the lease of a partition; `None` if no member holds the lease.
    pub fn holder(&self, partition: &Partition) -> Option<InstanceId> {
        let holder = self.leases.get(partition)?.holder?;
        self.members.contains_key(&holder).then_some(holder)
    }
}

/// The record of a current member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRecord {
    /// The instance's information.
    pub info: String,
    /// The last report of the instance; `None` if the instance has sent none.
    pub report: Option<String>,
    /// The time for which the membership lasts without another heartbeat; `None` if the membership lasts as long as the
    /// instance runs.
    pub valid_for: Option<Duration>,
}

/// The current or last lease of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The epoch of the lease.
    pub epoch: u64,
    /// The holder of the lease. The lease has expired if the holder is no longer a member. `None` if the lease was
    /// released.
    pub holder: Option<InstanceId>,
    /// The time when the lease was granted or released, by the store's clock, in ms since the Unix epoch.
    pub since: u64,
}

/// The answer to a request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseReply {
    /// The store granted the lease with this epoch. The epoch is higher than the epochs of all earlier leases and
    /// claims of the partition that the store still has. If the store has gone back in time and lost an epoch, it may
    /// grant this epoch again.
    Granted(u64),
    /// Another member, with this id, holds the lease.
    HeldBy(InstanceId),
    /// The requester is not a member and must send a [heartbeat](LeaseStore::heartbeat) first. The lease of an instance
    /// that is not a member counts as expired. Without this reply, two instances that are not members could take the
    /// lease from each other for ever.
    NotMember,
}

/// The membership and leases of a store. A caller can safely repeat each call after a lost answer.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// Renews the membership of an instance for the duration [`HeartbeatRequest::lease`] (below: the lease duration),
    /// and removes the members whose membership has expired. A store need not record a heartbeat that arrives soon
    /// after the previous heartbeat. A membership can therefore expire as soon as nine tenths of the lease duration
    /// have passed since the member's last heartbeat. If the store has recorded no heartbeat of any member for half of
    /// the lease duration, the store assumes that it was unreachable, or that its clock jumped. In this case,
    /// memberships that have expired, or are about to expire, last for some more seconds, so that members that still
    /// run can send a heartbeat. Exception: a member whose last heartbeat is at least half of the lease duration older
    /// than the newest heartbeat gets no additional time. The embedded store removes no member at a heartbeat.
    async fn heartbeat(&self, request: HeartbeatRequest<'_>) -> Result<HeartbeatReply, StoreError>;

    /// Grants the lease of a partition to a member, if no other member holds this lease.
    async fn lease(&self, partition: &Partition, to: InstanceId) -> Result<LeaseReply, StoreError>;

    /// Releases a lease, if `holder` still holds it under this epoch.
    async fn release(
        &self,
        partition: &Partition,
        holder: InstanceId,
        epoch: u64,
    ) -> Result<(), StoreError>;

    /// Removes an instance from the members, and releases all its leases.
    async fn remove_instance(&self, id: InstanceId) -> Result<(), StoreError>;

    /// Starts a rollout of a stream, if the present rollout of the stream is `before`. A rollout names the handler
    /// version that executes the events of the stream. `before` is `None` for a stream without a rollout. Returns
    /// whether `rollout` is now the rollout of the stream.
    async fn start_rollout(
        &self,
        stream: &str,
        before: Option<&Rollout>,
        rollout: &Rollout,
    ) -> Result<bool, StoreError>;

    /// Returns all members, leases and rollouts.
    async fn table(&self) -> Result<MembershipTable, StoreError>;
}
