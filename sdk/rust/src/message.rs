//! The messages that a handler emits.

use serde::Serialize;

use crate::Raw;

/// A message to a sink. It is published after the commit, at least once, always under the same
/// id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// A sink of the host's configuration.
    pub sink: String,
    /// The key in that sink; `None` means the event's.
    pub key: Option<String>,
    /// Its type, for example `order.paid`; never empty.
    pub kind: String,
    /// Media type of the data.
    pub content_type: String,
    /// Names and values, in order.
    pub headers: Vec<(String, String)>,
    /// The data.
    pub data: Raw,
    /// Not to be published before this many ms after the commit. The host of this release refuses
    /// an outcome with a delay.
    pub delay_ms: Option<u64>,
    /// Whether it is the last one of its key in a sequenced sink.
    pub end_of_sequence: bool,
}

impl Message {
    /// A message of JSON data.
    ///
    /// # Panics
    /// JSON cannot hold the value, for example a map whose keys are no text. That is a bug of the
    /// handler and no fault of the event, so the event is not rejected for it.
    pub fn json<T: Serialize + ?Sized>(
        sink: impl Into<String>,
        kind: impl Into<String>,
        data: &T,
    ) -> Self {
        let kind = kind.into();
        match serde_json::to_vec(data) {
            Ok(data) => Self::bytes(sink, kind, "application/json", data),
            Err(error) => panic!("the data of a message {kind:?} cannot be JSON: {error}"),
        }
    }

    /// A message of any data.
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

    /// Under another key than the event's.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Not before this many ms after the commit; see [`Message::delay_ms`](#structfield.delay_ms).
    #[must_use]
    pub fn delay_ms(mut self, ms: u64) -> Self {
        self.delay_ms = Some(ms);
        self
    }

    /// As the last one of its key, if `end` says so.
    #[must_use]
    pub fn end_of_sequence(mut self, end: bool) -> Self {
        self.end_of_sequence = end;
        self
    }
}
