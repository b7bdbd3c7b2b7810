//! Checks I5 and I6 at the end of a run. Every acknowledged event has exactly one result (settled with effect,
//! dead-lettered or spilled), and the store shows why a key does not progress.

use std::sync::Arc;

use ordain_core::{
    Cause, DeadLetter, Event, ExhaustedPolicy, GapSettings, Key, KeyStatus, LetterId, OrderingMode,
    OverflowPolicy,
};

use super::{Checker, Settlement, at};
use crate::plan::BlockKind;
use crate::producer::{BLOCKED_KEY, SourceItem};
use crate::store::{Store, StoredKey};

/// Time in ms after the last arrival within which all keys except the blocked key must settle their events.
const ISOLATION_TIMEOUT_MS: u64 = 60_000;

impl Checker {
    /// `unacknowledged` contains the deliveries that the owners have not acknowledged. `produced` is the earliest time
    /// at which the source may deliver its last event.
    pub(crate) fn ended(&mut self, unacknowledged: &[&SourceItem], produced: u64, store: &Store) {
        if let Some(item) = unacknowledged.first()
            && !self.may_stall(item, store)
        {
            self.broke(
                "I5",
                format!(
                    "{item:?} and {} later deliveries stay unacknowledged",
                    unacknowledged.len() - 1
                ),
            );
        }
        if store.letters != self.letters {
            self.broke(
                "checker",
                "the checker expects other dead letters than the store has".into(),
            );
        }
        let crowded = self.may_be_crowded(store);
        for (key, record) in &store.records {
            self.check_held_events(key, record, crowded);
        }
        if !crowded {
            self.check_passed_letters(store);
        }
        self.results(unacknowledged, store);
        // The messages of a repeated commit stay in the outbox until the owner has published a later message.
        if store.outbox_len(None) > 0 && self.rollback_count == 0 {
            self.broke("publishing", "the outbox is not empty".into());
        }
        self.all_published();
        self.isolation(produced);
    }

    /// Returns whether an owner may have stopped accepting deliveries. An owner may stop only in two cases. In the
    /// first case, the record of the event's key is unreadable. In the second case, some key can accept no more events,
    /// and holds events that the owner cannot spill. All outstanding deliveries may then be events of this full key.
    fn may_stall(&self, item: &SourceItem, store: &Store) -> bool {
        let SourceItem::Event(event) = item else { return false };
        self.is_full(store) || self.corrupt.contains(event.key())
    }

    /// Returns whether some key may refuse more events, because its spill area seems full. The record's count of
    /// spilled events may include repeats of spilled events until the next write of the record.
    fn is_full(&self, store: &Store) -> bool {
        let settings = &self.plan.settings;
        let mut counts = store.records.values().map(|record| record.key_record.spilled.count);
        settings.overflow == OverflowPolicy::Pause
            && counts.any(|count| count >= settings.spill_limit)
    }

    /// Returns whether keys that cannot accept more events may occupy all lanes. This is possible only if the prefetch,
    /// which limits the outstanding deliveries, is at least the maximum number of lanes.
    fn may_be_crowded(&self, store: &Store) -> bool {
        self.plan.settings.max_lanes <= self.plan.settings.prefetch && self.is_full(store)
    }

    /// The key must have a reason not to progress.
    fn check_held_events(&mut self, key: &Key, record: &StoredKey, crowded: bool) {
        if self.corrupt.contains(key) || self.is_unreadable(key) {
            return;
        }
        let key_record = &record.key_record;
        let label = at(key, key_record.next);
        if key_record.status == KeyStatus::Parked {
            let cause = key_record.failure.as_ref().map(|failure| failure.cause);
            return match cause {
                Some(Cause::Gap) => self.parked_at_gap(key, record),
                Some(Cause::Retry | Cause::Timeout | Cause::Trap | Cause::Limit | Cause::Error) => {
                    if self.plan.settings.retry.on_exhausted != ExhaustedPolicy::Park {
                        self.broke("retry", format!("{label} is parked"));
                    }
                }
                other => self.broke("I5", format!("{label} is parked because of {other:?}")),
            };
        }
        let first_ahead = self.first_ahead(key, record);
        let first_spilled = record.spill.first_key_value().map(|(sequence, _)| sequence);
        let Some(first) = first_spilled.into_iter().chain(&first_ahead).min() else {
            if key_record.status == KeyStatus::Retrying {
                self.broke("I5", format!("{label} waits for a retry, but has no event"));
            }
            return;
        };
        if key_record.status == KeyStatus::Completed {
            self.broke("end", format!("{} is held beyond the end", at(key, *first)));
        } else if crowded {
            // The event waits for a lane.
        } else if *first == key_record.next {
            self.broke("I5", format!("{label} is held, but does not run"));
        } else if self.plan.settings.gap.on_exhausted != ExhaustedPolicy::Wait {
            self.broke(
                "gap",
                format!("{label} is missing, and its key waits although it must not"),
            );
        } else if key_record.status != KeyStatus::Waiting {
            self.broke(
                "I5",
                format!("{label} is missing, but the status of its key is {:?}", key_record.status),
            );
        }
    }

