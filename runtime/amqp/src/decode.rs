//! Converts a delivery into an event. The values come from AMQP's own properties and headers, or from CloudEvents in
//! binary or structured mode. In binary mode, each attribute is a header `cloudEvents:NAME`, `cloudEvents_NAME` or
//! `ce-NAME`.
//!
//! This module validates a delivery before the delivery becomes an event. If this module rejects a delivery, the error
//! describes the limit or the valid form.

mod amqp_value;
mod encoding;
mod place;
mod proposal;
mod structured;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::LazyLock;

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use ordain_core::{Cause, Event, EventParts, OrderingMode, SEQUENCE_END};

use super::encode::{header, id};
use super::header::{
    ATTRIBUTE_PREFIXES, CAUSE_HEADER, CE_END_HEADER, CE_SEQUENCE_HEADER, DEFAULT_PLACES_HEADER,
    END_HEADER, HTTP_ATTRIBUTE_PREFIX, HTTP_VERSION_HEADER, KEY_HEADER, LETTER_HEADER,
    QUEUE_HEADERS, RENAMED_PREFIX, SEQUENCE_HEADER, SOURCE_HEADER, STORE_NUMBERED_HEADER,
    SUBJECT_HEADER, TIME_MS_HEADER,
};
use super::original_letter::original_letter_id;
use super::value::{as_bool, as_integer, as_text, excerpt, json, not_utf8, short_text};
pub(crate) use encoding::Compression;
use encoding::plain_body;
use ordain_cloudevents::{
    ATTRIBUTE_LIMIT, DecodeError, EventDecoder, HEADERS_LIMIT, HEADERS_SIZE_LIMIT, LocatedId,
    LocationFault, content_id, describe_missing_id, event_time, in_calendar, located_id,
    located_key, located_sequence, located_text, located_time, number_time, source_of, unique_id,
};
use ordain_config::{
    AmqpSourceConfig, EventLocations, KeyLocation, MESSAGE_EVENTS_LIMIT, MessageProperty, Place,
    ResourceName, StreamConfig,
};
use ordain_store::KEY_SIZE_LIMIT;
use place::MessageReader;
pub(super) use proposal::{describe_message, propose_settings};
pub(crate) use structured::BatchEvent;
use structured::{structured_decoder, structured_mode};

/// The places of the values in an event with the header [`DEFAULT_PLACES_HEADER`], and in a dead letter of the stream.
static OWN_LOCATIONS: LazyLock<EventLocations> = LazyLock::new(|| EventLocations {
    key: Some(Place::Header(KEY_HEADER.to_owned()).into()),
    ..EventLocations::DEFAULT
});

/// A decoder of a stream's events.
#[derive(Debug, Clone)]
pub struct DeliveryDecoder {
    /// The CloudEvents source of the stream, as [`source_of`] returns it. The stream's
    /// own dead letters, and events that Ordain publishes to the stream, contain this source.
    pub(super) letter_source: String,
    /// The stream's ordering. On a `fifo` stream (ordered by arrival), the decoder treats a sequence header as an
    /// ordinary header.
    pub(super) ordering: OrderingMode,
    /// Maximum total size of a message's body and of its headers that have no meaning for Ordain, in bytes.
    pub(super) event_size: usize,
    /// The places of a message that contain the key, id, sequence, type and time.
    pub(super) locations: EventLocations,
    /// True if an exchange divides the messages of the stream among several partitions.
    is_partitioned: bool,
    /// The decoder of bodies that are CloudEvents in structured mode.
    structured: EventDecoder,
    /// Maximum number of events in a batch.
    batch_limit: usize,
}

/// The cause and message of a rejection, before the event's key and sequence are added.
struct DeliveryRejection(Cause, String);

impl DeliveryRejection {
    fn of(LocationFault { cause, message }: LocationFault) -> Self {
        Self(cause, message)
    }

    fn into_error(self, key: Option<String>, sequence: Option<u64>) -> DecodeError {
        let Self(cause, message) = self;
        DecodeError { cause, message, key, sequence }
    }
}

