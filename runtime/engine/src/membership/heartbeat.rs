//! Writes the heartbeat of this instance, and reads the membership table, which lists all running instances.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ordain_core::Build;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::sleep;

use ordain_store::BrokerHealth;
use ordain_store::InstanceInfo;
use ordain_store::ownership::{MembershipExpiry, Ownership};
use ordain_store::{
    HeartbeatReply, HeartbeatRequest, InstanceId, MembershipTable, MembershipVersion, Partition,
    Store, StoreError,
};
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait;

/// Delay from the response to a heartbeat to the next heartbeat. A change of this instance's data can trigger the next
/// heartbeat before the end of this delay. If the membership table has changed, the reply to a heartbeat contains the
/// table, so an instance learns within about 250 ms that another instance has released a partition.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// Dropping this value stops the heartbeat. If the store is in Redis, the leases of the instance (its rights to
/// partitions) then expire.
pub(crate) struct Heartbeat {
    id: InstanceId,
    info: watch::Sender<InstanceInfo>,
    report: watch::Sender<Option<String>>,
    trigger: Arc<Notify>,
    table: watch::Receiver<MembershipSnapshot>,
    lease_until: watch::Receiver<MembershipExpiry>,
    ownerships: OwnershipRegistry,
    task: JoinHandle<()>,
}

/// Publishes the handler versions that this instance offers, and shows the membership table to another part of this
/// process.
#[derive(Clone)]
pub(crate) struct Membership {
    id: InstanceId,
    info: watch::Sender<InstanceInfo>,
    trigger: Arc<Notify>,
    table: watch::Receiver<MembershipSnapshot>,
}

impl Membership {
    /// Publishes the handler version that this instance offers for each stream.
    pub(crate) fn offer(&self, offers: BTreeMap<String, Build>) {
        self.info.send_if_modified(|info| {
            let is_new = info.offers != offers;
            info.offers = offers;
            is_new
        });
    }

    /// Publishes that the broker refuses a stream to this instance.
    pub(crate) fn announce_refused(&self, stream: &str) {
        self.info.send_if_modified(|info| info.refused_streams.insert(stream.to_owned()));
    }

    /// Publishes that the broker now accepts a stream that it had refused to this instance.
    pub(crate) fn announce_accepted(&self, stream: &str) {
        self.info.send_if_modified(|info| info.refused_streams.remove(stream));
    }

    /// Triggers the next heartbeat immediately. Call this method after a change of the membership table, because the
    /// reply to the heartbeat contains the new table.
    pub(crate) fn trigger(&self) {
        self.trigger.notify_one();
    }

    /// Returns the newest table. After this call, [`Self::changed`] waits for a later table.
    pub(crate) fn table(&mut self) -> Arc<MembershipTable> {
        Arc::clone(&self.table.borrow_and_update().table)
    }

    pub(crate) fn id(&self) -> InstanceId {
        self.id
    }

    pub(crate) async fn changed(&mut self) {
        if self.table.changed().await.is_err() {
            // The heartbeat has stopped.
            std::future::pending::<()>().await;
        }
    }
}

/// The newest membership table, and the time when this instance requested it.
#[derive(Debug, Clone)]
struct MembershipSnapshot {
    requested_at: Instant,
    table: Arc<MembershipTable>,
}

/// The ownerships of this process (its rights to act for partitions) that may still be active.
type OwnershipRegistry = Arc<Mutex<Vec<Weak<Ownership>>>>;

struct HeartbeatTask {
    store: Arc<dyn Store>,
    id: InstanceId,
    lease: Duration,
    info: watch::Receiver<InstanceInfo>,
    report: watch::Receiver<Option<String>>,
    trigger: Arc<Notify>,
    table: watch::Sender<MembershipSnapshot>,
    lease_until: watch::Sender<MembershipExpiry>,
    ownerships: OwnershipRegistry,
    membership_version: MembershipVersion,
    /// The time of the newest response, successful or not.
    responded_at: Instant,
    /// `true` if the newest response was successful.
    has_succeeded: bool,
    throttle: LogThrottle,
}

