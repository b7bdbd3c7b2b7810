//! Creates dead letters (records of events that ended without effect), and queues the orphan dead letters for a commit.
//! An orphan dead letter belongs to no key record.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Sequencer;
use super::delivery_window::NO_LANE;
use super::held::HeldEvent;
use crate::event::{DeliveryNumber, Event, Key, shard_of};
use crate::key_record::AheadRange;
use crate::letter::{Cause, DeadLetter, LetterContent, LetterId};
use crate::settings::OrderingMode;
use crate::version::VersionName;

/// The letter belongs to no key record. The sequencer acknowledges its delivery when the letter is durable.
#[derive(Debug)]
pub(super) struct OrphanLetter {
    pub(super) letter: DeadLetter,
    pub(super) delivery: DeliveryNumber,
}

/// Returns the tag of a letter that contains an event. The tag is the same for each delivery of the event, so that the
/// letter of a repeated delivery replaces the existing letter.
pub(super) fn tag(event: &Event, cause: Cause) -> u64 {
    tag_of(event.content(), event.identity_digest(), cause)
}

fn tag_of(content: u64, identity: u64, cause: Cause) -> u64 {
    let mixed = content ^ identity.rotate_left(32);
    mixed.wrapping_add(cause as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// No handler executed the event. If no write of a key record contains the letter, it is an orphan dead letter.
pub(super) fn orphan_letter(
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

pub(super) fn settling_letter(
    key: &Key,
    sequence: u64,
    event: &Arc<Event>,
    cause: Cause,
    error: String,
    version: Option<VersionName>,
) -> DeadLetter {
    // The tag contains a digest of the event. If the key starts again after its end, the letters of its new events
    // therefore do not replace the earlier letters.
    let letter = orphan_letter(key, sequence, event, cause, error);
    DeadLetter { version, ..letter }
}

/// Creates the letter of the sequences from `first` to `last`, which are skipped because their events never arrived.
pub(super) fn skip_letter(key: &Key, first: u64, last: u64, error: String) -> DeadLetter {
    DeadLetter {
        id: LetterId::of_skipped(key, first, last),
        cause: Cause::Gap,
        error,
        origin: None,
        version: None,
        content: LetterContent::Nothing,
    }
}

/// Returns the ids of the letters that a held event may have got before its key reached the event. `ahead` is the range
/// of the letters `far-ahead` and `overflow` in the key's record. The record contains this range before such a letter
/// exists. An event outside the range can only have a letter `corrupt`, and only if replay found the event. For an
/// event in the range, the result also contains the ids that earlier versions of Ordain gave its letters, if these ids
/// differ.
pub(super) fn early_letter_ids(
    key: &Key,
    held: &HeldEvent,
    ahead: Option<&AheadRange>,
) -> SmallVec<[LetterId; 1]> {
    let HeldEvent { sequence, event, .. } = held;
    let sequence = *sequence;
    let id = |tag| LetterId { key: Arc::clone(key), sequence, tag };
    if !ahead.is_some_and(|ahead| ahead.spans(sequence)) {
        return held.replayed.then(|| id(tag(event, Cause::Corrupt))).into_iter().collect();
    }
    let [identity, earlier] = event.identity_digests();
    let earlier = (identity != earlier).then_some(earlier);
    let mut ids = SmallVec::new();
    for content in event.content_digests() {
        for identity in std::iter::once(identity).chain(earlier) {
            let causes = Cause::ALL.into_iter().filter(|cause| cause.waits_for_earlier());
            ids.extend(causes.map(|cause| id(tag_of(content, identity, cause))));
        }
    }
    ids
}

impl Sequencer {
    /// Returns the maximum age, in ms, of the dead letters that certainly belong to the lane's key.
    pub(super) fn max_letter_age(&self, index: u32) -> u64 {
        let lane = &self.lanes[index];
        // After its end, a key cannot start again before `complete_ttl` has passed. A dead letter that is older than
        // the key by more than `complete_ttl` may therefore belong to an ended key of the same name.
        let key_age = match lane.record.incarnation {
            0 => 0,
            since => self.store_time(lane.shard).saturating_sub(since),
        };
        self.settings.complete_ttl.saturating_add(key_age)
    }

    /// The decoder has already created the dead letter of the delivery.
    pub(super) fn unreadable(&mut self, delivery: DeliveryNumber, letter: DeadLetter) {
        self.stats.delivered += 1;
        self.window.open(delivery, NO_LANE, self.now);
        self.queue_orphan_letter(letter, delivery);
    }

    /// Queues a letter for the next commit of its shard. After this commit, the delivery may be acknowledged.
    pub(super) fn queue_orphan_letter(&mut self, letter: DeadLetter, delivery: DeliveryNumber) {
        let shard = match &*letter.id.key {
            "" => (letter.id.tag % u64::from(self.settings.shards)) as u32,
            key => shard_of(key, self.settings.shards),
        };
        self.memory += letter.memory();
        self.shards[shard as usize].letters.push_back(OrphanLetter { letter, delivery });
    }

    pub(super) fn dead_letter_overflow(
        &mut self,
        index: u32,
        sequence: u64,
        delivery: DeliveryNumber,
        event: &Arc<Event>,
    ) {
        let sequenced = self.settings.ordering == OrderingMode::Sequenced;
        if sequenced && delivery == 0 {
            // The source will deliver the event, or replay can find it again.
            return;
        }
        if self.lanes[index].absence_assumed || (sequenced && !self.record_ahead(index, sequence)) {
            self.defer(index, delivery, Arc::clone(event));
            return;
        }
        let lane = &self.lanes[index];
        let error = format!(
            "the key is blocked at sequence {} and already holds the {} events that `spill_limit` \
             allows",
            lane.done, self.settings.spill_limit
        );
        let letter = orphan_letter(&lane.key, sequence, event, Cause::Overflow, error);
        self.queue_orphan_letter(letter, delivery);
    }

    pub(super) fn dead_letter_after_end(
        &mut self,
        index: u32,
        sequence: u64,
        delivery: DeliveryNumber,
        event: &Arc<Event>,
    ) {
        if !self.lanes[index].end_is_durable() {
            // The key's end is not durable yet. If the store refuses the write of the end, the key may still execute
            // this event.
            self.defer(index, delivery, Arc::clone(event));
            return;
        }
        let letter = self.after_end_letter(index, sequence, event);
        self.queue_orphan_letter(letter, delivery);
    }

    pub(super) fn after_end_letter(
        &self,
        index: u32,
        sequence: u64,
        event: &Arc<Event>,
    ) -> DeadLetter {
        let lane = &self.lanes[index];
        let error = format!("the key ended with sequence {}", lane.record.next.saturating_sub(1));
        // In a `fifo` stream, Ordain assigned the number, but settled no event under this number. The number therefore
        // does not identify the event.
        let fifo = self.settings.ordering == OrderingMode::Fifo;
        let sequence = if fifo { 0 } else { sequence };
        orphan_letter(&lane.key, sequence, event, Cause::AfterEnd, error)
    }
}
