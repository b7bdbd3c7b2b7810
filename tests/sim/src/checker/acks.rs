//! Checks I3: every acknowledged event is durable (settled, spilled or dead-lettered).

use std::sync::Arc;

use ordain_core::{Event, Key, LetterContent, OrderingMode};

use super::{Checker, KeyModel, at};
use crate::producer::SourceItem;
use crate::store::Store;

impl Checker {
    /// The event of the delivery, or its dead letter, must be durable.
    pub(crate) fn acknowledged(&mut self, item: &SourceItem, store: &Store) {
        match item {
            SourceItem::Event(event) => {
                let index = (Key::from(event.key()), event.content());
                self.acknowledged_events.insert(index);
                // Events of lost commits are not durable until the owner has repeated these commits. The check at the
                // end of the run covers these events.
                if !self.lacks_commits && !self.is_covered(event, store) {
                    let label = at(event.key(), event.sequence().unwrap_or(0));
                    self.broke(
                        "I3",
                        format!("{label} ({event:?}) is acknowledged, but not durable"),
                    );
                }
            }
            SourceItem::Unreadable(bytes) => {
                let raw = LetterContent::Raw(bytes.clone());
                if !self.lacks_commits
                    && !store.letters.values().any(|letter| letter.content == raw)
                {
                    self.broke("I3", format!("{bytes:?} is acknowledged, but has no dead letter"));
                }
            }
        }
    }

    /// Returns whether the event is durable: dead-lettered, settled or spilled.
    pub(super) fn is_covered(&self, event: &Arc<Event>, store: &Store) -> bool {
        self.is_lettered(event, store)
            || self.is_settled(event, store)
            || self.is_spilled(event, store)
    }

    /// Returns whether the store has a dead letter with exactly this event.
    fn is_lettered(&self, event: &Event, store: &Store) -> bool {
        self.letters_with(event).iter().any(|letter| store.letters.get(&letter.id) == Some(*letter))
    }

    /// Returns whether the event is settled. The event also counts as settled if another event with the same sequence
    /// is settled, and the store can no longer distinguish the two events.
    fn is_settled(&self, event: &Event, store: &Store) -> bool {
        let key = Key::from(event.key());
        let Some(model) = self.keys.get(&key) else { return false };
        let Some(sequence) = self.number_of(model, event) else { return false };
        let same = model
            .settlements(sequence)
            .filter_map(|settled| settled.event())
            .any(|settled| settled.content() == event.content());
        let settled = model.settled.contains_key(&sequence);
        same || sequence < model.imported
            || settled && self.is_forgotten(&key, model, sequence, event, store)
    }

    /// Returns whether the rules allow the store to have forgotten how the sequence was settled. Also returns true if a
    /// commit under way may make the store forget this.
    fn is_forgotten(
        &self,
        key: &Key,
        model: &KeyModel,
        sequence: u64,
        event: &Event,
        store: &Store,
    ) -> bool {
        // The owner has the digests of the events of recovered commits in memory.
        if self.plan.partitions == 1
            && !self.keys_expire()
            && self.recovered.contains(&(key.clone(), sequence))
        {
            return false;
        }
        // Commits under way may remove old digests of settled events. Without the digest, an owner cannot distinguish
        // two events with the same sequence and different contents.
        let ahead =
            self.owner_models.values().filter_map(|owner_model| owner_model.reach(key)).max();
        // An owner may have processed the event after the store went back, but before the owner noticed the loss.
        let back = self.owner_models.values().filter(|_| self.rollback_count > 0);
        let before = back.filter_map(|owner_model| owner_model.reached(key)).max();
        let reach = ahead.max(before).unwrap_or(0).max(model.next);
        // A key record has no digests of events before the beginning of its key.
        let may = model.completed
            || sequence < model.begin
            || reach - sequence > self.plan.settings.digests as u64;
        may && (reach > model.next || is_unknown(key, sequence, event, store))
    }

    pub(super) fn is_spilled(&self, event: &Event, store: &Store) -> bool {
        let key = Key::from(event.key());
        let sequence = self.keys.get(&key).and_then(|model| self.number_of(model, event));
        let record = store.records.get(&key);
        record
            .zip(sequence)
            .and_then(|(record, sequence)| record.spill.get(&sequence))
            .is_some_and(|held| held.content() == event.content())
    }

    /// The producer or Ordain has assigned the sequence.
    pub(super) fn number_of(&self, model: &KeyModel, event: &Event) -> Option<u64> {
        if self.plan.settings.ordering == OrderingMode::Sequenced {
            return event.sequence();
        }
        let id = event.id_digest();
        model.accepted.iter().find(|(_, accepted)| accepted.id == id).map(|(sequence, _)| *sequence)
    }
}

/// Returns whether the key record in the store no longer shows how the sequence was settled.
fn is_unknown(key: &Key, sequence: u64, event: &Event, store: &Store) -> bool {
    store.records.get(key).is_none_or(|record| {
        record
            .key_record
            .digests
            .differs(record.key_record.next, sequence, event.repeat_digests())
            .is_none()
    })
}
