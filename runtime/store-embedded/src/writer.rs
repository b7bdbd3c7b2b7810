//! The writer thread. This thread makes all changes of the store, one after the other. It can therefore check the
//! conditions of a change without a lock.
//!
//! The thread takes up to [`GROUP_LIMIT`] waiting requests as a group. It applies each request as one atomic batch of
//! the engine. If the group has a request that must be durable, one sync then makes the whole group durable. After
//! this, the thread answers all requests of the group. A slow disk therefore makes groups larger, but does not add a
//! sync per request. Readers may see a change before it is durable. This is safe for two reasons. Writes that depend on
//! the change come later in the same journal, so they cannot survive without it. And a new owner begins with a claim,
//! which the thread syncs. The thread must never answer a commit or a claim before the commit or claim is durable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fjall::{OwnedWriteBatch, Slice};
use ordain_core::{AppliedCommit, Batch, CommitReply, Key, QueuePosition};
use tokio::sync::mpsc;

use super::answered_commits::AnsweredCommits;
use super::assign::{AssignChanges, AssignFailure};
use super::changes::{BatchChanges, EarliestTimes};
use super::fences::FenceTable;
use super::keys;
use super::queue::QueueEndsRecord;
use super::record::EmbeddedRecord;
use super::record_cache::RecordCache;
use super::request::{OutboxRemoval, ReplySender, WriterRequest};
use super::shared::SharedStore;
use super::sweep::{self, ExpirySweep};
use super::tables::{copy_key, is_damage, panic_message, reason};
use ordain_store::clock::CLOCK_LEAD_LIMIT_MS;
use ordain_store::codec::{FenceRecord, FenceVerdict, encode_outbox_letters};
use ordain_store::{
    AssignReply, AssignRequest, Claim, ClaimedPartition, DequeueResult, Destination, Mark,
    Partition, StoreError,
};

/// The number of requests that fit into the channel to the writer thread. When the channel is full, callers wait until
/// it has space. Each shard of a partition has at most one commit in progress. Commits alone therefore fill the channel
/// only if the number of partitions times the number of shards reaches this limit.
pub(super) const REQUEST_QUEUE_LIMIT: usize = 256;

/// The maximum number of requests in a group (requests that one sync makes durable). The limit prevents the first
/// request of a group from waiting long.
const GROUP_LIMIT: usize = 64;

/// A reply that the writer thread sends when it has applied the whole group, and has synced the group if `must_sync` is
/// `true`.
enum PendingReply {
    Commit(ReplySender<CommitReply>, CommitReply),
    Claim(ReplySender<Option<ClaimedPartition>>, Option<ClaimedPartition>),
    Epoch(ReplySender<u64>, u64),
    Assign(ReplySender<Result<AssignReply, StoreError>>, Result<AssignReply, StoreError>),
    Dequeue(ReplySender<Result<DequeueResult, StoreError>>, Result<DequeueResult, StoreError>),
    Done(ReplySender<Option<u64>>, Option<u64>),
    Replaced(ReplySender<bool>, bool),
    Unit(ReplySender<()>),
}

impl PendingReply {
    fn send(self) {
        // The results of `send` are ignored, because a caller may no longer wait for the reply.
        match self {
            Self::Commit(answer, reply) => drop(answer.send(reply)),
            Self::Claim(answer, claimed) => drop(answer.send(claimed)),
            Self::Epoch(answer, epoch) => drop(answer.send(epoch)),
            Self::Assign(answer, reply) => drop(answer.send(reply)),
            Self::Dequeue(answer, done) => drop(answer.send(done)),
            Self::Done(answer, last) => drop(answer.send(last)),
            Self::Replaced(answer, is_put) => drop(answer.send(is_put)),
            Self::Unit(answer) => drop(answer.send(())),
        }
    }
}

pub(super) struct StoreWriter {
    shared: Arc<SharedStore>,
    fences: FenceTable,
    sweep: ExpirySweep,
    record_cache: RecordCache,
    answered_commits: AnsweredCommits,
    /// The number of synced groups since the creation of the store.
    groups: u64,
    /// `true` if the writer thread must sync the current group before it answers the group.
    must_sync: bool,
    /// The number of entries that the current group wrote: the key records and dead letters of commits, and all entries
    /// of `Assign` requests.
    written_entries: usize,
}

impl StoreWriter {
    pub(super) fn new(
        shared: Arc<SharedStore>,
        fences: FenceTable,
        answered: AnsweredCommits,
        groups: u64,
    ) -> Self {
        let sweep = ExpirySweep::default();
        let recent = RecordCache::default();
        Self {
            shared,
            fences,
            sweep,
            record_cache: recent,
            answered_commits: answered,
            groups,
            must_sync: false,
            written_entries: 0,
        }
    }

