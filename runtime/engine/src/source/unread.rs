//! Finds events that this process accepted over HTTP and that the store has lost because it went back in time (lost its
//! newest writes). Another process may have read some of these events before the loss. This module checks only the
//! queues that this process does not read. In a queue that this process reads, the reader detects the loss.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ordain_publish::QueueWriter;
use tokio::time::{sleep, timeout};

use super::notifier::{QueueNotifier, QueueNotifiers};
use crate::incident::{LossCounts, report_lost_events};
use ordain_store::{AssignRequest, Destination, DestinationRules, Partition, Store, StoreError};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a check that is due because many accepted events wait. With a longer delay, the queue notifier could
/// reach its limit before the check, and forget the oldest of these events.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit of the check of one queue, and of the renewal of one record: a shard that does not answer must not delay
/// the checks of other shards.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two renewals of the record of a writer (the numbers of the writer's calls that a shard has processed).
/// The store keeps a record for at least half an hour after a call.
const RENEWAL_INTERVAL: Duration = Duration::from_mins(10);

const POSSIBLE_LOSS_MESSAGE: &str = "the store went back in time, and events that this process accepted may be lost. \
                                     The store no longer has these events, but another process may have read some of \
                                     them before the loss. This process accepted the first of these events at `since`; \
                                     the producers must send all of them again";

/// The events that this process added to one shard of a queue, and that may still be unread.
struct UnreadQueue {
    partition: Partition,
    shard: u32,
    notifier: Arc<QueueNotifier>,
    writer: Arc<QueueWriter>,
    calls: BTreeSet<u64>,
    losses: Arc<LossCounts>,
}

/// Checks the accepted events that wait in queues without a reader in this process. Counts and logs the accepted events
/// that the store has lost. `losses` returns the counts of a partition.
pub(crate) async fn watch_accepted_events(
    store: &Arc<dyn Store>,
    notifiers: &QueueNotifiers,
    losses: impl Fn(&Partition) -> Arc<LossCounts>,
) {
    if !store.may_roll_back() {
        return std::future::pending().await;
    }
    let mut renewed_at = Instant::now();
    loop {
        tokio::select! {
            () = sleep(CHECK_INTERVAL) => {}
            () = notifiers.wait_until_nearly_full() => sleep(BUSY_CHECK_INTERVAL).await,
        }
        let mut queues = Vec::new();
        for (partition, notifier) in notifiers.all() {
            for (shard, calls) in notifier.unread_calls() {
                queues.push(UnreadQueue {
                    shard,
                    calls,
                    notifier: Arc::clone(&notifier),
                    writer: notifiers.writer(&partition.stream, store.shards()),
                    losses: losses(&partition),
                    partition: partition.clone(),
                });
            }
        }
        // If a check fails or takes too long, the next pass of this loop repeats the check.
        let checks = queues.iter().map(|queue| timeout(CHECK_TIMEOUT, queue.check(&**store)));
        drop(join_all(checks).await);
        if renewed_at.elapsed() >= RENEWAL_INTERVAL {
            renewed_at = Instant::now();
            renew_records(&**store, notifiers).await;
        }
    }
}

/// Renews the records of all writers of this process. Without renewals, the store would forget the calls of an idle
/// writer, although the entries of these calls may still wait. The renewals include the queues that this process reads,
/// because the next reader may be in another process.
async fn renew_records(store: &dyn Store, notifiers: &QueueNotifiers) {
    let mut renewals = Vec::new();
    for (stream, writer) in notifiers.writers() {
        for shard in writer.called_shards() {
            let renewal = AssignRequest {
                destination: Destination::Stream(Arc::clone(&stream)),
                shard,
                rules: DestinationRules { numbering: None, queue_limit: None },
                witness: None,
                call: Some(writer.next_call(shard)),
                readers: Vec::new(),
                reuses_lost_numbers: false,
                groups: Vec::new(),
            };
            renewals.push(timeout(CHECK_TIMEOUT, store.assign(Arc::new(renewal))));
        }
    }
    // The store keeps a record for longer than two renewal intervals, so a failed renewal can wait for the next
    // interval.
    drop(join_all(renewals).await);
}

impl UnreadQueue {
    /// Reports the events that the store has lost, and forgets the events that another process has removed.
    async fn check(&self, store: &dyn Store) -> Result<(), StoreError> {
        let Self { partition, shard, writer, .. } = self;
        let (stored, ends) = store.writer_calls(partition, *shard, writer.id()).await?;
        if let Some(loss) = self.notifier.check_unread(*shard, &self.calls, &stored, ends) {
            report_lost_events(partition, *shard, loss, None, &self.losses, POSSIBLE_LOSS_MESSAGE);
        }
        Ok(())
    }
}
