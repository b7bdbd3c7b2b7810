//! Prepares the topology (exchange, queues and bindings) of a stream at the start of a process, and records the
//! bindings in the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapin::Connection;
use ordain_store::{QueueRecords, StoreError};

use super::connect::{BrokerEndpoint, BrokerError};
use super::fifo_queue::record_lost_queues;
use super::store_timeout::with_store_timeout;
use super::topology::{BindingList, Topology};
use super::topology_record::{Binding, ExchangeMarkers, TopologyRecord};

/// Time limit for opening a sink, and for the preparation of a new stream's topology.
pub const PREPARE_TIMEOUT: Duration = Duration::from_mins(2);
/// Additional time limit for each partition of a stream. A preparation needs about ten round trips for each partition,
/// so a stream with the maximum number of partitions needs thousands of round trips.
const PARTITION_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit for the requests about one queue of a stream at a start. After this time, the start continues without the
/// queue, because the queue may never answer. The limit applies to each queue separately, so a stream with many
/// partitions does not exceed it as long as each queue answers.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the time limit for the preparation of a stream's topology.
pub fn prepare_timeout(topology: &Topology) -> Duration {
    PREPARE_TIMEOUT + PARTITION_TIMEOUT * topology.partitions()
}

/// The reason why the topology of a stream cannot be prepared or restored.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The broker refused a request, or is unavailable.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store, which has the records of queues and bindings, failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TopologyError {
    /// Returns whether a retry may succeed without a change of the configuration.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Broker(error) => error.may_pass(),
            Self::Store(error) => matches!(error, StoreError::Unavailable(_)),
        }
    }
}

/// The findings of the preparation of a stream's topology.
#[derive(Debug, Default)]
pub struct PreparedTopology {
    /// The queues that were declared without a delivery limit under RabbitMQ 3, and that now have the default limit of
    /// RabbitMQ 4.
    pub limited_queues: Vec<String>,
    /// The bindings of earlier configurations that may still deliver messages.
    pub former_bindings: BTreeSet<Binding>,
    /// The error because of which the topology was not prepared: the broker refused a declaration or check, or a queue
    /// cannot be used now. The error concerns only this stream. If the stream has run before, it starts nevertheless,
    /// and its consumers retry, because an operator may be about to restore the queue or exchange. A new stream must
    /// consume nothing until a later preparation succeeds.
    pub error: Option<BrokerError>,
}

