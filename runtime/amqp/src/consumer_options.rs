//! The settings of a consumer. The settings have their own module, because several modules of the consumer use them.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::connect::BrokerEndpoint;
use super::decode::DeliveryDecoder;
use super::exchange_fault::ExchangeFault;
use super::prefetch::LastPrefetch;
use super::topology::{BindingList, Topology};
use super::topology_gate::TopologyGate;
use ordain_core::OrderingMode;
use ordain_store::{Ownership, QueueRecords};
use ordain_util::gauge::BacklogGauge;
use ordain_util::log_throttle::LogThrottle;
use ordain_util::source_health::SourceHealth;
use ordain_util::wait::shortened;

/// The settings of a partition's consumer.
#[derive(Debug)]
pub struct ConsumerOptions {
    /// The broker of the queue.
    pub broker: Arc<BrokerEndpoint>,
    /// The exchange and queues of the stream.
    pub topology: Topology,
    /// The partition whose queue the consumer consumes.
    pub partition: u32,
    /// The name of the stream to which the queue belongs.
    pub stream: Arc<str>,
    /// The configured maximum number of unacknowledged deliveries. If this number of deliveries needs more memory than
    /// `memory` allows, the consumer uses a lower number.
    pub prefetch: u16,
    /// Approximate memory limit for deliveries that the receiver has not taken, in bytes. A `fifo` stream ignores this
    /// limit and always uses `prefetch`. In a `fifo` stream, the order of delivery determines the sequences of the
    /// events. If the consumer used a lower number than an earlier process, the broker would redeliver the messages of
    /// that process in another order.
    pub memory: usize,
    /// The number of consecutive unreadable messages after which the consumer stops and leaves them in the queue. With
    /// the value 0, each unreadable message immediately becomes a dead letter.
    pub unreadable_limit: usize,
    /// The newest prefetch (maximum number of unacknowledged deliveries) that a consumer of the stream chose in this
    /// process.
    pub last_prefetch: LastPrefetch,
    /// The tag of the consumer in the broker. See [`consumer_tag`](super::consumer_tag::consumer_tag).
    pub consumer_tag: Arc<str>,
    /// The decoder that converts deliveries into events.
    pub decoder: DeliveryDecoder,
    /// The gate that holds the consumer back while the broker refuses the topology of a new stream.
    pub gate: TopologyGate,
    /// The fault of the stream's exchange, which all consumers of the stream in this process share.
    pub exchange_fault: Arc<ExchangeFault>,
    /// The right of this process to consume the queue. While the ownership is suspended, the consumer releases the
    /// queue.
    pub ownership: Arc<Ownership>,
    /// The gauge of the number of messages that wait in the queue.
    pub lag: Arc<BacklogGauge>,
    /// The gauge of the number of messages that the broker has dropped from the stream's queues. Only the consumer of
    /// partition 0 sets this gauge.
    pub dropped: Arc<BacklogGauge>,
    /// The records of the stream's queues. The consumer of partition 0 also uses the store of these records, to read
    /// and write the records of the exchanges' markers.
    pub records: QueueRecords,
    /// The throttle for the errors about refused declarations and bindings. See [`topology_throttle`].
    pub topology_throttle: Mutex<LogThrottle>,
    /// The throttle for the warnings about a topology that was not checked. See [`topology_throttle`].
    pub unchecked_throttle: Mutex<LogThrottle>,
    /// The exchanges whose refused markers the log has already reported.
    pub refused_markers: Mutex<BTreeSet<String>>,
    /// With `declare = false`: the exchanges that were missing at the newest check.
    pub missing_exchanges: Mutex<BTreeSet<String>>,
    /// The list of the broker's bindings, which shows missing bindings; `None` if the configuration names no management
    /// API of the broker.
    pub binding_list: Option<Arc<dyn BindingList>>,
    /// The state of the consumer, for status reports.
    pub health: Arc<SourceHealth>,
    /// The number of differences that this process found in the broker while the stream ran. The number counts each
    /// missing or replaced exchange or queue, each missing binding, and each queue that was possibly replaced. The
    /// number also counts each refusal of the broker to declare or bind an exchange or a queue.
    pub topology_changes: Arc<AtomicU64>,
}

/// Approximate time between two errors about a refused declaration or binding, or between two warnings about a topology
/// that was not checked. This time equals the interval between two checks of the topology.
const TOPOLOGY_ERROR_INTERVAL: Duration = Duration::from_mins(1);

/// Creates a throttle for the errors about refused declarations and bindings, or for the warnings about a topology that
/// was not checked. The throttle suppresses lines for half of `TOPOLOGY_ERROR_INTERVAL`, so that it allows one line in
/// each check of the topology.
pub fn topology_throttle() -> Mutex<LogThrottle> {
    Mutex::new(LogThrottle::new(shortened(TOPOLOGY_ERROR_INTERVAL) / 2))
}

impl ConsumerOptions {
    /// Returns whether the order of the queue determines the sequences of the events.
    pub(super) fn is_fifo(&self) -> bool {
        self.decoder.ordering == OrderingMode::Fifo
    }
}
