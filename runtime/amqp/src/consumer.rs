//! The consumer of one partition's queue: receives deliveries in batches and acknowledges them cumulatively.
//!
//! The broker numbers the deliveries of a channel from 1. After the loss of a channel, the broker delivers all
//! unacknowledged messages again on the next channel. Each channel therefore has a subscription epoch (a number), which
//! distinguishes its deliveries from the deliveries of earlier channels. The consumer ignores an acknowledgement of an
//! earlier epoch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use ordain_store::QueueRecord;
use tokio::sync::watch as latest;
use tokio::sync::{mpsc, oneshot};

use super::connect::BrokerError;
use super::consumer_options::ConsumerOptions;
use super::fifo_queue::{
    QueueCheckError, check_subscribed_queue, handle_missing_queue, has_marker, restore_own_queue,
    warn_without_marker,
};
use super::prefetch::AdaptivePrefetch;
use super::prepare::TopologyError;
use super::queue_monitor::{
    ConsumerProgress, Interruption, monitor_queue, record_change, report_unchecked,
    restore_exchange,
};
use super::restore_schedule::RestoreSchedule;
use super::store_timeout::with_store_timeout;
use super::subscription::{Subscription, SubscriptionEnd};
use super::topology::{MissingBinding, TopologyChange};
use super::unreadable_run::ContactState;
use ordain_cloudevents::{AckProgress, DeliveryBatch, READ_AHEAD_BATCHES, SourceHandle};
use ordain_util::backoff::Backoff;
use ordain_util::command::PrintedCommand;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::source_health::SourceState;
use ordain_util::wait::shortened;

/// Longest delay before the next subscription. After a subscription that received a delivery, or that lasted longer
/// than this delay, the next delay is the shortest delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Delays between subscriptions that fail.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), MAX_RETRY_DELAY);
const WARN_INTERVAL: Duration = Duration::from_secs(30);
const RESUME_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit for all steps that open a subscription, and for one attempt to restore the queue of a stopped stream.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Total time limit for the two steps that close the channel and the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts a consumer. The consumer reconnects after every failure. It ends when the receiver of its deliveries is
/// dropped, or when this process loses the ownership of the partition.
pub fn start(options: ConsumerOptions) -> SourceHandle {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD_BATCHES);
    // The consumer retries after each error, so it never reports a failure.
    let (_, failure) = oneshot::channel();
    let (acknowledge, acknowledged) = latest::channel(AckProgress::default());
    options.health.set(SourceState::Retrying { reason: "not subscribed yet".to_owned() });
    let task = tokio::spawn(async move {
        tokio::select! {
            () = run(&options, &deliver, acknowledged) => {}
            () = options.exchange_fault.apply_to(&options.health) => {}
        }
    });
    let acknowledge = Some(acknowledge);
    let task = Some(task);
    SourceHandle { deliveries, failure, acknowledge, task, is_fed_locally: false }
}

async fn run(
    options: &ConsumerOptions,
    deliver: &mpsc::Sender<DeliveryBatch>,
    acknowledged: latest::Receiver<AckProgress>,
) {
    let mut gate = options.gate.clone();
    let report = |reason| options.health.set(SourceState::Retrying { reason });
    tokio::select! {
        () = gate.wait_open(report) => {}
        () = deliver.closed() => return,
    }
    let mut known = KnownQueue::default();
    consume(options, deliver, acknowledged, &mut known).await;
    // Report the loss now. The next owner of the partition may find a queue that this process has declared, and then
    // cannot detect the loss.
    if let Some(loss) = known.loss {
        record_change(options, &loss);
    }
}