    /// The causes of some dead letters state that the event still waits. Checks that no key has passed the event of
    /// such a dead letter. If keys can move to another partition, or the store can go back, an owner may write such a
    /// letter after another owner has passed the event. If the record of a key was unreadable or has expired, the
    /// letter may be older than the record.
    fn check_passed_letters(&mut self, store: &Store) {
        let unsure = self.plan.partitions > 1 || self.rollback_count > 0;
        if unsure || self.plan.settings.ordering != OrderingMode::Sequenced {
            return;
        }
        let early = |letter: &&DeadLetter| {
            matches!(letter.cause, Cause::FarAhead | Cause::Overflow)
                && !self.corrupt.contains(&letter.id.key)
                && !self.is_unreadable(&letter.id.key)
                && !self.has_expired(&letter.id.key)
        };
        let is_passed = |letter: &&DeadLetter| {
            store.records.get(&letter.id.key).is_some_and(|record| {
                letter.id.sequence < record.key_record.next
                    || record.key_record.status == KeyStatus::Completed
            })
        };
        let passed = self.letters.values().filter(early).find(is_passed);
        let Some(DeadLetter { id, cause, .. }) = passed else { return };
        let detail =
            format!("{} is passed, but still has a dead letter {cause}", at(&id.key, id.sequence));
        self.broke("I5", detail);
    }

    /// Returns the lowest sequence of the key's dead-lettered events that wait for earlier events of the key. A dead
    /// letter with the cause `corrupt` does not count, because the key record of its event could not be written.
    /// Returns `None` for a key whose record has expired, because the dead letter may be from before the expiry.
    fn first_ahead(&self, key: &Key, record: &StoredKey) -> Option<u64> {
        let next = record.key_record.next;
        let is_open = |letter: &&DeadLetter| {
            matches!(letter.cause, Cause::FarAhead | Cause::Overflow) && letter.id.sequence >= next
        };
        let sequenced = self.plan.settings.ordering == OrderingMode::Sequenced;
        let ended = record.key_record.status == KeyStatus::Completed;
        let id = |sequence, tag| LetterId { key: key.clone(), sequence, tag };
        let letters = self.letters.range(id(next, 0)..=id(u64::MAX, u64::MAX));
        let mut open = letters.map(|(_, letter)| letter).filter(is_open);
        open.next()
            .filter(|_| sequenced && !ended && !self.has_expired(key))
            .map(|letter| letter.id.sequence)
    }

    /// The missing event must be a reason to park the key.
    fn parked_at_gap(&mut self, key: &Key, record: &StoredKey) {
        let next = record.key_record.next;
        let rounds = self.attempts.rounds_for(key, next);
        if !self.may_park(key, record) {
            self.broke("gap", format!("{} is missing, and its key must not park", at(key, next)));
        } else if record.spill.contains_key(&next) {
            self.broke("I5", format!("{} is held, but parked as missing", at(key, next)));
        } else if rounds < self.rounds_due() {
            self.broke("gap", format!("{} is parked after only {rounds} rounds", at(key, next)));
        }
    }

    /// Returns whether a key may be parked at a missing event. With the policy `Skip`, a key is parked only if the next
    /// event that has arrived is too far ahead.
    fn may_park(&self, key: &Key, record: &StoredKey) -> bool {
        let gap = &self.plan.settings.gap;
        let next = record.key_record.next;
        match gap.on_exhausted {
            ExhaustedPolicy::Park => true,
            ExhaustedPolicy::Wait => false,
            ExhaustedPolicy::Skip => {
                let limit = GapSettings::SKIP_LIMIT * gap.max_width;
                let first = self.first_ahead(key, record);
                self.has_expired(key) || first.is_some_and(|first| first - next > limit)
            }
        }
    }

