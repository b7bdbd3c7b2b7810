//! The sequence assigner: the task of a destination. It passes the messages of all outboxes to the store, which
//! numbers them, and passes lost messages to the store again.
//!
//! A store that goes back in time may lose messages that their outbox records as published. The sequence assigner
//! therefore keeps the last messages in memory, and passes them to the store again as soon as it finds that the store
//! lacks them.

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

use super::strand::{CallBudget, OutboxCursor, OutboxHistory};
use super::{DestinationBatch, MessageNumbers, OutboundMessage};
use crate::sink::{PartitionHandle, PublisherError};
use crate::source::QueueNotifiers;
use ordain_amqp::{ExchangeSink, PublishedCount};
use ordain_config::NumberingPolicy;
use ordain_store::{
    AssignGroup, AssignGroupReply, AssignItem, AssignReply, AssignRequest, Destination,
    OwnershipPhase, Partition, Store,
};
use ordain_util::log_throttle::LogThrottle;

/// Maximum number of runs that the task passes to the store together.
const BATCH_GROUP_LIMIT: usize = 64;
/// Delay before a write to a full queue is retried; shorter if a reader in this process removes entries.
const FULL_QUEUE_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Delay before a call is retried after an error of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Time between two checks that the store has not gone back in time.
const ROLLBACK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Approximate size of the messages of earlier calls that stay in memory for each destination, in bytes: some seconds
/// of a fast stream.
const HISTORY_BYTES: usize = 16 << 20;
/// How long this process may take to learn that it lost a partition, after the store has reported another owner.
const FENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two warnings, and how long a queue must be full before the first one.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// The state of a destination's task.
pub(in crate::sink) struct SequenceAssigner {
    policy: NumberingPolicy,
    exchanges: Vec<ExchangeSink>,
    store: Arc<dyn Store>,
    notifiers: Arc<QueueNotifiers>,
    /// The last messages of each outbox that the store received, for each shard of the destination.
    histories: HashMap<(Partition, u32, u32), OutboxHistory>,
    /// The moment from which the histories count their times.
    created_at: Instant,
    /// [`FENCE_TIMEOUT`]; shorter in tests.
    fence_timeout: Duration,
}

impl SequenceAssigner {
    pub(in crate::sink) fn new(
        passage: NumberingPolicy,
        store: &Arc<dyn Store>,
        feeds: &Arc<QueueNotifiers>,
    ) -> Self {
        Self {
            policy: passage,
            exchanges: Vec::new(),
            store: Arc::clone(store),
            notifiers: Arc::clone(feeds),
            histories: HashMap::new(),
            created_at: Instant::now(),
            fence_timeout: FENCE_TIMEOUT,
        }
    }

    /// Adds a sink that is an exchange. Returns its index among the exchanges.
    pub(super) fn add_exchange(&mut self, exchange: ExchangeSink) -> usize {
        self.exchanges.push(exchange);
        self.exchanges.len() - 1
    }

