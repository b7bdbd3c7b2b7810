//! Everything that a sequencer can ask for.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::event::{Delivery, Key};
use crate::job::{Applied, Batch};
use crate::turn::{Token, Turn};

/// What is to be done. Each is performed once; those that say so are answered by an
/// [`Input`](crate::Input).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Load a job and take it over for this partition, as soon as
    /// [`may_read`](crate::Sequencer::may_read) allows it. Answered by `Loaded`.
    Load {
        /// To be given back.
        token: Token,
        /// The key.
        key: Key,
    },
    /// Execute a turn, as soon as [`may_run`](crate::Sequencer::may_run) allows it. Answered by
    /// `TurnDone`.
    Run(Turn),
    /// Commit a batch under the owner's claim. Answered by `Committed`. Until it is, no other
    /// batch of the same shard is asked for, except the same one again.
    Commit(Arc<Batch>),
    /// Every delivery up to this one is durably settled or held: acknowledge them.
    Ack {
        /// The last of them.
        through: Delivery,
    },
    /// Publish the messages of a committed batch and then [`Batch::forwarded`], after those of all
    /// earlier batches of its shard. Asked for only where there are some. Answered by `Published`.
    Publish {
        /// The batch.
        batch: Arc<Batch>,
        /// Which of its writes applied, and when.
        applied: Applied,
    },
    /// Read spilled events, as soon as [`may_read`](crate::Sequencer::may_read) allows it. Answered
    /// by `SpillRead`.
    ReadSpill {
        /// To be given back.
        token: Token,
        /// The key.
        key: Key,
        /// Sequence to start at.
        from: u64,
        /// Events to read at most.
        limit: usize,
        /// Bytes to read at most, except that one event is always read.
        bytes: usize,
    },
    /// Look for missing events. Answered by `Replayed`.
    Replay {
        /// To be given back.
        token: Token,
        /// The key.
        key: Key,
        /// Number of the replay source; 0 is the store.
        source: usize,
        /// The missing sequences, ascending.
        missing: Vec<RangeInclusive<u64>>,
        /// Dead letters put longer ago than this, in ms, are no source: they may be of the key's
        /// life before it ended.
        within: u64,
    },
    /// Read the due index of this partition. Answered by `DueRead`.
    ReadDue {
        /// Start behind this entry; `None`: at the beginning.
        after: Option<(u64, Key)>,
        /// Entries to read at most.
        limit: usize,
        /// Entries that have not passed as well: nothing more can come, so nothing is worth
        /// waiting for.
        all: bool,
    },
    /// Ownership is over: close everything without another write.
    Stop(Stop),
}

/// Why ownership is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// A newer owner has the partition.
    Fenced,
    /// The store is not where this owner left it.
    Rewound {
        /// The shard.
        shard: u32,
        /// What was expected and found, in words.
        detail: String,
    },
}
