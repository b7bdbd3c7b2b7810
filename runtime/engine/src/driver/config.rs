//! The parts of which a driver is built.

use std::sync::Arc;

use ordain_core::{Input, SequencerSettings};
use tokio::sync::{mpsc, watch};

use super::PartitionMetrics;
use crate::completion::Completion;
use crate::replay;
use crate::sink::{CommittedBatch, PartitionHandle};
use crate::source::Inbox;
use ordain_cloudevents::SourceHandle;
use ordain_store::{ClaimedPartition, Partition, Store};
use ordain_wasm::{TurnQueueHandle, VersionWatcher};

/// The parts of which a driver is built.
pub struct DriverConfig {
    /// The claimed partition.
    pub partition: Partition,
    /// The claim and the numbers of the last commits.
    pub claimed: ClaimedPartition,
    /// The settings of the sequencer.
    pub settings: SequencerSettings,
    /// The store of all state.
    pub store: Arc<dyn Store>,
    /// The handler version that executes events, with its changes.
    pub version: VersionWatcher,
    /// The queue for turns.
    pub turns: TurnQueueHandle,
    /// The channel to the publisher.
    pub publisher: mpsc::Sender<CommittedBatch>,
    /// The partition's data for the publisher, with the ownership of the partition.
    pub handle: Arc<PartitionHandle>,
    /// Messages that an earlier process left in the outbox and that are being published.
    pub backlog: Vec<Input>,
    /// The channel from the workers and the publisher.
    pub completions: mpsc::Receiver<Completion>,
    /// The source of events.
    pub source: SourceHandle,
    /// Events received over HTTP that are not in the source's queue yet.
    pub inbox: Option<Inbox>,
    /// The replay sources for missing events.
    pub replay: replay::ReplaySources,
    /// The name of the source's checkpoint, if it can resume.
    pub checkpoint_name: Option<String>,
    /// `true` if the driver ends when the source has ended and everything is settled or held.
    pub once: bool,
    /// With `once`: `true` when the driver may end; `false` while other partitions may still send events.
    pub may_end: watch::Receiver<bool>,
    /// The figures that the driver updates.
    pub metrics: Arc<PartitionMetrics>,
}
