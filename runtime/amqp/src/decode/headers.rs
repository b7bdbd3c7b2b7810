//! Sorts the headers of a message into headers with a meaning for Ordain and all others, which become the headers of
//! the event.

use std::borrow::Cow;

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_cloudevents::{HEADERS_LIMIT, HEADERS_SIZE_LIMIT};
use ordain_config::{EventLocations, MessageProperty, Place};
use ordain_core::{Cause, OrderingMode};

use super::place::MessageReader;
use super::{DeliveryDecoder, DeliveryResult, reject};
use crate::header::{
    ATTRIBUTE_PREFIXES, DEFAULT_PLACES_HEADER, END_HEADER, HTTP_ATTRIBUTE_PREFIX,
    HTTP_VERSION_HEADER, KEY_HEADER, QUEUE_HEADERS, RENAMED_PREFIX, SEQUENCE_HEADER,
    STORE_NUMBERED_HEADER, SUBJECT_HEADER, TIME_MS_HEADER,
};
use crate::value::{as_text, has_value, json, not_utf8, short_text};

/// The headers of a message: the headers that have a meaning for Ordain, and all others.
#[derive(Default)]
pub(super) struct EventHeaders<'a> {
    pub(super) sequence: Option<&'a AMQPValue>,
    pub(super) end: Option<&'a AMQPValue>,
    pub(super) time_ms: Option<&'a AMQPValue>,
    pub(super) id: Option<&'a AMQPValue>,
    pub(super) kind: Option<&'a AMQPValue>,
    pub(super) source: Option<&'a AMQPValue>,
    pub(super) time: Option<&'a AMQPValue>,
    pub(super) ce_sequence: Option<&'a AMQPValue>,
    pub(super) ce_end: Option<&'a AMQPValue>,
    pub(super) content_type: Option<&'a AMQPValue>,
    pub(super) store_numbered: Option<&'a AMQPValue>,
    pub(super) others: Vec<(&'a str, &'a AMQPValue)>,
}

impl<'a> EventHeaders<'a> {
    /// Sorts the headers of a message. Omits the header in `key_place`, which contains the key `key`, and headers
    /// without a value. If a location names the places of a value, the default header of this value has no meaning.
    pub(super) fn of(
        delivery: &'a Delivery,
        locations: &EventLocations,
        ordering: OrderingMode,
        key: &str,
        key_place: Option<&Place>,
    ) -> Self {
        let key_header = match key_place {
            Some(Place::Header(name)) => Some(name.as_str()),
            _ => None,
        };
        let mut headers = Self::default();
        let has_sequence = ordering == OrderingMode::Sequenced && locations.sequence.is_none();
        let has_time = locations.time.is_none();
        let prefixes = attribute_prefixes(delivery);
        let table = delivery.properties.headers().as_ref();
        for (name, value) in table.into_iter().flat_map(FieldTable::inner) {
            let name = name.as_str();
            if QUEUE_HEADERS.contains(&name) || key_header == Some(name) || !has_value(value) {
                continue;
            }
            let attribute = prefixes.clone().find_map(|prefix| name.strip_prefix(prefix));
            if name == SUBJECT_HEADER && is_text(value, key) {
                // Ordain writes the key of each message into this header. The event already contains the key.
                continue;
            }
            let place = match attribute.unwrap_or(name) {
                SEQUENCE_HEADER if attribute.is_none() && has_sequence => &mut headers.sequence,
                END_HEADER if attribute.is_none() => &mut headers.end,
                TIME_MS_HEADER if attribute.is_none() && has_time => &mut headers.time_ms,
                "id" if attribute.is_some() && locations.id.is_none() => &mut headers.id,
                "type" if attribute.is_some() && locations.kind.is_none() => &mut headers.kind,
                "source" if attribute.is_some() => &mut headers.source,
                "time" if attribute.is_some() && has_time => &mut headers.time,
                "datacontenttype" if attribute.is_some() => &mut headers.content_type,
                "sequence" if attribute.is_some() && has_sequence => &mut headers.ce_sequence,
                "endofsequence" if attribute.is_some() => &mut headers.ce_end,
                // `specversion` describes the encoding of the event, not the event.
                "specversion" if attribute.is_some() => continue,
                STORE_NUMBERED_HEADER if attribute.is_none() => &mut headers.store_numbered,
                DEFAULT_PLACES_HEADER if attribute.is_none() => continue,
                name => {
                    headers.others.push((name, value));
                    continue;
                }
            };
            *place = Some(value);
        }
        headers
    }
}

