//! Reads the events that wait in the store's queues for a partition.
//!
//! Each shard (slice of the store) has a queue of its own. A new owner of the partition reads each queue from its
//! beginning. The new owner therefore also receives the events that an earlier owner read and did not remove. The
//! reader removes an event a short time after the driver has acknowledged the event. The reader must never remove an
//! unacknowledged event. When this process adds entries to a queue, the queue notifier wakes the reader. The reader
//! polls the store for entries of other processes.
//!
//! Each read names the newest queue position that the reader has read. If the store went back in time (lost its newest
//! writes) and lacks this position, the store refuses the read. The reader then starts at the beginning of the shard's
//! queue, and delivers only the entries that it has not delivered yet ([`QueueCursor`]).

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use ordain_core::{
    Cause, DeadLetter, LetterContent, LetterId, QueueCursor, QueueLoss, QueuePosition,
    QueueRecount, QueueRun, digest,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::notifier::{NewQueueRuns, QueueNotifier, ReadingGuard};
use crate::incident::{LossCounts, report_lost_events};
use crate::sink::PartitionHandle;
use ordain_cloudevents::{
    AckProgress, BATCH_BYTES_LIMIT, BATCH_EVENTS_LIMIT, DeliveryBatch, FilePosition,
    READ_AHEAD_BATCHES, SourceHandle,
};
use ordain_publish::incident::{EventsSafe, IncidentSubject, record};
use ordain_store::{Claim, DequeueResult, Partition, Store, StoreError, retry_until_ok};
use ordain_util::backoff::Backoff;
use ordain_util::failure_timer::FailureTimer;
use ordain_util::gauge::BacklogGauge;
use ordain_util::log_throttle::LogThrottle;

/// Delay between two polls for entries of other processes. The delay grows while the polls find nothing.
const POLL_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));
/// Time between two polls if [`QueueOptions::has_other_writers`] is false.
const EXCLUSIVE_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The reader removes acknowledged events in groups of this size. If a quarter of the queue's limit is less, the groups
/// have the size of this quarter.
const REMOVAL_THRESHOLD_EVENTS: u64 = 512;
/// Time after which the reader removes acknowledged events even if their number is below [`REMOVAL_THRESHOLD_EVENTS`].
/// Also the minimum time before the next attempt if the store did not remove the events of a shard.
const REMOVAL_DELAY: Duration = Duration::from_millis(100);
const COUNT_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time between two warnings that the store is unavailable, and between two warnings that the store went back
/// in time.
const WARN_INTERVAL: Duration = Duration::from_secs(10);
const LAST_REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay before the next attempt to read, if the store is unavailable.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The words of the log line about lost events.
const LOST_EVENTS_MESSAGE: &str = "the store went back in time and lost events before they were read; this process \
    accepted the first of them at `since`: the producers must send these events again";

/// The options of a queue reader.
#[derive(Clone)]
pub struct QueueOptions {
    /// The store that has the queues.
    pub store: Arc<dyn Store>,
    /// The partition whose queues the reader reads.
    pub partition: Partition,
    /// The owner's claim, which identifies the owner to the store. The store removes entries only under this claim.
    pub claim: Claim,
    /// Notifies the reader of new entries that this process wrote.
    pub notifier: Arc<QueueNotifier>,
    /// Maximum number of events that may wait for the partition, in all shards together.
    pub limit: u64,
    /// True if every writer adds the events of each key to the queue in order and without gaps. The sinks of other
    /// streams of this store do this.
    pub is_fed_locally: bool,
    /// True if the reader polls often, because other processes may write to the queue.
    pub has_other_writers: bool,
    /// The gauge of the number of waiting events; `None` if the reader does not report this number.
    pub backlog_gauge: Option<Arc<BacklogGauge>>,
    /// True if the gauge also counts events that are delivered and not acknowledged yet.
    pub counts_delivered: bool,
    /// The handle of the owner whose commits settle these events. `None` if the removal of events depends on no commit,
    /// as in the queue of an inbox.
    pub handle: Option<Arc<PartitionHandle>>,
    /// The losses of the partition. The lost events are events that this process put into the queue, and that the store
    /// lost before the reader read them.
    pub losses: Arc<LossCounts>,
    /// The number of deliveries, from the first delivery on, that the receiver has used. The entries of all later
    /// deliveries are unused. When the reader ends, it leaves the positions of the unused entries to the next reader.
    /// The next reader can therefore detect that the store has lost an unused entry, and counts the event of this entry
    /// as lost. `None` if the receiver uses each delivery.
    pub used: Option<Arc<AtomicU64>>,
}

