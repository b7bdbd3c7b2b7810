//! Decodes CloudEvents in structured mode: the body of the message is the whole event, in JSON. The body of a batch is
//! an array of such events. `ordain-cloudevents` decodes the events. This module adds the places and the headers of the
//! message.

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use ordain_cloudevents::{
    ContentMode, DecodeError, EventCarrier, EventDecoder, batch_elements, cloudevents_mode,
};
use ordain_config::{
    EventLocations, IdLocation, IdPlace, KeyLocation, KeyPlace, MESSAGE_EVENTS_LIMIT,
    MIN_REMEMBERED_IDS, Place, ValueLocation,
};
use ordain_core::{Cause, Event, OrderingMode};

use super::DeliveryDecoder;
use super::encoding::plain_body;
use super::headers::{attribute_prefixes, has_header};
use super::place::MessageReader;
use crate::header::{KEY_HEADER, QUEUE_HEADERS, VERSION_HEADER};
use crate::value::has_value;
use crate::weight::headers_memory;

/// The media type of a message with one event.
const EVENT_MEDIA_TYPE: &str = "application/cloudevents+json";

/// An event of a batch, as a message with this event alone would contain it.
pub(crate) struct BatchEvent<'a> {
    pub(crate) body: &'a str,
    pub(crate) content_type: &'static str,
    /// The content encoding of the batch, without the compression that the decoder has undone.
    pub(crate) content_encoding: Option<&'a str>,
    /// The property `type` of the batch; `None` if it only names the encoding of the batch as an AMQP value.
    pub(crate) kind: Option<&'a str>,
}

/// Returns the decoder of the bodies of a stream's messages in structured mode. If no setting names the place of the
/// key, the key is in the same attributes as over HTTP. An event without these attributes has the routing key as its
/// key. If the stream has several partitions, the routing key is always the key, because the exchange chooses the
/// partition by the routing key.
pub(super) fn structured_decoder(
    ordering: OrderingMode,
    event_size: usize,
    locations: &EventLocations,
    is_partitioned: bool,
) -> EventDecoder {
    let default_key = || {
        let attributes = ["partitionkey", "subject"].map(|name| Place::Attribute(name.to_owned()));
        let attributes = attributes.into_iter().filter(|_| !is_partitioned);
        let places = attributes.chain([Place::RoutingKey]);
        KeyLocation(places.map(KeyPlace::Place).collect())
    };
    let key = Some(locations.key.clone().unwrap_or_else(default_key));
    EventDecoder::new(ordering, event_size)
        .with_locations(EventLocations { key, ..locations.clone() })
}

/// Returns the mode of a message whose content type CloudEvents defines for events in JSON; `None` for any other
/// message. A message that Ordain has published is always in binary mode: its content type describes only its data.
pub(super) fn structured_mode(delivery: &Delivery) -> Option<ContentMode> {
    let content_type = delivery.properties.content_type().as_ref()?;
    let mode = cloudevents_mode(content_type.as_str())?;
    let is_own = has_header(delivery, KEY_HEADER) && has_header(delivery, VERSION_HEADER);
    (!is_own).then_some(mode)
}

/// Returns whether all events of a batch read the same value in a place.
fn is_outside_event(place: &Place) -> bool {
    match place {
        Place::RoutingKey | Place::Header(_) | Place::Property(_) => true,
        Place::Attribute(_) | Place::Data(_) => false,
    }
}

/// Returns whether several events of a batch may read the same id from a place outside the events.
fn may_share_id(location: &IdLocation) -> bool {
    for place in &location.0 {
        match place {
            // `IdPlace::Content` and `IdPlace::Unique` give every event an id, so no event reads the later places.
            IdPlace::Content | IdPlace::Unique => return false,
            IdPlace::Place(Place::Attribute(name)) if name == "id" => return false,
            IdPlace::Place(place) if is_outside_event(place) => return true,
            IdPlace::Place(_) => {}
        }
    }
    false
}

fn unreadable(message: String) -> DecodeError {
    DecodeError { cause: Cause::Unreadable, message, key: None, sequence: None }
}

fn shared_value(value: &str, setting: &str) -> String {
    format!(
        "the setting {setting} names a place outside the events of a batch, so all events of the batch would have the \
         same {value}. Publish each event in its own message, or name a place in the data (\"data:/POINTER\")"
    )
}

/// Returns the advice with which a `fifo` stream can read batches of more than `limit` events. As an example, the text
/// contains a `prefetch` for batches of ten times `limit` events.
fn batch_remedy(limit: usize) -> String {
    let events = (10 * limit).min(MESSAGE_EVENTS_LIMIT);
    let prefetch = MIN_REMEMBERED_IDS / events;
    format!(
        ", or lower `prefetch` in the source of the stream: with `prefetch = {prefetch}`, a message can have {events} \
         events. A fifo stream must remember the ids of all events in `prefetch` messages, but it may remember no more \
         than the last {MIN_REMEMBERED_IDS} ids of each key (or the last `id_window` ids, if `id_window` is lower)"
    )
}

