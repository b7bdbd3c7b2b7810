//! Recovers commits that the store has lost, from the batches that the sequencer keeps in memory.
//!
//! A store goes back in time if a failure removes its newest writes. If the store still has the claim, which identifies
//! the owner, only the latest commits of this owner are lost. The sequencer sends the same batches again, in order and
//! under their numbers. When the store first applied a batch, it may have refused some writes, and it set the times of
//! the other writes. The sequencer now omits the refused writes. It also reuses the times that the store set, so that
//! no message gets another id. If the store now refuses a write that it had applied before, the store does not have the
//! state for which the batches were formed. The owner then gives up the partition.
//!
//! The reply to a commit shows the loss. After a broken connection to the store, the sequencer also queries the store
//! for the newest commit, and the reply to the query shows the loss. Data that the sequencer read before the recovery
//! may be older than the recovered commits. No later reply would reveal that the data is old: the store checks `next`,
//! and a recovered commit that only spilled events does not change `next`. The sequencer therefore undoes everything
//! that may depend on such data. The sequencer replaces the batch in flight (the original batch) by a void batch, whose
//! writes have a condition that never holds. After the recovery, the sequencer loads the lanes of the shard again. The
//! letters of the original batch go into the next batch. The original batch and the void batch have the same number. If
//! an earlier request with the original batch still arrives at the store, the reply shows which of the two batches the
//! store applied.
//!
//! One case remains. A request with the original batch may have been sent after the store went back, and may arrive
//! between the last recovered commit and the void batch. The store then applies the original batch. The sequencer
//! accepts the effects of the original batch, because the store has put the letters of the batch into the outbox. No
//! later batch would write these letters there.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{InFlightBatch, InFlightWrite};
use crate::commit_times::CommitTimes;
use crate::effect::{Effect, StopReason};
use crate::event::Message;
use crate::key_record::{AppliedCommit, Batch, KeyRecord, KeyWrite, StateUpdate, WriteCondition};
use crate::letter::{DeadLetter, LetterContent};
use crate::sequencer::Sequencer;
use crate::sequencer::lane::Lane;
use crate::sequencer::letters::OrphanLetter;
use crate::sequencer::settled_events::SettledEvents;
use crate::settings::{OrderingMode, SequencerSettings};

/// The latest commits of a shard, the newest last. The numbers of these commits have no holes.
#[derive(Debug, Default)]
pub(super) struct CommitHistory {
    commits: VecDeque<KeptCommit>,
    bytes: usize,
    /// The number of the newest commit whose digests are in [`SettledEvents`](crate::sequencer::settled_events).
    collected: u64,
    /// The times of commits, including commits that are no longer in memory.
    times: CommitTimes,
}

#[derive(Debug)]
struct KeptCommit {
    batch: Arc<Batch>,
    applied: AppliedCommit,
    /// One entry for each write that settled more events than its key record has digests. The entry contains the
    /// position of the write, and the sequences and digests of the events whose digests the key record lacks.
    evicted_digests: Vec<(usize, Vec<(u64, u32)>)>,
    bytes: usize,
}

impl CommitHistory {
    /// Records in `settled_events` the digests of the events in the commits that were added since the last call.
    fn collect_digests(&mut self, settled_events: &mut SettledEvents, bytes_limit: usize) {
        let first = self.commits.partition_point(|commit| commit.batch.number <= self.collected);
        for KeptCommit { batch, applied, evicted_digests, .. } in self.commits.range(first..) {
            settled_events.record_commit(batch, applied, evicted_digests, bytes_limit);
            self.collected = batch.number;
        }
    }
}

impl KeptCommit {
    /// Returns the batch of the commit without the refused writes, and with the times that the store set.
    fn as_applied(&self) -> Batch {
        let Self { batch, applied, .. } = self;
        let mut writes: Vec<KeyWrite> =
            batch.applied_writes(applied).map(|(_, write)| write.clone()).collect();
        for write in &mut writes {
            write.record.fill_times(applied.time);
        }
        Batch { writes, letters: batch.letters.clone(), repeated: true, ..**batch }
    }
}

/// The void batch has no letters, and its writes never apply. Its additional write is for the empty key, which no event
/// has: the refusal of this write shows that the store applied the void batch.
fn void_batch(batch: &Batch) -> Batch {
    let mut writes = batch.writes.clone();
    writes.push(KeyWrite {
        key: "".into(),
        condition: WriteCondition::Absent,
        record: KeyRecord::new(0, 0),
        state: StateUpdate::Keep,
        messages: Vec::new(),
        letters: Vec::new(),
        removed_letters: Vec::new(),
        spill: Vec::new(),
        ids: SmallVec::new(),
        due_in: None,
        expire_in: None,
    });
    for write in &mut writes {
        // No key reaches this `next` in practice: the value follows the last valid sequence.
        write.condition = WriteCondition::Next(u64::MAX);
    }
    Batch { writes, letters: Vec::new(), ..*batch }
}

