//! Determines when the driver must report to the sequencer that the source of the partition has become unavailable, or
//! available. A source that is unavailable may hold missing events.

use std::sync::Arc;

use ordain_util::source_health::SourceHealth;

pub(super) struct SourceAvailability {
    health: Arc<SourceHealth>,
    /// The number of interruptions of the source at the newest check.
    interruptions: u64,
    is_unavailable: bool,
}

impl SourceAvailability {
    pub(super) fn new(health: Arc<SourceHealth>) -> Self {
        Self { health, interruptions: 0, is_unavailable: false }
    }

    /// Checks the source. Returns the reports for the sequencer, in order: `true` if the source has become unavailable,
    /// `false` if it has become available. If an interruption has begun and ended since the previous check, returns
    /// `true` and then `false`. `is_broker_unavailable` states whether the inbox of the partition waits for the broker.
    pub(super) fn check(
        &mut self,
        is_broker_unavailable: bool,
    ) -> impl Iterator<Item = bool> + use<> {
        let interruptions = self.health.interruptions();
        let was_interrupted = interruptions != self.interruptions;
        self.interruptions = interruptions;
        let is_unavailable = is_broker_unavailable || self.health.is_interrupted();
        let begins = !self.is_unavailable && (is_unavailable || was_interrupted);
        let ends = !is_unavailable && (self.is_unavailable || was_interrupted);
        self.is_unavailable = is_unavailable;
        [begins.then_some(true), ends.then_some(false)].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_util::source_health::SourceState;

    #[test]
    fn each_change_is_reported_once() {
        let health = Arc::<SourceHealth>::default();
        let mut availability = SourceAvailability::new(Arc::clone(&health));
        let mut check = |is_broker_unavailable: bool| -> Vec<bool> {
            availability.check(is_broker_unavailable).collect()
        };
        let retrying = || SourceState::Retrying { reason: "no answer".to_owned() };
        health.set(SourceState::Consuming);
        assert!(check(false).is_empty());
        health.set(retrying());
        assert_eq!(check(false), [true]);
        assert!(check(false).is_empty());
        // The inbox still waits for the broker after the source has become available.
        health.set(SourceState::Consuming);
        assert!(check(true).is_empty());
        assert_eq!(check(false), [false]);
        assert_eq!(check(true), [true]);
        assert_eq!(check(false), [false]);
    }

    #[test]
    fn interruption_between_two_checks_is_reported() {
        let health = Arc::<SourceHealth>::default();
        let mut availability = SourceAvailability::new(Arc::clone(&health));
        health.set(SourceState::Retrying { reason: "not subscribed yet".to_owned() });
        health.set(SourceState::Consuming);
        assert_eq!(availability.check(false).collect::<Vec<_>>(), [true, false]);
        assert_eq!(availability.check(false).count(), 0);
    }
}
