//! Maps the events of a subscription to the deliveries that contain them. The receiver numbers events, and acknowledges
//! events. The broker numbers deliveries, and expects acknowledgements of deliveries. This module has no I/O.

use std::collections::VecDeque;

/// The numbers of the events and deliveries of a subscription. A delivery is finished when all its events are
/// acknowledged, and all earlier deliveries are finished.
#[derive(Debug, Default)]
pub(super) struct EventCounts {
    received: u64,
    /// The unfinished deliveries that have no event, or several events.
    batches: VecDeque<DeliveryEnd>,
    /// The newest finished delivery that had no event, or several events.
    last_batch: DeliveryEnd,
}

#[derive(Debug, Clone, Copy, Default)]
struct DeliveryEnd {
    delivery: u64,
    events: u64,
}

impl EventCounts {
    pub(super) fn add(&mut self, delivery: u64, events: u64) {
        self.received += events;
        if events != 1 {
            self.batches.push_back(DeliveryEnd { delivery, events: self.received });
        }
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of unacknowledged events that the receiver must be able to hold. This is the higher of two
    /// numbers: `prefetch`, and the number of received events that are not acknowledged. The second number can be
    /// higher, because `prefetch` counts deliveries, and a delivery may be a batch of several events. `acknowledged` is
    /// the number of acknowledged events.
    pub(super) fn event_limit(&self, prefetch: u16, acknowledged: u64) -> usize {
        let unacknowledged = self.received.saturating_sub(acknowledged);
        usize::try_from(unacknowledged).unwrap_or(usize::MAX).max(prefetch.into())
    }

    /// Returns the number of the newest finished delivery. `acknowledged` is the number of acknowledged events, which
    /// never falls.
    pub(super) fn finished(&mut self, acknowledged: u64) -> u64 {
        while let Some(batch) = self.batches.pop_front_if(|batch| batch.events <= acknowledged) {
            self.last_batch = batch;
        }
        // Each delivery that is not in `batches` has exactly one event.
        let finished =
            self.last_batch.delivery + acknowledged.saturating_sub(self.last_batch.events);
        match self.batches.front() {
            Some(next) => finished.min(next.delivery - 1),
            None => finished,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the counts with a model, for each order of single events and batches in a short sequence.
    #[test]
    fn delivery_is_finished_when_all_its_events_are_acknowledged() {
        const SIZES: [u64; 3] = [0, 1, 3];
        const LENGTH: u32 = 6;
        for code in 0..SIZES.len().pow(LENGTH) {
            let digit = |place| code / SIZES.len().pow(place) % SIZES.len();
            let sizes: Vec<u64> = (0..LENGTH).map(|place| SIZES[digit(place)]).collect();
            let mut counts = EventCounts::default();
            for (delivery, size) in (1..).zip(&sizes) {
                counts.add(delivery, *size);
            }
            let total: u64 = sizes.iter().sum();
            for acknowledged in 0..=total {
                let mut left = acknowledged;
                let mut expected = 0;
                for size in &sizes {
                    let Some(rest) = left.checked_sub(*size) else { break };
                    left = rest;
                    expected += 1;
                }
                assert_eq!(counts.finished(acknowledged), expected, "{sizes:?} {acknowledged}");
            }
        }
    }

    /// The receiver must be able to accept all events of delivered batches.
    #[test]
    fn event_limit_includes_all_events_of_batches() {
        let mut counts = EventCounts::default();
        counts.add(1, 1);
        counts.add(2, 1);
        assert_eq!(counts.event_limit(2, 0), 2);
        counts.add(3, 100);
        assert_eq!(counts.event_limit(2, 2), 100);
        assert_eq!(counts.event_limit(2, 101), 2);
    }

    #[test]
    fn deliveries_arrive_between_acknowledgements() {
        let mut counts = EventCounts::default();
        counts.add(1, 1);
        assert_eq!(counts.finished(1), 1);
        counts.add(2, 2);
        assert_eq!(counts.finished(1), 1);
        assert_eq!(counts.finished(2), 1);
        counts.add(3, 1);
        assert_eq!(counts.finished(3), 2);
        counts.add(4, 0);
        assert_eq!(counts.finished(3), 2);
        assert_eq!(counts.finished(4), 4);
        counts.add(5, 0);
        assert_eq!(counts.finished(4), 5);
        counts.add(6, 1);
        assert_eq!(counts.finished(5), 6);
    }
}
