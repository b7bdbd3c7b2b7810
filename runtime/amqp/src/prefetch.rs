//! The prefetch of a consumer: the maximum number of unacknowledged deliveries. The prefetch is the configured
//! prefetch, or a lower number if the configured number of deliveries does not fit into the memory limit.
//!
//! The broker counts messages, not bytes, so the consumer computes the prefetch from the sizes of recent deliveries.
//! The prefetch of a running subscription cannot change, so a new prefetch needs a new subscription. When a
//! subscription ends, its unacknowledged messages return to the queue, and the next subscription receives them first,
//! in order. If the next subscription ended before it had received all these messages, their order would be lost. The
//! prefetch therefore changes only when all redelivered messages have arrived, and grows rarely. Exception: if the
//! deliveries exceed the memory limit, the prefetch shrinks immediately.
//!
//! When a partition gets a new owner, the broker first redelivers the previous owner's unacknowledged messages: at most
//! as many as the previous owner's prefetch allowed. A consumer with a small prefetch would have to receive all these
//! messages before its prefetch may grow. A consumer therefore starts with the newest prefetch that any consumer of the
//! stream chose in this process. Before the first such choice, a consumer starts with a small prefetch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of deliveries in a complete sample. From the average size of these deliveries, the consumer computes whether
/// the prefetch must change.
const SAMPLE_DELIVERIES: u64 = 128;
/// Size of the largest message that a broker accepts by default, from RabbitMQ 4.0 on, in bytes.
const LARGEST_MESSAGE_BYTES: u64 = 16 << 20;
const GROWTH_DELAY: Duration = Duration::from_mins(1);

/// The newest prefetch that a consumer of the stream chose in this process; 0 before the first choice.
pub type LastPrefetch = Arc<AtomicU16>;

#[derive(Debug)]
pub(super) struct AdaptivePrefetch {
    last: LastPrefetch,
    max: u16,
    bytes: u64,
    current: u16,
    /// True if this subscription has received a message that is not a redelivery.
    has_new: bool,
    /// The number of deliveries in the current sample, and their total size in bytes.
    sample: (u64, u64),
    /// Size of the largest delivery of this subscription, in bytes.
    largest: u64,
    shrunk_at: Option<Instant>,
}

impl AdaptivePrefetch {
    /// Creates a prefetch of at most `max` deliveries with a total size of about `bytes`. The prefetch starts with
    /// `last`, the newest prefetch of the stream in this process. If `last` is 0, the prefetch starts with the number
    /// of messages of `LARGEST_MESSAGE_BYTES` that fit into `bytes`.
    pub(super) fn new(max: u16, bytes: usize, last: LastPrefetch) -> Self {
        let bytes = bytes as u64;
        let current = match last.load(Relaxed) {
            0 => messages_that_fit(max, bytes, LARGEST_MESSAGE_BYTES),
            last => last.min(max),
        };
        Self {
            last,
            max,
            bytes,
            current,
            has_new: false,
            sample: (0, 0),
            largest: 0,
            shrunk_at: None,
        }
    }

    pub(super) fn current(&self) -> u16 {
        self.current
    }

    /// Forgets the deliveries of the previous subscription. The new subscription first receives redelivered messages,
    /// so [`Self::adjust`] does not change the prefetch before the first new message.
    pub(super) fn start_subscription(&mut self) {
        self.has_new = false;
        self.sample = (0, 0);
        self.largest = 0;
    }

    pub(super) fn record(&mut self, bytes: usize, redelivered: bool) {
        self.has_new |= !redelivered;
        self.sample.0 += 1;
        self.sample.1 += bytes as u64;
        self.largest = self.largest.max(bytes as u64);
    }

