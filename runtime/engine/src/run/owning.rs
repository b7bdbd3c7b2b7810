//! The partitions of this instance during a run: claims the partitions of its share, drives them, and releases those
//! of other instances. `share` computes the share.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use ordain_core::Stats;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::share::{all, share};
use super::starting::PartitionFactory;
use super::{RunError, RunStatus};
use crate::driver::{Driver, DriverConfig, DriverError};
use crate::instance::Heartbeat;
use ordain_amqp::watch_reach;
use ordain_config::{SourceConfig, StreamConfig};
use ordain_store::BrokerHealth;
use ordain_store::{InstanceId, LeaseReply, MembershipTable, Partition, StoreError};
use ordain_store::{InstanceInfo, Ownership, OwnershipPhase};
use ordain_util::shutdown::asked_to_stop;
use ordain_util::wait;

/// Delay before a lease that was refused is requested again.
const LEASE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Interval between two reports of this instance's work.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between two checks whether all partitions rest.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long `run --once` waits for a partition beyond the lease of its holder, which may have died.
const HOLDER_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// A running request for a partition.
type PartitionFuture<'a, T> = Pin<Box<dyn Future<Output = (Partition, Result<T, RunError>)> + 'a>>;

/// A partition that this instance owns, claims or releases.
struct OwnedPartition {
    tenure: Arc<Ownership>,
    is_driven: bool,
}

/// A lease that this instance has released.
struct ReleasedLease {
    epoch: u64,
    /// The time of the store's answer; `None` before that.
    at: Option<Instant>,
}

/// The manager of this instance's partitions.
pub(super) struct PartitionManager<'a> {
    starting: &'a PartitionFactory<'a>,
    figures: &'a RunStatus,
    heart: &'a mut Heartbeat,
    /// The table from which `share` was computed.
    table: Arc<MembershipTable>,
    share: BTreeSet<Partition>,
    mine: BTreeMap<Partition, OwnedPartition>,
    leasing: FuturesUnordered<PartitionFuture<'a, LeaseReply>>,
    /// Partitions that are being started; `None` if another instance owns the partition by now.
    coming: FuturesUnordered<PartitionFuture<'a, Option<Box<DriverConfig>>>>,
    drivers: JoinSet<(Partition, Result<Stats, DriverError>)>,
    going: FuturesUnordered<PartitionFuture<'a, ()>>,
    /// Released leases, until the table is known to contain the release.
    released: BTreeMap<Partition, ReleasedLease>,
    /// Partitions whose lease was refused, and the time of the next request.
    again: BTreeMap<Partition, Instant>,
    /// With `once`: partitions that have been driven to their end.
    ended: BTreeSet<Partition>,
    /// Partitions of other instances for which the wait is already logged.
    waits: BTreeSet<Partition>,
    is_ending: bool,
    /// Number of messages that the last drivers left unpublished.
    unpublished: usize,
    started: Instant,
}

impl<'a> PartitionManager<'a> {
    pub(super) fn new(
        starting: &'a PartitionFactory<'a>,
        figures: &'a RunStatus,
        heart: &'a mut Heartbeat,
    ) -> Self {
        Self {
            starting,
            figures,
            heart,
            table: Arc::default(),
            share: BTreeSet::new(),
            mine: BTreeMap::new(),
            released: BTreeMap::new(),
            leasing: FuturesUnordered::new(),
            coming: FuturesUnordered::new(),
            drivers: JoinSet::new(),
            going: FuturesUnordered::new(),
            again: BTreeMap::new(),
            ended: BTreeSet::new(),
            waits: BTreeSet::new(),
            is_ending: false,
            unpublished: 0,
            started: Instant::now(),
        }
    }

    /// Claims, drives and releases partitions until the requested end; with `once`, until all have been driven to
    /// their end. Returns the number of messages that are left unpublished.
    pub(super) async fn run(
        mut self,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<usize, RunError> {
        let all = all(self.starting.loaded);
        let mut reach = self.watch_reach();
        let mut report = interval(REPORT_INTERVAL);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rest = interval(IDLE_CHECK_INTERVAL);
        rest.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.rebalance(&all)?;
            let is_done = self.is_ending || self.starting.once && self.ended == all;
            if self.mine.is_empty() && is_done {
                return Ok(self.unpublished);
            }
            let again = self.again.values().min().copied();
            tokio::select! {
                changed = self.heart.changed() => changed.map_err(RunError::Panic)?,
                Some((partition, leased)) = self.leasing.next() => self.leased(partition, leased?),
                Some((partition, parts)) = self.coming.next() => self.came(partition, parts?),
                Some(done) = self.drivers.join_next() => {
                    let (partition, result) = done.map_err(RunError::Panic)?;
                    self.driven(partition, result)?;
                }
                Some((partition, gone)) = self.going.next() => {
                    gone?;
                    self.mine.remove(&partition);
                    if let Some(released) = self.released.get_mut(&partition) {
                        released.at = Some(Instant::now());
                    }
                    self.heart.beat_soon();
                }
                () = asked_to_stop(&mut shutdown), if !self.is_ending => self.begin_end(),
                () = wait::until(again) => self.again.retain(|_, at| *at > Instant::now()),
                Ok(()) = reach.changed() => self.reaches_broker(*reach.borrow_and_update()),
                _ = rest.tick(), if !*self.starting.may_end.borrow() => {
                    if self.all_rest(&all) {
                        self.starting.may_end.send_replace(true);
                    }
                }
                _ = report.tick() => {
                    let driven = self.mine.iter().filter(|(_, mine)| mine.is_driven);
                    self.heart.report(self.figures.report(driven.map(|(partition, _)| partition)).encode());
                }
            }
        }
    }

