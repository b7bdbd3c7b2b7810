//! Decodes CloudEvents in structured mode: the body of the message is the whole event, in JSON. `ordain-cloudevents`
//! decodes the body. This module adds the places and the headers of the message.

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_cloudevents::{ContentMode, DecodeError, EventCarrier, EventDecoder, cloudevents_mode};
use ordain_config::{EventLocations, KeyLocation, KeyPlace, Place};
use ordain_core::{Cause, Event, OrderingMode};

use super::place::MessageReader;
use super::{DeliveryDecoder, attribute_prefixes, has_header};
use crate::header::{KEY_HEADER, QUEUE_HEADERS, VERSION_HEADER};

/// The fault of a message with several events. The AMQP binding of CloudEvents has no batches.
const BATCH: &str = "the message is a batch of CloudEvents (application/cloudevents-batch+json), and the AMQP binding \
                     of CloudEvents has no batches: publish each event as a message of its own, with the content type \
                     application/cloudevents+json";

/// Returns the decoder of the bodies of a stream's messages in structured mode. If no setting names the place of the
/// key, the key is in the same attributes as over HTTP, otherwise in the routing key. If the stream has several
/// partitions, the key is always in the routing key, because the exchange chooses the partition by the routing key.
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

/// Returns the form of a message if its content type is a type that CloudEvents defines for events in JSON; `None` for
/// any other message. A message that Ordain has published is always in binary mode: its content type describes only its
/// data.
pub(super) fn structured_mode(delivery: &Delivery) -> Option<ContentMode> {
    let content_type = delivery.properties.content_type().as_ref()?;
    let mode = cloudevents_mode(content_type.as_str())?;
    let is_own = has_header(delivery, KEY_HEADER) && has_header(delivery, VERSION_HEADER);
    (!is_own).then_some(mode)
}

impl DeliveryDecoder {
    /// Decodes a message in structured mode. Rejects a message in any other `mode`, because it is a batch.
    pub(super) fn decode_structured(
        &self,
        mode: ContentMode,
        reader: &MessageReader<'_>,
    ) -> Result<Event, DecodeError> {
        if mode != ContentMode::Structured {
            let message = BATCH.to_owned();
            return Err(DecodeError {
                cause: Cause::Unreadable,
                message,
                key: None,
                sequence: None,
            });
        }
        let prefixes = attribute_prefixes(reader.delivery);
        let table = reader.delivery.properties.headers().as_ref();
        let headers: Vec<(&str, &AMQPValue)> = table
            .into_iter()
            .flat_map(FieldTable::inner)
            .map(|(name, value)| (name.as_str(), value))
            // The body contains all attributes of the event.
            .filter(|(name, _)| !prefixes.clone().any(|prefix| name.starts_with(prefix)))
            .filter(|(name, _)| !QUEUE_HEADERS.contains(name))
            .collect();
        let headers = self
            .other_headers(reader, &headers, "", None)
            .map_err(|rejection| rejection.into_error(None, None))?;
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let carrier = EventCarrier { places: reader, headers: &headers };
        self.structured.decode_carried(reader.data, carrier)
    }
}
