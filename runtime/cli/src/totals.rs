//! Logs the totals of a running process, so that the log distinguishes a busy process from an idle process.

use std::time::Duration;

use ordain_core::{LaneState, Stats};

use ordain_engine::run::RunStatus;

/// Interval between two log lines with totals: short enough to draw a graph from the log, long enough to keep an
/// archived log small.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Logs the totals once per minute if they changed, until the caller drops the future.
pub(crate) async fn log_changes(figures: &RunStatus) -> std::convert::Infallible {
    let mut logged = Stats::default();
    loop {
        tokio::time::sleep(LOG_INTERVAL).await;
        let now = figures.total_stats();
        if differs(&now, &logged) {
            log("running: totals since the start", &now);
            logged = now;
        }
    }
}

/// Logs totals. `when` is the message of the log line.
pub(crate) fn log(when: &str, stats: &Stats) {
    tracing::info!(
        delivered = stats.delivered,
        settled = stats.settled,
        other_types = stats.other_types,
        duplicates = stats.duplicates,
        dead = stats.dead_total(),
        failures = stats.failures,
        messages = stats.messages,
        parked_in_memory = stats.lanes_in(LaneState::Parked),
        "{when}"
    );
}

/// Returns whether the deliveries, settled events, events of other types, dead letters, failures or messages have
/// changed.
fn differs(now: &Stats, logged: &Stats) -> bool {
    let counters = |stats: &Stats| {
        let Stats { delivered, settled, other_types, failures, messages, .. } = *stats;
        [delivered, settled, other_types, stats.dead_total(), failures, messages]
    };
    counters(now) != counters(logged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_minute_is_not_logged() {
        let one = Stats { delivered: 1, lanes: 1, ..Stats::default() };
        assert!(differs(&one, &Stats::default()));
        assert!(!differs(&Stats { lanes: 0, stale: 1, ..one }, &one));
    }
}