    /// Returns whether all partitions rest and no event is on its way between them. The partitions are checked one
    /// after the other. If no event was added in the meantime, each has rested until the last check.
    fn all_rest(&self, all: &BTreeSet<Partition>) -> bool {
        let feeds = &self.starting.feeds;
        let (before, was_empty) = feeds.puts();
        let rests = |partition: &Partition| {
            self.mine.get(partition).is_some_and(|mine| mine.is_driven)
                && self.figures.of(partition).rests()
        };
        let all_rest = all.iter().all(rests);
        let (after, is_empty) = feeds.puts();
        all_rest && was_empty && is_empty && before == after
    }

    /// Monitors whether the broker is reachable, if a stream has events from there.
    fn watch_reach(&self) -> watch::Receiver<BrokerHealth> {
        let PartitionFactory { loaded, broker, .. } = self.starting;
        let of_broker = |stream: &StreamConfig| matches!(stream.source, SourceConfig::Amqp(_));
        let lease = Duration::from_millis(loaded.config.runtime.lease.0);
        match broker {
            Some(broker) if loaded.config.streams.values().any(of_broker) => {
                watch_reach(broker, lease)
            }
            _ => watch::Sender::new(BrokerHealth::Reached).subscribe(),
        }
    }

    fn reaches_broker(&self, reach: BrokerHealth) {
        self.heart.reaches_broker(reach);
        if reach == BrokerHealth::Lost {
            tracing::warn!(
                "broker unreachable for longer than the lease: instances that reach it take over the \
                 partitions of this one"
            );
        }
    }

    /// Releases partitions that left the share, and requests the leases of those that joined it.
    fn rebalance(&mut self, all: &BTreeSet<Partition>) -> Result<(), RunError> {
        if self.is_ending {
            return Ok(());
        }
        let (table, asked) = self.heart.table();
        let id = self.heart.id();
        if !Arc::ptr_eq(&table, &self.table) {
            let PartitionFactory { loaded, once, .. } = self.starting;
            self.share = if *once { all.clone() } else { share(loaded, &table, id) };
            self.table = Arc::clone(&table);
            self.released.retain(|_, released| released.at.is_none_or(|at| asked <= at));
        }
        let mut share = self.share.clone();
        share.retain(|partition| !self.ended.contains(partition));
        for (partition, mine) in &self.mine {
            if !share.contains(partition) && mine.tenure.stage() == OwnershipPhase::Owned {
                tracing::info!(
                    stream = &*partition.stream,
                    partition = partition.number,
                    "handing the partition over to another instance"
                );
                mine.tenure.set(OwnershipPhase::Draining);
            }
        }
        for partition in &share {
            if self.mine.contains_key(partition) || self.again.contains_key(partition) {
                continue;
            }
            match table.holder(partition) {
                Some(holder) if holder != id => self.wait_for(partition, &table, holder)?,
                _ => self.ask_for(partition),
            }
        }
        // Release leases that are ours without our knowledge, after the store went back in time or received a request
        // twice.
        for (partition, lease) in &table.leases {
            let is_known = self.mine.contains_key(partition)
                || self.again.contains_key(partition)
                || self
                    .released
                    .get(partition)
                    .is_some_and(|released| lease.epoch <= released.epoch);
            if lease.holder == Some(id) && !is_known {
                let mine = OwnedPartition { tenure: self.heart.tenure(), is_driven: false };
                mine.tenure.set(OwnershipPhase::Lost);
                self.mine.insert(partition.clone(), mine);
                self.give_back(partition.clone(), lease.epoch);
            }
        }
        let is_driven = |partition: &&Partition| {
            let mine = self.mine.get(*partition);
            mine.is_some_and(|mine| mine.is_driven && mine.tenure.stage() == OwnershipPhase::Owned)
        };
        self.figures.drives(share.iter().filter(is_driven).count(), share.len());
        Ok(())
    }

