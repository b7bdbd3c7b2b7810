//! Performs the effects that the sequencer requests: calls to the store, the workers, the outbox publisher and the
//! replay sources, and acknowledgements to the source. Only the sequencer decides whether an event takes effect, waits
//! or becomes a dead letter; this module must never make this decision.
//!
//! The driver itself waits for the store's answers. A separate task for each request would be slower, because the task
//! would have to wake the driver on another thread. This module retries a failed read of the store until the read
//! succeeds, because the sequencer cannot continue without the result.

use std::future::{Future, ready};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ordain_core::{
    AppliedCommit, AttemptToken, Batch, CommitReply, Effect, Input, Key, StopReason,
};
use tokio::sync::mpsc::error::TrySendError;

use super::{Driver, DriverError, alarms};
use crate::replay::ReplayAnswer;
use crate::sink::CommittedBatch;
use ordain_publish::incident::{
    CommitsLost, CommitsRepeated, Incident, IncidentSubject, LostCommits, record, time_text,
};
use ordain_store::{EarlyLetters, StoreError, retry_until_ok};

const TURN_BATCH_LIMIT: usize = 128;
/// While this number of loads is in progress, other keys wait for the next load, which reads all of them together.
const LOAD_LIMIT: usize = 2;
/// The limit of concurrent reads is low, because the size of a result is not known before the read.
const SPILL_READ_LIMIT: usize = 4;

/// Maximum number of shards that the text of a log line names. The CloudEvent in the line names all shards.
const LOGGED_SHARD_LIMIT: usize = 16;

/// A request to the store or to a replay source; the future completes with the answer.
pub(super) type StoreFuture = Pin<Box<dyn Future<Output = StoreReply> + Send>>;

/// True if the store wrote the checkpoint.
pub(super) type CheckpointResult = Result<bool, StoreError>;

/// An answer of the store or of a replay source.
pub(super) enum StoreReply {
    /// The driver only passes this answer to the sequencer.
    Input(Input),
    /// The answer to a commit, and the duration of the commit.
    Committed(Input, Duration),
    /// The answer to a load of key records, and the keys whose records were beyond the size limit of the load. The
    /// driver requests these records in a later load.
    Loaded(Vec<Input>, Vec<(AttemptToken, Key)>),
    SpillRead(Input),
    Checkpoint(CheckpointResult),
    /// The store has answered a repeated request to record messages as published.
    PublishRecordRepeated,
}

pub(super) struct SpillReadRequest {
    pub(super) token: AttemptToken,
    pub(super) key: Key,
    pub(super) from: u64,
    pub(super) limit: usize,
    pub(super) bytes: usize,
}

impl Driver {
    /// Performs all effects that the sequencer requests, and starts to write a checkpoint if a checkpoint is due.
    /// Returns an error if the driver has failed.
    pub(super) fn perform_all(&mut self) -> Result<(), DriverError> {
        while let Some(effect) = self.sequencer.poll_effect() {
            self.perform(effect);
        }
        // After a failure or an `Effect::Stop`, the driver writes nothing more, not even a checkpoint.
        self.take_failure()?;
        self.track_recovery();
        self.submit_work();
        if self.delivery_tracker.is_checkpoint_due()
            && !self.delivery_tracker.is_writing_checkpoint()
            && let Some(save) = self.checkpoint()
        {
            self.request(async move { StoreReply::Checkpoint(save.await) });
        }
        self.take_failure()
    }

