//! An owner of a partition: the owner's state in memory, and the changes of this state by deliveries, turns and the
//! store's answers.

use crate::lane::{Lane, Load};
use crate::set::Set;
use crate::store::{Batch, Claim, CommitId, Entry, Fence};
use crate::{Fault, Scope};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The owner has no lease yet.
    #[default]
    Waiting,
    /// A newer owner may have got the next lease.
    Alive,
    Released,
    /// The store has answered that a newer owner exists.
    Fenced,
    /// The store has answered that it went back in time.
    Stopped,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) phase: Phase,
    pub(crate) claim: Claim,
    /// The owner has not noticed the loss of its connection to the broker.
    pub(crate) is_disconnected: bool,
    pub(crate) shards: Vec<OwnerShard>,
    /// The lane of each key; `None` if the owner has no lane of the key.
    pub(crate) lanes: Vec<Option<Lane>>,
    /// The positions of the unacknowledged deliveries in the queue.
    pub(crate) unacknowledged: Set,
    /// Unacknowledged, but the events are durable, as far as the owner knows.
    pub(crate) finished: Set,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct OwnerShard {
    /// True if the fence contains the owner's claim, as far as the owner knows.
    pub(crate) claimed: bool,
    /// The number of the last commit that the owner knows.
    pub(crate) number: u8,
    /// The owner has sent this commit, and waits for the answer.
    pub(crate) in_flight: Option<Batch>,
    /// The owner still has to publish these committed entries.
    pub(crate) outbox: Vec<Entry>,
    /// All outbox entries up to this commit are published.
    pub(crate) published: u8,
    /// The owner's commits, if the owner repeats lost commits ([`Scope::repeats_commits`]).
    pub(crate) history: Vec<Batch>,
    /// `None` if the owner knows of no lost commit.
    pub(crate) next_to_repeat: Option<u8>,
    /// Only the checks of the properties read this field.
    last: CommitId,
}

impl Owner {
    pub(crate) fn start(&mut self, scope: &Scope, claim: Claim) {
        *self = Self {
            phase: Phase::Alive,
            claim,
            shards: vec![OwnerShard::default(); usize::from(scope.shards)],
            lanes: vec![None; usize::from(scope.keys)],
            ..Self::default()
        };
    }

    /// Drops all state of the owner.
    pub(crate) fn end(&mut self, phase: Phase) {
        *self = Self { phase, ..Self::default() };
    }

    pub(crate) fn has_claimed_all(&self) -> bool {
        self.phase == Phase::Alive && self.shards.iter().all(|shard_state| shard_state.claimed)
    }

    /// The owner will also publish the entries that an earlier owner left in the outbox.
    pub(crate) fn claimed(&mut self, shard: usize, fence: &Fence, outbox: Vec<Entry>) {
        let shard_state = &mut self.shards[shard];
        *shard_state = OwnerShard {
            claimed: true,
            number: fence.number,
            last: fence.last,
            outbox,
            ..OwnerShard::default()
        };
    }

    pub(crate) fn lane(&self, key: u8) -> Option<&Lane> {
        self.lanes[usize::from(key)].as_ref()
    }

    pub(crate) fn deliver(&mut self, scope: &Scope, position: u8) {
        self.unacknowledged = self.unacknowledged.with(position);
        let event = scope.event(position);
        // The event with sequence 1 may run without a load: the owner assumes that the key has no record yet.
        let load = if event.sequence == 1 { Load::Done } else { Load::Wanted };
        let lane = &mut self.lanes[usize::from(event.key)];
        lane.get_or_insert_with(|| Lane::new(load)).accept(event.sequence);
    }

    pub(crate) fn run(&mut self, scope: &Scope, key: u8) {
        let Some(lane) = &mut self.lanes[usize::from(key)] else { return };
        lane.next_to_run += 1;
        if scope.is(Fault::AcknowledgeBeforeCommit) {
            let next_to_run = lane.next_to_run;
            let executed = |position: &u8| {
                let event = scope.event(*position);
                event.key == key && event.sequence < next_to_run
            };
            self.finished =
                self.unacknowledged.iter().filter(executed).fold(self.finished, Set::with);
        }
    }

    /// Contains the executed events, and with `spill` also the held events.
    pub(crate) fn batch(&self, scope: &Scope, shard: usize, spill: bool) -> Option<Batch> {
        let shard_state = &self.shards[shard];
        let lanes = (0..).zip(&self.lanes).filter(|(key, _)| scope.shard_of(*key) == shard);
        let writes: Vec<_> =
            lanes.filter_map(|(key, lane)| lane.as_ref()?.write(key, spill)).collect();
        if writes.is_empty() || shard_state.in_flight.is_some() {
            return None;
        }
        let only_spills = writes.iter().all(|write| write.first() == write.next);
        let unfenced = scope.is(Fault::SpillWithoutFence) && only_spills;
        let number = if unfenced { 0 } else { shard_state.number + 1 };
        Some(Batch { claim: self.claim, number, writes, previous: shard_state.last })
    }