/// Ends when the receiver of the deliveries is dropped or the ownership has ended.
async fn consume(
    options: &ConsumerOptions,
    deliver: &mpsc::Sender<DeliveryBatch>,
    mut acknowledged: latest::Receiver<AckProgress>,
    known: &mut KnownQueue,
) {
    let queue = options.topology.queue(options.partition);
    let stream = &*options.stream;
    let mut subscription_epoch = 0;
    let mut interruption = Interruption::default();
    let mut throttle = LogThrottle::new(shortened(WARN_INTERVAL));
    let mut backoff = RETRY_BACKOFF;
    let memory = if options.is_fifo() { usize::MAX } else { options.memory };
    let mut prefetch =
        AdaptivePrefetch::new(options.prefetch, memory, Arc::clone(&options.last_prefetch));
    // The number of messages that waited in the queue at the final check of the previous subscription; `None` if this
    // number is unknown.
    let mut waiting = None;
    let mut contact = ContactState::default();
    loop {
        tokio::select! {
            () = options.ownership.wait_active() => {}
            () = deliver.closed() => return,
        }
        if options.ownership.is_lost() {
            return;
        }
        subscription_epoch += 1;
        let progress = ConsumerProgress::default();
        let since = Instant::now();
        let session = async {
            let request = subscribe(options, &queue, prefetch.current(), waiting, known);
            let (connection, channel, consumer) = with_subscribe_timeout(&queue, request).await?;
            if let Some(reason) = interruption.stall() {
                // In the meantime, another reason in `health`, such as a lease that was not renewed, may have replaced
                // the reason of the stall.
                options.health.set(SourceState::Retrying { reason: reason.to_owned() });
            } else {
                interruption.end(options, &queue);
            }
            waiting = None;
            let subscription = Subscription::new(
                options,
                &queue,
                subscription_epoch,
                &channel,
                &progress,
                &mut prefetch,
                &mut contact,
            )
            .with_unknown_type(known.type_check == QueueTypeCheck::Unknown);
            let ended = tokio::select! {
                ended = subscription.run(consumer, deliver, &mut acknowledged) => {
                    ended.map_err(QueueCheckError::from)
                }
                error = monitor_queue(
                    options, &connection, &queue, &progress, known.is_marked, &mut interruption,
                ) => Err(error),
                () = options.ownership.wait_inactive() => Ok(SubscriptionEnd::Suspended),
            };
            waiting = options.lag.get();
            options.lag.set(None);
            close(&connection, &channel).await;
            ended
        };
        let ended = session.await;
        if interruption.stall().is_some() && progress.received() > 0 {
            interruption.end(options, &queue);
        }
        let error = match ended {
            Ok(SubscriptionEnd::Done) => return,
            Ok(SubscriptionEnd::Resized) => continue,
            Ok(SubscriptionEnd::Suspended) => {
                let reason = "the lease of the partition is not renewed".to_owned();
                options.health.set(SourceState::Retrying { reason });
                continue;
            }
            Ok(SubscriptionEnd::StreamSuspected) => {
                known.suspect_stream_queue();
                continue;
            }
            Ok(SubscriptionEnd::Cancelled) => cancelled(options, &queue, known),
            Ok(SubscriptionEnd::Unreadable(reason)) => QueueCheckError::Unreadable(reason),
            Err(error) => error,
        };
        known.update(&error);
        let is_first = interruption.begin(&error);
        if let QueueCheckError::Lost(_) | QueueCheckError::Unreadable(_) = &error {
            tokio::select! {
                () = wait_for_operator(options, &queue, &error, &mut contact) => backoff.reset(),
                () = deliver.closed() => return,
                () = options.ownership.wait_inactive() => {}
            }
            continue;
        }
        let reason = error.to_string();
        if throttle.allow() || is_first {
            tracing::warn!(stream, queue, error = reason, "queue not consumed; retrying");
        }
        report_retry(options, &error, reason);
        // If a subscription ends soon and without a delivery, the next subscription may fail in the same way, so the
        // delay grows.
        if progress.received() > 0 || since.elapsed() > MAX_RETRY_DELAY {
            backoff.reset();
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_jittered()) => {}
            () = deliver.closed() => return,
        }
    }
}

/// Shows the error that ended a subscription in the state of the source. `reason` is the text of the error. If the user
/// lacks a right, also reports the refusal to the observers of the topology gate.
fn report_retry(options: &ConsumerOptions, error: &QueueCheckError, reason: String) {
    let state = match error {
        QueueCheckError::Broker(BrokerError::LoginRefused { words, .. }) => {
            SourceState::LoginRefused { reason, words: words.clone() }
        }
        _ => SourceState::Retrying { reason },
    };
    options.health.set(state);
    if let QueueCheckError::Broker(error) = error
        && error.is_access_refused()
    {
        options.gate.report_refused_consumer();
    }
}

