//! The effects of a sequencer: everything that it can request.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::event::{DeliveryNumber, Key};
use crate::key_record::{AppliedCommit, Batch};
use crate::turn::{AttemptToken, Turn};

/// A request of the sequencer. The driver performs each effect once. Some effects name the
/// [`Input`](crate::Input) that answers them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Load a key record and take ownership of it for this partition, as soon as
    /// [`may_read`](crate::Sequencer::may_read) permits. `Loaded` answers this effect.
    Load {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key.
        key: Key,
    },
    /// Execute a turn, as soon as [`may_run`](crate::Sequencer::may_run) permits. `TurnDone`
    /// answers this effect.
    Run(Turn),
    /// Commit a batch under the owner's claim. `Committed` answers this effect. Until then the
    /// sequencer requests no other batch of the same shard, but may request the same batch again.
    Commit(Arc<Batch>),
    /// Acknowledge every delivery up to this one: they are all durably settled or held.
    Ack {
        /// The last delivery to acknowledge.
        through: DeliveryNumber,
    },
    /// Publish the messages of a committed batch, then [`Batch::forwarded`], after those of all
    /// earlier batches of its shard. The sequencer requests this only for a batch that contains
    /// some. `Published` answers this effect.
    Publish {
        /// The batch.
        batch: Arc<Batch>,
        /// The writes of the batch that applied, and their time.
        applied: AppliedCommit,
    },
    /// Read spilled events, as soon as [`may_read`](crate::Sequencer::may_read) permits.
    /// `SpillRead` answers this effect.
    ReadSpill {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key.
        key: Key,
        /// The first sequence to read.
        from: u64,
        /// The maximum number of events to read.
        limit: usize,
        /// The maximum number of bytes to read; the first event is always read.
        bytes: usize,
    },
    /// Search a replay source for missing events. `Replayed` answers this effect.
    Replay {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key.
        key: Key,
        /// The number of the replay source; 0 is the store.
        source: usize,
        /// The missing sequences, ascending.
        missing: Vec<RangeInclusive<u64>>,
        /// The maximum age of a dead letter that serves as a source, in ms. An older letter may be
        /// from the key's life before it ended.
        max_letter_age: u64,
    },
    /// Read the due index of this partition. `DueRead` answers this effect.
    ReadDue {
        /// The entry after which to start; `None` to start at the beginning.
        after: Option<(u64, Key)>,
        /// The maximum number of entries to read.
        limit: usize,
        /// `true` to read entries that are not due yet as well: no more events can arrive, so
        /// waiting is pointless.
        all: bool,
    },
    /// Stop: this owner has lost the partition. Close everything without another write.
    Stop(StopReason),
}

/// The reason why ownership ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// A newer owner has the partition.
    Fenced,
    /// The state of the store differs from this owner's last commit.
    RolledBack {
        /// The shard.
        shard: u32,
        /// The expected and the found state, as text.
        detail: String,
    },
}