impl InFlightBatch {
    /// If the store applied the void batch, puts the letters of the original batch back into the queue for the next
    /// batch.
    pub(super) fn return_letters(
        &mut self,
        applied: &AppliedCommit,
        letters: &mut VecDeque<OrphanLetter>,
    ) {
        if applied.refused.last().is_none_or(|refused| refused.0 != self.batch.writes.len()) {
            return;
        }
        let own = self.batch.letters.iter().cloned().zip(self.letters.drain(..));
        for (letter, delivery) in own.rev() {
            self.bytes -= letter.memory();
            letters.push_front(OrphanLetter { letter, delivery });
        }
        let writes = self.batch.writes.clone();
        self.batch = Arc::new(Batch { writes, letters: Vec::new(), ..*self.batch });
    }
}

/// Returns the memory cost of a batch, in bytes.
fn batch_memory(batch: &Batch) -> usize {
    let write = |write: &KeyWrite| {
        let messages = write.messages.iter().map(|emitted| &emitted.message);
        size_of::<KeyWrite>()
            + 4 * write.record.digests.iter().len()
            + write.state.memory()
            + messages.map(Message::memory).sum::<usize>()
            + write.letters.iter().map(DeadLetter::memory).sum::<usize>()
            + write.spill.iter().map(|(_, event)| event.memory()).sum::<usize>()
    };
    size_of::<KeptCommit>()
        + size_of::<Batch>()
        + batch.writes.iter().map(write).sum::<usize>()
        + batch.letters.iter().map(DeadLetter::memory).sum::<usize>()
}

impl Sequencer {
    /// Keeps a commit in case the store loses it. While the kept commits of all shards together exceed
    /// [`commit_history_bytes`](crate::SequencerSettings::commit_history_bytes), the shard with the most bytes drops
    /// its oldest commit. A shard that is recovering commits drops no commits.
    pub(super) fn retain_commit(
        &mut self,
        batch: &Arc<Batch>,
        applied: &AppliedCommit,
        lanes: &mut [InFlightWrite],
    ) {
        if self.settings.commit_history_bytes == 0 {
            return;
        }
        let evicted =
            lanes.iter_mut().map(|in_write| std::mem::take(&mut in_write.evicted_digests));
        let evicted_digests: Vec<_> =
            evicted.enumerate().filter(|(_, digests)| !digests.is_empty()).collect();
        let digests: usize = evicted_digests.iter().map(|(_, digests)| digests.len()).sum();
        let bytes = batch_memory(batch) + digests * size_of::<(u64, u32)>();
        let history = &mut self.shards[batch.shard as usize].history;
        history.bytes += bytes;
        history.times.record(batch.number, applied.time);
        history.commits.push_back(KeptCommit {
            batch: Arc::clone(batch),
            applied: applied.clone(),
            evicted_digests,
            bytes,
        });
        self.memory += bytes;
        self.history_bytes += bytes;
        while self.history_bytes > self.settings.commit_history_bytes
            && let shards = self.shards.iter_mut().filter(|shard| !shard.is_recovering())
            && let Some(most) = shards.max_by_key(|shard| shard.history.bytes)
            && let Some(commit) = most.history.commits.pop_front()
        {
            most.history.bytes -= commit.bytes;
            self.memory -= commit.bytes;
            self.history_bytes -= commit.bytes;
        }
    }

    /// Marks all shards as in doubt, because the store was unreachable, or another server is its master now.
    pub(in super::super) fn doubt_all_shards(&mut self) {
        for shard in &mut self.shards {
            shard.in_doubt = true;
        }
    }

    /// Queries the store for the newest commit of a shard in doubt. If the caller has just sent a batch of the shard,
    /// the reply to this batch answers the query. Otherwise the query is an empty commit. A shard without commits needs
    /// the query too, because it may have lost the claim of this owner.
    pub(super) fn query_if_in_doubt(&mut self, shard: usize) {
        let state = &mut self.shards[shard];
        if !std::mem::take(&mut state.in_doubt) {
            return;
        }
        state.query_sent = true;
        if state.sending.is_empty() {
            let batch = self.new_batch(shard);
            self.send(batch, Vec::new(), Vec::new(), 0);
        }
    }

