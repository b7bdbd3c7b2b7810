//! Monitors a consumer's queue on other channels than the consumer's channel. The monitor checks the number of ready
//! messages, the deliveries of the queue, its other consumers, and the topology. After a crash, a broker may accept a
//! subscription and then deliver nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::time::{sleep, timeout};

use super::connect::BrokerError;
use super::consumer_options::ConsumerOptions;
use super::fifo_queue::{QueueCheckError, check_marker};
use super::prepare::TopologyError;
use super::restore_schedule::RestoreSchedule;
use super::store_timeout::with_store_timeout;
use super::topology::{MissingBinding, TopologyChange};
use super::topology_record::ExchangeMarkers;
use ordain_util::command::PrintedCommand;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::source_health::SourceState;
use ordain_util::wait::shortened;

/// Interval between two checks of the queue: a quorum queue updates its message count every five seconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// The monitor reports a stalled queue after this number of consecutive checks without a new delivery, although the
/// queue has messages and the consumer has room for them.
const SILENT_CHECK_LIMIT: u32 = 3;
/// The monitor warns about another consumer of the queue after this number of consecutive checks that have found one.
/// Several checks are necessary, because the consumer of the partition's previous owner may remain for the duration of
/// a lease. RabbitMQ counts only active consumers. A queue that Ordain declares has a single active consumer, so its
/// count is never above one, and only the broker's management API shows its other consumers.
const SHARED_CHECK_LIMIT: u32 = 12;
/// Time between two warnings that a queue has another consumer.
const SHARED_WARN_INTERVAL: Duration = Duration::from_mins(5);

/// Time between two errors about messages that the broker has dropped.
const DROPPED_WARN_INTERVAL: Duration = Duration::from_mins(5);

/// The progress of a consumer, which shows the monitor whether the queue delivers nothing.
#[derive(Debug, Default)]
pub(super) struct ConsumerProgress {
    received: AtomicU64,
    has_room: AtomicBool,
}

impl ConsumerProgress {
    /// Sets the number of received deliveries, and whether the consumer has room for more. A consumer has room if it
    /// has fewer unacknowledged deliveries than its prefetch, and the receiver has taken all deliveries.
    pub(super) fn set(&self, received: u64, has_room: bool) {
        self.received.store(received, Relaxed);
        self.has_room.store(has_room, Relaxed);
    }

    pub(super) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }
}

/// An interruption: a time in which the consumer does not receive the messages of its queue.
#[derive(Debug, Default)]
pub(super) struct Interruption {
    /// `true` since the first error of the interruption, which the consumer logs.
    is_reported: bool,
    /// The reason of a stall: a subscription ended because the queue had messages and delivered none of them, and no
    /// message has arrived since then.
    stall: Option<String>,
}

impl Interruption {
    /// Records `error`, which has ended a subscription. Returns whether it is the first error of the interruption.
    pub(super) fn begin(&mut self, error: &QueueCheckError) -> bool {
        if let QueueCheckError::Stalled(reason) = error {
            self.stall = Some(reason.clone());
        }
        !std::mem::replace(&mut self.is_reported, true)
    }

    /// Returns the reason of a stall: the queue had messages and delivered none of them to an earlier subscription. A
    /// new subscription alone does not end such an interruption. The interruption ends with the next delivery, or when
    /// the queue is empty.
    pub(super) fn stall(&self) -> Option<&str> {
        self.stall.as_deref()
    }

    /// Ends the interruption. Logs that the queue is consumed again if the consumer has logged an error of the
    /// interruption.
    pub(super) fn end(&mut self, options: &ConsumerOptions, queue: &str) {
        options.health.set(SourceState::Consuming);
        if std::mem::take(self).is_reported {
            tracing::info!(stream = &*options.stream, queue, "queue consumed again");
        }
    }
}

/// Monitors the queue until a fault occurs, and returns the fault. There are three kinds of faults:
///
/// - The queue is missing, does not respond, or was deleted and declared again.
/// - The queue has messages and delivers none of them, although the consumer has room.
/// - A request to the broker fails for any other reason.
///
/// `is_marked` is true if the queue of a `sequenced` stream has a marker. Ends the interruption of a stalled queue at
/// the first delivery, or when the queue is empty.
pub(super) async fn monitor_queue(
    options: &ConsumerOptions,
    connection: &Connection,
    queue: &str,
    progress: &ConsumerProgress,
    is_marked: bool,
    interruption: &mut Interruption,
) -> QueueCheckError {
    tokio::select! {
        error = monitor_topology(options, connection, is_marked) => error,
        error = monitor_deliveries(options, connection, queue, progress, interruption) => error,
    }
}

