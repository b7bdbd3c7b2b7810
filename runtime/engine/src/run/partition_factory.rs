//! The parts of the process that the start of a partition uses.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::management::ManagementApi;
use crate::replay;
use crate::sink::{CommittedBatch, PublisherCommand};
use crate::source::QueueNotifiers;
use ordain_amqp::{BrokerEndpoint, ExchangeFault, LastPrefetch, TopologyGate};
use ordain_config::LoadedConfig;
use ordain_store::Store;
use ordain_wasm::{HandlerRegistry, WorkerPool};

/// The consumers of a stream in this process share these values.
#[derive(Debug, Default, Clone)]
pub(super) struct StreamConsumers {
    /// The newest prefetch (maximum number of unacknowledged deliveries) of the consumers.
    pub(super) last_prefetch: LastPrefetch,
    pub(super) exchange_fault: Arc<ExchangeFault>,
}

pub(super) struct PartitionFactory<'a> {
    pub(super) loaded: &'a LoadedConfig,
    pub(super) once: bool,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) pool: &'a WorkerPool,
    pub(super) handlers: &'a Arc<HandlerRegistry>,
    pub(super) broker: Option<Arc<BrokerEndpoint>>,
    /// The tag of the consumers of this process in the broker; empty without a broker.
    pub(super) consumer_tag: Arc<str>,
    pub(super) management: Option<Arc<ManagementApi>>,
    pub(super) replay_limits: replay::ReplayLimits,
    /// The notifiers of the queues that this process reads or adds events to.
    pub(super) notifiers: Arc<QueueNotifiers>,
    /// Becomes true when idle partitions are allowed to end; used only with `once`.
    pub(super) may_end: watch::Sender<bool>,
    pub(super) consumers: RefCell<BTreeMap<Arc<str>, StreamConsumers>>,
    /// A gate is closed while the broker refuses the topology of a new stream.
    pub(super) gates: BTreeMap<Arc<str>, TopologyGate>,
    pub(super) committed_batches: mpsc::Sender<CommittedBatch>,
    pub(super) publisher_commands: mpsc::Sender<PublisherCommand>,
}

impl PartitionFactory<'_> {
    pub(super) fn gate(&self, stream: &str) -> TopologyGate {
        // The preparation of the broker creates the gate of each stream with a source in the broker.
        let accepted = || TopologyGate::new(None).1;
        self.gates.get(stream).cloned().unwrap_or_else(accepted)
    }
}
