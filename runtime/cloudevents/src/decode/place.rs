//! Reads the places of a CloudEvent that the configuration can name.

use ordain_config::Place;

use super::super::envelope::{EnvelopeMember, EventEnvelope};
use super::super::located::{PlaceReader, PlaceValue};
use super::super::pointer::{NotJsonError, find_value, scalar_text};
use super::attribute::excerpt;

/// The envelope and the data of an event, and the places of the message that contains the event, if there is one.
pub(super) struct EnvelopeReader<'e> {
    pub(super) envelope: &'e EventEnvelope<'e>,
    pub(super) data: &'e [u8],
    pub(super) outside: Option<&'e dyn PlaceReader>,
}

impl<'e> EnvelopeReader<'e> {
    /// Returns the JSON of the value in a place; `None` if there is no value.
    fn raw(&self, place: &Place) -> Result<Option<&'e str>, NotJsonError> {
        match place {
            Place::Data(pointer) => find_value(self.data, pointer),
            Place::Attribute(name) => Ok(EnvelopeMember::of(name).map_or_else(
                || {
                    let mut extensions = self.envelope.extensions.iter();
                    extensions.find(|(other, _)| other == name).map(|(_, raw)| *raw)
                },
                |member| self.envelope.raw(member),
            )),
            Place::RoutingKey | Place::Header(_) | Place::Property(_) => Ok(None),
        }
    }

    /// Returns the reader of a place outside the event. Only a message has such places: if the source does not read
    /// from the broker, the check of the configuration rejects these places.
    fn outside(&self, place: &Place) -> Option<&'e dyn PlaceReader> {
        match place {
            Place::RoutingKey | Place::Header(_) | Place::Property(_) => self.outside,
            Place::Attribute(_) | Place::Data(_) => None,
        }
    }
}

