//! A difference between the broker and a stream's topology that only the management API shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{QueueWarning, RunStatus};
use ordain_store::Partition;
use ordain_util::finding::Finding;
use ordain_util::source_health::{RoutingFault, SourceState};

/// The routing faults that only the management API shows.
const FAULTS: [RoutingFault; 2] = [RoutingFault::MissingBinding, RoutingFault::ForeignConsumer];
/// After this number of failed checks in a row, a fault counts as unknown. Without this limit, the fault would stay
/// while the management API does not answer, even if its cause has ended.
const FAILED_CHECKS_LIMIT: u32 = 3;

/// A difference between the broker and a stream's topology because of which the stream loses or reorders events. While
/// the difference exists, each check logs and counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopologyFinding {
    /// The partition that the finding concerns; partition 0 if the finding concerns the exchange of the stream.
    pub(super) partition: Partition,
    pub(super) warning: QueueWarning,
    /// The fault because of which the partition receives no events; `None` if the partition still receives events.
    pub(super) fault: Option<RoutingFault>,
    /// `true` if the exchange divides its messages among the queues that are bound to it. If the queue of this
    /// partition is not bound, the exchange routes events of all partitions to wrong queues.
    pub(super) concerns_stream: bool,
    /// `true` if `ordain check --connect` reports the finding as an error.
    pub(super) is_error: bool,
}

impl TopologyFinding {
    fn concerns(&self, partition: &Partition) -> bool {
        if self.concerns_stream {
            self.partition.stream == partition.stream
        } else {
            self.partition == *partition
        }
    }

    /// Logs the finding, and counts it as a change of the stream's topology.
    pub(super) fn report(&self, status: &RunStatus) {
        self.warning.log(Some(&self.partition.stream));
        status.partition(&self.partition).topology_changes.fetch_add(1, Relaxed);
    }
}

impl From<TopologyFinding> for Finding {
    fn from(finding: TopologyFinding) -> Self {
        let text = finding.warning.text;
        if finding.is_error { Self::error(text) } else { Self::warning(text) }
    }
}

/// The routing faults of this process's partitions, according to the newest checks.
#[derive(Debug, Default)]
pub(super) struct RoutingFaults {
    /// For each partition, the number of its deliveries up to the newest check.
    delivered: BTreeMap<Partition, u64>,
    /// For each kind of fault and partition, the number of failed checks since the newest successful check.
    failed_checks: BTreeMap<(RoutingFault, Partition), u32>,
}

impl RoutingFaults {
    /// Records the routing faults of `findings` in the states of the sources of this process, and removes the faults
    /// that no longer exist. If a partition has received deliveries since the previous check, this method ignores its
    /// missing binding. The events then reach its queue in a way that the management API does not show, for example
    /// through a shovel. Only the process that drives a partition can see these deliveries. A missing binding may
    /// concern the whole stream. In this case, only the process that drives the partition with the missing binding
    /// records the fault. This process records the fault for all its partitions of the stream. If `is_unchecked`
    /// returns `true` for a fault, the fault stays unchanged, but ends after [`FAILED_CHECKS_LIMIT`] such checks.
    pub(super) fn update(
        &mut self,
        status: &RunStatus,
        findings: &[TopologyFinding],
        is_unchecked: impl Fn(RoutingFault, &Partition) -> bool,
    ) {
        let all = status.partitions();
        // The driven partitions that have received nothing since the previous check.
        let mut silent = BTreeSet::new();
        for metrics in &all {
            let delivered = metrics.stats().delivered;
            let before = self.delivered.insert(metrics.partition().clone(), delivered).unwrap_or(0);
            if metrics.health().state() != SourceState::Inactive && delivered <= before {
                silent.insert(metrics.partition().clone());
            }
        }
        for metrics in &all {
            let partition = metrics.partition();
            for fault in FAULTS {
                let failed_checks =
                    self.failed_checks.entry((fault, partition.clone())).or_default();
                if is_unchecked(fault, partition) {
                    *failed_checks = failed_checks.saturating_add(1);
                    if *failed_checks < FAILED_CHECKS_LIMIT {
                        continue;
                    }
                } else {
                    *failed_checks = 0;
                }
                let is_found = |finding: &&TopologyFinding| {
                    finding.fault == Some(fault)
                        && finding.concerns(partition)
                        && (fault != RoutingFault::MissingBinding
                            || silent.contains(&finding.partition))
                };
                let found = findings.iter().find(is_found);
                let reason = found.map(|finding| finding.warning.text.clone());
                metrics.health().set_routing_fault(fault, reason);
            }
        }
    }
}

