//! Forms the writes of lanes and the batches of shards, and handles the replies. A batch is the content of one commit
//! of one shard (a slice of the store). A shard has at most one batch in flight. The sequencer forms the next batch
//! when the reply to the previous batch has arrived, so that batches grow with the load. If the store has lost commits,
//! the sequencer first sends the lost commits again (`recovery`).

mod applied;
mod recovery;
mod write;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::Sequencer;
use super::lane::SpillCheck;
use super::letters::OrphanLetter;
use crate::effect::{Effect, StopReason};
use crate::event::{DeliveryNumber, Event};
use crate::key_record::{AppliedCommit, Batch, CommitReply};
use crate::letter::DeadLetter;
use crate::settings::BackoffBounds;
use recovery::CommitHistory;

/// The delay before the sequencer repeats a batch without a reply. The delay is short after a lost reply, and becomes
/// longer while the store is down.
const RESEND_BACKOFF: BackoffBounds = BackoffBounds { min: 50, max: 5_000 };

#[derive(Debug, Default)]
pub(super) struct ShardState {
    /// The time of the store's server minus the time of the sequencer (wrapping), from the newest commit or load in the
    /// shard.
    pub(super) store_clock_offset: u64,
    number: u64,
    /// The batches to send to the store, in order. The first batch is being sent.
    sending: VecDeque<Arc<Batch>>,
    /// The time at which the first batch is sent again, because no reply arrived.
    pub(super) resend_at: Option<u64>,
    /// The number of times that the first batch got no reply.
    tries: u32,
    /// The newest batch, until its reply arrives. Normally this batch is also the last batch in the order of `sending`.
    /// During a recovery, `sending` ends with a void batch instead: a batch whose writes never apply.
    in_flight: Option<InFlightBatch>,
    pub(super) dirty: VecDeque<u32>,
    pub(super) letters: VecDeque<OrphanLetter>,
    /// The committed batches that are not yet published: number of the commit, number of messages and letters, bytes.
    outbox: VecDeque<(u64, usize, usize)>,
    history: CommitHistory,
    /// `true` if the store may have gone back in time (lost its newest commits). The sequencer then queries the store
    /// for the newest commit of this shard.
    in_doubt: bool,
    /// `true` if the sequencer has sent the query, and its reply is outstanding.
    query_sent: bool,
    /// `true` if the store has gone back in time, and may still lack commits.
    rolled_back: bool,
}

#[derive(Debug)]
struct InFlightBatch {
    batch: Arc<Batch>,
    /// The data that each write of the batch needs when the reply arrives.
    lanes: Vec<InFlightWrite>,
    /// The deliveries of the events whose orphan dead letters are in the batch. An orphan dead letter belongs to no key
    /// record. The sequencer finishes the delivery of such an event when the letter is durable.
    letters: Vec<DeliveryNumber>,
    /// Counts states, messages and letters. The sequencer's `memory` includes these bytes until the reply.
    bytes: usize,
}

#[derive(Debug)]
struct InFlightWrite {
    lane: u32,
    events: usize,
    effects: usize,
    other_types: usize,
    /// The sequences and digests of settled events whose digests are not in the record of the write.
    evicted_digests: Vec<(u64, u32)>,
    late_originals: Vec<(DeliveryNumber, Arc<Event>)>,
    checks: Vec<SpillCheck>,
}

impl ShardState {
    /// Returns the orphan dead letters that are not durable yet.
    pub(super) fn unstored_letters(&self) -> impl Iterator<Item = &DeadLetter> {
        let sent = self.in_flight.iter().flat_map(|in_flight| &in_flight.batch.letters);
        self.letters.iter().map(|orphan| &orphan.letter).chain(sent)
    }

    pub(super) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.sending.is_empty() && self.dirty.is_empty() && self.letters.is_empty()
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt || self.query_sent || self.rolled_back
    }

    /// Returns whether the sequencer is sending lost commits of this shard, from `history`, to the store again.
    fn is_recovering(&self) -> bool {
        self.sending.len() > usize::from(self.in_flight.is_some())
    }

    fn awaits(&self, number: u64) -> bool {
        self.resend_at.is_none() && self.sending.front().is_some_and(|batch| batch.number == number)
    }
}

impl Sequencer {
    /// Forms a batch for each shard that has something to write and no batch in flight. Also queries the store for the
    /// newest commits of the shards in doubt.
    pub(super) fn close_batches(&mut self) {
        // No turn starts while the outbox is full, so the messages of turns need no limit here. For dead letters, this
        // check is the only limit.
        let full = self.settings.forward_letters && self.outbox >= self.settings.max_outbox;
        for shard in 0..self.shards.len() {
            if self.shards[shard].sending.is_empty() {
                if !full && !self.shards[shard].is_quiet() {
                    self.close_batch(shard);
                }
                self.query_if_in_doubt(shard);
            }
        }
    }