/// Returns the error of a subscription that the broker has ended. If the queue has no marker, another program may have
/// replaced the queue, so this function keeps a possible loss in `known`. The next subscription reports the possible
/// loss. Before that, [`KnownQueue::clear_possible_loss`] forgets it if the consumer finds that the queue is certainly
/// lost, or that the broker still has the queue.
fn cancelled(options: &ConsumerOptions, queue: &str, known: &mut KnownQueue) -> QueueCheckError {
    // Another program may have declared the queue again with other arguments.
    known.type_check = QueueTypeCheck::Pending;
    let has_marker = if options.is_fifo() {
        options.topology.is_declared() && !known.is_marker_refused
    } else {
        known.is_marked
    };
    // The loss is not certain: from 4.3 on, RabbitMQ also ends a consumer that does not acknowledge a delivery in time.
    if !has_marker {
        known.loss = Some(TopologyChange::QueueUnidentified(queue.to_owned()));
    }
    QueueCheckError::Broker(BrokerError::Unavailable(
        "the broker has ended the subscription. Possible causes: the queue was removed, or a delivery was not \
         acknowledged within the broker's consumer_timeout (RabbitMQ 4.3 and later)"
            .to_owned(),
    ))
}

/// The facts about a queue that its consumer keeps from one subscription to the next.
#[derive(Debug, Default)]
struct KnownQueue {
    /// `true` if the broker refused the newest declaration of the marker (an exchange that the broker deletes together
    /// with the queue).
    is_marker_refused: bool,
    /// True if the queue of a `sequenced` stream had its marker when the consumer most recently declared or checked the
    /// marker.
    is_marked: bool,
    /// The result of the comparison of a `sequenced` stream's queue with its record in the store.
    record_check: QueueRecordCheck,
    /// A loss that has not been reported yet: the loss of the queue of a `sequenced` stream, or the possible loss of a
    /// queue without a marker. The consumer reports the loss after its next subscription. If the consumer ends earlier,
    /// it reports the loss at its end.
    loss: Option<TopologyChange>,
    /// The check that refuses queues of type stream. Only a consumer of a stream with `declare = false` makes this
    /// check.
    type_check: QueueTypeCheck,
}

/// The record of a `sequenced` stream's queue in the store shows whether an earlier consumer has marked the queue.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum QueueRecordCheck {
    #[default]
    Pending,
    /// The queue was lost before this consumer started. The consumer has reported the loss, and has not subscribed
    /// since then.
    LossReported,
    Done,
}

/// The result of the check that refuses queues of type stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum QueueTypeCheck {
    /// The consumer has not checked the queue, or has noticed a removal of the queue since the check.
    #[default]
    Pending,
    /// The broker did not show the whole form of the queue, for example because the user lacks the right to declare the
    /// queue. A queue of type stream reveals its type later: its messages have the header `x-stream-offset`, or the
    /// queue has messages and delivers none of them.
    Unknown,
    /// A queue of unknown type behaves like a queue of type stream.
    Suspected,
    Passed,
}

impl KnownQueue {
    fn update(&mut self, error: &QueueCheckError) {
        self.clear_possible_loss(error);
        if matches!(error, QueueCheckError::Stalled(_)) {
            self.suspect_stream_queue();
        }
    }

    /// Forgets the possible loss of a queue without a marker in two cases. In the first case, `error` shows that the
    /// queue is lost: the stream has then stopped because of the loss, so the loss needs no other report. In the second
    /// case, `error` shows that the broker still has the queue, so there was no loss: RabbitMQ also ends a subscription
    /// when the node of the queue stops.
    fn clear_possible_loss(&mut self, error: &QueueCheckError) {
        let is_certain = match error {
            QueueCheckError::Lost(_) => true,
            QueueCheckError::Broker(error) => error.is_queue_unavailable(),
            _ => false,
        };
        if is_certain && matches!(self.loss, Some(TopologyChange::QueueUnidentified(_))) {
            self.loss = None;
        }
    }

    /// Requires that the next subscription determines the unknown type of the queue, because the queue behaves like a
    /// queue of type stream.
    fn suspect_stream_queue(&mut self) {
        if self.type_check == QueueTypeCheck::Unknown {
            self.type_check = QueueTypeCheck::Suspected;
        }
    }
}

