//! Converts a delivery into an event. The values come from AMQP's own properties and headers, or from CloudEvents in
//! binary or structured mode. In binary mode, each attribute is a header `cloudEvents:NAME`, `cloudEvents_NAME` or
//! `ce-NAME`.
//!
//! This module validates a delivery before the delivery becomes an event. If this module rejects a delivery, the error
//! describes the limit or the valid form.
//!
//! `headers` sorts the headers of a message, `identity` reads the key, the id and the sequence of an event, and
//! `attributes` reads its other values. `own` recognises messages that Ordain has published. `structured` decodes
//! CloudEvents in structured mode. `place` reads the places that the settings of a source name. `encoding` and
//! `amqp_value` return the data in a body. `proposal` proposes settings for messages that cannot be read.

mod amqp_value;
mod attributes;
mod encoding;
mod headers;
mod identity;
mod own;
mod place;
mod proposal;
mod structured;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use lapin::message::Delivery;
use ordain_core::{Cause, Event, EventParts, OrderingMode, SEQUENCE_END, sequence_fault};

use super::value::as_bool;
use attributes::{attribute, content_type, default_time, ends_key, kind};
pub(crate) use encoding::Compression;
use encoding::plain_body;
use headers::EventHeaders;
use identity::read_key;
use ordain_cloudevents::{DecodeError, EventDecoder, LocationFault, located_time, source_of};
use ordain_config::{
    AmqpSourceConfig, EventLocations, KeyLocation, MESSAGE_EVENTS_LIMIT, Place, ResourceName,
    StreamConfig,
};
use own::OWN_LOCATIONS;
use place::MessageReader;
pub(super) use proposal::{describe_message, propose_settings};
pub(crate) use structured::BatchEvent;
use structured::{structured_decoder, structured_mode};

/// A decoder of a stream's events.
#[derive(Debug, Clone)]
pub struct DeliveryDecoder {
    /// The CloudEvents source of the stream, as [`source_of`] returns it. The stream's
    /// own dead letters, and events that Ordain publishes to the stream, contain this source.
    pub(super) letter_source: String,
    /// The stream's ordering. In a `fifo` stream, the decoder treats a sequence header as an ordinary header.
    pub(super) ordering: OrderingMode,
    /// Maximum total size of a message's body and of its headers that have no meaning for Ordain, in bytes.
    pub(super) event_size: usize,
    pub(super) locations: EventLocations,
    /// The valid sequences of the events, if the stream is `sequenced`.
    sequences: Range<u64>,
    /// True if an exchange divides the messages of the stream among several partitions.
    is_partitioned: bool,
    structured: EventDecoder,
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
            sequences: 0..SEQUENCE_END,
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
            .with_sequences(stream.sequences())
            .with_batch_limit(stream.message_events_limit())
    }

    /// Sets the valid sequences of the events of a `sequenced` stream. By default, every sequence is valid.
    #[must_use]
    pub fn with_sequences(self, sequences: Range<u64>) -> Self {
        Self { sequences, ..self }
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
            .with_sequences(self.sequences.clone())
            .with_batch_limit(self.batch_limit)
    }

    /// Returns the fault of an event without a valid sequence. The message of such an event becomes a dead letter.
    pub(super) fn sequence_fault(&self, event: &Event) -> Option<String> {
        match self.ordering {
            OrderingMode::Sequenced => sequence_fault(&self.sequences, event.sequence()),
            OrderingMode::Fifo => None,
        }
    }

    /// Decodes one delivery. In a `sequenced` stream, the result may be an event without a valid sequence (see
    /// `sequence_fault`).
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
            // The encoder of published events also writes the key into the place from which the stream reads the key.
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
        let end = ends_key(headers)?;
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
}
