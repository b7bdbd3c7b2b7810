//! Dead letters in their original form. If a message is not an event, Ordain publishes its dead letter in this form:
//! with the body, headers, properties and routing key of the message. An operator can therefore move the dead letter
//! back to the stream. The values that Ordain adds are in separate headers.
//!
//! RabbitMQ interprets some values, so a dead letter contains these values under other names. The name of a reserved
//! header gets the prefix `x-original-`. A property that cannot be set becomes the header `x-original-property:NAME`.
//! The dead letter of a message is always persistent.

use std::borrow::Cow;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use ordain_cloudevents::{
    HEADERS_SIZE_LIMIT, LetterAttributes, REASON_ATTRIBUTES, letter_attributes,
};
use ordain_config::{MessageProperty, RoutingKeyTemplate};
use ordain_core::{DeadLetter, LetterContent};

use super::encode::{
    AmqpMessage, DIRECT_REPLY_ADDRESS, LetterFallback, MessageBody, PERSISTENT_DELIVERY_MODE,
    ROUTING_HEADERS, insert_reason, letter_routing_key, long_string, short_routing_key,
};
use super::header::{
    CAUSE_HEADER, LETTER_HEADER, ORIGINAL_EXCHANGE_HEADER, ORIGINAL_ROUTING_KEY_HEADER,
    RENAMED_PREFIX,
};
use super::raw_message::{RawMessage, RawProperties};
use super::unreadable::is_queue_origin;
use super::value::{field_name, from_json, from_typed_json, table_size};

/// The headers, besides those of the reason, that Ordain adds to a dead letter in its original form.
const ADDED_HEADERS: [&str; 3] =
    [LETTER_HEADER, ORIGINAL_ROUTING_KEY_HEADER, ORIGINAL_EXCHANGE_HEADER];

/// Encodes a dead letter of `stream` in its original form. With the default template for routing keys, the letter has
/// the routing key of the message. Returns `None` if the original form is impossible:
///
/// - The letter contains no message, or contains only a part of the body.
/// - The message is itself a dead letter in another form. The original form would rename the headers by which streams
///   recognise this dead letter, and dead letters could circulate between streams.
/// - The headers are so large that no header of Ordain fits into the frame.
pub(super) fn original_letter(
    stream: &str,
    letter: &DeadLetter,
    template: &RoutingKeyTemplate,
) -> Option<AmqpMessage> {
    let LetterContent::Raw(document) = &letter.content else { return None };
    let raw = RawMessage::parse(document).filter(|_| is_queue_origin(letter))?;
    if raw.has_header(CAUSE_HEADER) {
        return None;
    }
    let body = raw.body()?;
    let mut headers = original_headers(&raw)?;
    let properties = original_properties(&raw.properties, &mut headers);
    if table_size(&headers) > HEADERS_SIZE_LIMIT {
        return None;
    }
    let LetterAttributes { id, kind, reason, .. } = letter_attributes(stream, letter);
    insert_reason(&mut headers, &reason);
    for (name, value) in ADDED_HEADERS.iter().zip([&id, &raw.routing_key, &raw.exchange]) {
        headers.insert((*name).into(), long_string(value));
    }
    Some(AmqpMessage {
        routing_key: if template.is_key() {
            short_routing_key(raw.routing_key)
        } else {
            letter_routing_key(template, stream, letter, kind)
        },
        properties: properties.with_headers(headers),
        body: MessageBody::Raw(body.into()),
        fallback: LetterFallback::None,
    })
}

/// Returns the headers of a message, with other names for the reserved headers. Returns `None` if the type of a header
/// is unknown.
fn original_headers(raw: &RawMessage) -> Option<FieldTable> {
    let mut headers = FieldTable::default();
    for (name, value, typed) in raw.headers() {
        let is_reserved = [&ROUTING_HEADERS[..], &REASON_ATTRIBUTES, &ADDED_HEADERS]
            .iter()
            .any(|reserved| reserved.contains(&name));
        let mut name = Cow::Borrowed(name);
        // The message may itself have a header with the new name.
        while is_reserved && raw.has_header(&name) {
            name = format!("{RENAMED_PREFIX}{name}").into();
        }
        let value = match typed {
            Some(typed) => from_typed_json(typed)?,
            None => from_json(value),
        };
        headers.insert(field_name(&name), value);
    }
    Some(headers)
}