/// Starts a reader. The reader stops reading when the receiver of its deliveries closes, and ends when the sender of
/// the acknowledgements is dropped. The reader also ends at a permanent error of the store; `failure` then has the
/// error.
pub fn read_queue(options: QueueOptions) -> SourceHandle {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD_BATCHES);
    let (fail, failure) = oneshot::channel();
    let (acknowledge, acknowledged) = watch::channel(AckProgress::default());
    let is_fed_locally = options.is_fed_locally;
    let reader = QueueReader::new(options, acknowledged);
    let task = tokio::spawn(async move {
        if let Err(error) = reader.run(deliver).await {
            // If the receiver is gone, nothing uses this source any more, and the failure does not matter.
            let _ = fail.send(io::Error::other(error));
        }
    });
    SourceHandle {
        deliveries,
        failure,
        acknowledge: Some(acknowledge),
        task: Some(task),
        is_fed_locally,
    }
}

/// An entry that the reader has delivered and the driver has not acknowledged.
struct UnacknowledgedEntry {
    shard: u32,
    position: QueuePosition,
    /// The run and the time of the write in ms since the Unix epoch. `None` if no writer of this process wrote the
    /// entry, or if [`QueueOptions::used`] is `None`.
    written: Option<(QueueRun, u64)>,
}

struct QueueReader {
    options: QueueOptions,
    /// Held until the reader has returned its unread positions with [`Self::put_back`].
    _reading: ReadingGuard,
    acknowledged: watch::Receiver<AckProgress>,
    /// For each shard, the position of this reader in the queue, and the entries that the reader expects.
    cursors: Vec<QueueCursor>,
    /// [`Store::disconnects`] at the newest check; 0 before the first check, so that this check also finds the
    /// disconnects before the start of the reader.
    disconnects: u64,
    /// The value of [`PartitionHandle::rollbacks`] at the newest check: the number of times that the driver had found a
    /// loss of commits by the store.
    rollbacks: u64,
    /// Approximate number of acknowledged entries that the reader can remove.
    removable_count: usize,
    /// The time when the driver acknowledged the first of the removable entries.
    removable_since: Instant,
    next_removal_at: Instant,
    /// The entries that are delivered and not acknowledged, in the order of their delivery.
    unacknowledged: VecDeque<UnacknowledgedEntry>,
    through: u64,
    unread_shards: BTreeSet<u32>,
    /// `true` if the next batch starts with a poll for entries of other processes.
    is_poll_due: bool,
    poll_backoff: Backoff,
    counted_at: Option<Instant>,
    throttle: LogThrottle,
    /// Runs while the store does not answer.
    failures: FailureTimer,
    restart_throttle: LogThrottle,
}

impl QueueReader {
    fn new(options: QueueOptions, acknowledged: watch::Receiver<AckProgress>) -> Self {
        let shards = options.store.shards() as usize;
        Self {
            _reading: options.notifier.begin_reading(),
            options,
            acknowledged,
            cursors: vec![QueueCursor::default(); shards],
            disconnects: 0,
            rollbacks: 0,
            removable_count: 0,
            removable_since: Instant::now(),
            next_removal_at: Instant::now(),
            unacknowledged: VecDeque::new(),
            through: 0,
            unread_shards: BTreeSet::new(),
            is_poll_due: false,
            poll_backoff: POLL_BACKOFF,
            counted_at: None,
            throttle: LogThrottle::new(WARN_INTERVAL),
            failures: FailureTimer::default(),
            restart_throttle: LogThrottle::new(WARN_INTERVAL),
        }
    }

    async fn run(mut self, deliver: mpsc::Sender<DeliveryBatch>) -> Result<(), StoreError> {
        let ended = self.read_all(deliver).await;
        self.put_back();
        ended
    }

