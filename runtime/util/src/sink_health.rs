//! Shows whether a sink can publish its messages. The sink writes the state; metrics and the readiness of the process
//! read it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The current state of a sink, and the streams that have published messages to the sink in this process.
#[derive(Debug, Default)]
pub struct SinkHealth(Mutex<SinkState>);

#[derive(Debug, Default)]
struct SinkState {
    /// The time when the server began to refuse the messages of the sink, or when the file of the sink became
    /// unwritable. `None` if the sink can publish.
    refused_at: Option<(Instant, SystemTime)>,
    streams: BTreeSet<Arc<str>>,
    /// The number of messages that the sink has dropped because no queue accepted them.
    dropped: u64,
}

impl SinkHealth {
    fn lock(&self) -> MutexGuard<'_, SinkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the sink cannot publish its messages, or can publish them again. A sink cannot publish if its server
    /// refuses the messages, or if its file cannot be written.
    pub fn set_refused(&self, is_refused: bool) {
        let mut state = self.lock();
        if !is_refused {
            state.refused_at = None;
        } else if state.refused_at.is_none() {
            state.refused_at = Some((Instant::now(), SystemTime::now()));
        }
    }

    /// Records that a stream publishes to the sink.
    pub fn add_stream(&self, stream: &Arc<str>) {
        self.lock().streams.insert(Arc::clone(stream));
    }

    /// Records that the sink has dropped a message, because no queue accepted the message.
    pub fn add_dropped(&self) {
        self.lock().dropped += 1;
    }

    /// Returns the number of messages that the sink has dropped in this process.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Returns whether the sink can publish its messages, according to the newest attempt.
    pub fn is_accepted(&self) -> bool {
        self.lock().refused_at.is_none()
    }

    /// If the sink has been unable to publish its messages for at least `period`, returns the time when this failure
    /// began. Otherwise returns `None`.
    pub fn refused_since(&self, period: Duration) -> Option<SystemTime> {
        let (began, since) = self.lock().refused_at?;
        (began.elapsed() >= period).then_some(since)
    }

    /// Returns the streams that have published messages to the sink in this process.
    pub fn streams(&self) -> BTreeSet<Arc<str>> {
        self.lock().streams.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_counts_from_its_first_error() {
        let health = SinkHealth::default();
        assert_eq!((health.is_accepted(), health.refused_since(Duration::ZERO)), (true, None));
        health.set_refused(true);
        let since = health.refused_since(Duration::ZERO);
        assert!(since.is_some() && !health.is_accepted());
        assert_eq!(health.refused_since(Duration::from_hours(1)), None);
        health.set_refused(true);
        assert_eq!(health.refused_since(Duration::ZERO), since);
        health.set_refused(false);
        assert_eq!((health.is_accepted(), health.refused_since(Duration::ZERO)), (true, None));
    }
}
