//! What a running process has done so far, in its log: a process that says nothing for a day cannot
//! be told from one that does nothing.

use std::time::Duration;

use ordain_core::{LaneState, Stats};

use ordain_engine::run::Figures;

/// Often enough for a graph, rarely enough for a log that is kept.
const EVERY: Duration = Duration::from_mins(1);

/// Logs the totals once a minute in which something happened, until it is dropped.
pub(crate) async fn tell(figures: &Figures) -> std::convert::Infallible {
    let mut told = Stats::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let now = figures.sum();
        if differs(&now, &told) {
            log("so far", &now);
            told = now;
        }
    }
}

/// Logs totals.
pub(crate) fn log(when: &str, stats: &Stats) {
    tracing::info!(
        delivered = stats.delivered,
        settled = stats.settled,
        duplicates = stats.duplicates,
        dead = stats.dead_total(),
        failures = stats.failures,
        messages = stats.messages,
        parked_in_memory = stats.lanes_in(LaneState::Parked),
        "{when}"
    );
}

/// Whether anything has happened that the log tells.
fn differs(now: &Stats, told: &Stats) -> bool {
    let counters = |stats: &Stats| {
        [stats.delivered, stats.settled, stats.dead_total(), stats.failures, stats.messages]
    };
    counters(now) != counters(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_minute_is_not_told() {
        let one = Stats { delivered: 1, lanes: 1, ..Stats::default() };
        assert!(differs(&one, &Stats::default()));
        assert!(!differs(&Stats { lanes: 0, stale: 1, ..one }, &one));
    }
}
