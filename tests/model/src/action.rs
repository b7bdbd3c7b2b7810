//! The steps of a run.

use crate::lane::Load;
use crate::owner::Phase;
use crate::store::Entry;
use crate::world::{DeliveryState, World};
use crate::{Fault, Scope, StorePart};

/// A step of a run. If an owner takes the step, the first number identifies the owner, and the second number, if any,
/// is a shard, a key or a position in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The owner gets its lease.
    Lease(usize),
    /// The owner writes its claim into the fence of a shard.
    Claim(usize, usize),
    /// The broker delivers the event at this position of the queue to the owner.
    Deliver(usize, u8),
    /// The store answers the owner's request to load a key. The owner has not received the answer yet.
    Load(usize, u8),
    /// The owner receives the answer to its request to load a key.
    Loaded(usize, u8),
    /// The owner executes the next event of a key.
    Run(usize, u8),
    /// The owner sends a commit of a shard, with the executed events.
    Commit(usize, usize),
    /// The owner sends a commit of a shard. This commit also spills the held events.
    Spill(usize, usize),
    /// The owner's commit of a shard arrives at the store, for the first time or once more. The answer is lost.
    Arrive(usize, usize),
    /// The owner's commit of a shard arrives at the store, for the first time or once more. The owner receives the
    /// answer.
    Answer(usize, usize),
    /// The owner checks whether a shard has all of the owner's commits, and finds that the shard lacks commits.
    Check(usize, usize),
    /// The owner repeats the next lost commit of a shard.
    Repeat(usize, usize),
    /// The owner sends its commit again. One of the two copies may arrive at any later time
    /// ([`Action::LateCommit`]).
    Resend(usize, usize),
    /// The owner removes a lane from memory.
    Evict(usize, u8),
    /// The owner publishes the next entry of a shard's outbox.
    Publish(usize, usize),
    /// The store removes the owner's published entries from a shard's outbox.
    Remove(usize, usize),
    /// The owner releases its partition cleanly: the owner closes its connection to the broker, and then releases the
    /// lease.
    Release(usize),
    /// The broker takes back the owner's deliveries, and delivers nothing more to the owner. The owner does not notice.
    Disconnect(usize),
    /// The second copy of a commit ([`Action::Resend`]) arrives, and no owner waits for the answer. The number is the
    /// index of the commit in `late_commits`.
    LateCommit(usize),
    /// A request to load a key arrives so late that no owner waits for the answer. The first number is the partition of
    /// the owner that sent the request; the second number is the key.
    LateLoad(u8, u8),
    /// The present state of the store becomes the state that the store may go back to.
    Remember,
    /// A part of the store goes back to the state of [`Action::Remember`].
    GoBack(StorePart),
}

impl World {
    pub(crate) fn actions(&self, scope: &Scope, actions: &mut Vec<Action>) {
        if self.findings.broken.is_some() {
            return;
        }
        for id in 0..self.owners.len() {
            match self.owners[id].phase {
                Phase::Waiting if self.is_next_lease(scope, id) => {
                    actions.push(Action::Lease(id));
                }
                Phase::Alive => self.actions_of(scope, id, actions),
                _ => {}
            }
        }
        actions.extend((0..self.late_commits.len()).map(Action::LateCommit));
        for (partition, keys) in (0..).zip(&self.requested_loads) {
            let moves = |key: &u8| self.would_take_over(scope, partition, *key) == Some(true);
            actions.extend(keys.iter().filter(moves).map(|key| Action::LateLoad(partition, key)));
        }
        match &self.earlier {
            None if !self.remaining.goes_back.is_empty() => actions.push(Action::Remember),
            Some(earlier) if *earlier != self.store => {
                actions.extend(self.remaining.goes_back.iter().copied().map(Action::GoBack));
            }
            _ => {}
        }
    }

    /// Returns whether the store has given all earlier leases of the owner's partition, so that this lease is the next
    /// lease of the partition.
    fn is_next_lease(&self, scope: &Scope, id: usize) -> bool {
        let waits = |other: usize| self.owners[other].phase == Phase::Waiting;
        (0..id).all(|other| scope.leases[other] != scope.leases[id] || !waits(other))
    }

    pub(crate) fn actions_of(&self, scope: &Scope, id: usize, actions: &mut Vec<Action>) {
        let owner = &self.owners[id];
        let partition = scope.leases[id];
        for (shard, shard_state) in owner.shards.iter().enumerate() {
            if !shard_state.claimed {
                actions.push(Action::Claim(id, shard));
            }
        }
        if owner.has_claimed_all() && !owner.is_disconnected {
            let ready = |position: &usize| {
                self.queue[*position] == DeliveryState::Ready
                    && scope.queue[*position].partition == partition
            };
            let next = (0..self.queue.len()).find(ready);
            actions.extend(next.map(|position| Action::Deliver(id, position as u8)));
        }
        for key in 0..scope.keys {
            self.lane_actions(scope, id, key, actions);
        }
        for shard in 0..owner.shards.len() {
            self.commit_actions(scope, id, shard, actions);
            self.outbox_actions(scope, id, shard, actions);
        }
        if scope.has_successor(id) {
            if owner.may_release() {
                actions.push(Action::Release(id));
            }
            if !owner.unacknowledged.is_empty() {
                actions.push(Action::Disconnect(id));
            }
        }
    }

