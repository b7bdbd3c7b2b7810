//! Dead letters: records of events that ended without effect. A dead letter contains the reason, and the whole event if
//! the event arrived.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::event::{Event, Key};
use crate::version::VersionName;

/// The reason why an event ended without effect, or why a key retries its next event or is parked (stopped).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The delivery cannot be read as an event.
    Unreadable,
    /// The event has no key.
    NoKey,
    /// The event of a `sequenced` stream has no usable sequence.
    NoSequence,
    /// The event of a `fifo` stream has no id.
    NoId,
    /// A different event of the key, with the same sequence or id, was held or settled before
    /// ([`Event::repeats`](crate::event::Event::repeats)).
    Conflict,
    /// The event's sequence is more than `gap.max_width` beyond the first sequence that may be missing.
    FarAhead,
    /// The event arrived after the end of its key.
    AfterEnd,
    /// The event arrived after its sequence had been skipped, or after its key had begun at a later sequence.
    Late,
    /// The event never arrived. The key continued without the event, or was parked at the event's sequence. A dead
    /// letter with this cause contains no event. One dead letter stands for all consecutive sequences that the key
    /// skipped in one step.
    Gap,
    /// The handler rejected the event.
    Rejected,
    /// The key was blocked and already held `spill_limit` events, and `overflow` is `dead-letter`.
    Overflow,
    /// An operator discarded the event.
    Discarded,
    /// The handler requested another try. The event is dead-lettered, or its key is parked, only after the last try.
    Retry,
    /// The handler exceeded its time limit. The event is dead-lettered, or its key is parked, only after the last try.
    Timeout,
    /// The handler trapped: its WebAssembly code stopped with a fault.
    Trap,
    /// The handler exceeded a limit other than its time limit, such as a limit of memory or size.
    Limit,
    /// The handler ended with an uncaught error of its language.
    Error,
    /// The record of the key, or its events that wait in the store, cannot be read.
    Corrupt,
    /// The delivery is a dead letter that the same stream published earlier. The stream does not process its own dead
    /// letters.
    Returned,
}

impl Cause {
    /// All causes, in the order of the enum.
    pub const ALL: [Self; 19] = [
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
        Self::Returned,
    ];

    /// Returns the name in letters, metrics and listings.
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
            Self::Returned => "returned",
        }
    }

    /// Returns whether an event with this cause may still take effect in a `sequenced` stream. When such an event
    /// arrived, its key could not hold the event: the event was too far ahead, too many events waited, or the key's
    /// record was unreadable. Replay takes the event from its dead letter when the key reaches the event.
    pub fn waits_for_earlier(self) -> bool {
        matches!(self, Self::FarAhead | Self::Overflow | Self::Corrupt)
    }

    /// Parses a name that [`name`](Self::name) returned.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The identity of a dead letter within its stream. A new letter replaces an existing letter with the same id. If the
/// source delivers an event again after a crash, the store therefore keeps only one letter of the event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterId {
    /// The key; empty if the event has none.
    pub key: Key,
    /// The sequence; 0 if the event has none.
    pub sequence: u64,
    /// The tag distinguishes letters of one sequence. For skipped sequences, whose events never arrived, the tag is
    /// twice the number of sequences after the first: an even number, and 0 for a single sequence. For all other
    /// letters, the tag is a digest of the event and the cause, and always an odd number.
    pub tag: u64,
}

impl LetterId {
    /// Returns the id of the letter for the sequences from `first` to `last`, which were skipped because their events
    /// never arrived.
    pub fn of_skipped(key: &Key, first: u64, last: u64) -> Self {
        Self { key: Arc::clone(key), sequence: first, tag: 2 * (last - first) }
    }

    /// Returns the id without the key, as commands accept it: `SEQUENCE-TAG`, the tag in hexadecimal digits.
    pub fn text(&self) -> String {
        format!("{}-{:x}", self.sequence, self.tag)
    }

    /// Parses the output of [`text`](Self::text).
    pub fn parse(key: &str, text: &str) -> Option<Self> {
        let (sequence, tag) = text.split_once('-')?;
        Some(Self {
            key: key.into(),
            sequence: sequence.parse().ok()?,
            tag: u64::from_str_radix(tag, 16).ok()?,
        })
    }
}

/// A dead letter: the record of an event that ended without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The identity of the letter.
    pub id: LetterId,
    /// The class of the reason why the event ended without effect.
    pub cause: Cause,
    /// The reason as text. For an invalid event, the text names the correct form.
    pub error: String,
    /// The place where the source found the event, such as `line 17 of orders.ndjson`; `None` if a place does not help
    /// to find the event.
    pub origin: Option<String>,
    /// The handler version that executed the event; `None` if no handler executed it.
    pub version: Option<VersionName>,
    /// The event, or the delivered bytes if they are not a valid event; [`LetterContent::Nothing`] if the event never
    /// arrived.
    pub content: LetterContent,
}

/// The content of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LetterContent {
    /// The event or the events never arrived, or the letter is about the lost rest of a file.
    Nothing,
    /// The whole event.
    Event(Arc<Event>),
    /// The bytes of a delivery that is not a valid event.
    Raw(Bytes),
}

impl DeadLetter {
    /// Returns the sequence of the event, or the first sequence if the letter stands for several skipped sequences.
    /// Returns `None` if the event has no sequence because its stream is `fifo`, or if the delivery is not a valid
    /// event. Also returns `None` if the letter is about the lost rest of a file.
    pub fn sequence(&self) -> Option<u64> {
        let is_first = match &self.content {
            LetterContent::Nothing => self.cause != Cause::Unreadable,
            LetterContent::Event(event) => event.sequence() == Some(0),
            LetterContent::Raw(_) => false,
        };
        (self.id.sequence > 0 || is_first).then_some(self.id.sequence)
    }

    /// Returns the last of the skipped sequences for which the letter stands. Returns `None` if the letter stands for
    /// at most one event.
    pub fn last_sequence(&self) -> Option<u64> {
        let is_skip = self.cause == Cause::Gap && matches!(self.content, LetterContent::Nothing);
        let further = self.id.tag / 2;
        (is_skip && further > 0).then(|| self.id.sequence.saturating_add(further))
    }

    /// Returns the memory cost of the letter, in bytes.
    pub fn memory(&self) -> usize {
        let content = match &self.content {
            LetterContent::Nothing => 0,
            LetterContent::Event(event) => event.memory(),
            LetterContent::Raw(bytes) => bytes.len(),
        };
        size_of::<Self>() + self.error.len() + content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letter_of_skipped_sequences_has_their_range() {
        let letter = |first, last| DeadLetter {
            id: LetterId::of_skipped(&"k".into(), first, last),
            cause: Cause::Gap,
            error: String::new(),
            origin: None,
            version: None,
            content: LetterContent::Nothing,
        };
        let range = |letter: &DeadLetter| (letter.sequence(), letter.last_sequence());
        assert_eq!(range(&letter(0, 0)), (Some(0), None));
        assert_eq!(range(&letter(7, 7)), (Some(7), None));
        assert_eq!(range(&letter(0, 1)), (Some(0), Some(1)));
        assert_eq!(range(&letter(2, 20_000_000)), (Some(2), Some(20_000_000)));
        assert_eq!(letter(7, 7).id.tag, 0, "earlier versions gave each skipped sequence this tag");
        let rejected = DeadLetter { cause: Cause::Rejected, ..letter(2, 9) };
        assert_eq!(range(&rejected), (Some(2), None));
    }
}
