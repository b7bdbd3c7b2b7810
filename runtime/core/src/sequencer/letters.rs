//! Dead letters: what they say and which write carries them.

use std::sync::Arc;

use super::Sequencer;
use super::window::NO_LANE;
use crate::event::{Delivery, Event, Key, Version, shard_of};
use crate::letter::{Cause, DeadLetter, LetterContent, LetterId};

/// A letter that belongs to no job's progress, and the delivery that ends with it.
#[derive(Debug)]
pub(super) struct FreeLetter {
    pub(super) letter: DeadLetter,
    pub(super) delivery: Delivery,
}

/// Tag of a letter with an event: the same for each delivery of the same event, so that a
/// redelivery puts the same letter.
pub(super) fn tag(event: &Event, cause: Cause) -> u64 {
    let mixed = event.content() ^ event.id_digest().rotate_left(32);
    mixed.wrapping_add(cause as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The letter of an event that never settles under its sequence.
pub(super) fn aside(
    key: &Key,
    sequence: u64,
    event: &Arc<Event>,
    cause: Cause,
    error: String,
) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: Arc::clone(key), sequence, tag: tag(event, cause) },
        cause,
        error,
        origin: None,
        version: None,
        content: LetterContent::Event(Arc::clone(event)),
    }
}

/// The letter that tells how a sequence was settled.
pub(super) fn settling(
    key: &Key,
    sequence: u64,
    event: Option<&Arc<Event>>,
    cause: Cause,
    error: String,
    version: Option<Version>,
) -> DeadLetter {
    DeadLetter {
        id: LetterId {
            key: Arc::clone(key),
            sequence,
            // With the event's content, so that a key born again after its end does not replace
            // a letter of its former life.
            tag: event.map_or(0, |event| tag(event, cause)),
        },
        cause,
        error,
        origin: None,
        version,
        content: event
            .map_or(LetterContent::Nothing, |event| LetterContent::Event(Arc::clone(event))),
    }
}

impl Sequencer {
    /// A delivery that is no event: its letter was made by the decoder.
    pub(super) fn unreadable(&mut self, delivery: Delivery, letter: DeadLetter) {
        self.stats.delivered += 1;
        self.window.open(delivery, NO_LANE, self.now);
        self.free_letter(letter, delivery);
    }

    /// Writes a letter with the next commit of its shard; the delivery ends with it.
    pub(super) fn free_letter(&mut self, letter: DeadLetter, delivery: Delivery) {
        let shard = match &*letter.id.key {
            "" => (letter.id.tag % u64::from(self.settings.shards)) as u32,
            key => shard_of(key, self.settings.shards),
        };
        self.memory += letter.memory();
        self.shards[shard as usize].letters.push_back(FreeLetter { letter, delivery });
    }
}
