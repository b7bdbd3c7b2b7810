//! The parts from which a driver is built.

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

/// The parts from which [`Driver::run`](super::Driver::run) builds a driver. The start of a partition
/// (`run/partition_start.rs`) creates these parts.
pub struct DriverConfig {
    /// The claimed partition.
    pub partition: Partition,
    /// The claim by which the store recognises the owner of the partition, and the number of the newest commit in each
    /// shard.
    pub claimed: ClaimedPartition,
    /// The settings with which the driver creates the sequencer.
    pub settings: SequencerSettings,
    /// The store, which keeps all state of the partition.
    pub store: Arc<dyn Store>,
    /// The handler version that executes events, with notifications when the version changes.
    pub version: VersionWatcher,
    /// The queue for turns (runs of events of one key) that workers execute.
    pub turns: TurnQueueHandle,
    /// The channel on which the driver sends committed batches to the outbox publisher.
    pub publisher: mpsc::Sender<CommittedBatch>,
    /// The partition's data for the outbox publisher, including the ownership of the partition.
    pub handle: Arc<PartitionHandle>,
    /// Reports about messages that an earlier owner of the partition left in the outbox. The outbox publisher has sent
    /// these messages to the sinks. The store has not marked them as published yet.
    pub backlog: Vec<Input>,
    /// The channel on which other parts of the process, such as the workers and the outbox publisher, send completions
    /// to the driver.
    pub completions: mpsc::Receiver<Completion>,
    /// The running source, which delivers the events of the partition.
    pub source: SourceHandle,
    /// The inbox. It publishes to the broker the events that arrived over HTTP, or passes these events to the driver
    /// early. `None` if the stream has no inbox.
    pub inbox: Option<Inbox>,
    /// The replay sources, from which the driver requests missing events.
    pub replay: replay::ReplaySources,
    /// The name of the checkpoint from which the source resumes; `None` if the source cannot resume.
    pub checkpoint_name: Option<String>,
    /// `true` in a run with `--once`. The driver of such a run ends when the partition is idle
    /// ([`PartitionMetrics::is_idle`]) and `may_end` is `true`.
    pub once: bool,
    /// The permission for the driver to end; used only if `once` is `true`. The value is `false` while other partitions
    /// can still send events to this partition.
    pub may_end: watch::Receiver<bool>,
    /// The metrics that the driver updates.
    pub metrics: Arc<PartitionMetrics>,
}