/// Waits until an operator resumes a stream that has lost its queue, or that cannot read its messages.
async fn wait_for_operator(
    options: &ConsumerOptions,
    queue: &str,
    error: &QueueCheckError,
    contact: &mut ContactState,
) {
    if let QueueCheckError::Unreadable(_) = error {
        tokio::select! {
            () = restore_until_resumed(options) => {}
            () = options.health.until_resumed() => {}
        }
        // If the stream stops again, the consumer must log the reason again.
        contact.is_stop_logged = false;
        tracing::info!(stream = &*options.stream, queue, "stream resumed by an operator");
    } else {
        wait_for_resume(options, queue, &error.to_string()).await;
    }
}

/// Restores the exchange at intervals, in the consumer of partition 0. The consumers of the other partitions only wait.
/// This function never returns. A consumer calls this function while it leaves unreadable messages in its queue,
/// because the other partitions of the stream may still need the exchange.
async fn restore_until_resumed(options: &ConsumerOptions) {
    let mut schedule = RestoreSchedule::new();
    loop {
        let mut missing = None;
        if options.partition == 0 {
            match restore_exchange(options).await {
                Ok(binding) => missing = binding,
                Err(error) => report_unchecked(options, &error),
            }
        }
        tokio::time::sleep(schedule.next_delay(options, missing)).await;
    }
}

/// Waits until an operator resumes the stream. Meanwhile, logs at intervals why the stream has stopped, and restores
/// the topology.
async fn wait_for_resume(options: &ConsumerOptions, queue: &str, reason: &str) {
    let stream = &*options.stream;
    options.health.set(SourceState::Stopped { reason: reason.to_owned() });
    let mut throttle = LogThrottle::new(shortened(WARN_INTERVAL));
    let mut schedule = RestoreSchedule::new();
    let mut restore_at = Instant::now();
    loop {
        if Instant::now() >= restore_at {
            let missing = restore_topology(options, queue).await;
            restore_at = Instant::now() + schedule.next_delay(options, missing);
        }
        if throttle.allow() {
            tracing::error!(
                stream,
                queue,
                "stream stopped: {reason}. Other partitions of the stream continue. The command to resume the stream \
                 is {}",
                PrintedCommand::new("streams resume").argument(stream)
            );
        }
        tokio::time::sleep(shortened(RESUME_CHECK_INTERVAL)).await;
        // If the store does not answer, the next check repeats the request.
        if let Ok(stored) = with_store_timeout(options.records.get(options.partition)).await
            && !matches!(stored.record, Some(QueueRecord::Lost { .. }))
        {
            tracing::info!(stream, queue, "stream resumed by an operator");
            return;
        }
    }
}

/// Restores the queue of a stopped stream, so that no new message is lost before the stream is resumed. The consumer of
/// partition 0 also restores the exchange. Returns a binding whose queue or exchange is missing. If the restoration
/// fails, this function logs the reason. The caller repeats the restoration later.
async fn restore_topology(options: &ConsumerOptions, queue: &str) -> Option<MissingBinding> {
    let ConsumerOptions { broker, stream, partition, .. } = options;
    let restore_queue = async {
        let connection = broker.connect(&format!("ordain {stream} {partition}")).await?;
        let restored = restore_own_queue(options, &connection).await;
        // The declarations are done, so neither an error nor a missing answer matters.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connection.close(200, "done".into())).await;
        restored
    };
    let mut restored =
        broker.within(SUBSCRIBE_TIMEOUT, restore_queue).await.map_err(TopologyError::from);
    if *partition == 0 {
        // This step also binds the queue.
        let exchange = restore_exchange(options).await;
        restored = restored.and(exchange);
    }
    restored.unwrap_or_else(|error| {
        tracing::warn!(
            stream = &**stream,
            queue,
            "topology of the stopped stream not restored: {error}; messages that are published while the queue or its \
             binding is missing are lost. Ordain tries again"
        );
        None
    })
}

/// Limits the time of requests about a queue. A queue without a leader, for example after a crash of the broker, never
/// responds.
async fn with_subscribe_timeout<T>(
    queue: &str,
    work: impl Future<Output = Result<T, QueueCheckError>>,
) -> Result<T, QueueCheckError> {
    tokio::time::timeout(SUBSCRIBE_TIMEOUT, work).await.unwrap_or_else(|_| {
        Err(QueueCheckError::Broker(BrokerError::Unavailable(format!(
            "the queue {queue:?} does not answer; if this error repeats, restart the broker"
        ))))
    })
}

