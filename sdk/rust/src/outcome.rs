//! What a handler makes of an event.

use crate::Message;

/// The effect of one event: all of it is committed at once, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<S = ()> {
    /// What becomes of the state.
    pub state: Change<S>,
    /// What is published, in this order.
    pub messages: Vec<Message>,
    /// Whether the key ends: what comes later for it is dead-lettered.
    pub complete: bool,
}

/// What becomes of the state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<S> {
    /// It stays as it was.
    Keep,
    /// It is replaced.
    Put(S),
    /// It is removed: the next event finds none.
    Delete,
}

impl<S> Outcome<S> {
    /// The state stays as it was.
    pub fn keep() -> Self {
        Self::new(Change::Keep)
    }

    /// The state is replaced.
    pub fn put(state: S) -> Self {
        Self::new(Change::Put(state))
    }

    /// The state is removed.
    pub fn delete() -> Self {
        Self::new(Change::Delete)
    }

    fn new(state: Change<S>) -> Self {
        Self { state, messages: Vec::new(), complete: false }
    }

    /// With one more message.
    #[must_use]
    pub fn emit(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// With more messages: a list, or an `Option` of one.
    #[must_use]
    pub fn emit_all(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.messages.extend(messages);
        self
    }

    /// And the key ends.
    #[must_use]
    pub fn complete(mut self) -> Self {
        self.complete = true;
        self
    }
}