/// Returns the properties of a message, without headers. Moves a property into `headers` if the letter must not have
/// the property. The letter must not have these properties: with `expiration`, the broker would drop the letter. The
/// broker accepts `user_id` only from the user with this name. In `reply_to`, the broker accepts the address of a
/// direct reply only from the client that expects the reply.
fn original_properties(raw: &RawProperties, headers: &mut FieldTable) -> BasicProperties {
    type Setter = fn(BasicProperties, ShortString) -> BasicProperties;
    let reply_to: Option<Setter> = match raw.reply_to.as_deref() {
        Some(DIRECT_REPLY_ADDRESS) => None,
        _ => Some(BasicProperties::with_reply_to),
    };
    let texts: [(MessageProperty, &Option<String>, Option<Setter>); 9] = [
        (MessageProperty::ContentType, &raw.content_type, Some(BasicProperties::with_content_type)),
        (
            MessageProperty::ContentEncoding,
            &raw.content_encoding,
            Some(BasicProperties::with_content_encoding),
        ),
        (
            MessageProperty::CorrelationId,
            &raw.correlation_id,
            Some(BasicProperties::with_correlation_id),
        ),
        (MessageProperty::ReplyTo, &raw.reply_to, reply_to),
        (MessageProperty::Expiration, &raw.expiration, None),
        (MessageProperty::MessageId, &raw.message_id, Some(BasicProperties::with_message_id)),
        (MessageProperty::Type, &raw.kind, Some(BasicProperties::with_type)),
        (MessageProperty::UserId, &raw.user_id, None),
        (MessageProperty::AppId, &raw.app_id, Some(BasicProperties::with_app_id)),
    ];
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT_DELIVERY_MODE);
    for (property, value, set) in texts {
        let Some(value) = value else { continue };
        if let (Ok(value), Some(set)) = (ShortString::try_new(value.as_str()), set) {
            properties = set(properties, value);
        } else {
            let name = format!("{RENAMED_PREFIX}{}", property.header_name());
            headers.insert(name.into(), long_string(value));
        }
    }
    if let Some(priority) = raw.priority {
        properties = properties.with_priority(priority);
    }
    if let Some(timestamp) = raw.timestamp {
        properties = properties.with_timestamp(timestamp);
    }
    properties
}

/// Returns the id of a dead letter of any stream in its original form; `None` for any other message.
pub(super) fn original_letter_id(properties: &BasicProperties) -> Option<&str> {
    let is_letter = text_header(properties, CAUSE_HEADER).is_some_and(|cause| !cause.is_empty());
    text_header(properties, LETTER_HEADER).filter(|id| is_letter && !id.is_empty())
}

/// Returns the message in a dead letter as it first arrived: with its own routing key, `expiration` and `reply_to`, and
/// without the headers that Ordain added. The value of `user_id` remains in a header, because the broker has not
/// checked it for the dead letter.
pub(super) fn original_delivery(delivery: &Delivery) -> Delivery {
    let properties = &delivery.properties;
    let place = |name, current: &ShortString| {
        let original = text_header(properties, name);
        let original = original.and_then(|original| ShortString::try_new(original).ok());
        original.unwrap_or_else(|| current.clone())
    };
    let mut original = Delivery::mock(
        delivery.delivery_tag,
        place(ORIGINAL_EXCHANGE_HEADER, &delivery.exchange),
        place(ORIGINAL_ROUTING_KEY_HEADER, &delivery.routing_key),
        delivery.redelivered,
        delivery.data.clone(),
    );
    let expiration =
        moved_property(properties, MessageProperty::Expiration, properties.expiration().as_ref());
    let reply_to =
        moved_property(properties, MessageProperty::ReplyTo, properties.reply_to().as_ref());
    let restored =
        [&expiration, &reply_to].map(|property| property.as_ref().map(|(name, _)| &**name));
    let mut headers = FieldTable::default();
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        let is_added =
            REASON_ATTRIBUTES.contains(&name.as_str()) || ADDED_HEADERS.contains(&name.as_str());
        if !is_added && !restored.contains(&Some(name.as_str())) {
            headers.insert(name.clone(), value.clone());
        }
    }
    original.properties = properties.clone().with_headers(headers);
    if let Some((_, expiration)) = expiration {
        original.properties = original.properties.with_expiration(expiration);
    }
    if let Some((_, reply_to)) = reply_to {
        original.properties = original.properties.with_reply_to(reply_to);
    }
    original
}

/// Returns the header into which Ordain moved a property, and the value of the property. Returns `None` if the dead
/// letter has the property itself (`current`), or has no such header.
fn moved_property(
    properties: &BasicProperties,
    property: MessageProperty,
    current: Option<&ShortString>,
) -> Option<(String, ShortString)> {
    if current.is_some() {
        return None;
    }
    let name = format!("{RENAMED_PREFIX}{}", property.header_name());
    let value = ShortString::try_new(text_header(properties, &name)?).ok()?;
    Some((name, value))
}

/// Returns the text of a header; `None` if the header is missing or is not a text in UTF-8.
fn text_header<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a str> {
    match properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        _ => None,
    }
}
