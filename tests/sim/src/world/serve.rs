//! The actions of the store, the remote replay source and the outbox publisher.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ordain_core::{
    AheadRange, Batch, CommitReply, Effect, Event, Input, Key, KeyRecord, KeyStatus, KeyWrite,
    SpillExtent,
};

use super::{Action, Reply, World};
use crate::store::{Claim, Post};

/// After this time, an owner no longer waits for the reply to a commit.
const COMMIT_TIMEOUT_MS: u64 = 100;

impl World {
    /// Processes a commit of an owner: performs the commit now, schedules it for later if it is delayed, or drops it if
    /// it is lost. Schedules the reply.
    pub(super) fn store_commits(
        &mut self,
        owner: u64,
        claim: Claim,
        batch: &Arc<Batch>,
        reply: Reply,
    ) {
        let shard = batch.shard;
        let number = batch.number;
        if reply == Reply::Delayed && self.lost.is_empty() {
            // The owner gets no reply, and sends the commit again. The first copy of the commit arrives some time
            // later.
            let wait = self.rng.below(3 * COMMIT_TIMEOUT_MS);
            let batch = batch.clone();
            self.schedule(wait, Action::Commit { owner, claim, batch, reply: Reply::Unawaited });
            self.reply_unknown(owner, shard, number);
            return;
        }
        if matches!(reply, Reply::LostBefore | Reply::Delayed) {
            self.reply_unknown(owner, shard, number);
            return;
        }
        let Some(partition) = self.partitions_of.get(&owner).copied() else { return };
        let moves_forward = self.moves_forward(batch);
        let (answer, applied) = self.store.commit(partition, claim, batch, self.now);
        self.trace.store(self.now, owner, shard, number, &answer, applied);
        if let (CommitReply::Applied(details), true) = (&answer, applied) {
            if moves_forward {
                self.progress = self.now;
            }
            self.checker.applied(partition, batch, details, &self.store);
            self.record_recommit(shard, number);
        }
        if reply == Reply::Unawaited {
            return;
        }
        if reply == Reply::LostAfter {
            self.reply_unknown(owner, shard, number);
            return;
        }
        let wait = self.latency();
        self.schedule(
            wait,
            Action::Input(owner, Input::Committed { shard, number, reply: answer }),
        );
    }

    /// Returns whether a batch may move a key forward. While reads of spilled events fail, an owner loads the keys of
    /// these events repeatedly. Some of its writes then only repeat the stored key record, with new times.
    fn moves_forward(&self, batch: &Batch) -> bool {
        let changes = |write: &KeyWrite| {
            let stored = self.store.records.get(&write.key).map(|stored| &stored.key_record);
            let adds = !write.spill.is_empty()
                || !write.letters.is_empty()
                || !write.removed_letters.is_empty();
            adds || stored.is_none_or(|stored| position(stored) != position(&write.record))
        };
        self.plan.store.unreadable == 0
            || !batch.letters.is_empty()
            || batch.writes.iter().any(changes)
    }

    /// Schedules the input that reports to the owner that the reply to a commit is missing.
    fn reply_unknown(&mut self, owner: u64, shard: u32, number: u64) {
        let reply = CommitReply::Unknown;
        let input = Input::Committed { shard, number, reply };
        self.schedule(COMMIT_TIMEOUT_MS, Action::Input(owner, input));
    }

