//! Detects whether the queue of a `fifo` stream is lost. A `fifo` stream numbers the messages of its queue. If the
//! queue was removed, its messages are lost. If the stream continued with a queue that has been declared again, new
//! messages would get the numbers of the lost messages. The stream therefore stops until an operator resumes it.

use jiff::Timestamp;
use lapin::Connection;
use ordain_store::{QueueRecord, QueueRecords, SharedRecord, StoreError};

use super::connect::{BrokerEndpoint, BrokerError, RefusalCause};
use super::consumer_options::ConsumerOptions;
use super::prepare::{QUEUE_TIMEOUT, TopologyError};
use super::queue_monitor::record_change;
use super::store_timeout::with_store_timeout;
use super::topology::{MissingBinding, Topology, TopologyChange};

#[derive(Debug, thiserror::Error)]
pub(super) enum QueueCheckError {
    /// The queue is lost, and no operator has resumed the stream.
    #[error("{0}")]
    Lost(String),
    /// The stream cannot read the messages of the queue, and has stopped.
    #[error("{0}")]
    Unreadable(String),
    /// The broker refused a request, or is unavailable.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The queue has messages and has delivered none of them, although the consumer had room for them.
    #[error("{0}")]
    Stalled(String),
    /// Another process has changed the record of the queue after this process had read it. The next attempt reads the
    /// new record.
    #[error("another process has changed the record of the queue")]
    RecordChanged,
}

/// Records in the store which queues of a stream are lost. The caller must call this function before it prepares the
/// topology, because a queue that has been declared again looks like a queue that was never removed.
pub(super) async fn record_lost_queues(
    topology: &Topology,
    broker: &BrokerEndpoint,
    connection: &Connection,
    records: &QueueRecords,
) -> Result<(), TopologyError> {
    for partition in 0..topology.partitions() {
        loop {
            let stored = with_store_timeout(records.get(partition)).await?;
            let checked = is_lost(topology, broker, connection, partition, stored.record.as_ref());
            if !broker.within(QUEUE_TIMEOUT, checked).await? {
                break;
            }
            let queue = topology.queue(partition);
            let loss = describe_loss(&queue, None);
            if with_store_timeout(records.put_loss(&stored, queue, loss)).await? {
                break;
            }
            // Another process has changed the record meanwhile. Read the new record, and check the queue again.
        }
    }
    Ok(())
}

/// Returns an error if the record and the marker show that the queue is lost. The marker is an exchange that the broker
/// deletes together with the queue. The caller must subscribe before this check, so that the broker ends the
/// subscription if the queue is removed after the check. Creates the record if it is missing. Also creates a missing
/// marker if Ordain declares the queues of the stream. `waiting` is the newest known number of messages in the queue.
/// `is_marker_refused` states whether the broker refused the newest declaration of the marker; this function updates
/// this value.
pub(super) async fn check_subscribed_queue(
    options: &ConsumerOptions,
    connection: &Connection,
    waiting: Option<u64>,
    is_marker_refused: &mut bool,
) -> Result<(), QueueCheckError> {
    let ConsumerOptions { broker, topology, partition, records, stream, .. } = options;
    let queue = topology.queue(*partition);
    let stored = with_store_timeout(records.get(*partition)).await?;
    let record = stored.record.as_ref();
    refuse_lost_queue(record, &queue)?;
    if is_lost(topology, broker, connection, *partition, record).await? {
        return Err(record_loss(options, connection, &stored, waiting).await);
    }
    if has_marker(record, &queue) {
        *is_marker_refused = false;
        return Ok(());
    }
    let mut has_marker = topology.is_declared();
    if has_marker && let Err(error) = topology.declare_marker(broker, connection, *partition).await
    {
        let BrokerError::Refused { cause, reason } = error else { return Err(error.into()) };
        if cause == RefusalCause::NotFound {
            // The queue was removed after the consumer had subscribed.
            return Err(BrokerError::Unavailable(reason).into());
        }
        if !*is_marker_refused {
            warn_without_marker(stream, &queue, &reason);
        }
        has_marker = false;
    }
    *is_marker_refused = topology.is_declared() && !has_marker;
    let consumed = QueueRecord::Consumed { queue, has_marker };
    if record == Some(&consumed) || with_store_timeout(records.replace(&stored, &consumed)).await? {
        return Ok(());
    }
    Err(QueueCheckError::RecordChanged)
}

pub(super) fn warn_without_marker(stream: &str, queue: &str, reason: &str) {
    tracing::warn!(
        stream,
        queue,
        "queue without a marker: the broker refused the exchange {queue}.marker ({reason}). Another program can \
         remove the queue and declare it again; the events of the old queue are then lost. Without the exchange, \
         Ordain cannot detect this loss. If a permission is missing, allow the user of `broker.url` to configure and \
         read the exchange; if an exchange of this name has another form, delete it. Then start Ordain again"
    );
}

