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
    /// Load a key record (the durable record of one key) and take it over for this partition, as soon as
    /// [`may_read`](crate::Sequencer::may_read) permits. `Loaded` answers this effect.
    Load {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key.
        key: Key,
    },
    /// Execute a turn (consecutive events of one key), as soon as [`may_run`](crate::Sequencer::may_run) permits.
    /// `TurnDone` answers this effect.
    Run(Turn),
    /// Commit a batch under the claim, which identifies this owner to the store. `Committed` answers this effect. Until
    /// then the sequencer requests no other batch of the same shard (a slice of the store), but may request the same
    /// batch again.
    Commit(Arc<Batch>),
    /// Acknowledge all deliveries up to `through`. The store has settled their events durably, or holds them.
    Ack {
        /// The last delivery to acknowledge.
        through: DeliveryNumber,
    },
    /// Publish the messages of a committed batch, then its dead letters ([`Batch::forwarded`]). The messages and dead
    /// letters of all earlier batches of the shard go first. The sequencer requests this effect only for a batch with
    /// messages or such dead letters. `Published` answers this effect.
    Publish {
        /// The batch.
        batch: Arc<Batch>,
        /// The result of the commit: its time, and the writes that the store refused.
        applied: AppliedCommit,
    },
    /// Read spilled events (events that the store holds until they can run), as soon as
    /// [`may_read`](crate::Sequencer::may_read) permits. `SpillRead` answers this effect.
    ReadSpill {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key.
        key: Key,
        /// The first sequence to read.
        from: u64,
        /// The maximum number of events to read.
        limit: usize,
        /// The maximum number of bytes to read. The first event is read even if it is larger.
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
        /// The maximum age of a dead letter that serves as a source, in ms. An older letter may belong to an earlier
        /// key of the same name, which has ended.
        max_letter_age: u64,
    },
    /// Read the due index of this partition: the keys with the times at which their owner must process them. `DueRead`
    /// answers this effect.
    ReadDue {
        /// The entry after which to start; `None` to start at the beginning.
        after: Option<(u64, Key)>,
        /// The maximum number of entries to read.
        limit: usize,
        /// `true` to read also the entries that are not due yet. The sequencer sets it after the source has ended,
        /// because no more events can arrive.
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
        /// The state that the sequencer expected and the state that the store has, as text.
        detail: String,
    },
}
