//! A difference between the broker and a stream's topology that only the management API shows.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{QueueWarning, RunStatus};
use ordain_store::Partition;
use ordain_util::finding::Finding;
use ordain_util::source_health::RoutingFault;

/// The routing faults that only the management API shows.
const FAULTS: [RoutingFault; 2] = [RoutingFault::MissingBinding, RoutingFault::ForeignConsumer];

/// A difference between the broker and a stream's topology because of which the stream loses or reorders events. Each
/// check logs and counts the difference as long as it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopologyFinding {
    /// The partition that the finding concerns; partition 0 if the finding concerns the exchange of the stream.
    pub(super) partition: Partition,
    pub(super) warning: QueueWarning,
    /// The fault because of which the partition receives no events; `None` if the partition still receives events.
    pub(super) fault: Option<RoutingFault>,
    /// `true` if `ordain check --connect` reports the finding as an error.
    pub(super) is_error: bool,
}

impl TopologyFinding {
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

/// Records the routing faults of `findings` in the states of the sources of this process, and removes the faults that
/// no longer exist. Leaves the faults of the kinds `unchecked` unchanged.
pub(super) fn update_faults(
    status: &RunStatus,
    findings: &[TopologyFinding],
    unchecked: &[RoutingFault],
) {
    for metrics in status.partitions() {
        for fault in FAULTS.into_iter().filter(|fault| !unchecked.contains(fault)) {
            let is_found = |finding: &&TopologyFinding| {
                finding.fault == Some(fault) && finding.partition == *metrics.partition()
            };
            let found = findings.iter().find(is_found);
            let reason = found.map(|finding| finding.warning.text.clone());
            metrics.health().set_routing_fault(fault, reason);
        }
    }
}

/// Returns the partition of a stream with this number.
pub(super) fn partition_of(stream: &Arc<str>, number: u32) -> Partition {
    Partition { stream: Arc::clone(stream), number }
}

#[cfg(test)]
mod tests {
    use ordain_util::source_health::SourceState;

    use super::super::SettingEffect;
    use super::*;

    #[test]
    fn fault_lasts_until_a_check_does_not_find_it() {
        let status = RunStatus::default();
        let [faulty, other] = [0, 1].map(|number| partition_of(&"orders".into(), number));
        let state = |partition: &Partition| status.partition(partition).health().state();
        for partition in [&faulty, &other] {
            status.partition(partition).health().set(SourceState::Consuming);
        }
        let fault = RoutingFault::ForeignConsumer;
        let text = "another program".to_owned();
        let found = TopologyFinding {
            partition: faulty.clone(),
            warning: QueueWarning { effect: SettingEffect::Loss, text: text.clone() },
            fault: Some(fault),
            is_error: false,
        };
        update_faults(&status, &[found], &[]);
        let faulty_state = SourceState::RoutingFault { fault, reason: text };
        assert_eq!((state(&faulty), state(&other)), (faulty_state.clone(), SourceState::Consuming));
        update_faults(&status, &[], &[fault]);
        assert_eq!(state(&faulty), faulty_state);
        update_faults(&status, &[], &[]);
        assert_eq!(state(&faulty), SourceState::Consuming);
    }
}
