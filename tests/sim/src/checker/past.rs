//! Takes the checker's model of the store back when the store goes back. The owner must repeat the lost commits. If a
//! message of a lost commit was already published, the repeated commit must give the message the same id.

use std::collections::BTreeMap;

use ordain_core::{DeadLetter, Key, LetterContent, LetterId};

use super::publishing::Publishing;
use super::{Checker, KeyModel};
use crate::store::{Which, restore};

/// The checker's model of the store at an earlier time.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    keys: BTreeMap<Key, KeyModel>,
    letters: BTreeMap<LetterId, DeadLetter>,
    publishing: Publishing,
}

impl Checker {
    pub(crate) fn past(&self) -> Past {
        Past {
            keys: self.keys.clone(),
            letters: self.letters.clone(),
            publishing: self.publishing.clone(),
        }
    }

    /// Takes the checker's model back together with the store. `lost` has the number of the newest lost commit of each
    /// shard.
    pub(crate) fn went_back(&mut self, then: &Past, which: Which, lost: &BTreeMap<u32, u64>) {
        restore(&mut self.keys, &then.keys, |key| which.key(key));
        restore(&mut self.letters, &then.letters, |id| which.letter(id));
        self.letter_index.clear();
        for (id, letter) in &self.letters {
            if let LetterContent::Event(event) = &letter.content {
                let index = (Key::from(event.key()), event.content());
                self.letter_index.entry(index).or_default().insert(id.clone());
            }
        }
        self.publishing.went_back(&then.publishing, which);
        for watch in self.watches.values_mut() {
            watch.lost.extend(lost);
        }
        // The lanes start again, as they do under a new owner, so the same limits for repeated tries hold.
        self.tries.crashes += 1;
        self.deaths += 1;
        self.times_back += 1;
    }
}
