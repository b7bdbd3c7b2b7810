//! Checks dead letters: each has a true cause, keeps its whole event, and is never lost.

use std::ops::RangeInclusive;

use ordain_core::{
    Cause, DeadLetter, Event, ExhaustedPolicy, Key, LetterContent, LetterId, OrderingMode,
    OverflowPolicy,
};

use super::{Checker, Settlement, at};
use crate::handler::{self, EventBehavior};
use crate::store::Store;

impl Checker {
    pub(super) fn letter_added(&mut self, letter: &DeadLetter) {
        let label = at(&letter.id.key, letter.id.sequence);
        if let Err(why) = self.check_cause(letter) {
            self.broke(
                "I5",
                format!("{label}: the dead letter has the cause {}, but {why}", letter.cause),
            );
        }
        if let Some(old) = self.letters.insert(letter.id.clone(), letter.clone())
            && old.content != letter.content
            && old.content != LetterContent::Nothing
            && !self.has_expired(&letter.id.key)
        {
            let old = &old.content;
            let new = &letter.content;
            self.broke(
                "I5",
                format!("{label}: a dead letter of {old:?} is overwritten by {new:?}"),
            );
        }
        if let LetterContent::Event(event) = &letter.content {
            let index = (Key::from(event.key()), event.content());
            self.letter_index.entry(index).or_default().insert(letter.id.clone());
            self.record_late_arrival(letter, event);
        }
        if letter.cause.waits_for_earlier() {
            for owner_model in self.owner_models.values_mut() {
                owner_model.early_letter_added(&letter.id);
            }
        }
    }

    /// After an expiry, the sequences of the key begin again, so a new dead letter may get the id of an old dead
    /// letter.
    pub(super) fn has_expired(&self, key: &Key) -> bool {
        self.keys.get(key).is_some_and(|model| !model.former_lives.is_empty())
    }

    /// A letter with the cause `late` shows that the event of a skipped sequence has arrived.
    fn record_late_arrival(&mut self, letter: &DeadLetter, event: &std::sync::Arc<Event>) {
        if letter.cause == Cause::Late {
            let model = self.model(&letter.id.key);
            if letter.id.sequence < model.begin {
                let late = || Settlement::Late(event.clone());
                model.settled.entry(letter.id.sequence).or_insert_with(late);
            }
            for life in model.former_lives.iter_mut().chain([&mut model.settled]) {
                if let Some(settled @ Settlement::Skipped) = life.get_mut(&letter.id.sequence) {
                    *settled = Settlement::Late(event.clone());
                }
            }
        }
    }

    pub(super) fn take_letter(&mut self, id: &LetterId) -> Option<DeadLetter> {
        let letter = self.letters.remove(id)?;
        if let LetterContent::Event(event) = &letter.content
            && let Some(ids) = self.letter_index.get_mut(&(id.key.clone(), event.content()))
        {
            ids.remove(id);
        }
        Some(letter)
    }

    /// The event of the removed letter must be settled, spilled, or in another dead letter.
    pub(super) fn letter_removed(&mut self, letter: &DeadLetter, store: &Store) {
        if let LetterContent::Event(event) = &letter.content
            && !self.is_covered(event, store)
        {
            let label = at(&letter.id.key, letter.id.sequence);
            self.broke("I5", format!("{label}: its only dead letter was removed"));
        }
    }

    /// The letters hold exactly this event.
    pub(super) fn letters_with(&self, event: &Event) -> Vec<&DeadLetter> {
        let index = (Key::from(event.key()), event.content());
        let ids = self.letter_index.get(&index).into_iter().flatten();
        ids.filter_map(|id| self.letters.get(id))
            .filter(
                |letter| matches!(&letter.content, LetterContent::Event(held) if **held == *event),
            )
            .collect()
    }

    /// Returns whether some dead letter holds an event with this id.
    pub(super) fn letters_of(&self, key: &Key, id: u64) -> bool {
        self.versions(key, id).iter().any(|event| !self.letters_with(event).is_empty())
    }

