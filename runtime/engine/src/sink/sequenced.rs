//! Messages that pass through the store on their way to a destination (an exchange, a stream or a file). If the
//! destination needs numbers, the store numbers these messages and retains them for replay. If the destination is a
//! stream, the store also puts the messages into the stream's queue.
//!
//! Each exchange and each stream has a task of its own, so that a blocked destination delays no other destination. A
//! file has no task: the outbox publisher itself writes the messages of a file, in the order of the file's marks. While
//! a call of a task to the store runs, new messages wait in the channel of the task. The task passes these messages to
//! the store in its next call. A task must keep the order of the messages of each outbox. The messages of different
//! outboxes are independent.

mod assigner;
mod cursor;

use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use super::content::SinkContent;
use super::{PartitionHandle, PublisherError};
use crate::source::QueueNotifiers;
use ordain_amqp::{ExchangeSink, PublishedCount};
use ordain_config::NumberingPolicy;
use ordain_store::{Destination, Store};

pub(super) use assigner::SequenceAssigner;

pub(super) struct OutboundMessage {
    pub(super) commit: u64,
    pub(super) content: SinkContent,
    /// The index of the message's sink among the sinks of the destination's exchange; 0 for another destination.
    pub(super) exchange_index: usize,
}

/// The messages of one run for one destination. A run contains messages of one shard of a partition. In one write, the
/// store marks all messages of a run as published.
pub(super) struct DestinationBatch {
    pub(super) run: u64,
    pub(super) handle: Arc<PartitionHandle>,
    pub(super) shard: u32,
    pub(super) messages: Vec<OutboundMessage>,
}

/// The number of each message of a batch; 0 if the store does not number messages of the destination. `None` if this
/// process has lost or given up the partition; the next owner then publishes the message.
pub(super) type MessageNumbers = Vec<Option<u64>>;

/// The collector of the messages of all configured sinks that have the same destination. One task passes these messages
/// to the store, and keeps the order of the messages of each outbox.
pub(crate) struct SequencedSink {
    destination: Destination,
    gathered: Vec<OutboundMessage>,
    /// The channel to the task. The limit of the outbox also limits this channel, because all messages of the channel
    /// are also in the outbox.
    input: UnboundedSender<DestinationBatch>,
    start: Option<(SequenceAssigner, UnboundedReceiver<DestinationBatch>)>,
}

impl SequencedSink {
    pub(crate) fn new(
        policy: NumberingPolicy,
        store: &Arc<dyn Store>,
        notifiers: &Arc<QueueNotifiers>,
    ) -> Self {
        let (input, batches) = mpsc::unbounded_channel();
        let destination = policy.destination.clone();
        let assigner = SequenceAssigner::new(policy, store, notifiers);
        Self { destination, gathered: Vec::new(), input, start: Some((assigner, batches)) }
    }

    pub(super) fn has_destination(&self, destination: &Destination) -> bool {
        self.destination == *destination
    }

    /// Adds an exchange as a sink, before the task starts. Returns the index of the sink among the exchanges.
    pub(super) fn add_exchange(&mut self, exchange: ExchangeSink) -> usize {
        let Some((assigner, _)) = &mut self.start else { return 0 };
        assigner.add_exchange(exchange)
    }

    pub(super) fn start(
        &mut self,
        tasks: &mut JoinSet<Result<(), PublisherError>>,
        published: &UnboundedSender<PublishedCount>,
    ) {
        let Some((mut assigner, batches)) = self.start.take() else { return };
        assigner.start_exchanges(tasks, published);
        tasks.spawn(assigner.run(batches, published.clone()));
    }

    pub(super) fn put(&mut self, message: OutboundMessage) {
        self.gathered.push(message);
    }

    /// Sends the gathered messages to the task as the messages of run `run`.
    pub(super) fn send(&mut self, run: u64, handle: &Arc<PartitionHandle>, shard: u32) {
        if !self.gathered.is_empty() {
            let handle = Arc::clone(handle);
            let messages = std::mem::take(&mut self.gathered);
            // The task ends early only if it fails, and the `JoinSet` that has the task reports the failure.
            let _ = self.input.send(DestinationBatch { run, handle, shard, messages });
        }
    }
}
