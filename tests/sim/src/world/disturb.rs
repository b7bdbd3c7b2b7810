//! Disturbances of the owners: crashes at any step, drains, lost connections, new handler versions, and rollbacks of
//! the store. Newer owners may also claim a partition while the old owner still runs, and a key record may become
//! unreadable.

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_core::{Input, Key, Rollout};

/// Maximum duration of a drain, in ms of virtual time.
const DRAIN_TIMEOUT_MS: u64 = 30_000;

use super::{Action, FIRST_VERSION, TAKEOVER_MS, World, rollout};

impl World {
    pub(super) fn schedule_disturbances(&mut self) {
        let disturb = self.plan.disturb.clone();
        // The time span ends a little after the last event, so that disturbances also happen while events wait.
        let span = self.produced + 2_000;
        for _ in 0..disturb.crashes {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.schedule(at, Action::Crash(partition));
        }
        for _ in 0..disturb.takeovers {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.schedule(at, Action::Takeover(partition));
        }
        for _ in 0..disturb.drains {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.schedule(at, Action::Drain(partition));
        }
        // A finite source is a file, which has no connection to lose.
        for _ in 0..if self.plan.once { 0 } else { disturb.resets } {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.schedule(at, Action::Reset(partition));
        }
        for _ in 0..disturb.versions {
            let at = self.rng.below(span);
            self.schedule(at, Action::NewVersion);
        }
        for _ in 0..disturb.steps_back {
            let at = self.rng.below(span);
            let wait = self.rng.pick(&[1, 10, 100, 500]);
            self.schedule(at, Action::Remember(wait));
        }
        if self.plan.store.corrupts {
            let at = self.rng.below(span);
            self.schedule(at, Action::Corrupt);
        }
    }

    fn any_partition(&mut self) -> u32 {
        self.rng.below(u64::from(self.plan.partitions)) as u32
    }

    pub(super) fn disturbance(&mut self, action: Action) {
        self.progress = self.now;
        match action {
            // While the store lacks commits, the owner that has them in memory must live on, because no other owner can
            // repeat them.
            Action::Crash(_) | Action::Takeover(_) | Action::Drain(_) if !self.lost.is_empty() => {
                self.schedule(100, action);
            }
            Action::Remember(wait) => self.remember(wait),
            Action::GoBack => self.go_back(),
            Action::Start(partition) => self.start(partition),
            Action::Crash(partition) => self.crash_soon(partition),
            Action::Takeover(partition) => self.take_over(partition),
            Action::Reset(partition) => self.reset(partition),
            Action::Drain(partition) => self.drain_owner(partition),
            Action::Kill(owner) => self.kill(owner),
            Action::NewVersion => self.new_version(),
            Action::ReceiveRollout(id, rollout, is_here) => {
                self.receive_rollout(id, rollout, is_here);
            }
            Action::Corrupt => self.corrupt(),
            _ => {}
        }
    }

    /// The owner may end after a few more effects.
    fn crash_soon(&mut self, partition: u32) {
        let soon = self.rng.permille(700).then(|| self.rng.between(1, 12));
        let current = self.current[partition as usize].and_then(|id| self.owners.get_mut(&id));
        match (soon, current) {
            (Some(_), Some(owner)) => owner.dies_after = soon,
            _ => self.crash(partition),
        }
    }

    pub(super) fn crash(&mut self, partition: u32) {
        if let Some(id) = self.current[partition as usize]
            && self.owners.remove(&id).is_some()
        {
            self.remove_owner(id, partition);
        }
    }

    fn kill(&mut self, owner: u64) {
        if self.owners.remove(&owner).is_some() {
            self.forget(owner);
        }
    }

    /// Schedules the start of a new owner, unless a newer owner already exists.
    pub(super) fn remove_owner(&mut self, id: u64, partition: u32) {
        self.trace.line(self.now, &format!("owner {id} has ended"));
        self.forget(id);
        if self.current[partition as usize] == Some(id) {
            self.current[partition as usize] = None;
            let wait = self.rng.pick(&[0, 10, 1_000]);
            self.schedule(wait, Action::Start(partition));
        }
    }

