//! The sequencer of Ordain. For one partition of a stream, the sequencer decides what happens to
//! each event and when.
//!
//! This crate must never perform I/O, read a clock or use a random source. Time and seeds are
//! arguments, so that every run can be repeated.
//!
//! [`Sequencer`] accepts [`Input`]s and returns [`Effect`]s. The other modules define the types of
//! both, and the records that a store keeps.

mod effect;
mod event;
#[cfg(feature = "faults")]
mod fault;
mod gaps;
mod id_times;
mod input;
mod job;
mod letter;
mod limit;
pub mod ownership;
mod packed;
mod producer_history;
mod publish_history;
mod queue;
pub mod rollout;
mod sequencer;
mod settings;
mod stats;
mod turn;
mod version;

pub use effect::{Effect, Stop};
pub use event::{
    Delivery, EVENT_SEQUENCE_AT, Event, EventParts, Key, Message, MessageParts, SEQUENCE_END,
    digest, shard_of,
};
#[cfg(feature = "faults")]
pub use fault::Fault;
pub use gaps::{Answers, GapEnd, GapEntry, Gaps};
pub use id_times::{IdStretch, IdTimes};
pub use input::{Input, SpillPage};
pub use job::{
    Applied, Batch, Change, CommitReply, Digests, Emitted, Expect, Holes, Job, JobWrite, Loaded,
    Present, Refusal, Spilled, Status, TakenId, Trouble,
};
pub use letter::{Cause, DeadLetter, LetterContent, LetterId};
pub use limit::Limit;
pub use packed::{Headers, Malformed};
pub use producer_history::ProducerHistory;
pub use publish_history::{NumberedPart, Place, PublishHistory, PublishProgress};
pub use queue::{QueueCursor, QueueLoss, QueuePlace, QueueRun};
pub use sequencer::Sequencer;
pub use settings::{
    Backoff, Exhausted, GapSettings, Ordering, Overflow, RetrySettings, SOURCES_LIMIT, Settings,
};
pub use stats::{LaneState, Recovery, Replays, Stats};
pub use turn::{Failure, FailureKind, Token, Turn, TurnDone, Verdict};
pub use version::{Build, Decided, Digest, NoDigest, Version, split_version};
