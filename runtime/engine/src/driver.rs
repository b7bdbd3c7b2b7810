//! The driver of one partition passes events and completions to the sequencer, and performs the effects that the
//! sequencer returns. Completions are, for example, the results of workers and the reports of the outbox publisher. The
//! driver must never decide anything about events.

mod alarms;
mod availability;
mod config;
mod delivery_tracker;
mod error;
mod metrics;
mod parked_search;
mod perform;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use ordain_core::{
    CommitReply, Event, Input, Key, RetrySettings, Rollout, Sequencer, SequencerSettings, Stats,
    Turn,
};
use tokio::sync::{mpsc, oneshot};

use crate::completion::Completion;
use crate::replay;
use crate::sink::{CommittedBatch, PartitionHandle};
use crate::source::{self, Inbox};
use alarms::BlockLog;
use availability::SourceAvailability;
use delivery_tracker::DeliveryTracker;
use ordain_cloudevents::{DecodedDelivery, DeliveryBatch, FilePosition, SourceHandle};
use ordain_store::OwnershipPhase;
use ordain_store::{Claim, Partition, Store};
use ordain_wasm::{ActiveVersion, TurnQueueHandle};
use parked_search::ParkedSearch;
use perform::{SpillReadRequest, StoreFuture, StoreReply};

pub use crate::incident::LossCounts;
pub use config::DriverConfig;
pub use error::DriverError;
pub use metrics::{CommitHistograms, PartitionMetrics};

const COMPLETION_BATCH_LIMIT: usize = 8;
/// Before a driver releases its partition, it waits until all messages of the partition are published. The wait ends
/// early if the number of unpublished messages has not changed for this time. The remaining messages, for example
/// messages for a full queue, stay in the outbox.
const PUBLISH_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The driver of one partition: it passes inputs to the sequencer, and performs the effects that the sequencer returns.
pub struct Driver {
    partition: Partition,
    claim: Claim,
    store: Arc<dyn Store>,
    turns: TurnQueueHandle,
    publisher: mpsc::Sender<CommittedBatch>,
    handle: Arc<PartitionHandle>,
    sequencer: Sequencer,
    started: Instant,
    /// Turns that the driver has collected, and will submit to the workers together.
    turn_batch: Vec<Turn>,
    /// Keys whose records the driver must load. The driver requests all these records together as soon as the limit of
    /// concurrent loads and the memory budget of the sequencer allow another load.
    waiting_loads: Vec<(ordain_core::AttemptToken, ordain_core::Key)>,
    running_loads: usize,
    /// Requests to read spilled events (events that were moved from memory into the store). The driver has not sent
    /// these requests yet.
    waiting_reads: VecDeque<SpillReadRequest>,
    running_reads: usize,
    /// Size limit of one load of key records, in bytes; equal to the size limit of a commit. The store applies the
    /// limit, because only the store knows the sizes of the records. The store leaves out the records beyond the limit,
    /// and the driver requests these records in a later load.
    load_bytes: usize,
    store_requests: FuturesUnordered<StoreFuture>,
    /// The sources of missing events.
    replay: Arc<replay::ReplaySources>,
    /// Deliveries that arrived from the source and that the driver has not passed to the sequencer yet.
    waiting_deliveries: VecDeque<(DecodedDelivery, FilePosition)>,
    source_ended: bool,
    source_availability: SourceAvailability,
    delivery_tracker: DeliveryTracker,
    /// Set if the source failed.
    source_failed: Option<DriverError>,
    block_log: BlockLog,
    /// The number of unpublished messages, and the time of its newest change. `None` until the driver drains the
    /// partition (hands it over) and waits only for the outbox publisher.
    unpublished: Option<(usize, Instant)>,
    /// The value of [`Store::disconnects`] at the newest check. A change shows that the store may have gone back in
    /// time.
    disconnects: u64,
    rollback_tracker: RollbackTracker,
    /// `true` while the driver only waits until the store has all commits and the final checkpoint.
    ending: bool,
    failed: Option<DriverError>,
    metrics: Arc<PartitionMetrics>,
}