/// Checks and restores the topology (exchange, form of the queue, and bindings) at intervals until a fault occurs, and
/// returns the fault. The first check begins immediately: the previous connection may have ended because the broker was
/// rebuilt, and a rebuilt broker may lack the topology.
async fn monitor_topology(
    options: &ConsumerOptions,
    connection: &Connection,
    is_marked: bool,
) -> QueueCheckError {
    let mut dropped_throttle = LogThrottle::new(DROPPED_WARN_INTERVAL);
    let mut schedule = RestoreSchedule::new();
    loop {
        match restore_topology(options, connection, &mut dropped_throttle, is_marked).await {
            Ok(missing) => sleep(schedule.next_delay(options, missing)).await,
            Err(error) => return error,
        }
    }
}

/// Checks the deliveries of the queue at intervals, as [`monitor_queue`] describes.
async fn monitor_deliveries(
    options: &ConsumerOptions,
    connection: &Connection,
    queue: &str,
    progress: &ConsumerProgress,
    interruption: &mut Interruption,
) -> QueueCheckError {
    let ConsumerOptions { broker, lag, .. } = options;
    let channel = match timeout(shortened(CHECK_TIMEOUT), connection.create_channel()).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return broker.error(&error).into(),
        Err(_) => return no_queue_answer(queue).into(),
    };
    let mut before = None;
    let mut silent_checks = 0;
    let mut shared_checks = 0;
    let mut shared_throttle = LogThrottle::new(SHARED_WARN_INTERVAL);
    loop {
        let counts = timeout(shortened(CHECK_TIMEOUT), queue_counts(&channel, queue)).await;
        let QueueCounts { ready, consumers } = match counts {
            Ok(Ok(counts)) => counts,
            Ok(Err(error)) => return broker.error(&error).into(),
            Err(_) => return no_queue_answer(queue).into(),
        };
        lag.set(Some(ready.into()));
        let received = progress.received();
        if interruption.stall().is_some() && (received > 0 || ready == 0) {
            interruption.end(options, queue);
        }
        let is_stalled = before == Some(received) && progress.has_room.load(Relaxed) && ready > 0;
        before = Some(received);
        silent_checks = if is_stalled { silent_checks + 1 } else { 0 };
        if silent_checks == SILENT_CHECK_LIMIT {
            let reason = format!(
                "the queue {queue:?} has {ready} messages and delivers none to this process; subscribing again. \
                 If this repeats, another consumer receives the messages: stop that consumer, or let it use another \
                 queue"
            );
            return QueueCheckError::Stalled(reason);
        }
        shared_checks = if consumers > 1 { shared_checks + 1 } else { 0 };
        if shared_checks >= SHARED_CHECK_LIMIT && shared_throttle.allow() {
            tracing::warn!(
                stream = &*options.stream,
                queue,
                consumers,
                "queue has another consumer: RabbitMQ delivers each message to only one consumer; stop the other \
                 consumer, or let it use another queue"
            );
        }
        sleep(shortened(CHECK_INTERVAL)).await;
    }
}