type DeliveryResult<T> = Result<T, DeliveryRejection>;

fn reject<T>(cause: Cause, message: impl Into<String>) -> DeliveryResult<T> {
    Err(DeliveryRejection(cause, message.into()))
}

/// The key of an event, and the place that contains the whole key. The place is `None` if no setting names the place of
/// the key, or if the key consists of several values.
struct DeliveryKey<'a> {
    text: Cow<'a, str>,
    place: Option<&'a Place>,
}

/// The id and the source of an event.
struct OriginalEvent<'a> {
    id: &'a str,
    source: &'a str,
}

/// The values of the headers that have a meaning for Ordain, and all other headers.
#[derive(Default)]
struct EventHeaders<'a> {
    sequence: Option<&'a AMQPValue>,
    end: Option<&'a AMQPValue>,
    time_ms: Option<&'a AMQPValue>,
    id: Option<&'a AMQPValue>,
    kind: Option<&'a AMQPValue>,
    source: Option<&'a AMQPValue>,
    time: Option<&'a AMQPValue>,
    ce_sequence: Option<&'a AMQPValue>,
    ce_end: Option<&'a AMQPValue>,
    content_type: Option<&'a AMQPValue>,
    store_numbered: Option<&'a AMQPValue>,
    others: Vec<(&'a str, &'a AMQPValue)>,
}