/// Declares or checks the exchange, queues and bindings of a stream. With `is_fifo`, first records which queues are
/// lost (removed since the stream consumed them). Logs if the stream's exchange had a marker and is now missing. Also
/// logs if the stream's exchange or an exchange of `bind` was removed and declared again since the previous check.
/// `is_known` states whether the stream has run before. If the stream has not run before, and the broker accepts the
/// stream, this function records the acceptance in the field [`TopologyRecord::awaits_acceptance`]. A refusal leaves
/// this field unchanged, because the broker may have accepted the stream for another process. Two faults are findings
/// ([`PreparedTopology::error`]) and not errors. One fault is a refusal of the broker, such as a missing permission or
/// a queue in another form. The other fault is a queue that cannot be used now, for example because its node has
/// stopped. If the broker refuses the connection for a new stream, this function returns an error, because the refusal
/// concerns the whole process. If the stream has run before, this function also logs the bindings of earlier runs that
/// are missing according to `list`.
pub async fn prepare_topology(
    topology: &Topology,
    broker: &BrokerEndpoint,
    records: &QueueRecords,
    is_fifo: bool,
    is_known: bool,
    list: Option<&Arc<dyn BindingList>>,
) -> Result<PreparedTopology, TopologyError> {
    let store = records.store();
    let stream = records.stream();
    let connection = broker.connect(&format!("ordain {stream}")).await?;
    let earlier = with_store_timeout(TopologyRecord::read(store, stream)).await?;
    // Write the record before the declarations, so that a crash never leaves a binding that no record names.
    let recorded = TopologyRecord::update(store, stream, |record| {
        if topology.is_declared() {
            record.replace_bindings(topology.bindings());
        }
    });
    let record = with_store_timeout(recorded).await?;
    // If the stream has run before, its consumers repeat the preparation, so the stream can start although this
    // preparation failed. The caller repeats the preparation of a new stream.
    let is_finding = |error: &BrokerError| {
        concerns_only_stream(error, &connection) && (is_known || !error.is_connection_refused())
    };
    let markers = ExchangeMarkers::new(store, stream, topology);
    let inspected = async {
        if is_fifo {
            record_lost_queues(topology, broker, &connection, records).await?;
        }
        let marked = with_store_timeout(markers.read()).await?;
        let replaced = topology.replaced_exchanges(broker, &connection, &marked).await?;
        let has_marker = topology.exchange().is_some_and(|exchange| marked.contains(exchange));
        let is_exchange_missing =
            has_marker && topology.is_exchange_missing(broker, &connection).await?;
        Ok::<_, TopologyError>((marked, replaced, is_exchange_missing))
    };
    let (mut marked, replaced, is_exchange_missing) = match inspected.await {
        // If a check failed, return before the declarations below. Without a record of the lost queues and exchanges,
        // these declarations could hide a loss. From RabbitMQ 4.3 on, the checks need the same rights as the
        // declarations.
        Err(TopologyError::Broker(error)) if is_finding(&error) => {
            restore_record(records, topology, is_known, &earlier).await?;
            let error = Some(error);
            let former_bindings = record.former;
            return Ok(PreparedTopology { former_bindings, error, ..PreparedTopology::default() });
        }
        inspected => inspected?,
    };
    if topology.is_declared() {
        // A missing or replaced exchange has lost all its bindings. The log then names only the exchange.
        let mut needed = topology.bindings_without(&replaced);
        needed.retain(|binding| {
            is_known && !is_exchange_missing && earlier.bindings.contains(binding)
        });
        log_missing_bindings(topology, broker, &connection, stream, list, needed).await;
    }
    let declared = topology.declare_objects(broker, &connection, is_known, QUEUE_TIMEOUT).await;
    let prepared = match declared {
        Ok((limited, other_form, channel)) => {
            topology.bind(broker, channel).await.map(|()| (limited, other_form))
        }
        Err(error) => {
            restore_record(records, topology, is_known, &earlier).await?;
            Err(error)
        }
    };
    let (limited_queues, error) = match prepared {
        Ok(prepared) => prepared,
        Err(error) if is_finding(&error) => (Vec::new(), Some(error)),
        Err(error) => return Err(error.into()),
    };
    // The declarations are done, so an error of the connection does not matter.
    let _ = connection.close(200, "done".into()).await;
    if is_exchange_missing {
        tracing::warn!(
            stream = &**stream,
            "exchange missing at this start, although an earlier process declared it: events published while it was \
             missing are lost, so publish them again"
        );
    }
    for exchange in &replaced {
        tracing::warn!(
            stream = &**stream,
            exchange,
            "another program removed the exchange and declared it again while no process of Ordain checked it. Ordain \
             declares the bindings again. Events that were published since the removal are lost: publish them again"
        );
    }
    let missing = topology.exchange().filter(|_| is_exchange_missing);
    let unmarked: Vec<&str> = replaced.iter().map(String::as_str).chain(missing).collect();
    if !unmarked.is_empty() {
        // A marker is an exchange that the broker deletes together with the marked exchange. Record that the markers
        // are missing, so that the next check of the topology declares the markers again. This write follows the log
        // lines, because with the new records no later start can detect that the exchanges were missing or replaced.
        marked.retain(|exchange| !unmarked.contains(&exchange.as_str()));
        with_store_timeout(markers.write(&marked)).await?;
    }
    if error.is_none() && !is_known {
        let accepted = |record: &mut TopologyRecord| record.awaits_acceptance = false;
        with_store_timeout(TopologyRecord::update(store, stream, accepted)).await?;
    }
    Ok(PreparedTopology { limited_queues, former_bindings: record.former, error })
}

/// Restores the earlier record of a new stream, after a preparation that failed before it declared the first binding.
/// Without this step, the record would name bindings that Ordain never declared. A later change of the configuration
/// would turn them into former bindings, and Ordain would advise the operator to remove them. But another program may
/// have declared these bindings.
async fn restore_record(
    records: &QueueRecords,
    topology: &Topology,
    is_known: bool,
    earlier: &TopologyRecord,
) -> Result<(), StoreError> {
    if is_known {
        return Ok(());
    }
    let bindings = topology.bindings();
    let restored = TopologyRecord::update(records.store(), records.stream(), |record| {
        record.restore_bindings(&bindings, earlier);
    });
    with_store_timeout(restored).await.map(drop)
}

/// Returns whether an error concerns only the topology of one stream. Such an error is a refusal of the broker, or a
/// missing answer to a request about a queue or exchange although the connection is open.
fn concerns_only_stream(error: &BrokerError, connection: &Connection) -> bool {
    match error {
        BrokerError::Refused { .. } => true,
        BrokerError::LoginRefused { .. } => false,
        BrokerError::Unavailable(_) => connection.status().connected(),
    }
}

/// Logs the bindings of `needed` that are missing, before the caller declares them again.
async fn log_missing_bindings(
    topology: &Topology,
    broker: &BrokerEndpoint,
    connection: &Connection,
    stream: &str,
    list: Option<&Arc<dyn BindingList>>,
    needed: BTreeSet<Binding>,
) {
    for binding in topology.missing_bindings(broker, connection, list, needed).await {
        tracing::warn!(
            stream,
            "binding missing at this start, although an earlier process declared it: {}",
            topology.describe_missing_binding(&binding)
        );
    }
}
