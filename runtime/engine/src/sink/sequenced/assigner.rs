//! The sequence assigner of a destination passes the messages of all outboxes for this destination to the store, and
//! the store numbers these messages. An outbox has the unpublished messages of a partition in one shard. The sequence
//! assigner of an exchange or a stream is a task; the outbox publisher itself calls the sequence assigner of a file.
//!
//! A store that goes back in time (loses its newest writes) may lose numbered messages. If these messages are already
//! marked as published, no outbox has them. The sequence assigner therefore keeps the newest messages in memory. When
//! the sequence assigner detects a loss, it waits until the store has regained all commits. After that, it passes the
//! lost messages to the store a second time.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};
use ordain_core::{PublishHistory, shard_of};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};

use super::cursor::{CallBudget, OutboxCursor, OutboxHistory};
use super::{DestinationBatch, MessageNumbers, OutboundMessage};
use crate::sink::{PartitionHandle, PublisherError};
use crate::source::QueueNotifiers;
use ordain_amqp::{ExchangeSink, PublishedCount};
use ordain_config::NumberingPolicy;
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignReply, AssignRequest, Destination,
    OwnershipPhase, Partition, Store,
};
use ordain_util::failure_timer::FailureTimer;
use ordain_util::log_throttle::LogThrottle;

const BATCH_GROUP_LIMIT: usize = 64;
/// Delay before the sequence assigner retries a write to a full queue, and after a call without progress. For a full
/// queue, the delay ends earlier if a reader in this process removes entries.
const FULL_QUEUE_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Delay before the sequence assigner retries a call after an error of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Interval between two checks whether the store has lost messages that this process still has in memory.
const ROLLBACK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Approximate limit of the messages of earlier calls that stay in memory for one destination. A fast stream emits this
/// many bytes in a few seconds.
const HISTORY_BYTES: usize = 16 << 20;
/// Time within which this process must detect that it has lost a partition. The time counts from the first answer of
/// the store that reports another owner of the partition. The same limit applies to each wait until a driver confirms
/// that the store has all commits.
const FENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum time between two warnings about the calls for one shard. A queue must also be full for `WARN_INTERVAL`
/// before the first warning about the queue.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// The sequence assigner of a destination, with the exchanges of the destination and the newest messages of each
/// outbox.
pub(in crate::sink) struct SequenceAssigner {
    policy: NumberingPolicy,
    exchanges: Vec<ExchangeSink>,
    store: Arc<dyn Store>,
    notifiers: Arc<QueueNotifiers>,
    /// The newest messages that the store has numbered, by partition, shard of the outbox, and shard of the
    /// destination.
    histories: HashMap<(Partition, u32, u32), OutboxHistory>,
    /// The histories count milliseconds from this time.
    created_at: Instant,
    /// [`FENCE_TIMEOUT`]; shorter in tests.
    fence_timeout: Duration,
}

impl SequenceAssigner {
    pub(in crate::sink) fn new(
        policy: NumberingPolicy,
        store: &Arc<dyn Store>,
        notifiers: &Arc<QueueNotifiers>,
    ) -> Self {
        Self {
            policy,
            exchanges: Vec::new(),
            store: Arc::clone(store),
            notifiers: Arc::clone(notifiers),
            histories: HashMap::new(),
            created_at: Instant::now(),
            fence_timeout: FENCE_TIMEOUT,
        }
    }

    /// Returns the index of the sink among the exchanges.
    pub(super) fn add_exchange(&mut self, exchange: ExchangeSink) -> usize {
        self.exchanges.push(exchange);
        self.exchanges.len() - 1
    }

    pub(super) fn start_exchanges(
        &mut self,
        tasks: &mut JoinSet<Result<(), PublisherError>>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let exchanges = self.exchanges.iter_mut();
        for publisher in exchanges.filter_map(|exchange| exchange.start(published.clone())) {
            tasks.spawn(async move {
                publisher.await;
                Ok(())
            });
        }
    }