    fn lane_actions(&self, scope: &Scope, id: usize, key: u8, actions: &mut Vec<Action>) {
        let owner = &self.owners[id];
        if self.needs_load(scope, id, key)
            && self.would_take_over(scope, scope.leases[id], key).is_some()
        {
            actions.push(Action::Load(id, key));
        }
        let Some(lane) = owner.lane(key) else { return };
        if matches!(lane.load, Load::Answered(_)) {
            actions.push(Action::Loaded(id, key));
        }
        if lane.is_runnable() && lane.ahead() < scope.run_ahead {
            actions.push(Action::Run(id, key));
        }
        if scope.evicts_lanes && owner.may_evict(scope, key) {
            actions.push(Action::Evict(id, key));
        }
    }

    fn commit_actions(&self, scope: &Scope, id: usize, shard: usize, actions: &mut Vec<Action>) {
        let owner = &self.owners[id];
        if owner.shards[shard].next_to_repeat.is_some() {
            actions.push(Action::Repeat(id, shard));
            return;
        }
        if owner.shards[shard].in_flight.is_some() {
            actions.extend([Action::Arrive(id, shard), Action::Answer(id, shard)]);
            if self.remaining.late_commits > 0 {
                actions.push(Action::Resend(id, shard));
            }
            return;
        }
        if scope.repeats_commits
            && owner.shards[shard].claimed
            && !self.has_commits(scope.leases[id], owner, shard)
        {
            actions.push(Action::Check(id, shard));
        }
        let plain = owner.batch(scope, shard, false);
        let spill = owner.batch(scope, shard, true).filter(|_| scope.spills);
        if spill.is_some() && spill != plain {
            actions.push(Action::Spill(id, shard));
        }
        if plain.is_some() {
            actions.push(Action::Commit(id, shard));
        }
    }

    fn outbox_actions(&self, scope: &Scope, id: usize, shard: usize, actions: &mut Vec<Action>) {
        if !self.owners[id].shards[shard].outbox.is_empty() {
            actions.push(Action::Publish(id, shard));
        }
        if !self.removable(scope, id, shard).is_empty() {
            actions.push(Action::Remove(id, shard));
        }
    }

    /// The owner's request would remove these entries.
    pub(crate) fn removable(&self, scope: &Scope, id: usize, shard: usize) -> Vec<Entry> {
        let owner = &self.owners[id];
        let partition = usize::from(scope.leases[id]);
        let claim = self.store.shards[shard].fences[partition].claim;
        if claim != owner.claim && !scope.is(Fault::RemoveWithoutClaim) {
            return Vec::new();
        }
        let published = owner.shards[shard].published;
        let is_removable =
            |entry: &&Entry| entry.number <= published || scope.is(Fault::RemoveUnpublished);
        self.store.shards[shard].outbox[partition].iter().filter(is_removable).copied().collect()
    }

    pub(crate) fn needs_load(&self, scope: &Scope, id: usize, key: u8) -> bool {
        let due = self.store.record(scope, key).and_then(|record| record.due);
        self.owners[id].needs_load(scope, key, due == Some(scope.leases[id]))
    }

    /// Returns whether a step is progress for its owner. A load is progress only if it creates or changes the lane.
    /// Five kinds of steps are never progress: the owner removes a lane, releases its partition, loses its deliveries,
    /// or sends a commit again; or the answer to a commit is lost.
    pub(crate) fn makes_progress(&self, scope: &Scope, action: Action) -> bool {
        match action {
            Action::Load(id, key) => {
                let record = self.store.record(scope, key);
                self.owners[id].lane(key).is_none_or(|lane| lane.would_change(record))
            }
            Action::Evict(..)
            | Action::Release(_)
            | Action::Disconnect(_)
            | Action::Arrive(..)
            | Action::Resend(..) => false,
            _ => true,
        }
    }

    /// Returns whether a load for this partition takes the key over from another partition. Returns `None` if the
    /// scope allows no further take-over of the key.
    pub(crate) fn would_take_over(&self, scope: &Scope, partition: u8, key: u8) -> Option<bool> {
        match self.store.record(scope, key) {
            Some(record) if record.partition != partition => {
                (record.take_overs < scope.take_overs).then_some(true)
            }
            _ => Some(false),
        }
    }
}
