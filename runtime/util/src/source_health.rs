//! Shows whether a source receives its events. The source writes the state; metrics and status reports read it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

/// The state of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SourceState {
    /// This process does not run the source.
    #[default]
    Inactive,
    /// The source can deliver events. The source keeps this state while there are no events to deliver.
    Consuming,
    /// The source does not receive events now, and retries.
    Retrying {
        /// The newest error.
        reason: String,
    },
    /// The source does not receive events now, because its server refuses the login. The source retries.
    LoginRefused {
        /// The newest error.
        reason: String,
        /// The server's own words, without names and addresses. Empty if these words may contain names or addresses.
        words: String,
    },
    /// The source is ready to deliver events, but its server does not route the events to the source.
    RoutingFault {
        /// The kind of the fault.
        fault: RoutingFault,
        /// The description of the fault, and the next step.
        reason: String,
    },
    /// The source cannot read its messages, and leaves them in the server until an operator corrects the settings of
    /// the source or removes the messages.
    Unreadable {
        /// The reason, and the next step.
        reason: String,
        /// False while the source holds the messages back and waits for more messages. True if the source receives
        /// nothing until an operator resumes the source, or starts a process with other settings.
        is_stopped: bool,
    },
    /// The source receives no events until an operator acts.
    Stopped {
        /// The reason, and the next step.
        reason: String,
    },
}

/// A kind of fault that keeps a server from routing events to a source. If a source has several faults, the first of
/// their kinds, in the order of this enum, determines the state of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoutingFault {
    /// The exchange of the stream has another type than the stream needs, or the server does not support this type.
    OtherExchangeType,
    /// No binding leads from the exchange of the stream to the queue.
    MissingBinding,
    /// The server delivers the messages of the queue to a consumer of another program.
    ForeignConsumer,
}

/// A period in which a source cannot deliver events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceInterruption {
    /// The present state of the source.
    pub state: SourceState,
    /// The time when the interruption began.
    pub since: SystemTime,
}

/// The current state of a source, and the number of its interruptions: the periods in which the source cannot deliver
/// events.
#[derive(Debug, Default)]
pub struct SourceHealth {
    record: Mutex<HealthRecord>,
    /// Notifies the source that an operator has resumed it.
    resumed: Notify,
}

#[derive(Debug, Default)]
struct HealthRecord {
    /// The state without regard to `routing_faults`.
    state: SourceState,
    /// The description of each fault that keeps the server from routing events to the source.
    routing_faults: BTreeMap<RoutingFault, String>,
    /// The time when the present interruption began; `None` without an interruption.
    interrupted_at: Option<(Instant, SystemTime)>,
    /// The number of interruptions so far.
    interruptions: u64,
}

impl HealthRecord {
    /// Returns the state. While the source is ready to deliver events, a routing fault determines the state.
    fn state(&self) -> SourceState {
        match (&self.state, self.routing_faults.first_key_value()) {
            (SourceState::Consuming, Some((fault, reason))) => {
                SourceState::RoutingFault { fault: *fault, reason: reason.clone() }
            }
            (state, _) => state.clone(),
        }
    }

    /// Begins or ends an interruption after a change of the state or of the routing faults.
    fn update_interruption(&mut self) {
        let is_interrupted = match self.state {
            SourceState::Inactive => false,
            SourceState::Consuming => !self.routing_faults.is_empty(),
            _ => true,
        };
        if !is_interrupted {
            self.interrupted_at = None;
        } else if self.interrupted_at.is_none() {
            self.interrupted_at = Some((Instant::now(), SystemTime::now()));
            self.interruptions += 1;
        }
    }
}

impl SourceHealth {
    fn lock(&self) -> MutexGuard<'_, HealthRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state. An interruption ends with [`SourceState::Inactive`] or, without a routing fault, with
    /// [`SourceState::Consuming`]. All other states begin an interruption, if none has begun.
    pub fn set(&self, state: SourceState) {
        let mut current = self.lock();
        current.state = state;
        current.update_interruption();
    }

