//! Manages the partitions of this instance during a run. The manager claims and drives the partitions of the instance's
//! share (the partitions that the instance should own). It releases the partitions that belong to the share of another
//! instance. The module `share` computes the shares.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use ordain_core::Stats;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::partition_factory::PartitionFactory;
use super::share::{all_partitions, distribution};
use super::{RunError, RunStatus};
use crate::driver::{Driver, DriverConfig, DriverError};
use crate::membership::Heartbeat;
use ordain_amqp::{BrokerStatus, watch_broker_health};
use ordain_config::{SourceConfig, StoreConfig, StreamConfig};
use ordain_store::BrokerHealth;
use ordain_store::{InstanceId, Lease, LeaseReply, MembershipTable, Partition, StoreError};
use ordain_store::{InstanceInfo, Ownership, OwnershipPhase};
use ordain_util::shutdown::shutdown_requested;
use ordain_util::source_health::SourceState;
use ordain_util::text::{display_ranges, escape_invisible};
use ordain_util::wait;

/// Delay before this instance repeats a refused request for a lease (the right of an instance to a partition).
const LEASE_RETRY_DELAY: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Extra time that `run --once` waits for a partition of another instance after the lease of that instance should have
/// expired. If that instance died, the partition becomes free only when the lease expires.
const HOLDER_GRACE_DELAY: Duration = Duration::from_secs(2);

/// An operation such as the start or the release of a partition.
type PartitionFuture<'a, T> = Pin<Box<dyn Future<Output = (Partition, Result<T, RunError>)> + 'a>>;

struct OwnedPartition {
    ownership: Arc<Ownership>,
    is_driven: bool,
}

/// The reason why this instance can get a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ClaimReason {
    NeverOwned,
    Released,
    Expired(InstanceId),
}

impl ClaimReason {
    fn of(lease: Option<&Lease>) -> Self {
        match lease.map(|lease| lease.holder) {
            None => Self::NeverOwned,
            Some(None) => Self::Released,
            Some(Some(holder)) => Self::Expired(holder),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NeverOwned => "no process has owned them before",
            Self::Released => "their last owner released them",
            Self::Expired(_) => {
                "their last owner ended without releasing them, or did not renew its lease in time"
            }
        }
    }
}

struct ReleasedLease {
    epoch: u64,
    /// The time when the store confirmed the release; `None` before the confirmation.
    answered_at: Option<Instant>,
}

/// The manager of this instance's partitions.
pub(super) struct PartitionManager<'a> {
    factory: &'a PartitionFactory<'a>,
    status: &'a RunStatus,
    heartbeat: &'a mut Heartbeat,
    /// `share` was computed from this table.
    table: Arc<MembershipTable>,
    share: BTreeSet<Partition>,
    /// The instance that should own each partition. Empty with `once`, because this instance then needs all partitions.
    distribution: BTreeMap<Partition, InstanceId>,
    owned: BTreeMap<Partition, OwnedPartition>,
    leasing: FuturesUnordered<PartitionFuture<'a, LeaseReply>>,
    /// One reason for each partition whose lease was requested since the previous log line about started partitions.
    claim_reasons: BTreeMap<Partition, ClaimReason>,
    /// The numbers of partitions that are not logged yet, by stream and reason.
    started_partitions: BTreeMap<(Arc<str>, ClaimReason), BTreeSet<u32>>,
    /// Partitions that are starting. The result of a start is `None` if this instance cannot drive the partition, for
    /// example because another instance owns it now.
    starting: FuturesUnordered<PartitionFuture<'a, Option<Box<DriverConfig>>>>,
    drivers: JoinSet<(Partition, Result<Stats, DriverError>)>,
    releasing: FuturesUnordered<PartitionFuture<'a, ()>>,
    /// Released leases. Each entry stays until a membership table contains the release.
    released: BTreeMap<Partition, ReleasedLease>,
    /// Partitions whose lease this instance cannot get now, each with the time of the next attempt.
    retry_at: BTreeMap<Partition, Instant>,
    /// With `once`: partitions whose drivers have nothing left to do. This instance no longer requests their leases.
    finished: BTreeSet<Partition>,
    /// The partitions for which this instance has logged that it waits until another instance releases them.
    logged_waits: BTreeSet<Partition>,
    /// The names of the members, and of two kinds of former members: the holders of leases, and the previous owners
    /// that a pending log line names.
    names: BTreeMap<InstanceId, String>,
    has_logged_ready: bool,
    /// The state of the broker, as this instance has published it to the other instances.
    broker_health: BrokerHealth,
    is_ending: bool,
    /// The ended drivers left these messages unpublished.
    unpublished: usize,
    started: Instant,
}

