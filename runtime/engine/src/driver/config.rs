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
    /// The claim, with which the store recognises the owner of the partition, and the numbers of the last commits.
    pub claimed: ClaimedPartition,
    /// The settings of the sequencer.
    pub settings: SequencerSettings,
    /// The store of all state.
    pub store: Arc<dyn Store>,
    /// The handler version that executes events, with notifications when it changes.
    pub version: VersionWatcher,
    /// The queue for turns (runs of events of one key) that workers execute.
    pub turns: TurnQueueHandle,
    /// The channel to the publisher.
    pub publisher: mpsc::Sender<CommittedBatch>,
    /// The partition's data for the publisher, with the ownership of the partition.
    pub handle: Arc<PartitionHandle>,
    /// Messages that an earlier process left unpublished in the outbox and that the publisher is publishing.
    pub backlog: Vec<Input>,
    /// The channel from the workers and the publisher.
    pub completions: mpsc::Receiver<Completion>,
    /// The source of events.
    pub source: SourceHandle,
    /// The events received over HTTP that are not in the source's queue yet. `None` if the stream does not receive such
    /// events.
    pub inbox: Option<Inbox>,
    /// The replay sources for missing events.
    pub replay: replay::ReplaySources,
    /// The name of the checkpoint from which the source resumes; `None` if the source cannot resume.
    pub checkpoint_name: Option<String>,
    /// `true` if the driver ends when the source has ended and every event is settled or held in the store.
    pub once: bool,
    /// Used only if `once` is `true`. `true` when the driver may end; `false` while other partitions may still send
    /// events.
    pub may_end: watch::Receiver<bool>,
    /// The figures that the driver updates.
    pub metrics: Arc<PartitionMetrics>,
}
