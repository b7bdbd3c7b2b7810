//! The state of the model, and the effect of each step.

use crate::lane::{Lane, Load};
use crate::owner::{Owner, Phase};
use crate::property::{Broken, Found};
use crate::set::Set;
use crate::store::{Batch, Claim, Reply, Store};
use crate::{Action, Fault, Part, Scope};

/// The state of the model at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(crate) store: Store,
    /// The state that the store may go back to.
    pub(crate) earlier: Option<Store>,
    pub(crate) owners: Vec<Owner>,
    /// The location of each delivery in the queue.
    pub(crate) queue: Vec<Place>,
    /// Commits that may still arrive although no owner waits for the answer, each with its owner and shard.
    pub(crate) late_commits: Vec<(usize, usize, Batch)>,
    /// For each partition, the keys for which a load request may still arrive although no owner waits for the answer.
    pub(crate) asked: Vec<Set>,
    /// For each key, the events whose messages are published.
    pub(crate) published: Vec<Set>,
    pub(crate) left: Left,
    pub(crate) found: Found,
}

/// The numbers of rare steps that may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Left {
    pub(crate) late_loads: u8,
    pub(crate) late_commits: u8,
    pub(crate) goes_back: Vec<Part>,
}

/// The location of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The event waits at the broker.
    Ready,
    /// The broker has delivered the event to the owner with this number.
    Out(usize),
    /// An owner has acknowledged the delivery.
    Gone,
}

impl World {
    pub(crate) fn new(scope: &Scope) -> Self {
        Self {
            store: Store::new(scope),
            earlier: None,
            owners: vec![Owner::default(); scope.leases.len()],
            queue: vec![Place::Ready; scope.queue.len()],
            late_commits: Vec::new(),
            asked: vec![Set::default(); usize::from(scope.partitions())],
            published: vec![Set::default(); usize::from(scope.keys)],
            left: Left {
                late_loads: scope.late_loads,
                late_commits: scope.late_commits,
                goes_back: scope.goes_back.clone(),
            },
            found: Found::default(),
        }
    }

    pub(crate) fn step(&mut self, scope: &Scope, action: Action) {
        match action {
            Action::Lease(id) => self.lease(scope, id),
            Action::Claim(id, shard) => self.claim(scope, id, shard),
            Action::Deliver(id, place) => {
                self.queue[usize::from(place)] = Place::Out(id);
                self.owners[id].deliver(scope, place);
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
                Some(Reply::Rewound) => self.rewound(id),
                None => {}
            },
            Action::Again(id, shard) => {
                let batch = self.owners[id].sides[shard].in_flight.clone();
                self.late_commits.extend(batch.map(|batch| (id, shard, batch)));
                self.left.late_commits -= 1;
            }
            Action::Leave(id, key) => self.owners[id].lanes[usize::from(key)] = None,
            Action::Publish(id, shard) => self.publish_next(scope, id, shard),
            Action::Remove(id, shard) => self.remove(scope, id, shard),
            Action::Release(id) => self.end(id, Phase::Released),
            Action::Cut(id) => {
                let owner = &mut self.owners[id];
                (owner.cut, owner.taken, owner.finished) = (true, Set::default(), Set::default());
                self.give_back(id);
            }
            Action::LateCommit(at) => {
                let (id, shard, batch) = self.late_commits.remove(at);
                self.apply(scope, id, shard, &batch);
            }
            Action::LateLoad(partition, key) => {
                self.left.late_loads -= 1;
                self.store.shards[scope.shard_of(key)].load(scope, partition, key);
            }
            Action::Keep => self.earlier = Some(self.store.clone()),
            Action::GoBack(part) => self.go_back(part),
        }
        self.acknowledge(scope);
        if self.left.late_loads == 0 {
            self.asked.fill(Set::default());
        }
    }

    fn lease(&mut self, scope: &Scope, id: usize) {
        let epoch = self.store.lease(scope, usize::from(scope.leases[id]), &mut self.found);
        self.owners[id].start(scope, Claim { epoch, random: id as u8 + 1 });
    }

    fn claim(&mut self, scope: &Scope, id: usize, shard: usize) {
        let partition = usize::from(scope.leases[id]);
        let owner = &mut self.owners[id];
        let side = &mut self.store.shards[shard];
        if scope.is(Fault::EpochFromFence) {
            owner.claim.epoch = side.fences[partition].claim.epoch + 1;
        }
        match side.claim(scope, partition, owner.claim) {
            Reply::Done(fence) => owner.claimed(shard, &fence, side.outbox[partition].clone()),
            Reply::Fenced => self.fenced(scope, id),
            Reply::Rewound => self.rewound(id),
        }
    }