impl<'a> PartitionManager<'a> {
    pub(super) fn new(
        factory: &'a PartitionFactory<'a>,
        status: &'a RunStatus,
        heartbeat: &'a mut Heartbeat,
    ) -> Self {
        Self {
            factory,
            status,
            heartbeat,
            table: Arc::default(),
            share: BTreeSet::new(),
            distribution: BTreeMap::new(),
            owned: BTreeMap::new(),
            released: BTreeMap::new(),
            leasing: FuturesUnordered::new(),
            claim_reasons: BTreeMap::new(),
            started_partitions: BTreeMap::new(),
            starting: FuturesUnordered::new(),
            drivers: JoinSet::new(),
            releasing: FuturesUnordered::new(),
            retry_at: BTreeMap::new(),
            finished: BTreeSet::new(),
            logged_waits: BTreeSet::new(),
            names: BTreeMap::new(),
            has_logged_ready: false,
            broker_health: BrokerHealth::Up,
            is_ending: false,
            unpublished: 0,
            started: Instant::now(),
        }
    }

    /// Claims, drives and releases partitions. Returns when the run is over and this instance no longer owns any
    /// partition. The run is over when a shutdown was requested or, with `once`, when the drivers of all partitions
    /// have reached their end. The result is the number of messages that remain unpublished.
    pub(super) async fn run(
        mut self,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<usize, RunError> {
        let all = all_partitions(self.factory.loaded);
        let mut broker_status = self.watch_broker_health();
        let mut report = interval(REPORT_INTERVAL);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut idle_check = interval(IDLE_CHECK_INTERVAL);
        idle_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.rebalance(&all)?;
            self.log_started_partitions();
            let is_done = self.is_ending || self.factory.once && self.finished == all;
            if self.owned.is_empty() && is_done {
                return Ok(self.unpublished);
            }
            let next_retry = self.retry_at.values().min().copied();
            tokio::select! {
                changed = self.heartbeat.changed() => changed.map_err(RunError::Panic)?,
                Some((partition, leased)) = self.leasing.next() => self.handle_lease(partition, leased?),
                Some((partition, parts)) = self.starting.next() => self.handle_started(partition, parts?),
                Some(done) = self.drivers.join_next() => {
                    let (partition, result) = done.map_err(RunError::Panic)?;
                    self.handle_driver_end(partition, result)?;
                }
                Some((partition, result)) = self.releasing.next() => {
                    result?;
                    self.owned.remove(&partition);
                    if let Some(released) = self.released.get_mut(&partition) {
                        released.answered_at = Some(Instant::now());
                    }
                    self.heartbeat.trigger();
                }
                () = shutdown_requested(&mut shutdown), if !self.is_ending => self.begin_shutdown(),
                () = wait::sleep_until(next_retry) => self.retry_at.retain(|_, at| *at > Instant::now()),
                Ok(()) = broker_status.changed() => self.update_broker_health(&broker_status.borrow_and_update().clone()),
                _ = idle_check.tick(), if !*self.factory.may_end.borrow() => {
                    if self.all_idle(&all) {
                        self.factory.may_end.send_replace(true);
                    }
                }
                _ = report.tick() => {
                    let broker_status = broker_status.borrow().clone();
                    self.update_broker_health(&broker_status);
                    let driven = self.owned.iter().filter(|(_, owned)| owned.is_driven);
                    self.heartbeat.report(self.status.report(driven.map(|(partition, _)| partition)).encode());
                }
            }
        }
    }