    /// Reads until the receiver of the deliveries closes, and then waits for the driver's final acknowledgement.
    async fn read_all(&mut self, deliver: mpsc::Sender<DeliveryBatch>) -> Result<(), StoreError> {
        // The first read finds all entries that were written before the reader started.
        self.unread_shards.extend(0..self.cursors.len() as u32);
        loop {
            let writes = self.options.notifier.writes();
            // An unavailable store must not delay the end of the reader.
            let (batch, is_known) = tokio::select! {
                batch = self.next_batch() => batch?,
                () = deliver.closed() => break,
            };
            if !batch.items.is_empty() {
                self.poll_backoff.reset();
                if !self.deliver(&deliver, batch).await {
                    break;
                }
                continue;
            }
            if is_known {
                // After the store went back in time, the reader skips the entries that it has already delivered. New
                // entries may follow these entries.
                self.acknowledge();
                tokio::task::yield_now().await;
                continue;
            }
            if self.unacknowledged.is_empty() && self.unread_shards.is_empty() {
                self.options.notifier.record_empty(writes);
            }
            let notifier = Arc::clone(&self.options.notifier);
            tokio::select! {
                () = notifier.wait_for_entries() => self.poll_backoff.reset(),
                () = tokio::time::sleep(self.poll_delay()) => {
                    self.is_poll_due = true;
                    self.poll_backoff.advance();
                }
                changed = self.acknowledged.changed() => match changed {
                    Ok(()) => self.acknowledge(),
                    Err(_) => break,
                },
                () = tokio::time::sleep(REMOVAL_DELAY), if self.removable_count > 0 => {}
                () = deliver.closed() => break,
            }
        }
        // The driver takes no more deliveries. The following loop ends after the driver's final acknowledgement.
        drop(deliver);
        while self.acknowledged.changed().await.is_ok() {}
        self.acknowledge();
        // If entries stay in the queue, the next owner also reads them, and recognises that their events are already
        // settled.
        let _ = timeout(LAST_REMOVAL_TIMEOUT, self.remove(true)).await;
        Ok(())
    }

    /// Takes the queue positions of the entries that this process wrote. If a connection broke, or if the driver found
    /// that the store went back in time, the reader also begins a recount. The recount covers the entries that the
    /// reader expects and has not read, and shows how many of them the store still has.
    fn take_new_runs(&mut self) {
        let disconnects = self.options.store.disconnects();
        for (shard, runs) in self.options.notifier.take_new_runs() {
            self.unread_shards.insert(shard);
            for (run, at) in runs {
                self.cursors[shard as usize].expect(run, at);
            }
        }
        if std::mem::replace(&mut self.disconnects, disconnects) != disconnects {
            self.cursors.iter_mut().for_each(QueueCursor::suspect_rollback);
        }
        let handle = self.options.handle.as_ref();
        let rollbacks = handle.map_or(0, |handle| handle.rollbacks.load(Ordering::SeqCst));
        if std::mem::replace(&mut self.rollbacks, rollbacks) != rollbacks {
            self.cursors.iter_mut().for_each(|cursor| cursor.confirm_rollback(0));
        }
    }

    /// Returns queue positions to the notifier, so that the next reader expects the entries at these positions. This
    /// process wrote the entries, but either this reader has not read them, or the receiver has not used them. Also
    /// reports the losses that are not reported yet.
    fn put_back(&mut self) {
        self.take_new_runs();
        let mut unused = self.take_unused();
        for (shard, cursor) in (0..).zip(&mut self.cursors) {
            // Put the unused entries before the unread entries. Without a loss, this is the order of the queue. After a
            // loss, unread entries can have the numbers of lost unused entries. With this order, the next reader counts
            // these unused entries as lost.
            let of_shard = unused.remove(&shard).unwrap_or_default().into_iter();
            self.options.notifier.put_back(shard, of_shard.chain(cursor.take_expected()));
        }
        for shard in 0..self.cursors.len() {
            if let Some(loss) = self.cursors[shard].take_loss() {
                // This reader does not read the rest of the queue, so it cannot count the events that the store still
                // has.
                self.report_loss(shard as u32, loss, None);
            }
        }
    }

    /// Empties `unacknowledged`, and returns the unused runs of each shard. Does nothing if [`QueueOptions::used`] is
    /// `None`.
    fn take_unused(&mut self) -> BTreeMap<u32, NewQueueRuns> {
        let mut unused = BTreeMap::<u32, NewQueueRuns>::new();
        let Some(used) = &self.options.used else { return unused };
        let skipped = used.load(Ordering::SeqCst).saturating_sub(self.through) as usize;
        let entries = self.unacknowledged.drain(..).skip(skipped);
        for UnacknowledgedEntry { shard, written, .. } in entries {
            let Some((run, at)) = written else { continue };
            let runs = unused.entry(shard).or_default();
            match runs.back_mut() {
                Some((last, _)) if last.history == run.history && last.last + 1 == run.first => {
                    last.last = run.last;
                }
                _ => runs.push_back((run, at)),
            }
        }
        unused
    }