    /// Processes requests until all senders are dropped, or until a write fails.
    pub(super) fn run(mut self, mut requests: mpsc::Receiver<WriterRequest>) {
        let shared = self.shared.clone();
        let work = AssertUnwindSafe(|| self.work(&mut requests));
        match catch_unwind(work) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => shared.fail(&error),
            Err(panic) => shared.fail_damaged(&panic_message(panic.as_ref())),
        }
    }

    fn work(&mut self, requests: &mut mpsc::Receiver<WriterRequest>) -> fjall::Result<()> {
        let now = self.shared.clock.now();
        self.sweep.run(&self.shared, &mut self.record_cache, now, sweep::OPENING_SWEEP_LIMIT)?;
        while let Some(first) = requests.blocking_recv() {
            let more = std::iter::from_fn(|| requests.try_recv().ok());
            self.group(std::iter::once(first).chain(more).take(GROUP_LIMIT))?;
        }
        // The store is closing. `SharedStore::close` then syncs this write.
        self.write_time(self.shared.clock.now(), 0)
    }

    /// Writes the time `now` if it is ahead of the newest time in the tables by more than `lead` ms.
    fn write_time(&self, now: u64, lead: u64) -> fjall::Result<()> {
        if self.shared.clock.is_unwritten(now, lead) {
            self.shared.tables.meta.insert(keys::CLOCK_TIME, now.to_le_bytes())?;
            self.shared.clock.record_written(now);
        }
        Ok(())
    }

    fn group(&mut self, requests: impl Iterator<Item = WriterRequest>) -> fjall::Result<()> {
        self.must_sync = false;
        self.written_entries = 0;
        let mut ready = Vec::new();
        for request in requests {
            ready.push(self.perform(request)?);
        }
        let now = self.shared.clock.now();
        self.write_time(now, CLOCK_LEAD_LIMIT_MS)?;
        if self.must_sync {
            // Write the count after all other writes of the group. The engine drops everything after a damaged place,
            // so damage to any of these writes also removes the count.
            self.groups += 1;
            self.shared.tables.meta.insert(keys::GROUPS, self.groups.to_le_bytes())?;
            self.shared.tables.sync()?;
            self.answered_commits.write(self.groups);
        } else {
            self.shared.tables.flush_to_system()?;
        }
        for answer in ready {
            answer.send();
        }
        let limit = sweep::group_sweep_limit(self.written_entries);
        self.sweep.run(&self.shared, &mut self.record_cache, now, limit)
    }

    fn perform(&mut self, request: WriterRequest) -> fjall::Result<PendingReply> {
        Ok(match request {
            WriterRequest::Commit { partition, claim, batch, answer } => {
                PendingReply::Commit(answer, self.commit(&partition, claim, &batch)?)
            }
            WriterRequest::Claim { partition, epoch, answer } => {
                PendingReply::Claim(answer, self.claim(&partition, epoch)?)
            }
            WriterRequest::NewestEpoch { partition, answer } => {
                PendingReply::Epoch(answer, self.newest_epoch(&partition))
            }
            WriterRequest::TakeOver { partition, keys, answer } => {
                self.take_over(&partition, &keys)?;
                PendingReply::Unit(answer)
            }
            WriterRequest::Done { outbox, marks, answer } => {
                let last = self.done(outbox.as_ref(), marks)?;
                PendingReply::Done(answer, last)
            }
            WriterRequest::ReplaceMark { mark, before, answer } => {
                let is_put = self.replace_mark(mark, before.as_deref())?;
                PendingReply::Replaced(answer, is_put)
            }
            WriterRequest::Assign { assign, answer } => {
                let reply = self.assign(&assign)?;
                PendingReply::Assign(answer, reply.map_err(|error| self.shared.with_folder(error)))
            }
            WriterRequest::Dequeue { partition, claim, shard, commit, through, answer } => {
                let done = self.dequeue(&partition, claim, shard, commit, through)?;
                PendingReply::Dequeue(answer, done.map_err(|error| self.shared.with_folder(error)))
            }
            WriterRequest::Flush { answer } => {
                self.must_sync = true;
                PendingReply::Unit(answer)
            }
            WriterRequest::Overwrite { stream, key, bytes, answer } => {
                let table_key = keys::key_record(&stream, &key);
                self.record_cache.remove(&table_key);
                self.shared.tables.jobs.insert(table_key, bytes)?;
                PendingReply::Unit(answer)
            }
        })
    }

    fn commit(
        &mut self,
        partition: &Partition,
        claim: Claim,
        batch: &Batch,
    ) -> fjall::Result<CommitReply> {
        match self.fences.evaluate(partition, claim, batch.shard, batch.number) {
            FenceVerdict::Answer(reply) => Ok(reply),
            FenceVerdict::Apply => self.apply(partition, claim, batch).map(CommitReply::Applied),
        }
    }

    fn apply(
        &mut self,
        partition: &Partition,
        claim: Claim,
        batch: &Batch,
    ) -> fjall::Result<AppliedCommit> {
        let tables = &self.shared.tables;
        let now = self.shared.clock.now();
        let life_start = self.shared.clock.life_start(now);
        let count = batch.writes.len();
        let mut changes =
            BatchChanges::new(tables, &mut self.record_cache, partition, now, life_start, count);
        let refused = changes.writes(&batch.writes)?;
        let known = changes.put_orphan_letters(batch, &self.shared)?;
        let BatchChanges { batch: mut writes, mut outbox, present, earliest, .. } = changes;
        let applied =
            AppliedCommit { time: now, refused, existing_spills: present, existing_letters: known };
        encode_outbox_letters(batch.forwarded(&applied), life_start, &mut outbox);
        if !outbox.is_empty() {
            let table_key = keys::outbox(partition, batch.shard, batch.number);
            writes.insert(&tables.outbox, table_key, outbox);
        }
        let fence = FenceRecord { claim, number: batch.number, applied: applied.clone() };
        self.fences.put(tables, &mut writes, partition, batch.shard, fence);
        writes.commit()?;
        self.shared.clock.record_written(now);
        self.must_sync = true;
        if earliest.due != u64::MAX {
            self.shared.due.lower(partition, earliest.due);
        }
        self.sweep.lower(&earliest);
        let letters = batch.writes.iter().map(|write| write.letters.len()).sum::<usize>();
        self.written_entries += batch.writes.len() + letters + batch.letters.len();
        Ok(applied)
    }

    fn newest_epoch(&self, partition: &Partition) -> u64 {
        let fences = (0..self.shared.shards).filter_map(|shard| self.fences.get(partition, shard));
        fences.map(|fence| fence.claim.epoch).max().unwrap_or_default()
    }

    fn claim(
        &mut self,
        partition: &Partition,
        epoch: u64,
    ) -> fjall::Result<Option<ClaimedPartition>> {
        if epoch <= self.newest_epoch(partition) {
            return Ok(None);
        }
        let tables = &self.shared.tables;
        let found: Vec<_> = (0..self.shared.shards)
            .map(|shard| self.fences.get(partition, shard).cloned())
            .collect();
        let claim = Claim { epoch, random: rand::random() };
        let mut commits = Vec::with_capacity(found.len());
        let mut batch = OwnedWriteBatch::with_capacity(tables.db.clone(), found.len());
        for (shard, fence) in (0..).zip(found) {
            let (number, applied) =
                fence.map(|fence| (fence.number, fence.applied)).unwrap_or_default();
            commits.push(number);
            let fence = FenceRecord { claim, number, applied };
            self.fences.put(tables, &mut batch, partition, shard, fence);
        }
        batch.commit()?;
        self.must_sync = true;
        Ok(Some(ClaimedPartition { claim, commits }))
    }

    /// Moves key records to a partition. The writer thread does not sync this change, because writes that depend on it
    /// come later in the same journal.
    fn take_over(&mut self, partition: &Partition, keys: &[Key]) -> fjall::Result<()> {
        let tables = &self.shared.tables;
        let now = self.shared.clock.now();
        let mut first_due = u64::MAX;
        let mut batch = OwnedWriteBatch::with_capacity(tables.db.clone(), 3 * keys.len());
        for key in keys {
            let table_key = Slice::from(keys::key_record(&partition.stream, key));
            // An unreadable key record stays unchanged; the load reports it.
            let stored = match tables.jobs.get(&table_key) {
                Err(error) if !is_damage(&error) => return Err(error),
                stored => stored.ok().flatten(),
            };
            let record = stored.as_deref().and_then(|bytes| EmbeddedRecord::parse(bytes).ok());
            let Some(record) = record else { continue };
            if record.key_record.partition == partition.number || record.envelope.is_expired(now) {
                continue;
            }
            self.record_cache.remove(&table_key);
            batch.insert(&tables.jobs, table_key, record.with_partition(partition.number));
            let due_at = record.envelope.due_at;
            if due_at != 0 {
                let stream = partition.stream.clone();
                let before = Partition { stream, number: record.key_record.partition };
                batch.remove(&tables.times, keys::due(&before, due_at, key));
                batch.insert(&tables.times, keys::due(partition, due_at, key), b"");
                first_due = first_due.min(due_at);
            }
        }
        batch.commit()?;
        if first_due != u64::MAX {
            self.shared.due.lower(partition, first_due);
        }
        Ok(())
    }

    fn done(
        &mut self,
        outbox: Option<&OutboxRemoval>,
        marks: Vec<Mark>,
    ) -> fjall::Result<Option<u64>> {
        let tables = &self.shared.tables;
        let mut batch = OwnedWriteBatch::with_capacity(tables.db.clone(), marks.len() + 16);
        let mut last = None;
        if let Some(OutboxRemoval { partition, claim, shard, through }) = outbox {
            let fence = self.fences.get(partition, *shard);
            let Some(fence) = fence.filter(|fence| fence.claim == *claim) else { return Ok(None) };
            last = Some(fence.number);
            // If `through` is after the last commit of the shard, remove only the entries up to the last commit.
            let through = fence.number.min(*through);
            let table_key = keys::published_commit(partition, *shard);
            let done = read_number(tables.meta.get(&table_key)?);
            if through > done {
                let from = keys::outbox(partition, *shard, done + 1);
                for entry in tables.outbox.range(from..=keys::outbox(partition, *shard, through)) {
                    batch.remove(&tables.outbox, copy_key(entry)?);
                }
                batch.insert(&tables.meta, table_key, through.to_le_bytes());
            }
        }
        for mark in marks {
            batch.insert(&tables.meta, keys::mark(&mark.name), mark.value);
        }
        batch.commit().map(|()| last)
    }

    fn replace_mark(&self, mark: Mark, before: Option<&[u8]>) -> fjall::Result<bool> {
        let meta = &self.shared.tables.meta;
        let table_key = keys::mark(&mark.name);
        let is_expected = meta.get(&table_key)?.as_deref() == before;
        if is_expected {
            meta.insert(table_key, mark.value)?;
        }
        Ok(is_expected)
    }
}

