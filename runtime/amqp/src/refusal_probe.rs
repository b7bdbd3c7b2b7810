//! Finds out whether a channel must be replaced because the broker has refused messages on it.
//!
//! If a quorum queue is full and has `overflow = "reject-publish"`, RabbitMQ refuses all later messages of the channel
//! to this queue until the queue becomes shorter. If an operator removes the limit of the queue instead, RabbitMQ still
//! refuses the messages of the old channel, but accepts the messages of a new channel.

use std::time::{Duration, Instant};

use super::confirm_tracker::ConfirmResult;
use super::retry_queue::RetryMode;
use ordain_util::wait::shortened;

/// The time for which the broker must have refused messages of a channel before a probe, and the minimum time between
/// two probes.
const PROBE_DELAY: Duration = Duration::from_secs(30);

/// The refusals of one channel. From time to time, a refused message is the *probe*: the sink retries this message in
/// isolation (on another connection). If the broker accepts the probe, the channel is outdated.
#[derive(Debug, Default)]
pub(super) struct RefusalProbe {
    /// The time of the first refusal on the channel, or of the last probe if that is later; `None` if the broker has
    /// refused no message.
    refused_since: Option<Instant>,
    /// The position of the present probe in the order of the sink.
    probe: Option<u64>,
    is_channel_outdated: bool,
}

impl RefusalProbe {
    /// Returns how to retry a message that the broker has not accepted. `order` is the position of the message in the
    /// order of the sink. If a probe is due, the message becomes the probe.
    pub(super) fn retry_mode(
        &mut self,
        order: u64,
        result: ConfirmResult,
        now: Instant,
    ) -> RetryMode {
        if result != ConfirmResult::Nacked {
            return RetryMode::Pipelined;
        }
        let since = *self.refused_since.get_or_insert(now);
        if now.duration_since(since) < shortened(PROBE_DELAY) {
            return RetryMode::Pipelined;
        }
        self.refused_since = Some(now);
        self.probe = Some(order);
        RetryMode::Isolated
    }

    /// Records that the broker has accepted a message in an isolated retry.
    pub(super) fn accept_isolated(&mut self, order: u64) {
        self.is_channel_outdated |= self.probe == Some(order);
    }

    /// Returns whether the broker refuses messages of the channel that it accepts on another channel.
    pub(super) fn is_channel_outdated(&self) -> bool {
        self.is_channel_outdated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_probe_makes_the_channel_outdated() {
        let start = Instant::now();
        let mut probe = RefusalProbe::default();
        let mut mode = |seconds, order, result| {
            probe.retry_mode(order, result, start + Duration::from_secs(seconds))
        };
        assert_eq!(mode(0, 1, ConfirmResult::Nacked), RetryMode::Pipelined);
        assert_eq!(mode(29, 2, ConfirmResult::Nacked), RetryMode::Pipelined);
        assert_eq!(mode(30, 3, ConfirmResult::Returned), RetryMode::Pipelined);
        assert_eq!(mode(30, 4, ConfirmResult::Nacked), RetryMode::Isolated);
        // Only one message at a time is the probe.
        assert_eq!(mode(31, 5, ConfirmResult::Nacked), RetryMode::Pipelined);
        // The broker has refused the probe in isolation too.
        assert_eq!(mode(60, 4, ConfirmResult::Nacked), RetryMode::Isolated);
        probe.accept_isolated(5);
        assert!(!probe.is_channel_outdated());
        probe.accept_isolated(4);
        assert!(probe.is_channel_outdated());
    }
}