impl<'a> EventHeaders<'a> {
    /// Sorts the headers of a delivery. Omits the header in `key_place`, which contains the key `key`. If a location
    /// names the places of a value, the default header of this value has no meaning.
    fn of(
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
            if QUEUE_HEADERS.contains(&name) || key_header == Some(name) {
                continue;
            }
            let attribute = prefixes.clone().find_map(|prefix| name.strip_prefix(prefix));
            if name == SUBJECT_HEADER && is_text(value, key) {
                // Ordain writes the key of each message into this header. The event already contains the key.
                continue;
            }
            if attribute.is_some() && matches!(value, AMQPValue::Void) {
                // In CloudEvents, an attribute without a value is missing.
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
    /// Creates the decoder of a stream that reads the values of its events from `locations`. `letter_source` is the
    /// CloudEvents source of the stream. `event_size` is the maximum size of an event in bytes. `is_partitioned` states
    /// whether an exchange divides the messages of the stream among several partitions.
    pub fn new(
        letter_source: String,
        ordering: OrderingMode,
        event_size: usize,
        locations: EventLocations,
        is_partitioned: bool,
    ) -> Self {
        let structured = structured_decoder(ordering, event_size, &locations, is_partitioned);
        Self {
            letter_source,
            ordering,
            event_size,
            locations,
            is_partitioned,
            structured,
            batch_limit: MESSAGE_EVENTS_LIMIT,
        }
    }

    /// Creates the decoder of a configured stream that reads from the broker. `event_size` is the maximum size of an
    /// event in bytes.
    pub fn of_stream(
        name: &ResourceName,
        stream: &StreamConfig,
        source: &AmqpSourceConfig,
        event_size: usize,
    ) -> Self {
        let letter_source = source_of(name);
        let is_partitioned = source.partitions > 1;
        Self::new(letter_source, stream.ordering, event_size, source.locations(), is_partitioned)
            .with_batch_limit(stream.message_events_limit())
    }

    /// Sets the maximum number of events in a batch of CloudEvents.
    #[must_use]
    pub fn with_batch_limit(self, batch_limit: usize) -> Self {
        Self { batch_limit, ..self }
    }

    /// Returns a decoder with another ordering, and with other places of the values.
    fn with(&self, ordering: OrderingMode, locations: EventLocations) -> Self {
        let letter_source = self.letter_source.clone();
        Self::new(letter_source, ordering, self.event_size, locations, self.is_partitioned)
            .with_batch_limit(self.batch_limit)
    }

    /// Returns whether an event lacks the sequence that an event of the stream needs. The message of such an event becomes
    /// a dead letter.
    pub(super) fn lacks_sequence(&self, event: &Event) -> bool {
        self.ordering == OrderingMode::Sequenced && event.sequence().is_none()
    }

    /// Decodes one delivery. An event of a `sequenced` stream (ordered by the producer's numbers) may lack its
    /// sequence (`lacks_sequence`).
    pub fn decode(&self, delivery: &Delivery) -> Result<Event, DecodeError> {
        let is_published = self.is_published(delivery);
        let is_own = is_published || self.is_letter(delivery);
        let locations = if is_own { &*OWN_LOCATIONS } else { &self.locations };
        let body = plain_body(delivery, self.event_size);
        let (data, encoding) = match &body {
            Ok(body) => (&*body.data, body.encoding.as_deref()),
            Err(_) => (&[][..], None),
        };
        let is_amqp_value = body.as_ref().is_ok_and(|body| body.is_amqp_value);
        let kind = delivery.properties.kind().as_ref().filter(|_| !is_amqp_value);
        let reader = MessageReader { delivery, data, kind, encoding };
        if let Some(mode) = structured_mode(delivery).filter(|_| body.is_ok()) {
            return self.decode_structured(mode, &reader);
        }
        let key = read_key(&reader, locations);
        let key_place = if is_published {
            // The encoder writes the key into this place too.
            self.locations.key.as_ref().and_then(KeyLocation::single)
        } else {
            key.as_ref().ok().and_then(|key| key.place)
        };
        let key_text = key.as_ref().map_or("", |key| &*key.text);
        let headers = EventHeaders::of(delivery, locations, self.ordering, key_text, key_place);
        let sequence = || self.sequence(&reader, locations, &headers);
        if let Err(message) = &body {
            let message = message.clone();
            let key = key.ok().map(|key| key.text.into_owned());
            let sequence = sequence().ok().flatten();
            return Err(DecodeError { cause: Cause::Unreadable, message, key, sequence });
        }
        let key = key.map_err(|rejected| rejected.into_error(None, sequence().ok().flatten()))?;
        self.event(&reader, locations, &headers, &key.text, key_place).map_err(|rejected| {
            rejected.into_error(Some(key.text.clone().into_owned()), sequence().ok().flatten())
        })
    }

    /// Returns whether a message is an event that Ordain has published to this stream, with the values in
    /// [`OWN_LOCATIONS`]. If Ordain writes all values into the places that the stream reads, no message counts as such
    /// an event.
    fn is_published(&self, delivery: &Delivery) -> bool {
        !self.locations.has_only_written_places()
            && self.has_own_source(delivery, DEFAULT_PLACES_HEADER)
    }

    /// Returns whether a message is a dead letter of this stream, with the values in [`OWN_LOCATIONS`]. If the stream
    /// reads the default places, no message counts as such a letter.
    fn is_letter(&self, delivery: &Delivery) -> bool {
        !self.locations.is_default() && self.has_own_cause(delivery)
    }

    /// Returns whether a message has the headers of a dead letter of this stream. In a dead letter in its original
    /// form, such headers come from the original message.
    fn has_own_cause(&self, delivery: &Delivery) -> bool {
        has_header(delivery, CAUSE_HEADER)
            && !has_header(delivery, LETTER_HEADER)
            && self.has_own_source(delivery, SOURCE_HEADER)
    }

    /// Returns the id and the source of the event in a returned dead letter of this stream. The letter has an id and a
    /// source of its own. In a `sequenced` stream, its event must remain a repeat of the first delivery. Returns `None`
    /// for any other message. Also returns `None` if the letter does not have the sequence of its event, because a
    /// sequenced sink has numbered the letter.
    fn returned_identity<'a>(
        &self,
        delivery: &'a Delivery,
        sequence: Option<u64>,
    ) -> Option<OriginalEvent<'a>> {
        let text = |name| std::str::from_utf8(header(&delivery.properties, name)).ok();
        if self.ordering != OrderingMode::Sequenced || !self.has_own_cause(delivery) {
            return None;
        }
        let event_sequence: u64 = text("deadsequence")?.parse().ok()?;
        let id = text("deadid").filter(|id| !id.is_empty() && sequence == Some(event_sequence))?;
        Some(OriginalEvent { id, source: text("deadsource")? })
    }

