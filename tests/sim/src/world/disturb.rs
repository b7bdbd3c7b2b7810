//! Disturbances of the owners: crashes at any step, newer owners that claim a partition while the old owner still runs,
//! lost connections, new handler versions, and a key record that becomes unreadable.

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_core::{Input, Key, Rollout};

/// Time limit of a drain, in ms.
const GRACE_MS: u64 = 30_000;

use super::{DOUBLE_MS, FIRST_VERSION, What, World, decided};

impl World {
    /// Schedules the disturbances.
    pub(super) fn schedule_disturbances(&mut self) {
        let disturb = self.plan.disturb.clone();
        // The time span ends a little after the last event, so that disturbances also happen while events wait.
        let span = self.produced + 2_000;
        for _ in 0..disturb.crashes {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.plan_at(at, What::Crash(partition));
        }
        for _ in 0..disturb.takeovers {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.plan_at(at, What::Takeover(partition));
        }
        for _ in 0..disturb.drains {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.plan_at(at, What::Drain(partition));
        }
        // A finite source is a file, which has no connection to lose.
        for _ in 0..if self.plan.once { 0 } else { disturb.resets } {
            let partition = self.any_partition();
            let at = self.rng.below(span);
            self.plan_at(at, What::Reset(partition));
        }
        for _ in 0..disturb.versions {
            let at = self.rng.below(span);
            self.plan_at(at, What::NewVersion);
        }
        for _ in 0..disturb.steps_back {
            let at = self.rng.below(span);
            let wait = self.rng.pick(&[1, 10, 100, 500]);
            self.plan_at(at, What::Remember(wait));
        }
        if self.plan.store.corrupts {
            let at = self.rng.below(span);
            self.plan_at(at, What::Corrupt);
        }
    }

    fn any_partition(&mut self) -> u32 {
        self.rng.below(u64::from(self.plan.partitions)) as u32
    }

    pub(super) fn disturbance(&mut self, what: What) {
        self.progress = self.now;
        match what {
            // While the store lacks commits, the owner that has them in memory must live on, because no other owner can
            // repeat them.
            What::Crash(_) | What::Takeover(_) | What::Drain(_) if !self.lost.is_empty() => {
                self.plan_at(100, what);
            }
            What::Remember(wait) => self.remember(wait),
            What::GoBack => self.go_back(),
            What::Start(partition) => self.start(partition),
            What::Crash(partition) => self.crash_soon(partition),
            What::Takeover(partition) => self.take_over(partition),
            What::Reset(partition) => self.reset(partition),
            What::Drain(partition) => self.drain_owner(partition),
            What::Kill(owner) => self.kill(owner),
            What::NewVersion => self.new_version(),
            What::Swap(id, decided, is_here) => self.swap(id, decided, is_here),
            What::Corrupt => self.corrupt(),
            _ => {}
        }
    }

    /// Ends the owner of a partition now, or after a few more effects.
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
            self.bury(id, partition);
        }
    }

    fn kill(&mut self, owner: u64) {
        if self.owners.remove(&owner).is_some() {
            self.forget(owner);
        }
    }

    /// Removes an owner. Schedules the start of a new owner, unless a newer owner already exists.
    pub(super) fn bury(&mut self, id: u64, partition: u32) {
        self.trace.line(self.now, &format!("owner {id} is gone"));
        self.forget(id);
        if self.current[partition as usize] == Some(id) {
            self.current[partition as usize] = None;
            let wait = self.rng.pick(&[0, 10, 1_000]);
            self.plan_at(wait, What::Start(partition));
        }
    }

    /// Removes the inputs of an ended owner from the agenda, and stops its publications. Its other requests arrive or
    /// get lost, and no owner receives their replies.
    fn forget(&mut self, id: u64) {
        self.checker.died(id);
        let mut orphans = Vec::new();
        self.agenda.retain(|at, what| {
            match what {
                What::Tell(owner, _) | What::Wake(owner) => return *owner != id,
                What::Commit { owner, .. }
                | What::Serve(owner, _)
                | What::Publish { owner, .. }
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
            if let Some(What::Publish { shard, posts, .. }) = self.agenda.get(&at) {
                // A publication stops at any message. The earlier messages stay published, but are not marked as done.
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

    /// Starts a new owner that claims the partition while the old owner continues and does not notice.
    fn take_over(&mut self, partition: u32) {
        let Some(old) = self.current[partition as usize] else { return };
        self.checker.doubled();
        self.plan_at(DOUBLE_MS, What::Kill(old));
        self.start(partition);
    }

    fn reset(&mut self, partition: u32) {
        let Some(id) = self.current[partition as usize] else { return };
        // The owner is notified of the new connection before the connection delivers anything.
        let wait = self.rng.between(1, self.plan.disturb.offers.unwrap_or(500));
        if let Some(owner) = self.owners.get_mut(&id) {
            let source = &mut self.sources[partition as usize];
            source.reconnect(&mut owner.connection, self.now + wait);
            self.plan_at(0, What::Tell(id, Input::SourceReset));
            if self.plan.windows {
                let window = self.rng.between(1, self.plan.settings.prefetch as u64);
                self.plan_at(0, What::Tell(id, Input::Prefetch(window as usize)));
            }
        }
    }

    /// Drains an owner for a hand-over.
    fn drain_owner(&mut self, partition: u32) {
        let Some(id) = self.current[partition as usize] else { return };
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.drains_until = Some(self.now + GRACE_MS);
            self.plan_at(0, What::Tell(id, Input::Drain));
        }
    }

    /// Starts a rollout of a newer version, or sometimes of an older one. The owners receive the rollout at different
    /// times, and some of them lack the version for a while.
    fn new_version(&mut self) {
        let generation = self.decided.number + 1;
        let name = format!("sim@1.{generation}.0");
        let name = if generation.is_multiple_of(3) { FIRST_VERSION } else { &name };
        self.before = std::mem::replace(&mut self.decided, decided(generation, name));
        self.checker.version_changed();
        let owners: Vec<u64> = self.owners.keys().copied().collect();
        for id in owners {
            let heard = self.rng.pick(&[0, 20, 3_000]);
            let heard = self.rng.below(heard + 1);
            let lacks = self.rng.permille(300);
            self.plan_at(heard, What::Swap(id, Arc::clone(&self.decided), !lacks));
            if lacks {
                let here = heard + self.rng.below(3_000);
                self.plan_at(here, What::Swap(id, Arc::clone(&self.decided), true));
            }
        }
    }

    /// Changes the version of an owner's workers, and then the version of its sequencer. The owner ignores a rollout
    /// that is older than its present rollout.
    fn swap(&mut self, id: u64, decided: Arc<Rollout>, is_here: bool) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        if decided.number < owner.decided.number {
            return;
        }
        let version = is_here.then(|| Arc::clone(&decided));
        owner.decided = decided;
        owner.version.clone_from(&version);
        self.step(id, Some(Input::VersionChanged(version)));
    }

    fn corrupt(&mut self) {
        let keys: Vec<Key> = self.store.records.keys().cloned().collect();
        if !keys.is_empty() {
            let key = keys[self.rng.below(keys.len() as u64) as usize].clone();
            self.store.records.get_mut(&key).expect("the key is one of the store's").corrupt = true;
            self.trace.line(self.now, &format!("the record of {key:?} becomes unreadable"));
            self.checker.corrupted(&key);
        }
    }
}