/// Logs each difference. In the consumer of partition 0, also restores the exchange with all bindings, and reports
/// dropped messages. Returns a binding whose queue or exchange is missing.
async fn restore_topology(
    options: &ConsumerOptions,
    connection: &Connection,
    dropped_throttle: &mut LogThrottle,
    is_marked: bool,
) -> Result<Option<MissingBinding>, QueueCheckError> {
    let ConsumerOptions { broker, topology, partition, .. } = options;
    let limit = shortened(CHECK_TIMEOUT);
    let mut missing = None;
    check_exchange_type(options).await;
    if *partition == 0 {
        // The owner of partition 0 restores the exchange, which all partitions share. If the restoration fails, the
        // next check repeats it.
        match restore_exchange(options).await {
            Ok(binding) => missing = binding,
            Err(error) => report_unchecked(options, &error),
        }
        let report = report_dropped(options, connection, dropped_throttle);
        if broker.within(limit, report).await.is_err() {
            options.dropped.set(None);
        }
    }
    // If the queue is missing and had no marker, this function must not declare the queue again. In a `fifo` stream,
    // the declaration would hide that the messages of the queue are lost. In a `sequenced` stream, RabbitMQ may move
    // the consumer to the new queue without delivering anything to the consumer. The error about the missing queue ends
    // the subscription. The next subscription of a `fifo` stream records the loss, and the next subscription of a
    // `sequenced` stream declares the queue.
    let may_declare = if options.is_fifo() {
        broker.within(limit, check_marker(options, connection)).await?
    } else {
        is_marked
    };
    let report = |change: &TopologyChange| record_change(options, change);
    let list = options.binding_list.as_ref();
    let restored =
        topology.restore_queue(broker, connection, *partition, may_declare, list, report);
    match broker.within(limit, restored).await {
        Ok(binding) => missing = missing.or(binding),
        // The connection of the consumer is open, so the stream continues.
        Err(error) if error.is_connection_refused() => report_unchecked(options, &error.into()),
        Err(error) => return Err(error.into()),
    }
    // Make this check after the declaration, because the declaration may have created a new queue.
    if is_marked {
        check_replaced(options, connection).await?;
    }
    Ok(missing)
}

/// Returns an error if the queue of a `sequenced` stream has lost its marker: the queue was deleted and declared again.
/// RabbitMQ may then have moved the consumer to the new queue. The new queue then assigns its messages to the consumer,
/// but the consumer never receives them.
async fn check_replaced(
    options: &ConsumerOptions,
    connection: &Connection,
) -> Result<(), BrokerError> {
    let ConsumerOptions { broker, topology, partition, .. } = options;
    let has_marker = topology.has_marker(broker, connection, *partition);
    if broker.within(shortened(CHECK_TIMEOUT), has_marker).await? {
        return Ok(());
    }
    let queue = topology.queue(*partition);
    Err(BrokerError::Unavailable(format!("the queue {queue:?} was deleted and declared again")))
}

/// Reports the messages that the broker has dropped from the stream's queues, for example because of a policy.
async fn report_dropped(
    options: &ConsumerOptions,
    connection: &Connection,
    throttle: &mut LogThrottle,
) -> Result<(), BrokerError> {
    let ConsumerOptions { broker, topology, stream, dropped, .. } = options;
    if !topology.is_declared() {
        return Ok(());
    }
    let messages = topology.dropped_messages(broker, connection).await?;
    dropped.set(messages.map(u64::from));
    if let Some(messages) = messages.filter(|messages| *messages > 0)
        && throttle.allow()
    {
        tracing::error!(
            stream = &**stream,
            messages,
            "broker has dropped messages of this stream, because its queues have a length limit, a message TTL or a \
             delivery limit. This limit comes from a policy, an argument or the default of RabbitMQ 4. The dropped \
             messages are in the queue whose name ends with .dropped. Remove the limit, then move these messages back \
             to the exchange"
        );
    }
    Ok(())
}

fn allows_line(throttle: &Mutex<LogThrottle>) -> bool {
    throttle.lock().unwrap_or_else(PoisonError::into_inner).allow()
}

/// Logs that the topology could not be checked. The topology itself may be as configured.
pub(super) fn report_unchecked(options: &ConsumerOptions, error: &TopologyError) {
    if allows_line(&options.unchecked_throttle) {
        tracing::warn!(
            stream = &*options.stream,
            "topology not checked: {error}; the stream continues, and Ordain repeats the check"
        );
    }
}

fn no_queue_answer(queue: &str) -> BrokerError {
    BrokerError::Unavailable(format!("the queue {queue:?} does not answer"))
}