    fn poll_delay(&self) -> Duration {
        if self.options.has_other_writers {
            self.poll_backoff.delay()
        } else {
            EXCLUSIVE_POLL_INTERVAL
        }
    }

    /// Removes acknowledged entries if a removal is due, and reads the next entries. Counts the waiting events if the
    /// read returned no entries. The second value is `true` if the read returned entries that this reader had delivered
    /// earlier; the batch does not contain these entries.
    async fn next_batch(&mut self) -> Result<(DeliveryBatch, bool), StoreError> {
        self.remove(false).await;
        if std::mem::take(&mut self.is_poll_due) {
            self.poll_shards().await?;
        }
        let (batch, is_known) = self.read().await?;
        if batch.items.is_empty() && !is_known {
            self.count().await;
        }
        Ok((batch, is_known))
    }

    /// Finds the shards with new entries. Reads only the oldest and the newest queue position of each shard, because
    /// most queues have no new entries.
    async fn poll_shards(&mut self) -> Result<(), StoreError> {
        let QueueOptions { store, partition, .. } = &self.options;
        let ends_of_shards = match store.queue_ends(partition).await {
            Err(StoreError::Unavailable(reason)) => {
                self.wait_for_store(&reason).await;
                return Ok(());
            }
            found => found?,
        };
        self.report_recovery();
        // The condition in this loop also selects a shard of a store that went back in time. The newest entry of such a
        // shard is earlier than, or different from, the newest entry that this reader has read.
        for (shard, (ends, cursor)) in (0..).zip(ends_of_shards.iter().zip(&mut self.cursors)) {
            cursor.record_first(ends.first);
            self.removable_count += usize::from(cursor.removable().is_some());
            let after = cursor.after();
            if ends.last != after && (after.number > 0 || !ends.is_empty()) {
                self.unread_shards.insert(shard);
            }
        }
        Ok(())
    }

    async fn wait_for_store(&mut self, reason: &str) {
        self.failures.record_failure();
        if self.throttle.allow() {
            let stream = &*self.options.partition.stream;
            tracing::warn!(stream, "queue in the store cannot be read: {reason}; retrying");
        }
        tokio::time::sleep(STORE_RETRY_DELAY).await;
    }

    fn report_recovery(&mut self) {
        if let Some(seconds) = self.failures.recover() {
            let stream = &*self.options.partition.stream;
            tracing::info!(stream, seconds, "reading of the queue in the store works again");
        }
    }

