//! The outcome of an event.

use crate::Message;

/// The effect of one event. The host commits either the whole effect or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<S = ()> {
    /// The change of the key's state.
    pub state: Change<S>,
    /// Messages to publish, in this order.
    pub messages: Vec<Message>,
    /// True if the key ends after this event. Until `complete_ttl` has passed since the end of the key, Ordain
    /// dead-letters all later events of the key.
    pub complete: bool,
}

/// The change of a key's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<S> {
    /// The state stays the same.
    Keep,
    /// The state is replaced.
    Put(S),
    /// The state is removed: the handler receives the next event of the key without a state.
    Delete,
}

impl<S> Outcome<S> {
    /// Creates an outcome that keeps the state.
    pub fn keep() -> Self {
        Self::new(Change::Keep)
    }

    /// Creates an outcome that replaces the state.
    pub fn put(state: S) -> Self {
        Self::new(Change::Put(state))
    }

    /// Creates an outcome that removes the state.
    pub fn delete() -> Self {
        Self::new(Change::Delete)
    }

    fn new(state: Change<S>) -> Self {
        Self { state, messages: Vec::new(), complete: false }
    }

    /// Adds a message.
    #[must_use]
    pub fn emit(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// Adds messages: a list, or an `Option` of a message.
    #[must_use]
    pub fn emit_all(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.messages.extend(messages);
        self
    }

    /// Ends the key after this event.
    #[must_use]
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }
}
