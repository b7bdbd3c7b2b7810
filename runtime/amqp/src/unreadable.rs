//! Converts a message that is not an event into a dead letter that contains the whole message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lapin::message::Delivery;
use ordain_core::{DeadLetter, Event, LetterContent, LetterId, digest};
use serde_json::{Value, json};

use super::decode::{DeliveryDecoder, QUEUE_HEADERS};
use super::value::table;

/// Decodes a delivery into an event, or into a dead letter whose origin is this queue.
pub(super) fn decode_or_letter(
    decoder: &DeliveryDecoder,
    queue: &str,
    delivery: &Delivery,
) -> Result<Event, Box<DeadLetter>> {
    decoder.decode(delivery).map_err(|error| {
        // A body above the event limit is cut to its beginning, as a line of a file is.
        let (body, rest) = split_at_limit(&delivery.data, decoder.event_size);
        let raw: Bytes = message_json(delivery, body).into();
        let tag = if rest.is_empty() { digest(&raw) } else { digest(&raw) ^ digest(rest) };
        Box::new(DeadLetter {
            id: LetterId {
                key: error.key.unwrap_or_default().into(),
                sequence: error.sequence.unwrap_or_default(),
                tag,
            },
            cause: error.cause,
            error: error.message,
            origin: Some(format!("queue {queue}")),
            version: None,
            content: LetterContent::Raw(raw),
        })
    })
}

/// Splits a body after at most `limit` bytes, at a character boundary if it is text.
fn split_at_limit(body: &[u8], limit: usize) -> (&[u8], &[u8]) {
    let limit = std::str::from_utf8(body).map_or(limit, |text| text.floor_char_boundary(limit));
    body.split_at(limit.min(body.len()))
}

/// Encodes a message with its properties, its headers and the kept part of its body as JSON.
fn message_json(delivery: &Delivery, body: &[u8]) -> Vec<u8> {
    let properties = &delivery.properties;
    let text =
        |property: &Option<lapin::types::ShortString>| property.as_ref().map(ToString::to_string);
    let (body, coding) = match std::str::from_utf8(body) {
        Ok(text) => (text.to_owned(), "text"),
        Err(_) => (STANDARD.encode(body), "base64"),
    };
    let mut headers = properties.headers().as_ref().map(table);
    if let Some(headers) = headers.as_mut().and_then(Value::as_object_mut) {
        // The same message must always produce the same letter.
        headers.retain(|name, _| !QUEUE_HEADERS.contains(&name.as_str()));
    }
    let message = json!({
        "exchange": delivery.exchange.as_str(),
        "routing_key": delivery.routing_key.as_str(),
        "properties": {
            "content_type": text(properties.content_type()),
            "content_encoding": text(properties.content_encoding()),
            "delivery_mode": properties.delivery_mode(),
            "priority": properties.priority(),
            "correlation_id": text(properties.correlation_id()),
            "reply_to": text(properties.reply_to()),
            "expiration": text(properties.expiration()),
            "message_id": text(properties.message_id()),
            "timestamp": properties.timestamp(),
            "type": text(properties.kind()),
            "user_id": text(properties.user_id()),
            "app_id": text(properties.app_id()),
        },
        "headers": headers,
        "body": body,
        "body_coding": coding,
        "body_size": delivery.data.len(),
    });
    message.to_string().into_bytes()
}