    /// Logs the partitions that have started since the previous log line. Logs nothing while a request for a lease, or
    /// the start of a partition, is running; a later call then logs all of them.
    fn log_started_partitions(&mut self) {
        if !self.leasing.is_empty() || !self.starting.is_empty() {
            return;
        }
        self.claim_reasons.clear();
        for ((stream, reason), numbers) in std::mem::take(&mut self.started_partitions) {
            let last_owner = match reason {
                ClaimReason::NeverOwned | ClaimReason::Released => None,
                ClaimReason::Expired(id) => {
                    Some(self.names.get(&id).cloned().unwrap_or_else(|| id.to_string()))
                }
            };
            tracing::info!(
                stream = &*stream,
                partitions = display_ranges(&numbers),
                last_owner,
                "processing partitions: {}",
                reason.text()
            );
        }
        self.log_ready();
    }

    /// Logs once that this instance is ready, as soon as all partitions of its share receive events. The log line
    /// contains the source of each stream.
    fn log_ready(&mut self) {
        if self.has_logged_ready || self.factory.once || self.is_ending || self.share.is_empty() {
            return;
        }
        let is_consuming = |partition: &Partition| {
            let is_driven = self.owned.get(partition).is_some_and(|owned| owned.is_driven);
            let health = self.status.partition(partition).health();
            is_driven && health.state() == SourceState::Consuming
        };
        if !self.share.iter().all(is_consuming) {
            return;
        }
        self.has_logged_ready = true;
        let streams = &self.factory.loaded.config.streams;
        let names: BTreeSet<&str> = self.share.iter().map(|partition| &*partition.stream).collect();
        let sources: Vec<String> = names
            .into_iter()
            .filter_map(|name| {
                let source = streams.get(name)?.source.place();
                Some(format!("stream {name} receives events from {}", escape_invisible(&source)))
            })
            .collect();
        tracing::info!("ready: {}", sources.join("; "));
    }

    /// Returns whether all partitions are idle and the queues between them are empty. The function checks the
    /// partitions one after the other. If each check finds its partition idle, and no event was added to a queue during
    /// the checks, then all partitions are idle at the time of the last check.
    fn all_idle(&self, all: &BTreeSet<Partition>) -> bool {
        let notifiers = &self.factory.notifiers;
        let (before, was_empty) = notifiers.writes();
        let is_idle = |partition: &Partition| {
            self.owned.get(partition).is_some_and(|owned| owned.is_driven)
                && self.status.partition(partition).is_idle()
        };
        let all_idle = all.iter().all(is_idle);
        let (after, is_empty) = notifiers.writes();
        all_idle && was_empty && is_empty && before == after
    }

    fn watch_broker_health(&self) -> watch::Receiver<BrokerStatus> {
        let PartitionFactory { loaded, broker, .. } = self.factory;
        let lease = Duration::from_millis(loaded.config.runtime.lease.0);
        match broker {
            Some(broker) => watch_broker_health(broker, lease),
            None => watch::Sender::new(BrokerStatus::default()).subscribe(),
        }
    }

    /// Updates the state of the broker for status reports. If any stream receives its events from the broker, also
    /// publishes the state to the other instances.
    fn update_broker_health(&mut self, status: &BrokerStatus) {
        if self.factory.broker.is_some() {
            self.status.set_broker_connected(status.error.is_none());
        }
        let mut health = status.health;
        // It is possible that the broker refuses only the connection of the health check, for example because of a
        // connection limit. If the process still consumes a queue, the process keeps its partitions.
        if health == BrokerHealth::Down && self.consumes_queue() {
            health = BrokerHealth::Suspect;
        }
        if std::mem::replace(&mut self.broker_health, health) == health {
            return;
        }
        if self.has_queues() {
            self.heartbeat.set_broker_health(health);
            if health == BrokerHealth::Down {
                let reason = status.error.as_deref().unwrap_or_default();
                // Only one process uses an embedded store.
                let next = match self.factory.loaded.config.store {
                    StoreConfig::Embedded(_) => {
                        "the process keeps its partitions, and continues to try to reach the broker"
                    }
                    StoreConfig::Redis(_) => {
                        "other instances that can use the broker, if any, take over the partitions of this instance"
                    }
                };
                tracing::warn!("broker unusable for longer than the lease: {reason}; {next}");
            }
        }
    }

