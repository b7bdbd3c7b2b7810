//! The outbox publisher of a process receives the committed batches of each partition in order, and passes their
//! messages and forwarded dead letters to the sinks. This module shortens the term to "publisher". The publisher
//! reports published messages to the store and to the sequencers.
//!
//! The publisher is one task, because several partitions may write to one file. The store must record the lengths of a
//! file in the order in which the file grows. Exchanges and streams have tasks of their own. If an exchange accepts
//! nothing, only the shards (slices of the store) with messages for this exchange wait. A partition pauses as a whole
//! only when its outbox is full. A run contains messages of one shard of a partition. In one write, the store marks all
//! messages of a run as published, and records the new length of each file that has lines of the run (the mark of the
//! file). The publisher requests these writes in the order of the runs of a file. While a run with lines for a file
//! waits, the later runs with lines for this file wait too.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::join_all;
use ordain_core::{AppliedCommit, Batch, Input};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::content::SinkContent;
use super::pending_runs::{PendingRuns, PublishRun};
use super::published_counts::PublishedCounts;
use super::sinks::{SYNC_BYTES, Sinks, WRITE_BYTES, WrittenRun};
use super::{PublishWatermark, PublisherError};
use crate::completion::Completion;
use crate::incident::LossCounts;
use ordain_amqp::PublishedCount;
use ordain_store::Ownership;
use ordain_store::{Claim, OutboxEntry, OutboxMessage, Partition, Store, retry_until_ok};

/// Maximum number of batches that are published together: normally with one sync of the files, and with one write to
/// the store for each partition and shard.
const BATCH_GROUP_LIMIT: usize = 64;
const CONFIRM_GROUP_LIMIT: usize = 256;
/// The data that the outbox publisher has of a partition.
pub struct PartitionHandle {
    /// The partition.
    pub partition: Partition,
    /// The claim with which the store recognises this owner of the partition. The partition's driver commits under this
    /// claim.
    pub claim: Claim,
    /// The name of the sink of the stream's dead letters; `None` if the stream does not forward dead letters.
    pub dead_letter: Option<Arc<str>>,
    /// The channel to the driver. The outbox publisher sends a report when all messages of a shard up to a commit are
    /// published and marked as published.
    pub completions: mpsc::Sender<Completion>,
    /// The ownership under which the messages may be published.
    pub ownership: Arc<Ownership>,
    /// For each shard, the number of the newest commit before this claim.
    pub claimed_commits: Box<[u64]>,
    /// For each shard, the commit up to which all messages are published and durably marked as published.
    pub watermarks: Box<[PublishWatermark]>,
    /// For each shard, the newest commit that is known to be durable.
    pub durable_commits: Box<[AtomicU64]>,
    /// The number of times that the store refused a commit of the driver because the store had lost earlier commits.
    pub rollbacks: AtomicU64,
    /// The losses of the partition.
    pub losses: Arc<LossCounts>,
    /// True after the driver has started.
    pub driven: AtomicBool,
}

impl PartitionHandle {
    /// Returns whether the driver of this owner has started. The driver may have ended since then.
    pub(super) fn is_driven(&self) -> bool {
        self.driven.load(Ordering::SeqCst)
    }

    /// Returns `true` when each shard has confirmed to the driver that it has all commits of the partition, and `false`
    /// when the driver ends.
    pub(super) async fn has_all_commits(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        let sent = self.completions.send(Completion::StoreCheck(answer)).await;
        sent.is_ok() && answered.await.is_ok()
    }

    /// Makes the driver check whether the store has all commits of the partition, because the store may have gone back
    /// in time.
    pub fn report_store_rollback(&self) {
        // If the channel is full, the driver is active, and detects the loss itself.
        let _ = self.completions.try_send(Completion::Input(Input::StoreMayHaveRolledBack));
    }

    /// Records that a commit is durable.
    pub fn record_commit(&self, shard: u32, number: u64) {
        if let Some(last) = self.durable_commits.get(shard as usize) {
            last.fetch_max(number, Ordering::SeqCst);
        }
    }

    /// Returns the newest durable commit of each shard.
    pub fn last_commits(&self) -> Vec<u64> {
        self.durable_commits.iter().map(|last| last.load(Ordering::SeqCst)).collect()
    }

    /// Returns the newest durable commit of a shard; 0 if no commit of the shard is durable.
    pub fn last_commit(&self, shard: u32) -> u64 {
        self.durable_commits.get(shard as usize).map_or(0, |last| last.load(Ordering::SeqCst))
    }
}

