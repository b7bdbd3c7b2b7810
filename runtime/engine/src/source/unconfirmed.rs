//! Events received over HTTP that the inbox has read from a queue in the store and that the broker has not confirmed.
//! An event stays in the queue until the broker has confirmed this event and all events that the inbox read earlier.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use ordain_core::Event;

use ordain_amqp::SequencedEvent;

/// Limits for the number of unconfirmed events, and for their size in bytes. Events beyond the limits wait in the
/// store.
const EVENT_LIMIT: usize = 1_024;
const EVENT_BYTES_LIMIT: usize = 16 << 20;

/// Unconfirmed events in the order in which the inbox read them.
#[derive(Debug)]
pub(super) struct UnconfirmedEvents {
    /// The events from the first unconfirmed event on. The slot of a confirmed event is `None`.
    events: VecDeque<Option<UnconfirmedEvent>>,
    /// Number of confirmed events before the first unconfirmed event.
    through: u64,
    count: usize,
    bytes: usize,
    /// The inbox reads no more batches at this length of `events`, so that it does not publish too many events a second
    /// time after a failure.
    repeat_limit: usize,
}

#[derive(Debug)]
struct UnconfirmedEvent {
    event: Arc<Event>,
    is_refused: bool,
    is_passed: bool,
}

impl UnconfirmedEvents {
    pub(super) fn new(repeat_limit: usize) -> Self {
        Self { events: VecDeque::new(), through: 0, count: 0, bytes: 0, repeat_limit }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn through(&self) -> u64 {
        self.through
    }

    pub(super) fn has_room(&self) -> bool {
        self.count < EVENT_LIMIT
            && self.bytes < EVENT_BYTES_LIMIT
            && self.events.len() < self.repeat_limit
    }

    /// Returns whether the list contains events that the broker refused. The inbox must repeat the publishing of such
    /// events.
    pub(super) fn has_refused(&self) -> bool {
        self.events.iter().flatten().any(|pending| pending.is_refused)
    }

    pub(super) fn extend(&mut self, events: impl Iterator<Item = Event>) {
        for event in events {
            self.count += 1;
            self.bytes += event.memory();
            let event = Arc::new(event);
            self.events.push_back(Some(UnconfirmedEvent {
                event,
                is_refused: false,
                is_passed: false,
            }));
        }
    }

    /// Returns the events to publish now: a list of their indexes in `events`, and a list of the events. Without
    /// `retry`, leaves out each refused event, and all later events of its key.
    pub(super) fn to_publish(&self, retry: bool) -> (Vec<usize>, Vec<SequencedEvent>) {
        let mut refused = HashSet::new();
        let pending = self.events.iter().enumerate();
        let pending = pending.filter_map(|(index, event)| Some((index, event.as_ref()?)));
        let to_publish = pending.filter(|(_, pending)| {
            retry || {
                if pending.is_refused {
                    refused.insert(pending.event.key());
                }
                !refused.contains(pending.event.key())
            }
        });
        to_publish
            .map(|(index, pending)| (index, (Arc::clone(&pending.event), pending.event.sequence())))
            .unzip()
    }

    /// Records which of the published events the broker has accepted. Returns the number of confirmed events before the
    /// first unconfirmed event.
    pub(super) fn confirm(&mut self, indexes: &[usize], accepted: &[bool]) -> u64 {
        for (index, accepted) in indexes.iter().zip(accepted) {
            let slot = &mut self.events[*index];
            if *accepted {
                if let Some(pending) = slot.take() {
                    self.count -= 1;
                    self.bytes -= pending.event.memory();
                }
            } else if let Some(pending) = slot {
                pending.is_refused = true;
            }
        }
        while self.events.pop_front_if(|event| event.is_none()).is_some() {
            self.through += 1;
        }
        self.through
    }

    /// Returns refused events that were not passed to the driver yet, and marks them as passed. Returns at most
    /// `early_left` events, and reduces `early_left` by their number.
    pub(super) fn take_early_events(&mut self, early_left: &mut usize) -> Vec<Arc<Event>> {
        let pending = self.events.iter_mut().flatten();
        let refused = pending.filter(|pending| pending.is_refused && !pending.is_passed);
        let early_events: Vec<_> = refused
            .take(*early_left)
            .map(|pending| {
                pending.is_passed = true;
                Arc::clone(&pending.event)
            })
            .collect();
        *early_left -= early_events.len();
        early_events
    }
}

#[cfg(test)]
mod tests {
    use ordain_core::EventParts;

    use super::*;

    fn event(key: &str, sequence: u64) -> Event {
        Event::new(&EventParts { key, id: "1", sequence: Some(sequence), ..EventParts::default() })
    }

    #[test]
    fn refused_event_delays_only_its_key() {
        let mut unconfirmed = UnconfirmedEvents::new(usize::MAX);
        unconfirmed.extend([event("a", 1), event("b", 1), event("c", 1)].into_iter());
        let (places, events) = unconfirmed.to_publish(false);
        assert_eq!((places.as_slice(), events.len()), (&[0, 1, 2][..], 3));
        assert_eq!(unconfirmed.confirm(&places, &[true, false, true]), 1);
        unconfirmed.extend([event("b", 2), event("a", 2)].into_iter());
        let (places, _) = unconfirmed.to_publish(false);
        assert_eq!(places, [3]);
        assert_eq!(unconfirmed.confirm(&places, &[true]), 1);
        let mut most = 5;
        assert_eq!(unconfirmed.take_early_events(&mut most).len(), 1);
        assert_eq!((unconfirmed.take_early_events(&mut most).len(), most), (0, 4));
        let (places, events) = unconfirmed.to_publish(true);
        assert_eq!(places, [0, 2]);
        assert_eq!(events[1].1, Some(2));
        assert_eq!(unconfirmed.confirm(&places, &[true, true]), 5);
        assert!(!unconfirmed.has_refused());
    }

    #[test]
    fn number_of_repeatable_events_is_limited() {
        let mut unconfirmed = UnconfirmedEvents::new(3);
        unconfirmed.extend([event("a", 1), event("b", 1), event("c", 1)].into_iter());
        unconfirmed.confirm(&[0, 1, 2], &[false, true, true]);
        assert!(!unconfirmed.has_room());
        unconfirmed.confirm(&[0], &[true]);
        assert!(unconfirmed.has_room() && unconfirmed.is_empty());
        // Without a repeat limit, confirmed events take no room.
        let mut unconfirmed = UnconfirmedEvents::new(usize::MAX);
        for _ in 0..3 {
            unconfirmed.extend((1..EVENT_LIMIT as u64).map(|key| event(&key.to_string(), 1)));
            let (places, _) = unconfirmed.to_publish(false);
            let taken: Vec<bool> = places.iter().map(|at| *at > 0).collect();
            unconfirmed.confirm(&places, &taken);
            assert!(unconfirmed.has_room());
        }
        assert_eq!(unconfirmed.through(), 0);
    }
}