/// Restores the exchange and its bindings, and updates the records of the markers. Logs and counts each difference,
/// even if a later step fails or exceeds the time limit. Records for all partitions of the stream in this process
/// whether the exchange has another type than the stream needs. Returns a binding whose queue or exchange is missing.
/// With `declare = false`, only checks that the exchanges exist.
pub(super) async fn restore_exchange(
    options: &ConsumerOptions,
) -> Result<Option<MissingBinding>, TopologyError> {
    let ConsumerOptions { broker, topology, stream, records, .. } = options;
    if !topology.is_declared() {
        check_exchanges(options).await?;
        return Ok(None);
    }
    options.exchange_fault.begin_check(Instant::now());
    let markers = ExchangeMarkers::new(records.store(), stream, topology);
    let before = with_store_timeout(markers.read()).await?;
    let mut marked = before.clone();
    let other_type = OnceLock::new();
    let report = |change: &TopologyChange| {
        if let TopologyChange::OtherExchangeType(reason) = change {
            // A restoration declares the exchange once, so it finds at most one other type.
            other_type.get_or_init(|| reason.clone());
        }
        record_change(options, change);
    };
    let list = options.binding_list.as_ref();
    let steps = topology.restore_exchange(broker, stream, &mut marked, list, report);
    let restored = broker.within(shortened(CHECK_TIMEOUT), steps).await;
    // A failed restoration may have ended before the declaration of the exchange, so its result does not show whether
    // the exchange has a fault.
    if restored.is_ok() {
        options.exchange_fault.set(other_type.into_inner());
    }
    if marked != before {
        with_store_timeout(markers.write(&marked)).await?;
    }
    restored.map_err(TopologyError::from)
}

/// Checks whether the exchange has the type that the stream needs, in the consumer of another partition than 0. Skips
/// the check if another consumer of this process has checked the exchange recently. A missing exchange is no fault,
/// because the consumer of partition 0 declares it. If the check fails, the next check repeats it.
async fn check_exchange_type(options: &ConsumerOptions) {
    let ConsumerOptions { broker, topology, stream, partition, exchange_fault, .. } = options;
    if *partition == 0 || !topology.is_declared() || !exchange_fault.begin_due_check(Instant::now())
    {
        return;
    }
    let checked = topology.other_exchange_type(broker, stream);
    let Ok(fault) = broker.within(shortened(CHECK_TIMEOUT), checked).await else { return };
    let reason = fault.clone();
    if exchange_fault.set(fault)
        && let Some(reason) = reason
    {
        tracing::error!(
            stream = &**stream,
            "topology not as configured: {reason}; the stream continues, but events may be lost or out of order"
        );
    }
}

/// Checks whether the exchanges exist, for a stream with `declare = false`. Logs all missing exchanges in one line, and
/// counts them as one change. Also logs if an exchange that was missing at the previous check now exists, because its
/// bindings may be missing.
async fn check_exchanges(options: &ConsumerOptions) -> Result<(), BrokerError> {
    let ConsumerOptions { broker, topology, stream, missing_exchanges, .. } = options;
    if topology.exchange().is_none() {
        return Ok(());
    }
    let checks = topology.missing_exchanges(broker, stream);
    let missing = broker.within(shortened(CHECK_TIMEOUT), checks).await?;
    if !missing.is_empty() {
        let exchanges = missing.iter().cloned().collect();
        record_change(options, &TopologyChange::ForeignExchangesMissing(exchanges));
    }
    let mut known = missing_exchanges.lock().unwrap_or_else(PoisonError::into_inner);
    for exchange in known.difference(&missing) {
        tracing::warn!(
            stream = &**stream,
            exchange,
            "exchange was missing: events that were published while it was missing are lost, so publish them again. \
             Ordain does not declare the bindings of the exchange, because the source has declare = false: check them \
             with `rabbitmqctl list_bindings`"
        );
    }
    *known = missing;
    Ok(())
}