    /// Waits for a partition of our share that another instance still owns.
    fn wait_for(
        &mut self,
        partition: &Partition,
        table: &MembershipTable,
        holder: InstanceId,
    ) -> Result<(), RunError> {
        if !self.starting.once {
            return Ok(());
        }
        let Some(member) = table.members.get(&holder) else { return Ok(()) };
        let InstanceInfo { name, alone, .. } = InstanceInfo::decode(&member.about);
        let Partition { stream, number } = partition;
        let lease = Duration::from_millis(self.starting.loaded.config.runtime.lease.0);
        let patience = member.lasts.map_or(lease, |lasts| lease.max(lasts)) + HOLDER_GRACE_PERIOD;
        // If two instances need all partitions, only the one with the higher id gives up.
        let gives_up = !alone || holder < self.heart.id();
        if gives_up && self.started.elapsed() > patience {
            return Err(RunError::Store(StoreError::InUse(format!(
                "the process {name} runs stream {stream}, and --once needs all of its partitions: stop \
                 that process first, or run without --once beside it"
            ))));
        }
        if self.waits.insert(partition.clone()) {
            tracing::info!(
                stream = &**stream,
                partition = number,
                "waiting for the process {name} to release the partition"
            );
        }
        self.again.insert(partition.clone(), Instant::now() + LEASE_RETRY_DELAY);
        Ok(())
    }

    fn ask_for(&mut self, partition: &Partition) {
        let mine = OwnedPartition { tenure: self.heart.tenure(), is_driven: false };
        self.mine.insert(partition.clone(), mine);
        let store = self.starting.store;
        let id = self.heart.id();
        let partition = partition.clone();
        self.leasing.push(Box::pin(async move {
            let leased = store.lease(&partition, id).await;
            (partition, leased.map_err(RunError::from))
        }));
    }

    fn leased(&mut self, partition: Partition, leased: LeaseReply) {
        let Some(mine) = self.mine.get(&partition) else { return };
        let LeaseReply::Granted(epoch) = leased else {
            mine.tenure.set(OwnershipPhase::Lost);
            self.mine.remove(&partition);
            self.again.insert(partition, Instant::now() + LEASE_RETRY_DELAY);
            return;
        };
        self.heart.leased(&mine.tenure, &partition, epoch);
        self.heart.beat_soon();
        let starting = self.starting;
        let tenure = Arc::clone(&mine.tenure);
        let progress = self.figures.of(&partition);
        self.coming.push(Box::pin(async move {
            let mut stages = tenure.stages();
            let parts = tokio::select! {
                parts = starting.bring_up(&partition, epoch, Arc::clone(&tenure), &progress) => parts,
                // Another instance owns the partition, or is about to.
                _ = stages.past(OwnershipPhase::Owned) => Ok(None),
            };
            (partition, parts.map(|parts| parts.map(Box::new)))
        }));
    }

    fn came(&mut self, partition: Partition, parts: Option<Box<DriverConfig>>) {
        let Some(mine) = self.mine.get_mut(&partition) else { return };
        if let Some(parts) = parts {
            mine.is_driven = true;
            self.drivers.spawn(async move { (partition, Driver::run(*parts).await) });
        } else {
            mine.tenure.set(OwnershipPhase::Lost);
            if let Some(epoch) = mine.tenure.epoch() {
                self.give_back(partition, epoch);
            }
        }
    }

    /// Handles the end of a driver.
    fn driven(
        &mut self,
        partition: Partition,
        result: Result<Stats, DriverError>,
    ) -> Result<(), RunError> {
        self.figures.of(&partition).over();
        let Some(mine) = self.mine.get_mut(&partition) else { return Ok(()) };
        mine.is_driven = false;
        mine.tenure.set(OwnershipPhase::Lost);
        let epoch = mine.tenure.epoch();
        match result {
            Ok(stats) if self.starting.once || self.is_ending => {
                self.unpublished += stats.outbox;
                self.ended.insert(partition.clone());
            }
            // The next owner publishes what this driver left.
            Ok(_) => {}
            Err(DriverError::Fenced) if !self.starting.once => {
                tracing::warn!(
                    stream = &*partition.stream,
                    partition = partition.number,
                    "another process has taken the partition over; uncommitted work is dropped"
                );
                self.again.insert(partition.clone(), Instant::now() + LEASE_RETRY_DELAY);
            }
            Err(source) => {
                return Err(RunError::Driver { stream: Arc::clone(&partition.stream), source });
            }
        }
        if let Some(epoch) = epoch {
            self.give_back(partition, epoch);
        }
        Ok(())
    }

    fn give_back(&mut self, partition: Partition, epoch: u64) {
        self.released.insert(partition.clone(), ReleasedLease { epoch, at: None });
        let store = self.starting.store;
        let id = self.heart.id();
        self.going.push(Box::pin(async move {
            let gone = store.release(&partition, id, epoch).await;
            (partition, gone.map_err(RunError::from))
        }));
    }

    fn begin_end(&mut self) {
        self.is_ending = true;
        self.heart.leave();
        self.again.clear();
        // Leases without a driver are released when the process leaves the membership.
        self.leasing = FuturesUnordered::new();
        self.coming = FuturesUnordered::new();
        self.mine.retain(|_, mine| {
            mine.tenure.set(if mine.is_driven {
                OwnershipPhase::Draining
            } else {
                OwnershipPhase::Lost
            });
            mine.is_driven
        });
    }
}