impl PlaceReader for EnvelopeReader<'_> {
    fn read(&self, place: &Place) -> PlaceValue<'_> {
        if let Some(outside) = self.outside(place) {
            return outside.read(place);
        }
        match self.raw(place) {
            Ok(raw) => raw.and_then(scalar_text).map_or(PlaceValue::Missing, PlaceValue::Text),
            Err(_) => PlaceValue::NotJson,
        }
    }

    fn show(&self, place: &Place) -> String {
        if let Some(outside) = self.outside(place) {
            return outside.show(place);
        }
        excerpt(self.raw(place).ok().flatten().unwrap_or("nothing")).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use ordain_config::{
        EventLocations, IdLocation, IdPlace, JsonPointer, KeyLocation, KeyPart, KeyPlace,
        ValueLocation,
    };
    use ordain_core::{Cause, DeadLetter, Event, LetterContent, LetterId, OrderingMode};

    use super::*;
    use crate::{DecodeError, EventDecoder, TextForm, content_id, decode_http, encode_letter};

    fn data(path: &str) -> Place {
        Place::Data(JsonPointer::parse(path).expect("a pointer"))
    }

    fn attribute(name: &str) -> Place {
        Place::Attribute(name.to_owned())
    }

    fn by_key(places: Vec<KeyPlace>) -> EventLocations {
        EventLocations { key: Some(KeyLocation(places)), ..EventLocations::DEFAULT }
    }

    fn by_id(places: Vec<IdPlace>) -> EventLocations {
        EventLocations { id: Some(IdLocation(places)), ..EventLocations::DEFAULT }
    }

    /// Decodes an event with `members` and with data.
    fn decode(
        ordering: OrderingMode,
        locations: EventLocations,
        members: &str,
    ) -> Result<Event, DecodeError> {
        let line = format!(
            r#"{{"specversion":"1.0","id":"e1","source":"/s","type":"t","subject":"s",{members}
                "data":{{"order":"o-1","n":7,"list":[1],"sent":1764072000123}}}}"#
        );
        EventDecoder::new(ordering, 1 << 20).with_locations(locations).decode(line.as_bytes())
    }

    #[test]
    fn key_is_read_from_the_first_present_place() {
        use KeyPlace::{Composite, Place as One, Stream};
        let parts = || {
            vec![
                KeyPart::Place(attribute("tenant")),
                KeyPart::Text("/".to_owned()),
                KeyPart::Place(data("/n")),
            ]
        };
        let more = r#""tenant":"blue","flag":true,"none":null,"empty":"","#;
        for (places, key, headers) in [
            (vec![One(data("/order"))], "o-1", 4),
            (vec![One(attribute("tenant"))], "blue", 4),
            (vec![One(attribute("flag"))], "true", 4),
            (vec![One(attribute("none")), One(attribute("empty")), One(data("/n"))], "7", 4),
            (vec![One(data("/list")), One(attribute("subject"))], "s", 3),
            (vec![Composite(parts())], "blue/7", 4),
            (vec![One(data("/missing")), Stream], "*", 4),
        ] {
            let event = decode(OrderingMode::Fifo, by_key(places), more).expect(key);
            assert_eq!(event.key(), key);
            // The headers are `subject` and the extensions `tenant`, `flag` and `empty`. An attribute `subject` that is
            // the whole key is no header.
            assert_eq!(event.headers().count(), headers, "{key}");
        }
        for (places, message) in [
            (
                vec![One(attribute("none")), One(data("/list"))],
                "there is no key: the attribute \"none\" or the data at \"/list\" must contain the key",
            ),
            (
                vec![Composite(parts())],
                "there is no key: the attribute \"tenant\" must contain a part of the key",
            ),
        ] {
            let error = decode(OrderingMode::Fifo, by_key(places), "").expect_err(message);
            assert_eq!((error.cause, &*error.message), (Cause::NoKey, message));
        }
    }

    #[test]
    fn different_values_never_result_in_the_same_composite_key() {
        let key = |between: &str, a: &str, b: &str| {
            let parts = vec![
                KeyPart::Text("order-".to_owned()),
                KeyPart::Place(attribute("a")),
                KeyPart::Text(between.to_owned()),
                KeyPart::Place(attribute("b")),
            ];
            let members = format!("\"a\":\"{a}\",\"b\":\"{b}\",");
            let locations = by_key(vec![KeyPlace::Composite(parts)]);
            decode(OrderingMode::Fifo, locations, &members).expect("a key").key().to_owned()
        };
        assert_eq!(key("/", "x", "y/z"), "order-x/y%2Fz");
        assert_eq!(key("/", "x/y", "z"), "order-x%2Fy/z");
        assert_eq!(key("/", "x%2Fy", "z"), "order-x%252Fy/z");
        assert_eq!(key("–to–", "x–", "o"), "order-x%E2%80%93–to–o");
        // A key with a single value contains this value unchanged.
        let parts = vec![KeyPart::Place(attribute("a")), KeyPart::Text("/".to_owned())];
        let locations = by_key(vec![KeyPlace::Composite(parts)]);
        let event = decode(OrderingMode::Fifo, locations, r#""a":"50%/x","#);
        assert_eq!(event.expect("a key").key(), "50%/x/");
    }

    #[test]
    fn data_in_binary_mode_has_places() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-type", "t"),
            ("ce-source", "/s"),
            ("ce-customer", "c"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let parts = vec![
            KeyPart::Place(attribute("customer")),
            KeyPart::Text("-".to_owned()),
            KeyPart::Place(data("/a/0")),
        ];
        let decoder = EventDecoder::new(OrderingMode::Fifo, 1 << 20)
            .with_locations(by_key(vec![KeyPlace::Composite(parts)]));
        let event = decode_http(&decoder, &headers, &Bytes::from_static(b"{\"a\":[1.50]}"));
        assert_eq!(event.expect("an event").key(), "c-1.50");
        let error = decode_http(&decoder, &headers, &Bytes::from_static(b"a=1"));
        let error = error.expect_err("no JSON").message;
        let expected = "there is no key: the data at \"/a/0\" must contain a part of the key; the data is not JSON";
        assert_eq!(error, expected);
    }

    #[test]
    fn id_is_read_or_computed() {
        let fifo = |places| decode(OrderingMode::Fifo, by_id(places), "");
        let event = fifo(vec![IdPlace::Place(data("/order"))]).expect("an event");
        assert_eq!(event.id(), "o-1");
        // The attribute `id` is an ordinary header.
        assert_eq!(event.headers().collect::<Vec<_>>(), [("id", "e1")]);
        let event = fifo(vec![IdPlace::Place(data("/list")), IdPlace::Content]).expect("an event");
        assert_eq!(event.id(), content_id("s", "t", event.data()));
        let ids = [(); 2].map(|()| fifo(vec![IdPlace::Unique]).expect("an event").id().to_owned());
        assert_ne!(ids[0], ids[1]);
        let error = fifo(vec![IdPlace::Place(data("/list"))]).expect_err("no id");
        assert_eq!(error.cause, Cause::NoId);
        assert!(error.message.ends_with("the data at \"/list\" must contain the id"), "{error}");
    }

    /// The store recognises an event without a sequence by its id, so different events must not have the same id.
    #[test]
    fn sequenced_event_needs_the_located_id() {
        let sequenced = |place, members: &str| {
            decode(OrderingMode::Sequenced, by_id(vec![IdPlace::Place(place)]), members)
        };
        for members in ["", r#""sequence":"1","#] {
            let error = sequenced(data("/missing"), members).expect_err("no id");
            let message = "there is no id: the data at \"/missing\" must contain the id";
            assert_eq!((error.cause, &*error.message), (Cause::NoId, message));
        }
        let event = sequenced(data("/order"), "").expect("an event");
        assert_eq!((event.id(), event.sequence()), ("o-1", None));
    }

    /// If a setting names the default place, the attribute has its usual meaning, and is no header.
    #[test]
    fn attribute_in_its_default_place_is_no_header() {
        let one = |name| Some(ValueLocation(vec![attribute(name)]));
        let locations = EventLocations {
            id: Some(IdLocation(vec![IdPlace::Place(attribute("id")), IdPlace::Content])),
            sequence: one("sequence"),
            kind: one("type"),
            time: one("time"),
            ..by_key(vec![KeyPlace::Place(attribute("subject"))])
        };
        let members = r#""sequence":"4","time":"2026-11-25T12:00:00Z","#;
        let event = decode(OrderingMode::Sequenced, locations, members).expect("an event");
        assert_eq!((event.key(), event.id(), event.kind()), ("s", "e1", "t"));
        assert_eq!((event.sequence(), event.time_ms()), (Some(4), Some(1_795_608_000_000)));
        assert_eq!(event.headers().count(), 0);
    }

    /// The subject of a dead letter is the key of the event. The stream reads the key from the place that its setting
    /// names.
    #[test]
    fn dead_letter_can_be_sent_to_its_stream_again() {
        let locations = by_key(vec![KeyPlace::Place(attribute("tenant"))]);
        let event = decode(OrderingMode::Fifo, locations.clone(), r#""tenant":"blue","#);
        let letter = DeadLetter {
            id: LetterId { key: "blue".into(), sequence: 1, tag: 1 },
            cause: Cause::Rejected,
            error: "no".to_owned(),
            origin: None,
            version: None,
            content: LetterContent::Event(Arc::new(event.expect("an event"))),
        };
        let mut line = Vec::new();
        encode_letter("s", &letter, None, TextForm::Text, &mut line);
        let decoder = EventDecoder::new(OrderingMode::Fifo, 1 << 20).with_locations(locations);
        assert_eq!(decoder.decode(&line).expect("an event").key(), "blue");
    }

    #[test]
    fn sequence_type_and_time_are_read() {
        let one = |place| Some(ValueLocation(vec![place]));
        let locations = EventLocations {
            sequence: one(data("/n")),
            kind: one(attribute("kind")),
            time: one(data("/sent")),
            ..EventLocations::DEFAULT
        };
        let sequenced = |members: &str| decode(OrderingMode::Sequenced, locations.clone(), members);
        let event = sequenced(r#""kind":"paid","sequence":"1","#).expect("an event");
        assert_eq!((event.sequence(), event.kind()), (Some(7), "paid"));
        assert_eq!(event.time_ms(), Some(1_764_072_000_123));
        let mut headers: Vec<_> = event.headers().collect();
        headers.sort_unstable();
        assert_eq!(headers, [("kind", "paid"), ("sequence", "1"), ("type", "t")]);
        let event = sequenced("").expect("an event");
        assert_eq!(event.kind(), "");
        // The error of an invalid event contains the key and the sequence.
        let error = sequenced(r#""endofsequence":"maybe","#).expect_err("invalid");
        assert_eq!((error.key.as_deref(), error.sequence), (Some("s"), Some(7)));
        let locations =
            EventLocations { sequence: one(data("/missing")), ..EventLocations::DEFAULT };
        let event = decode(OrderingMode::Sequenced, locations, "").expect("an event");
        assert_eq!(event.sequence(), None);
        let locations = EventLocations { sequence: one(data("/order")), ..EventLocations::DEFAULT };
        let error = decode(OrderingMode::Sequenced, locations, "").expect_err("no number");
        assert_eq!(error.cause, Cause::NoSequence);
        assert!(
            error.message.starts_with("the data at \"/order\" must be a whole number"),
            "{error}"
        );
        assert!(error.message.ends_with("found \"o-1\""), "{error}");
        for time in ["yesterday", "10000-01-01T00:00:00Z", "1960-01-01T00:00:00Z"] {
            let locations =
                EventLocations { time: one(attribute("time")), ..EventLocations::DEFAULT };
            let members = format!("\"time\":\"{time}\",");
            let event = decode(OrderingMode::Fifo, locations, &members).expect(time);
            assert_eq!(event.time_ms(), None, "{time}");
        }
    }
}
