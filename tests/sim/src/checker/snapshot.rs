//! Sets the checker's model of the store back when the store goes back. The owner must repeat the lost commits. If a
//! message of a lost commit was already published, the repeated commit must give the message the same id.

use std::collections::BTreeMap;

use ordain_core::{DeadLetter, Key, LetterContent, LetterId};

use super::publishing::CommittedOutput;
use super::{Checker, KeyModel};
use crate::store::{RolledBackPart, restore};

/// The checker's model of the store at an earlier time.
#[derive(Debug, Clone)]
pub(crate) struct CheckerSnapshot {
    keys: BTreeMap<Key, KeyModel>,
    letters: BTreeMap<LetterId, DeadLetter>,
    publishing: CommittedOutput,
}

impl Checker {
    pub(crate) fn snapshot(&self) -> CheckerSnapshot {
        CheckerSnapshot {
            keys: self.keys.clone(),
            letters: self.letters.clone(),
            publishing: self.publishing.clone(),
        }
    }

    /// `lost` has the number of the newest lost commit of each shard.
    pub(crate) fn went_back(
        &mut self,
        then: &CheckerSnapshot,
        part: RolledBackPart,
        lost: &BTreeMap<u32, u64>,
    ) {
        restore(&mut self.keys, &then.keys, |key| part.key(key));
        restore(&mut self.letters, &then.letters, |id| part.letter(id));
        self.letter_index.clear();
        for (id, letter) in &self.letters {
            if let LetterContent::Event(event) = &letter.content {
                let index = (Key::from(event.key()), event.content());
                self.letter_index.entry(index).or_default().insert(id.clone());
            }
        }
        self.publishing.went_back(&then.publishing, part);
        for owner_model in self.owner_models.values_mut() {
            owner_model.lost.extend(lost);
        }
        // The lanes start again, as they do under a new owner. Therefore a rollback counts like a crash in the limit of
        // repeated attempts.
        self.attempts.crashes += 1;
        self.deaths += 1;
        self.rollback_count += 1;
    }
}
