//! The event that a handler receives.

use crate::call::decode_data;
use crate::{Decode, Raw, Result};

/// An event with its data decoded as `D`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event<D> {
    /// Name of the stream.
    pub stream: String,
    /// The unit of order: an order id, an account, a session.
    pub key: String,
    /// Number of the event within its key. The producer or the store gives this number; in a `fifo` stream, Ordain
    /// numbers the events in the order of their delivery. Usually, the number is one higher than the number of the
    /// key's previous event. If Ordain skips a missing event, or dead-letters an event without a call of the handler,
    /// the handler does not see the number of this event.
    pub sequence: u64,
    /// Id of the event. Usually the producer sets the id. In a `sequenced` stream, an event that arrives over AMQP
    /// without an id gets the id `KEY/SEQUENCE`.
    pub id: String,
    /// Type of the event, for example `order.paid`.
    pub kind: String,
    /// Name of the producer (the CloudEvents attribute `source`); may be empty.
    pub source: String,
    /// Time of the event by the producer's clock, in ms since the Unix epoch; `None` if the producer set no time.
    pub time_ms: Option<u64>,
    /// Media type of the data, set by the producer. If the producer set no media type, the text is `application/json`
    /// for an event whose attributes and data arrived in one JSON object, and empty for any other event.
    pub content_type: String,
    /// Names and values of the attributes of the event that have no field of their own here, in order. A value that is
    /// not text is encoded as JSON.
    pub headers: Vec<(String, String)>,
    /// The decoded data.
    pub data: D,
    /// True if the producer marked the event as the last event of its key. The key then ends after this event, even if
    /// the handler rejects the event.
    pub end_of_sequence: bool,
}

impl<D> Event<D> {
    /// Returns the value of the first header with this name. The comparison of names ignores ASCII case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name))?;
        Some(&header.1)
    }

    /// Returns the event with `data` instead of its own data.
    pub fn with_data<T>(self, data: T) -> Event<T> {
        Event {
            stream: self.stream,
            key: self.key,
            sequence: self.sequence,
            id: self.id,
            kind: self.kind,
            source: self.source,
            time_ms: self.time_ms,
            content_type: self.content_type,
            headers: self.headers,
            data,
            end_of_sequence: self.end_of_sequence,
        }
    }
}

impl Event<Raw> {
    /// Decodes the data, for a handler whose event types have different data. Rejects the event if its data cannot be
    /// decoded, with the same reason as for a handler that receives only this type of data.
    ///
    /// ```
    /// # use ordain_sdk::prelude::*;
    /// fn handle(event: Event<Raw>, count: Option<u64>) -> Result<Outcome<u64>> {
    ///     let by = match &*event.kind {
    ///         "counter.incremented" => 1,
    ///         _ => event.decode::<u64>()?.data,
    ///     };
    ///     Ok(Outcome::put(count.unwrap_or_default() + by))
    /// }
    /// ```
    pub fn decode<D: Decode>(mut self) -> Result<Event<D>> {
        let data = std::mem::take(&mut self.data);
        decode_data(self.with_data(()), data.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_decoded_or_the_event_is_rejected() {
        let event = Event {
            kind: "paid".to_owned(),
            content_type: "application/json".to_owned(),
            data: Raw::from("7"),
            ..Event::default()
        };
        assert_eq!(event.clone().decode::<u64>().map(|event| event.data), Ok(7));
        let failure = event.decode::<bool>().expect_err("data of another type");
        let reason = failure.reason();
        assert!(reason.contains(r#"type "paid" (1 bytes of "application/json")"#), "{reason}");
    }

    #[test]
    fn first_header_of_a_name_is_found_in_any_case() {
        let event = Event::<()> {
            headers: vec![("X-A".into(), "1".into()), ("x-a".into(), "2".into())],
            ..Event::default()
        };
        assert_eq!(event.header("x-A"), Some("1"));
        assert_eq!(event.header("x"), None);
    }
}
