//! The limits that a handler can exceed. A failure carries its limit as a value; a key record carries the limit as a
//! tag before the text of the failure.
//!
//! An example of a tag is `[memory]`. Only this module writes and parses tags; it also accepts a text without a tag. A
//! version of Ordain that does not know tags shows the tag as a part of the text.

/// A limit that Ordain sets for handlers, and that the configuration can lift.
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

    /// Returns the settings that can raise the limit. For `Sinks`, there is no such setting: a new sink in the
    /// configuration lifts this limit.
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

/// Puts the tag of a limit before the text of a failure. Without a limit, returns the text unchanged.
pub(crate) fn tagged(limit: Option<HandlerLimit>, words: String) -> String {
    match limit {
        Some(limit) => format!("[{}] {words}", limit.name()),
        None => words,
    }
}

/// Separates the tag of a limit, if present, from the text of a failure.
pub(crate) fn untagged(text: &str) -> (Option<HandlerLimit>, &str) {
    let parts = text.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    match parts.and_then(|(name, words)| Some((HandlerLimit::parse(name)?, words))) {
        Some((limit, words)) => (Some(limit), words),
        None => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_is_read_back() {
        let words = "message 0 goes to the sink `[memory] x`, which is not configured";
        for limit in HandlerLimit::ALL.map(Some).into_iter().chain([None]) {
            let text = tagged(limit, words.to_owned());
            assert_eq!(untagged(&text), (limit, words));
        }
    }

    #[test]
    fn other_text_in_brackets_is_not_a_tag() {
        for text in ["", "[", "[memory]", "[memory]x", "[other] x", "x [memory] y"] {
            assert_eq!(untagged(text), (None, text));
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
