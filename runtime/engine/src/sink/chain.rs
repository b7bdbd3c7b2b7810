//! Messages that pass through the store before they go on: to be numbered, to be kept for replay, to
//! wait for a stream.
//!
//! Each destination is a task, so that one that stands holds up nothing else; a file has none, since what
//! is written there is in the order of its marks. What has come together is given to the store together:
//! of each outbox in its order, different ones side by side.

mod belt;
mod strand;

use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use super::content::Content;
use super::{PublisherError, Target};
use crate::source::Feeds;
use ordain_amqp::{AmqpSink, Published};
use ordain_config::Passage;
use ordain_store::{Destination, Store};

pub(super) use belt::Belt;

/// A message on its way.
pub(super) struct Passing {
    /// The number of its commit.
    pub(super) commit: u64,
    pub(super) content: Content,
    /// Which of the sinks of its destination it goes to, where they are exchanges.
    pub(super) via: usize,
}

/// Messages of a run.
pub(super) struct Batch {
    pub(super) run: u64,
    pub(super) target: Arc<Target>,
    pub(super) shard: u32,
    pub(super) passing: Vec<Passing>,
}

/// The numbers of a batch's messages; `None`: another owner has gone on, and publishes it.
pub(super) type Numbers = Vec<Option<u64>>;

/// Takes messages for a destination, of all sinks that lead there: they are numbered together, in the order
/// of their outbox.
pub(crate) struct ChainSink {
    to: Destination,
    /// Of the run that is being gathered.
    gathered: Vec<Passing>,
    /// What waits here is of the outbox, which has a limit.
    input: UnboundedSender<Batch>,
    start: Option<(Belt, UnboundedReceiver<Batch>)>,
}

impl ChainSink {
    /// To this destination.
    pub(crate) fn new(passage: Passage, store: &Arc<dyn Store>, feeds: &Arc<Feeds>) -> Self {
        let (input, taken) = mpsc::unbounded_channel();
        let to = passage.to.clone();
        let belt = Belt::new(passage, store, feeds);
        Self { to, gathered: Vec::new(), input, start: Some((belt, taken)) }
    }

    pub(super) fn is_to(&self, to: &Destination) -> bool {
        self.to == *to
    }

    /// Adds a sink that is an exchange; answers which one it is here. Before the start.
    pub(super) fn add_exchange(&mut self, exchange: AmqpSink) -> usize {
        let Some((belt, _)) = &mut self.start else { return 0 };
        belt.add_exchange(exchange)
    }

    /// Starts the task, and those of its exchanges.
    pub(super) fn start(
        &mut self,
        tasks: &mut JoinSet<Result<(), PublisherError>>,
        published: &UnboundedSender<Published>,
    ) {
        let Some((mut belt, taken)) = self.start.take() else { return };
        belt.start_exchanges(tasks, published);
        tasks.spawn(belt.run(taken, published.clone()));
    }

    pub(super) fn put(&mut self, passing: Passing) {
        self.gathered.push(passing);
    }

    /// Lets what was taken go, as the messages of a run.
    pub(super) fn send(&mut self, run: u64, target: &Arc<Target>, shard: u32) {
        if !self.gathered.is_empty() {
            let (target, passing) = (Arc::clone(target), std::mem::take(&mut self.gathered));
            // A task that has ended has failed, and is noticed where it was started.
            let _ = self.input.send(Batch { run, target, shard, passing });
        }
    }
}
