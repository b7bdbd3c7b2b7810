//! Reads the key, the id and the sequence of an event.

use std::borrow::Cow;

use ordain_cloudevents::{
    LocatedId, content_id, describe_missing_id, located_id, located_key, located_sequence,
    unique_id,
};
use ordain_config::{EventLocations, Place};
use ordain_core::{Cause, OrderingMode, SEQUENCE_END};
use ordain_store::KEY_SIZE_LIMIT;

use super::attributes::{attribute, first_present, kind, utf8, within_limit};
use super::headers::EventHeaders;
use super::own::letter_id;
use super::place::MessageReader;
use super::{DeliveryDecoder, DeliveryRejection, DeliveryResult, reject};
use crate::header::{CE_SEQUENCE_HEADER, SEQUENCE_HEADER};
use crate::original_letter::original_letter_id;
use crate::value::{as_integer, excerpt};

/// The key of an event, and the place that contains the whole key. The place is `None` if no setting names the place of
/// the key, or if the key consists of several values.
pub(super) struct DeliveryKey<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) place: Option<&'a Place>,
}

pub(super) fn read_key<'r>(
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

impl DeliveryDecoder {
    /// Returns the id of an event; an empty id for an event that lacks the sequence that the stream needs.
    pub(super) fn id<'r>(
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
                    None if headers.id.is_some() => {
                        "there is no id, and a fifo stream detects repeats by the id: the header with the \
                         attribute `id` of the CloudEvent is empty"
                            .to_owned()
                    }
                    None => "there is no id, and a fifo stream detects repeats by the id: set the property \
                             message_id"
                        .to_owned(),
                };
                reject(Cause::NoId, message)
            }
        }
    }

    /// Returns the producer's sequence; `None` if there is no sequence.
    pub(super) fn sequence(
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

    /// Returns whether the sequence and the id of an event are in the places into which Ordain writes them. Otherwise,
    /// the header [`STORE_NUMBERED_HEADER`](crate::header::STORE_NUMBERED_HEADER) has no meaning: a stream that reads
    /// the id from another place may read another id at each delivery.
    pub(super) fn has_default_numbers(&self, locations: &EventLocations) -> bool {
        self.ordering == OrderingMode::Sequenced
            && locations.sequence.is_none()
            && self.locations.id.is_none()
    }
}