    /// The store may have gone back in time until each shard has confirmed that it has all commits. Before that, this
    /// method counts the newest checkpoint as lost. Afterwards, it answers the waiting requests for a store check. If
    /// commits were repeated, also logs them, and repeats the requests that record messages of the affected shards as
    /// published.
    fn track_recovery(&mut self) {
        if self.sequencer.in_doubt() {
            self.delivery_tracker.invalidate_checkpoint();
            return;
        }
        let recommitted_total = self.sequencer.stats().recommitted;
        let recommitted = recommitted_total
            - std::mem::replace(&mut self.rollback_tracker.logged, recommitted_total);
        for check in self.rollback_tracker.waiting_checks.drain(..) {
            // The receiver is gone if the requester has stopped waiting for the answer.
            let _ = check.send(());
        }
        let lost_commits = std::mem::take(&mut self.rollback_tracker.lost_commits);
        if recommitted > 0 {
            for shard in lost_commits.keys() {
                self.repeat_publish_record(*shard);
            }
            let shards: Vec<LostCommits> = lost_commits
                .into_iter()
                .map(|(shard, (first, last))| LostCommits { shard, first, last })
                .collect();
            let ranges = list_ranges(&shards);
            let incident = CommitsRepeated { commits: recommitted, shards };
            tracing::warn!(
                stream = &*self.partition.stream,
                partition = self.partition.number,
                commits = recommitted,
                shards = ranges,
                cloudevent = self.record(&incident),
                "the store went back in time and lost commits of this partition: all of them were repeated from \
                 memory"
            );
        }
    }

    /// Logs that a shard (slice of the store) lost commits which the sequencer cannot repeat. `last` is the newest
    /// commit of this owner in the shard. `stored` is the newest commit that the shard still has, or that the sequencer
    /// has already repeated; `None` if the shard has lost the claim. `since` is a time before the first lost commit, in
    /// ms since the Unix epoch; `None` if no such time is known.
    fn report_lost_commits(&self, shard: u32, last: u64, stored: Option<u64>, since: Option<u64>) {
        let claimed = self.handle.claimed_commits[shard as usize];
        let first = stored.unwrap_or(claimed).saturating_add(1);
        let commits = last.saturating_add(1).saturating_sub(first);
        let since = since.map(time_text);
        let claim_lost = stored.is_none();
        let incident =
            CommitsLost { shard, commits, first, last, claim_lost, since: since.clone() };
        tracing::error!(
            stream = &*self.partition.stream,
            partition = self.partition.number,
            shard,
            commits,
            first,
            last,
            claim_lost,
            since,
            cloudevent = self.record(&incident),
            "the store went back in time and lost commits that this process cannot repeat: the process ends"
        );
    }

    /// Returns a CloudEvent in JSON, in one line.
    fn record<T: Incident>(&self, data: &T) -> String {
        record(&self.partition.stream, IncidentSubject::Partition(self.partition.number), data)
    }

    /// Repeats the newest request that records messages of a shard as published, after the driver has repeated lost
    /// commits of the shard. The repeated commits put their messages into the outbox a second time, although this
    /// process may already have published some of these messages. Without the repeated request, the next owner would
    /// publish the messages again. Does nothing if this process has not yet made such a request for the shard. Also
    /// does nothing if a sink wrote some of the messages to a file, because the repeated request could not contain the
    /// length of the file.
    fn repeat_publish_record(&mut self, shard: u32) {
        let Some(through) = self.handle.watermarks[shard as usize].commit_to_repeat() else {
            return;
        };
        let store = Arc::clone(&self.store);
        let partition = self.partition.clone();
        let claim = self.claim;
        self.request(async move {
            let request = || store.outbox_done(&partition, claim, shard, through, &[]);
            retry_until_ok("record of published messages", request).await;
            StoreReply::PublishRecordRepeated
        });
    }

