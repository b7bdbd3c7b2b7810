//! Watches whether the broker refuses the topology (exchange, queues and bindings) of a stream to this process, and
//! publishes the refusals in the membership. While another process can consume a refused stream, this process gets no
//! partitions of the stream (see `share`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;

use super::broker::{StreamTopology, report_prepared};
use crate::membership::Membership;
use ordain_amqp::{BrokerEndpoint, BrokerError, PreparedTopology, TopologyGate};
use ordain_config::LoadedConfig;
use ordain_util::backoff::Backoff;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::wait::shortened;

/// Delays between preparations of a refused stream.
const REFUSED_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
const REFUSED_LOG_INTERVAL: Duration = Duration::from_secs(30);
/// Delays after a preparation that found no refusal, although the broker had refused a consumer of the stream. Without
/// these delays, each refusal of a consumer would start a preparation, and each preparation makes many requests.
const ACCEPTED_BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(5));
/// Time without a refused consumer after which `ACCEPTED_BACKOFF` restarts at its shortest delay. A consumer that the
/// broker refuses subscribes again, and reports the next refusal, after a shorter time.
const CALM_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Returns the reason if the broker refuses a stream to this process. `error` is the error of the preparation. For a
/// new stream, each error counts as a refusal, because the stream must not consume its queues yet. A known stream is
/// refused only if the user of this process lacks a right. All other errors of a known stream concern an object of the
/// broker. All processes of the stream have the same error, so the consumers retry.
pub(super) fn refusal(error: Option<&BrokerError>, is_known: bool) -> Option<String> {
    error.filter(|error| is_refusal(error, is_known)).map(ToString::to_string)
}

fn is_refusal(error: &BrokerError, is_known: bool) -> bool {
    !is_known || error.is_access_refused()
}

pub(super) fn refused_streams(monitors: &[RefusalMonitor]) -> BTreeSet<String> {
    let refused = monitors.iter().filter(|monitor| monitor.refusal.is_some());
    refused.map(|monitor| monitor.stream.name().to_owned()).collect()
}

/// Runs the monitors of all streams. Never returns.
pub(super) async fn watch(
    loaded: &LoadedConfig,
    broker: Option<&Arc<BrokerEndpoint>>,
    monitors: Vec<RefusalMonitor>,
    membership: &Membership,
) {
    if let Some(broker) = broker {
        join_all(monitors.into_iter().map(|monitor| monitor.run(loaded, broker, membership))).await;
    }
    std::future::pending::<()>().await;
}

pub(super) struct RefusalMonitor {
    stream: StreamTopology,
    /// `None` if the broker accepts the stream.
    refusal: Option<String>,
    gate: TopologyGate,
    /// Closes the gate with a reason, and opens it with `None`.
    gate_control: watch::Sender<Option<String>>,
}

impl RefusalMonitor {
    /// Creates the monitor of a prepared stream, and the gate of its consumers. The gate is closed if the broker
    /// refuses a new stream. The consumers of a known stream retry, so its gate is open.
    pub(super) fn new(stream: StreamTopology, refusal: Option<String>) -> (Self, TopologyGate) {
        let closed = refusal.clone().filter(|_| !stream.is_known);
        let (gate_control, gate) = TopologyGate::new(closed);
        (Self { stream, refusal, gate: gate.clone(), gate_control }, gate)
    }

    /// Repeats the preparation while the broker refuses the stream. While the broker accepts the stream, waits for the
    /// next refusal. Publishes each of these changes in the membership.
    async fn run(
        mut self,
        loaded: &LoadedConfig,
        broker: &BrokerEndpoint,
        membership: &Membership,
    ) {
        loop {
            if let Some(reason) = self.refusal.take() {
                membership.announce_refused(self.stream.name());
                self.retry(reason, loaded, broker).await;
                membership.announce_accepted(self.stream.name());
            }
            self.stream.is_known = true;
            self.refusal = Some(self.wait_refused(loaded, broker).await);
        }
    }

