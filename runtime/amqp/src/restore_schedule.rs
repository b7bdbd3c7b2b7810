//! Decides when a consumer next restores the topology of a stream, and when a missing binding is an error. The queue or
//! exchange of a binding is sometimes missing only for a moment. The reason: after an operator has removed the exchange
//! or rebuilt the broker, the consumers and other programs declare their queues and exchanges at different times.

use std::time::{Duration, Instant};

use super::consumer_options::ConsumerOptions;
use super::queue_monitor::record_change;
use super::topology::{MissingBinding, TopologyChange};
use ordain_util::backoff::Backoff;
use ordain_util::wait::shortened;

/// Interval between two restorations of a complete topology, and between two errors about a missing binding.
const RESTORE_INTERVAL: Duration = Duration::from_mins(1);
const INCOMPLETE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// Time after which a missing binding is an error. This time applies if Ordain never declares the exchange that the
/// binding lacks. About three restorations run within this time.
const FOREIGN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a missing binding is an error. This time applies if another consumer of the stream declares the
/// queue or exchange that the binding lacks. That consumer detects a missing exchange only at its next restoration, so
/// this time is longer than `RESTORE_INTERVAL`.
const OWN_TIMEOUT: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub(super) struct RestoreSchedule {
    backoff: Backoff,
    /// The time from which the missing binding is an error; `None` if the newest restoration was complete.
    overdue_at: Option<Instant>,
}

impl RestoreSchedule {
    pub(super) fn new() -> Self {
        Self { backoff: INCOMPLETE_BACKOFF, overdue_at: None }
    }

    /// Returns the delay before the next restoration. `missing` is the binding that the newest restoration could not
    /// declare. Logs and counts this binding if it has been missing for too long.
    pub(super) fn next_delay(
        &mut self,
        options: &ConsumerOptions,
        missing: Option<MissingBinding>,
    ) -> Duration {
        let Some(MissingBinding { reason, is_own }) = missing else {
            *self = Self::new();
            return shortened(RESTORE_INTERVAL);
        };
        if self.is_overdue(is_own, Instant::now()) {
            record_change(options, &TopologyChange::Refused(reason));
        }
        shortened(self.backoff.next_jittered())
    }

    /// Returns whether a binding that is missing at `now` has been missing for too long. After `true`, returns `false`
    /// for the time `RESTORE_INTERVAL`.
    fn is_overdue(&mut self, is_own: bool, now: Instant) -> bool {
        let limit = if is_own { OWN_TIMEOUT } else { FOREIGN_TIMEOUT };
        let is_overdue = now >= *self.overdue_at.get_or_insert(now + shortened(limit));
        if is_overdue {
            self.overdue_at = Some(now + shortened(RESTORE_INTERVAL));
        }
        is_overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times at which a missing binding is an error, in seconds after the first restoration that lacked the
    /// binding. Simulates one restoration in each second of three minutes.
    fn overdue_seconds(is_own: bool) -> Vec<u64> {
        let mut schedule = RestoreSchedule::new();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        (0..180).filter(|second| schedule.is_overdue(is_own, at(*second))).collect()
    }

    #[test]
    fn binding_without_a_foreign_exchange_is_an_error_after_a_few_seconds_and_then_every_minute() {
        assert_eq!(overdue_seconds(false), [5, 65, 125]);
    }

    #[test]
    fn binding_without_an_own_exchange_is_an_error_only_after_two_minutes() {
        assert_eq!(overdue_seconds(true), [120]);
    }
}