    /// Reads the next entries of the shards that may have more entries. If a shard has no more entries, later calls
    /// read this shard only after a notification, or after a poll has found new entries. The result is as in
    /// [`Self::next_batch`].
    async fn read(&mut self) -> Result<(DeliveryBatch, bool), StoreError> {
        // Immediately before the read, the reader takes the queue positions of the entries that this process has
        // written. The read must therefore find all of these entries. If the reader took these positions after the
        // read, the store could go back in time between the read and this step. The reader would then expect lost
        // entries that it has already delivered, and would report them as lost.
        self.take_new_runs();
        let mut batch = DeliveryBatch::default();
        let mut is_known = false;
        if self.unread_shards.is_empty() {
            return Ok((batch, is_known));
        }
        let shards: Vec<u32> = self.unread_shards.iter().copied().collect();
        let per_shard = |all: usize| (all / shards.len()).max(1);
        let limit = per_shard(BATCH_EVENTS_LIMIT);
        let bytes = per_shard(BATCH_BYTES_LIMIT);
        let QueueOptions { store, partition, .. } = &self.options;
        let reads = shards.iter().map(|shard| {
            let after = self.cursors[*shard as usize].after();
            store.read_queue(partition, *shard, after, limit, bytes)
        });
        let pages = join_all(reads).await;
        let mut unavailable_reason = None;
        let shard_count = self.cursors.len() as u32;
        let is_use_counted = self.options.used.is_some();
        for (shard, page) in shards.into_iter().zip(pages) {
            let page = match page {
                Ok(page) => page,
                Err(StoreError::RolledBack) => {
                    self.restart_shard(shard);
                    continue;
                }
                Err(StoreError::Unavailable(reason)) => {
                    unavailable_reason = Some(reason);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let cursor = &mut self.cursors[shard as usize];
            cursor.record_first(page.first);
            if page.entries.is_empty() {
                cursor.record_end(page.first);
                self.unread_shards.remove(&shard);
            }
            for (position, queued) in page.entries {
                let written = is_use_counted.then(|| cursor.expected(position)).flatten();
                if !cursor.accept(position) {
                    // This reader has delivered the entry earlier. If the driver has acknowledged the entry, the reader
                    // must remove the entry a second time.
                    self.removable_count += 1;
                    is_known = true;
                    continue;
                }
                self.unacknowledged.push_back(UnacknowledgedEntry { shard, position, written });
                let delivered = queued.map_err(|(bytes, reason)| {
                    letter(&self.options.partition, shard_count, shard, position, bytes, &reason)
                });
                batch.items.push((delivered, FilePosition::default()));
            }
            let loss = cursor.take_loss();
            if let Some(loss) = loss {
                cursor.confirm_rollback(loss.entries);
            }
            match (loss, cursor.take_recount()) {
                (Some(loss), recount) => {
                    self.report_loss(shard, loss, recount.map(|recount| recount.safe));
                }
                (None, Some(recount)) => self.report_recount(shard, recount),
                (None, None) => {}
            }
        }
        match unavailable_reason {
            Some(reason) => self.wait_for_store(&reason).await,
            None => self.report_recovery(),
        }
        Ok((batch, is_known))
    }

    /// Starts to read the queue of a shard from its beginning, because the store went back in time.
    fn restart_shard(&mut self, shard: u32) {
        let Partition { stream, number } = &self.options.partition;
        if self.restart_throttle.allow() {
            tracing::warn!(
                stream = &**stream,
                partition = number,
                shard,
                "the store went back in time: reading the queue of this shard again, without the events \
                 that this process knows to be delivered"
            );
        }
        self.options.losses.add_rollback(shard);
        self.cursors[shard as usize].confirm_rollback(0);
        self.cursors[shard as usize].restart();
        self.unread_shards.insert(shard);
        self.notify_driver();
    }

    /// Notifies the driver that the store may have lost commits, because an idle driver would not detect this loss by
    /// itself.
    fn notify_driver(&self) {
        if let Some(handle) = &self.options.handle {
            handle.report_store_rollback();
        }
    }

    /// Logs and counts a loss of events. `safe` is the number of waiting events that this process accepted and that the
    /// store still has; `None` before a recount.
    fn report_loss(&self, shard: u32, loss: QueueLoss, safe: Option<u64>) {
        let QueueOptions { partition, losses, .. } = &self.options;
        report_lost_events(partition, shard, loss, safe, losses, LOST_EVENTS_MESSAGE);
    }

    /// Reports the result of a recount after the store went back in time. The recount covers the waiting events that
    /// this process accepted: how many of them are still in the store, and how many the store has lost.
    fn report_recount(&self, shard: u32, recount: QueueRecount) {
        let Partition { stream, number } = &self.options.partition;
        let QueueRecount { safe, lost } = recount;
        let incident = EventsSafe { shard, safe, lost };
        let words = match (safe, lost) {
            (0, 0) => return,
            (_, 0) => format!(
                "the store still has all {safe} waiting events that this process accepted and remembers"
            ),
            _ => format!(
                "the store still has {safe} waiting events that this process accepted, and has lost {lost} other \
                 waiting events"
            ),
        };
        tracing::warn!(
            stream = &**stream,
            partition = number,
            shard,
            safe,
            lost,
            cloudevent = record(stream, IncidentSubject::Partition(*number), &incident),
            "the store went back in time; {words}"
        );
    }

    /// Delivers a batch. Processes notifications and acknowledgements while the channel is full. Returns `false` if the
    /// driver takes no more deliveries, or sends no more acknowledgements.
    async fn deliver(
        &mut self,
        sender: &mpsc::Sender<DeliveryBatch>,
        batch: DeliveryBatch,
    ) -> bool {
        let notifier = Arc::clone(&self.options.notifier);
        loop {
            tokio::select! {
                permit = sender.reserve() => {
                    let Ok(permit) = permit else { return false };
                    permit.send(batch);
                    self.acknowledge();
                    return true;
                }
                () = notifier.wait_for_entries() => self.take_new_runs(),
                changed = self.acknowledged.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    self.acknowledge();
                    self.remove(false).await;
                }
            }
        }
    }

    fn acknowledge(&mut self) {
        let AckProgress { through, .. } = *self.acknowledged.borrow_and_update();
        while self.through < through
            && let Some(UnacknowledgedEntry { shard, position, .. }) =
                self.unacknowledged.pop_front()
        {
            if self.removable_count == 0 {
                self.removable_since = Instant::now();
            }
            self.through += 1;
            self.removable_count += 1;
            self.cursors[shard as usize].finish(position);
        }
    }

    /// Removes acknowledged entries if a removal is due, or if `all` is set. If a shard has lost the newest of these
    /// entries, starts to read the queue of this shard from the beginning.
    async fn remove(&mut self, all: bool) {
        let threshold = (self.options.limit / 4).clamp(1, REMOVAL_THRESHOLD_EVENTS) as usize;
        let is_due =
            self.removable_count >= threshold || self.removable_since.elapsed() >= REMOVAL_DELAY;
        if self.removable_count == 0 || !(all || is_due && self.next_removal_at <= Instant::now()) {
            return;
        }
        self.removable_count = 0;
        let QueueOptions { store, partition, claim, handle, notifier, .. } = &self.options;
        let removable = (0..).zip(&self.cursors);
        let removable = removable.filter_map(|(shard, cursor)| Some((shard, cursor.removable()?)));
        let removing = removable.map(async |(shard, through)| {
            let commit = handle.as_ref().map_or(0, |handle| handle.last_commit(shard));
            let removal = retry_until_ok("removal of finished entries", || async {
                match store.dequeue(partition, *claim, shard, commit, through).await {
                    Err(StoreError::RolledBack) => Ok(None),
                    removal => removal.map(Some),
                }
            });
            (shard, through, removal.await)
        });
        let removals = join_all(removing).await;
        notifier.notify_removed();
        for (shard, through, removal) in removals {
            match removal {
                Some(DequeueResult::Done) => {
                    self.cursors[shard as usize].record_removal(through);
                    continue;
                }
                // The store lacks the commit on which this removal depends. The driver repeats the commit, and the
                // reader retries this removal.
                Some(DequeueResult::MissingCommit) => self.notify_driver(),
                None => self.restart_shard(shard),
            }
            self.next_removal_at = Instant::now() + REMOVAL_DELAY;
            self.removable_count += 1;
        }
    }

    async fn count(&mut self) {
        if self.counted_at.is_some_and(|at| at.elapsed() < COUNT_INTERVAL) {
            return;
        }
        self.counted_at = Some(Instant::now());
        let QueueOptions { store, partition, backlog_gauge: gauge, counts_delivered, .. } =
            &self.options;
        if let Some(gauge) = gauge
            && let Ok(waiting) = store.queue_length(partition).await
        {
            let delivered = if *counts_delivered { 0 } else { self.unacknowledged.len() };
            gauge.set(Some(waiting.saturating_sub((delivered + self.removable_count) as u64)));
        }
    }
}

/// Creates the dead letter of an unreadable entry. The tag in the letter's id is derived from the queue position, so
/// that a repeated read creates the same letter. The tag also places the letter in the shard of the queue, because the
/// removal of the entry depends on the commit that writes the letter.
fn letter(
    partition: &Partition,
    shards: u32,
    shard: u32,
    position: QueuePosition,
    bytes: Bytes,
    reason: &str,
) -> Box<DeadLetter> {
    let Partition { stream, number: of } = partition;
    let QueuePosition { number, history } = position;
    let tag = digest(format!("{stream} {of} {shard} {number} {history}").as_bytes());
    let shards = u64::from(shards);
    // The tag is never 0, because the tag 0 belongs to the letter of a skipped sequence.
    let tag = (tag % (u64::MAX / shards - 1) + 1) * shards + u64::from(shard);
    let origin =
        format!("partition {of}, shard {shard}, number {number} of the queue of stream {stream}");
    Box::new(DeadLetter {
        id: LetterId { key: "".into(), sequence: 0, tag },
        cause: Cause::Unreadable,
        error: format!("the queue entry is damaged, or another program wrote it: {reason}"),
        origin: Some(origin),
        version: None,
        content: LetterContent::Raw(bytes),
    })
}
