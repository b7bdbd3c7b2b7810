//! The sequencer of Ordain: the state machine that decides, for one partition of a stream, what happens to each event
//! and when.
//!
//! This crate must never perform I/O, read a clock or use a random source. Time and seeds are arguments, so that the
//! same inputs always cause the same effects.
//!
//! [`Sequencer`] accepts [`Input`]s and returns [`Effect`]s. Most other modules define the types of the inputs and
//! effects, and the records that a store keeps. `distribution` assigns partitions to processes, and `rollout` chooses a
//! stream's handler version. A store may lose its newest writes in a failure; `publish_history`, `producer_history`,
//! `queue` and `unread_runs` find out which writes are lost.

mod commit_times;
pub mod distribution;
mod effect;
mod event;
#[cfg(feature = "faults")]
mod fault;
mod gaps;
mod id_times;
mod input;
mod json;
mod key_record;
mod letter;
mod limit;
mod packed;
mod producer_history;
mod publish_history;
mod queue;
pub mod rollout;
mod sequencer;
mod settings;
mod stats;
mod turn;
mod type_filter;
mod unread_runs;
mod version;

pub use commit_times::CommitTimes;
pub use effect::{Effect, StopReason};
pub use event::{
    DeliveryNumber, EVENT_SEQUENCE_OFFSET, Event, EventParts, Key, Message, MessageParts,
    SEQUENCE_END, digest, shard_of,
};
#[cfg(feature = "faults")]
pub use fault::SequencerFault;
pub use gaps::{GapEnd, GapEntry, GapHistory, SourceAnswers};
pub use id_times::{IdStretch, IdTimes};
pub use input::{Input, SpillPage};
pub use json::{is_json, json_digest};
pub use key_record::{
    AcceptedId, AheadRange, AppliedCommit, Batch, CommitReply, EmittedMessage, EventDigests,
    ExistingSpill, FailureInfo, KeyRecord, KeySnapshot, KeyStatus, KeyWrite, SkippedRanges,
    SpillExtent, StateUpdate, WriteCondition, WriteRefusal,
};
pub use letter::{Cause, DeadLetter, LetterContent, LetterId};
pub use limit::{HandlerLimit, LimitValues};
pub use packed::{HeaderIter, UnpackError};
pub use producer_history::ProducerHistory;
pub use publish_history::{NumberedChunk, OutboxPosition, PublishHistory, PublishProgress};
pub use queue::{QueueCursor, QueueLoss, QueuePosition, QueueRecount, QueueRun};
pub use sequencer::Sequencer;
pub use settings::{
    BackoffBounds, ExhaustedPolicy, GapSettings, OrderingMode, OverflowPolicy, RetrySettings,
    SOURCES_LIMIT, SequencerSettings, sequence_fault, valid_sequences,
};
pub use stats::{LaneState, RecoveryTimes, ReplayCounts, Stats};
pub use turn::{AttemptToken, FailedAttempt, FailureKind, HandlerOutcome, Turn, TurnResult};
pub use type_filter::{TypeFilter, TypePattern};
pub use unread_runs::{UnreadRuns, WriterCalls};
pub use version::{Build, FileDigest, ParseDigestError, Rollout, VersionName, split_version};
