//! The limits that a handler can exceed. In memory, the exceeded limit is a field of the failure. In a key record, it
//! is a tag in front of the text of the failure.
//!
//! An example of a tag is `[memory:67108864]`: the name of the limit, and its value. Only this module writes and parses
//! tags; it also accepts a text without a tag. A version of Ordain that does not parse tags shows the tag as a part of
//! the text.

use crate::event::digest;

/// A limit that Ordain sets for handlers, and that the configuration can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerLimit {
    /// The time that the handler may run for one event.
    Timeout,
    /// The memory of one instance of the handler.
    Memory,
    /// The size of a key's state.
    StateSize,
    /// The number of messages of one event.
    Messages,
    /// The size of all messages of one event.
    MessagesSize,
    /// The size of everything that a handler returns for one event.
    OutcomeSize,
    /// The size of one message.
    EventSize,
    /// The set of configured sinks. A message exceeds this limit if the message names an unknown sink.
    Sinks,
}

impl HandlerLimit {
    /// All limits.
    pub const ALL: [Self; 8] = [
        Self::Timeout,
        Self::Memory,
        Self::StateSize,
        Self::Messages,
        Self::MessagesSize,
        Self::OutcomeSize,
        Self::EventSize,
        Self::Sinks,
    ];

    /// Returns the name in listings and in tags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Memory => "memory",
            Self::StateSize => "state_size",
            Self::Messages => "messages",
            Self::MessagesSize => "messages_size",
            Self::OutcomeSize => "outcome_size",
            Self::EventSize => "event_size",
            Self::Sinks => "sinks",
        }
    }

    /// Parses a name that [`name`](Self::name) returned.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// Returns the settings that can raise the limit. For `Sinks`, there is no such setting: the configuration needs a
    /// new sink instead.
    pub fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Timeout => &["plugins.timeout"],
            Self::Memory => &["plugins.memory"],
            Self::StateSize => &["plugins.state_size"],
            Self::Messages => &["plugins.messages"],
            Self::MessagesSize => &["plugins.messages_size"],
            Self::OutcomeSize => &["plugins.state_size", "plugins.messages_size"],
            Self::EventSize => &["runtime.event_size"],
            Self::Sinks => &[],
        }
    }
}

/// The values of all limits in the configuration of this process. While a limit has the value that an event exceeded,
/// the event would exceed the limit again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitValues([u64; HandlerLimit::ALL.len()]);

impl LimitValues {
    /// Collects the values of all limits.
    pub fn new(value: impl Fn(HandlerLimit) -> u64) -> Self {
        Self(HandlerLimit::ALL.map(value))
    }

    /// Returns a digest of all values.
    pub fn digest(&self) -> u64 {
        digest(&self.0.map(u64::to_le_bytes).concat())
    }

    /// Returns the value of a limit.
    pub fn get(&self, limit: HandlerLimit) -> u64 {
        self.0[limit as usize]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExceededLimit {
    pub(crate) limit: HandlerLimit,
    /// The value that the limit had; `None` if the tag has no value, as in key records of earlier versions of Ordain.
    pub(crate) value: Option<u64>,
}

impl ExceededLimit {
    /// The tag precedes the text of a failure.
    pub(crate) fn tag(self, words: &str) -> String {
        let value = self.value.map(|value| format!(":{value}")).unwrap_or_default();
        format!("[{}{value}] {words}", self.limit.name())
    }

    /// The tag may be missing.
    pub(crate) fn untag(text: &str) -> (Option<Self>, &str) {
        let parsed = || {
            let (tag, words) = text.strip_prefix('[')?.split_once("] ")?;
            let (name, value) = match tag.split_once(':') {
                Some((name, value)) => (name, Some(value.parse().ok()?)),
                None => (tag, None),
            };
            Some((Self { limit: HandlerLimit::parse(name)?, value }, words))
        };
        parsed().map_or((None, text), |(exceeded, words)| (Some(exceeded), words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_is_read_back() {
        let words = "message 0 goes to the sink `[memory] x`, which is not configured";
        for limit in HandlerLimit::ALL {
            for value in [None, Some(0), Some(u64::MAX)] {
                let exceeded = ExceededLimit { limit, value };
                assert_eq!(ExceededLimit::untag(&exceeded.tag(words)), (Some(exceeded), words));
            }
        }
    }

    #[test]
    fn other_text_in_brackets_is_not_a_tag() {
        for text in [
            "",
            "[",
            "[memory]",
            "[memory]x",
            "[other] x",
            "x [memory] y",
            "[memory:] x",
            "[memory:-1] x",
        ] {
            assert_eq!(ExceededLimit::untag(text), (None, text));
        }
    }

    /// Stored key records contain these names. If a name changed, Ordain could not parse the tags with the old name.
    #[test]
    fn stored_names_do_not_change() {
        let names = HandlerLimit::ALL.map(HandlerLimit::name).join(" ");
        assert_eq!(
            names,
            "timeout memory state_size messages messages_size outcome_size event_size sinks"
        );
    }
}
