//! Dead letters: whole events that ended without effect, and why.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::event::{Event, Key};
use crate::version::Version;

/// Why an event ended without effect, or why a key stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// What was delivered cannot be read as an event.
    Unreadable,
    /// The event has no key.
    NoKey,
    /// A `sequenced` stream's event has no usable sequence.
    NoSequence,
    /// A `fifo` stream's event has no id.
    NoId,
    /// Its content differs from what is held or settled under the same sequence or id.
    Conflict,
    /// Its sequence lies too far beyond the first missing one.
    FarAhead,
    /// The key had ended before it.
    AfterEnd,
    /// It came after its sequence had been skipped.
    Late,
    /// It never came and was skipped; such a letter has no event.
    Gap,
    /// The handler refused it.
    Rejected,
    /// It would have exceeded `spill_limit`.
    Overflow,
    /// An operator discarded it.
    Discarded,
    /// The handler asked for another try more often than allowed.
    Retry,
    /// The handler ran longer than allowed, each time.
    Timeout,
    /// The handler trapped.
    Trap,
    /// The handler broke a limit of memory or size.
    Limit,
    /// The handler ended with an uncaught error of its language.
    Error,
    /// What the store has of the key, its record or spilled events, cannot be read.
    Corrupt,
}

impl Cause {
    /// Every cause, in the order of the enum.
    pub const ALL: [Self; 18] = [
        Self::Unreadable,
        Self::NoKey,
        Self::NoSequence,
        Self::NoId,
        Self::Conflict,
        Self::FarAhead,
        Self::AfterEnd,
        Self::Late,
        Self::Gap,
        Self::Rejected,
        Self::Overflow,
        Self::Discarded,
        Self::Retry,
        Self::Timeout,
        Self::Trap,
        Self::Limit,
        Self::Error,
        Self::Corrupt,
    ];

    /// The name as it stands in letters, metrics and listings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::NoKey => "no-key",
            Self::NoSequence => "no-sequence",
            Self::NoId => "no-id",
            Self::Conflict => "conflict",
            Self::FarAhead => "far-ahead",
            Self::AfterEnd => "after-end",
            Self::Late => "late",
            Self::Gap => "gap",
            Self::Rejected => "rejected",
            Self::Overflow => "overflow",
            Self::Discarded => "discarded",
            Self::Retry => "retry",
            Self::Timeout => "timeout",
            Self::Trap => "trap",
            Self::Limit => "limit",
            Self::Error => "error",
            Self::Corrupt => "corrupt",
        }
    }

    /// The inverse of [`name`](Self::name).
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Identity of a dead letter within its stream. Putting a letter under an id that exists replaces
/// it, so that a delivery repeated after a crash leaves one letter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterId {
    /// The key; empty where the event has none.
    pub key: Key,
    /// The sequence; 0 where the event has none.
    pub sequence: u64,
    /// 0 for a sequence that was skipped unseen; else a digest of the event and the cause, which
    /// tells letters of one sequence apart.
    pub tag: u64,
}

impl LetterId {
    /// Its form beside the key, as people give it back: `SEQUENCE-TAG`, the tag in hexadecimal digits.
    pub fn text(&self) -> String {
        format!("{}-{:x}", self.sequence, self.tag)
    }

    /// The inverse of [`text`](Self::text).
    pub fn parse(key: &str, text: &str) -> Option<Self> {
        let (sequence, tag) = text.split_once('-')?;
        Some(Self {
            key: key.into(),
            sequence: sequence.parse().ok()?,
            tag: u64::from_str_radix(tag, 16).ok()?,
        })
    }
}

/// One dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its identity.
    pub id: LetterId,
    /// The class of the reason.
    pub cause: Cause,
    /// The reason in words, with what would be right.
    pub error: String,
    /// Where the event came from, as far as that helps to find it: `line 17 of orders.ndjson`.
    pub origin: Option<String>,
    /// The handler version that had it, if one had.
    pub version: Option<Version>,
    /// What was delivered.
    pub content: LetterContent,
}

/// What a dead letter keeps of its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LetterContent {
    /// The event never came.
    Nothing,
    /// The whole event.
    Event(Arc<Event>),
    /// The bytes as delivered, since they are no event.
    Raw(Bytes),
}

impl DeadLetter {
    /// What holding it costs in memory, in bytes.
    pub fn memory(&self) -> usize {
        let content = match &self.content {
            LetterContent::Nothing => 0,
            LetterContent::Event(event) => event.memory(),
            LetterContent::Raw(bytes) => bytes.len(),
        };
        size_of::<Self>() + self.error.len() + content
    }
}
