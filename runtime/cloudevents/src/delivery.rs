//! Deliveries: what a source hands to the driver of a partition, and what the driver answers.

use ordain_core::{DeadLetter, Event};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub use ordain_store::checkpoint::{Position, Print};

/// One delivery: an event, or what was delivered instead of one.
pub type Delivered = Result<Event, Box<DeadLetter>>;

/// Deliveries with the position behind each.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// The connection that they came over. What came over an earlier one and is not acknowledged
    /// comes again.
    pub generation: u64,
    /// In order.
    pub items: Vec<(Delivered, Position)>,
    /// What was read of the file up to the last of them; `None` of standard input.
    pub print: Option<Print>,
    /// How many may be unacknowledged from now on, where that has changed.
    pub window: Option<usize>,
    /// Nothing comes after them.
    pub end: bool,
}

/// Batches of deliveries that are read ahead of the sequencer: one is taken while one is read.
pub const READ_AHEAD: usize = 2;
/// Deliveries in a batch.
pub const BATCH_EVENTS: usize = 256;
/// Bytes in a batch, about: one delivery is always taken.
pub const BATCH_BYTES: usize = 1 << 20;

/// How far a connection's deliveries are done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acknowledged {
    /// The connection.
    pub generation: u64,
    /// So many of its deliveries, from its first on.
    pub through: u64,
}

/// A running source.
#[derive(Debug)]
pub struct Source {
    /// What it delivers. The channel closes when the source failed; `failure` then tells why.
    pub deliveries: mpsc::Receiver<Deliveries>,
    /// Why it ended before its end.
    pub failure: oneshot::Receiver<std::io::Error>,
    /// Where it is told how far its deliveries are done with, if it keeps that itself. Dropped, it
    /// ends.
    pub acknowledge: Option<watch::Sender<Acknowledged>>,
    /// Ends when it has written what it last received.
    pub ended: Option<JoinHandle<()>>,
    /// Whether what it delivers comes from streams of this process, in order and without gaps. It has
    /// no end of its own.
    pub is_fed_from_here: bool,
}