/// Logs and counts a difference between the broker and the topology, or a refusal of the broker to declare or bind a
/// part of the topology. A difference or refusal counts even if a throttle suppresses its log line. A refused marker is
/// logged and does not count. The line "topology not as configured" does not always report a wrong form. The broker may
/// have refused a declaration because the user lacks a permission, although the queue or exchange is as configured.
pub(super) fn record_change(options: &ConsumerOptions, change: &TopologyChange) {
    let stream = &*options.stream;
    match change {
        TopologyChange::QueueMissing(queue) if options.topology.is_declared() => tracing::warn!(
            stream,
            queue,
            "queue missing: Ordain declares it again, with its bindings; the events of the old queue are lost, so \
             publish them again"
        ),
        TopologyChange::QueueMissing(queue) => tracing::warn!(
            stream,
            queue,
            "queue was missing, and exists again: Ordain did not declare it, because the source has declare = false; \
             the events of the old queue are lost, so publish them again"
        ),
        TopologyChange::QueueReplaced(queue) => tracing::warn!(
            stream,
            queue,
            "queue deleted and declared again by another program; the events of the old queue are lost, so publish \
             them again"
        ),
        TopologyChange::QueueLost(queue) => tracing::warn!(
            stream,
            queue,
            "queue removed while no process of Ordain consumed it: Ordain, or another program, declares it again; the \
             events that waited in the old queue are lost, so publish them again. {} prints the next sequence of each \
             key",
            PrintedCommand::new("keys list").argument(stream)
        ),
        TopologyChange::QueueUnidentified(queue) => tracing::error!(
            stream,
            queue,
            "subscription ended by the broker: Ordain subscribes again, but cannot detect whether another program has \
             removed the queue and declared it again. If a program has done this, the events of the old queue are \
             lost: publish again the events that have not taken effect"
        ),
        TopologyChange::ForeignExchangesMissing(exchanges) => {
            if allows_line(&options.topology_throttle) {
                tracing::error!(
                    stream,
                    exchanges = exchanges.join(", "),
                    "exchange missing: Ordain does not declare it, because the source has declare = false; events that \
                     are published while the exchange is missing are lost. Declare the exchange with its bindings, and \
                     publish the events again"
                );
            }
        }
        TopologyChange::ExchangeMissing(exchange) => tracing::warn!(
            stream,
            exchange,
            "exchange missing: declared again by Ordain, with its bindings; events that were published while the \
             exchange was missing are lost, so publish them again"
        ),
        TopologyChange::BindingMissing(binding) => {
            let described = options.topology.describe_missing_binding(binding);
            tracing::warn!(stream, "binding missing: {described}");
        }
        TopologyChange::ExchangeReplaced(exchange) => tracing::warn!(
            stream,
            exchange,
            "exchange removed and declared again by another program: Ordain declares its bindings again; events \
             published between the removal and now are lost, so publish them again"
        ),
        TopologyChange::ExchangeMarkerRefused { exchange, reason } => {
            report_refused_marker(options, exchange, reason);
            return;
        }
        TopologyChange::Refused(reason) | TopologyChange::OtherExchangeType(reason) => {
            if allows_line(&options.topology_throttle) {
                tracing::error!(
                    stream,
                    "topology not as configured: {reason}; the stream continues, but events may be lost or out of order"
                );
            }
        }
    }
    options.topology_changes.fetch_add(1, Relaxed);
}

/// Logs once for each exchange that the broker refuses the exchange's marker.
fn report_refused_marker(options: &ConsumerOptions, exchange: &str, reason: &str) {
    let mut refused = options.refused_markers.lock().unwrap_or_else(PoisonError::into_inner);
    if !refused.insert(exchange.to_owned()) {
        return;
    }
    // The declaration of the marker needs the right to configure the marker. The binding from the marker to the
    // exchange needs the rights to read the marker and to write to the exchange. If a stream has no `bind`, nothing
    // else needs the right to write to the stream's exchange, so a user may lack only this right.
    tracing::warn!(
        stream = &*options.stream,
        exchange,
        "exchange without a marker: the broker refused the marker ({reason}). Ordain cannot detect whether another \
         program removes the exchange and declares it again; messages that are published between the removal and the \
         declaration are lost. If a permission is missing, allow the user of `broker.url` to configure and read \
         exchanges whose names begin with the name of the queue, and to write to the exchange {exchange:?}. If an \
         exchange with the name of the marker has another form, delete it"
    );
}

struct QueueCounts {
    /// The number of messages that wait for delivery.
    ready: u32,
    /// The number of consumers, this process included.
    consumers: u32,
}

async fn queue_counts(channel: &Channel, queue: &str) -> lapin::Result<QueueCounts> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    Ok(QueueCounts { ready: found.message_count(), consumers: found.consumer_count() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While another fault lasts, such as a lost connection, the state of the source names that fault. When the other
    /// fault has passed, the state must name the stall.
    #[test]
    fn reason_of_a_stall_survives_other_errors() {
        let mut interruption = Interruption::default();
        assert_eq!(interruption.stall(), None);
        assert!(interruption.begin(&QueueCheckError::Stalled("held".to_owned())));
        assert!(!interruption.begin(&no_queue_answer("cases").into()));
        assert_eq!(interruption.stall(), Some("held"));
    }
}
