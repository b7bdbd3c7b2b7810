//! An owner of a partition: a sequencer and the state of its driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_core::{Input, Rollout};

use super::{Action, World};
use crate::boundary::FaultySequencer;
use crate::source::Connection;
use crate::store::Claim;

/// An owner that has started and has not ended.
pub(super) struct Owner {
    pub(super) partition: u32,
    pub(super) claim: Claim,
    pub(super) sequencer: FaultySequencer,
    pub(super) connection: Connection,
    /// The owner's clock at virtual time 0.
    pub(super) clock: u64,
    pub(super) rollout: Arc<Rollout>,
    /// The rollout whose version the owner's workers execute; `None` if the owner lacks the version of its rollout.
    pub(super) version: Option<Arc<Rollout>>,
    /// The end of the last publication of each shard. The next publication must not end earlier.
    pub(super) published_at: BTreeMap<u32, u64>,
    /// The owner crashes after this number of further effects.
    pub(super) dies_after: Option<u64>,
    /// Virtual time at which the owner's drain ends, even if events still run; `None` without a drain.
    pub(super) drains_until: Option<u64>,
    /// Counts consecutive rounds in which the owner's timeout had passed, and the owner requested nothing.
    pub(super) idle_rounds: u32,
    pub(super) quiescent_at: u64,
    /// The virtual time of the owner's earliest wake-up on the agenda.
    pub(super) wakes_at: Option<u64>,
}

impl Owner {
    /// Returns whether a drain of the owner is over: all executed events are committed and published, or the time limit
    /// has passed.
    pub(super) fn has_drained(&self, now: u64) -> bool {
        let stats = self.sequencer.stats();
        let busy = stats.turns + stats.ahead + stats.outbox > 0;
        self.drains_until.is_some_and(|until| !busy || until <= now)
    }
}

impl World {
    /// First publishes the messages that the earlier owner left in the outbox, or schedules their publication.
    pub(super) fn start(&mut self, partition: u32) {
        let (claim, commits) = self.store.claim(partition, self.rng.next());
        // The simulated store goes back no further than to the last claim.
        self.snapshot = None;
        self.owners_born += 1;
        let id = self.owners_born;
        self.trace.line(self.now, &format!("owner {id} claims {partition} at {commits:?}"));
        let mut settings = self.plan.settings.clone();
        settings.partition = partition;
        // The owner may know only the previous rollout (`lags`), and may lack the version of its rollout (`lacks`).
        let mut lacks = false;
        let mut lags = false;
        if self.plan.disturb.versions > 0 {
            lacks = self.rng.permille(200);
            lags = self.rng.permille(300);
        }
        let rollout = Arc::clone(if lags { &self.previous_rollout } else { &self.rollout });
        let version = (!lacks).then(|| Arc::clone(&rollout));
        settings.rollout.clone_from(&version);
        settings.seed = self.rng.next();
        let clock = self.rng.below(1_000_000);
        let now = clock + self.now;
        let mut sequencer = FaultySequencer::new(settings, &commits, now, self.boundary_fault);
        #[cfg(feature = "faults")]
        if let Some(fault) = self.core_fault {
            sequencer.inject(fault);
        }
        let published_at = self.publish_backlog(id, partition, clock, &mut sequencer);
        let open_at = self.now + self.rng.below(50);
        let owner = Owner {
            partition,
            claim,
            sequencer,
            connection: self.sources[partition as usize].connect(open_at),
            clock,
            rollout: Arc::clone(&rollout),
            version: version.clone(),
            published_at,
            dies_after: None,
            drains_until: None,
            idle_rounds: 0,
            quiescent_at: 0,
            wakes_at: None,
        };
        self.checker.owner_started(id, &commits, version.as_deref());
        self.owners.insert(id, owner);
        self.partitions_of.insert(id, partition);
        self.current[partition as usize] = Some(id);
        self.schedule(0, Action::Wake(id));
        if lags {
            // The owner will change from the previous version to the newest version.
            self.checker.version_changed();
        }
        if lacks || lags {
            let wait = self.rng.below(3_000);
            self.schedule(wait, Action::ReceiveRollout(id, Arc::clone(&self.rollout), true));
        }
    }

    /// The messages are from an earlier owner. If the sink needs time, schedules the publication of each shard, and
    /// returns its end.
    fn publish_backlog(
        &mut self,
        id: u64,
        partition: u32,
        clock: u64,
        sequencer: &mut FaultySequencer,
    ) -> BTreeMap<u32, u64> {
        let mut published_at = BTreeMap::new();
        for shard in 0..self.plan.settings.shards {
            let wait = self.sink_latency();
            for (number, posts) in self.store.outbox(partition, shard) {
                if wait == 0 {
                    for post in &posts {
                        self.checker.published(post);
                    }
                    self.store.outbox_done(partition, shard, number);
                    continue;
                }
                let messages = posts.len();
                let left =
                    Input::OutboxBacklog { shard, through: number, messages, bytes: messages };
                sequencer.handle(clock + self.now, left);
                published_at.insert(shard, self.now + wait);
                self.schedule(wait, Action::Publish { owner: id, shard, number, posts });
            }
        }
        published_at
    }
}
