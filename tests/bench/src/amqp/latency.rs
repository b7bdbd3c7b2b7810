//! The time from the publication of an event to the moment when a side is done with the event.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The bytes of an event's data that contain the time of publication, in µs since the Unix epoch. All bytes are 0 if
/// the data does not show this time.
pub(crate) const STAMP_BYTES: Range<usize> = 0..8;

/// Two percentiles of the latency of a side.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Returns the time of the clock that all processes of a run share, in µs since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock that shows a time before 1970 counts as 0.
    now.map_or(0, |now| now.as_micros() as u64)
}

/// The age of each event at the time when the side was done with the event. A list of all ages gives exact percentiles,
/// and needs little memory for a load of some seconds.
#[derive(Debug, Default)]
pub(crate) struct Ages(Vec<u32>);

impl Ages {
    /// Records the age of the event with this data. The side is done with this event now. Ignores data without a time
    /// of publication.
    pub(crate) fn done(&mut self, data: &[u8]) {
        let stamp =
            data.get(STAMP_BYTES).and_then(|stamp| stamp.try_into().ok()).map(u64::from_le_bytes);
        if let Some(stamp @ 1..) = stamp {
            self.0.push(u32::try_from(now_us().saturating_sub(stamp)).unwrap_or(u32::MAX));
        }
    }

    /// Returns the percentiles of all ages except the first `cold` ages, because the process was not yet warm when it
    /// executed these events. Returns `None` if there are no other ages.
    pub(crate) fn latency(mut self, cold: usize) -> Option<Latency> {
        self.0.drain(..cold.min(self.0.len()));
        self.0.sort_unstable();
        let last = self.0.len().checked_sub(1)?;
        let ms = |part: f64| f64::from(self.0[(last as f64 * part) as usize]) / 1_000.0;
        Some(Latency { p50_ms: ms(0.50), p99_ms: ms(0.99) })
    }
}

#[test]
fn percentiles_leave_out_the_first_events() {
    let ages =
        Ages((0..10).map(|_| 90_000_000).chain((1..=1_000).rev().map(|us| us * 1_000)).collect());
    let latency = ages.latency(10).expect("1,000 ages");
    assert_eq!((latency.p50_ms, latency.p99_ms), (500.0, 990.0));
    let mut ages = Ages::default();
    ages.done(&[0; 256]);
    ages.done(b"short");
    assert!(ages.latency(0).is_none(), "data without a time of publication has no age");
}