    /// Removes the inputs of an ended owner from the agenda, and stops its publications. Its other requests arrive or
    /// get lost, and no owner receives their replies.
    fn forget(&mut self, id: u64) {
        self.checker.owner_ended(id);
        let mut orphans = Vec::new();
        self.agenda.retain(|at, action| {
            match action {
                Action::Input(owner, _) | Action::Wake(owner) => return *owner != id,
                Action::Commit { owner, .. }
                | Action::Serve(owner, _)
                | Action::Publish { owner, .. }
                    if *owner == id =>
                {
                    orphans.push(*at);
                }
                _ => {}
            }
            true
        });
        let mut cut = BTreeSet::new();
        for at in orphans {
            if let Some(Action::Publish { shard, posts, .. }) = self.agenda.get(&at) {
                // The publication of an ended owner may stop at any message. The messages before this message stay
                // published, but stay in the outbox.
                let all = posts.len();
                let sent = self.rng.below(all as u64 + 1) as usize;
                let sent = if cut.contains(shard) { 0 } else { sent };
                for post in &posts[..sent] {
                    self.checker.published(post);
                }
                if sent < all {
                    cut.insert(*shard);
                }
                self.agenda.remove(&at);
            } else if self.rng.permille(500) {
                self.agenda.remove(&at);
            }
        }
    }

    /// The old owner continues and does not notice.
    fn take_over(&mut self, partition: u32) {
        let Some(old) = self.current[partition as usize] else { return };
        self.checker.partition_taken_over(old);
        self.schedule(TAKEOVER_MS, Action::Kill(old));
        self.start(partition);
    }

    /// May also change the prefetch.
    fn reset(&mut self, partition: u32) {
        let Some(id) = self.current[partition as usize] else { return };
        // The owner is notified of the new connection before the connection delivers anything.
        let wait = self.rng.between(1, self.plan.disturb.offers.unwrap_or(500));
        if let Some(owner) = self.owners.get_mut(&id) {
            let source = &mut self.sources[partition as usize];
            source.reconnect(&mut owner.connection, self.now + wait);
            self.schedule(0, Action::Input(id, Input::SourceReset));
            if self.plan.windows {
                let window = self.rng.between(1, self.plan.settings.prefetch as u64);
                self.schedule(0, Action::Input(id, Input::Prefetch(window as usize)));
            }
        }
    }

    fn drain_owner(&mut self, partition: u32) {
        let Some(id) = self.current[partition as usize] else { return };
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.drains_until = Some(self.now + DRAIN_TIMEOUT_MS);
            self.schedule(0, Action::Input(id, Input::Drain));
        }
    }

    /// Sometimes the rollout is of the first version again. The owners receive the rollout at different times, and some
    /// of them lack the version for a while.
    fn new_version(&mut self) {
        let number = self.rollout.number + 1;
        let name = format!("sim@1.{number}.0");
        let name = if number.is_multiple_of(3) { FIRST_VERSION } else { &name };
        self.previous_rollout = std::mem::replace(&mut self.rollout, rollout(number, name));
        self.checker.version_changed();
        let owners: Vec<u64> = self.owners.keys().copied().collect();
        for id in owners {
            let delay = self.rng.pick(&[0, 20, 3_000]);
            let delay = self.rng.below(delay + 1);
            let lacks = self.rng.permille(300);
            self.schedule(delay, Action::ReceiveRollout(id, Arc::clone(&self.rollout), !lacks));
            if lacks {
                let later = delay + self.rng.below(3_000);
                self.schedule(later, Action::ReceiveRollout(id, Arc::clone(&self.rollout), true));
            }
        }
    }

    /// The workers change before the sequencer. The owner ignores a rollout that is older than its present rollout.
    fn receive_rollout(&mut self, id: u64, rollout: Arc<Rollout>, is_here: bool) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        if rollout.number < owner.rollout.number {
            return;
        }
        let version = is_here.then(|| Arc::clone(&rollout));
        owner.rollout = rollout;
        owner.version.clone_from(&version);
        self.step(id, Some(Input::VersionChanged(version)));
    }

    fn corrupt(&mut self) {
        let keys: Vec<Key> = self.store.records.keys().cloned().collect();
        if !keys.is_empty() {
            let key = keys[self.rng.below(keys.len() as u64) as usize].clone();
            self.store.records.get_mut(&key).expect("the key is from the store").corrupt = true;
            self.trace.line(self.now, &format!("the record of {key:?} becomes unreadable"));
            self.checker.corrupted(&key);
        }
    }
}