impl DeliveryDecoder {
    /// Decodes each event of a batch, and returns the results of `each` in the order of the batch. Returns `None` for
    /// any other message, and for a batch whose events cannot be separated: [`Self::decode`] then returns the reason.
    pub(crate) fn decode_batch<T>(
        &self,
        delivery: &Delivery,
        mut each: impl FnMut(BatchEvent<'_>, Result<Event, DecodeError>) -> T,
    ) -> Option<Vec<T>> {
        if structured_mode(delivery) != Some(ContentMode::Batch) {
            return None;
        }
        let body = plain_body(delivery, self.event_size).ok()?;
        let content_encoding = body.encoding.as_deref();
        let kind = delivery.properties.kind().as_ref().filter(|_| !body.is_amqp_value);
        let kind = kind.map(ShortString::as_str);
        let elements = self.batch_elements(delivery, &body.data).ok()?;
        let decoded = elements.into_iter().map(|element| {
            let data = element.as_bytes();
            let reader = MessageReader { delivery, data, kind: None, encoding: content_encoding };
            let event = self.decode_event(&reader);
            let content_type = EVENT_MEDIA_TYPE;
            each(BatchEvent { body: element, content_type, content_encoding, kind }, event)
        });
        Some(decoded.collect())
    }

    /// Returns the events in the body of a batch. The error states that the body is not a batch, or that the batch
    /// exceeds a limit.
    fn batch_elements<'b>(
        &self,
        delivery: &Delivery,
        body: &'b [u8],
    ) -> Result<Vec<&'b str>, String> {
        let limit = self.batch_limit;
        let size = body.len();
        let event_size = self.event_size;
        if size > event_size {
            return Err(format!(
                "the batch has {size} bytes; runtime.event_size allows {event_size} bytes"
            ));
        }
        if self.locations.id.as_ref().is_some_and(may_share_id) {
            return Err(shared_value("id", "`id` or `format`"));
        }
        let has_shared_sequence =
            |location: &ValueLocation| location.0.iter().any(is_outside_event);
        if self.ordering == OrderingMode::Sequenced
            && self.locations.sequence.as_ref().is_some_and(has_shared_sequence)
        {
            return Err(shared_value("sequence", "`sequence`"));
        }
        let elements = batch_elements(body, limit)?;
        let count = elements.len();
        if count > limit {
            let remedy = match self.ordering {
                OrderingMode::Fifo if limit < MESSAGE_EVENTS_LIMIT => batch_remedy(limit),
                _ => String::new(),
            };
            let events = if limit == 1 { "event" } else { "events" };
            return Err(format!(
                "the batch has more than {limit} {events}: send at most {limit} {events} in a message{remedy}"
            ));
        }
        // Each event gets the headers of the message.
        let headers = headers_memory(delivery);
        if headers.saturating_mul(count.saturating_sub(1)) > event_size {
            return Err(format!(
                "each of the {count} events of the batch gets the headers of the message ({headers} bytes), and all \
                 copies together exceed runtime.event_size ({event_size} bytes). Send fewer events or fewer headers"
            ));
        }
        Ok(elements)
    }

    /// Decodes the event of a message in structured mode. Rejects a batch, because a batch is not one event.
    pub(super) fn decode_structured(
        &self,
        mode: ContentMode,
        reader: &MessageReader<'_>,
    ) -> Result<Event, DecodeError> {
        if mode == ContentMode::Structured {
            return self.decode_event(reader);
        }
        let elements = self.batch_elements(reader.delivery, reader.data);
        Err(unreadable(
            elements.err().unwrap_or_else(|| "the message is a batch of events".to_owned()),
        ))
    }

    /// Decodes the event in the data of `reader`.
    fn decode_event(&self, reader: &MessageReader<'_>) -> Result<Event, DecodeError> {
        let prefixes = attribute_prefixes(reader.delivery);
        let table = reader.delivery.properties.headers().as_ref();
        let values: Vec<(&str, &AMQPValue)> = table
            .into_iter()
            .flat_map(FieldTable::inner)
            .map(|(name, value)| (name.as_str(), value))
            // The body contains all attributes of the event.
            .filter(|(name, _)| !prefixes.clone().any(|prefix| name.starts_with(prefix)))
            .filter(|(name, value)| !QUEUE_HEADERS.contains(name) && has_value(value))
            .collect();
        let texts = self
            .other_headers(reader, &values, "", None)
            .map_err(|rejection| rejection.into_error(None, None))?;
        let headers: Vec<(&str, &str)> =
            texts.iter().map(|(name, value)| (&**name, &**value)).collect();
        let carrier = EventCarrier { places: reader, headers: &headers };
        self.structured.decode_carried(reader.data, carrier)
    }
}