    /// Returns whether any stream receives its events from the broker.
    fn has_queues(&self) -> bool {
        let uses_broker = |stream: &StreamConfig| matches!(stream.source, SourceConfig::Amqp(_));
        self.factory.loaded.config.streams.values().any(uses_broker)
    }

    fn consumes_queue(&self) -> bool {
        let streams = &self.factory.loaded.config.streams;
        self.owned.iter().any(|(partition, owned)| {
            let is_queue = streams
                .get(&*partition.stream)
                .is_some_and(|stream| matches!(stream.source, SourceConfig::Amqp(_)));
            let is_ready = self.status.partition(partition).health().is_ready();
            owned.is_driven && is_queue && is_ready
        })
    }

    /// Releases partitions that left the share. Requests the lease of each partition of the share that this instance
    /// does not own yet, unless another instance holds the lease according to the membership table. Also releases
    /// leases that the store has recorded for this instance although this instance does not hold them. Does nothing
    /// during the shutdown.
    fn rebalance(&mut self, all: &BTreeSet<Partition>) -> Result<(), RunError> {
        if self.is_ending {
            return Ok(());
        }
        let (table, requested_at) = self.heartbeat.table();
        let id = self.heartbeat.id();
        if !Arc::ptr_eq(&table, &self.table) {
            let PartitionFactory { loaded, once, .. } = self.factory;
            if *once {
                self.share.clone_from(all);
            } else {
                self.distribution = distribution(loaded, &table);
                let own = self.distribution.iter().filter(|(_, owner)| **owner == id);
                self.share = own.map(|(partition, _)| partition.clone()).collect();
            }
            self.update_names(&table);
            self.table = Arc::clone(&table);
            self.released
                .retain(|_, released| released.answered_at.is_none_or(|at| requested_at <= at));
        }
        let mut share = self.share.clone();
        share.retain(|partition| !self.finished.contains(partition));
        for (partition, owned) in &self.owned {
            if !share.contains(partition) && owned.ownership.phase() == OwnershipPhase::Owned {
                self.log_reassigned(partition);
                owned.ownership.advance_to(OwnershipPhase::Draining);
            }
        }
        for partition in &share {
            if self.owned.contains_key(partition) || self.retry_at.contains_key(partition) {
                continue;
            }
            match table.holder(partition) {
                Some(holder) if holder != id => self.wait_for_holder(partition, &table, holder)?,
                _ => {
                    let reason = ClaimReason::of(table.leases.get(partition));
                    self.claim_reasons.insert(partition.clone(), reason);
                    self.request_lease(partition);
                }
            }
        }
        // Release leases that the store has recorded for this instance, but that this instance neither holds nor
        // requests. Such a lease exists if the store went back in time, or if the store received a request twice.
        for (partition, lease) in &table.leases {
            let is_known = self.owned.contains_key(partition)
                || self.retry_at.contains_key(partition)
                || self
                    .released
                    .get(partition)
                    .is_some_and(|released| lease.epoch <= released.epoch);
            if lease.holder == Some(id) && !is_known {
                let owned =
                    OwnedPartition { ownership: self.heartbeat.new_ownership(), is_driven: false };
                owned.ownership.advance_to(OwnershipPhase::Lost);
                self.owned.insert(partition.clone(), owned);
                self.release(partition.clone(), lease.epoch);
            }
        }
        let is_driven = |partition: &&Partition| {
            let owned = self.owned.get(*partition);
            owned.is_some_and(|owned| {
                owned.is_driven && owned.ownership.phase() == OwnershipPhase::Owned
            })
        };
        self.status.set_share(share.iter().filter(is_driven).count(), share.len());
        Ok(())
    }