/// The commits that the store lost, and the requests for a store check that the driver has not answered yet.
#[derive(Default)]
struct RollbackTracker {
    logged: u64,
    /// For each shard, the oldest and the newest lost commit that is not logged yet.
    lost_commits: BTreeMap<u32, (u64, u64)>,
    /// Requests for a check of the store ([`Completion::StoreCheck`]). The driver answers them when each shard has
    /// confirmed that it has all commits.
    waiting_checks: Vec<oneshot::Sender<()>>,
}

impl Driver {
    /// Runs the driver. Returns in one of four cases:
    /// - This instance must release the partition, or has lost it.
    /// - In a run with `once`, this partition has no work left, and no other partition can still send events to this
    ///   partition.
    /// - The driver or its source failed.
    /// - In a run with `once`, or after the failure of the source, a stopped key blocks the partition
    ///   ([`DriverError::KeyFull`]).
    pub async fn run(config: DriverConfig) -> Result<Stats, DriverError> {
        let DriverConfig { mut completions, mut source, mut inbox, .. } = config;
        let DriverConfig { mut version, mut may_end, once, .. } = config;
        let SequencerSettings { prefetch, batch_bytes: load_bytes, .. } = config.settings;
        let retry = config.settings.retry.clone();
        let rollout = config.settings.rollout.clone();
        let mut driver = Self {
            sequencer: Sequencer::new(config.settings, &config.claimed.commits, 0),
            partition: config.partition,
            claim: config.claimed.claim,
            disconnects: config.store.disconnects(),
            store: config.store,
            turns: config.turns,
            publisher: config.publisher,
            handle: config.handle,
            started: Instant::now(),
            turn_batch: Vec::new(),
            waiting_loads: Vec::new(),
            running_loads: 0,
            waiting_reads: VecDeque::new(),
            running_reads: 0,
            load_bytes,
            store_requests: FuturesUnordered::new(),
            replay: Arc::new(config.replay),
            waiting_deliveries: VecDeque::new(),
            source_ended: false,
            source_availability: SourceAvailability::new(config.metrics.health()),
            delivery_tracker: DeliveryTracker::new(
                config.checkpoint_name,
                source.acknowledge.take(),
                prefetch,
            ),
            source_failed: None,
            block_log: BlockLog::new(),
            unpublished: None,
            rollback_tracker: RollbackTracker::default(),
            ending: false,
            failed: None,
            metrics: config.metrics,
        };
        driver.begin(config.backlog, once && source.is_fed_locally);
        let mut parked = driver.search_parked_keys(rollout.as_deref(), &retry);
        // The highest rollout number that this driver knows. Either `version` has sent a rollout with this number, or
        // this driver has requested such a rollout from `version`.
        let mut newest_known = rollout.as_ref().map_or(0, |rollout| rollout.number);
        let mut completed = Vec::with_capacity(COMPLETION_BATCH_LIMIT);
        let mut phases = driver.handle.ownership.phases();
        let mut phase = OwnershipPhase::Owned;
        loop {
            driver.perform_all()?;
            driver.report_progress();
            let newest = driver.sequencer.newest_rollout();
            if newest > newest_known {
                version.require_rollout(newest);
                newest_known = newest;
            }
            let draining = phase == OwnershipPhase::Draining;
            let is_idle = driver.update_idle(once, parked.has_ended());
            if driver.is_finished(is_idle && *may_end.borrow_and_update(), draining) {
                driver.begin_shutdown()?;
                if driver.has_saved_all() {
                    return driver.end(source, inbox).await;
                }
            }
            if !draining {
                driver.check_blocked(once, parked.has_ended())?;
            }
            let wake = driver.next_wake_at();
            let reads = !draining && driver.takes_more();
            tokio::select! {
                biased;
                next = phases.changed_from(phase) => phase = driver.enter_phase(next)?,
                active = version.changed() => {
                    let new_rollout = driver.switch_version(active);
                    newest_known = newest_known.max(new_rollout.as_ref().map_or(0, |rollout| rollout.number));
                    parked = driver.search_parked_keys(new_rollout.as_deref(), &retry);
                }
                keys = parked.next(), if driver.sequencer.pending_reloads() < parked_search::WAITING_KEY_LIMIT => {
                    driver.recheck_keys(keys);
                }
                Some(answer) = driver.store_requests.next() => {
                    // After the answer of a replay source, the sequencer may stop waiting for missing events. The
                    // source of the partition may still hold these events, so first report whether the source of the
                    // partition is available.
                    driver.report_source_availability(inbox.as_ref());
                    driver.handle_store_reply(answer);
                }
                _ = completions.recv_many(&mut completed, COMPLETION_BATCH_LIMIT) => {
                    driver.report_source_availability(inbox.as_ref());
                    driver.take_completions(&mut completed);
                }
                deliveries = source.deliveries.recv(), if reads => match deliveries {
                    Some(deliveries) => driver.take_deliveries(deliveries, once),
                    None => driver.handle_source_failure(&mut source).await,
                },
                Some(event) = source::next_offered(&mut inbox), if reads => driver.handle_offered_event(event),
                Ok(()) = may_end.changed() => {}
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            driver.deliver(phase == OwnershipPhase::Draining, once);
            driver.report_source_availability(inbox.as_ref());
            let now = driver.now();
            driver.sequencer.handle_timeout(now);
        }
    }

    /// Passes the reports in [`DriverConfig::backlog`] (`left_over`) to the sequencer, before any other input.
    /// `is_fed_locally` is true in a run with `once` if every writer adds the events of each key to the queue of the
    /// source in order and without gaps. No missing event can then arrive after a later event. The driver therefore
    /// reports the end of the source before the first delivery, and the sequencer does not wait for missing events.
    fn begin(&mut self, left_over: Vec<Input>, is_fed_locally: bool) {
        self.handle.driven.store(true, Ordering::SeqCst);
        for input in left_over {
            self.input(input);
        }
        if is_fed_locally {
            self.end_of_source();
        }
    }

    /// Updates the metrics. Logs the keys that continue after a missing event has arrived. Also logs each
    /// store-numbered event that the sequencer counted as a repeat without a comparison. The sequencer does so if it no
    /// longer knows the settled event with the same sequence.
    fn report_progress(&mut self) {
        self.metrics.set_stats(&self.sequencer.stats());
        for (key, event) in self.sequencer.take_resumed_keys() {
            alarms::log_resumed_key(&self.partition.stream, &key, event);
        }
        for event in self.sequencer.take_unverified_duplicates() {
            alarms::log_unverified_duplicate(&self.partition.stream, &event);
        }
    }

    /// Begins to drain the partition: the sequencer starts no more turns, so that this instance can hand the partition
    /// over. Fails if this instance has lost the partition. Returns `phase`.
    fn enter_phase(&mut self, phase: OwnershipPhase) -> Result<OwnershipPhase, DriverError> {
        if phase == OwnershipPhase::Lost {
            return Err(DriverError::Fenced);
        }
        self.input(Input::Drain);
        Ok(phase)
    }

    /// Returns whether the driver may take one more batch of deliveries from the source, or one more event from the
    /// inbox.
    fn takes_more(&self) -> bool {
        !self.source_ended
            && self.source_failed.is_none()
            && self.waiting_deliveries.is_empty()
            && self.sequencer.credit() > 0
    }

    /// Starts the search for the parked keys that the handler version of `rollout` must retry according to `settings`.
    /// Without a rollout, there is nothing to search.
    fn search_parked_keys(
        &self,
        rollout: Option<&Rollout>,
        settings: &RetrySettings,
    ) -> ParkedSearch {
        ParkedSearch::start(&self.store, &self.partition, rollout, settings)
    }

    /// Switches to another handler version, which also executes the turns that no worker has begun. If `active` is
    /// `None` (this process lacks the version), passes these turns back to the sequencer. Returns the rollout of the
    /// new version.
    fn switch_version(&mut self, active: Option<Arc<ActiveVersion>>) -> Option<Arc<Rollout>> {
        let rollout = active.as_ref().map(|active| Arc::clone(&active.rollout));
        let undone = self.turns.switch_version(active);
        self.input(Input::VersionChanged(rollout.clone()));
        for turn in undone {
            self.input(Input::TurnDone(turn));
        }
        rollout
    }

    /// Returns whether this partition is idle ([`PartitionMetrics::is_idle`]), and records the result in the metrics.
    fn update_idle(&mut self, once: bool, searched: bool) -> bool {
        let is_idle = once && searched && self.is_idle();
        self.metrics.set_idle(is_idle);
        is_idle
    }

    /// Warns if a stopped key blocks the partition. A stopped key blocks the partition if `overflow` is `pause` and the
    /// store holds `spill_limit` events of the key. Usually, only an operator's action or another handler version can
    /// release such a key. In a run with `once`, and after the failure of the source, the driver does not wait for this
    /// release. This method then returns an error as soon as the search for parked keys has ended. If the source has
    /// ended, no key counts as blocking the partition. After a warning, this method logs the end of the block.
    fn check_blocked(&mut self, once: bool, searched: bool) -> Result<(), DriverError> {
        let stopped = self.sequencer.stopped_by().filter(|_| !self.source_ended);
        self.metrics.set_full_key(stopped);
        let Some((key, event)) = stopped else {
            if self.sequencer.credit() > 0 {
                self.block_log.end(&self.partition.stream);
            }
            return Ok(());
        };
        let stream = Arc::clone(&self.partition.stream);
        let full = DriverError::KeyFull { stream, key: key.to_string(), event };
        if searched && (once || self.source_failed.is_some()) {
            return Err(full);
        }
        self.block_log.warn(&self.partition.stream, &full);
        Ok(())
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.sequencer.handle(now, input);
    }

    fn take_completions(&mut self, completed: &mut Vec<Completion>) {
        let now = self.now();
        for completion in completed.drain(..) {
            match completion {
                Completion::Input(input) => self.sequencer.handle(now, input),
                Completion::StoreCheck(answer) => {
                    self.sequencer.handle(now, Input::StoreMayHaveRolledBack);
                    self.rollback_tracker.waiting_checks.push(answer);
                }
                Completion::Turns(turns) => {
                    for turn in turns.take() {
                        self.sequencer.handle(now, Input::TurnDone(turn));
                    }
                }
            }
        }
    }

    fn handle_store_reply(&mut self, reply: StoreReply) {
        let now = self.now();
        let disconnects = self.store.disconnects();
        if std::mem::replace(&mut self.disconnects, disconnects) != disconnects {
            self.sequencer.handle(now, Input::StoreMayHaveRolledBack);
        }
        match reply {
            StoreReply::Input(input) => self.sequencer.handle(now, input),
            StoreReply::Committed(input, took) => {
                let applied = match &input {
                    Input::Committed { shard, number, reply: CommitReply::Applied(_) } => {
                        Some((*shard, *number))
                    }
                    _ => None,
                };
                if let Input::Committed {
                    shard,
                    reply: CommitReply::RolledBack { last: Some(last), .. },
                    ..
                } = &input
                {
                    self.handle.rollbacks.fetch_add(1, Ordering::SeqCst);
                    self.metrics.losses.add_rollback(*shard);
                    let newest = self.handle.last_commit(*shard);
                    let (first, _) = self
                        .rollback_tracker
                        .lost_commits
                        .entry(*shard)
                        .or_insert((u64::MAX, newest));
                    *first = (*first).min(last + 1);
                }
                if let Some((shard, number)) = applied {
                    // Record the commit first: the sequencer then acknowledges the deliveries that depend on the
                    // commit.
                    self.handle.record_commit(shard, number);
                }
                self.sequencer.handle(now, input);
                if applied.is_some() {
                    self.metrics.record_commit(took, self.sequencer.settled_times());
                }
            }
            StoreReply::PublishRecordRepeated => {}
            StoreReply::Checkpoint(Ok(true)) => self.delivery_tracker.record_checkpoint(),
            StoreReply::Checkpoint(Ok(false)) => {
                self.delivery_tracker.record_failed_checkpoint();
                // The store did not write the checkpoint. Either the partition has another owner, or the store has gone
                // back in time, so the sequencer must check the shards.
                self.sequencer.handle(now, Input::StoreMayHaveRolledBack);
            }
            StoreReply::Checkpoint(Err(error)) => self.failed = Some(error.into()),
            StoreReply::SpillRead(read) => {
                self.running_reads -= 1;
                self.sequencer.handle(now, read);
            }
            StoreReply::Loaded(inputs, rest) => {
                self.running_loads -= 1;
                self.waiting_loads.splice(0..0, rest);
                for input in inputs {
                    self.sequencer.handle(now, input);
                }
            }
        }
    }

    fn take_deliveries(&mut self, deliveries: DeliveryBatch, once: bool) {
        if self.delivery_tracker.switch_subscription(deliveries.subscription_epoch) {
            self.waiting_deliveries.clear();
            self.input(Input::SourceReset);
        }
        if let Some(prefetch) = deliveries.prefetch {
            self.input(Input::Prefetch(prefetch));
        }
        self.delivery_tracker.record_progress(deliveries.progress, deliveries.items.len());
        self.waiting_deliveries.extend(deliveries.items);
        self.source_ended = deliveries.end;
        if deliveries.end && !once {
            tracing::info!(
                stream = &*self.partition.stream,
                "source ended: the stream still processes the events that it has already received"
            );
        }
    }

    fn recheck_keys(&mut self, keys: Vec<Key>) {
        for key in keys {
            self.input(Input::Reload(key));
        }
    }

    /// Passes an event from the inbox (events received over HTTP) to the sequencer. The source delivers a copy of the
    /// event later.
    fn handle_offered_event(&mut self, event: Arc<Event>) {
        self.input(Input::ArrivedEarly(event));
    }

    /// Reports to the sequencer each time the source becomes unavailable or available. The source is unavailable if its
    /// consumer does not receive the events of the broker's queue, or if the inbox finds that the broker is
    /// unavailable. A source that does not read from the broker is always available.
    fn report_source_availability(&mut self, inbox: Option<&Inbox>) {
        let is_broker_unavailable = inbox.is_some_and(Inbox::is_broker_unavailable);
        for is_unavailable in self.source_availability.check(is_broker_unavailable) {
            self.input(Input::SourceUnavailable(is_unavailable));
        }
    }

    /// Passes waiting deliveries to the sequencer while the sequencer and the delivery tracker have room. Afterwards,
    /// in a run with `once`, reports the end of the source if no delivery waits. Does nothing while the driver drains
    /// the partition.
    fn deliver(&mut self, draining: bool, once: bool) {
        if draining || (self.waiting_deliveries.is_empty() && !self.source_ended) {
            return;
        }
        let now = self.now();
        while self.sequencer.credit() > 0 && self.delivery_tracker.has_room() {
            let Some((delivered, position)) = self.waiting_deliveries.pop_front() else { break };
            let delivery = self.delivery_tracker.add(position);
            let input = match delivered {
                Ok(event) => Input::Arrived { delivery, event: Arc::new(event) },
                Err(letter) => Input::Unreadable { delivery, letter },
            };
            self.sequencer.handle(now, input);
        }
        if self.source_ended
            && self.waiting_deliveries.is_empty()
            && once
            && !self.metrics.source_ended()
        {
            self.end_of_source();
        }
    }

    fn end_of_source(&mut self) {
        self.metrics.set_source_ended();
        self.input(Input::SourceEnded);
    }

    /// Returns the time at which the driver must wake up if nothing wakes it earlier.
    fn next_wake_at(&self) -> Instant {
        let timeout =
            self.sequencer.poll_timeout().map(|at| self.started + Duration::from_millis(at));
        let never = Instant::now() + Duration::from_hours(1);
        let save_at =
            self.delivery_tracker.next_checkpoint_at().filter(|_| !self.sequencer.in_doubt());
        let publish_deadline = self.unpublished.filter(|_| self.sequencer.drained());
        let publish_deadline = publish_deadline.map(|(_, since)| since + PUBLISH_IDLE_TIMEOUT);
        // After this deadline, a driver that is ending waits only for the store. A deadline that has passed would wake
        // the driver again and again, so ignore it.
        let publish_deadline = publish_deadline.filter(|at| !self.ending || *at > Instant::now());
        [timeout, save_at, publish_deadline].into_iter().flatten().min().unwrap_or(never)
    }

    /// Returns whether the driver has reported the end of the source to the sequencer, and no work is left.
    fn is_idle(&self) -> bool {
        self.metrics.source_ended()
            && self.waiting_deliveries.is_empty()
            && self.sequencer.quiescent()
    }

    fn is_finished(&mut self, is_idle: bool, draining: bool) -> bool {
        if draining {
            return self.sequencer.drained() && self.is_publishing_finished();
        }
        if self.source_failed.is_some() {
            return self.waiting_deliveries.is_empty() && self.delivery_tracker.is_empty();
        }
        is_idle
    }

    /// Returns whether all messages of the partition are published, or the number of unpublished messages has not
    /// changed for [`PUBLISH_IDLE_TIMEOUT`].
    fn is_publishing_finished(&mut self) -> bool {
        let unpublished = self.sequencer.stats().outbox;
        let (before, since) = self.unpublished.unwrap_or((unpublished, Instant::now()));
        let since = if unpublished == before { since } else { Instant::now() };
        self.unpublished = Some((unpublished, since));
        unpublished == 0 || since.elapsed() >= PUBLISH_IDLE_TIMEOUT
    }

    /// Makes the final checkpoint due. If the store can go back in time, also starts a check that the store has all
    /// commits. The check must precede the end of the driver, because only the driver's memory still has a lost commit.
    fn begin_shutdown(&mut self) -> Result<(), DriverError> {
        if std::mem::replace(&mut self.ending, true) {
            return Ok(());
        }
        if self.store.may_roll_back() {
            self.input(Input::StoreMayHaveRolledBack);
        }
        self.delivery_tracker.make_checkpoint_due();
        self.perform_all()
    }

    /// Returns whether the store has confirmed all commits and the final checkpoint.
    fn has_saved_all(&self) -> bool {
        !self.sequencer.in_doubt()
            && !self.delivery_tracker.is_writing_checkpoint()
            && !self.delivery_tracker.needs_checkpoint()
    }

    async fn end(self, source: SourceHandle, inbox: Option<Inbox>) -> Result<Stats, DriverError> {
        self.store.flush().await?;
        alarms::flush();
        // After these channels of acknowledgements and deliveries are dropped, the source processes the final
        // acknowledgement and ends.
        drop((self.delivery_tracker, source.deliveries));
        if let Some(ended) = source.task {
            // This wait needs no time limit, because the source limits the duration of its own shutdown.
            let _ = ended.await;
        }
        if let Some(inbox) = inbox {
            inbox.end().await;
        }
        self.source_failed.map_or_else(|| Ok(self.sequencer.stats()), Err)
    }

    /// Handles a failure of the source. The driver continues until each delivered event is settled (ended for good) or
    /// held in the store. The reason: the source may be unable to deliver its events a second time. The sequencer moves
    /// waiting events into the store after `spill_after`. The driver ends earlier in three cases: a stopped key blocks
    /// the partition ([`DriverError::KeyFull`]), this instance releases or has lost the partition, or the driver itself
    /// fails.
    async fn handle_source_failure(&mut self, source: &mut SourceHandle) {
        let gone = |_| std::io::Error::other("its reader ended unexpectedly");
        let error = (&mut source.failure).await.unwrap_or_else(gone);
        tracing::error!(
            stream = &*self.partition.stream, %error,
            "source failed; the process ends when each delivered event is settled or held in the store"
        );
        self.source_failed = Some(DriverError::Source(error));
    }
}
