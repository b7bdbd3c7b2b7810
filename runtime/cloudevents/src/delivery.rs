//! Deliveries: the interface between a source and the driver of a partition.

use ordain_core::{DeadLetter, Event};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub use ordain_store::checkpoint::{FilePosition, ReadFingerprint, SourceProgress};

/// A delivery: an event, or the dead letter of data that is not a valid event.
pub type DecodedDelivery = Result<Event, Box<DeadLetter>>;

/// A batch of deliveries.
#[derive(Debug, Default)]
pub struct DeliveryBatch {
    /// The number of the subscription that delivered the batch; 0 for a source without subscriptions. A new
    /// subscription redelivers the events that were unacknowledged when the earlier subscription ended.
    pub subscription_epoch: u64,
    /// The deliveries, in order, each with the position in the file after that delivery. Sources that read no file give
    /// a default position.
    pub items: Vec<(DecodedDelivery, FilePosition)>,
    /// The progress in the files of the source after the last delivery of the batch; `None` for standard input and for
    /// a source that reads no files.
    pub progress: Option<SourceProgress>,
    /// The new limit of unacknowledged events; `None` if the limit has not changed.
    pub prefetch: Option<usize>,
    /// True if the source has ended, so that no batch follows.
    pub end: bool,
}

/// Number of batches that a source reads ahead, so that the source reads the next batch while the driver processes the
/// previous one.
pub const READ_AHEAD_BATCHES: usize = 2;
/// Maximum number of deliveries in a batch.
pub const BATCH_EVENTS_LIMIT: usize = 256;
/// Approximate size limit of a batch, in bytes. A batch has at least one delivery, which may be larger than the limit.
pub const BATCH_BYTES_LIMIT: usize = 1 << 20;

/// The acknowledged deliveries of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AckProgress {
    /// The number of the subscription, as in [`DeliveryBatch::subscription_epoch`].
    pub subscription_epoch: u64,
    /// The number up to which all deliveries of the subscription are acknowledged. The first delivery of a subscription
    /// has the number 1.
    pub through: u64,
}

/// A running source, as the driver of a partition sees it.
#[derive(Debug)]
pub struct SourceHandle {
    /// The channel of the deliveries. The channel closes when the source ends. If the source has failed, `failure` has
    /// the error.
    pub deliveries: mpsc::Receiver<DeliveryBatch>,
    /// The error that ended the source early.
    pub failure: oneshot::Receiver<std::io::Error>,
    /// The channel that passes acknowledgements to the source; `None` for a file and for standard input, which need no
    /// acknowledgements. The source ends when the sender is dropped.
    pub acknowledge: Option<watch::Sender<AckProgress>>,
    /// Completes when the source has processed the last acknowledgement and has ended; `None` for a file and for
    /// standard input.
    pub task: Option<JoinHandle<()>>,
    /// True if every writer adds the events of each key to the queue of the source in order and without gaps. A missing
    /// event then never arrives after a later event.
    pub is_fed_locally: bool,
}