/// Returns an error if the consumed queue was removed. Otherwise returns whether the record of the queue states that it
/// has a marker. The broker usually ends the subscriptions to a removed queue, but a subscription may survive if
/// another program declares the queue again immediately.
pub(super) async fn check_marker(
    options: &ConsumerOptions,
    connection: &Connection,
) -> Result<bool, QueueCheckError> {
    let ConsumerOptions { broker, topology, partition, records, .. } = options;
    let record = with_store_timeout(records.get(*partition)).await?.record;
    let queue = topology.queue(*partition);
    let is_recorded = refuse_lost_queue(record.as_ref(), &queue).is_err();
    if is_recorded || is_lost(topology, broker, connection, *partition, record.as_ref()).await? {
        return Err(BrokerError::Unavailable(format!("the queue {queue:?} was removed")).into());
    }
    Ok(has_marker(record.as_ref(), &queue))
}

/// Handles a missing queue. If the stream has consumed this queue before, the messages of the queue are lost. In this
/// case, this function returns the loss as an error, and first records the loss if the store has no record of it.
/// Otherwise, it declares the queue.
pub(super) async fn handle_missing_queue(
    options: &ConsumerOptions,
    connection: &Connection,
    waiting: Option<u64>,
) -> Result<(), QueueCheckError> {
    let ConsumerOptions { broker, topology, partition, records, .. } = options;
    let queue = topology.queue(*partition);
    let stored = with_store_timeout(records.get(*partition)).await?;
    let record = stored.record.as_ref();
    refuse_lost_queue(record, &queue)?;
    if is_lost(topology, broker, connection, *partition, record).await? {
        return Err(record_loss(options, connection, &stored, waiting).await);
    }
    // If the exchange is missing, the monitor of the subscription repeats the binding.
    restore_own_queue(options, connection).await?;
    Ok(())
}

/// Declares the queue of the partition if it is missing, and binds the queue to the exchange. The broker may refuse the
/// declaration or the binding, for example because of another form of the queue or a missing permission. In this case,
/// logs and counts the refusal, and returns no error: if the queue exists, the partition can still consume it. Returns
/// the binding if the exchange is missing. If Ordain does not declare the queues of the stream, only checks that the
/// queue exists.
pub(super) async fn restore_own_queue(
    options: &ConsumerOptions,
    connection: &Connection,
) -> Result<Option<MissingBinding>, BrokerError> {
    let ConsumerOptions { broker, topology, partition, .. } = options;
    if !topology.is_declared() {
        topology.check_queue(broker, connection, *partition).await?;
        return Ok(None);
    }
    let report = |change: &TopologyChange| record_change(options, change);
    let list = options.binding_list.as_ref();
    topology.restore_queue(broker, connection, *partition, true, list, report).await
}

fn refuse_lost_queue(record: Option<&QueueRecord>, queue: &str) -> Result<(), QueueCheckError> {
    match record {
        // If the configuration now names another queue, the loss of the previous queue does not matter.
        Some(QueueRecord::Lost { queue: lost, reason }) if lost == queue => {
            Err(QueueCheckError::Lost(reason.clone()))
        }
        _ => Ok(()),
    }
}

/// Returns whether the queue has a marker, according to its record.
pub(super) fn has_marker(record: Option<&QueueRecord>, queue: &str) -> bool {
    matches!(
        record,
        Some(QueueRecord::Consumed { queue: consumed, has_marker: true }) if consumed == queue
    )
}

async fn record_loss(
    options: &ConsumerOptions,
    connection: &Connection,
    before: &SharedRecord<QueueRecord>,
    waiting: Option<u64>,
) -> QueueCheckError {
    let queue = options.topology.queue(options.partition);
    let reason = describe_loss(&queue, waiting);
    match with_store_timeout(options.records.put_loss(before, queue, reason.clone())).await {
        Ok(true) => {}
        Ok(false) => return QueueCheckError::RecordChanged,
        Err(error) => return error.into(),
    }
    // If the restoration fails or is incomplete, the consumer repeats the restoration while it waits for the operator.
    let _ = restore_own_queue(options, connection).await;
    QueueCheckError::Lost(reason)
}

/// Returns whether the queue was removed since the stream consumed it. If another program has declared the queue again,
/// only the missing marker shows the removal. But a marker alone does not show that the queue exists, because imported
/// definitions can contain a marker without its queue.
async fn is_lost(
    topology: &Topology,
    broker: &BrokerEndpoint,
    connection: &Connection,
    partition: u32,
    record: Option<&QueueRecord>,
) -> Result<bool, BrokerError> {
    match record {
        Some(QueueRecord::Consumed { queue, has_marker })
            if *queue == topology.queue(partition) =>
        {
            if *has_marker && !topology.has_marker(broker, connection, partition).await? {
                return Ok(true);
            }
            match topology.check_queue(broker, connection, partition).await {
                Ok(()) => Ok(false),
                Err(error) if error.is_not_found() => Ok(true),
                Err(error) => Err(error),
            }
        }
        _ => Ok(false),
    }
}

/// Describes the loss of a queue. `waiting` is the newest known number of messages in the queue.
fn describe_loss(queue: &str, waiting: Option<u64>) -> String {
    let now = Timestamp::now();
    let waiting = match waiting {
        Some(0) => "at the last check, no message waited in the queue".to_owned(),
        Some(messages) => format!("at the last check, {messages} messages waited in the queue"),
        None => "the number of these messages is unknown".to_owned(),
    };
    format!(
        "the queue {queue:?} was removed (detected at {now:.0}); the messages that waited in it are lost ({waiting}). \
         Publish again the events that have not taken effect, and resume the stream"
    )
}
