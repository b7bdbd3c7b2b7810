//! The remembered ids of a key's events in a `fifo` stream. An arriving event with a remembered id is a repeat or a
//! conflict, unless the two events have different sources. An event without a source counts as an event from any
//! source.
//!
//! The sequencer remembers an id at least while two conditions hold. The id is among the newest `id_window` ids of its
//! key. The event with this id was settled at most `id_ttl` ago. The sequencer remembers the newest `id_floor` ids
//! regardless of their age.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use super::Sequencer;
use super::lane::Lane;
use crate::event::Event;
use crate::key_record::AcceptedId;

#[derive(Debug, Default)]
pub(super) struct IdWindow {
    /// For each digest of an id, the accepted events with this id: usually one event, but several events if several
    /// sources have used the id.
    by_id: HashMap<u64, SmallVec<[KnownEvent; 1]>, FixedState>,
    /// The ids with their sequences, ascending by sequence.
    order: VecDeque<(u64, u64)>,
}

/// An accepted event with a certain id. The fields are those of [`AcceptedId`].
#[derive(Debug)]
struct KnownEvent {
    sequence: u64,
    source: u32,
    content: u32,
}

/// The approximate memory of one id in both tables, in bytes.
const ID_BYTES: usize = 64;

/// The sequencer tolerates this number of ids beyond `id_window`, so that it can remove many ids in one step.
const ID_SLACK_LIMIT: usize = 256;

/// One write removes at most this number of old ids. The store removes one entry per id, so more ids would make the
/// write slow.
const OLD_IDS_LIMIT: usize = 1_000;

impl IdWindow {
    pub(super) fn from_accepted(accepted: &[AcceptedId]) -> Self {
        let mut ids = Self::default();
        for id in accepted {
            ids.insert(*id);
        }
        ids
    }

    /// Returns the sequence and the short content digest of the accepted event that `event` repeats; `None` if no
    /// remembered event has the same id and source. If one of two events with the same id has no source, they count as
    /// the same event.
    pub(super) fn find(&self, event: &Event) -> Option<(u64, u32)> {
        let known = self.by_id.get(&event.id_digest())?;
        let source = event.source_digest();
        let newest =
            |is_same: &dyn Fn(&KnownEvent) -> bool| known.iter().rev().find(|known| is_same(known));
        let found = newest(&|known| known.source == source)
            .or_else(|| newest(&|known| known.source == 0 || source == 0))?;
        Some((found.sequence, found.content))
    }

    pub(super) fn insert(&mut self, accepted: AcceptedId) {
        let AcceptedId { sequence, id, source, content } = accepted;
        self.by_id.entry(id).or_default().push(KnownEvent { sequence, source, content });
        self.order.push_back((sequence, id));
    }

    fn remove(&mut self, sequence: u64, id: u64) {
        if let Entry::Occupied(mut known) = self.by_id.entry(id) {
            known.get_mut().retain(|known| known.sequence != sequence);
            if known.get().is_empty() {
                known.remove();
            }
        }
    }

    /// Returns the first sequence of the newest `count` ids. Returns 0 if the window has no ids older than these.
    fn newest_from(&self, count: usize) -> u64 {
        let first = self.order.len().checked_sub(count.max(1));
        first.filter(|first| *first > 0).map_or(0, |first| self.order[first].0)
    }

    /// Removes the oldest ids until `limit` ids remain. Keeps all ids from sequence `keep` on, even if more than
    /// `limit` ids remain. Returns the first sequence whose id is remembered.
    fn trim(&mut self, limit: usize, keep: u64) -> u64 {
        while self.order.len() > limit {
            let Some(&(sequence, id)) = self.order.front() else { break };
            if sequence >= keep {
                break;
            }
            self.order.pop_front();
            self.remove(sequence, id);
        }
        self.order.front().map_or(keep, |&(sequence, _)| sequence)
    }

    /// Removes the ids from this sequence on, because their events end as dead letters and never use these numbers.
    pub(super) fn forget_from(&mut self, from: u64) {
        while self.order.back().is_some_and(|&(sequence, _)| sequence >= from) {
            let (sequence, id) = self.order.pop_back().expect("the loop condition found an entry");
            self.remove(sequence, id);
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.order.len() * ID_BYTES
    }
}

impl Sequencer {
    /// Returns the time of the store's server for a shard, estimated from the server's newest reply.
    pub(super) fn store_time(&self, shard: u32) -> u64 {
        self.now.wrapping_add(self.shards[shard as usize].store_clock_offset)
    }

    /// Returns the first sequence whose id the lane still has to remember.
    pub(super) fn known_ids_from(&self, lane: &Lane) -> u64 {
        let Some(ids) = &lane.ids else { return 0 };
        let young =
            lane.record.id_times.first_young(self.store_time(lane.shard), self.settings.id_ttl);
        if young == 0 {
            return 0;
        }
        young.min(ids.newest_from(self.settings.id_floor)).min(lane.record.next)
    }

    /// Removes the oldest ids of a lane if they are too old, or if the lane has too many ids. The next write removes
    /// these ids from the store.
    pub(super) fn trim_ids(&mut self, index: u32) {
        let known_from = self.known_ids_from(&self.lanes[index]);
        let id_window = self.settings.id_window;
        let lane = &mut self.lanes[index];
        let Some(ids) = &mut lane.ids else { return };
        if ids.order.len() > id_window + ID_SLACK_LIMIT {
            lane.record.ids_from = ids.trim(id_window, lane.record.next);
        }
        if known_from > lane.record.ids_from {
            let limit = ids.order.len().saturating_sub(OLD_IDS_LIMIT);
            lane.record.ids_from = ids.trim(limit, known_from);
        }
        lane.record.id_times.forget_below(lane.record.ids_from);
    }
}
