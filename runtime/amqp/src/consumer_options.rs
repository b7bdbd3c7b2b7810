//! The settings of a consumer. They have a module of their own because the parts of a consumer also use them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::connect::BrokerEndpoint;
use super::decode::DeliveryDecoder;
use super::prefetch::LastPrefetch;
use super::topology::Topology;
use ordain_store::Ownership;
use ordain_util::gauge::BacklogGauge;

/// The settings of a partition's consumer.
#[derive(Debug)]
pub struct ConsumerOptions {
    /// The broker of the queue.
    pub broker: Arc<BrokerEndpoint>,
    /// The exchange and queues of the stream.
    pub topology: Topology,
    /// The partition.
    pub partition: u32,
    /// The stream's name, for messages.
    pub stream: Arc<str>,
    /// Maximum number of unacknowledged deliveries.
    pub prefetch: u16,
    /// Approximate memory limit for deliveries that the receiver has not taken, in bytes. A `fifo` stream ignores it
    /// and always uses `prefetch`: with a smaller window, the messages that an earlier process returned would arrive in
    /// another order, and that order determines the sequences of the stream's events.
    pub memory: usize,
    /// The last window (maximum number of unacknowledged deliveries) to which a consumer of the stream in this process
    /// changed.
    pub last_prefetch: LastPrefetch,
    /// The decoder from deliveries to events.
    pub decoder: DeliveryDecoder,
    /// The ownership: the time in which this process may consume the queue. While the ownership is suspended, the
    /// consumer releases the queue.
    pub ownership: Arc<Ownership>,
    /// The gauge of the number of messages that wait in the queue.
    pub lag: Arc<BacklogGauge>,
    /// The number of times that an exchange, queue or binding was missing or different in the broker while the stream
    /// ran.
    pub topology_changes: Arc<AtomicU64>,
}
