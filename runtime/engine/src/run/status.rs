//! The state of a run for the status line, the log, and operators.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use ordain_amqp::BrokerError;
use ordain_core::Stats;
use tokio::sync::watch;

use crate::driver::PartitionMetrics;
use crate::sink::PublishedCounts;
use ordain_store::ownership::MembershipExpiry;
use ordain_store::{InstanceReport, PendingWork};
use ordain_store::{Partition, Store};
use ordain_util::sink_health::SinkHealth;
use ordain_wasm::HandlerRegistry;

/// The phase of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunPhase {
    /// The process compiles the handlers.
    #[default]
    LoadingHandlers,
    /// The process opens the store.
    OpeningStore,
    /// The process claims the partitions of its share, and has never driven all of them at the same time.
    ClaimingPartitions,
    /// The process has at least once driven all partitions of its share at the same time. The share may be empty.
    Running,
}

/// The wait of a start for the broker.
#[derive(Debug, Clone)]
pub struct BrokerWait {
    /// The time of the first request that failed.
    pub since: Timestamp,
    /// The time since which the broker has refused each request. `None` if the broker did not answer the newest
    /// request, or refused the login.
    pub refused_since: Option<Timestamp>,
    /// The broker's own words, without names and addresses, if the broker refuses the login. Empty if the broker's
    /// words may contain names or addresses.
    pub login_refusal: Option<String>,
}

/// The state of a run, which the parts of the process update and read.
#[derive(Default)]
pub struct RunStatus(Mutex<RunState>);

#[derive(Default)]
struct RunState {
    phase: RunPhase,
    handlers: Option<Arc<HandlerRegistry>>,
    store: Option<Arc<dyn Store>>,
    partitions: Vec<Arc<PartitionMetrics>>,
    driven: usize,
    share: usize,
    /// `None` before the process is a member.
    lease_until: Option<watch::Receiver<MembershipExpiry>>,
    /// `None` if the start does not wait for the broker.
    broker_wait: Option<BrokerWait>,
    /// `None` without a broker, and before the first check.
    is_broker_connected: Option<bool>,
    /// The ingress is the HTTP listener for producers.
    is_ingress_listening: bool,
    /// The number of requests to the ingress, by response status.
    requests: BTreeMap<u16, u64>,
    /// For each stream, the number of messages that sink files contained at the start and that the store lacked.
    lost_messages: BTreeMap<String, u64>,
    published: Arc<PublishedCounts>,
    /// The states of sinks of the kinds `amqp` and `file`.
    sinks: BTreeMap<String, Arc<SinkHealth>>,
}

impl RunStatus {
    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present phase of the run.
    pub fn phase(&self) -> RunPhase {
        self.lock().phase
    }

    /// Returns the handlers, or `None` until they are loaded.
    pub fn handlers(&self) -> Option<Arc<HandlerRegistry>> {
        self.lock().handlers.clone()
    }

    /// Returns the store; `None` while the store is not open.
    pub fn store(&self) -> Option<Arc<dyn Store>> {
        self.lock().store.clone()
    }

    /// Returns the metrics of all partitions that this process drives or has driven, or for which it has accepted
    /// events.
    pub fn partitions(&self) -> Vec<Arc<PartitionMetrics>> {
        self.lock().partitions.clone()
    }

    /// Returns the statistics of the run, summed over all partitions.
    pub fn total_stats(&self) -> Stats {
        let state = self.lock();
        state
            .partitions
            .iter()
            .fold(Stats::default(), |sum, partition| sum.plus(&partition.stats()))
    }

    /// Returns whether the ingress (the HTTP listener for producers) listens.
    pub fn is_ingress_listening(&self) -> bool {
        self.lock().is_ingress_listening
    }

    /// Records whether the ingress listens.
    pub fn set_ingress_listening(&self, is_listening: bool) {
        self.lock().is_ingress_listening = is_listening;
    }

    /// Returns the number of answered requests to the ingress, by response status.
    pub fn requests(&self) -> BTreeMap<u16, u64> {
        self.lock().requests.clone()
    }

    /// Counts an answered request to the ingress. `status` is the status of the response.
    pub fn count_request(&self, status: u16) {
        *self.lock().requests.entry(status).or_default() += 1;
    }

    /// Returns, for each stream, the number of messages that sink files contained at the start and that the store
    /// lacked.
    pub fn lost_messages(&self) -> BTreeMap<String, u64> {
        self.lock().lost_messages.clone()
    }

    /// Returns the number of messages that this process has published, by sink.
    pub fn published_messages(&self) -> BTreeMap<String, u64> {
        self.published_counts().get()
    }

    pub(super) fn published_counts(&self) -> Arc<PublishedCounts> {
        Arc::clone(&self.lock().published)
    }

    /// Returns the states of the sinks of the kinds `amqp` and `file`, by the name of the sink.
    pub fn sinks(&self) -> BTreeMap<String, Arc<SinkHealth>> {
        self.lock().sinks.clone()
    }

    pub(super) fn add_sink(&self, name: &str, health: Arc<SinkHealth>) {
        self.lock().sinks.insert(name.to_owned(), health);
    }

    /// Counts messages that a sink file contains and that the store lacks.
    pub(super) fn count_lost_messages(&self, stream: &str, messages: u64) {
        *self.lock().lost_messages.entry(stream.to_owned()).or_default() += messages;
    }

