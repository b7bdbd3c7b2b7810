//! Checks I5 and I6, the rules for the end of a run. Every delivered event has exactly one fate (settled with effect,
//! dead-lettered or spilled), and the store shows why a key does not progress.

use std::sync::Arc;

use ordain_core::{Cause, Event, ExhaustedPolicy, Key, KeyStatus, OverflowPolicy};

use super::{Checker, Settled, at};
use crate::plan::Blocked;
use crate::producer::{BLOCKED_KEY, Item};
use crate::store::{Record, Store};

/// Time in ms after the last arrival within which all keys except the blocked one must settle their events.
const ISOLATION_MS: u64 = 60_000;

impl Checker {
    /// Checks the end of a run. `unacknowledged` has the deliveries that the owners have not acknowledged.
    pub(crate) fn ended(&mut self, unacknowledged: &[&Item], produced: u64, store: &Store) {
        if let Some(item) = unacknowledged.first()
            && !self.may_stall(item, store)
        {
            self.broke("I5", format!("stalled at {item:?} with {} more", unacknowledged.len() - 1));
        }
        if store.letters != self.letters {
            self.broke("checker", "the checker's letters differ from the store's".into());
        }
        let crowded = self.may_be_crowded(store);
        for (key, record) in &store.records {
            self.stands(key, record, crowded);
        }
        self.fates(unacknowledged, store);
        // The messages of a repeated commit stay in the outbox until a later message is published.
        if store.outbox_len(None) > 0 && self.times_back == 0 {
            self.broke("publishing", "the outbox is not empty".into());
        }
        self.all_published();
        self.isolated(produced);
    }

    /// Returns whether an owner may have stopped to accept deliveries. An owner stops only if some key cannot accept
    /// more events, and holds events that the owner cannot spill. Then all outstanding deliveries may be events of that
    /// key.
    fn may_stall(&self, item: &Item, store: &Store) -> bool {
        let Item::Event(event) = item else { return false };
        self.is_full(store) || self.corrupt.contains(event.key())
    }

    /// Returns whether some key cannot accept more events, because its spill area seems full. Until the next write of a
    /// key record, its count may include repeats of spilled events.
    fn is_full(&self, store: &Store) -> bool {
        let settings = &self.plan.settings;
        let mut counts = store.records.values().map(|record| record.job.spilled.count);
        settings.overflow == OverflowPolicy::Pause
            && counts.any(|count| count >= settings.spill_limit)
    }

    /// Returns whether keys that cannot accept more events may occupy all lanes. This is possible only if the prefetch,
    /// which limits the outstanding deliveries, is not below the number of lanes.
    fn may_be_crowded(&self, store: &Store) -> bool {
        self.plan.settings.max_lanes <= self.plan.settings.prefetch && self.is_full(store)
    }

    /// Checks that a key that holds events has a reason not to progress.
    fn stands(&mut self, key: &Key, record: &Record, crowded: bool) {
        if self.corrupt.contains(key) || self.is_unread(key) {
            return;
        }
        let job = &record.job;
        let place = at(key, job.next);
        if job.status == KeyStatus::Parked {
            let cause = job.failure.as_ref().map(|trouble| trouble.cause);
            return match cause {
                Some(Cause::Gap) => self.parked_at_gap(key, record),
                Some(Cause::Retry | Cause::Timeout | Cause::Trap | Cause::Limit | Cause::Error) => {
                    if self.plan.settings.retry.on_exhausted != ExhaustedPolicy::Park {
                        self.broke("retry", format!("{place} is parked"));
                    }
                }
                other => self.broke("I5", format!("{place} is parked for {other:?}")),
            };
        }
        let Some((first, _)) = record.spill.first_key_value() else {
            if job.status == KeyStatus::Retrying {
                self.broke("I5", format!("{place} is not retried any more"));
            }
            return;
        };
        if job.status == KeyStatus::Completed {
            self.broke("end", format!("{} is held beyond the end", at(key, *first)));
        } else if crowded {
            // The event waits for a lane.
        } else if *first == job.next {
            self.broke("I5", format!("{place} is held and could run"));
        } else if self.plan.settings.gap.on_exhausted != ExhaustedPolicy::Wait {
            self.broke("gap", format!("{place} is missing, and the key still waits for it"));
        } else if job.status != KeyStatus::Waiting {
            self.broke("I5", format!("{place} is missing, and its key is {:?}", job.status));
        }
    }