/// Declares a missing queue. If this process must not declare it, returns an error instead. `waiting` is the newest
/// known number of messages in the queue.
async fn subscribe(
    options: &ConsumerOptions,
    queue: &str,
    prefetch: u16,
    waiting: Option<u64>,
    known: &mut KnownQueue,
) -> Result<(Connection, Channel, Consumer), QueueCheckError> {
    let ConsumerOptions { broker, topology, stream, partition, .. } = options;
    let connection = broker.connect(&format!("ordain {stream} {partition}")).await?;
    let open = async || {
        let channel = connection.create_channel().await?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let tag = (&*options.consumer_tag).into();
        let defaults = BasicConsumeOptions::default();
        let nothing = FieldTable::default();
        let consumer = channel.basic_consume(queue.into(), tag, defaults, nothing).await?;
        Ok((channel, consumer))
    };
    if known.type_check == QueueTypeCheck::Suspected {
        known.type_check = match topology.refuse_stream_queue(broker, stream, *partition).await {
            Ok(()) => QueueTypeCheck::Passed,
            // The following steps handle a missing queue.
            Err(error) if error.is_not_found() => QueueTypeCheck::Pending,
            Err(error) => return Err(error.into()),
        };
    }
    if !options.is_fifo() {
        mark_queue(options, &connection, queue, known).await?;
    }
    let (channel, consumer) = match open().await.map_err(|error| broker.error(&error)) {
        Ok(opened) => opened,
        Err(error) if error.is_not_found() => {
            known.type_check = QueueTypeCheck::Pending;
            if options.is_fifo() {
                // If another program declares the queue again before this call checks the queue, the call detects no
                // loss. The consumer then reports the possible loss that it has kept.
                handle_missing_queue(options, &connection, waiting).await?;
            } else {
                // Keep the loss until it is reported. If this attempt fails, a later attempt may find a queue that this
                // attempt or another program has declared. The later attempt then cannot detect the loss.
                known.is_marked = false;
                if known.record_check != QueueRecordCheck::LossReported {
                    known.loss = Some(TopologyChange::QueueMissing(queue.to_owned()));
                }
                // If the exchange is missing, the monitor of the subscription repeats the binding.
                restore_own_queue(options, &connection).await?;
                mark_queue(options, &connection, queue, known).await?;
            }
            open().await.map_err(|error| broker.error(&error))?
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(loss) = known.loss.take() {
        record_change(options, &loss);
    }
    if known.record_check == QueueRecordCheck::LossReported {
        known.record_check = QueueRecordCheck::Done;
    }
    if !topology.is_declared() && known.type_check == QueueTypeCheck::Pending {
        let form = topology.check_undeclared_queue(broker, &connection, *partition).await?;
        for risk in form.risks(queue) {
            tracing::warn!(stream = %stream, partition, "queue may lose events: {risk}");
        }
        known.type_check =
            if form.is_complete { QueueTypeCheck::Passed } else { QueueTypeCheck::Unknown };
    }
    if options.is_fifo() {
        let is_refused = &mut known.is_marker_refused;
        check_subscribed_queue(options, &connection, waiting, is_refused).await?;
    }
    Ok((connection, channel, consumer))
}

/// Declares the marker of a `sequenced` stream's queue, so that the monitor can detect a replacement of the queue. The
/// caller subscribes after this call. If the queue is replaced after the declaration of the marker and before the
/// subscription, the marker disappears with the old queue. If another program has deleted the queue and declared it
/// again since the previous subscription, this function keeps the loss in `known`. The next subscription then reports
/// the loss, even if a request of this call fails. If the broker refuses the marker, each later call repeats the
/// declaration, because an operator may have granted the right.
///
/// The first call reads from the store whether an earlier consumer has marked the queue. If this queue now lacks its
/// marker, the call reports the loss of the queue. Each declaration of the marker updates the record in the store.
async fn mark_queue(
    options: &ConsumerOptions,
    connection: &Connection,
    queue: &str,
    known: &mut KnownQueue,
) -> Result<(), QueueCheckError> {
    let ConsumerOptions { broker, topology, stream, partition, records, .. } = options;
    if !topology.is_declared() {
        return Ok(());
    }
    if known.record_check == QueueRecordCheck::Pending {
        let stored = with_store_timeout(records.get(*partition)).await?;
        let was_marked = has_marker(stored.record.as_ref(), queue);
        if was_marked && !topology.has_marker(broker, connection, *partition).await? {
            // This report precedes the declaration of the new marker: with the new marker, no later consumer could
            // detect the loss.
            record_change(options, &TopologyChange::QueueLost(queue.to_owned()));
            known.record_check = QueueRecordCheck::LossReported;
        } else {
            known.is_marked = was_marked;
            known.record_check = QueueRecordCheck::Done;
        }
    }
    if known.is_marked {
        if topology.has_marker(broker, connection, *partition).await? {
            return Ok(());
        }
        known.is_marked = false;
        known.loss = Some(TopologyChange::QueueReplaced(queue.to_owned()));
    }
    match topology.declare_marker(broker, connection, *partition).await {
        Ok(()) => {
            record_marker(options, queue, true).await?;
            known.is_marked = true;
            known.is_marker_refused = false;
            Ok(())
        }
        // The caller, which subscribes next, also finds that the queue is missing, and declares it again.
        Err(error) if error.is_not_found() => Ok(()),
        Err(BrokerError::Refused { reason, .. }) => {
            if !std::mem::replace(&mut known.is_marker_refused, true) {
                warn_without_marker(stream, queue, &reason);
            }
            record_marker(options, queue, false).await
        }
        Err(error) => Err(error.into()),
    }
}

/// Records in the store whether the queue of a `sequenced` stream has a marker.
async fn record_marker(
    options: &ConsumerOptions,
    queue: &str,
    has_marker: bool,
) -> Result<(), QueueCheckError> {
    let ConsumerOptions { partition, records, .. } = options;
    let stored = with_store_timeout(records.get(*partition)).await?;
    let record = QueueRecord::Consumed { queue: queue.to_owned(), has_marker };
    if stored.record.as_ref() == Some(&record)
        || with_store_timeout(records.replace(&stored, &record)).await?
    {
        return Ok(());
    }
    Err(QueueCheckError::RecordChanged)
}

/// Closes the channel and the connection. The broker then returns unacknowledged deliveries to the queue.
async fn close(connection: &Connection, channel: &Channel) {
    let ended = tokio::time::timeout(CLOSE_TIMEOUT, async {
        channel.close(200, "done".into()).await?;
        connection.close(200, "done".into()).await
    });
    // The broker notices the end of the connection in any case.
    let _ = ended.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A possible loss is kept after errors that do not show whether another program has replaced the queue.
    #[test]
    fn possible_loss_is_kept_until_an_error_shows_the_state_of_the_queue() {
        let unavailable =
            |reason: &str| QueueCheckError::Broker(BrokerError::Unavailable(reason.to_owned()));
        let stopped = "NOT_FOUND - queue 'cases' in vhost '/' process is stopped by supervisor";
        for (error, is_kept) in [
            (unavailable("no answer"), true),
            (QueueCheckError::RecordChanged, true),
            (unavailable(stopped), false),
            (QueueCheckError::Lost("the queue was removed".to_owned()), false),
        ] {
            let loss = Some(TopologyChange::QueueUnidentified("cases".to_owned()));
            let mut known = KnownQueue { loss: loss.clone(), ..KnownQueue::default() };
            known.clear_possible_loss(&error);
            assert_eq!(known.loss, loss.filter(|_| is_kept), "{error}");
        }
    }

    #[test]
    fn certain_loss_is_kept_while_the_node_of_the_queue_is_down() {
        let loss = Some(TopologyChange::QueueMissing("cases".to_owned()));
        let mut known = KnownQueue { loss: loss.clone(), ..KnownQueue::default() };
        let reason = "NOT_FOUND - home node 'a@b' of durable queue 'cases' is down or inaccessible";
        known.clear_possible_loss(&BrokerError::Unavailable(reason.to_owned()).into());
        assert_eq!(known.loss, loss);
    }
}