    /// Records that the handlers are loaded.
    pub fn set_handlers(&self, handlers: &Arc<HandlerRegistry>) {
        let mut state = self.lock();
        state.handlers = Some(Arc::clone(handlers));
        state.phase = RunPhase::OpeningStore;
    }

    /// Records that the store is open.
    pub fn set_store(&self, store: &Arc<dyn Store>) {
        let mut state = self.lock();
        state.store = Some(Arc::clone(store));
        state.phase = RunPhase::ClaimingPartitions;
    }

    /// Returns the metrics of a partition, which all drivers of the partition share.
    pub(super) fn partition(&self, partition: &Partition) -> Arc<PartitionMetrics> {
        let mut state = self.lock();
        if let Some(found) =
            state.partitions.iter().find(|metrics| metrics.partition() == partition)
        {
            return Arc::clone(found);
        }
        let metrics = Arc::new(PartitionMetrics::new(partition.clone()));
        state.partitions.push(Arc::clone(&metrics));
        metrics
    }

    pub(super) fn begin_broker_wait(&self, error: &BrokerError) {
        let mut state = self.lock();
        let now = Timestamp::now();
        let before = state.broker_wait.as_ref();
        let since = before.map_or(now, |wait| wait.since);
        let refused_since = before.and_then(|wait| wait.refused_since).unwrap_or(now);
        let is_refused = matches!(error, BrokerError::Refused { .. });
        state.broker_wait = Some(BrokerWait {
            since,
            refused_since: is_refused.then_some(refused_since),
            login_refusal: error.login_refusal().map(str::to_owned),
        });
    }

    pub(super) fn end_broker_wait(&self) {
        self.lock().broker_wait = None;
    }

    /// Returns the wait of the start for the broker; `None` if the start does not wait for the broker.
    pub fn broker_wait(&self) -> Option<BrokerWait> {
        self.lock().broker_wait.clone()
    }

    pub(super) fn set_lease(&self, lease_until: watch::Receiver<MembershipExpiry>) {
        self.lock().lease_until = Some(lease_until);
    }

    /// Returns whether the membership of this process has expired. After the expiry, the process drives no partition
    /// until the store has answered a heartbeat. Returns `false` before the first heartbeat and after the end of the
    /// heartbeats, and if the store has no leases.
    pub fn is_lease_expired(&self) -> bool {
        let state = self.lock();
        let Some(lease_until) = &state.lease_until else { return false };
        // The heartbeat closes the channel at its end. After the process has left the membership, it renews no lease,
        // for example while a run with `--once` counts the held events.
        let has_heartbeat = lease_until.has_changed().is_ok();
        has_heartbeat && lease_until.borrow().is_some_and(|until| until <= Instant::now())
    }

    pub(super) fn set_broker_connected(&self, is_connected: bool) {
        self.lock().is_broker_connected = Some(is_connected);
    }

    /// Returns whether the broker responds; `None` without a broker, and before the first check.
    pub fn is_broker_connected(&self) -> Option<bool> {
        self.lock().is_broker_connected
    }

    /// Records how many partitions of its share this process drives, and the size of the share.
    pub(super) fn set_share(&self, driven: usize, share: usize) {
        let mut state = self.lock();
        state.driven = driven;
        state.share = share;
        if driven == share {
            state.phase = RunPhase::Running;
        }
    }

    /// Returns how many partitions of its share this process drives, and the size of the share.
    pub fn share(&self) -> (usize, usize) {
        let state = self.lock();
        (state.driven, state.share)
    }

    /// Returns the report about the partitions that this process drives.
    pub(super) fn report<'a>(&self, driven: impl Iterator<Item = &'a Partition>) -> InstanceReport {
        let mut report = InstanceReport::default();
        for partition in driven {
            let metrics = self.partition(partition);
            let work = PendingWork::from_stats(&metrics.stats(), metrics.lag.get());
            report.add(&partition.stream, partition.number, work);
        }
        report
    }

    /// Releases the store. The store closes when its last user releases it.
    pub fn release_store(&self) {
        self.lock().store = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ordain_amqp::RefusalCause;

    use super::*;

    #[test]
    fn lease_can_expire_only_between_the_first_and_the_last_heartbeat() {
        let status = RunStatus::default();
        assert!(!status.is_lease_expired());
        // The embedded store has no leases.
        let lease_until = watch::Sender::new(None);
        status.set_lease(lease_until.subscribe());
        assert!(!status.is_lease_expired());
        let now = Instant::now();
        lease_until.send_replace(Some(now + Duration::from_hours(1)));
        assert!(!status.is_lease_expired());
        lease_until.send_replace(Some(now));
        assert!(status.is_lease_expired());
        drop(lease_until);
        assert!(!status.is_lease_expired());
    }

    #[test]
    fn wait_for_the_broker_names_the_first_refusal() {
        let status = RunStatus::default();
        let wait = |error: &BrokerError| {
            status.begin_broker_wait(error);
            status.broker_wait().expect("a wait")
        };
        let unavailable = BrokerError::Unavailable("no route to the host".to_owned());
        let reason = "no permission".to_owned();
        let refused = BrokerError::Refused { cause: RefusalCause::Access, reason };
        let first = wait(&unavailable);
        assert_eq!(first.refused_since, None);
        let refusal = wait(&refused);
        assert_eq!(refusal.since, first.since);
        assert!(refusal.refused_since >= Some(first.since));
        assert_eq!(wait(&refused).refused_since, refusal.refused_since);
        let last = wait(&unavailable);
        assert_eq!((last.since, last.refused_since), (first.since, None));
    }
}
