//! The effects of a sequencer: everything that it can request.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::event::{DeliveryNumber, Key};
use crate::key_record::{AppliedCommit, Batch};
use crate::turn::{AttemptToken, Turn};

/// A request of the sequencer. The driver (the code that calls the sequencer) performs each effect once. If an
/// [`Input`](crate::Input) answers an effect, the comment of the effect names this input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Load a key record (the durable record of one key), and take the key over for this partition. Start the load as
    /// soon as [`may_read`](crate::Sequencer::may_read) permits. [`Input::Loaded`](crate::Input::Loaded) answers this
    /// effect.
    Load {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key to load.
        key: Key,
    },
    /// Execute a turn: consecutive events of one key. Start the turn as soon as [`may_run`](crate::Sequencer::may_run)
    /// permits. [`Input::TurnDone`](crate::Input::TurnDone) answers this effect.
    Run(Turn),
    /// Commit a batch. The driver adds its claim, by which the store recognises the owner of the partition.
    /// [`Input::Committed`](crate::Input::Committed) answers this effect. Before that answer, the sequencer requests no
    /// commit of another batch of the same shard (a slice of the store). After the answer
    /// [`Unknown`](crate::CommitReply::Unknown), the sequencer requests the commit of the same batch once more.
    Commit(Arc<Batch>),
    /// Acknowledge all deliveries up to and including `through`. The store has the result of each of these deliveries
    /// durably: the event of the delivery is settled, dead-lettered or spilled.
    Ack {
        /// The last delivery to acknowledge.
        through: DeliveryNumber,
    },
    /// Publish the messages of a committed batch, then its dead letters ([`Batch::forwarded`]). The messages and dead
    /// letters of all earlier batches of the shard must be published first. The sequencer requests this effect only for
    /// a batch with messages or dead letters to publish. [`Input::Published`](crate::Input::Published) answers this
    /// effect.
    Publish {
        /// The committed batch.
        batch: Arc<Batch>,
        /// The details of the commit, such as its time and the writes that the store refused.
        applied: AppliedCommit,
    },
    /// Read spilled events: events that the store holds until they can run. Start the read as soon as
    /// [`may_read`](crate::Sequencer::may_read) permits. [`Input::SpillRead`](crate::Input::SpillRead) answers this
    /// effect.
    ReadSpill {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key whose spilled events to read.
        key: Key,
        /// The first sequence to read.
        from: u64,
        /// The maximum number of events to read.
        limit: usize,
        /// The maximum number of bytes to read. The first event is read even if it is larger.
        bytes: usize,
    },
    /// Search a replay source for missing events. [`Input::Replayed`](crate::Input::Replayed) answers this effect.
    Replay {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key of the missing events.
        key: Key,
        /// The number of the replay source; 0 is the store.
        source: usize,
        /// The missing sequences, ascending.
        missing: Vec<RangeInclusive<u64>>,
        /// The maximum age, in ms, of a dead letter from which the store may take a missing event. An older letter may
        /// belong to a key of the same name that has ended.
        max_letter_age: u64,
    },
    /// Read the early dead letters of a key for sequences that the key has passed. A dead letter is early if
    /// [`Cause::waits_for_earlier`](crate::Cause::waits_for_earlier) returns `true` for its cause.
    /// [`Input::EarlyLettersRead`](crate::Input::EarlyLettersRead) answers this effect.
    ReadEarlyLetters {
        /// The token to return with the answer.
        token: AttemptToken,
        /// The key of the dead letters.
        key: Key,
        /// The sequences of the dead letters.
        sequences: RangeInclusive<u64>,
        /// The maximum age, in ms, of the dead letters. An older letter may belong to a key of the same name that has
        /// ended.
        max_letter_age: u64,
    },
    /// Read the due index of this partition: keys, each with the time at which the owner must handle the key.
    /// [`Input::DueRead`](crate::Input::DueRead) answers this effect.
    ReadDue {
        /// The entry after which to start; `None` to start at the beginning.
        after: Option<(u64, Key)>,
        /// The maximum number of entries to read.
        limit: usize,
        /// `true` to read also the entries that are not due yet. The sequencer sets this flag after the source has
        /// ended. After the end of the source, no more events can arrive, so the sequencer does not wait for the times
        /// of the entries.
        all: bool,
    },
    /// Stop: this owner has lost the partition. The driver must stop processing the partition, and must not write any
    /// more data of the partition to the store.
    Stop(StopReason),
}

/// The reason why the ownership of a partition ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// A newer owner has claimed the partition.
    Fenced,
    /// The store went back in time: it has lost this owner's claim or some of this owner's commits. The sequencer
    /// cannot recover the lost commits.
    RolledBack {
        /// The shard that lacks commits.
        shard: u32,
        /// The number of the newest commit that the store had confirmed for this partition in the shard.
        last: u64,
        /// The number of the newest commit that the shard still has, or that the store has applied again after the
        /// loss. `None` if the shard has lost this owner's claim, and therefore all commits of this owner.
        stored: Option<u64>,
        /// A time before all lost commits, in ms since the Unix epoch, by the store's clock. `None` if the sequencer
        /// does not know such a time.
        since: Option<u64>,
        /// The state that the sequencer expected and the state that the store has, as text.
        detail: String,
    },
}
