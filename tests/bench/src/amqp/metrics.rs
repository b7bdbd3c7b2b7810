//! The histogram in the host's `/metrics` for the time between the timestamp of an event and its commit.

use std::collections::BTreeMap;

use super::admin;
use super::latency::Latency;
use anyhow::Result;

/// The metric for the time between the timestamp of an event and its commit.
const NAME: &str = "ordain_publish_to_commit_seconds";

/// The cumulative number of events, by the upper bound of their bucket in ns. The bounds are integers, because the keys
/// of the map must have a total order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    /// Reads the metrics of a host that listens on this port of 127.0.0.1.
    pub(super) async fn scrape(port: u16) -> Result<Self> {
        Ok(Self::parse(&admin::get(port, "/metrics").await?))
    }

    /// Parses metrics in the text format of Prometheus, and adds up the counts of all streams.
    fn parse(text: &str) -> Self {
        let mut buckets = BTreeMap::new();
        for line in text.lines() {
            let Some((bound, count)) = bucket(line) else { continue };
            *buckets.entry(bound).or_default() += count;
        }
        Self(buckets)
    }

    /// Returns the percentiles of the events since an earlier scrape; `None` if no events were committed since then.
    pub(super) fn latency_since(&self, before: &Self) -> Option<Latency> {
        let buckets: Vec<(u64, u64)> = self
            .0
            .iter()
            .map(|(bound, count)| (*bound, count - before.0.get(bound).unwrap_or(&0)))
            .collect();
        let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0)?;
        let ms = |part: f64| interpolated(&buckets, all as f64 * part) / 1e6;
        Some(Latency { p50_ms: ms(0.50), p99_ms: ms(0.99) })
    }
}

/// Parses a line such as `NAME_bucket{stream="orders",le="0.005"} 12`.
fn bucket(line: &str) -> Option<(u64, u64)> {
    let (labels, count) = line.strip_prefix(NAME)?.strip_prefix("_bucket{")?.split_once("} ")?;
    let bound = labels.split(',').find_map(|label| label.strip_prefix("le=\""))?;
    let seconds: f64 = bound.trim_end_matches('"').parse().ok()?;
    // The conversion to `u64` turns the bound `+Inf` into the greatest number.
    Some(((seconds * 1e9) as u64, count.parse::<f64>().ok()? as u64))
}

/// Returns the time, in ns, below which `rank` events lie. Assumes that the events are spread evenly within a bucket.
/// If the rank is in the last bucket, which has no upper bound, the function returns the lower bound of this bucket.
fn interpolated(buckets: &[(u64, u64)], rank: f64) -> f64 {
    let at = buckets.partition_point(|(_, count)| (*count as f64) < rank);
    let (from, before) = at.checked_sub(1).map_or((0, 0), |at| buckets[at]);
    match buckets.get(at) {
        Some((to, count)) if *to < u64::MAX => {
            let part = (rank - before as f64) / (count - before) as f64;
            from as f64 + part * (to - from) as f64
        }
        _ => from as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(counts: [u64; 4]) -> String {
        let bounds = ["0.001", "0.01", "0.1", "+Inf"];
        let lines = bounds.iter().zip(counts).map(|(bound, count)| {
            format!("{NAME}_bucket{{stream=\"bench\",le=\"{bound}\"}} {count}\n")
        });
        let lines: String = lines.collect();
        format!("# TYPE {NAME} histogram\n{lines}{NAME}_sum{{stream=\"bench\"}} 1.5\nother 1\n")
    }

    #[test]
    fn percentiles_cover_events_between_two_scrapes() {
        let before = text([0, 10, 10, 10]);
        let after = text([0, 110, 209, 210]);
        let latency =
            Histogram::parse(&after).latency_since(&Histogram::parse(&before)).expect("200 events");
        assert!((latency.p50_ms - 10.0).abs() < 1e-9, "{latency:?}");
        // 98 of the 99 events between 10 and 100 ms are below this rank.
        assert!((latency.p99_ms - (10.0 + 90.0 * 98.0 / 99.0)).abs() < 1e-9, "{latency:?}");
    }

    #[test]
    fn events_beyond_the_last_bound_count_as_that_bound() {
        let none = Histogram::default();
        let latency = Histogram::parse(&text([0, 0, 0, 7])).latency_since(&none).expect("7 events");
        assert!((latency.p50_ms - 100.0).abs() < 1e-9, "{latency:?}");
    }

    #[test]
    fn latency_is_absent_without_events() {
        let same = Histogram::parse(&text([1, 2, 3, 3]));
        assert!(same.latency_since(&same).is_none());
        assert!(Histogram::parse("other 1\n").latency_since(&Histogram::default()).is_none());
    }
}