    /// Repeats the preparation until the broker accepts the topology, and then opens the gate. Meanwhile, logs the
    /// refusal at intervals.
    async fn retry(&mut self, mut reason: String, loaded: &LoadedConfig, broker: &BrokerEndpoint) {
        let was_known = self.stream.is_known;
        let mut backoff = REFUSED_BACKOFF;
        let mut throttle = LogThrottle::new(shortened(REFUSED_LOG_INTERVAL));
        loop {
            if throttle.allow() {
                self.log_refusal(&reason);
            }
            tokio::time::sleep(shortened(backoff.next_jittered())).await;
            if !self.stream.is_known {
                // The broker may have accepted the stream for another process. If the store does not answer, the
                // preparation fails too.
                self.stream.is_known = self.stream.has_run().await.unwrap_or(false);
            }
            let is_known = self.stream.is_known;
            let name = self.stream.name();
            // An unavailable queue hides whether the user still lacks a right.
            let is_refused = |error: &BrokerError| {
                is_refusal(error, is_known)
                    || was_known && matches!(error, BrokerError::Unavailable(_))
            };
            reason = match self.stream.prepare_in_time(broker).await {
                Err(error) => error.to_string(),
                Ok(PreparedTopology { error: Some(error), .. }) if is_refused(&error) => {
                    error.to_string()
                }
                Ok(prepared) => {
                    report_prepared(loaded, broker, name, &prepared, is_known);
                    let kind = if is_known { "stream" } else { "new stream" };
                    tracing::info!(stream = name, "{kind} accepted by the broker");
                    self.gate_control.send_replace(None);
                    return;
                }
            };
            self.gate_control.send_replace(Some(reason.clone()).filter(|_| !is_known));
        }
    }

    fn log_refusal(&self, reason: &str) {
        let stream = self.stream.name();
        if self.stream.is_known {
            tracing::warn!(
                stream,
                "stream refused to this process by the broker: {reason}; while another process can consume the \
                 stream, this process takes none of its partitions. Ordain tries again"
            );
        } else {
            tracing::error!(
                stream,
                "new stream not consumed by this process: {reason}; the other streams continue. Ordain tries again"
            );
        }
    }

    /// Waits until the broker refuses the running stream. First, a consumer of the stream reports a missing right. If
    /// each preparation then fails because of a missing right, for at least the duration of a lease, the stream counts
    /// as refused. Returns the reason. The duration of a lease is necessary because all processes may lack a right for
    /// a short time, for example while the broker's login backend is unavailable. In this case, no partition should
    /// move.
    async fn wait_refused(&self, loaded: &LoadedConfig, broker: &BrokerEndpoint) -> String {
        let lease = Duration::from_millis(loaded.config.runtime.lease.0);
        let mut pause = ACCEPTED_BACKOFF;
        loop {
            let calm_since = Instant::now();
            self.gate.wait_refused_consumer().await;
            if calm_since.elapsed() >= shortened(CALM_TIME_LIMIT) {
                pause.reset();
            }
            if let Some(reason) = self.lasting_refusal(lease, broker).await {
                return reason;
            }
            tokio::time::sleep(shortened(pause.next_delay())).await;
        }
    }

    /// Repeats the preparation until it succeeds, or until the broker has refused the stream for the duration of a
    /// lease. If the broker has refused the stream, returns the reason. An error of the store, or an unavailable queue,
    /// counts neither as a success nor as a refusal.
    async fn lasting_refusal(&self, lease: Duration, broker: &BrokerEndpoint) -> Option<String> {
        let since = Instant::now();
        let mut backoff = REFUSED_BACKOFF;
        loop {
            let prepared = self.stream.prepare_in_time(broker).await;
            if let Ok(PreparedTopology { error, .. }) = prepared
                && !matches!(error, Some(BrokerError::Unavailable(_)))
            {
                let reason = refusal(error.as_ref(), self.stream.is_known)?;
                if since.elapsed() >= lease {
                    return Some(reason);
                }
            }
            tokio::time::sleep(shortened(backoff.next_jittered())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_amqp::RefusalCause;

    use super::*;

    #[test]
    fn known_stream_is_refused_only_without_a_right() {
        let refused = |cause| BrokerError::Refused { cause, reason: "words".to_owned() };
        let unavailable = BrokerError::Unavailable("words".to_owned());
        for (error, is_refused) in [
            (refused(RefusalCause::Access), true),
            (refused(RefusalCause::OtherForm), false),
            (refused(RefusalCause::Limit), false),
            (refused(RefusalCause::ForeignNotFound), false),
            (refused(RefusalCause::Unsupported), false),
            (unavailable, false),
        ] {
            assert_eq!(refusal(Some(&error), true).is_some(), is_refused, "{error:?}");
            let reason = refusal(Some(&error), false);
            assert_eq!(reason.as_deref(), Some("words"), "a new stream: {error:?}");
        }
        for is_known in [true, false] {
            assert_eq!(refusal(None, is_known), None);
        }
    }
}
