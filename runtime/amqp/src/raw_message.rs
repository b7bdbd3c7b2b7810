//! The stored form of a message that is not an event: a JSON document. The dead letter of the message contains this
//! document, and the commands show it. To publish the letter in its original form, the encoder of dead letters restores
//! the message from this document.
//!
//! In the JSON member `headers`, the values have the types of JSON. If the AMQP type of a header is not evident from
//! its JSON value, the JSON member `typed_headers` contains the header again, with its AMQP type. Documents of earlier
//! versions lack this member.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapin::message::Delivery;
use lapin::types::{FieldTable, ShortString};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::header::QUEUE_HEADERS;
use super::value::{has_evident_type, table, to_typed_json};

/// The member with the headers whose types JSON does not show.
const TYPED_HEADERS: &str = "typed_headers";

pub(super) struct RawBody<'a> {
    /// The whole body, or only its beginning if the document does not keep the rest.
    pub(super) bytes: &'a [u8],
    pub(super) size: usize,
    pub(super) content_type: Option<&'a str>,
    pub(super) content_encoding: Option<&'a str>,
    /// The property `type`, which can name the encoding of the body.
    pub(super) kind: Option<&'a str>,
}

impl<'a> RawBody<'a> {
    /// Returns the body of a delivery. The document keeps `bytes`, the beginning of this body.
    pub(super) fn of(delivery: &'a Delivery, bytes: &'a [u8]) -> Self {
        let properties = &delivery.properties;
        Self {
            bytes,
            size: delivery.data.len(),
            content_type: properties.content_type().as_ref().map(ShortString::as_str),
            content_encoding: properties.content_encoding().as_ref().map(ShortString::as_str),
            kind: properties.kind().as_ref().map(ShortString::as_str),
        }
    }
}

/// Returns the document of a message, without [`TYPED_HEADERS`].
pub(super) fn message_json(delivery: &Delivery, body: &RawBody<'_>) -> Value {
    let properties = &delivery.properties;
    let text = |property: &Option<ShortString>| property.as_ref().map(ToString::to_string);
    let (kept, coding) = match std::str::from_utf8(body.bytes) {
        Ok(text) => (text.to_owned(), "text"),
        Err(_) => (STANDARD.encode(body.bytes), "base64"),
    };
    let mut headers = properties.headers().as_ref().map(table);
    if let Some(headers) = headers.as_mut().and_then(Value::as_object_mut) {
        // A queue adds these headers to a redelivered message. The same message must always produce the same letter, so
        // the document does not contain them.
        headers.retain(|name, _| !QUEUE_HEADERS.contains(&name.as_str()));
    }
    json!({
        "exchange": delivery.exchange.as_str(),
        "routing_key": delivery.routing_key.as_str(),
        "properties": {
            "content_type": body.content_type,
            "content_encoding": body.content_encoding,
            "delivery_mode": properties.delivery_mode(),
            "priority": properties.priority(),
            "correlation_id": text(properties.correlation_id()),
            "reply_to": text(properties.reply_to()),
            "expiration": text(properties.expiration()),
            "message_id": text(properties.message_id()),
            "timestamp": properties.timestamp(),
            "type": body.kind,
            "user_id": text(properties.user_id()),
            "app_id": text(properties.app_id()),
        },
        "headers": headers,
        "body": kept,
        "body_coding": coding,
        "body_size": body.size,
    })
}

/// Adds to the document of a message those headers of the message whose types JSON does not show.
pub(super) fn add_typed_headers(document: &mut Value, delivery: &Delivery) {
    let headers = delivery.properties.headers().as_ref();
    let typed: Map<String, Value> = headers
        .into_iter()
        .flat_map(FieldTable::inner)
        .filter(|(name, value)| !QUEUE_HEADERS.contains(&name.as_str()) && !has_evident_type(value))
        .map(|(name, value)| (name.to_string(), to_typed_json(value)))
        .collect();
    if !typed.is_empty() {
        document[TYPED_HEADERS] = typed.into();
    }
}

/// A message as it arrived, parsed from its document.
#[derive(Debug, Deserialize)]
pub(super) struct RawMessage {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) properties: RawProperties,
    headers: Option<Map<String, Value>>,
    #[serde(default)]
    typed_headers: Map<String, Value>,
    body: String,
    body_coding: String,
    body_size: usize,
}

/// The properties of a message, except `delivery_mode`.
#[derive(Debug, Deserialize)]
pub(super) struct RawProperties {
    pub(super) content_type: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) priority: Option<u8>,
    pub(super) correlation_id: Option<String>,
    pub(super) reply_to: Option<String>,
    pub(super) expiration: Option<String>,
    pub(super) message_id: Option<String>,
    pub(super) timestamp: Option<u64>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) user_id: Option<String>,
    pub(super) app_id: Option<String>,
}

impl RawMessage {
    /// Parses a document.
    pub(super) fn parse(document: &[u8]) -> Option<Self> {
        serde_json::from_slice(document).ok()
    }