    fn load(&mut self, scope: &Scope, id: usize, key: u8) {
        let partition = scope.leases[id];
        let job = self.store.shards[scope.shard_of(key)].load(scope, partition, key);
        let asked = &mut self.asked[usize::from(partition)];
        *asked = asked.with(key);
        let lane = &mut self.owners[id].lanes[usize::from(key)];
        lane.get_or_insert_with(|| Lane::new(Load::Wanted)).load = Load::Answered(job);
    }

    fn run(&mut self, scope: &Scope, id: usize, key: u8) {
        self.owners[id].run(scope, key);
        if scope.is(Fault::PublishBeforeCommit) {
            let done = self.owners[id].lane(key).map_or(1, |lane| lane.done);
            self.publish(scope, key, Set::range(done - 1, done));
        }
    }

    fn commit(&mut self, scope: &Scope, id: usize, shard: usize, spill: bool) {
        let batch = self.owners[id].batch(scope, shard, spill);
        self.owners[id].sides[shard].in_flight = batch;
    }

    fn arrive(&mut self, scope: &Scope, id: usize, shard: usize) -> Option<Reply<Set>> {
        let batch = self.owners[id].sides[shard].in_flight.clone()?;
        Some(self.apply(scope, id, shard, &batch))
    }

    fn apply(&mut self, scope: &Scope, id: usize, shard: usize, batch: &Batch) -> Reply<Set> {
        self.store.shards[shard].commit(scope, scope.leases[id], batch, &mut self.found)
    }

    fn publish_next(&mut self, scope: &Scope, id: usize, shard: usize) {
        let side = &mut self.owners[id].sides[shard];
        let entry = side.outbox.remove(0);
        // A commit that wrote several keys has several entries. The commit counts as published after its last entry.
        let is_last = side.outbox.first().is_none_or(|next| next.number > entry.number);
        side.published = if is_last { entry.number } else { entry.number - 1 };
        let before = Set::range(1, entry.events.iter().next().unwrap_or(1));
        if !self.published[usize::from(entry.key)].has_all(before) {
            self.found.note(Broken::PublishedOutOfOrder);
        }
        self.publish(scope, entry.key, entry.events);
    }

    fn publish(&mut self, scope: &Scope, key: u8, events: Set) {
        let next = self.store.job(scope, key).map_or(1, |job| job.next);
        if !events.from(next).is_empty() {
            self.found.note(Broken::PublishedUncommitted);
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
            self.found.note(Broken::RemovedUnpublished);
        }
        let outbox = &mut self.store.shards[shard].outbox[usize::from(scope.leases[id])];
        outbox.retain(|entry| !removed.contains(entry));
    }

    fn go_back(&mut self, part: Part) {
        if let Some(at) = self.left.goes_back.iter().position(|other| *other == part) {
            self.left.goes_back.remove(at);
        }
        self.found.lost_leases |= matches!(part, Part::All | Part::Leases);
        self.found.lost_commits |= part != Part::Leases;
        let earlier = self.earlier.take();
        if let Some(earlier) = earlier {
            self.store.go_back(part, earlier);
        }
    }

    /// Ends an owner because a newer owner has the partition.
    fn fenced(&mut self, scope: &Scope, id: usize) {
        let newer = |other: usize| {
            scope.leases[other] == scope.leases[id] && self.owners[other].phase != Phase::Waiting
        };
        if !(id + 1..self.owners.len()).any(newer) {
            self.found.note(Broken::FencedByOlder);
        }
        self.end(id, Phase::Fenced);
    }

    fn rewound(&mut self, id: usize) {
        self.found.note(Broken::StoppedInVain);
        self.end(id, Phase::Stopped);
    }

    fn end(&mut self, id: usize, phase: Phase) {
        self.owners[id].end(phase);
        self.give_back(id);
    }

    fn give_back(&mut self, id: usize) {
        for place in &mut self.queue {
            if *place == Place::Out(id) {
                *place = Place::Ready;
            }
        }
    }

    /// Lets owners acknowledge their finished deliveries at once. A later acknowledgement would only make the broker
    /// redeliver more events, so the model leaves it out.
    fn acknowledge(&mut self, scope: &Scope) {
        for owner in &mut self.owners {
            for place in owner.acknowledge(scope).iter() {
                self.queue[usize::from(place)] = Place::Gone;
            }
        }
    }
}
