//! The steps of a run.

use crate::lane::Load;
use crate::owner::Phase;
use crate::store::Entry;
use crate::world::{Place, World};
use crate::{Fault, Part, Scope};

/// A step of a run. In a step of an owner, the first number identifies the owner. The second number, if any, is a
/// shard, a key or a position in the queue.
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
    /// The owner sends a commit of a shard that also spills the held events.
    Spill(usize, usize),
    /// The owner's commit of a shard arrives, for the first time or again, and the answer is lost.
    Arrive(usize, usize),
    /// The owner's commit of a shard arrives, for the first time or again, and the owner receives the answer.
    Answer(usize, usize),
    /// The owner sends its commit again. One of the two copies may arrive at any later time
    /// ([`Action::LateCommit`]).
    Again(usize, usize),
    /// The owner removes a lane from memory.
    Leave(usize, u8),
    /// The owner publishes the next entry of a shard's outbox.
    Publish(usize, usize),
    /// The store removes the owner's published entries from a shard's outbox.
    Remove(usize, usize),
    /// The owner releases its partition cleanly: the owner closes its connection to the broker, and then releases the
    /// lease.
    Release(usize),
    /// The broker takes back the owner's deliveries; the owner does not notice.
    Cut(usize),
    /// The extra copy of a commit arrives ([`Action::Again`]); no owner waits for the answer.
    LateCommit(usize),
    /// A request of this partition to load this key arrives so late that no owner waits for the answer.
    LateLoad(u8, u8),
    /// The present state of the store becomes the state that the store may go back to.
    Keep,
    /// A part of the store goes back.
    GoBack(Part),
}

impl World {
    pub(crate) fn actions(&self, scope: &Scope, actions: &mut Vec<Action>) {
        if self.found.broken.is_some() {
            return;
        }
        for id in 0..self.owners.len() {
            match self.owners[id].phase {
                Phase::Waiting if self.has_started_before(scope, id) => {
                    actions.push(Action::Lease(id));
                }
                Phase::Alive => self.actions_of(scope, id, actions),
                _ => {}
            }
        }
        actions.extend((0..self.late_commits.len()).map(Action::LateCommit));
        for (partition, keys) in (0..).zip(&self.asked) {
            let moves = |key: &u8| self.would_take_over(scope, partition, *key) == Some(true);
            actions.extend(keys.iter().filter(moves).map(|key| Action::LateLoad(partition, key)));
        }
        match &self.earlier {
            None if !self.left.goes_back.is_empty() => actions.push(Action::Keep),
            Some(earlier) if *earlier != self.store => {
                actions.extend(self.left.goes_back.iter().copied().map(Action::GoBack));
            }
            _ => {}
        }
    }

    /// Returns whether the store has given all earlier leases of the owner's partition.
    fn has_started_before(&self, scope: &Scope, id: usize) -> bool {
        let waits = |other: usize| self.owners[other].phase == Phase::Waiting;
        (0..id).all(|other| scope.leases[other] != scope.leases[id] || !waits(other))
    }

    /// Adds the steps that an owner may take.
    pub(crate) fn actions_of(&self, scope: &Scope, id: usize, actions: &mut Vec<Action>) {
        let owner = &self.owners[id];
        let partition = scope.leases[id];
        for (shard, side) in owner.sides.iter().enumerate() {
            if !side.claimed {
                actions.push(Action::Claim(id, shard));
            }
        }
        if owner.has_claimed_all() && !owner.cut {
            let ready = |place: &usize| {
                self.queue[*place] == Place::Ready && scope.queue[*place].partition == partition
            };
            let next = (0..self.queue.len()).find(ready);
            actions.extend(next.map(|place| Action::Deliver(id, place as u8)));
        }
        for key in 0..scope.keys {
            self.lane_actions(scope, id, key, actions);
        }
        for shard in 0..owner.sides.len() {
            self.commit_actions(scope, id, shard, actions);
            self.outbox_actions(scope, id, shard, actions);
        }
        if scope.has_successor(id) {
            if owner.may_release() {
                actions.push(Action::Release(id));
            }
            if !owner.taken.is_empty() {
                actions.push(Action::Cut(id));
            }
        }
    }

    fn lane_actions(&self, scope: &Scope, id: usize, key: u8, actions: &mut Vec<Action>) {
        let owner = &self.owners[id];
        if self.wants_load(scope, id, key)
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
        if scope.leaves && owner.may_leave(scope, key) {
            actions.push(Action::Leave(id, key));
        }
    }

    fn commit_actions(&self, scope: &Scope, id: usize, shard: usize, actions: &mut Vec<Action>) {
        let owner = &self.owners[id];
        if owner.sides[shard].in_flight.is_some() {
            actions.extend([Action::Arrive(id, shard), Action::Answer(id, shard)]);
            if self.left.late_commits > 0 {
                actions.push(Action::Again(id, shard));
            }
            return;
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
        if !self.owners[id].sides[shard].outbox.is_empty() {
            actions.push(Action::Publish(id, shard));
        }
        if !self.removable(scope, id, shard).is_empty() {
            actions.push(Action::Remove(id, shard));
        }
    }

    /// Returns the entries that the store would remove from the outbox at the owner's request.
    pub(crate) fn removable(&self, scope: &Scope, id: usize, shard: usize) -> Vec<Entry> {
        let owner = &self.owners[id];
        let partition = usize::from(scope.leases[id]);
        let claim = self.store.shards[shard].fences[partition].claim;
        if claim != owner.claim && !scope.is(Fault::RemoveWithoutClaim) {
            return Vec::new();
        }
        let published = owner.sides[shard].published;
        let gone = |entry: &&Entry| entry.number <= published || scope.is(Fault::RemoveUnpublished);
        self.store.shards[shard].outbox[partition].iter().filter(gone).copied().collect()
    }

    /// Returns whether an owner has a reason to load a key.
    pub(crate) fn wants_load(&self, scope: &Scope, id: usize, key: u8) -> bool {
        let due = self.store.job(scope, key).and_then(|job| job.due);
        self.owners[id].wants_load(scope, key, due == Some(scope.leases[id]))
    }

    /// Returns whether a step is progress for its owner. A load is progress only if it changes the lane. A step that
    /// only releases or repeats something is no progress.
    pub(crate) fn gets_on(&self, scope: &Scope, action: Action) -> bool {
        match action {
            Action::Load(id, key) => {
                let job = self.store.job(scope, key);
                self.owners[id].lane(key).is_none_or(|lane| lane.would_learn(job))
            }
            Action::Leave(..)
            | Action::Release(_)
            | Action::Cut(_)
            | Action::Arrive(..)
            | Action::Again(..) => false,
            _ => true,
        }
    }

    /// Returns whether a load for this partition takes the key over from another partition. Returns `None` if the
    /// scope allows no further take-over of the key.
    pub(crate) fn would_take_over(&self, scope: &Scope, partition: u8, key: u8) -> Option<bool> {
        match self.store.job(scope, key) {
            Some(job) if job.partition != partition => {
                (job.take_overs < scope.take_overs).then_some(true)
            }
            _ => Some(false),
        }
    }
}