    /// Computes the prefetch that fits messages of the average size in the sample. If the computed prefetch is at least
    /// twice as large as the current prefetch, uses the computed prefetch. If the computed prefetch is at most half as
    /// large as the current prefetch, reduces the prefetch as [`Self::shrink`] does. The prefetch changes only after
    /// the sample is complete and a message has arrived that is not a redelivery. After a reduction, the prefetch does
    /// not grow for `GROWTH_DELAY`. Returns whether the prefetch changed.
    pub(super) fn adjust(&mut self) -> bool {
        // A sample is complete when it has `SAMPLE_DELIVERIES` deliveries, or as many deliveries as the prefetch allows
        // if this number is lower.
        if !self.has_new || self.sample.0 < SAMPLE_DELIVERIES.min(self.current.into()) {
            return false;
        }
        let (deliveries, bytes) = std::mem::take(&mut self.sample);
        let fitting = messages_that_fit(self.max, self.bytes, bytes / deliveries);
        if fitting <= self.current / 2 {
            self.shrink();
            return true;
        }
        let may_grow = self.shrunk_at.is_none_or(|at| at.elapsed() >= GROWTH_DELAY);
        let grows = may_grow && fitting / 2 >= self.current;
        if grows {
            self.set(fitting);
        }
        grows
    }

    /// Reduces the prefetch if the deliveries that the receiver has not taken exceed the memory limit. A prefetch of
    /// one delivery does not change. Returns whether the prefetch changed.
    pub(super) fn shrink_if_over_limit(&mut self, unsent_bytes: usize) -> bool {
        let overflows = unsent_bytes as u64 > self.bytes && self.current > 1;
        if overflows {
            self.shrink();
        }
        overflows
    }

    /// Increases the prefetch to the number of messages that fit if each is as large as the largest message of this
    /// subscription. The consumer calls this method when the held messages use up the prefetch, so unlike
    /// [`Self::adjust`], it does not wait for a new message. After a reduction, the prefetch does not grow for
    /// `GROWTH_DELAY`. Returns whether the prefetch changed.
    pub(super) fn grow(&mut self) -> bool {
        let fitting = messages_that_fit(self.max, self.bytes, self.largest);
        let may_grow = self.shrunk_at.is_none_or(|at| at.elapsed() >= GROWTH_DELAY);
        let grows = may_grow && fitting > self.current;
        if grows {
            self.set(fitting);
        }
        grows
    }

    /// Sets the prefetch to the number of messages that fit if each is as large as the largest message of this
    /// subscription, but to at most half of its value. A second reduction before all redelivered messages have arrived
    /// would disturb the order of these messages.
    fn shrink(&mut self) {
        self.set(messages_that_fit(self.max, self.bytes, self.largest).min(self.current / 2));
        self.shrunk_at = Some(Instant::now());
    }

    fn set(&mut self, prefetch: u16) {
        self.current = prefetch;
        self.last.store(prefetch, Relaxed);
    }
}

