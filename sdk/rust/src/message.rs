//! The messages that a handler emits.

use serde::Serialize;

use crate::Raw;

/// A message to a sink. The host publishes the message after the commit. The host may publish the message more than
/// once, always with the same id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Name of a sink in the host's configuration.
    pub sink: String,
    /// Key of the message in the sink; `None` means the event's key.
    pub key: Option<String>,
    /// Type of the message, for example `order.paid`; must not be empty.
    pub kind: String,
    /// Media type of the data.
    pub content_type: String,
    /// Names and values of the headers, in order.
    pub headers: Vec<(String, String)>,
    /// The data, in the format that `content_type` names.
    pub data: Raw,
    /// Minimum delay between the commit and the publishing, in ms. This release does not support delays: the host
    /// rejects an outcome that contains a message with a delay.
    pub delay_ms: Option<u64>,
    /// True if the message is the last message of its key in a sequenced sink.
    pub end_of_sequence: bool,
}

impl Message {
    /// Creates a message with JSON data.
    ///
    /// # Panics
    /// Panics if the value cannot be written as JSON, for example because it contains a map whose keys are not text.
    /// The method panics instead of rejecting the event, because the fault is a bug of the handler.
    pub fn json<T: Serialize + ?Sized>(
        sink: impl Into<String>,
        kind: impl Into<String>,
        data: &T,
    ) -> Self {
        let kind = kind.into();
        match serde_json::to_vec(data) {
            Ok(data) => Self::bytes(sink, kind, "application/json", data),
            Err(error) => {
                panic!("the data of a message {kind:?} cannot be written as JSON: {error}")
            }
        }
    }

    /// Creates a message with data in any format.
    pub fn bytes(
        sink: impl Into<String>,
        kind: impl Into<String>,
        content_type: impl Into<String>,
        data: impl Into<Raw>,
    ) -> Self {
        Self {
            sink: sink.into(),
            kind: kind.into(),
            content_type: content_type.into(),
            data: data.into(),
            ..Self::default()
        }
    }

    /// Sets the key of the message. Without this call, the message has the event's key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the minimum delay between the commit and the publishing, in ms; see
    /// [`Message::delay_ms`](#structfield.delay_ms).
    #[must_use]
    pub fn delay_ms(mut self, ms: u64) -> Self {
        self.delay_ms = Some(ms);
        self
    }

    /// Declares whether the message is the last message of its key.
    #[must_use]
    pub fn end_of_sequence(mut self, end: bool) -> Self {
        self.end_of_sequence = end;
        self
    }
}
