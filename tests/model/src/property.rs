//! The properties that must always hold, and the properties that at least one run must show.

use stateright::Property;

use crate::owner::{Owner, Phase};
use crate::store::{KeyRecord, Shard};
use crate::world::{DeliveryState, World};
use crate::{Event, Scope};

/// A violation of a rule, found in the step that breaks the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Violation {
    SettledOutOfOrder,
    StaleWrite,
    AppliedTwice,
    WrongAnswer,
    WrongPredecessor,
    TwoOwnersOfOneEpoch,
    LeaseBelowClaim,
    FencedWithoutNewerOwner,
    StoppedWithoutRollback,
    PublishedUncommitted,
    PublishedOutOfOrder,
    RemovedUnpublished,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Findings {
    pub(crate) lost_leases: bool,
    pub(crate) lost_commits: bool,
    pub(crate) repeats_commits: bool,
    pub(crate) broken: Option<Violation>,
}

impl Findings {
    /// Records a broken rule. After leases or shards went back, ignores the rules that even a correct owner may then
    /// break. For example, the owner may have read or published commits before the store lost them. An owner that
    /// repeats lost commits discards what it has read, so its writes must never depend on lost data.
    pub(crate) fn report(&mut self, broken: Violation) {
        let applies = match broken {
            Violation::StaleWrite => !self.lost_commits || self.repeats_commits,
            Violation::PublishedUncommitted => !self.lost_commits,
            Violation::FencedWithoutNewerOwner | Violation::StoppedWithoutRollback => {
                !self.lost_commits && !self.lost_leases
            }
            _ => true,
        };
        if applies {
            self.broken.get_or_insert(broken);
        }
    }
}

/// Returns the properties that must always hold, and the properties that at least one run must show.
pub(crate) fn all() -> Vec<Property<Scope>> {
    let mut all = always();
    all.extend(sometimes());
    all
}

fn always() -> Vec<Property<Scope>> {
    macro_rules! never {
        ($name:literal, $broken:ident) => {
            Property::always($name, |_: &Scope, world: &World| {
                world.findings.broken != Some(Violation::$broken)
            })
        };
    }
    vec![
        Property::always("nothing is lost", |scope, world: &World| !world.has_lost(scope)),
        Property::always("nothing gets stuck", |scope: &Scope, world: &World| {
            (0..scope.partitions()).all(|partition| !world.is_stuck(scope, partition))
        }),
        never!("events of a key settle in order, each once", SettledOutOfOrder),
        never!("a write changes the record that its lane knows", StaleWrite),
        never!("a commit is applied once", AppliedTwice),
        never!("an answer belongs to its own commit", WrongAnswer),
        never!("a commit builds on the previous commit", WrongPredecessor),
        never!("two owners never commit under one epoch", TwoOwnersOfOneEpoch),
        never!("a lease is above every claim", LeaseBelowClaim),
        never!("only a newer lease fences an owner", FencedWithoutNewerOwner),
        never!("an owner stops only if the store went back", StoppedWithoutRollback),
        never!("only committed messages are published", PublishedUncommitted),
        never!("messages of a key are published in order", PublishedOutOfOrder),
        never!("an entry leaves the outbox after its publication", RemovedUnpublished),
    ]
}

fn sometimes() -> Vec<Property<Scope>> {
    vec![
        Property::sometimes("everything is done", |_, world: &World| world.is_done()),
        Property::sometimes("an event waits in the store", |_, world: &World| {
            world.has_record(|record| !record.spilled.is_empty())
        }),
        Property::sometimes("a key is taken over and back", |_, world: &World| {
            world.has_record(|record| record.take_overs > 1)
        }),
        Property::sometimes("a write is refused", |_, world: &World| {
            let shards = world.store.shards.iter();
            shards.flat_map(|shard| &shard.fences).any(|fence| !fence.refused.is_empty())
        }),
        Property::sometimes("an owner hands over", |_, world: &World| {
            world.has_owner(Phase::Released)
        }),
        Property::sometimes("an owner is fenced", |_, world: &World| {
            world.has_owner(Phase::Fenced)
        }),
        Property::sometimes("an owner stops", |_, world: &World| world.has_owner(Phase::Stopped)),
        Property::sometimes("an owner repeats a lost commit", |_, world: &World| {
            let mut shards = world.owners.iter().flat_map(|owner| &owner.shards);
            shards.any(|shard_state| shard_state.next_to_repeat.is_some())
        }),
    ]
}