    /// Returns whether a header contains the CloudEvents source of this stream, and another header contains the key.
    fn has_own_source(&self, delivery: &Delivery, name: &str) -> bool {
        has_header(delivery, KEY_HEADER)
            && header(&delivery.properties, name) == self.letter_source.as_bytes()
    }

    fn event(
        &self,
        reader: &MessageReader<'_>,
        locations: &EventLocations,
        headers: &EventHeaders<'_>,
        key: &str,
        key_place: Option<&Place>,
    ) -> DeliveryResult<Event> {
        let properties = &reader.delivery.properties;
        let others = self.other_headers(reader, &headers.others, key, key_place)?;
        let others: Vec<(&str, &str)> =
            others.iter().map(|(name, value)| (&**name, &**value)).collect();
        let sequence = self.sequence(reader, locations, headers)?;
        let returned = self.returned_identity(reader.delivery, sequence);
        let id = match &returned {
            Some(event) => Cow::Borrowed(event.id),
            None => self.id(reader, locations, headers, key, sequence)?,
        };
        let source = match &returned {
            Some(event) => Cow::Borrowed(event.source),
            None => attribute("source", headers.source, None)?.unwrap_or_default(),
        };
        let kind = kind(reader, locations, headers)?;
        let content_type = content_type(reader, headers)?;
        let end = match first_present(END_HEADER, headers.end, CE_END_HEADER, headers.ce_end) {
            None => false,
            Some((name, value)) => as_bool(value).map_or_else(
                || {
                    let message = format!("{name} must be true or false, found {}", excerpt(value));
                    reject(Cause::Unreadable, message)
                },
                Ok,
            )?,
        };
        let is_store_numbered = self.has_default_numbers(locations)
            && headers.store_numbered.and_then(as_bool) == Some(true);
        let event = Event::new(&EventParts {
            key,
            sequence,
            id: &id,
            kind: kind.as_deref().unwrap_or_default(),
            source: &source,
            time_us: match &locations.time {
                Some(location) => located_time(reader, location),
                None => default_time(headers, *properties.timestamp()),
            },
            content_type: content_type.as_deref().unwrap_or_default(),
            headers: &others,
            data: reader.data,
            end,
        });
        Ok(event.with_store_numbered(is_store_numbered))
    }

    /// Returns whether the sequence and the id of an event are in the places into which Ordain writes them. Otherwise,
    /// the header [`STORE_NUMBERED_HEADER`] has no meaning: a stream that reads the id from another place may read
    /// another id at each delivery.
    fn has_default_numbers(&self, locations: &EventLocations) -> bool {
        self.ordering == OrderingMode::Sequenced
            && locations.sequence.is_none()
            && self.locations.id.is_none()
    }