    /// Every acknowledged event must have a result, and no event several results.
    fn results(&mut self, unacknowledged: &[&SourceItem], store: &Store) {
        let all: Vec<Arc<Event>> = self.received.contents.values().flatten().cloned().collect();
        for event in all {
            let label = at(event.key(), event.sequence().unwrap_or(0));
            let open = unacknowledged
                .iter()
                .any(|item| matches!(item, SourceItem::Event(other) if **other == *event));
            let results = self.results_of(&event, store);
            if results.is_empty()
                && !open
                && !self.is_covered(&event, store)
                && self.was_acknowledged(&event)
                && !self.was_forgotten_in_former_life(&event)
            {
                self.broke("I5", format!("{label} ({event:?}) is neither settled nor held"));
            }
            // A key may have ended while its spilled events could not be read. An event of such a key may have a dead
            // letter, and also still be spilled.
            let unread = self.is_unreadable(event.key());
            if results.len() > 1 && !unread && !self.may_have(&results) {
                self.broke("I5", format!("{label} ({event:?}) has several results: {results:?}"));
            }
        }
    }

    /// Returns whether the sequence of the event was settled before the record of the key expired. Before the expiry,
    /// the event may have counted as a repeat of the settled event, because the store could no longer distinguish the
    /// two events.
    fn was_forgotten_in_former_life(&self, event: &Event) -> bool {
        let model = self.keys.get(event.key());
        let number = event.sequence();
        let lives = model.into_iter().flat_map(|model| &model.former_lives);
        number.is_some_and(|sequence| lives.into_iter().any(|life| life.contains_key(&sequence)))
    }

    /// An event that was never delivered, but only found by a replay, need not have a result.
    fn was_acknowledged(&self, event: &Event) -> bool {
        self.acknowledged_events.contains(&(Key::from(event.key()), event.content()))
    }

    /// Lists the causes of the event's dead letters, `held` if it is spilled, and `effect` for each time that it took
    /// effect.
    fn results_of(&self, event: &Arc<Event>, store: &Store) -> Vec<String> {
        let mut results: Vec<String> =
            self.letters_with(event).iter().map(|letter| letter.cause.name().to_owned()).collect();
        if self.is_spilled(event, store) {
            results.push("held".into());
        }
        let Some(model) = self.keys.get(event.key()) else { return results };
        let number = self.number_of(model, event);
        let settled = number.into_iter().flat_map(|sequence| model.settlements(sequence));
        let effects = settled.filter(
            |s| matches!(s, Settlement::Effect(other) if other.content() == event.content()),
        );
        results.extend(effects.map(|_| "effect".to_owned()));
        results
    }

    /// Returns whether the event may have all of these results. If keys expire, all results are possible. If keys do
    /// not expire, an event may have a second result in these cases:
    /// - The event got a dead letter, because it was too far ahead, its key was full, or its key record was unreadable.
    ///   Later, the event arrived again.
    /// - The event got a dead letter, because the owner held another event with the same sequence. Then the owner ended
    ///   and lost the other event. Later, this event arrived again, before the other event.
    /// - The event got a dead letter, because the owner held another event with the same sequence. Later, this event
    ///   arrived again, after the end of its key.
    fn may_have(&self, results: &[String]) -> bool {
        let may_repeat = |result: &&String| {
            let early = [Cause::FarAhead, Cause::Overflow, Cause::Corrupt]
                .iter()
                .any(|cause| cause.name() == **result);
            let late = results.iter().any(|result| result == Cause::AfterEnd.name());
            early || (self.deaths > 0 || late) && **result == Cause::Conflict.name()
        };
        self.keys_expire() || results.iter().filter(|result| !may_repeat(result)).count() <= 1
    }

    /// Checks that the blocked key does not delay the other keys. If gaps are not skipped, also checks that the blocked
    /// key does not continue without its missing event.
    fn isolation(&mut self, produced: u64) {
        let Some(blocked) = self.plan.handler.blocked else { return };
        let late = self.keys.iter().find(|(key, model)| {
            ***key != *BLOCKED_KEY && model.settled_at > produced + ISOLATION_TIMEOUT_MS
        });
        if let Some((key, model)) = late {
            let detail =
                format!("{key:?} settled an event only at {} ms ({blocked:?})", model.settled_at);
            self.broke("I6", detail);
        }
        let due = self.plan.settings.first + 1;
        if blocked == BlockKind::Gap && self.next(&Key::from(BLOCKED_KEY)) > due {
            let gap = self.plan.settings.gap.on_exhausted;
            if gap != ExhaustedPolicy::Skip {
                self.broke("I1", format!("{BLOCKED_KEY} continued without #{due}"));
            }
        }
    }
}