/// Requests of the message log: the numbers of messages, retained messages, and queues.
impl StoreWriter {
    fn assign(&mut self, assign: &AssignRequest) -> fjall::Result<Result<AssignReply, StoreError>> {
        let now = self.shared.clock.now();
        let life_start = self.shared.clock.life_start(now);
        let mut assigning = AssignChanges::new(&self.shared.tables, assign, now, life_start);
        let reply = match assigning.run() {
            Err(AssignFailure::Engine(error)) if !is_damage(&error) => return Err(error),
            Err(AssignFailure::Engine(error)) => {
                return Ok(Err(StoreError::Corrupt(reason(&error))));
            }
            Err(AssignFailure::Store(error)) => return Ok(Err(error)),
            Ok(reply) => reply,
        };
        if matches!(reply, AssignReply::Groups(..)) {
            let AssignChanges { mut batch, earliest, .. } = assigning;
            self.written_entries += batch.len();
            // The assignment depends on which records have expired. The clock must not go back to a time before the
            // assignment.
            batch.insert(&self.shared.tables.meta, keys::CLOCK_TIME, now.to_le_bytes());
            batch.commit()?;
            self.shared.clock.record_written(now);
            self.sweep.lower(&EarliestTimes { retained: earliest, ..EarliestTimes::default() });
            // Entries of a queue need no sync, because writes that depend on them come later in the same journal.
            self.must_sync |= !matches!(assign.destination, Destination::Stream(_));
        }
        Ok(Ok(reply))
    }