impl Heartbeat {
    /// Starts the heartbeat. When this method returns without an error, the other instances can see this instance, and
    /// the membership table is available.
    pub(crate) async fn start(
        store: &Arc<dyn Store>,
        id: InstanceId,
        info: InstanceInfo,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        let info = watch::Sender::new(info);
        let report = watch::Sender::new(None);
        let empty = MembershipSnapshot { requested_at: Instant::now(), table: Arc::default() };
        let tables = watch::Sender::new(empty);
        let lease_times = watch::Sender::new(None);
        let trigger = Arc::<Notify>::default();
        let ownerships = OwnershipRegistry::default();
        let mut task = HeartbeatTask {
            store: Arc::clone(store),
            id,
            lease,
            info: info.subscribe(),
            report: report.subscribe(),
            trigger: Arc::clone(&trigger),
            table: tables,
            lease_until: lease_times,
            ownerships: Arc::clone(&ownerships),
            membership_version: 0,
            responded_at: Instant::now(),
            has_succeeded: true,
            throttle: LogThrottle::new(WARN_INTERVAL),
        };
        task.send_heartbeat().await?;
        let table = task.table.subscribe();
        let lease_until = task.lease_until.subscribe();
        let task = tokio::spawn(task.run());
        Ok(Self { id, info, report, trigger, table, lease_until, ownerships, task })
    }

    pub(crate) fn id(&self) -> InstanceId {
        self.id
    }

    /// Returns a receiver of the time until which the membership of this process is valid. The receiver also gets each
    /// later value of this time.
    pub(crate) fn lease_until(&self) -> watch::Receiver<MembershipExpiry> {
        self.lease_until.clone()
    }

    pub(crate) fn membership(&self) -> Membership {
        Membership {
            id: self.id,
            info: self.info.clone(),
            trigger: Arc::clone(&self.trigger),
            table: self.table.clone(),
        }
    }

    /// Returns the newest table, and the time when this instance requested it.
    pub(crate) fn table(&self) -> (Arc<MembershipTable>, Instant) {
        let MembershipSnapshot { requested_at, table } = self.table.borrow().clone();
        (table, requested_at)
    }

    /// Returns an error if the heartbeat task panicked.
    pub(crate) async fn changed(&mut self) -> Result<(), JoinError> {
        tokio::select! {
            Ok(()) = self.table.changed() => Ok(()),
            ended = &mut self.task => ended,
        }
    }

    /// Stops the heartbeat. After this call, the store gets no more heartbeats.
    pub(crate) async fn stop(mut self) {
        self.task.abort();
        // The result is ignored, because this method has just cancelled the task.
        let _ = (&mut self.task).await;
    }

    /// Publishes that this instance claims no more partitions.
    pub(crate) fn announce_leaving(&self) {
        self.info.send_modify(|info| info.leaving = true);
    }

    /// Publishes the state of this instance's connection to the broker.
    pub(crate) fn set_broker_health(&self, health: BrokerHealth) {
        self.info.send_modify(|info| info.broker = health);
    }

    /// Publishes the report of this instance's pending work with the next heartbeat.
    pub(crate) fn report(&self, report: String) {
        self.report.send_if_modified(|before| before.replace(report.clone()) != Some(report));
    }

    /// Triggers the next heartbeat immediately. Call this method after a change of the membership table, because the
    /// reply to the heartbeat contains the new table.
    pub(crate) fn trigger(&self) {
        self.trigger.notify_one();
    }

    /// Returns a new ownership. A later membership table may show that this instance no longer has the lease that
    /// [`Self::record_lease`] recorded for the ownership. In this case, this instance ends the ownership before it uses
    /// the table for another purpose.
    pub(crate) fn new_ownership(&self) -> Arc<Ownership> {
        let ownership = Arc::new(Ownership::new(self.lease_until.clone()));
        lock(&self.ownerships).push(Arc::downgrade(&ownership));
        ownership
    }

    /// Records the lease on which an ownership depends, and checks the ownership against the newest table.
    pub(crate) fn record_lease(&self, ownership: &Ownership, partition: &Partition, epoch: u64) {
        ownership.record_lease(partition.clone(), epoch);
        let MembershipSnapshot { requested_at, table } = self.table.borrow().clone();
        ownership.evaluate(self.id, &table, requested_at);
    }
}