    pub(super) fn has_header(&self, name: &str) -> bool {
        self.headers.as_ref().is_some_and(|headers| headers.contains_key(name))
    }

    /// Returns each header as JSON. If JSON does not show the type of the value, also returns the value with its type.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&str, &Value, Option<&Value>)> {
        let headers = self.headers.iter().flatten();
        headers.map(|(name, value)| (name.as_str(), value, self.typed_headers.get(name)))
    }

    /// Returns the body; `None` if the document contains only a part of it.
    pub(super) fn body(&self) -> Option<Vec<u8>> {
        let body = match &*self.body_coding {
            "text" => self.body.as_bytes().to_vec(),
            "base64" => STANDARD.decode(&self.body).ok()?,
            _ => return None,
        };
        (body.len() == self.body_size).then_some(body)
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, DecimalValue};

    use super::*;
    use crate::value::{from_json, from_typed_json};

    fn document(delivery: &Delivery) -> Vec<u8> {
        let mut document = message_json(delivery, &RawBody::of(delivery, &delivery.data));
        add_typed_headers(&mut document, delivery);
        document.to_string().into_bytes()
    }

    fn values() -> Vec<AMQPValue> {
        let decimal = DecimalValue { scale: 2, value: (-150_i32).cast_unsigned() };
        let mut values = vec![
            AMQPValue::Boolean(true),
            AMQPValue::ShortShortInt(-1),
            AMQPValue::ShortShortUInt(255),
            AMQPValue::ShortInt(-2),
            AMQPValue::ShortUInt(2),
            AMQPValue::LongInt(-3),
            AMQPValue::LongUInt(u32::MAX),
            AMQPValue::LongLongInt(3),
            AMQPValue::LongLongInt(i64::MIN),
            AMQPValue::Float(0.1),
            AMQPValue::Double(0.1 + 0.2),
            AMQPValue::Double(f64::INFINITY),
            AMQPValue::DecimalValue(decimal),
            AMQPValue::LongString("Köln".into()),
            AMQPValue::LongString(b"K\xf6ln".to_vec().into()),
            AMQPValue::Timestamp(1_764_072_000),
            AMQPValue::Timestamp(u64::MAX),
            AMQPValue::ByteArray(b"text".to_vec().into()),
            AMQPValue::ByteArray(b"\xff".to_vec().into()),
            AMQPValue::Void,
        ];
        let mut nested = FieldTable::default();
        for (index, value) in values.iter().enumerate() {
            nested.insert(format!("n{index}").into(), value.clone());
        }
        let mut evident = FieldTable::default();
        evident.insert("a".into(), AMQPValue::LongString("b".into()));
        values.extend([
            AMQPValue::FieldArray(values.clone().into()),
            AMQPValue::FieldTable(nested),
            AMQPValue::FieldTable(evident),
            AMQPValue::FieldArray(vec![AMQPValue::LongInt(1)].into()),
        ]);
        values
    }

    #[test]
    fn headers_keep_their_types() {
        for value in values() {
            let mut headers = FieldTable::default();
            headers.insert("h".into(), value.clone());
            headers.insert(QUEUE_HEADERS[0].into(), AMQPValue::ShortInt(1));
            let mut delivery = Delivery::mock(1, "x".into(), "k".into(), false, vec![0xff]);
            delivery.properties = BasicProperties::default().with_headers(headers);
            let parsed = RawMessage::parse(&document(&delivery)).expect("a document");
            assert_eq!(parsed.body(), Some(vec![0xff]));
            let found: Vec<_> = parsed.headers().collect();
            let [("h", json, typed)] = found[..] else { panic!("{found:?}") };
            let restored = match typed {
                Some(typed) => from_typed_json(typed),
                None => Some(from_json(json)),
            };
            assert_eq!(restored, Some(value));
        }
    }

    /// A document of an earlier version of Ordain contains no types. Bytes of any other form are not a document.
    #[test]
    fn document_without_types_is_read() {
        let mut headers = FieldTable::default();
        headers.insert("h".into(), AMQPValue::ShortInt(7));
        let mut delivery = Delivery::mock(1, "x".into(), "k".into(), false, b"body".to_vec());
        delivery.properties =
            BasicProperties::default().with_headers(headers).with_priority(3).with_timestamp(7);
        let document = message_json(&delivery, &RawBody::of(&delivery, b"body")).to_string();
        let parsed = RawMessage::parse(document.as_bytes()).expect("a document");
        assert_eq!(parsed.headers().collect::<Vec<_>>(), [("h", &json!(7), None)]);
        assert_eq!((parsed.properties.priority, parsed.properties.timestamp), (Some(3), Some(7)));
        assert_eq!(parsed.properties.message_id, None);
        let part = message_json(&delivery, &RawBody::of(&delivery, b"bo")).to_string();
        assert_eq!(RawMessage::parse(part.as_bytes()).and_then(|part| part.body()), None);
        for other in [&b"{}"[..], b"[]", b"\xff", b"", &document.as_bytes()[1..]] {
            assert!(RawMessage::parse(other).is_none(), "{other:?}");
        }
    }
}
