//! Decides what happens to an arriving event if its sequence or id already belongs to a held or settled event, or if
//! its sequence was skipped. The arriving event is a duplicate, a conflict or a late original. A late original is an
//! event that arrives after its sequence was skipped.

use std::sync::Arc;

use super::held::SpillCopy;
use super::letters::{orphan_letter, settling_letter};
use super::{Sequencer, UNVERIFIED_DUPLICATES_LIMIT};
use crate::event::{DeliveryNumber, Event};
use crate::letter::{Cause, DeadLetter, LetterId};

/// Maximum size of the source that the error of a dead letter contains, in bytes. The error omits a longer source.
const SOURCE_TEXT_LIMIT: usize = 512;

impl Sequencer {
    pub(super) fn repeat_of_held(
        &mut self,
        index: u32,
        position: usize,
        delivery: DeliveryNumber,
        event: &Arc<Event>,
    ) {
        let lane = &mut self.lanes[index];
        let held = lane.held.get(position).expect("the caller found the event at this position");
        let sequence = held.sequence;
        if !event.repeats(&held.event) {
            self.dead_letter_conflict(index, sequence, delivery, event);
        } else if held.copy == SpillCopy::Stored {
            self.count_duplicate(delivery);
        } else if held.delivery == 0 {
            // The event arrived early (`Input::ArrivedEarly`) or from replay, and now the source has delivered it.
            lane.held.set_delivery(position, delivery);
        } else if delivery != 0 {
            lane.cold.get_or_init().repeats.push((sequence, delivery));
        }
    }

    pub(super) fn repeat_of_settled(
        &mut self,
        index: u32,
        sequence: u64,
        delivery: DeliveryNumber,
        event: Arc<Event>,
    ) {
        let lane = &mut self.lanes[index];
        if lane.has_unwritten_late() {
            self.defer(index, delivery, event);
            return;
        }
        if lane.skipped(sequence) {
            self.settle_late_original(index, sequence, delivery, event);
            return;
        }
        let record = &lane.record;
        let differs = record.digests.differs(record.next, sequence, event.repeat_digests());
        let differs =
            differs.or_else(|| self.differs_in_history(index, sequence, event.repeat_digests()));
        if differs == Some(true) {
            self.dead_letter_conflict(index, sequence, delivery, &event);
            return;
        }
        self.count_duplicate(delivery);
        if differs.is_none() && event.is_store_numbered() && delivery != 0 {
            self.record_unverified_duplicate(event);
        }
    }

    /// Records that a store-numbered event counts as a duplicate although the sequencer could not compare the event. If
    /// the event is no repeat, it has no effect and no dead letter. An operator must therefore be able to find it.
    fn record_unverified_duplicate(&mut self, event: Arc<Event>) {
        self.stats.unverified_duplicates += 1;
        if self.unverified_duplicates.len() < UNVERIFIED_DUPLICATES_LIMIT {
            self.unverified_duplicates.push(event);
        }
    }

    /// Settles the late original of a skipped sequence. The skip wrote a dead letter without an event. If this letter
    /// stands for only one sequence, the dead letter of the late original replaces it. If this letter stands for
    /// several sequences, it stays.
    fn settle_late_original(
        &mut self,
        index: u32,
        sequence: u64,
        delivery: DeliveryNumber,
        event: Arc<Event>,
    ) {
        let letter = self.late_letter(index, sequence, &event);
        let lane = &mut self.lanes[index];
        let bytes = letter.memory();
        let empty = LetterId::of_skipped(&lane.key, sequence, sequence);
        let chunk = lane.chunk(None, &self.settings);
        // If this chunk also contains the skip, the letter without an event is still in the chunk, and not yet in the
        // store.
        chunk.letters.retain(|letter| letter.id != empty);
        chunk.removed_letters.push(empty);
        chunk.letters.push(letter);
        chunk.late_originals.push((delivery, event));
        chunk.bytes += bytes;
        self.memory += bytes;
    }

    pub(super) fn late_letter(&self, index: u32, sequence: u64, event: &Arc<Event>) -> DeadLetter {
        let error = if self.settings.begins_anywhere {
            "the event arrived after its key had begun at a later sequence, or had skipped its sequence"
        } else {
            "the event arrived after its sequence had been skipped"
        };
        let key = &self.lanes[index].key;
        settling_letter(key, sequence, event, Cause::Late, error.into(), None)
    }

    pub(super) fn count_duplicate(&mut self, delivery: DeliveryNumber) {
        if delivery != 0 {
            self.stats.duplicates += 1;
            self.window.finish(delivery);
        }
    }

    pub(super) fn dead_letter_conflict(
        &mut self,
        index: u32,
        sequence: u64,
        delivery: DeliveryNumber,
        event: &Arc<Event>,
    ) {
        let lane = &self.lanes[index];
        if lane.absence_assumed {
            self.defer(index, delivery, Arc::clone(event));
            return;
        }
        // The lane has only a digest of a settled event. The digest shows neither the source of the event nor whether
        // the store numbered it.
        let other = lane.held.find(sequence).ok().and_then(|position| lane.held.get(position));
        let error = conflict_error(sequence, event, other.map(|held| &*held.event));
        let letter = orphan_letter(&lane.key, sequence, event, Cause::Conflict, error);
        self.queue_orphan_letter(letter, delivery);
    }
}

/// Returns the error of a dead letter `conflict` for an event. `other` is the other event with the same sequence or id;
/// `None` if the other event is settled. `sequence` is the sequence of the other event.
pub(super) fn conflict_error(sequence: u64, event: &Event, other: Option<&Event>) -> String {
    let is_store_numbered =
        event.is_store_numbered() || other.is_some_and(Event::is_store_numbered);
    let difference = if is_store_numbered {
        "the same sequence, but other content or another source or id"
    } else {
        "the same sequence or id, but other content"
    };
    let source = other.map_or_else(String::new, |other| source_text(other.source()));
    format!("another event has {difference}: event {sequence} of the key{source}")
}

/// Returns a text with the source of an event, for the end of an error. The text is empty if the event has no source,
/// or if the source is too long.
fn source_text(source: &str) -> String {
    if source.is_empty() || source.len() > SOURCE_TEXT_LIMIT {
        return String::new();
    }
    format!(", from the source {source:?}")
}
