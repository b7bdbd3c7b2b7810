//! What may happen next.

use crate::lane::Load;
use crate::owner::Phase;
use crate::store::Entry;
use crate::world::{Place, World};
use crate::{Fault, Part, Scope};

/// One step. The first number is the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It gets its lease.
    Lease(usize),
    /// It writes its claim into the fence of a shard.
    Claim(usize, usize),
    /// It is delivered what is in this place of the queue.
    Deliver(usize, u8),
    /// Its request to load a key is answered; it has not heard that yet.
    Load(usize, u8),
    /// It hears the answer.
    Loaded(usize, u8),
    /// It executes the next event of a key.
    Run(usize, u8),
    /// It sends a commit of a shard, with what was executed.
    Commit(usize, usize),
    /// The same, and what is held is spilled.
    Spill(usize, usize),
    /// Its commit of a shard arrives, now or once more, and the answer is lost.
    Arrive(usize, usize),
    /// Its commit of a shard arrives, now or once more, and it hears the answer.
    Answer(usize, usize),
    /// It sends its commit once more; the first may arrive at any time.
    Again(usize, usize),
    /// A lane leaves memory.
    Leave(usize, u8),
    /// It publishes the next entry of a shard's outbox.
    Publish(usize, usize),
    /// What it has published is removed from a shard's outbox.
    Remove(usize, usize),
    /// It gives its partition up in order: it closes its connection, then releases.
    Release(usize),
    /// The broker takes back what it has; it does not know.
    Cut(usize),
    /// A commit that was sent twice arrives when nobody waits for it.
    LateCommit(usize),
    /// A request of this partition to load this key arrives when nobody waits for it.
    LateLoad(u8, u8),
    /// What is in the store now is what it may go back to.
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

    /// Whether the leases of its partition before this one were given.
    fn has_started_before(&self, scope: &Scope, id: usize) -> bool {
        let waits = |other: usize| self.owners[other].phase == Phase::Waiting;
        (0..id).all(|other| scope.leases[other] != scope.leases[id] || !waits(other))
    }

    /// What an owner may do.
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

    /// What would be removed from the outbox if an owner asked for it.
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

    /// Whether an owner has a reason to load a key.
    pub(crate) fn wants_load(&self, scope: &Scope, id: usize, key: u8) -> bool {
        let due = self.store.job(scope, key).and_then(|job| job.due);
        self.owners[id].wants_load(scope, key, due == Some(scope.leases[id]))
    }

    /// Whether an owner gets on by a step of its own. Loading what is known already is no step, nor
    /// is what only gives something up or repeats it.
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

    /// Whether a load takes the job over; `None` where that would be once too often for the scope.
    pub(crate) fn would_take_over(&self, scope: &Scope, partition: u8, key: u8) -> Option<bool> {
        match self.store.job(scope, key) {
            Some(job) if job.partition != partition => {
                (job.take_overs < scope.take_overs).then_some(true)
            }
            _ => Some(false),
        }
    }
}