    /// Logs that the partition is no longer in the share of this instance. The log line states the reason and the
    /// instance that should own the partition now.
    fn log_reassigned(&self, partition: &Partition) {
        let owner = self.distribution.get(partition);
        let is_refused = |id: &InstanceId| {
            let member = self.table.members.get(id);
            member.is_some_and(|member| {
                InstanceInfo::decode(&member.info).refused_streams.contains(&*partition.stream)
            })
        };
        let reason = if self.broker_health == BrokerHealth::Down {
            "this process cannot use the broker"
        } else if is_refused(&self.heartbeat.id()) && !owner.is_some_and(is_refused) {
            "the broker refuses this stream to this process, and accepts it for another process"
        } else {
            "an instance has started or ended, or can use the broker again"
        };
        tracing::info!(
            stream = &*partition.stream,
            partition = partition.number,
            new_owner = owner.and_then(|owner| self.names.get(owner)),
            "partition no longer assigned to this process: {reason}; handing it over to another instance"
        );
    }

    /// Keeps the names of holders of leases, and of previous owners that a pending log line names.
    fn update_names(&mut self, table: &MembershipTable) {
        let last_owner = |reason: &ClaimReason| match reason {
            ClaimReason::Expired(id) => Some(*id),
            ClaimReason::NeverOwned | ClaimReason::Released => None,
        };
        let holders = table.leases.values().filter_map(|lease| lease.holder);
        let requested = self.claim_reasons.values().filter_map(last_owner);
        let started = self.started_partitions.keys().filter_map(|(_, reason)| last_owner(reason));
        let needed: BTreeSet<InstanceId> = holders.chain(requested).chain(started).collect();
        self.names.retain(|id, _| needed.contains(id));
        for (id, member) in &table.members {
            self.names.insert(*id, InstanceInfo::decode(&member.info).name);
        }
    }

    /// Handles a partition of this instance's share that another instance still owns. With `once`, schedules the next
    /// check whether the partition is free, or returns an error after a time limit. Without `once`, does nothing,
    /// because the next membership table triggers the next check.
    fn wait_for_holder(
        &mut self,
        partition: &Partition,
        table: &MembershipTable,
        holder: InstanceId,
    ) -> Result<(), RunError> {
        if !self.factory.once {
            return Ok(());
        }
        let Some(member) = table.members.get(&holder) else { return Ok(()) };
        let InstanceInfo { name, alone, .. } = InstanceInfo::decode(&member.info);
        let Partition { stream, number } = partition;
        let lease = Duration::from_millis(self.factory.loaded.config.runtime.lease.0);
        let timeout =
            member.valid_for.map_or(lease, |valid_for| lease.max(valid_for)) + HOLDER_GRACE_DELAY;
        // If two instances run with `--once`, each of them needs all partitions. In this case, only the instance with
        // the higher id gives up.
        let gives_up = !alone || holder < self.heartbeat.id();
        if gives_up && self.started.elapsed() > timeout {
            return Err(RunError::Store(StoreError::InUse(format!(
                "the process {name} runs stream {stream}, and --once needs all partitions of the stream: \
                 stop that process first, or run without --once"
            ))));
        }
        if self.logged_waits.insert(partition.clone()) {
            tracing::info!(
                stream = &**stream,
                partition = number,
                "waiting for the process {name} to release the partition"
            );
        }
        self.retry_at.insert(partition.clone(), Instant::now() + LEASE_RETRY_DELAY);
        Ok(())
    }

    fn request_lease(&mut self, partition: &Partition) {
        let owned = OwnedPartition { ownership: self.heartbeat.new_ownership(), is_driven: false };
        self.owned.insert(partition.clone(), owned);
        let store = self.factory.store;
        let id = self.heartbeat.id();
        let partition = partition.clone();
        self.leasing.push(Box::pin(async move {
            let leased = store.lease(&partition, id).await;
            (partition, leased.map_err(RunError::from))
        }));
    }