    /// Resumes a source that has stopped because it cannot read its messages. Returns the reason of the stop; `None` if
    /// the source has not stopped for this reason.
    pub fn resume(&self) -> Option<String> {
        let mut current = self.lock();
        if !is_unreadable_stop(&current.state) {
            return None;
        }
        let resumed = SourceState::Retrying { reason: "resumed by an operator".to_owned() };
        let stopped = std::mem::replace(&mut current.state, resumed);
        drop(current);
        self.resumed.notify_waiters();
        match stopped {
            SourceState::Unreadable { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Waits while the source is stopped because it cannot read its messages. The wait ends when [`Self::resume`] is
    /// called, or when another state replaces the stop.
    pub async fn until_resumed(&self) {
        loop {
            let resumed = self.resumed.notified();
            if !is_unreadable_stop(&self.lock().state) {
                return;
            }
            resumed.await;
        }
    }

    /// Sets the description of a fault that keeps the server from routing events to the source. Removes the fault if
    /// `reason` is `None`. While the state is [`SourceState::Consuming`], a fault replaces the state by
    /// [`SourceState::RoutingFault`], and begins an interruption.
    pub fn set_routing_fault(&self, fault: RoutingFault, reason: Option<String>) {
        let mut current = self.lock();
        match reason {
            Some(reason) => current.routing_faults.insert(fault, reason),
            None => current.routing_faults.remove(&fault),
        };
        current.update_interruption();
    }

    /// Returns the state.
    pub fn state(&self) -> SourceState {
        self.lock().state()
    }

    /// Returns whether the source is ready to deliver events, even if its server routes events wrongly.
    pub fn is_ready(&self) -> bool {
        self.lock().state == SourceState::Consuming
    }

    /// Returns the present interruption if the source needs an operator, or has retried for at least `period`.
    /// Otherwise returns `None`.
    pub fn interruption(&self, period: Duration) -> Option<SourceInterruption> {
        let current = self.lock();
        let (began, since) = current.interrupted_at?;
        let needs_operator =
            matches!(current.state, SourceState::Stopped { .. } | SourceState::Unreadable { .. });
        (needs_operator || began.elapsed() >= period)
            .then(|| SourceInterruption { state: current.state(), since })
    }

    /// Returns whether the source is interrupted now.
    pub fn is_interrupted(&self) -> bool {
        self.lock().interrupted_at.is_some()
    }

    /// Returns the number of interruptions so far. This number also grows for an interruption that begins and ends
    /// between two calls of this method.
    pub fn interruptions(&self) -> u64 {
        self.lock().interruptions
    }
}

/// Returns whether a source has stopped because it cannot read its messages.
fn is_unreadable_stop(state: &SourceState) -> bool {
    matches!(state, SourceState::Unreadable { is_stopped: true, .. })
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn interruption_counts_from_its_first_error() {
        let health = SourceHealth::default();
        let retrying = |reason: &str| SourceState::Retrying { reason: reason.to_owned() };
        let state = |period| health.interruption(period).map(|interruption| interruption.state);
        assert_eq!(state(Duration::ZERO), None);
        health.set(retrying("a"));
        let since = health.interruption(Duration::ZERO).map(|interruption| interruption.since);
        assert_eq!(state(Duration::from_hours(1)), None);
        std::thread::sleep(Duration::from_millis(20));
        health.set(retrying("b"));
        assert_eq!(state(Duration::from_millis(20)), Some(retrying("b")));
        let refused = SourceState::LoginRefused { reason: "c".to_owned(), words: "d".to_owned() };
        health.set(refused.clone());
        let interruption = health.interruption(Duration::from_millis(20));
        assert_eq!(
            interruption.map(|found| (found.state, Some(found.since))),
            Some((refused, since))
        );
        assert!(health.is_interrupted());
        health.set(SourceState::Consuming);
        assert_eq!(state(Duration::ZERO), None);
        assert_eq!((health.is_interrupted(), health.interruptions()), (false, 1));
        let reason = "e".to_owned();
        for state_of_operator in [
            SourceState::Stopped { reason: reason.clone() },
            SourceState::Unreadable { reason, is_stopped: false },
        ] {
            health.set(state_of_operator.clone());
            assert_eq!(state(Duration::from_hours(1)), Some(state_of_operator));
        }
    }

    #[test]
    fn only_an_unreadable_stop_is_resumed() {
        let health = SourceHealth::default();
        let unreadable = |is_stopped| {
            let reason = "a".to_owned();
            health.set(SourceState::Unreadable { reason, is_stopped });
        };
        let mut context = Context::from_waker(Waker::noop());
        unreadable(false);
        assert_eq!(health.resume(), None);
        unreadable(true);
        let mut waiting = pin!(health.until_resumed());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(health.resume().as_deref(), Some("a"));
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
        assert_eq!((health.resume(), health.is_interrupted()), (None, true));
        // A resumption counts only for the stop before it.
        unreadable(true);
        let mut waiting = pin!(health.until_resumed());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        health.set(SourceState::Stopped { reason: "b".to_owned() });
        assert_eq!(health.resume(), None);
    }

    #[test]
    fn routing_fault_interrupts_a_source_that_is_ready() {
        let health = SourceHealth::default();
        let kind = RoutingFault::MissingBinding;
        health.set_routing_fault(kind, Some("a".to_owned()));
        assert_eq!((health.state(), health.is_interrupted()), (SourceState::Inactive, false));
        health.set(SourceState::Consuming);
        let fault = SourceState::RoutingFault { fault: kind, reason: "a".to_owned() };
        assert_eq!((health.state(), health.is_interrupted()), (fault.clone(), true));
        assert!(health.is_ready());
        // Another state replaces the fault, and the interruption continues.
        let retrying = SourceState::Retrying { reason: "b".to_owned() };
        health.set(retrying.clone());
        assert_eq!((health.state(), health.is_ready()), (retrying, false));
        health.set(SourceState::Consuming);
        assert_eq!((health.state(), health.interruptions()), (fault.clone(), 1));
        // The end of another kind of fault does not end this fault.
        health.set_routing_fault(RoutingFault::OtherExchangeType, None);
        assert_eq!((health.state(), health.is_interrupted()), (fault, true));
        health.set_routing_fault(kind, None);
        assert_eq!((health.state(), health.is_interrupted()), (SourceState::Consuming, false));
    }
}