    /// Records that the store applied the owner's commit, except for the writes of the `refused` keys.
    pub(crate) fn applied(&mut self, scope: &Scope, shard: usize, refused: Set) {
        let shard_state = &mut self.shards[shard];
        let Some(batch) = shard_state.in_flight.take() else { return };
        if batch.number > 0 {
            shard_state.number = batch.number;
            shard_state.last = batch.commit_id();
        }
        if scope.repeats_commits {
            shard_state.history.push(batch.clone());
        }
        for write in &batch.writes {
            if scope.publishes && !refused.has(write.key) {
                shard_state.outbox.extend(write.entry(batch.number));
            }
            match &mut self.lanes[usize::from(write.key)] {
                Some(lane) if refused.has(write.key) => lane.refused(),
                Some(lane) => lane.written(write, batch.commit_id()),
                None => {}
            }
        }
    }

    /// `stored` is the number of the last commit that the shard has.
    pub(crate) fn begin_repetition(&mut self, scope: &Scope, shard: usize, stored: u8) {
        self.shards[shard].next_to_repeat = Some(stored + 1);
        if scope.is(Fault::ReadsDiscardedEarly) {
            self.discard_reads(scope, shard);
        }
    }

    /// `None` if the owner does not have the commit in memory.
    pub(crate) fn commit_to_repeat(&self, scope: &Scope, shard: usize) -> Option<Batch> {
        let OwnerShard { history, next_to_repeat, .. } = &self.shards[shard];
        let is_next = |batch: &&Batch| Some(batch.number) == *next_to_repeat;
        let mut batch = history.iter().find(is_next)?.clone();
        match scope.fault {
            Some(Fault::RecordNotRepeated) => batch.writes.clear(),
            Some(Fault::SpilledNotRepeated) => {
                batch.writes.iter_mut().for_each(|write| write.spilled = Set::default());
            }
            _ => {}
        }
        Some(batch)
    }

    /// Records that the store has the commit with this number again. If this is the last lost commit, discards the
    /// owner's reads from the shard, and the owner's unanswered commit, which depends on these reads.
    pub(crate) fn repeated(&mut self, scope: &Scope, shard: usize, number: u8) {
        let shard_state = &mut self.shards[shard];
        if number < shard_state.number {
            shard_state.next_to_repeat = Some(number + 1);
            return;
        }
        shard_state.next_to_repeat = None;
        if !scope.is(Fault::OldCommitKept) {
            shard_state.in_flight = None;
        }
        if !scope.is(Fault::OldReadsKept) && !scope.is(Fault::ReadsDiscardedEarly) {
            self.discard_reads(scope, shard);
        }
    }

    /// Removes the lanes of a shard that hold no events. The other lanes keep their held events, drop all results, and
    /// load their key records again.
    fn discard_reads(&mut self, scope: &Scope, shard: usize) {
        let lanes = (0..).zip(&mut self.lanes).filter(|(key, _)| scope.shard_of(*key) == shard);
        for (_, lane) in lanes {
            *lane = lane.take().filter(|lane| !lane.held.is_empty());
            if let Some(lane) = lane {
                lane.refused();
            }
        }
    }

    /// Acknowledges the finished deliveries before the first unfinished one. Returns their positions.
    pub(crate) fn acknowledge(&mut self, scope: &Scope) -> Set {
        let durable = |position: &u8| {
            let event = scope.event(*position);
            self.lane(event.key).is_some_and(|lane| lane.has(event.sequence))
        };
        let finished = self.unacknowledged.iter().filter(durable).fold(self.finished, Set::with);
        let positions = if scope.is(Fault::AcknowledgeBeyondPrefix) {
            let last = finished.iter().last().map_or(0, |last| last + 1);
            self.unacknowledged.without(self.unacknowledged.from(last))
        } else {
            let prefix = self.unacknowledged.iter().take_while(|position| finished.has(*position));
            prefix.fold(Set::default(), Set::with)
        };
        self.unacknowledged = self.unacknowledged.without(positions);
        self.finished = finished.without(positions);
        positions
    }

    /// Returns whether the owner may remove a lane from memory. It may do so if the store has all of the lane's state,
    /// and the owner waits for no answer to a commit of the shard.
    pub(crate) fn may_evict(&self, scope: &Scope, key: u8) -> bool {
        let lane = |lane: &Lane| lane.is_stored() || scope.is(Fault::EvictTooEarly);
        self.shards[scope.shard_of(key)].in_flight.is_none() && self.lane(key).is_some_and(lane)
    }

    /// Returns whether the owner can release its partition: the owner waits for no answer to a commit, and all executed
    /// events are committed.
    pub(crate) fn may_release(&self) -> bool {
        self.shards.iter().all(|shard_state| shard_state.in_flight.is_none())
            && self.lanes.iter().flatten().all(|lane| lane.ahead() == 0)
    }

    /// Returns whether the owner must load a key record, for one of these reasons:
    /// - Events wait for the record.
    /// - The answer to an earlier load was lost.
    /// - The key's next event may have come to another partition.
    /// - The key is due, and has no lane or an idle lane.
    pub(crate) fn needs_load(&self, scope: &Scope, key: u8, is_due: bool) -> bool {
        let shard_state = &self.shards[scope.shard_of(key)];
        let due = |lane: &Lane| is_due && lane.is_idle() && !scope.is(Fault::DueIgnoredByLane);
        shard_state.claimed
            && match self.lane(key) {
                None => is_due,
                Some(lane) if lane.load == Load::Done => {
                    shard_state.in_flight.is_none() && (lane.waits() || due(lane))
                }
                Some(_) => true,
            }
    }
}