/// A committed batch with messages or dead letters to publish.
pub struct CommittedBatch {
    /// The partition of the batch.
    pub handle: Arc<PartitionHandle>,
    /// The writes of the commit, and the dead letters that belong to no write.
    pub batch: Arc<Batch>,
    /// The result of the commit, which shows which writes of the batch the store applied.
    pub applied: AppliedCommit,
}

/// Left-over messages of one shard, in order: an earlier owner of the partition committed these messages, and did not
/// mark them as published.
pub(crate) struct OutboxBacklog {
    /// The partition, which has no driver yet.
    pub handle: Arc<PartitionHandle>,
    /// The shard of the outbox.
    pub shard: u32,
    /// The commits, each with its messages and forwarded dead letters.
    pub entries: Vec<OutboxEntry>,
    /// After the publisher has sent the messages to the sinks, the receiver gets the number of messages. The
    /// partition's driver starts afterwards, so the driver's own messages follow these messages.
    pub accepted: oneshot::Sender<usize>,
}

pub(crate) enum PublisherCommand {
    PublishBacklog(OutboxBacklog),
    /// A request of the partition's driver for reports about left-over messages: the messages that the publisher has
    /// sent to the sinks, and that the store has not marked as published yet.
    TakeSentBacklog(Arc<PartitionHandle>, oneshot::Sender<Vec<Input>>),
}

/// A task that publishes the messages of all partitions.
pub(crate) struct OutboxPublisher {
    store: Arc<dyn Store>,
    sinks: Sinks,
    runs: PendingRuns,
    /// Left-over messages that the sinks have. The store has not marked them as published yet, and no driver has the
    /// reports about them yet.
    sent_backlogs: Vec<SentBacklog>,
    /// Left-over messages for which `sent_backlogs` has no room. A partition has at most one entry, because its start
    /// waits until the publisher has sent this entry.
    waiting_backlogs: VecDeque<OutboxBacklog>,
    /// Approximate size limit, in bytes, of the left-over messages in `sent_backlogs`. At the limit, the publisher
    /// sends no more left-over messages.
    backlog_bytes_limit: usize,
    tasks: JoinSet<Result<(), PublisherError>>,
    published: UnboundedReceiver<PublishedCount>,
    confirmed: Vec<PublishedCount>,
    counts: Arc<PublishedCounts>,
}

/// Left-over messages of a shard that the sinks have, and that the store has not marked as published.
struct SentBacklog {
    handle: Arc<PartitionHandle>,
    shard: u32,
    /// The newest commit with these messages.
    through: u64,
    messages: usize,
    bytes: usize,
}

