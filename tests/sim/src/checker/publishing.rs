//! What is published is what was committed: every message, in order per key, under one id.

use std::collections::BTreeMap;

use ordain_core::{JobWrite, Key};

use super::Checker;
use crate::store::Message;

/// What the id of a message is made of.
type Id = (Key, u64, u64, u32);

#[derive(Debug)]
struct Expected {
    message: ordain_core::Message,
    /// Number among the messages of its key and partition.
    place: usize,
    partition: u32,
    published: bool,
}

/// What was committed and published.
#[derive(Debug, Default)]
pub(super) struct Publishing {
    expected: BTreeMap<Id, Expected>,
    /// Messages of a (partition, key), and how far they have been published.
    counts: BTreeMap<(u32, Key), (usize, usize)>,
}

impl Publishing {
    pub(super) fn committed(&mut self, partition: u32, write: &JobWrite, incarnation: u64) {
        for emitted in &write.messages {
            let counts = self.counts.entry((partition, write.key.clone())).or_default();
            let place = counts.0;
            counts.0 += 1;
            let id = (write.key.clone(), incarnation, emitted.sequence, emitted.index);
            let message = emitted.message.clone();
            self.expected.insert(id, Expected { message, place, partition, published: false });
        }
    }
}

impl Checker {
    /// A message was published.
    pub(crate) fn published(&mut self, message: &Message) {
        let emitted = &message.emitted;
        let id = (message.key.clone(), message.incarnation, emitted.sequence, emitted.index);
        let Some(expected) = self.publishing.expected.get_mut(&id) else {
            return self.broke("publishing", format!("{id:?} was never committed"));
        };
        if expected.message != emitted.message {
            return self.broke("publishing", format!("{id:?} is not what was committed"));
        }
        if expected.published {
            return;
        }
        expected.published = true;
        let counts = self.publishing.counts.get_mut(&(expected.partition, message.key.clone()));
        let counts = counts.expect("it is counted when it is committed");
        if expected.place == counts.1 {
            counts.1 += 1;
        } else {
            let detail =
                format!("{id:?} is number {} of its key, after {}", expected.place, counts.1);
            self.broke("publishing", detail);
        }
    }

    /// At the end nothing is left.
    pub(super) fn all_published(&mut self) {
        let left = self.publishing.expected.iter().find(|(_, expected)| !expected.published);
        if let Some((id, _)) = left {
            self.broke("publishing", format!("{id:?} was committed and never published"));
        }
    }
}
