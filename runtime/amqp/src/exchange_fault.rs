//! The fault of an exchange that has another type than its stream needs. Such an exchange routes the events of every
//! partition wrongly, so the fault concerns all partitions of the stream. In each process, one consumer at a time
//! checks the exchange, and reports the fault to the other consumers of the stream.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use ordain_util::source_health::{RoutingFault, SourceHealth};
use ordain_util::wait::shortened;

/// Minimum time between two checks by consumers of other partitions than 0. This time is shorter than the interval at
/// which a consumer calls [`ExchangeFault::begin_due_check`]. Each call therefore finds that a check is due, unless
/// another consumer of the process has checked the exchange meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(45);

/// The fault of a stream's exchange. All consumers of the stream in a process share this value. The consumer of
/// partition 0 checks the exchange. In a process without partition 0, the consumers of the other partitions take turns.
#[derive(Debug, Default)]
pub struct ExchangeFault {
    /// The description of the fault; `None` if the exchange has the right type according to the newest check.
    fault: watch::Sender<Option<String>>,
    checked_at: Mutex<Option<Instant>>,
}

impl ExchangeFault {
    /// Returns whether a consumer of another partition than 0 must check the exchange at the time `now`. The check is
    /// due if no consumer of this process has begun a check within the previous `CHECK_INTERVAL`. If the check is due,
    /// this method also records `now` as the beginning of the check.
    pub(super) fn begin_due_check(&self, now: Instant) -> bool {
        let mut checked_at = self.checked_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = checked_at.is_none_or(|checked_at| {
            now.saturating_duration_since(checked_at) >= shortened(CHECK_INTERVAL)
        });
        if is_due {
            *checked_at = Some(now);
        }
        is_due
    }

    pub(super) fn begin_check(&self, now: Instant) {
        *self.checked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Sets the result of a check. Returns whether the exchange had no fault before and has a fault now.
    pub(super) fn set(&self, fault: Option<String>) -> bool {
        let is_faulty = fault.is_some();
        let before = self.fault.send_replace(fault);
        is_faulty && before.is_none()
    }

    /// Shows the fault, and each change of the fault, in the state of a source. Never returns.
    pub(super) async fn apply_to(&self, health: &SourceHealth) {
        let mut fault = self.fault.subscribe();
        loop {
            let reason = fault.borrow_and_update().clone();
            health.set_routing_fault(RoutingFault::OtherExchangeType, reason);
            if fault.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use ordain_util::source_health::SourceState;

    use super::*;

    #[test]
    fn fault_concerns_the_sources_of_all_partitions() {
        let fault = ExchangeFault::default();
        let sources = [SourceHealth::default(), SourceHealth::default()];
        for health in &sources {
            health.set(SourceState::Consuming);
        }
        let mut updates = sources.each_ref().map(|health| Box::pin(fault.apply_to(health)));
        let mut context = Context::from_waker(Waker::noop());
        let mut after = |reason: Option<&str>| {
            let is_new = fault.set(reason.map(str::to_owned));
            for update in &mut updates {
                assert_eq!(update.as_mut().poll(&mut context), Poll::Pending);
            }
            let is_consuming = |health: &SourceHealth| health.state() == SourceState::Consuming;
            (is_new, sources.each_ref().map(is_consuming))
        };
        assert_eq!(after(Some("topic")), (true, [false, false]));
        assert_eq!(after(Some("topic")), (false, [false, false]));
        assert_eq!(after(None), (false, [true, true]));
    }

    #[test]
    fn source_that_starts_later_has_the_fault() {
        let fault = ExchangeFault::default();
        fault.set(Some("topic".to_owned()));
        let health = SourceHealth::default();
        health.set(SourceState::Consuming);
        let mut update = pin!(fault.apply_to(&health));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(update.as_mut().poll(&mut context), Poll::Pending);
        let kind = RoutingFault::OtherExchangeType;
        let reason = "topic".to_owned();
        assert_eq!(health.state(), SourceState::RoutingFault { fault: kind, reason });
    }

    #[test]
    fn other_partitions_check_only_if_no_check_was_made_recently() {
        let fault = ExchangeFault::default();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        assert!(fault.begin_due_check(at(0)));
        assert!(!fault.begin_due_check(at(1)));
        assert!(fault.begin_due_check(at(60)));
        fault.begin_check(at(110));
        assert!(!fault.begin_due_check(at(120)));
    }
}