/// Returns the number of messages of `size` bytes that fit into `bytes` bytes: at least 1 and at most `max`.
fn messages_that_fit(max: u16, bytes: u64, size: u64) -> u16 {
    u16::try_from(bytes / size.max(1)).unwrap_or(u16::MAX).clamp(1, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn feed(prefetch: &mut AdaptivePrefetch, deliveries: usize, size: usize) -> Vec<u16> {
        let mut changes = Vec::new();
        for _ in 0..deliveries {
            prefetch.record(size, false);
            if prefetch.adjust() {
                changes.push(prefetch.current());
                prefetch.start_subscription();
            }
        }
        changes
    }

    #[test]
    fn prefetch_is_limited_by_the_configuration_and_by_memory() {
        let mut prefetch = AdaptivePrefetch::new(4_000, 128 * MIB, LastPrefetch::default());
        assert_eq!(prefetch.current(), 8);
        assert_eq!(feed(&mut prefetch, 1_024, 256), [4_000]);
        assert!(feed(&mut prefetch, 1_024, 20_000).is_empty(), "the messages fit");
        assert_eq!(feed(&mut prefetch, 1_024, MIB / 2), [256]);
        assert_eq!(feed(&mut prefetch, 1_024, MIB), [128]);
        assert_eq!(feed(&mut prefetch, 1_024, 3 * MIB), [42]);
        assert!(feed(&mut prefetch, 10_000, 256).is_empty(), "the prefetch grows later");
    }

    #[test]
    fn reduced_prefetch_fits_messages_of_the_largest_size() {
        let mut prefetch = AdaptivePrefetch::new(4_000, 4 * MIB, LastPrefetch::default());
        assert_eq!(feed(&mut prefetch, 200, 100), [4_000]);
        for number in 0..128 {
            prefetch.record(if number % 4 == 0 { 300_000 } else { 100 }, false);
        }
        assert!(prefetch.adjust());
        assert_eq!(prefetch.current(), 13);
    }

    #[test]
    fn prefetch_always_allows_one_message() {
        let mut prefetch = AdaptivePrefetch::new(10, 1_000, LastPrefetch::default());
        assert_eq!(prefetch.current(), 1);
        assert!(feed(&mut prefetch, 10, MIB).is_empty());
        assert!(!prefetch.shrink_if_over_limit(MIB));
        assert_eq!(feed(&mut prefetch, 3, 200), [5], "the sample is complete after one message");
        assert_eq!(AdaptivePrefetch::new(1, 1_000, LastPrefetch::default()).current(), 1);
    }

    #[test]
    fn prefetch_is_unchanged_during_redeliveries() {
        let mut prefetch = AdaptivePrefetch::new(4_000, 128 * MIB, LastPrefetch::default());
        for _ in 0..1_000 {
            prefetch.record(100, true);
            assert!(!prefetch.adjust());
        }
        prefetch.record(100, false);
        assert!(prefetch.adjust());
        assert_eq!(prefetch.current(), 4_000);
    }

    #[test]
    fn prefetch_of_redeliveries_grows_once_to_the_messages_that_fit() {
        let mut prefetch = AdaptivePrefetch::new(4_000, 128 * MIB, LastPrefetch::default());
        for _ in 0..prefetch.current() {
            prefetch.record(MIB, true);
        }
        assert!(prefetch.grow());
        assert_eq!(prefetch.current(), 128);
        assert!(!prefetch.grow());
        assert!(prefetch.shrink_if_over_limit(129 * MIB));
        assert_eq!(prefetch.current(), 64);
        assert!(!prefetch.grow(), "the prefetch has just been reduced");
    }

    #[test]
    fn exceeding_the_memory_limit_reduces_the_prefetch_at_once() {
        let mut prefetch = AdaptivePrefetch::new(4_000, 128 * MIB, LastPrefetch::default());
        assert_eq!(feed(&mut prefetch, 8, 100), [4_000]);
        assert!(!prefetch.shrink_if_over_limit(128 * MIB));
        prefetch.record(MIB / 32, false);
        assert!(prefetch.shrink_if_over_limit(129 * MIB));
        assert_eq!(prefetch.current(), 2_000, "at most half");
        prefetch.record(16 * MIB, true);
        prefetch.record(1, true);
        assert!(prefetch.shrink_if_over_limit(160 * MIB));
        assert_eq!(prefetch.current(), 8);
    }

    #[test]
    fn later_consumer_starts_with_the_last_prefetch() {
        let last = LastPrefetch::default();
        let mut first = AdaptivePrefetch::new(4_000, 128 * MIB, Arc::clone(&last));
        let mut second = AdaptivePrefetch::new(4_000, 128 * MIB, Arc::clone(&last));
        assert_eq!((first.current(), second.current()), (8, 8));
        assert_eq!(feed(&mut first, 1_024, 256), [4_000]);
        assert_eq!(AdaptivePrefetch::new(4_000, 128 * MIB, Arc::clone(&last)).current(), 4_000);
        assert_eq!(AdaptivePrefetch::new(1_000, 128 * MIB, Arc::clone(&last)).current(), 1_000);
        assert_eq!(feed(&mut second, 1_024, MIB), [128]);
        assert_eq!(AdaptivePrefetch::new(4_000, 128 * MIB, last).current(), 128);
    }

    #[test]
    fn prefetch_without_memory_limit_is_the_configured_one() {
        let mut prefetch = AdaptivePrefetch::new(4_000, usize::MAX, LastPrefetch::default());
        assert_eq!(prefetch.current(), 4_000);
        assert!(feed(&mut prefetch, 1_000, 100 * MIB).is_empty());
        assert!(!prefetch.shrink_if_over_limit(4_000 * MIB));
    }
}
