//! All events that any owner has ever received: only these can be settled, held or dead-lettered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{Event, Key, OrderingMode};

use super::Checker;

/// The events that owners have received ("shown" events).
#[derive(Debug, Default)]
pub(super) struct Known {
    /// All contents of each event, by key and sequence; by key and id where Ordain assigns the sequences.
    pub(super) named: BTreeMap<(Key, u64), Vec<Arc<Event>>>,
    /// Shown events by key and content.
    pub(super) contents: BTreeMap<(Key, u64), Vec<Arc<Event>>>,
    /// By key and name of the event: the durable `next` of the key when the event was shown to an owner; if it was
    /// shown several times, the lowest of these values.
    lowest_next: BTreeMap<(Key, u64), u64>,
    pub(super) raw: BTreeSet<Bytes>,
}

impl Known {
    pub(super) fn has(&self, event: &Event) -> bool {
        let contents = self.contents.get(&(Key::from(event.key()), event.content()));
        contents.is_some_and(|events| events.iter().any(|known| **known == *event))
    }
}

impl Checker {
    /// Records that an owner is about to receive an event.
    pub(crate) fn shown(&mut self, event: &Arc<Event>) {
        let key = Key::from(event.key());
        let next = self.next(&key);
        let known = self.known.contents.entry((key.clone(), event.content())).or_default();
        if !known.contains(event) {
            known.push(event.clone());
        }
        if let Some(name) = self.name(event) {
            let named = self.known.named.entry((key.clone(), name)).or_default();
            if !named.contains(event) {
                named.push(event.clone());
            }
            let lowest = self.known.lowest_next.entry((key, name)).or_insert(next);
            *lowest = next.min(*lowest);
        }
    }

    /// Records the position of an event in the source's queue, for a stream whose events Ordain numbers.
    pub(crate) fn stands_at(&mut self, event: &Event, place: usize) {
        self.places.entry((Key::from(event.key()), event.id_digest())).or_insert(place);
    }

    /// Returns the name that distinguishes an event from others of its key: its sequence, or its id where Ordain
    /// assigns the sequences.
    pub(super) fn name(&self, event: &Event) -> Option<u64> {
        match self.plan.settings.ordering {
            OrderingMode::Sequenced => event.sequence(),
            OrderingMode::Fifo => Some(event.id_digest()).filter(|_| !event.id().is_empty()),
        }
    }

    /// Returns all shown contents of the event with this name.
    pub(super) fn versions(&self, key: &Key, name: u64) -> &[Arc<Event>] {
        self.known.named.get(&(key.clone(), name)).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the sequence may have been too far ahead for its lane when the event was shown. If the key may
    /// move, expire or go back while its lane does not notice, the lane may still expect the first sequence of the key.
    pub(super) fn was_far(&self, key: &Key, sequence: u64) -> bool {
        let unsure = self.plan.partitions > 1 || self.jobs_expire() || self.times_back > 0;
        let lowest = self.known.lowest_next.get(&(key.clone(), sequence));
        let lowest = if unsure { Some(&self.plan.settings.first) } else { lowest };
        let width = self.plan.settings.gap.max_width;
        lowest.is_some_and(|next| sequence > next.saturating_add(width))
    }

    /// Returns whether enough events of the key were shown for its spill area to seem full. Until its next write, a key
    /// record also counts repeats, because they may be new events. An owner that died may never have made that write.
    pub(super) fn may_be_full(&self, key: &Key) -> bool {
        let shown = self.known.named.range((key.clone(), 0)..=(key.clone(), u64::MAX));
        let most = shown.count() as u64 * (1 + u64::from(self.deaths));
        self.plan.partitions > 1 || most >= self.plan.settings.spill_limit
    }

    /// Returns the first sequence of the key from `next` on that no owner has received.
    pub(super) fn first_unknown(&self, key: &Key) -> u64 {
        (self.next(key)..u64::MAX).find(|s| self.versions(key, *s).is_empty()).unwrap_or(u64::MAX)
    }
}