impl World {
    fn has_record(&self, is: fn(&KeyRecord) -> bool) -> bool {
        self.store.shards.iter().flat_map(|shard| shard.records.iter().flatten()).any(is)
    }

    fn has_owner(&self, phase: Phase) -> bool {
        self.owners.iter().any(|owner| owner.phase == phase)
    }

    /// Returns whether an event is acknowledged, but neither settled nor spilled. Always returns false while a shard
    /// may lack commits, because the shard may have lost any event.
    fn has_lost(&self, scope: &Scope) -> bool {
        let lost = |(delivery, event): (&DeliveryState, &Event)| {
            let sequence = event.sequence;
            let durable =
                |record: &KeyRecord| sequence < record.next || record.spilled.has(sequence);
            *delivery == DeliveryState::Acknowledged
                && !self.store.record(scope, event.key).is_some_and(durable)
        };
        !self.may_lack_commits(scope) && self.queue.iter().zip(&scope.queue).any(lost)
    }

    fn may_lack_commits(&self, scope: &Scope) -> bool {
        let is_whole = |(owner, partition): (&Owner, &u8)| {
            owner.phase == Phase::Alive
                && (0..owner.shards.len()).all(|shard| self.has_commits(*partition, owner, shard))
        };
        self.findings.lost_commits
            && !(scope.repeats_commits && self.owners.iter().zip(&scope.leases).all(is_whole))
    }

    /// Returns whether a shard has the owner's claim, and all commits that the store has applied as far as the owner
    /// knows.
    pub(crate) fn has_commits(&self, partition: u8, owner: &Owner, shard: usize) -> bool {
        let fence = &self.store.shards[shard].fences[usize::from(partition)];
        let known = &owner.shards[shard];
        fence.claim == owner.claim && fence.number >= known.number && known.next_to_repeat.is_none()
    }

    fn is_done(&self) -> bool {
        let empty = |shard: &Shard| shard.outbox.iter().all(Vec::is_empty);
        self.queue.iter().all(|delivery| *delivery == DeliveryState::Acknowledged)
            && !self.has_record(|record| !record.spilled.is_empty())
            && self.store.shards.iter().all(empty)
    }

    /// Returns whether the newest owner of a partition has work, but no possible step makes progress. An owner with
    /// work must be able to make progress by a step of its own. It must depend neither on another owner nor on an event
    /// that does not exist.
    fn is_stuck(&self, scope: &Scope, partition: u8) -> bool {
        let started =
            |id: &usize| scope.leases[*id] == partition && self.owners[*id].phase != Phase::Waiting;
        let Some(id) = (0..self.owners.len()).rfind(started) else { return false };
        if self.findings.broken.is_some()
            || self.may_lack_commits(scope)
            || self.owners[id].is_disconnected
            || !self.owners[id].has_claimed_all()
            || !self.has_work(scope, id)
        {
            return false;
        }
        // The owner is not stuck if only the scope's limit of take-overs prevents a load: the protocol has no such
        // limit.
        let barred = |key: u8| {
            self.needs_load(scope, id, key) && self.would_take_over(scope, partition, key).is_none()
        };
        let mut actions = Vec::new();
        self.actions_of(scope, id, &mut actions);
        let makes_progress = actions.into_iter().any(|action| self.makes_progress(scope, action));
        !makes_progress && !(0..scope.keys).any(barred)
    }

    /// Returns whether the owner has work that it can do without another owner.
    fn has_work(&self, scope: &Scope, id: usize) -> bool {
        let partition = scope.leases[id];
        let runnable = |record: &KeyRecord| record.partition == partition && record.is_runnable();
        let has_work = |shard: &Shard| {
            shard.records.iter().flatten().any(runnable)
                || !shard.outbox[usize::from(partition)].is_empty()
        };
        // Without spilling, an event may have to wait for an event that another owner has.
        let next = |key: u8| self.store.record(scope, key).map_or(1, |record| record.next);
        // A finished delivery that waits for the acknowledgement of earlier deliveries is no work.
        let owner = &self.owners[id];
        let open = owner.unacknowledged.without(owner.finished);
        let open_events = open.iter().map(|position| scope.event(position));
        let mut runnable =
            open_events.filter(|event| scope.spills || event.sequence <= next(event.key));
        runnable.next().is_some() || self.store.shards.iter().any(has_work)
    }
}