    fn parked_at_gap(&mut self, key: &Key, record: &Record) {
        let next = record.job.next;
        let asked = self.tries.asked_for(key, next);
        if self.plan.settings.gap.on_exhausted != ExhaustedPolicy::Park {
            self.broke("gap", format!("{} is parked", at(key, next)));
        } else if record.spill.contains_key(&next) {
            self.broke("I5", format!("{} is held, and parked as missing", at(key, next)));
        } else if asked < self.rounds_due() {
            self.broke("gap", format!("{} is parked after {asked} rounds", at(key, next)));
        }
    }

    /// Checks that every delivered event has one fate.
    fn fates(&mut self, unacknowledged: &[&Item], store: &Store) {
        let all: Vec<Arc<Event>> = self.known.contents.values().flatten().cloned().collect();
        for event in all {
            let place = at(event.key(), event.sequence().unwrap_or(0));
            let open = unacknowledged
                .iter()
                .any(|item| matches!(item, Item::Event(other) if **other == *event));
            let fates = self.fates_of(&event, store);
            if fates.is_empty()
                && !open
                && !self.is_covered(&event, store)
                && self.was_taken(&event)
                && !self.was_forgotten_in_a_former_life(&event)
            {
                self.broke("I5", format!("{place} ({event:?}) is neither settled nor held"));
            }
            // A key may have ended while its spilled events could not be read. Then an event may have a letter, and
            // also still be spilled.
            let unread = self.is_unread(event.key());
            if fates.len() > 1 && !unread && !self.may_have(&fates) {
                self.broke("I5", format!("{place} ({event:?}) has several fates: {fates:?}"));
            }
        }
    }

    /// Returns whether the sequence of the event was settled in an earlier life of its key, whose record expired. In
    /// that life, the event may have counted as a repeat of the settled event, because the store could no longer
    /// distinguish the two events.
    fn was_forgotten_in_a_former_life(&self, event: &Event) -> bool {
        let model = self.keys.get(event.key());
        let number = event.sequence();
        let lives = model.into_iter().flat_map(|model| &model.former);
        number.is_some_and(|sequence| lives.into_iter().any(|life| life.contains_key(&sequence)))
    }

    /// Returns whether an owner has acknowledged a delivery of the event. An event that was never delivered, but only
    /// found by a replay, need not have a fate.
    fn was_taken(&self, event: &Event) -> bool {
        self.acknowledged_events.contains(&(Key::from(event.key()), event.content()))
    }

    fn fates_of(&self, event: &Arc<Event>, store: &Store) -> Vec<String> {
        let mut fates: Vec<String> =
            self.letters_with(event).iter().map(|l| l.cause.name().to_owned()).collect();
        if self.is_spilled(event, store) {
            fates.push("held".into());
        }
        let Some(model) = self.keys.get(event.key()) else { return fates };
        let number = self.number_of(model, event);
        let settled = number.into_iter().flat_map(|sequence| model.settlements(sequence));
        let effects = settled
            .filter(|s| matches!(s, Settled::Effect(other) if other.content() == event.content()));
        fates.extend(effects.map(|_| "effect".to_owned()));
        fates
    }

    /// Returns whether the event may have all of these fates. Two fates are possible in two cases.
    ///
    /// In the first case, the event got a dead letter, because it was too far ahead, its key was full, or its key
    /// record could not be read. Later, the event arrived again.
    ///
    /// In the second case, the event got a dead letter because the owner held another event with the same sequence.
    /// Then either the other event was lost with its owner, and this event arrived first the next time; or this event
    /// arrived again after the end of its key.
    fn may_have(&self, fates: &[String]) -> bool {
        let aside = |fate: &&String| {
            let early = [Cause::FarAhead, Cause::Overflow, Cause::Corrupt]
                .iter()
                .any(|c| c.name() == **fate);
            let late = fates.iter().any(|fate| fate == Cause::AfterEnd.name());
            early || (self.deaths > 0 || late) && **fate == Cause::Conflict.name()
        };
        self.jobs_expire() || fates.iter().filter(|fate| !aside(fate)).count() <= 1
    }

    /// Checks that the blocked key does not delay the other keys.
    fn isolated(&mut self, produced: u64) {
        let Some(blocked) = self.plan.handler.blocked else { return };
        let late = self.keys.iter().find(|(key, model)| {
            ***key != *BLOCKED_KEY && model.settled_at > produced + ISOLATION_MS
        });
        if let Some((key, model)) = late {
            let detail = format!("{key:?} had to wait until {} ({blocked:?})", model.settled_at);
            self.broke("I6", detail);
        }
        let due = self.plan.settings.first + 1;
        if blocked == Blocked::Gap && self.next(&Key::from(BLOCKED_KEY)) > due {
            let gap = self.plan.settings.gap.on_exhausted;
            if gap != ExhaustedPolicy::Skip {
                self.broke("I1", format!("{BLOCKED_KEY} continued without #{due}"));
            }
        }
    }
}
