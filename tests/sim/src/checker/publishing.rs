//! Checks that exactly the committed messages are published: every message, each under one id, and the messages of a
//! key in order. If dead letters are forwarded, every dead letter must also be published.

use std::collections::{BTreeMap, BTreeSet};

use ordain_core::{DeadLetter, EmittedMessage, Key, KeyWrite, LetterId};

use super::Checker;
use crate::store::{Message, Post, RolledBackPart, restore};

/// The id of a message (key, incarnation, sequence, index), without the part that is a digest of the event.
type Id = (Key, u64, u64, u32);

#[derive(Debug, Clone)]
struct ExpectedMessage {
    emitted: EmittedMessage,
    /// The number of the message, from 0, among the messages of its key and partition.
    index: usize,
    partition: u32,
    published: bool,
}

/// The committed messages and dead letters, each with the information whether it is published.
#[derive(Debug, Clone, Default)]
pub(super) struct CommittedOutput {
    expected: BTreeMap<Id, ExpectedMessage>,
    /// By partition and key, the number of committed messages and the number of published messages.
    counts: BTreeMap<(u32, Key), (usize, usize)>,
    /// Committed dead letters. The second value is true if the dead letter has been published.
    letters: BTreeMap<LetterId, Vec<(DeadLetter, bool)>>,
    /// Messages that the store has lost. If such a message is already published, the owner must commit it again.
    lost: BTreeMap<Id, ExpectedMessage>,
    /// Dead letters that the store has lost. If such a dead letter is already published, the owner must commit it
    /// again.
    lost_letters: Vec<(DeadLetter, bool)>,
}

impl CommittedOutput {
    pub(super) fn committed(&mut self, partition: u32, write: &KeyWrite, incarnation: u64) {
        for emitted in &write.messages {
            let counts = self.counts.entry((partition, write.key.clone())).or_default();
            let index = counts.0;
            counts.0 += 1;
            let id = (write.key.clone(), incarnation, emitted.sequence, emitted.index);
            let mut expected =
                ExpectedMessage { emitted: emitted.clone(), index, partition, published: false };
            if let Some(lost) = self.lost.get(&id) {
                if lost.published && lost.emitted != expected.emitted {
                    continue;
                }
                expected.published = lost.published;
                self.lost.remove(&id);
            }
            self.expected.insert(id, expected);
        }
    }

    /// Sets this model back, together with a part of the store, to the earlier state `then`. The part has lost all
    /// later commits, and has its earlier outbox again. Published messages stay published.
    pub(super) fn went_back(&mut self, then: &Self, part: RolledBackPart) {
        let mut lost = self.expected.clone();
        restore(&mut self.expected, &then.expected, |(key, ..)| part.key(key));
        for (id, expected) in &mut self.expected {
            if let Some(known) = lost.remove(id) {
                expected.published = known.published;
            }
        }
        self.lost.extend(lost);
        for (of, counts) in &mut self.counts {
            if part.key(&of.1) {
                counts.0 = then.counts.get(of).map_or(0, |then| then.0);
            }
        }
        for (id, committed) in &mut self.letters {
            if part.letter(id) {
                let length = then.letters.get(id).map_or(0, Vec::len);
                self.lost_letters.extend(committed.drain(length..));
            }
        }
    }
}

impl Checker {
    /// If dead letters are forwarded, records which dead letters of an applied batch must be published. Omits orphan
    /// dead letters that the store already has. Call this method before the checker records the dead letters of the
    /// batch.
    pub(super) fn forwards(&mut self, letters: &[&DeadLetter], orphan_letters: &[DeadLetter]) {
        if !self.plan.settings.forward_letters {
            return;
        }
        let mut seen = BTreeSet::new();
        let new = orphan_letters
            .iter()
            .filter(|letter| seen.insert(&letter.id) && !self.letters.contains_key(&letter.id));
        for letter in letters.iter().copied().chain(new) {
            let lost = &mut self.publishing.lost_letters;
            let index = lost.iter().position(|(other, _)| other == letter);
            let published = index.is_some_and(|index| lost.remove(index).1);
            let committed = self.publishing.letters.entry(letter.id.clone()).or_default();
            committed.push((letter.clone(), published));
        }
    }

    pub(crate) fn published(&mut self, post: &Post) {
        match post {
            Post::Message(message) => self.message_published(message),
            Post::Letter(letter) => self.letter_published(letter),
        }
    }

    fn letter_published(&mut self, letter: &DeadLetter) {
        let committed = self.publishing.letters.get_mut(&letter.id).into_iter().flatten();
        let committed = committed.chain(&mut self.publishing.lost_letters);
        let mut same = committed.filter(|(committed, _)| committed == letter).peekable();
        if same.peek().is_none() {
            let detail = format!("the dead letter {:?} was never committed", letter.id);
            return self.broke("publishing", detail);
        }
        same.for_each(|(_, published)| *published = true);
    }

    fn message_published(&mut self, message: &Message) {
        let emitted = &message.emitted;
        let id = (message.key.clone(), message.incarnation, emitted.sequence, emitted.index);
        let known = self.publishing.expected.get_mut(&id);
        let Some(expected) = known.or_else(|| self.publishing.lost.get_mut(&id)) else {
            return self.broke("publishing", format!("{id:?} was never committed"));
        };
        if expected.emitted != *emitted {
            return self.broke("publishing", format!("{id:?} differs from the committed message"));
        }
        if expected.published {
            return;
        }
        expected.published = true;
        let counts = self.publishing.counts.get_mut(&(expected.partition, message.key.clone()));
        let counts = counts.expect("every committed message is counted");
        if expected.index == counts.1 {
            counts.1 += 1;
        } else {
            let detail = format!(
                "{id:?} is message {} of its key, but is published after {} messages",
                expected.index, counts.1
            );
            self.broke("publishing", detail);
        }
    }

    pub(super) fn all_published(&mut self) {
        let unpublished = self.publishing.expected.iter().find(|(_, expected)| !expected.published);
        if let Some((id, _)) = unpublished {
            self.broke("publishing", format!("{id:?} was committed, but never published"));
        }
        if let Some((id, _)) = self.publishing.lost.iter().find(|(_, lost)| lost.published) {
            let detail = format!("{id:?} was published, but its commit is lost and not repeated");
            return self.broke("publishing", detail);
        }
        if let Some((letter, _)) = self.publishing.lost_letters.iter().find(|lost| lost.1) {
            let detail = format!(
                "the dead letter {:?} was published, but its commit is lost and not repeated",
                letter.id
            );
            return self.broke("publishing", detail);
        }
        let mut letters = self.publishing.letters.values().flatten();
        if let Some((letter, _)) = letters.find(|(_, published)| !published) {
            let detail =
                format!("the dead letter {:?} was committed, but never published", letter.id);
            self.broke("publishing", detail);
        }
    }
}