    fn close_batch(&mut self, shard: usize) {
        let mut batch = self.new_batch(shard);
        let mut lanes = Vec::new();
        let mut letters = Vec::new();
        let mut kept = 0;
        let max_events = self.settings.batch_events;
        let max_bytes = self.settings.batch_bytes;
        let mut events = 0;
        let mut bytes = 0;
        let full = |events: usize, bytes: usize| events >= max_events || bytes >= max_bytes;
        // Orphan letters go into the batch first, because the write that removes the spilled events of an ended key
        // must not precede the letters of these events.
        while !full(events, bytes)
            && let Some(free) = self.shards[shard].letters.pop_front()
        {
            events += 1;
            bytes += free.letter.memory();
            kept += free.letter.memory();
            letters.push(free.delivery);
            batch.letters.push(free.letter);
        }
        // A write that removes one of these letters waits for the next batch. The store applies the letters of a batch
        // after its writes. If this batch also contained the write, the letter would stay in the store although its
        // event is settled.
        let new_letters: BTreeSet<_> =
            batch.letters.iter().map(|letter| letter.id.clone()).collect();
        let mut postponed = Vec::new();
        let mut examined = Vec::new();
        let most = self.shards[shard].dirty.len().min(max_events);
        batch.writes.reserve_exact(most);
        lanes.reserve_exact(most);
        while self.shards[shard].letters.is_empty()
            && !full(events, bytes)
            && let Some(index) = self.shards[shard].dirty.pop_front()
        {
            if self.lanes[index].removes_letter_of(&new_letters) {
                postponed.push(index);
                continue;
            }
            self.lanes[index].dirty = false;
            if self.lanes[index].wants_write(&self.settings) {
                let room = (max_events - events, max_bytes - bytes);
                let (write, in_write, cost) = self.form_write(index, room);
                events += cost.events.max(1);
                bytes += cost.bytes;
                kept += cost.kept_bytes;
                batch.writes.push(write);
                lanes.push(in_write);
            }
            examined.push(index);
        }
        self.shards[shard].dirty.extend(postponed);
        if !batch.writes.is_empty() || !batch.letters.is_empty() {
            self.send(batch, lanes, letters, kept);
        }
        // From here on, the letters of the batch count as letters in flight. Before this point, the sequencer must not
        // examine a lane. Otherwise, the letter of the lane's event would not be among the letters that wait for a
        // commit, and the sequencer would treat the event as missing.
        for index in examined {
            self.reschedule(index);
        }
    }

    fn new_batch(&self, shard: usize) -> Batch {
        Batch {
            shard: shard as u32,
            number: self.shards[shard].number + 1,
            writes: Vec::new(),
            letters: Vec::new(),
            forward: self.settings.forward_letters,
            repeated: false,
        }
    }

    fn send(
        &mut self,
        batch: Batch,
        lanes: Vec<InFlightWrite>,
        letters: Vec<DeliveryNumber>,
        bytes: usize,
    ) {
        let batch = Arc::new(batch);
        let state = &mut self.shards[batch.shard as usize];
        state.number = batch.number;
        state.sending.push_back(Arc::clone(&batch));
        state.in_flight = Some(InFlightBatch { batch: Arc::clone(&batch), lanes, letters, bytes });
        self.effects.push_back(Effect::Commit(batch));
    }

    /// Sends a batch again if its reply did not arrive and the delay is over.
    pub(super) fn resend(&mut self) {
        for shard in &mut self.shards {
            if shard.resend_at.take_if(|at| *at <= self.now).is_some() {
                self.effects.extend(shard.sending.front().cloned().map(Effect::Commit));
            }
        }
    }

    pub(super) fn committed(&mut self, shard: u32, number: u64, reply: CommitReply) {
        let Some(state) = self.shards.get_mut(shard as usize).filter(|shard| shard.awaits(number))
        else {
            self.stats.stale += 1;
            return;
        };
        match reply {
            CommitReply::Applied(applied) => self.batch_stored(shard, applied),
            CommitReply::Unknown => {
                state.resend_at = Some(self.now + self.jitter.delay(RESEND_BACKOFF, state.tries));
                state.tries = state.tries.saturating_add(1);
            }
            CommitReply::Fenced => self.stop(StopReason::Fenced),
            CommitReply::RolledBack { found, last } => self.recover_commits(shard, &found, last),
        }
    }

    /// Handles the reply that the store has applied the first batch of a shard, and sends the next batch. After the
    /// last batch of a recovery, discards the data that the sequencer read from the shard before the end of the
    /// recovery.
    fn batch_stored(&mut self, shard: u32, applied: AppliedCommit) {
        let state = &mut self.shards[shard as usize];
        state.tries = 0;
        let Some(batch) = state.sending.pop_front() else { return };
        match state.in_flight.take_if(|_| state.sending.is_empty()) {
            Some(mut in_flight) => {
                in_flight.return_letters(&applied, &mut state.letters);
                self.apply_reply(in_flight, applied);
            }
            None => self.recommitted(batch, applied),
        }
        if self.stopped {
            return;
        }
        let state = &mut self.shards[shard as usize];
        if let Some(next) = state.sending.front() {
            self.effects.push_back(Effect::Commit(Arc::clone(next)));
            return;
        }
        state.query_sent = false;
        if std::mem::take(&mut state.rolled_back) {
            self.discard_reads(shard);
        }
    }

    fn stop(&mut self, stop: StopReason) {
        self.stopped = true;
        self.effects.clear();
        self.effects.push_back(Effect::Stop(stop));
    }

    /// `left` contains the previous owner's newest commit, the number of its unpublished messages, and their bytes.
    pub(super) fn count_backlog(&mut self, shard: u32, left: (u64, usize, usize)) {
        let Some(shard) = self.shards.get_mut(shard as usize) else { return };
        self.outbox += left.1;
        self.memory += left.2;
        shard.outbox.push_back(left);
    }

    pub(super) fn published(&mut self, shard: u32, through: u64) {
        let Some(shard) = self.shards.get_mut(shard as usize) else { return };
        while let Some((_, messages, bytes)) =
            shard.outbox.pop_front_if(|(number, ..)| *number <= through)
        {
            self.outbox -= messages;
            self.memory -= bytes;
        }
    }
}