fn lock(ownerships: &OwnershipRegistry) -> MutexGuard<'_, Vec<Weak<Ownership>>> {
    ownerships.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HeartbeatTask {
    async fn run(mut self) {
        loop {
            // If the membership has expired (for example, because the newest response took longer than the lease), this
            // task sends the next heartbeat immediately.
            let is_active = self.lease_until.borrow().is_none_or(|until| Instant::now() < until);
            if is_active {
                tokio::select! {
                    () = sleep(HEARTBEAT_INTERVAL) => {}
                    () = self.trigger.notified() => {
                        // The membership table has just changed. Since this change, the store may have gone back in
                        // time and lost the change. The version of the store's table is then equal to the version that
                        // this task has, so the store would not send the table. With version 0, the reply contains the
                        // table in any case.
                        self.membership_version = 0;
                    }
                    Ok(()) = self.info.changed() => {}
                }
            }
            if let Err(error) = self.send_heartbeat().await {
                if self.throttle.allow() {
                    tracing::warn!(
                        %error,
                        "heartbeat not written; retrying. If the lease expires before a heartbeat is written, other \
                         instances can take over the partitions of this instance"
                    );
                }
                sleep(HEARTBEAT_INTERVAL).await;
            }
        }
    }

    async fn send_heartbeat(&mut self) -> Result<(), StoreError> {
        let info = self.info.borrow_and_update().encode();
        let report = self.report.has_changed().unwrap_or(false);
        let report = report.then(|| self.report.borrow_and_update().clone()).flatten();
        let request = HeartbeatRequest {
            id: self.id,
            info: &info,
            report: report.as_deref(),
            lease: self.lease,
            known_version: self.membership_version,
        };
        // The lease counts from the time of the request, even if the response arrives much later.
        let requested_at = Instant::now();
        let lease_until = *self.lease_until.borrow();
        let was_paused = |until| was_paused(self.responded_at, until, requested_at, self.lease);
        if self.has_succeeded && lease_until.is_some_and(was_paused) {
            tracing::warn!(
                "this process was paused until its lease had expired; other instances may have taken over its \
                 partitions"
            );
        }
        let is_active = lease_until.is_some_and(|until| requested_at < until);
        let mut pending_reply = self.store.heartbeat(request);
        let reply = tokio::select! {
            reply = &mut pending_reply => reply,
            () = wait::sleep_until(lease_until), if is_active => {
                tracing::warn!(
                    "lease expired: the store has not completed a heartbeat of this process in time; this process \
                     consumes no events until the store completes a heartbeat"
                );
                let late_reply = pending_reply.await;
                if late_reply.is_ok() {
                    tracing::info!("the store completes heartbeats again");
                }
                late_reply
            }
        };
        self.responded_at = Instant::now();
        self.has_succeeded = reply.is_ok();
        if reply.is_err() {
            self.report.mark_changed();
        }
        let HeartbeatReply { valid_for: lasts, table } = reply?;
        if let Some(table) = table {
            // The store may have removed this instance together with its report, so the next heartbeat must contain the
            // report.
            self.report.mark_changed();
            self.membership_version = table.membership_version;
            let table = Arc::new(table);
            lock(&self.ownerships).retain(|ownership| {
                let ownership = ownership.upgrade().filter(|ownership| !ownership.is_lost());
                ownership.is_some_and(|ownership| {
                    ownership.evaluate(self.id, &table, requested_at);
                    true
                })
            });
            self.table.send_replace(MembershipSnapshot { requested_at, table });
        }
        // Extend the lease only after the check of all ownerships, so that no work of a lost partition continues.
        self.lease_until.send_replace(lasts.map(|lasts| requested_at + lasts));
        Ok(())
    }
}

/// Returns whether this process was paused until its lease had expired. Two conditions must hold. The lease expired (at
/// `until`) after the previous response and before the next request. More than half of the lease passed between this
/// response and this request. Without the second condition, a store that takes nearly the whole lease to respond would
/// count as a pause of this process.
fn was_paused(
    responded_at: Instant,
    until: Instant,
    requested_at: Instant,
    lease: Duration,
) -> bool {
    responded_at < until && until <= requested_at && requested_at - responded_at > lease / 2
}

/// Removes the ended processes of this machine from the membership. The removal releases their leases. A process that
/// was killed has not released its leases itself. Without this call, the start would wait until these leases expire.
pub(crate) async fn release_leases_of_dead_processes(store: &dyn Store) -> Result<(), StoreError> {
    for (id, member) in store.table().await?.members {
        let info = InstanceInfo::decode(&member.info);
        if info.process.as_ref().is_some_and(ordain_store::ProcessIdentity::has_ended) {
            tracing::info!(
                instance = info.name,
                "a process on this machine has ended: releasing its leases"
            );
            store.remove_instance(id).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_response_is_no_pause() {
        let start = Instant::now();
        // The arguments are the times of the previous response and of the next request, in ms after `start`. The lease
        // expires 10,000 ms after `start`.
        let was_paused = |responded_ms, requested_ms| {
            let [responded_at, until, requested_at] = [responded_ms, 10_000, requested_ms]
                .map(|at_ms| start + Duration::from_millis(at_ms));
            was_paused(responded_at, until, requested_at, Duration::from_secs(10))
        };
        assert!(!was_paused(9_900, 10_150), "the response took nearly the whole lease");
        assert!(!was_paused(11_000, 17_000), "the lease expired before the response");
        assert!(!was_paused(10, 9_990), "the lease has not expired");
        assert!(was_paused(10, 10_000));
        assert!(was_paused(4_000, 12_000));
    }
}