    fn id<'r>(
        &self,
        reader: &'r MessageReader<'_>,
        locations: &EventLocations,
        headers: &EventHeaders<'r>,
        key: &str,
        sequence: Option<u64>,
    ) -> DeliveryResult<Cow<'r, str>> {
        let properties = &reader.delivery.properties;
        let found = match &locations.id {
            None => attribute("id", headers.id, properties.message_id().as_ref())?,
            Some(location) => match located_id(reader, location) {
                LocatedId::Text(id) => Some(within_limit("id", id)?),
                LocatedId::Content => {
                    let kind = kind(reader, locations, headers)?.unwrap_or_default();
                    Some(content_id(key, &kind, reader.data).into())
                }
                LocatedId::Unique => Some(
                    letter_id(reader.delivery).map_or_else(|| unique_id().into(), Cow::Borrowed),
                ),
                LocatedId::Missing => None,
            },
        };
        match (found, sequence, self.ordering) {
            (Some(id), ..) => Ok(id),
            (None, Some(sequence), _) => Ok(Cow::Owned(format!("{key}/{sequence}"))),
            (None, None, OrderingMode::Sequenced) => Ok(Cow::Borrowed("")),
            (None, None, OrderingMode::Fifo) => {
                // The message in another stream's dead letter may lack an id, but the dead letter itself has an id.
                if let Some(id) = original_letter_id(properties) {
                    return Ok(Cow::Borrowed(id));
                }
                let message = match &locations.id {
                    Some(location) => describe_missing_id(reader, location, self.ordering),
                    None => "there is no id, and a fifo stream detects repeats by the id: set the property \
                             message_id"
                        .to_owned(),
                };
                reject(Cause::NoId, message)
            }
        }
    }

    /// Returns the producer's sequence; `None` if there is no sequence.
    fn sequence(
        &self,
        reader: &MessageReader<'_>,
        locations: &EventLocations,
        headers: &EventHeaders<'_>,
    ) -> DeliveryResult<Option<u64>> {
        match &locations.sequence {
            Some(location) if self.ordering == OrderingMode::Sequenced => {
                located_sequence(reader, location).map_err(DeliveryRejection::of)
            }
            _ => Self::default_sequence(headers),
        }
    }

    /// Returns the sequence in the default headers; `None` if there is no header with a sequence.
    fn default_sequence(headers: &EventHeaders<'_>) -> DeliveryResult<Option<u64>> {
        let found = first_present(
            SEQUENCE_HEADER,
            headers.sequence,
            CE_SEQUENCE_HEADER,
            headers.ce_sequence,
        );
        let Some((name, value)) = found else { return Ok(None) };
        match as_integer(value) {
            Some(number) if number < SEQUENCE_END => Ok(Some(number)),
            _ => {
                let found = excerpt(value);
                let message =
                    format!("{name} must be a whole number below {SEQUENCE_END}, found {found}");
                reject(Cause::NoSequence, message)
            }
        }
    }

    /// Returns headers without a meaning for Ordain, as texts, and the properties that a handler reads as headers.
    /// Omits the property in `key_place`, which contains the key. A value that is neither a text, a number nor a
    /// Boolean becomes JSON. Returns an error if the headers exceed the limit on their number or size, or if the name
    /// of a header is not UTF-8. Also returns an error if the headers and the body together exceed the size limit of an
    /// event.
    fn other_headers<'a>(
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
                    "the message has {count} headers with {size} bytes; at most {HEADERS_LIMIT} headers with \
                     {HEADERS_SIZE_LIMIT} bytes are allowed"
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

/// Returns whether the value of a header is this text, as a long string of AMQP.
fn is_text(value: &AMQPValue, text: &str) -> bool {
    matches!(value, AMQPValue::LongString(found) if found.as_bytes() == text.as_bytes())
}

/// Returns the prefixes of the headers of a message that contain attributes of a CloudEvent.
fn attribute_prefixes(delivery: &Delivery) -> impl Iterator<Item = &'static str> + Clone + use<> {
    let http_prefix = has_header(delivery, HTTP_VERSION_HEADER).then_some(HTTP_ATTRIBUTE_PREFIX);
    ATTRIBUTE_PREFIXES.into_iter().chain(http_prefix)
}

fn has_header(delivery: &Delivery, name: &str) -> bool {
    let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
    headers.is_some_and(|headers| headers.contains_key(name))
}

/// Returns the key of an event.
fn read_key<'r>(
    reader: &'r MessageReader<'_>,
    locations: &'r EventLocations,
) -> DeliveryResult<DeliveryKey<'r>> {
    let Some(location) = &locations.key else {
        let place = "the routing key";
        let key = utf8(place, &reader.delivery.routing_key)?;
        let size = key.len();
        if size > KEY_SIZE_LIMIT {
            return reject(
                Cause::Unreadable,
                format!("the key has {size} bytes; at most {KEY_SIZE_LIMIT} bytes are allowed"),
            );
        }
        if key.is_empty() {
            return reject(Cause::NoKey, format!("there is no key: {place} must contain the key"));
        }
        return Ok(DeliveryKey { text: key, place: None });
    };
    let key = located_key(reader, location).map_err(DeliveryRejection::of)?;
    Ok(DeliveryKey { text: key.text, place: key.place })
}