    /// The owner may have ended meanwhile. A load takes the key over even then.
    pub(super) fn serve(&mut self, owner: u64, effect: &Effect) {
        let Some(partition) = self.partitions_of.get(&owner).copied() else { return };
        if let Effect::Run(turn) = effect {
            let version = self.owners.get(&owner).and_then(|owner| owner.version.clone());
            let _ = version.inspect(|version| self.execute(owner, version, turn));
            return;
        }
        let mut wait = self.latency();
        let input = match effect {
            Effect::Load { token, key } => {
                let loaded = self.store.load(partition, key, self.now);
                Input::Loaded { token: *token, loaded }
            }
            Effect::ReadSpill { token, key, from, limit, bytes } => {
                let rate = self.plan.store.unreadable;
                let read = if rate > 0 && self.rng.permille(rate) {
                    self.checker.unread(key);
                    Err("simulated: not readable".into())
                } else {
                    Ok(self.store.read_spill(key, *from, *limit, *bytes))
                };
                Input::SpillRead { token: *token, read }
            }
            Effect::Replay { token, key, source, missing, .. } => {
                let (longer, mut found, again) = self.search_source(key, *source, missing);
                wait += longer;
                let mut failed = again.then(|| "again".into());
                let mut until = u64::MAX;
                let rate = self.plan.replay.cut;
                if rate > 0 && *source > 0 && self.rng.permille(rate / 2) {
                    // The source was too busy to search.
                    let first = missing.first().map_or(0, |range| *range.start());
                    found = Vec::new();
                    failed = Some("busy".into());
                    until = first;
                    self.checker.replay_not_searched(owner, key, first);
                }
                if rate > 0 && found.len() > 1 && self.rng.permille(rate) {
                    // The answer has room for only a part of the found events.
                    found.truncate(1 + self.rng.below(found.len() as u64 - 1) as usize);
                    until = found[found.len() - 1].0 + 1;
                    self.checker.replay_cut_short(owner, key, until);
                }
                Input::Replayed { token: *token, found, until, failed }
            }
            Effect::ReadEarlyLetters { token, key, sequences, .. } => {
                let mut letters = self.store.early_letters(key, sequences);
                let mut until = sequences.end() + 1;
                let rate = self.plan.replay.cut;
                if rate > 0 && letters.len() > 1 && self.rng.permille(rate) {
                    // The answer has room for only a part of the letters.
                    letters.truncate(1 + self.rng.below(letters.len() as u64 - 1) as usize);
                    until = letters[letters.len() - 1].id.sequence;
                }
                Input::EarlyLettersRead { token: *token, letters, until }
            }
            Effect::ReadDue { after, limit, all } => {
                let (entries, next_in) =
                    self.store.due(partition, after.as_ref(), *limit, *all, self.now);
                Input::DueRead { entries, next_in }
            }
            _ => return,
        };
        if self.owners.contains_key(&owner) {
            self.schedule(wait, Action::Input(owner, input));
        }
    }

    /// Publishes the messages and dead letters of a commit, and removes them from the outbox.
    pub(super) fn publishes(&mut self, owner: u64, shard: u32, number: u64, posts: &[Post]) {
        let Some(partition) = self.partitions_of.get(&owner).copied() else { return };
        for post in posts {
            self.checker.published(post);
        }
        self.store.outbox_done(partition, shard, number);
        // If more publications of the shard follow, the owner may get one answer for several of them.
        let more = self.agenda.values().any(|action| {
            matches!(action, Action::Publish { owner: other, shard: s, .. } if (*other, *s) == (owner, shard))
        });
        if !(more && self.rng.permille(300)) {
            self.schedule(0, Action::Input(owner, Input::Published { shard, through: number }));
        }
    }

    /// Returns the delay of a replay source's answer, the events in the answer, and whether the answer reports that the
    /// request failed.
    fn search_source(
        &mut self,
        key: &Key,
        source: usize,
        missing: &[RangeInclusive<u64>],
    ) -> (u64, Vec<(u64, Arc<Event>)>, bool) {
        if source == 0 {
            return (0, self.store.find(key, missing), false);
        }
        let again = self.rng.permille(self.plan.replay.again);
        let wait = self.rng.below(self.plan.replay.latency + 1);
        let mut found = Vec::new();
        for ((other, sequence), event) in &self.remote {
            let is_requested = other == key && missing.iter().any(|range| range.contains(sequence));
            if is_requested && !(again && self.rng.permille(500)) {
                found.push((*sequence, event.clone()));
            }
        }
        (wait, found, again)
    }
}

/// Returns the fields of a key record that change when the key moves forward.
fn position(
    record: &KeyRecord,
) -> (u64, KeyStatus, u32, u32, u32, SpillExtent, Option<AheadRange>) {
    let KeyRecord { next, status, attempts, rounds, park_count, spilled, ahead, .. } = record;
    (*next, *status, *attempts, *rounds, *park_count, *spilled, ahead.as_deref().copied())
}
