//! The settings of a consumer, apart from it since its parts need them too.

use std::sync::Arc;

use super::connect::Broker;
use super::decode::Decoder;
use super::topology::Topology;
use super::window::LastWindow;
use ordain_store::Tenure;
use ordain_util::gauge::Waiting;

/// The settings of a partition's consumer.
#[derive(Debug)]
pub struct ConsumerOptions {
    /// Where the queue is.
    pub broker: Arc<Broker>,
    /// What the stream needs there.
    pub topology: Topology,
    /// The partition.
    pub partition: u32,
    /// The stream, as it is named in messages.
    pub stream: Arc<str>,
    /// Deliveries that are not acknowledged, at most.
    pub prefetch: u16,
    /// What those that are not taken yet may take of memory, in bytes, about. A `fifo` stream has
    /// `prefetch` ahead whatever that takes: a smaller window would bring what an earlier process
    /// gave back in another order, and by that order its events are numbered.
    pub memory: usize,
    /// The last one that a consumer of the stream in this process found right.
    pub last_window: LastWindow,
    /// Makes events of them.
    pub decoder: Decoder,
    /// In which it is consumed. While that is suspended the queue is given back.
    pub tenure: Arc<Tenure>,
    /// Where it is shown how many messages wait in the queue.
    pub lag: Arc<Waiting>,
}