impl OutboxPublisher {
    /// Creates the publisher. `backlog_bytes_limit` is the approximate size limit of the left-over messages that the
    /// sinks have and the store has not marked as published yet.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        mut sinks: Sinks,
        backlog_bytes_limit: usize,
        counts: Arc<PublishedCounts>,
    ) -> Self {
        counts.add(sinks.names().map(|sink| (sink.clone(), 0)));
        // The channel needs no limit of its own: it carries counts of published messages of the outbox, and the outbox
        // has a limit.
        let (published_sender, published) = mpsc::unbounded_channel();
        let tasks = sinks.start(&published_sender);
        Self {
            store,
            sinks,
            runs: PendingRuns::default(),
            sent_backlogs: Vec::new(),
            waiting_backlogs: VecDeque::new(),
            backlog_bytes_limit,
            tasks,
            published,
            confirmed: Vec::new(),
            counts,
        }
    }

    /// Ends when all senders of batches are gone and all messages are published, except messages of partitions whose
    /// ownership has ended.
    pub(crate) async fn run(
        mut self,
        mut committed: mpsc::Receiver<CommittedBatch>,
        mut commands: mpsc::Receiver<PublisherCommand>,
    ) -> Result<(), PublisherError> {
        let mut group = Vec::with_capacity(BATCH_GROUP_LIMIT);
        let mut is_open = true;
        // The next owner publishes the messages of a partition whose ownership has ended.
        while is_open || self.runs.any(|run| !run.handle.ownership.is_lost()) {
            while self.sent_backlogs.iter().map(|backlog| backlog.bytes).sum::<usize>()
                < self.backlog_bytes_limit
                && let Some(backlog) = self.waiting_backlogs.pop_front()
            {
                let messages = self.publish_backlog(&backlog).await?;
                // The receiver is dropped if the process has given up the start of the partition.
                let _ = backlog.accepted.send(messages);
            }
            tokio::select! {
                received = committed.recv_many(&mut group, BATCH_GROUP_LIMIT), if is_open => {
                    is_open = received > 0;
                    self.publish(&mut group).await?;
                }
                Some(command) = commands.recv() => self.handle_command(command),
                confirms = self.next_confirms() => {
                    confirms?;
                    self.finish_runs().await;
                }
            }
        }
        Ok(())
    }

    fn handle_command(&mut self, command: PublisherCommand) {
        match command {
            PublisherCommand::PublishBacklog(backlog) => self.waiting_backlogs.push_back(backlog),
            PublisherCommand::TakeSentBacklog(handle, reply) => {
                let taken = self
                    .sent_backlogs
                    .extract_if(.., |backlog| Arc::ptr_eq(&backlog.handle, &handle));
                let input = |SentBacklog { shard, through, messages, bytes, .. }| {
                    Input::OutboxBacklog { shard, through, messages, bytes }
                };
                // The receiver is dropped if the process has given up the start of the partition.
                let _ = reply.send(taken.map(input).collect());
            }
        }
    }

    async fn publish_backlog(&mut self, backlog: &OutboxBacklog) -> Result<usize, PublisherError> {
        let OutboxBacklog { handle, shard, entries, .. } = backlog;
        if self.sinks.has_numbered_lines() {
            for (commit, content) in backlog.contents() {
                self.sinks.announce(handle, *shard, commit, content)?;
            }
            self.sinks.number_announced().await?;
        }
        let mut messages = 0;
        let mut bytes = 0;
        for (commit, content) in backlog.contents() {
            messages += 1;
            bytes += content.memory();
            self.sinks.put(handle, commit, content)?;
        }
        let Some(last) = entries.last() else { return Ok(0) };
        let handle = Arc::clone(handle);
        let shard = *shard;
        let through = last.number;
        self.sent_backlogs.push(SentBacklog {
            handle: Arc::clone(&handle),
            shard,
            through,
            messages,
            bytes,
        });
        self.end_run(handle, shard, through).await?;
        self.sync_sinks().await?;
        self.finish_runs().await;
        Ok(messages)
    }

    /// Waits for the next confirms, which come from the tasks of exchanges and streams, and records them. Returns an
    /// error if one of these tasks has failed.
    async fn next_confirms(&mut self) -> Result<(), PublisherError> {
        tokio::select! {
            _ = self.published.recv_many(&mut self.confirmed, CONFIRM_GROUP_LIMIT),
                if !self.tasks.is_empty() =>
            {
                for (run, count) in self.confirmed.drain(..) {
                    self.runs.record_confirms(run, count);
                }
                Ok(())
            }
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(ended) => ended,
                Err(panic) => resume_unwind(panic.into_panic()),
            },
            else => std::future::pending().await,
        }
    }

    async fn publish(&mut self, committed: &mut Vec<CommittedBatch>) -> Result<(), PublisherError> {
        // The next owner publishes the messages of the partition.
        committed.retain(|committed| !committed.handle.ownership.is_lost());
        // Sort the batches by outbox: the messages of an outbox are numbered together, and lines must be written in the
        // order of their numbers.
        committed.sort_by_key(|committed| (Arc::as_ptr(&committed.handle), committed.batch.shard));
        if self.sinks.has_numbered_lines() {
            for committed in &*committed {
                for content in committed.contents() {
                    let CommittedBatch { handle, batch, .. } = committed;
                    self.sinks.announce(handle, batch.shard, batch.number, content)?;
                }
            }
            self.sinks.number_announced().await?;
        }
        let mut batches = committed.drain(..).peekable();
        while let Some(current) = batches.next() {
            for content in current.contents() {
                self.sinks.put(&current.handle, current.batch.number, content)?;
            }
            let CommittedBatch { handle, batch, .. } = current;
            handle.watermarks[batch.shard as usize].record_commit(batch.number);
            let is_same_shard = batches.peek().is_some_and(|next| {
                Arc::ptr_eq(&next.handle, &handle) && next.batch.shard == batch.shard
            });
            if !is_same_shard || self.sinks.buffered_bytes() >= WRITE_BYTES {
                self.end_run(handle, batch.shard, batch.number).await?;
                if self.sinks.unsynced_bytes() >= SYNC_BYTES {
                    self.sync_sinks().await?;
                }
            }
        }
        self.sync_sinks().await?;
        self.finish_runs().await;
        Ok(())
    }

    async fn sync_sinks(&mut self) -> Result<(), PublisherError> {
        let replaced = self.sinks.sync(&*self.store).await?;
        self.runs.replace_marks(&replaced);
        Ok(())
    }

    /// Sends the contents of the run to the sinks, and adds the run to the pending runs.
    async fn end_run(
        &mut self,
        handle: Arc<PartitionHandle>,
        shard: u32,
        through: u64,
    ) -> Result<(), PublisherError> {
        let WrittenRun { unconfirmed, messages, marks, replaced } =
            self.sinks.write(&*self.store, &self.runs, &handle, shard).await?;
        self.runs.replace_marks(&replaced);
        self.runs.push(PublishRun { handle, shard, through, marks, unconfirmed, messages });
        Ok(())
    }

    /// Marks the messages of finished runs as published, and reports the runs to their drivers. A finished run of
    /// left-over messages needs no report if no driver has counted these messages.
    async fn finish_runs(&mut self) {
        let finished = self.runs.take_done();
        self.record_runs(&finished).await;
        for PublishRun { handle, shard, through, messages, .. } in finished {
            // If the ownership has ended, this process does not count the messages, because the next owner of the
            // partition publishes them.
            if !handle.ownership.is_lost() {
                self.counts.add(messages);
            }
            let before = self.sent_backlogs.len();
            self.sent_backlogs.retain(|backlog| {
                !Arc::ptr_eq(&backlog.handle, &handle)
                    || backlog.shard != shard
                    || backlog.through > through
            });
            if self.sent_backlogs.len() == before {
                // A driver always takes its completions. If the driver is gone, the report is not needed.
                let _ = handle
                    .completions
                    .send(Completion::Input(Input::Published { shard, through }))
                    .await;
            }
        }
    }

    /// Records that the messages of the runs are published. For runs with file lines, sends one request after the
    /// other, because each record covers more of a file than the previous record. Among the other runs, sends a request
    /// only for the newest run of each partition and shard, whose record includes the earlier runs. These requests run
    /// concurrently, because each may need a round trip to a server. Omits the runs of a partition whose ownership has
    /// ended.
    async fn record_runs(&self, finished: &[PublishRun]) {
        let mut last_runs = BTreeMap::new();
        for run in finished.iter().filter(|run| !run.handle.ownership.is_lost()) {
            if run.marks.is_empty() {
                let Partition { stream, number } = &run.handle.partition;
                last_runs.insert((stream, number, run.shard), run);
            } else {
                self.record_run(run).await;
            }
        }
        join_all(last_runs.into_values().map(|run| self.record_run(run))).await;
    }

    async fn record_run(&self, run: &PublishRun) {
        let PartitionHandle { partition, claim, .. } = &*run.handle;
        let PublishRun { shard, through, marks, .. } = run;
        run.handle.watermarks[*shard as usize].begin_record(*through, !marks.is_empty());
        let last = retry_until_ok("record of published messages", || {
            self.store.outbox_done(partition, *claim, *shard, *through, marks)
        });
        // The store records nothing if the shard has another claim.
        if let Some(last) = last.await {
            run.handle.watermarks[*shard as usize].finish_record(*through, last);
        }
    }
}