/// Returns the id of a dead letter of any stream; `None` for any other message. With a new id at each delivery, dead
/// letters could circulate forever between two streams.
fn letter_id(delivery: &Delivery) -> Option<&str> {
    let properties = &delivery.properties;
    let is_letter = !header(properties, CAUSE_HEADER).is_empty();
    let id = is_letter.then(|| std::str::from_utf8(id(properties)).ok())?;
    id.filter(|id| !id.is_empty())
}

/// Returns the type of an event; `None` if the event has no type, or a type that cannot be read.
fn kind<'r>(
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

/// Returns the media type of the data; `None` if the event has none, or one that cannot be read.
fn content_type<'r>(
    reader: &'r MessageReader<'_>,
    headers: &EventHeaders<'r>,
) -> DeliveryResult<Option<Cow<'r, str>>> {
    let property = reader.delivery.properties.content_type().as_ref();
    optional_attribute("datacontenttype", headers.content_type, property)
}

/// Returns the name and the value of Ordain's header. If Ordain's header is missing, returns the name and the value of
/// the CloudEvents header.
fn first_present<'a>(
    own: &'static str,
    value: Option<&'a AMQPValue>,
    of_cloudevents: &'static str,
    other: Option<&'a AMQPValue>,
) -> Option<(&'static str, &'a AMQPValue)> {
    value.map(|value| (own, value)).or(other.map(|value| (of_cloudevents, value)))
}

/// Returns a CloudEvents attribute, or the AMQP property if the message lacks the attribute. An empty value counts as
/// missing. If the message has the attribute with an empty value, this function ignores the property, and returns
/// `None`.
fn attribute<'a>(
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

/// Returns an attribute or property as [`attribute`] does. If its value cannot be read, returns `None`.
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

/// Returns a value. Rejects a value that is longer than [`ATTRIBUTE_LIMIT`].
fn within_limit<'a>(name: &str, text: Cow<'a, str>) -> DeliveryResult<Cow<'a, str>> {
    if text.len() > ATTRIBUTE_LIMIT {
        let size = text.len();
        return reject(
            Cause::Unreadable,
            format!("the {name} has {size} bytes; at most {ATTRIBUTE_LIMIT} bytes are allowed"),
        );
    }
    Ok(text)
}

/// Returns the text of a short string. Rejects a text that was not UTF-8 in the message. If the decoder replaced
/// invalid bytes instead, two different texts could become equal.
fn utf8<'a>(place: &str, text: &'a ShortString) -> DeliveryResult<Cow<'a, str>> {
    match not_utf8(text.as_str()) {
        None => Ok(Cow::Borrowed(text.as_str())),
        Some(bytes) => {
            reject(Cause::Unreadable, format!("{place} must be UTF-8, found the bytes {bytes}"))
        }
    }
}

/// Returns the time of the event, in µs since the Unix epoch. There are three places, in this order: the CloudEvents
/// attribute `time` (in a form that [`event_time`] reads), the header `timestamp_in_ms` (a number of ms), and AMQP's
/// own timestamp. The first place with a readable time counts. Other programs may use these names for something else,
/// so an unreadable value is not an error. AMQP's timestamp is in seconds, but many producers write another unit.
fn default_time(headers: &EventHeaders<'_>, timestamp: Option<u64>) -> Option<u64> {
    let attribute = headers.time.and_then(as_text).and_then(|text| event_time(&text));
    // Ordain and a timestamp plugin of RabbitMQ write this header.
    let header_us =
        || headers.time_ms.and_then(as_integer)?.checked_mul(1_000).and_then(in_calendar);
    attribute.or_else(header_us).or_else(|| timestamp.map(number_time))
}