    fn handle_lease(&mut self, partition: Partition, leased: LeaseReply) {
        let Some(owned) = self.owned.get(&partition) else { return };
        let LeaseReply::Granted(epoch) = leased else {
            owned.ownership.advance_to(OwnershipPhase::Lost);
            self.owned.remove(&partition);
            self.retry_at.insert(partition, Instant::now() + LEASE_RETRY_DELAY);
            return;
        };
        self.heartbeat.record_lease(&owned.ownership, &partition, epoch);
        self.heartbeat.trigger();
        let factory = self.factory;
        let ownership = Arc::clone(&owned.ownership);
        let progress = self.status.partition(&partition);
        self.starting.push(Box::pin(async move {
            let mut phases = ownership.phases();
            let config = tokio::select! {
                parts = factory.start_partition(&partition, epoch, Arc::clone(&ownership), &progress) => parts,
                // Another instance owns the partition now, or will soon own it.
                _ = phases.changed_from(OwnershipPhase::Owned) => Ok(None),
            };
            (partition, config.map(|started| started.map(Box::new)))
        }));
    }

    fn handle_started(&mut self, partition: Partition, config: Option<Box<DriverConfig>>) {
        let Some(owned) = self.owned.get_mut(&partition) else { return };
        if let Some(config) = config {
            owned.is_driven = true;
            if let Some(reason) = self.claim_reasons.remove(&partition) {
                let started = (Arc::clone(&partition.stream), reason);
                self.started_partitions.entry(started).or_default().insert(partition.number);
            }
            self.drivers.spawn(async move { (partition, Driver::run(*config).await) });
        } else {
            self.status.partition(&partition).end_driver();
            owned.ownership.advance_to(OwnershipPhase::Lost);
            if let Some(epoch) = owned.ownership.epoch() {
                self.release(partition, epoch);
            }
        }
    }

    /// Releases the partition. Returns an error if the driver failed, but not if a service (a run without `once`) lost
    /// the partition to another instance.
    fn handle_driver_end(
        &mut self,
        partition: Partition,
        result: Result<Stats, DriverError>,
    ) -> Result<(), RunError> {
        self.status.partition(&partition).end_driver();
        let Some(owned) = self.owned.get_mut(&partition) else { return Ok(()) };
        owned.is_driven = false;
        owned.ownership.advance_to(OwnershipPhase::Lost);
        let epoch = owned.ownership.epoch();
        match result {
            Ok(stats) if self.factory.once || self.is_ending => {
                self.unpublished += stats.outbox;
                self.finished.insert(partition.clone());
            }
            // The next owner publishes the messages that this driver left unpublished.
            Ok(_) => {}
            Err(DriverError::Fenced) if !self.factory.once => {
                let (table, _) = self.heartbeat.table();
                let holder =
                    table.holder(&partition).filter(|holder| *holder != self.heartbeat.id());
                let member = holder.and_then(|holder| table.members.get(&holder));
                tracing::warn!(
                    stream = &*partition.stream,
                    partition = partition.number,
                    new_owner = member.map(|member| InstanceInfo::decode(&member.info).name),
                    "another process owns the partition now; this process drops its uncommitted work, and the new \
                     owner executes the events of that work again"
                );
                self.retry_at.insert(partition.clone(), Instant::now() + LEASE_RETRY_DELAY);
            }
            Err(source) => {
                return Err(RunError::Driver { stream: Arc::clone(&partition.stream), source });
            }
        }
        if let Some(epoch) = epoch {
            self.release(partition, epoch);
        }
        Ok(())
    }

    fn release(&mut self, partition: Partition, epoch: u64) {
        self.released.insert(partition.clone(), ReleasedLease { epoch, answered_at: None });
        let store = self.factory.store;
        let id = self.heartbeat.id();
        self.releasing.push(Box::pin(async move {
            let released = store.release(&partition, id, epoch).await;
            (partition, released.map_err(RunError::from))
        }));
    }

    fn begin_shutdown(&mut self) {
        self.is_ending = true;
        self.heartbeat.announce_leaving();
        self.retry_at.clear();
        // When the process leaves the membership, the store releases the leases of partitions without a driver.
        self.leasing = FuturesUnordered::new();
        self.starting = FuturesUnordered::new();
        self.owned.retain(|_, owned| {
            owned.ownership.advance_to(if owned.is_driven {
                OwnershipPhase::Draining
            } else {
                OwnershipPhase::Lost
            });
            owned.is_driven
        });
    }
}