    fn dequeue(
        &mut self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        commit: u64,
        through: QueuePosition,
    ) -> fjall::Result<Result<DequeueResult, StoreError>> {
        let tables = &self.shared.tables;
        let Some(fence) = self.fences.get(partition, shard).filter(|fence| fence.claim == claim)
        else {
            return Ok(Ok(DequeueResult::Done));
        };
        let table_key = keys::queue(partition, shard);
        let mut queue = match QueueEndsRecord::decode(tables.log.get(&table_key)?.as_deref()) {
            Ok(queue) => queue,
            Err(error) => return Ok(Err(error)),
        };
        let read = |number| tables.queue.get(keys::queued(partition, shard, number));
        if !queue.contains(through, read)? {
            return Ok(Err(StoreError::RolledBack));
        } else if fence.number < commit {
            return Ok(Ok(DequeueResult::MissingCommit));
        }
        let first = queue.ends.first;
        let through = through.number;
        if through < first {
            return Ok(Ok(DequeueResult::Done));
        }
        queue.removed_history = queue.history_at(through, read(through)?.as_deref());
        queue.ends.first = through + 1;
        let count = (through - first + 1) as usize;
        let mut batch = OwnedWriteBatch::with_capacity(tables.db.clone(), count + 1);
        for number in first..=through {
            batch.remove(&tables.queue, keys::queued(partition, shard, number));
        }
        batch.insert(&tables.log, table_key, queue.encode());
        batch.commit().map(|()| Ok(DequeueResult::Done))
    }
}

/// Decodes a stored number; returns 0 if there is no value.
pub(super) fn read_number(value: Option<Slice>) -> u64 {
    let bytes = value.and_then(|value| value.first_chunk().copied());
    bytes.map_or(0, u64::from_le_bytes)
}
