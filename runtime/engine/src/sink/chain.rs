//! Messages that pass through the store on their way to a destination. The store numbers them, retains them for replay,
//! and queues them for a stream.
//!
//! Each destination has a task of its own, so that a blocked destination delays no other. A file has no task, because
//! its messages are written in the order of its marks. In each call, the task passes all messages to the store that
//! have arrived since the last call. It must keep the order of each outbox; the messages of different outboxes are
//! independent.

mod belt;
mod strand;

use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use super::content::SinkContent;
use super::{PartitionHandle, PublisherError};
use crate::source::QueueNotifiers;
use ordain_amqp::{ExchangeSink, PublishedCount};
use ordain_config::NumberingPolicy;
use ordain_store::{Destination, Store};

pub(super) use belt::SequenceAssigner;

/// A message on its way to a destination.
pub(super) struct OutboundMessage {
    /// The number of its commit.
    pub(super) commit: u64,
    pub(super) content: SinkContent,
    /// The index of the message's sink among the sinks of its destination, if the destination is an exchange.
    pub(super) exchange_index: usize,
}

/// The messages of a run for one destination.
pub(super) struct DestinationBatch {
    pub(super) run: u64,
    pub(super) handle: Arc<PartitionHandle>,
    pub(super) shard: u32,
    pub(super) messages: Vec<OutboundMessage>,
}

/// The number of each message of a batch; `None` if another owner has the partition now and publishes the message.
pub(super) type MessageNumbers = Vec<Option<u64>>;

/// The sink of a destination. It accepts the messages of all sinks with this destination, and the store numbers them
/// together, in the order of their outbox.
pub(crate) struct SequencedSink {
    destination: Destination,
    /// The messages of the run that is being gathered.
    gathered: Vec<OutboundMessage>,
    /// The channel to the task. The limit of the outbox also limits this channel, because the outbox has all its
    /// messages.
    input: UnboundedSender<DestinationBatch>,
    start: Option<(SequenceAssigner, UnboundedReceiver<DestinationBatch>)>,
}

impl SequencedSink {
    /// Creates the sink of a destination.
    pub(crate) fn new(
        passage: NumberingPolicy,
        store: &Arc<dyn Store>,
        feeds: &Arc<QueueNotifiers>,
    ) -> Self {
        let (input, taken) = mpsc::unbounded_channel();
        let to = passage.destination.clone();
        let belt = SequenceAssigner::new(passage, store, feeds);
        Self { destination: to, gathered: Vec::new(), input, start: Some((belt, taken)) }
    }

    pub(super) fn has_destination(&self, to: &Destination) -> bool {
        self.destination == *to
    }

    /// Adds a sink that is an exchange, before the task starts. Returns its index among the exchanges.
    pub(super) fn add_exchange(&mut self, exchange: ExchangeSink) -> usize {
        let Some((belt, _)) = &mut self.start else { return 0 };
        belt.add_exchange(exchange)
    }

    /// Starts the task of the destination, and the tasks of its exchanges.
    pub(super) fn start(
        &mut self,
        tasks: &mut JoinSet<Result<(), PublisherError>>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let Some((mut belt, taken)) = self.start.take() else { return };
        belt.start_exchanges(tasks, published);
        tasks.spawn(belt.run(taken, published.clone()));
    }

    pub(super) fn put(&mut self, passing: OutboundMessage) {
        self.gathered.push(passing);
    }

    /// Sends the gathered messages to the task, as the messages of a run.
    pub(super) fn send(&mut self, run: u64, target: &Arc<PartitionHandle>, shard: u32) {
        if !self.gathered.is_empty() {
            let target = Arc::clone(target);
            let passing = std::mem::take(&mut self.gathered);
            // The task ends early only if it fails, and the `JoinSet` that has the task reports the failure.
            let _ =
                self.input.send(DestinationBatch { run, handle: target, shard, messages: passing });
        }
    }
}
