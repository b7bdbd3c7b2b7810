//! The state of the model, and the effect of each step.

use crate::lane::{Lane, Load};
use crate::owner::{Owner, Phase};
use crate::property::{Findings, Violation};
use crate::set::Set;
use crate::store::{Batch, Claim, Reply, Store};
use crate::{Action, Fault, Scope, StorePart};

/// The state of the model at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(crate) store: Store,
    /// The state that the store may go back to.
    pub(crate) earlier: Option<Store>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) queue: Vec<DeliveryState>,
    /// Commits that may still arrive although no owner waits for the answer, each with its owner and shard.
    pub(crate) late_commits: Vec<(usize, usize, Batch)>,
    /// For each partition, the keys for which a load request may still arrive although no owner waits for the answer.
    pub(crate) requested_loads: Vec<Set>,
    /// For each key, the events whose messages are published.
    pub(crate) published: Vec<Set>,
    pub(crate) remaining: RemainingSteps,
    pub(crate) findings: Findings,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RemainingSteps {
    pub(crate) late_loads: u8,
    pub(crate) late_commits: u8,
    pub(crate) goes_back: Vec<StorePart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DeliveryState {
    Ready,
    /// The broker has delivered the event to the owner with this number.
    Delivered(usize),
    Acknowledged,
}

impl World {
    pub(crate) fn new(scope: &Scope) -> Self {
        Self {
            store: Store::new(scope),
            earlier: None,
            owners: vec![Owner::default(); scope.leases.len()],
            queue: vec![DeliveryState::Ready; scope.queue.len()],
            late_commits: Vec::new(),
            requested_loads: vec![Set::default(); usize::from(scope.partitions())],
            published: vec![Set::default(); usize::from(scope.keys)],
            remaining: RemainingSteps {
                late_loads: scope.late_loads,
                late_commits: scope.late_commits,
                goes_back: scope.goes_back.clone(),
            },
            findings: Findings { repeats_commits: scope.repeats_commits, ..Findings::default() },
        }
    }

    pub(crate) fn step(&mut self, scope: &Scope, action: Action) {
        match action {
            Action::Lease(id) => self.lease(scope, id),
            Action::Claim(id, shard) => self.claim(scope, id, shard),
            Action::Deliver(id, position) => {
                self.queue[usize::from(position)] = DeliveryState::Delivered(id);
                self.owners[id].deliver(scope, position);
            }
            Action::Load(id, key) => self.load(scope, id, key),
            Action::Loaded(id, key) => {
                if let Some(lane) = &mut self.owners[id].lanes[usize::from(key)] {
                    lane.loaded();
                }
            }
            Action::Run(id, key) => self.run(scope, id, key),
            Action::Commit(id, shard) => self.commit(scope, id, shard, false),
            Action::Spill(id, shard) => self.commit(scope, id, shard, true),
            Action::Arrive(id, shard) => drop(self.arrive(scope, id, shard)),
            Action::Answer(id, shard) => match self.arrive(scope, id, shard) {
                Some(Reply::Done(refused)) => self.owners[id].applied(scope, shard, refused),
                Some(Reply::Fenced) => self.fenced(scope, id),
                Some(Reply::RolledBack) => self.rolled_back(scope, id, shard),
                None => {}
            },
            Action::Check(id, shard) => self.rolled_back(scope, id, shard),
            Action::Repeat(id, shard) => self.repeat(scope, id, shard),
            Action::Resend(id, shard) => {
                let batch = self.owners[id].shards[shard].in_flight.clone();
                self.late_commits.extend(batch.map(|batch| (id, shard, batch)));
                self.remaining.late_commits -= 1;
            }
            Action::Evict(id, key) => self.owners[id].lanes[usize::from(key)] = None,
            Action::Publish(id, shard) => self.publish_next(scope, id, shard),
            Action::Remove(id, shard) => self.remove(scope, id, shard),
            Action::Release(id) => self.end(id, Phase::Released),
            Action::Disconnect(id) => {
                let owner = &mut self.owners[id];
                (owner.is_disconnected, owner.unacknowledged, owner.finished) =
                    (true, Set::default(), Set::default());
                self.return_deliveries(id);
            }
            Action::LateCommit(at) => {
                let (id, shard, batch) = self.late_commits.remove(at);
                self.apply(scope, id, shard, &batch);
            }
            Action::LateLoad(partition, key) => {
                self.remaining.late_loads -= 1;
                self.store.shards[scope.shard_of(key)].load(scope, partition, key);
            }
            Action::Remember => self.earlier = Some(self.store.clone()),
            Action::GoBack(part) => self.go_back(part),
        }
        self.acknowledge(scope);
        if self.remaining.late_loads == 0 {
            self.requested_loads.fill(Set::default());
        }
    }

    fn lease(&mut self, scope: &Scope, id: usize) {
        let epoch = self.store.lease(scope, usize::from(scope.leases[id]), &mut self.findings);
        self.owners[id].start(scope, Claim { epoch, random: id as u8 + 1 });
    }

    fn claim(&mut self, scope: &Scope, id: usize, shard: usize) {
        let partition = usize::from(scope.leases[id]);
        let owner = &mut self.owners[id];
        let stored = &mut self.store.shards[shard];
        if scope.is(Fault::EpochFromFence) {
            owner.claim.epoch = stored.fences[partition].claim.epoch + 1;
        }
        match stored.claim(scope, partition, owner.claim) {
            Reply::Done(fence) => owner.claimed(shard, &fence, stored.outbox[partition].clone()),
            Reply::Fenced => self.fenced(scope, id),
            Reply::RolledBack => self.rolled_back(scope, id, shard),
        }
    }

    fn load(&mut self, scope: &Scope, id: usize, key: u8) {
        let partition = scope.leases[id];
        let record = self.store.shards[scope.shard_of(key)].load(scope, partition, key);
        let requested_loads = &mut self.requested_loads[usize::from(partition)];
        *requested_loads = requested_loads.with(key);
        let lane = &mut self.owners[id].lanes[usize::from(key)];
        lane.get_or_insert_with(|| Lane::new(Load::Wanted)).load = Load::Answered(record);
    }

    fn run(&mut self, scope: &Scope, id: usize, key: u8) {
        self.owners[id].run(scope, key);
        if scope.is(Fault::PublishBeforeCommit) {
            let next_to_run = self.owners[id].lane(key).map_or(1, |lane| lane.next_to_run);
            self.publish(scope, key, Set::range(next_to_run - 1, next_to_run));
        }
    }

    fn commit(&mut self, scope: &Scope, id: usize, shard: usize, spill: bool) {
        let batch = self.owners[id].batch(scope, shard, spill);
        self.owners[id].shards[shard].in_flight = batch;
    }

    fn arrive(&mut self, scope: &Scope, id: usize, shard: usize) -> Option<Reply<Set>> {
        let batch = self.owners[id].shards[shard].in_flight.clone()?;
        Some(self.apply(scope, id, shard, &batch))
    }

    /// Sends the next lost commit of a shard again. The owner ends if it does not have this commit in memory.
    fn repeat(&mut self, scope: &Scope, id: usize, shard: usize) {
        let Some(batch) = self.owners[id].commit_to_repeat(scope, shard) else {
            return self.end(id, Phase::Stopped);
        };
        match self.apply(scope, id, shard, &batch) {
            Reply::Done(_) => {
                if scope.is(Fault::DueNotRepeated) {
                    self.store.shards[shard].remove_due(&batch);
                }
                self.owners[id].repeated(scope, shard, batch.number);
            }
            Reply::Fenced => self.fenced(scope, id),
            Reply::RolledBack => self.rolled_back(scope, id, shard),
        }
    }

    fn apply(&mut self, scope: &Scope, id: usize, shard: usize, batch: &Batch) -> Reply<Set> {
        self.store.shards[shard].commit(scope, scope.leases[id], batch, &mut self.findings)
    }

    fn publish_next(&mut self, scope: &Scope, id: usize, shard: usize) {
        let shard_state = &mut self.owners[id].shards[shard];
        let is_newest_first = scope.is(Fault::PublishNewestFirst);
        let next = if is_newest_first { shard_state.outbox.len() - 1 } else { 0 };
        let entry = shard_state.outbox.remove(next);
        // A commit that wrote several keys has several entries. The commit counts as published after its last entry.
        let is_last = shard_state.outbox.first().is_none_or(|next| next.number > entry.number);
        shard_state.published = if is_last { entry.number } else { entry.number - 1 };
        let before = Set::range(1, entry.events.iter().next().unwrap_or(1));
        if !self.published[usize::from(entry.key)].has_all(before) {
            self.findings.report(Violation::PublishedOutOfOrder);
        }
        self.publish(scope, entry.key, entry.events);
    }

    fn publish(&mut self, scope: &Scope, key: u8, events: Set) {
        let next = self.store.record(scope, key).map_or(1, |record| record.next);
        if !events.from(next).is_empty() {
            self.findings.report(Violation::PublishedUncommitted);
        }
        let published = &mut self.published[usize::from(key)];
        *published = published.with_all(events);
    }

    fn remove(&mut self, scope: &Scope, id: usize, shard: usize) {
        let removed = self.removable(scope, id, shard);
        let unpublished = removed
            .iter()
            .any(|entry| !self.published[usize::from(entry.key)].has_all(entry.events));
        if unpublished {
            self.findings.report(Violation::RemovedUnpublished);
        }
        let outbox = &mut self.store.shards[shard].outbox[usize::from(scope.leases[id])];
        outbox.retain(|entry| !removed.contains(entry));
    }

    fn go_back(&mut self, part: StorePart) {
        if let Some(at) = self.remaining.goes_back.iter().position(|other| *other == part) {
            self.remaining.goes_back.remove(at);
        }
        self.findings.lost_leases |= matches!(part, StorePart::All | StorePart::Leases);
        self.findings.lost_commits |= part != StorePart::Leases;
        let earlier = self.earlier.take();
        if let Some(earlier) = earlier {
            self.store.go_back(part, earlier);
        }
    }

    /// Ends an owner that the store has fenced. Reports a broken rule if the partition has no newer owner.
    fn fenced(&mut self, scope: &Scope, id: usize) {
        let newer = |other: usize| {
            scope.leases[other] == scope.leases[id] && self.owners[other].phase != Phase::Waiting
        };
        if !(id + 1..self.owners.len()).any(newer) {
            self.findings.report(Violation::FencedWithoutNewerOwner);
        }
        self.end(id, Phase::Fenced);
    }

    /// Handles the answer that the store went back in time. If the shard still has the owner's claim, and the owner
    /// repeats commits, the owner begins to repeat the lost commits of the shard. Otherwise, the owner ends. Reports a
    /// broken rule if nothing went back.
    fn rolled_back(&mut self, scope: &Scope, id: usize, shard: usize) {
        self.findings.report(Violation::StoppedWithoutRollback);
        let fence = &self.store.shards[shard].fences[usize::from(scope.leases[id])];
        if scope.repeats_commits && fence.claim == self.owners[id].claim {
            self.owners[id].begin_repetition(scope, shard, fence.number);
        } else {
            self.end(id, Phase::Stopped);
        }
    }

    fn end(&mut self, id: usize, phase: Phase) {
        self.owners[id].end(phase);
        self.return_deliveries(id);
    }

    fn return_deliveries(&mut self, id: usize) {
        for delivery in &mut self.queue {
            if *delivery == DeliveryState::Delivered(id) {
                *delivery = DeliveryState::Ready;
            }
        }
    }

    /// Lets owners acknowledge their finished deliveries immediately. With a later acknowledgement, the broker would
    /// only redeliver more events, so the model has no later acknowledgements.
    fn acknowledge(&mut self, scope: &Scope) {
        for owner in &mut self.owners {
            for position in owner.acknowledge(scope).iter() {
                self.queue[usize::from(position)] = DeliveryState::Acknowledged;
            }
        }
    }
}