    pub(super) async fn run(
        mut self,
        mut input: UnboundedReceiver<DestinationBatch>,
        published: UnboundedSender<PublishedCount>,
    ) -> Result<(), PublisherError> {
        let mut group = Vec::with_capacity(BATCH_GROUP_LIMIT);
        let mut rollback_check = tokio::time::interval(ROLLBACK_CHECK_INTERVAL);
        rollback_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                received = input.recv_many(&mut group, BATCH_GROUP_LIMIT) => {
                    if received == 0 {
                        return Ok(());
                    }
                    let numbers = self.assign(&group).await?;
                    for (batch, numbers) in group.drain(..).zip(numbers) {
                        self.forward(batch, &numbers, &published);
                    }
                }
                _ = rollback_check.tick(), if self.store.may_roll_back() => self.restore_lost_messages().await?,
            }
        }
    }

    /// Returns the milliseconds since the sequence assigner was created.
    fn now(&self) -> u64 {
        self.created_at.elapsed().as_millis() as u64
    }

    /// Checks whether the store has lost messages that are still in `histories`, and passes the lost messages to the
    /// store a second time. Checks an outbox if [`Store::disconnects`] has changed since the newest call for this
    /// outbox, or if the newest call was some seconds ago.
    async fn restore_lost_messages(&mut self) -> Result<(), PublisherError> {
        self.histories.retain(|_, history| !history.handle.ownership.is_lost());
        let disconnects = self.store.disconnects();
        let now = self.now();
        let mut cursors: BTreeMap<u32, Vec<OutboxCursor>> = BTreeMap::new();
        let in_doubt =
            self.histories.extract_if(|_, history| history.history.is_in_doubt(disconnects, now));
        for ((_, outbox_shard, destination_shard), history) in in_doubt.collect::<Vec<_>>() {
            let handle = Arc::clone(&history.handle);
            let mut cursor =
                self.new_cursor(handle, outbox_shard, destination_shard, Some(history));
            cursor.verifies = true;
            cursors.entry(destination_shard).or_default().push(cursor);
        }
        self.assign_all(cursors).await.map(drop)
    }

    /// Returns the numbers of the messages.
    pub(in crate::sink) async fn assign(
        &mut self,
        batches: &[DestinationBatch],
    ) -> Result<Vec<MessageNumbers>, PublisherError> {
        let cursors = self.build_cursors(batches);
        let mut numbers: Vec<MessageNumbers> =
            batches.iter().map(|batch| vec![None; batch.messages.len()]).collect();
        for cursor in self.assign_all(cursors).await? {
            for ((batch, message_index), assigned) in
                cursor.batch_indexes.iter().zip(&cursor.assigned)
            {
                numbers[*batch][*message_index] = Some(assigned.sequence());
            }
        }
        Ok(numbers)
    }

    /// Passes the messages of outbox cursors to the store, for all shards concurrently. An outbox cursor has the
    /// messages of one outbox for one shard of the destination. Keeps the passed messages in `histories` if the store
    /// can go back in time, because the store may lose them later.
    async fn assign_all(
        &mut self,
        cursors: BTreeMap<u32, Vec<OutboxCursor>>,
    ) -> Result<Vec<OutboxCursor>, PublisherError> {
        let assigning = cursors
            .into_values()
            .map(async |mut cursors| self.assign_shard(&mut cursors).await.map(|()| cursors));
        let assigned: Vec<_> = join_all(assigning).await.into_iter().collect::<Result<_, _>>()?;
        let mut assigned: Vec<OutboxCursor> = assigned.into_iter().flatten().collect();
        self.histories.extend(assigned.iter_mut().filter_map(OutboxCursor::take_history));
        let histories = self.histories.values_mut().map(|history| &mut history.history);
        PublishHistory::limit_bytes(histories, HISTORY_BYTES);
        Ok(assigned)
    }

    /// Makes one cursor for each pair of an outbox and a shard of the destination.
    fn build_cursors(&mut self, batches: &[DestinationBatch]) -> BTreeMap<u32, Vec<OutboxCursor>> {
        let shards = self.store.shards();
        let mut cursor_indexes: HashMap<_, usize> = HashMap::new();
        let mut all: BTreeMap<u32, Vec<OutboxCursor>> = BTreeMap::new();
        for (index, batch) in batches.iter().enumerate() {
            if batch.handle.ownership.is_lost() {
                continue;
            }
            for (message_index, OutboundMessage { commit, content, .. }) in
                batch.messages.iter().enumerate()
            {
                let event = content.event(&batch.handle.partition.stream);
                let outbox_shard = batch.shard;
                let destination_shard = shard_of(event.key(), shards);
                let cursors = all.entry(destination_shard).or_default();
                let cursor_id = (Arc::as_ptr(&batch.handle), outbox_shard, destination_shard);
                let cursor_index = *cursor_indexes.entry(cursor_id).or_insert_with(|| {
                    let history = self.histories.remove(&(
                        batch.handle.partition.clone(),
                        outbox_shard,
                        destination_shard,
                    ));
                    cursors.push(self.new_cursor(
                        Arc::clone(&batch.handle),
                        outbox_shard,
                        destination_shard,
                        history,
                    ));
                    cursors.len() - 1
                });
                let partition = shard_of(event.key(), self.policy.partitions);
                let item = AssignItem { event: Arc::new(event), partition, number: 0 };
                cursors[cursor_index].push(*commit, item, (index, message_index));
            }
        }
        all
    }

    fn new_cursor(
        &self,
        handle: Arc<PartitionHandle>,
        outbox_shard: u32,
        destination_shard: u32,
        history: Option<OutboxHistory>,
    ) -> OutboxCursor {
        // The number of disconnects is read before the first call, so that a disconnect during the call is not missed.
        OutboxCursor::new(
            handle,
            outbox_shard,
            destination_shard,
            history,
            self.store.disconnects(),
            self.now(),
        )
    }

    /// Passes the messages of the cursors to one shard, in calls of limited size. Returns when the store has all
    /// messages, except those of partitions that this process has lost or given up.
    async fn assign_shard(&self, cursors: &mut [OutboxCursor]) -> Result<(), PublisherError> {
        let mut started = Instant::now();
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        let mut failures = FailureTimer::default();
        loop {
            let (assign, cursor_indexes) = self.next_call(cursors);
            let Some(&first) = cursor_indexes.first() else { return Ok(()) };
            let stream = Arc::clone(&cursors[first].handle.partition.stream);
            let destination = &self.policy.destination;
            match self.store.assign(Arc::clone(&assign)).await {
                Ok(AssignReply::Groups(replies, _)) => {
                    started = Instant::now();
                    self.notify_readers(&assign);
                    let mut has_progress = false;
                    for ((cursor_index, group), reply) in
                        cursor_indexes.iter().zip(&assign.groups).zip(replies)
                    {
                        has_progress |=
                            self.record_reply(&mut cursors[*cursor_index], group, reply).await?;
                    }
                    if !has_progress {
                        tokio::time::sleep(FULL_QUEUE_RETRY_DELAY).await;
                        continue;
                    }
                    if let Some(seconds) = failures.recover() {
                        tracing::info!(
                            stream = &*stream, to = %destination, seconds,
                            "numbering of messages works again: after a failure, the store now accepts and numbers \
                             messages; Ordain publishes them"
                        );
                    }
                }
                Ok(AssignReply::Full) => {
                    // Warn only about a queue that stays full, because a queue may be full for a moment in normal
                    // operation.
                    if started.elapsed() >= WARN_INTERVAL && throttle.allow() {
                        failures.record_failure();
                        tracing::warn!(
                            stream = &*stream, to = %destination,
                            "the queue of {destination} has reached its limit (the setting `source.queue`); Ordain \
                             pauses publishing to it until events are consumed"
                        );
                    }
                    self.wait_for_room(&assign).await;
                }
                Err(error) => {
                    failures.record_failure();
                    if throttle.allow() {
                        tracing::error!(
                            stream = &*stream, to = %destination, %error,
                            "messages not numbered; they wait in the outbox until the store numbers them"
                        );
                    }
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Builds the next call. Also returns, for each group of messages in the call, the index of the group's outbox
    /// cursor.
    fn next_call(&self, cursors: &[OutboxCursor]) -> (Arc<AssignRequest>, Vec<usize>) {
        let mut groups = Vec::new();
        let mut cursor_indexes = Vec::new();
        let mut budget = CallBudget::default();
        // A cursor is fenced if the store's newest reply reported another owner. Add the fenced cursors after all other
        // cursors, because otherwise they could use up the room in the call that the other cursors need.
        let (fenced, others): (Vec<_>, Vec<_>) =
            cursors.iter().enumerate().partition(|(_, cursor)| cursor.is_fenced());
        for (cursor_index, cursor) in others.into_iter().chain(fenced) {
            if let Some(group) = cursor.next_group(&mut budget) {
                groups.push(group);
                cursor_indexes.push(cursor_index);
            }
        }
        let destination = self.policy.destination.clone();
        let rules = self.policy.rules;
        let shard = cursors.first().map_or(0, |cursor| cursor.destination_shard);
        (
            Arc::new(AssignRequest {
                destination,
                shard,
                rules,
                witness: None,
                call: None,
                readers: Vec::new(),
                reuses_lost_numbers: false,
                groups,
            }),
            cursor_indexes,
        )
    }

    /// Returns whether the group's outbox cursor made progress.
    async fn record_reply(
        &self,
        cursor: &mut OutboxCursor,
        group: &AssignGroup,
        reply: AssignGroupReply,
    ) -> Result<bool, PublisherError> {
        let stream = cursor.handle.partition.stream.to_string();
        let to = self.policy.destination.to_string();
        let shard = cursor.destination_shard;
        match reply {
            AssignGroupReply::Done(assigned) => {
                cursor.record_done(group, &assigned, self.store.may_roll_back(), self.now());
                Ok(true)
            }
            // Normally, a later owner has sent messages of this outbox, and this process will soon detect that it has
            // lost the partition.
            AssignGroupReply::Fenced => {
                if cursor.record_fence().elapsed() >= self.fence_timeout {
                    return Err(PublisherError::Fenced { stream, to, shard });
                }
                Ok(false)
            }
            AssignGroupReply::RolledBack(last) => {
                // The store may also have lost the commits of these messages. If no driver repeats such a commit, the
                // next owner executes the events of the commit a second time, and creates the messages in other
                // commits. In this case, the sequence assigner must not repeat the lost messages.
                match timeout(self.fence_timeout, cursor.handle.has_all_commits()).await {
                    Ok(true) => {}
                    Err(_) if cursor.handle.is_driven() => {
                        tracing::warn!(
                            stream,
                            to,
                            shard,
                            "the store went back in time and lost messages that the stream sent to {to}, and perhaps \
                             the commits that contain them. This process first repeats these commits, and then sends \
                             the messages again"
                        );
                        return Ok(false);
                    }
                    // The driver has ended, or has not started. The start of a driver may wait until the messages of
                    // this outbox cursor are numbered. This method must therefore not wait for the driver, and gives
                    // the partition up. After the loss of the ownership, the outbox publisher marks no message of the
                    // partition as published. Messages that the store lacks therefore stay in the outbox for the next
                    // owner.
                    Ok(false) | Err(_) => {
                        cursor.handle.ownership.advance_to(OwnershipPhase::Lost);
                        cursor.abandon();
                        return Ok(true);
                    }
                }
                cursor.handle.losses.add_rollback(shard);
                let Some(messages) = cursor.recover_lost(last) else {
                    cursor.report_lost(&to, last);
                    return Err(PublisherError::StoreRolledBack { stream, to, shard });
                };
                tracing::warn!(
                    stream,
                    to,
                    shard,
                    messages,
                    "the store went back in time and lost messages that the stream sent to {to}: writing them again \
                     from memory"
                );
                Ok(true)
            }
        }
    }

    /// Waits until a reader in this process removes entries from one of the queues of the call, for at most
    /// [`FULL_QUEUE_RETRY_DELAY`].
    async fn wait_for_room(&self, assign: &AssignRequest) {
        let Destination::Stream(stream) = &assign.destination else { return };
        let partitions: BTreeSet<u32> = assign.items().map(|item| item.partition).collect();
        let notifiers: Vec<_> = partitions
            .into_iter()
            .map(|number| self.notifiers.of(&Partition { stream: Arc::clone(stream), number }))
            .collect();
        let has_room =
            select_all(notifiers.iter().map(|notifier| Box::pin(notifier.wait_for_room())));
        let _ = timeout(FULL_QUEUE_RETRY_DELAY, has_room).await;
    }

    /// Notifies the readers in this process of new messages, but does not pass the queue positions of these messages.
    /// If the store lost the messages, a reader with the positions would report them as lost, although this sequence
    /// assigner repeats them from memory.
    fn notify_readers(&self, assign: &AssignRequest) {
        let Destination::Stream(stream) = &assign.destination else { return };
        let partitions: BTreeSet<u32> = assign.items().map(|item| item.partition).collect();
        for number in partitions {
            let partition = Partition { stream: Arc::clone(stream), number };
            self.notifiers.of(&partition).record_write(assign.shard, None);
        }
    }

    /// Forwards the numbered messages of a batch to the exchanges, if the destination has exchanges. Reports all other
    /// messages to the outbox publisher as published, because they need no confirm of an exchange. There are two kinds
    /// of other messages: messages to a stream, which the store has put into a queue, and messages without a number,
    /// which the next owner of the partition publishes.
    fn forward(
        &mut self,
        batch: DestinationBatch,
        numbers: &MessageNumbers,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let DestinationBatch { run, handle, messages, .. } = batch;
        let mut unconfirmed = messages.len();
        if !self.exchanges.is_empty() {
            let stream = &handle.partition.stream;
            for (OutboundMessage { content, exchange_index, .. }, number) in
                messages.iter().zip(numbers)
            {
                let Some(number) = *number else { continue };
                unconfirmed -= 1;
                content.put(&mut self.exchanges[*exchange_index], stream, Some(number));
            }
            let exchanges = self.exchanges.iter_mut();
            exchanges.for_each(|exchange| exchange.send(run, stream, &handle.ownership));
        }
        if unconfirmed > 0 {
            // If the receiver has ended, the report does not matter.
            let _ = published.send((run, unconfirmed));
        }
    }
}
