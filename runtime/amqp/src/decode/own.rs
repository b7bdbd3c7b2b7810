//! Recognises the messages that Ordain has published: the events of the stream, and dead letters. Ordain writes their
//! values into places of its own, which can differ from the places that the stream reads.

use std::sync::LazyLock;

use lapin::message::Delivery;
use ordain_config::{EventLocations, Place};
use ordain_core::OrderingMode;

use super::DeliveryDecoder;
use super::headers::has_header;
use crate::encode::{header, id};
use crate::header::{
    CAUSE_HEADER, DEFAULT_PLACES_HEADER, KEY_HEADER, LETTER_HEADER, SOURCE_HEADER,
};

/// The places of the values in an event with the header [`DEFAULT_PLACES_HEADER`], and in a dead letter of the stream.
pub(super) static OWN_LOCATIONS: LazyLock<EventLocations> = LazyLock::new(|| EventLocations {
    key: Some(Place::Header(KEY_HEADER.to_owned()).into()),
    ..EventLocations::DEFAULT
});

pub(super) struct OriginalEvent<'a> {
    pub(super) id: &'a str,
    pub(super) source: &'a str,
}

impl DeliveryDecoder {
    /// Returns whether a message is an event that Ordain has published to this stream, with the values in
    /// [`OWN_LOCATIONS`]. If Ordain writes all values into the places that the stream reads, no message counts as such
    /// an event.
    pub(super) fn is_published(&self, delivery: &Delivery) -> bool {
        !self.locations.has_only_written_places()
            && self.has_own_source(delivery, DEFAULT_PLACES_HEADER)
    }

    /// Returns whether a message is a dead letter of this stream, with the values in [`OWN_LOCATIONS`]. If the stream
    /// reads the default places, no message counts as such a letter.
    pub(super) fn is_letter(&self, delivery: &Delivery) -> bool {
        !self.locations.is_default() && self.has_own_cause(delivery)
    }

    /// Returns whether a message has the headers of a dead letter of this stream. In a dead letter in its original
    /// form, such headers come from the original message.
    fn has_own_cause(&self, delivery: &Delivery) -> bool {
        has_header(delivery, CAUSE_HEADER)
            && !has_header(delivery, LETTER_HEADER)
            && self.has_own_source(delivery, SOURCE_HEADER)
    }

    /// Returns the id and the source of the event in a returned dead letter of this stream. The letter itself has
    /// another id and another source. A `sequenced` stream needs the values of the event, so that the event counts as a
    /// repeat of its first delivery. Returns `None` for any other message. Also returns `None` if the letter does not
    /// have the sequence of its event, because a sequenced sink has numbered the letter.
    pub(super) fn returned_identity<'a>(
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
}

/// Returns the id of a dead letter of any stream; `None` for any other message. If a dead letter got a new id at each
/// delivery, dead letters could circulate forever between two streams.
pub(super) fn letter_id(delivery: &Delivery) -> Option<&str> {
    let properties = &delivery.properties;
    let is_letter = !header(properties, CAUSE_HEADER).is_empty();
    let id = is_letter.then(|| std::str::from_utf8(id(properties)).ok())?;
    id.filter(|id| !id.is_empty())
}