    /// The error states the contradiction.
    fn check_cause(&self, letter: &DeadLetter) -> Result<(), String> {
        let event = match &letter.content {
            LetterContent::Nothing => return self.check_gap_letter(letter),
            LetterContent::Raw(bytes) => {
                let known = letter.cause == Cause::Unreadable && self.received.raw.contains(bytes);
                return known.then_some(()).ok_or("the bytes were never delivered".into());
            }
            LetterContent::Event(event) => event,
        };
        if !self.is_known(event) {
            return Err("the event was never received".into());
        }
        if *event.key() != *letter.id.key {
            return Err("the dead letter has another key".into());
        }
        self.is_cause_true(letter, event)
            .then_some(())
            .ok_or(format!("the cause is not true for {event:?}"))
    }

    /// Only skipped sequences have a dead letter without content.
    fn check_gap_letter(&self, letter: &DeadLetter) -> Result<(), String> {
        let key = &letter.id.key;
        let mut sequences = letter_sequences(letter);
        let id = LetterId::of_skipped(key, *sequences.start(), *sequences.end());
        if letter.cause != Cause::Gap || letter.id != id {
            return Err("the dead letter has no event".into());
        }
        if self.plan.settings.gap.on_exhausted != ExhaustedPolicy::Skip {
            return Err("gaps must not be skipped".into());
        }
        sequences.try_for_each(|sequence| self.check_requested(key, sequence))
    }

    /// Owners must have requested the skipped sequence often enough.
    pub(super) fn check_requested(&self, key: &Key, sequence: u64) -> Result<(), String> {
        let rounds = self.attempts.rounds_for(key, sequence);
        // An owner counts rounds only for the first missing sequence of a key. A round does not request an event that
        // the owner has in memory, but the event may be missing later. If the event was lost with its owner, or went to
        // another partition, a single round is enough. If the event got an `overflow` dead letter because its key was
        // full, no round is needed.
        let alone = self.deaths == 0 && self.plan.partitions == 1;
        let id = |tag| LetterId { key: key.clone(), sequence, tag };
        let mut others = self.letters.range(id(0)..=id(u64::MAX));
        let due = if others.any(|(_, other)| other.cause == Cause::Overflow) {
            0
        } else if alone {
            self.rounds_due()
        } else {
            1
        };
        if rounds < due {
            return Err(format!("event {sequence} was requested only {rounds} times"));
        }
        Ok(())
    }

    /// Returns whether the dead letter's cause is true for its event.
    fn is_cause_true(&self, letter: &DeadLetter, event: &Event) -> bool {
        let settings = &self.plan.settings;
        let sequenced = settings.ordering == OrderingMode::Sequenced;
        let key = &letter.id.key;
        let model = self.keys.get(key);
        let sequence = letter.id.sequence;
        let usable = event.sequence().is_some_and(|s| settings.sequences().contains(&s));
        let behavior = handler::behavior(&self.plan, event);
        match letter.cause {
            Cause::NoKey => event.key().is_empty(),
            Cause::NoSequence => sequenced && !usable,
            Cause::NoId => !sequenced && event.id().is_empty(),
            Cause::Conflict => self.name(event).is_some_and(|name| {
                self.versions(key, name).iter().any(|other| other.content() != event.content())
            }),
            Cause::FarAhead => {
                sequenced && event.sequence().is_some_and(|s| s == u64::MAX || self.was_far(key, s))
            }
            Cause::AfterEnd => self.has_expired(key) || model.is_some_and(|model| model.completed),
            Cause::Late => model.is_some_and(|model| {
                sequence < model.begin
                    || model
                        .settlements(sequence)
                        .any(|s| matches!(s, Settlement::Skipped | Settlement::Late(_)))
            }),
            Cause::Overflow => {
                settings.overflow == OverflowPolicy::DeadLetter && self.may_be_full(key)
            }
            Cause::Rejected => behavior == EventBehavior::Rejected,
            Cause::Retry | Cause::Timeout | Cause::Trap | Cause::Limit | Cause::Error => {
                settings.retry.on_exhausted == ExhaustedPolicy::Skip
                    && behavior.kind().is_some_and(|kind| kind.cause() == letter.cause)
                    && self.attempts.exhausted(key, event.content(), behavior, settings)
            }
            Cause::Corrupt => self.corrupt.contains(key) || self.unread.contains(key),
            Cause::Unreadable | Cause::Gap | Cause::Discarded | Cause::Returned => false,
        }
    }
}

pub(super) fn letter_sequences(letter: &DeadLetter) -> RangeInclusive<u64> {
    letter.id.sequence..=letter.last_sequence().unwrap_or(letter.id.sequence)
}
