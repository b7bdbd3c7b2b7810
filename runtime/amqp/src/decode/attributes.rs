//! Reads the attributes of an event: its type, its media type and its time. Also reads whether the event ends its key,
//! and reads single attributes and properties.

use std::borrow::Cow;

use lapin::types::{AMQPValue, ShortString};
use ordain_cloudevents::{ATTRIBUTE_LIMIT, event_time, in_calendar, located_text, number_time};
use ordain_config::EventLocations;
use ordain_core::Cause;

use super::headers::EventHeaders;
use super::place::MessageReader;
use super::{DeliveryResult, reject};
use crate::header::{CE_END_HEADER, END_HEADER};
use crate::value::{as_bool, as_integer, as_text, excerpt, not_utf8};

/// Returns the type of the event; `None` for a missing or unreadable type.
pub(super) fn kind<'r>(
    reader: &'r MessageReader<'_>,
    locations: &EventLocations,
    headers: &EventHeaders<'r>,
) -> DeliveryResult<Option<Cow<'r, str>>> {
    match &locations.kind {
        None => optional_attribute("type", headers.kind, reader.kind),
        Some(location) => {
            located_text(reader, location).map(|kind| within_limit("type", kind)).transpose()
        }
    }
}

/// Returns the media type of the data; `None` for a missing or unreadable media type.
pub(super) fn content_type<'r>(
    reader: &'r MessageReader<'_>,
    headers: &EventHeaders<'r>,
) -> DeliveryResult<Option<Cow<'r, str>>> {
    let property = reader.delivery.properties.content_type().as_ref();
    optional_attribute("datacontenttype", headers.content_type, property)
}

/// Returns the time of the event, in µs since the Unix epoch. There are three places, in this order: the CloudEvents
/// attribute `time` (in a form that [`event_time`] reads), the header `timestamp_in_ms` (a number of ms), and AMQP's
/// own timestamp. This function uses the first place with a readable time. Other programs may use these names for
/// something else, so an unreadable value is not an error. AMQP's timestamp is in seconds, but many producers write
/// another unit.
pub(super) fn default_time(headers: &EventHeaders<'_>, timestamp: Option<u64>) -> Option<u64> {
    let attribute = headers.time.and_then(as_text).and_then(|text| event_time(&text));
    // Ordain and a timestamp plugin of RabbitMQ write the header `timestamp_in_ms`.
    let header_us =
        || headers.time_ms.and_then(as_integer)?.checked_mul(1_000).and_then(in_calendar);
    attribute.or_else(header_us).or_else(|| timestamp.map(number_time))
}

pub(super) fn ends_key(headers: &EventHeaders<'_>) -> DeliveryResult<bool> {
    match first_present(END_HEADER, headers.end, CE_END_HEADER, headers.ce_end) {
        None => Ok(false),
        Some((name, value)) => as_bool(value).map_or_else(
            || {
                let message = format!("{name} must be true or false, found {}", excerpt(value));
                reject(Cause::Unreadable, message)
            },
            Ok,
        ),
    }
}

/// Returns Ordain's header if the message has it, otherwise the CloudEvents header. Each header is a name and a value.
pub(super) fn first_present<'a>(
    own: &'static str,
    value: Option<&'a AMQPValue>,
    of_cloudevents: &'static str,
    other: Option<&'a AMQPValue>,
) -> Option<(&'static str, &'a AMQPValue)> {
    value.map(|value| (own, value)).or(other.map(|value| (of_cloudevents, value)))
}

/// Returns the value of a CloudEvents attribute, from the header with the attribute, or from the AMQP property if the
/// message lacks this header. If the header is empty, this function returns `None`, and does not read the property.
pub(super) fn attribute<'a>(
    name: &str,
    header: Option<&'a AMQPValue>,
    property: Option<&'a ShortString>,
) -> DeliveryResult<Option<Cow<'a, str>>> {
    let text = match (header, property) {
        (Some(value), _) => {
            let Some(text) = as_text(value) else {
                let found = excerpt(value);
                let message = format!("cloudEvents:{name} must be a text, found {found}");
                return reject(Cause::Unreadable, message);
            };
            text
        }
        (None, Some(property)) => utf8(name, property)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(within_limit(name, text)?).filter(|text| !text.is_empty()))
}

/// Returns the value of an attribute, as [`attribute`] does. An unreadable value counts as missing.
fn optional_attribute<'a>(
    name: &str,
    header: Option<&'a AMQPValue>,
    property: Option<&'a ShortString>,
) -> DeliveryResult<Option<Cow<'a, str>>> {
    let is_readable = match (header, property) {
        (Some(value), _) => as_text(value).is_some(),
        (None, Some(property)) => not_utf8(property.as_str()).is_none(),
        (None, None) => true,
    };
    if is_readable { attribute(name, header, property) } else { Ok(None) }
}

/// Rejects a value that is longer than [`ATTRIBUTE_LIMIT`].
pub(super) fn within_limit<'a>(name: &str, text: Cow<'a, str>) -> DeliveryResult<Cow<'a, str>> {
    if text.len() > ATTRIBUTE_LIMIT {
        let size = text.len();
        return reject(
            Cause::Unreadable,
            format!("the {name} has {size} bytes; at most {ATTRIBUTE_LIMIT} bytes are allowed"),
        );
    }
    Ok(text)
}

/// Rejects a text that was not UTF-8 in the message. With replaced bytes, two different texts could become equal.
pub(super) fn utf8<'a>(place: &str, text: &'a ShortString) -> DeliveryResult<Cow<'a, str>> {
    match not_utf8(text.as_str()) {
        None => Ok(Cow::Borrowed(text.as_str())),
        Some(bytes) => {
            reject(Cause::Unreadable, format!("{place} must be UTF-8, found the bytes {bytes}"))
        }
    }
}
