//! The ids that a key of a `fifo` stream has taken, by which a redelivery is known.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::job::TakenId;

#[derive(Debug, Default)]
pub(super) struct Ids {
    by_id: HashMap<u64, (u64, u32), FixedState>,
    /// In order of their sequences.
    order: VecDeque<(u64, u64)>,
}

/// Bytes for one id in both tables, roughly.
const ID_MEMORY: usize = 48;

impl Ids {
    pub(super) fn from_taken(taken: &[TakenId]) -> Self {
        let mut ids = Self::default();
        for id in taken {
            ids.take(*id);
        }
        ids
    }

    /// Sequence and short content under which the id was taken.
    pub(super) fn get(&self, id: u64) -> Option<(u64, u32)> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn take(&mut self, taken: TakenId) {
        self.by_id.insert(taken.id, (taken.sequence, taken.content));
        self.order.push_back((taken.sequence, taken.id));
    }

    /// Forgets all but the newest `limit`, but nothing from `keep` on, whose events are not yet
    /// durable. Returns the first sequence that is remembered.
    pub(super) fn trim(&mut self, limit: usize, keep: u64) -> u64 {
        while self.order.len() > limit {
            let Some(&(sequence, id)) = self.order.front() else { break };
            if sequence >= keep {
                break;
            }
            self.order.pop_front();
            if self.by_id.get(&id).is_some_and(|taken| taken.0 == sequence) {
                self.by_id.remove(&id);
            }
        }
        self.order.front().map_or(0, |&(sequence, _)| sequence)
    }

    /// Forgets the ids of this sequence and all after it: their events end without a number.
    pub(super) fn forget_from(&mut self, from: u64) {
        while self.order.back().is_some_and(|&(sequence, _)| sequence >= from) {
            let (sequence, id) = self.order.pop_back().expect("it was just looked at");
            if self.by_id.get(&id).is_some_and(|taken| taken.0 == sequence) {
                self.by_id.remove(&id);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.order.len() * ID_MEMORY
    }
}
