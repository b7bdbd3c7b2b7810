//! Finds out whether a channel must be replaced because the broker has refused messages on it.
//!
//! If a quorum queue is full and has `overflow = "reject-publish"`, RabbitMQ refuses all later messages of the channel
//! to this queue until the queue becomes shorter. If an operator removes the limit of the queue instead, RabbitMQ still
//! refuses the messages of the old channel, but accepts the messages of a new channel.

use std::time::{Duration, Instant};

use super::confirm_tracker::ConfirmResult;
use super::retry_queue::RetryMode;
use ordain_util::wait::shortened;

/// The time from the first refusal on a channel to the first probe, and the minimum time between two probes.
const PROBE_DELAY: Duration = Duration::from_secs(30);
/// If the broker has refused no message for this time, the refusals have ended. This time is longer than the delay
/// after which a sink retries a refused message.
const CALM_TIME_LIMIT: Duration = Duration::from_secs(20);
/// A channel is outdated after this time from its first refusal, even if the broker has accepted no probe. The probes
/// may all be for a queue that is still full, while the messages for another queue would be accepted on a new channel.
const REFUSAL_TIME_LIMIT: Duration = Duration::from_mins(5);

/// The refusals of one channel. From time to time, a refused message is the *probe*: the sink retries this message in
/// isolation (on another connection). If the broker accepts the probe, the channel is outdated.
#[derive(Debug, Default)]
pub(super) struct RefusalProbe {
    refusals: Option<Refusals>,
    /// The position of the present probe in the order of the sink.
    probe: Option<u64>,
    is_channel_outdated: bool,
}

/// The times of successive refusals, each less than [`CALM_TIME_LIMIT`] after the previous one.
#[derive(Debug, Clone, Copy)]
struct Refusals {
    first: Instant,
    last: Instant,
    /// The time of the newest probe; before the first probe, the time of the first refusal.
    probed: Instant,
}

impl RefusalProbe {
    /// Returns how the sink retries a message that the broker has not accepted. `order` is the position of the message
    /// in the order of the sink. If a probe is due, the message becomes the probe, and the sink retries it in
    /// isolation.
    pub(super) fn retry_mode(
        &mut self,
        order: u64,
        result: ConfirmResult,
        now: Instant,
    ) -> RetryMode {
        if result != ConfirmResult::Nacked {
            return RetryMode::Pipelined;
        }
        let refusals = self
            .refusals
            .take_if(|refusals| now.duration_since(refusals.last) < shortened(CALM_TIME_LIMIT))
            .unwrap_or(Refusals { first: now, last: now, probed: now });
        let is_refused_probe = self.probe.take_if(|probe| *probe == order).is_some();
        let is_due = now.duration_since(refusals.probed) >= shortened(PROBE_DELAY);
        // Another message is the next probe, because the queue of this message may still be full.
        let is_probe = is_due && !is_refused_probe;
        let probed = if is_probe || is_refused_probe { now } else { refusals.probed };
        self.refusals = Some(Refusals { last: now, probed, ..refusals });
        self.is_channel_outdated |=
            now.duration_since(refusals.first) >= shortened(REFUSAL_TIME_LIMIT);
        if !is_probe {
            return RetryMode::Pipelined;
        }
        self.probe = Some(order);
        RetryMode::Isolated
    }

    pub(super) fn accept_isolated(&mut self, order: u64) {
        self.is_channel_outdated |= self.probe == Some(order);
    }

    pub(super) fn is_channel_outdated(&self) -> bool {
        self.is_channel_outdated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nacked(probe: &mut RefusalProbe, start: Instant, seconds: u64, order: u64) -> RetryMode {
        let now = start + Duration::from_secs(seconds);
        probe.retry_mode(order, ConfirmResult::Nacked, now)
    }

    #[test]
    fn accepted_probe_makes_the_channel_outdated() {
        let start = Instant::now();
        let mut probe = RefusalProbe::default();
        for seconds in [0, 10, 20, 29] {
            assert_eq!(nacked(&mut probe, start, seconds, 1), RetryMode::Pipelined);
        }
        let returned = probe.retry_mode(2, ConfirmResult::Returned, start + PROBE_DELAY);
        assert_eq!(returned, RetryMode::Pipelined);
        assert_eq!(nacked(&mut probe, start, 30, 1), RetryMode::Isolated);
        // Only one message at a time is the probe.
        assert_eq!(nacked(&mut probe, start, 40, 2), RetryMode::Pipelined);
        probe.accept_isolated(2);
        assert!(!probe.is_channel_outdated());
        probe.accept_isolated(1);
        assert!(probe.is_channel_outdated());
    }

    #[test]
    fn another_message_follows_a_refused_probe() {
        let start = Instant::now();
        let mut probe = RefusalProbe::default();
        for seconds in [0, 15, 29] {
            assert_eq!(nacked(&mut probe, start, seconds, 1), RetryMode::Pipelined);
        }
        assert_eq!(nacked(&mut probe, start, 30, 1), RetryMode::Isolated);
        assert_eq!(nacked(&mut probe, start, 45, 2), RetryMode::Pipelined);
        assert_eq!(nacked(&mut probe, start, 60, 1), RetryMode::Pipelined);
        assert_eq!(nacked(&mut probe, start, 75, 2), RetryMode::Pipelined);
        assert_eq!(nacked(&mut probe, start, 90, 2), RetryMode::Isolated);
    }

    /// Single refusals with long pauses between them must not delay a message. Refusals that continue for a long time
    /// must end the use of the channel, even if no probe is accepted.
    #[test]
    fn only_lasting_refusals_count() {
        let start = Instant::now();
        let mut probe = RefusalProbe::default();
        for seconds in (0..3_600).step_by(20) {
            assert_eq!(nacked(&mut probe, start, seconds, seconds), RetryMode::Pipelined);
        }
        assert!(!probe.is_channel_outdated());
        for seconds in (3_600..3_900).step_by(10) {
            nacked(&mut probe, start, seconds, 1);
            assert!(!probe.is_channel_outdated(), "{seconds}");
        }
        nacked(&mut probe, start, 3_900, 1);
        assert!(probe.is_channel_outdated());
    }
}