    /// Recovers lost commits, because the store does not have this owner's newest commit. `last` is the number of the
    /// newest commit in the store; `None` if the store has lost the claim of this owner. Ends the ownership if the
    /// store has lost the claim, or if some of the lost commits are not in memory.
    pub(super) fn recover_commits(&mut self, shard: u32, found: &str, last: Option<u64>) {
        let state = &mut self.shards[shard as usize];
        let newest = state.number - u64::from(state.in_flight.is_some());
        let first = last.map_or(u64::MAX, |last| last.saturating_add(1));
        let oldest = state.history.commits.front().map_or(newest + 1, |commit| commit.batch.number);
        if first > newest {
            return self.stop_rolled_back(shard, found, last);
        }
        if first < oldest {
            let found = format!(
                "{found}: commits {first} to {newest} are lost, and this process has only \
                 commits from {oldest} on in memory"
            );
            return self.stop_rolled_back(shard, &found, last);
        }
        if self.settings.ordering == OrderingMode::Sequenced {
            // The sequencer needs the digests of these commits for longer than the history keeps the commits.
            let limit = self.settings.commit_history_bytes;
            state.history.collect_digests(&mut self.settled_events, limit);
        }
        let missing = state.history.commits.iter().filter(|commit| commit.batch.number >= first);
        state.sending = missing.map(|commit| Arc::new(commit.as_applied())).collect();
        if let Some(in_flight) = &state.in_flight {
            state.sending.push_back(Arc::new(void_batch(&in_flight.batch)));
        }
        state.tries = 0;
        state.rolled_back = true;
        self.effects.extend(state.sending.front().cloned().map(Effect::Commit));
    }

    /// `stored` is the newest commit that the shard still has; `None` if the shard has lost the claim.
    fn stop_rolled_back(&mut self, shard: u32, found: &str, stored: Option<u64>) {
        let state = &self.shards[shard as usize];
        let last = state.number - u64::from(state.in_flight.is_some());
        let since = stored.and_then(|stored| state.history.times.before_commits_after(stored));
        let detail = format!("this owner's last commit was number {last}, but {found}");
        self.stop(StopReason::RolledBack { shard, last, stored, since, detail });
    }

    /// Returns whether an event differs from the event that a recent commit settled with this sequence. `digests` are
    /// the digests of the event ([`Event::repeat_digests`](crate::event::Event::repeat_digests)). Returns `None` if the
    /// digest of the settled event is not in memory. Always returns `None` in a `fifo` stream, and if the setting
    /// `digests` is 0.
    pub(in super::super) fn differs_in_history(
        &mut self,
        index: u32,
        sequence: u64,
        digests: impl IntoIterator<Item = u64>,
    ) -> Option<bool> {
        let SequencerSettings { ordering, digests: limit, commit_history_bytes, .. } =
            self.settings;
        if fault!(self, ForgetRecoveredEvents) || ordering != OrderingMode::Sequenced || limit == 0
        {
            return None;
        }
        let Lane { key, shard, record, .. } = &self.lanes[index];
        let history = &mut self.shards[*shard as usize].history;
        history.collect_digests(&mut self.settled_events, commit_history_bytes);
        self.settled_events.differs(key, record.incarnation, sequence, digests)
    }

    /// Handles the reply to a repeated commit: the store has applied the commit once more, or never lost the commit.
    /// Ends the ownership if the store refused a write of the commit.
    pub(super) fn recommitted(&mut self, batch: Arc<Batch>, applied: AppliedCommit) {
        let state = &mut self.shards[batch.shard as usize];
        let number = batch.number;
        let commit = state.history.commits.iter_mut().rfind(|commit| commit.batch.number == number);
        let Some(commit) = commit.filter(|commit| commit.applied != applied) else { return };
        if !applied.refused.is_empty() {
            let found =
                format!("commit {number} cannot be repeated, because its keys have changed");
            return self.stop_rolled_back(batch.shard, &found, number.checked_sub(1));
        }
        commit.batch = batch;
        commit.applied = applied;
        self.stats.recommitted += 1;
    }

    /// Discards everything that the sequencer read from a shard before the last lost commit of this shard was
    /// recovered.
    pub(super) fn discard_reads(&mut self, shard: u32) {
        if fault!(self, TrustOldReads) {
            return;
        }
        for index in self.lanes.indices() {
            let lane = &self.lanes[index];
            let is_in_shard = lane.shard == shard;
            if is_in_shard && lane.durable() {
                self.evict(index);
            } else if is_in_shard {
                self.restart_lane(index);
            }
        }
        let letters = std::mem::take(&mut self.shards[shard as usize].letters);
        for OrphanLetter { letter, delivery } in letters {
            // The lane decides once more what happens to the event of each letter. But the sequencer drops an event
            // without a delivery, because it will get the event again from the spill area, the source or a replay
            // source. If an event needs a lane and none is free, its letter stays, although the reason in the letter
            // may no longer be true.
            if let LetterContent::Event(event) = &letter.content
                && self.invalid_event_letter(event).is_none()
                && (delivery == 0 || self.ensure_loaded(&letter.id.key))
            {
                self.memory -= letter.memory();
                if let Some(index) = self.lanes.find(&letter.id.key).filter(|_| delivery != 0) {
                    self.window.assign_lane(delivery, index);
                    self.defer(index, delivery, Arc::clone(event));
                    self.lanes[index].deferred.sort_by_key(|arrival| arrival.delivery);
                }
            } else {
                self.shards[shard as usize].letters.push_back(OrphanLetter { letter, delivery });
            }
        }
        self.due.schedule(self.now);
    }
}
