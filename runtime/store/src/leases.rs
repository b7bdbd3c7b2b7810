//! Who runs, and who has which partition: what the store keeps of instances and their leases.
//!
//! An instance is heard of as long as it beats. A lease lasts as long as its holder is heard of, and
//! gives the epoch of a [claim](super::Records::claim). Nothing else rests on leases: whatever two
//! instances believe, the fence of a shard takes commits of one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ordain_core::Decided;

use super::{Partition, StoreError};

/// One process from its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u64);

impl InstanceId {
    /// One that no other process has.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

/// Sixteen hexadecimal digits.
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

/// What an instance says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Beat<'a> {
    /// Which one.
    pub id: InstanceId,
    /// What it is; others are told when this changes.
    pub about: &'a str,
    /// How it is doing, if that is to be written down; nobody is told.
    pub report: Option<&'a str>,
    /// How long it is to be heard of from now on.
    pub lease: Duration,
    /// The table that it knows.
    pub seen: Generation,
}

/// Tells two tables apart; 0 is none. Each change makes a random one, so that a store that went back
/// in time has not the one that somebody knows.
pub type Generation = u64;

/// The answer to a beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beaten {
    /// How long the instance is heard of without another beat; `None`: as long as it runs.
    pub lasts: Option<Duration>,
    /// The table, if it is not the one that was seen.
    pub table: Option<Table>,
}

/// All instances and leases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Of which generation this is.
    pub generation: Generation,
    /// Instances that are heard of.
    pub members: BTreeMap<InstanceId, Member>,
    /// The last lease of each partition that was ever leased.
    pub leases: BTreeMap<Partition, Lease>,
    /// Which version of its handler executes the events of a stream, by the stream.
    pub versions: BTreeMap<Arc<str>, Arc<Decided>>,
}

impl Table {
    /// Who has a partition.
    pub fn holder(&self, partition: &Partition) -> Option<InstanceId> {
        let holder = self.leases.get(partition)?.holder?;
        self.members.contains_key(&holder).then_some(holder)
    }
}

/// An instance that is heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// What it is.
    pub about: String,
    /// How it was doing when it last said so.
    pub report: Option<String>,
    /// How long it is heard of without another beat.
    pub lasts: Option<Duration>,
}

/// A lease, or the last one that there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its epoch.
    pub epoch: u64,
    /// Who has it. If that one is not heard of, it has run out; `None`: it was given back.
    pub holder: Option<InstanceId>,
    /// When it was given or given back, by the store's clock, in ms since the Unix epoch.
    pub since: u64,
}

/// The answer to who wants a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// It is theirs, with this epoch, which is above that of every lease before and of every claim.
    Given(u64),
    /// This one has it.
    Held(InstanceId),
    /// They are not heard of themselves, and must [beat](Leases::beat) first: or two such could take
    /// it from each other for ever.
    Unheard,
}

/// What a store keeps of instances. All of it may be asked again when no answer came.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Notes that an instance runs, and forgets those that were not heard of for their lease, or nine
    /// tenths of it: the store need not write at each beat. Where nobody was heard of for half a lease, it
    /// was the store that could not be reached, or its clock has jumped: then all have some seconds more.
    async fn beat(&self, beat: Beat<'_>) -> Result<Beaten, StoreError>;

    /// Gives a partition to an instance that is heard of, unless another such has it.
    async fn lease(&self, partition: &Partition, to: InstanceId) -> Result<Leased, StoreError>;

    /// Gives a lease back, if that epoch is still the holder's.
    async fn release(
        &self,
        partition: &Partition,
        holder: InstanceId,
        epoch: u64,
    ) -> Result<(), StoreError>;

    /// Forgets an instance and gives all that it has back.
    async fn forget(&self, id: InstanceId) -> Result<(), StoreError>;

    /// Decides which version of its handler executes the events of a stream, unless something was
    /// decided since this generation (0: nothing ever). Tells whether it is so now.
    async fn decide(
        &self,
        stream: &str,
        before: u64,
        decided: &Decided,
    ) -> Result<bool, StoreError>;

    /// All instances, leases and decisions.
    async fn table(&self) -> Result<Table, StoreError>;
}
