//! Performs the effects of an owner. Most effects become actions on the agenda. Acknowledgements happen immediately.

use std::sync::Arc;

use ordain_core::{AppliedCommit, Batch, Effect, StopReason};

use super::{Action, Owner, Reply, World};
use crate::store::{Message, Post};

impl World {
    /// Performs one effect. Returns true if the owner must stop.
    pub(super) fn perform(&mut self, id: u64, owner: &mut Owner, effect: Effect) -> bool {
        match effect {
            Effect::Run(turn) => {
                self.progress = self.now;
                match &owner.version {
                    Some(version) if owner.sequencer.may_run() => self.execute(id, version, &turn),
                    Some(_) => self.schedule(1, Action::Serve(id, Effect::Run(turn))),
                    None => self.schedule(100, Action::Serve(id, Effect::Run(turn))),
                }
            }
            Effect::Commit(batch) => {
                let reply = self.reply();
                let wait = self.latency();
                let claim = owner.claim;
                self.schedule(wait, Action::Commit { owner: id, claim, batch, reply });
            }
            Effect::Ack { through } => self.acknowledge(owner, through),
            Effect::Publish { batch, applied } => self.publish(id, owner, &batch, &applied),
            effect @ (Effect::Load { .. }
            | Effect::ReadSpill { .. }
            | Effect::Replay { .. }
            | Effect::ReadEarlyLetters { .. }
            | Effect::ReadDue { .. }) => {
                let wait = self.latency();
                self.schedule(wait, Action::Serve(id, effect));
            }
            Effect::Stop(stop) => {
                self.stops(id, owner, &stop);
                return true;
            }
        }
        false
    }

    fn reply(&mut self) -> Reply {
        let store = &self.plan.store;
        let before = store.lost_before;
        let after = store.lost_after;
        match self.rng.below(1000) as u32 {
            chance if chance < before / 2 => Reply::Delayed,
            chance if chance < before => Reply::LostBefore,
            chance if chance < before + after => Reply::LostAfter,
            _ => Reply::Received,
        }
    }

    fn acknowledge(&mut self, owner: &mut Owner, through: u64) {
        self.progress = self.now;
        if through > owner.connection.delivered() {
            self.checker.broke(
                "I3",
                format!("an owner acknowledges delivery {through}, which it has not received"),
            );
        }
        let source = &mut self.sources[owner.partition as usize];
        for item in source.acknowledge(&mut owner.connection, through) {
            self.checker.acknowledged(item, &self.store);
        }
    }

    /// Schedules the publication of the messages and dead letters of a batch. If a deliberate fault has removed all of
    /// them, the owner is only notified that the publication is done.
    fn publish(&mut self, id: u64, owner: &mut Owner, batch: &Arc<Batch>, applied: &AppliedCommit) {
        let letters = batch.forwarded(applied).cloned().map(Post::Letter);
        let messages = messages(batch, applied).into_iter().map(Post::Message);
        let posts: Vec<Post> = messages.chain(letters).collect();
        let shard = batch.shard;
        let number = batch.number;
        let earliest = self.now + self.latency() + self.sink_latency();
        let last = owner.published_at.entry(shard).or_default();
        *last = earliest.max(*last);
        let wait = *last - self.now;
        self.schedule(wait, Action::Publish { owner: id, shard, number, posts });
    }

    /// Returns a random delay in ms after which the sink accepts the messages of a commit.
    pub(super) fn sink_latency(&mut self) -> u64 {
        match self.plan.sink_delay {
            0 => 0,
            longest => self.rng.below(longest + 1),
        }
    }

    /// Checks that an owner stops only because a newer owner has claimed the partition.
    fn stops(&mut self, id: u64, owner: &Owner, stop: &StopReason) {
        let newest = self.current[owner.partition as usize] == Some(id);
        if *stop != StopReason::Fenced || newest {
            self.checker.broke("fence", format!("an owner stops without a newer owner: {stop:?}"));
        }
    }
}

fn messages(batch: &Batch, applied: &AppliedCommit) -> Vec<Message> {
    let refused = |index| applied.refused.iter().any(|(other, _)| *other == index);
    let writes = batch.writes.iter().enumerate().filter(|(index, _)| !refused(*index));
    writes
        .flat_map(|(_, write)| {
            let incarnation = match write.record.incarnation {
                0 => applied.time,
                incarnation => incarnation,
            };
            let key = &write.key;
            write.messages.iter().map(move |emitted| Message {
                key: key.clone(),
                incarnation,
                emitted: emitted.clone(),
            })
        })
        .collect()
}