    fn take_failure(&mut self) -> Result<(), DriverError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Run(turn) => {
                self.turn_batch.push(turn);
                if self.turn_batch.len() >= TURN_BATCH_LIMIT {
                    self.turns.submit(std::mem::take(&mut self.turn_batch));
                }
            }
            Effect::Load { token, key } => self.waiting_loads.push((token, key)),
            Effect::Commit(batch) => self.commit(batch),
            Effect::Ack { through } => self.delivery_tracker.acknowledge(through),
            Effect::Publish { batch, applied } => self.publish(batch, applied),
            Effect::ReadSpill { token, key, from, limit, bytes } => {
                self.waiting_reads.push_back(SpillReadRequest { token, key, from, limit, bytes });
            }
            Effect::Replay { token, key, source, missing, max_letter_age: within } => {
                let sources = Arc::clone(&self.replay);
                self.request_input(async move {
                    let ReplayAnswer { events, until, failed } =
                        sources.request(source, &key, &missing, within).await;
                    Input::Replayed { token, found: events, until, failed }
                });
            }
            Effect::ReadEarlyLetters { token, key, sequences, max_letter_age: within } => {
                self.read_early_letters(token, key, sequences, within);
            }
            Effect::ReadDue { after, limit, all } => self.read_due(after, limit, all),
            Effect::Stop(StopReason::Fenced) => self.failed = Some(DriverError::Fenced),
            Effect::Stop(StopReason::RolledBack { shard, last, stored, since, detail }) => {
                self.report_lost_commits(shard, last, stored, since);
                self.failed = Some(DriverError::StoreRolledBack { shard, detail });
            }
        }
    }

    /// Pauses or resumes the start of turns, as the sequencer's memory budget requires. Submits the turns that
    /// `perform` gathered, and starts the loads and reads that wait, up to their limits.
    fn submit_work(&mut self) {
        self.turns.pause(!self.sequencer.may_run());
        if !self.turn_batch.is_empty() {
            self.turns.submit(std::mem::take(&mut self.turn_batch));
        }
        let may_read = self.sequencer.may_read();
        if may_read && !self.waiting_loads.is_empty() && self.running_loads < LOAD_LIMIT {
            self.running_loads += 1;
            let loads = std::mem::take(&mut self.waiting_loads);
            self.load(loads);
        }
        while may_read
            && self.running_reads < SPILL_READ_LIMIT
            && let Some(page) = self.waiting_reads.pop_front()
        {
            self.running_reads += 1;
            self.read_spill(page);
        }
    }

    fn load(&mut self, loads: Vec<(AttemptToken, Key)>) {
        let store = Arc::clone(&self.store);
        let partition = self.partition.clone();
        let bytes = self.load_bytes;
        let metrics = Arc::clone(&self.metrics);
        self.request(async move {
            let (mut tokens, mut keys): (Vec<_>, Vec<_>) = loads.into_iter().unzip();
            let loaded =
                retry_until_ok("load of keys", || store.load(&partition, &keys, bytes)).await;
            let rest = tokens.split_off(loaded.len()).into_iter().zip(keys.split_off(loaded.len()));
            metrics.record_moved_keys(&loaded);
            let input = |(token, loaded)| Input::Loaded { token, loaded };
            StoreReply::Loaded(tokens.into_iter().zip(loaded).map(input).collect(), rest.collect())
        });
    }

    fn commit(&mut self, batch: Arc<Batch>) {
        let store = Arc::clone(&self.store);
        let partition = self.partition.clone();
        let claim = self.claim;
        let shard = batch.shard;
        let number = batch.number;
        let alarm_batch = alarms::if_alarming(&batch);
        let requested_at = Instant::now();
        self.request(async move {
            let reply = store.commit(&partition, claim, batch).await;
            match (alarm_batch, &reply) {
                (Some(batch), CommitReply::Applied(applied)) => {
                    alarms::log_alarms(&partition.stream, &batch, applied);
                }
                (_, CommitReply::RolledBack { found, .. }) => tracing::error!(
                    stream = &*partition.stream,
                    partition = partition.number,
                    shard,
                    number,
                    "THE STORE WENT BACK IN TIME: {found}. This process repeats the lost commits from memory. If the \
                     process cannot repeat all of them, it ends"
                ),
                _ => {}
            }
            StoreReply::Committed(Input::Committed { shard, number, reply }, requested_at.elapsed())
        });
    }

    fn publish(&mut self, batch: Arc<Batch>, applied: AppliedCommit) {
        let committed = CommittedBatch { handle: Arc::clone(&self.handle), batch, applied };
        match self.publisher.try_send(committed) {
            // If the outbox publisher has ended, the process is about to end too. The outbox keeps the messages.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            // The driver must end here. If the driver continued, later messages would be published before these
            // messages.
            Err(TrySendError::Full(_)) => self.failed = Some(DriverError::PublisherFull),
        }
    }

    fn read_spill(&mut self, request: SpillReadRequest) {
        let store = Arc::clone(&self.store);
        let partition = self.partition.clone();
        self.request(async move {
            let SpillReadRequest { token, key, from, limit, bytes } = request;
            let read = || store.read_spill(&partition, &key, from, limit, bytes);
            let read = retry_until_ok("read of spilled events", read).await;
            let read = read.inspect_err(|reason| {
                alarms::log_unreadable_spill(&partition.stream, &key, reason);
            });
            StoreReply::SpillRead(Input::SpillRead { token, read })
        });
    }

    fn read_early_letters(
        &mut self,
        token: AttemptToken,
        key: Key,
        sequences: RangeInclusive<u64>,
        within: u64,
    ) {
        let store = Arc::clone(&self.store);
        let partition = self.partition.clone();
        self.request_input(async move {
            let read = || store.early_letters(&partition, &key, &sequences, within);
            let read = retry_until_ok("read of dead letters", read).await;
            let EarlyLetters { letters, until } = read.unwrap_or_else(|reason| {
                tracing::error!(
                    stream = &*partition.stream,
                    key = &*key,
                    "cannot read the dead letters of the key, because stored data is unreadable: {reason}; these \
                     dead letters keep their present cause"
                );
                EarlyLetters { letters: Vec::new(), until: sequences.end().saturating_add(1) }
            });
            Input::EarlyLettersRead { token, letters, until }
        });
    }

    fn read_due(&mut self, after: Option<(u64, Key)>, limit: usize, all: bool) {
        let store = Arc::clone(&self.store);
        let partition = self.partition.clone();
        self.request_input(async move {
            let read = || store.due(&partition, after.as_ref(), limit, all);
            let (entries, next_in) = retry_until_ok("read of the list of due keys", read).await;
            Input::DueRead { entries, next_in }
        });
    }

    /// Writes the next checkpoint. Returns `None` if the source cannot resume, if no delivery is acknowledged yet, or
    /// if the store may have lost commits on which the checkpoint depends.
    fn checkpoint(&mut self) -> Option<impl Future<Output = CheckpointResult> + Send + use<>> {
        if self.sequencer.in_doubt() {
            return None;
        }
        let mark = self.delivery_tracker.begin_checkpoint(|| self.handle.last_commits())?;
        let store = Arc::clone(&self.store);
        let partition = self.partition.clone();
        let claim = self.claim;
        let disconnects = self.disconnects;
        Some(async move { store.put_checkpoint(&partition, claim, disconnects, &mark).await })
    }

    fn request_input(&mut self, input: impl Future<Output = Input> + Send + 'static) {
        self.request(async move { StoreReply::Input(input.await) });
    }

    fn request(&mut self, future: impl Future<Output = StoreReply> + Send + 'static) {
        let mut request: StoreFuture = Box::pin(future);
        // This first poll sends the request immediately. Without this poll, the driver would send the request only when
        // it next waits for answers.
        if let Poll::Ready(reply) = request.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            request = Box::pin(ready(reply));
        }
        self.store_requests.push(request);
    }
}

/// Returns the lost commits of the first [`LOGGED_SHARD_LIMIT`] shards, and the number of the remaining shards, as
/// text.
fn list_ranges(shards: &[LostCommits]) -> String {
    let named = shards.iter().take(LOGGED_SHARD_LIMIT);
    let mut ranges: Vec<String> = named.map(LostCommits::to_string).collect();
    if shards.len() > LOGGED_SHARD_LIMIT {
        ranges.push(format!("and {} more", shards.len() - LOGGED_SHARD_LIMIT));
    }
    ranges.join(", ")
}