impl DeliveryDecoder {
    /// Returns, as texts, the headers without a meaning for Ordain, and the properties that a handler reads as headers.
    /// Omits the property in `key_place`. A value of another type than text, number or Boolean becomes JSON. Fails if
    /// the headers are too many or too large, if a name is not UTF-8, or if the event exceeds its size limit.
    pub(super) fn other_headers<'a>(
        &self,
        reader: &MessageReader<'a>,
        headers: &[(&'a str, &'a AMQPValue)],
        key: &str,
        key_place: Option<&Place>,
    ) -> DeliveryResult<Vec<(Cow<'a, str>, Cow<'a, str>)>> {
        let mut size = 0;
        let mut others = Vec::with_capacity(headers.len() + MessageProperty::HANDLER_HEADERS.len());
        for (name, value) in headers {
            let value = as_text(value).unwrap_or_else(|| json(value, usize::MAX).into());
            // Ordain writes the key of each message into this header. The event already contains the key.
            if *name == KEY_HEADER && value == key {
                continue;
            }
            if let Some(bytes) = not_utf8(name) {
                let message =
                    format!("the name of a header must be UTF-8, found the bytes {bytes}");
                return reject(Cause::Unreadable, message);
            }
            let name = match MessageProperty::of_header(name) {
                // A header must not replace a property: the broker has checked some properties, but no header.
                Some(_) => Cow::Owned(format!("{RENAMED_PREFIX}{name}")),
                None => Cow::Borrowed(*name),
            };
            size += name.len() + value.len();
            others.push((name, value));
        }
        for property in MessageProperty::HANDLER_HEADERS {
            let value = match property {
                MessageProperty::ContentEncoding => reader.encoding.map(Cow::Borrowed),
                property => reader.property(property),
            };
            let value = value.filter(|_| key_place != Some(&Place::Property(property)));
            if let Some(value) = value.map(short_text) {
                size += property.header_name().len() + value.len();
                others.push((property.header_name().into(), value));
            }
        }
        if others.len() > HEADERS_LIMIT || size > HEADERS_SIZE_LIMIT {
            let count = others.len();
            return reject(
                Cause::Unreadable,
                format!(
                    "the message has {count} headers, {size} bytes in total; at most {HEADERS_LIMIT} headers and \
                     {HEADERS_SIZE_LIMIT} bytes in total are allowed"
                ),
            );
        }
        let whole = reader.data.len() + size;
        let limit = self.event_size;
        if whole > limit {
            let message =
                format!("the event has {whole} bytes; runtime.event_size allows {limit} bytes");
            return reject(Cause::Unreadable, message);
        }
        Ok(others)
    }
}

fn is_text(value: &AMQPValue, text: &str) -> bool {
    matches!(value, AMQPValue::LongString(found) if found.as_bytes() == text.as_bytes())
}

pub(super) fn attribute_prefixes(
    delivery: &Delivery,
) -> impl Iterator<Item = &'static str> + Clone + use<> {
    let http_prefix = has_header(delivery, HTTP_VERSION_HEADER).then_some(HTTP_ATTRIBUTE_PREFIX);
    ATTRIBUTE_PREFIXES.into_iter().chain(http_prefix)
}

pub(super) fn has_header(delivery: &Delivery, name: &str) -> bool {
    let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
    headers.is_some_and(|headers| headers.contains_key(name))
}