    /// Starts the tasks of the exchanges.
    pub(super) fn start_exchanges(
        &mut self,
        tasks: &mut JoinSet<Result<(), PublisherError>>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let exchanges = self.exchanges.iter_mut();
        for outlet in exchanges.filter_map(|exchange| exchange.start(published.clone())) {
            tasks.spawn(async move {
                outlet.await;
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
        let mut look = tokio::time::interval(ROLLBACK_CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                taken = input.recv_many(&mut group, BATCH_GROUP_LIMIT) => {
                    if taken == 0 {
                        return Ok(());
                    }
                    let numbers = self.assign(&group).await?;
                    for (batch, numbers) in group.drain(..).zip(numbers) {
                        self.forward(batch, &numbers, &published);
                    }
                }
                _ = look.tick(), if self.store.may_roll_back() => self.restore_lost_messages().await?,
            }
        }
    }

    /// Returns the milliseconds since the sequence assigner was created.
    fn now(&self) -> u64 {
        self.created_at.elapsed().as_millis() as u64
    }

    /// Passes lost messages to the store again, if the store may have gone back in time since it received them.
    async fn restore_lost_messages(&mut self) -> Result<(), PublisherError> {
        self.histories.retain(|_, given| !given.handle.ownership.is_lost());
        let breaks = self.store.disconnects();
        let now = self.now();
        let mut strands: BTreeMap<u32, Vec<OutboxCursor>> = BTreeMap::new();
        let in_doubt = self.histories.extract_if(|_, given| given.history.is_in_doubt(breaks, now));
        for ((_, of, to), given) in in_doubt.collect::<Vec<_>>() {
            let target = Arc::clone(&given.handle);
            let mut strand = self.new_cursor(target, of, to, Some(given));
            strand.verifies = true;
            strands.entry(to).or_default().push(strand);
        }
        self.assign_all(strands).await.map(drop)
    }

    /// Gives batches to the store. Returns the numbers of their messages.
    pub(in crate::sink) async fn assign(
        &mut self,
        batches: &[DestinationBatch],
    ) -> Result<Vec<MessageNumbers>, PublisherError> {
        let strands = self.build_cursors(batches);
        let mut numbers: Vec<MessageNumbers> =
            batches.iter().map(|batch| vec![None; batch.messages.len()]).collect();
        for strand in self.assign_all(strands).await? {
            for ((batch, at), assigned) in strand.batch_indexes.iter().zip(&strand.assigned) {
                numbers[*batch][*at] = Some(assigned.sequence());
            }
        }
        Ok(numbers)
    }

    /// Passes the messages of outbox cursors to the store, all shards concurrently, and keeps the histories of the
    /// cursors for later calls.
    async fn assign_all(
        &mut self,
        strands: BTreeMap<u32, Vec<OutboxCursor>>,
    ) -> Result<Vec<OutboxCursor>, PublisherError> {
        let giving = strands
            .into_values()
            .map(async |mut strands| self.assign_shard(&mut strands).await.map(|()| strands));
        let given: Vec<_> = join_all(giving).await.into_iter().collect::<Result<_, _>>()?;
        let mut given: Vec<OutboxCursor> = given.into_iter().flatten().collect();
        self.histories.extend(given.iter_mut().filter_map(OutboxCursor::take_history));
        let histories = self.histories.values_mut().map(|given| &mut given.history);
        PublishHistory::limit_bytes(histories, HISTORY_BYTES);
        Ok(given)
    }

    /// Sorts the messages of batches into outbox cursors, by shard of the destination and outbox.
    fn build_cursors(&mut self, batches: &[DestinationBatch]) -> BTreeMap<u32, Vec<OutboxCursor>> {
        let shards = self.store.shards();
        let mut places: HashMap<_, usize> = HashMap::new();
        let mut all: BTreeMap<u32, Vec<OutboxCursor>> = BTreeMap::new();
        for (index, batch) in batches.iter().enumerate() {
            if batch.handle.ownership.is_lost() {
                continue;
            }
            for (at, OutboundMessage { commit, content, .. }) in batch.messages.iter().enumerate() {
                let event = content.event(&batch.handle.partition.stream);
                let of = batch.shard;
                let to = shard_of(event.key(), shards);
                let strands = all.entry(to).or_default();
                let name = (Arc::as_ptr(&batch.handle), of, to);
                let strand = *places.entry(name).or_insert_with(|| {
                    let given = self.histories.remove(&(batch.handle.partition.clone(), of, to));
                    strands.push(self.new_cursor(Arc::clone(&batch.handle), of, to, given));
                    strands.len() - 1
                });
                let partition = shard_of(event.key(), self.policy.partitions);
                let item = AssignItem { event: Arc::new(event), partition, number: 0 };
                strands[strand].push(*commit, item, (index, at));
            }
        }
        all
    }

    fn new_cursor(
        &self,
        target: Arc<PartitionHandle>,
        of: u32,
        to: u32,
        given: Option<OutboxHistory>,
    ) -> OutboxCursor {
        // The count of breaks is read before the first call, so that a break during the call is not missed.
        OutboxCursor::new(target, of, to, given, self.store.disconnects(), self.now())
    }

    /// Passes the messages of the outbox cursors of one shard to the store, in calls of limited size, until all
    /// messages are done that do not belong to another owner.
    async fn assign_shard(&self, strands: &mut [OutboxCursor]) -> Result<(), PublisherError> {
        let mut started = Instant::now();
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let (assign, given) = self.next_call(strands);
            let Some(&first) = given.first() else { return Ok(()) };
            let stream = Arc::clone(&strands[first].handle.partition.stream);
            let to = &self.policy.destination;
            match self.store.assign(Arc::clone(&assign)).await {
                Ok(AssignReply::Groups(replies, _)) => {
                    started = Instant::now();
                    self.notify_readers(&assign);
                    let mut is_on = false;
                    for ((at, lot), reply) in given.iter().zip(&assign.groups).zip(replies) {
                        is_on |= self.record_reply(&mut strands[*at], lot, reply).await?;
                    }
                    if !is_on {
                        tokio::time::sleep(FULL_QUEUE_RETRY_DELAY).await;
                    }
                }
                Ok(AssignReply::Full) => {
                    // A queue that is full for a moment deserves no warning.
                    if started.elapsed() >= WARN_INTERVAL && throttle.allow() {
                        tracing::warn!(
                            stream = &*stream, to = %to,
                            "queue full (`source.queue`): publishing to it pauses until events are consumed"
                        );
                    }
                    self.wait_for_room(&assign).await;
                }
                Err(error) => {
                    if throttle.allow() {
                        tracing::error!(
                            stream = &*stream, to = %to, %error,
                            "the store cannot number the messages of the stream for `to`: they wait; retrying"
                        );
                    }
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Builds the next call. Also returns the index of each group's outbox cursor.
    fn next_call(&self, strands: &[OutboxCursor]) -> (Arc<AssignRequest>, Vec<usize>) {
        let mut lots = Vec::new();
        let mut given = Vec::new();
        let mut room = CallBudget::default();
        // Fenced cursors come last, because they would use up the room of the others.
        let (fenced, others): (Vec<_>, Vec<_>) =
            strands.iter().enumerate().partition(|(_, strand)| strand.is_fenced());
        for (at, strand) in others.into_iter().chain(fenced) {
            if let Some(lot) = strand.next_group(&mut room) {
                lots.push(lot);
                given.push(at);
            }
        }
        let to = self.policy.destination.clone();
        let rules = self.policy.rules;
        let shard = strands.first().map_or(0, |strand| strand.destination_shard);
        (
            Arc::new(AssignRequest { destination: to, shard, rules, witness: None, groups: lots }),
            given,
        )
    }

    /// Records the reply to a group. Returns whether its outbox cursor made progress.
    async fn record_reply(
        &self,
        strand: &mut OutboxCursor,
        lot: &AssignGroup,
        reply: AssignGroupReply,
    ) -> Result<bool, PublisherError> {
        let stream = strand.handle.partition.stream.to_string();
        let to = self.policy.destination.to_string();
        let shard = strand.destination_shard;
        match reply {
            AssignGroupReply::Done(assigned) => {
                strand.record_done(lot, &assigned, self.store.may_roll_back(), self.now());
                Ok(true)
            }
            // Another process has the partition now. This process is about to learn that it lost the partition.
            AssignGroupReply::Fenced => {
                if strand.record_fence().elapsed() >= self.fence_timeout {
                    return Err(PublisherError::Fenced { stream, to, shard });
                }
                Ok(false)
            }
            AssignGroupReply::RolledBack(last) => {
                // The sequence assigner must not repeat messages whose commits the store will not have again. The next
                // owner creates these messages anew, in other commits.
                match timeout(self.fence_timeout, strand.handle.has_all_commits()).await {
                    Ok(true) => {}
                    Err(_) if strand.handle.is_driven() => {
                        tracing::warn!(
                            stream,
                            to,
                            shard,
                            "the store went back in time and lost messages from the stream to `to`: they are written \
                             again when the store has all commits of the partition; waiting"
                        );
                        return Ok(false);
                    }
                    // The driver has ended, or it starts only after messages that wait for this outbox cursor. Once
                    // the ownership is lost, the publisher marks no message as published that the store did not get.
                    Ok(false) | Err(_) => {
                        strand.handle.ownership.advance_to(OwnershipPhase::Lost);
                        strand.abandon();
                        return Ok(true);
                    }
                }
                let Some(messages) = strand.recover_lost(last) else {
                    return Err(PublisherError::StoreRolledBack { stream, to, shard });
                };
                tracing::warn!(
                    stream,
                    to,
                    shard,
                    messages,
                    "the store went back in time and lost messages from the stream to `to`: writing them again from \
                     memory"
                );
                Ok(true)
            }
        }
    }

    /// Waits until the queues may have room, for at most [`FULL_QUEUE_RETRY_DELAY`].
    async fn wait_for_room(&self, assign: &AssignRequest) {
        let Destination::Stream(stream) = &assign.destination else { return };
        let partitions: BTreeSet<u32> = assign.items().map(|item| item.partition).collect();
        let feeds: Vec<_> = partitions
            .into_iter()
            .map(|number| self.notifiers.of(&Partition { stream: Arc::clone(stream), number }))
            .collect();
        let room = select_all(feeds.iter().map(|feed| Box::pin(feed.wait_for_room())));
        let _ = timeout(FULL_QUEUE_RETRY_DELAY, room).await;
    }

    /// Notifies the readers in this process that more messages wait. Reports no queue positions: if the store loses
    /// messages, this sequence assigner repeats them from memory, so the reader must not count them as lost.
    fn notify_readers(&self, assign: &AssignRequest) {
        let Destination::Stream(stream) = &assign.destination else { return };
        let partitions: BTreeSet<u32> = assign.items().map(|item| item.partition).collect();
        for number in partitions {
            let partition = Partition { stream: Arc::clone(stream), number };
            self.notifiers.of(&partition).record_write(assign.shard, None);
        }
    }

    /// Forwards the numbered messages of a batch to the exchanges. A message without a number belongs to another owner.
    /// Reports the messages that need no exchange as published.
    fn forward(
        &mut self,
        batch: DestinationBatch,
        numbers: &MessageNumbers,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let DestinationBatch { run, handle: target, messages: passing, .. } = batch;
        let mut here = passing.len();
        if !self.exchanges.is_empty() {
            let stream = &target.partition.stream;
            for (OutboundMessage { content, exchange_index: via, .. }, number) in
                passing.iter().zip(numbers)
            {
                let Some(number) = *number else { continue };
                here -= 1;
                content.put(&mut self.exchanges[*via], stream, Some(number));
            }
            self.exchanges.iter_mut().for_each(|exchange| exchange.send(run, &target.ownership));
        }
        if here > 0 {
            // The receiver may have ended; the report does not matter then.
            let _ = published.send((run, here));
        }
    }
}
