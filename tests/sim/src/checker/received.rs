//! All events that any owner has ever received. Only these events may be settled, spilled or dead-lettered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, Key, OrderingMode};

use super::Checker;

#[derive(Debug, Default)]
pub(super) struct ReceivedEvents {
    /// The name is the sequence, or the id if Ordain assigns the sequences.
    pub(super) named: BTreeMap<(Key, u64), Vec<Arc<Event>>>,
    /// Received events by key and content.
    pub(super) contents: BTreeMap<(Key, u64), Vec<Arc<Event>>>,
    /// By key and name of an event, the lowest next sequence of the durable key record when an owner received the
    /// event.
    lowest_next: BTreeMap<(Key, u64), u64>,
    /// Delivered bytes that are not an event.
    pub(super) raw: BTreeSet<Bytes>,
}

impl ReceivedEvents {
    pub(super) fn has(&self, event: &Event) -> bool {
        let contents = self.contents.get(&(Key::from(event.key()), event.content()));
        contents.is_some_and(|events| events.iter().any(|known| **known == *event))
    }
}

impl Checker {
    /// The owner will receive the event next.
    pub(crate) fn event_received(&mut self, event: &Arc<Event>) {
        let key = Key::from(event.key());
        let next = self.next(&key);
        let known = self.received.contents.entry((key.clone(), event.content())).or_default();
        if !known.contains(event) {
            known.push(event.clone());
        }
        if let Some(name) = self.name(event) {
            let named = self.received.named.entry((key.clone(), name)).or_default();
            if !named.contains(event) {
                named.push(event.clone());
            }
            let lowest = self.received.lowest_next.entry((key, name)).or_insert(next);
            *lowest = next.min(*lowest);
        }
    }

    /// The checker needs the position only for streams whose events Ordain numbers.
    pub(crate) fn record_position(&mut self, event: &Event, position: usize) {
        self.positions.entry((Key::from(event.key()), event.id_digest())).or_insert(position);
    }

    /// The name is the sequence, or the id if Ordain assigns the sequences.
    pub(super) fn name(&self, event: &Event) -> Option<u64> {
        match self.plan.settings.ordering {
            OrderingMode::Sequenced => event.sequence(),
            OrderingMode::Fifo => Some(event.id_digest()).filter(|_| !event.id().is_empty()),
        }
    }

    /// Several events with the same name differ from each other.
    pub(super) fn versions(&self, key: &Key, name: u64) -> &[Arc<Event>] {
        self.received.named.get(&(key.clone(), name)).map_or(&[], Vec::as_slice)
    }

    /// Returns whether an owner has received an event of the key with a sequence beyond `last`.
    pub(super) fn was_received_beyond(&self, key: &Key, last: u64) -> bool {
        let beyond = (key.clone(), last)..=(key.clone(), u64::MAX);
        self.received.named.range(beyond).any(|((_, sequence), _)| *sequence > last)
    }

    /// Returns whether the sequence may have been too far ahead for its lane when the event arrived. In some runs, keys
    /// can move to another partition, expire or go back. A lane does not notice such a change immediately, so it may
    /// still expect the first sequence of its key.
    pub(super) fn was_far(&self, key: &Key, sequence: u64) -> bool {
        let unsure = self.plan.partitions > 1 || self.keys_expire() || self.rollback_count > 0;
        let lowest = self.received.lowest_next.get(&(key.clone(), sequence));
        let lowest = if unsure { Some(&self.plan.settings.first) } else { lowest };
        let width = self.plan.settings.gap.max_width;
        lowest.is_some_and(|next| sequence > next.saturating_add(width))
    }

    /// Returns whether the spill area of the key may have seemed full to an owner. If an arriving event may repeat a
    /// spilled event, the owner spills the arriving event, and counts it as a new event. The next write of the key
    /// record corrects the count, but an owner that died, or whose partition another owner has claimed, may never have
    /// made this write.
    pub(super) fn may_be_full(&self, key: &Key) -> bool {
        let names = self.received.named.range((key.clone(), 0)..=(key.clone(), u64::MAX));
        let earlier_owners = u64::from(self.deaths + self.attempts.takeovers);
        let most = names.count() as u64 * (1 + earlier_owners);
        self.plan.partitions > 1 || most >= self.plan.settings.spill_limit
    }

    /// Returns the first sequence, from the next sequence of the key on, for which no owner has received an event.
    pub(super) fn first_unknown(&self, key: &Key) -> u64 {
        (self.next(key)..u64::MAX)
            .find(|sequence| self.versions(key, *sequence).is_empty())
            .unwrap_or(u64::MAX)
    }
}