pub(super) fn partition_of(stream: &Arc<str>, number: u32) -> Partition {
    Partition { stream: Arc::clone(stream), number }
}

#[cfg(test)]
mod tests {
    use ordain_core::Stats;

    use super::super::SettingEffect;
    use super::*;

    fn finding(partition: &Partition, fault: RoutingFault) -> TopologyFinding {
        TopologyFinding {
            partition: partition.clone(),
            warning: QueueWarning { effect: SettingEffect::Loss, text: "a fault".to_owned() },
            fault: Some(fault),
            concerns_stream: false,
            is_error: false,
        }
    }

    fn checked(_: RoutingFault, _: &Partition) -> bool {
        false
    }

    fn unchecked(_: RoutingFault, _: &Partition) -> bool {
        true
    }

    #[test]
    fn fault_lasts_until_a_check_does_not_find_it() {
        let status = RunStatus::default();
        let [faulty, other] = [0, 1].map(|number| partition_of(&"orders".into(), number));
        let state = |partition: &Partition| status.partition(partition).health().state();
        for partition in [&faulty, &other] {
            status.partition(partition).health().set(SourceState::Consuming);
        }
        let fault = RoutingFault::ForeignConsumer;
        let found = [finding(&faulty, fault)];
        let faulty_state = SourceState::RoutingFault { fault, reason: "a fault".to_owned() };
        let mut tracker = RoutingFaults::default();
        tracker.update(&status, &found, checked);
        assert_eq!((state(&faulty), state(&other)), (faulty_state.clone(), SourceState::Consuming));
        tracker.update(&status, &[], unchecked);
        assert_eq!(state(&faulty), faulty_state);
        tracker.update(&status, &[], checked);
        assert_eq!(state(&faulty), SourceState::Consuming);
        // Even if the API does not answer, the fault ends after some checks.
        tracker.update(&status, &found, checked);
        for _ in 1..FAILED_CHECKS_LIMIT {
            tracker.update(&status, &[], unchecked);
            assert_eq!(state(&faulty), faulty_state);
        }
        tracker.update(&status, &[], unchecked);
        assert_eq!(state(&faulty), SourceState::Consuming);
    }

    #[test]
    fn missing_binding_of_a_dividing_exchange_concerns_all_partitions_of_the_stream() {
        let status = RunStatus::default();
        let [first, second] = [0, 1].map(|number| partition_of(&"orders".into(), number));
        let other = partition_of(&"returns".into(), 0);
        for partition in [&first, &second, &other] {
            status.partition(partition).health().set(SourceState::Consuming);
        }
        let is_consuming = |partition: &Partition| {
            status.partition(partition).health().state() == SourceState::Consuming
        };
        let consuming = || [&first, &second, &other].map(is_consuming);
        let missing = finding(&second, RoutingFault::MissingBinding);
        let found = [TopologyFinding { concerns_stream: true, ..missing.clone() }];
        let mut tracker = RoutingFaults::default();
        tracker.update(&status, &found, checked);
        assert_eq!(consuming(), [false, false, true]);
        // Deliveries to the partition show that its events arrive in another way.
        status.partition(&second).set_stats(&Stats { delivered: 1, ..Stats::default() });
        tracker.update(&status, &found, checked);
        assert_eq!(consuming(), [true, true, true]);
        // Only the process that drives the partition knows whether the partition receives deliveries. Another process
        // now drives the partition.
        status.partition(&second).health().set(SourceState::Inactive);
        tracker.update(&status, &found, checked);
        assert_eq!(consuming(), [true, false, true]);
        // If the exchange does not divide its messages, it still sends the events of the other partitions to the right
        // queues.
        status.partition(&second).health().set(SourceState::Consuming);
        tracker.update(&status, &[missing], checked);
        assert_eq!(consuming(), [true, false, true]);
    }

    #[test]
    fn partition_that_receives_deliveries_has_no_missing_binding() {
        let status = RunStatus::default();
        let partition = partition_of(&"orders".into(), 0);
        let metrics = status.partition(&partition);
        metrics.health().set(SourceState::Consuming);
        let mut tracker = RoutingFaults::default();
        for (delivered, fault, is_faulty) in [
            (0, RoutingFault::MissingBinding, true),
            (1, RoutingFault::MissingBinding, false),
            (1, RoutingFault::MissingBinding, true),
            (2, RoutingFault::ForeignConsumer, true),
        ] {
            metrics.set_stats(&Stats { delivered, ..Stats::default() });
            tracker.update(&status, &[finding(&partition, fault)], checked);
            assert_eq!(
                metrics.health().state() != SourceState::Consuming,
                is_faulty,
                "{delivered}"
            );
        }
    }
}