impl CommittedBatch {
    fn contents(&self) -> impl Iterator<Item = SinkContent> {
        let Self { batch, applied, .. } = self;
        let mut refused = applied.refused.iter().map(|(position, _)| *position).peekable();
        let writes = batch.writes.iter().enumerate();
        let writes = writes.filter(move |(position, _)| refused.next_if_eq(position).is_none());
        let messages = writes.flat_map(|(_, write)| {
            // A key may start a second time after its end. The incarnation distinguishes the new record of the key from
            // the earlier record. The store sets the incarnation to the time of the key's first commit. The batch of
            // that first commit does not contain the time yet.
            let incarnation = match write.record.incarnation {
                0 => applied.time,
                incarnation => incarnation,
            };
            write.messages.iter().map(move |emitted| {
                let key = Arc::clone(&write.key);
                let emitted = emitted.clone();
                SinkContent::Message(OutboxMessage { key, incarnation, emitted })
            })
        });
        let letters =
            batch.forwarded(applied).map(|letter| SinkContent::Letter(Box::new(letter.clone())));
        messages.chain(letters)
    }
}

impl OutboxBacklog {
    /// Returns the messages and forwarded dead letters, each with the number of its commit.
    fn contents(&self) -> impl Iterator<Item = (u64, SinkContent)> {
        self.entries.iter().flat_map(|entry| {
            let messages = entry.messages.iter().cloned().map(SinkContent::Message);
            let letters =
                entry.letters.iter().cloned().map(|letter| SinkContent::Letter(Box::new(letter)));
            messages.chain(letters).map(|content| (entry.number, content))
        })
    }
}
