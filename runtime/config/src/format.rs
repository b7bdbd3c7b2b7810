//! The formats of messages that well-known libraries write. A format is only a set of default places. If a setting of a
//! source names the places of a value, these places replace the default places of this value. This module must not read
//! any event.

use std::fmt::Write;

use super::location::{
    EventLocations, IdLocation, Place, ValueLocation, parse_id_place, parse_place,
};
use super::reader::{ConfigReader, SettingNode, SettingValue, describe};
use super::suggest::nearest;

/// A format of messages: the name of a library, and the places in which this library writes the values of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFormat(&'static FormatPlaces);

/// The places of a format, as a configuration names them. No format contains a place of the key: the key is a part of
/// the business data, and each producer chooses another name for it.
#[derive(Debug, PartialEq, Eq)]
struct FormatPlaces {
    name: &'static str,
    /// The name of the library, as errors contain it.
    library: &'static str,
    /// An example: the place of the key in a typical message of the library.
    example_key: &'static str,
    id: &'static [&'static str],
    kind: &'static [&'static str],
    /// Empty if the library writes the time into the default place, or writes no time.
    time: &'static [&'static str],
    /// The places that identify messages of the library. Each message of the library has a value in at least one of
    /// these places. In messages of other programs, these places rarely have values.
    signature: &'static [&'static str],
    reason: &'static str,
}

static FORMATS: [FormatPlaces; 6] = [
    FormatPlaces {
        name: "masstransit",
        library: "MassTransit",
        example_key: "data:/message/orderId",
        id: &["property:message_id", "data:/messageId"],
        kind: &["data:/messageType/0"],
        time: &["data:/sentTime", "property:timestamp"],
        signature: &["data:/messageType/0"],
        reason: "MassTransit writes a JSON envelope around each message, and lists the type of the message before its \
                 base types",
    },
    FormatPlaces {
        name: "nservicebus",
        library: "NServiceBus",
        example_key: "data:/OrderId",
        id: &["property:message_id", "header:NServiceBus.MessageId"],
        kind: &["property:type", "header:NServiceBus.EnclosedMessageTypes"],
        time: &["header:NServiceBus.TimeSent", "property:timestamp"],
        signature: &["header:NServiceBus.MessageId", "header:NServiceBus.EnclosedMessageTypes"],
        reason: "NServiceBus writes the full name of the type into the property, and the names of all types with their \
                 assemblies into the header",
    },
    FormatPlaces {
        name: "celery",
        library: "Celery",
        example_key: "data:/0/0",
        id: &["header:id", "property:correlation_id"],
        kind: &["header:task"],
        time: &[],
        signature: &["header:task"],
        reason: "Celery writes the id of the task into both places and sets no message_id; the body is an array of the \
                 positional arguments, the named arguments and the options",
    },
    FormatPlaces {
        name: "spring",
        library: "Spring AMQP",
        example_key: "data:/orderId",
        id: &["property:message_id", "header:spring_returned_message_correlation"],
        kind: &["header:__TypeId__", "property:type"],
        time: &[],
        signature: &["header:__TypeId__", "header:spring_returned_message_correlation"],
        reason: "Spring AMQP sets the property if the converter creates message ids, and the header if the program \
                 passes CorrelationData",
    },
    FormatPlaces {
        name: "nestjs",
        library: "NestJS",
        example_key: "data:/data/orderId",
        id: &["property:message_id", "data:/id"],
        kind: &["data:/pattern", "data:/pattern/cmd"],
        time: &[],
        signature: &["data:/pattern", "data:/pattern/cmd"],
        reason: "NestJS writes {pattern, data} for an event, and {pattern, data, id} for a request; an event has no id",
    },
    FormatPlaces {
        name: "dapr",
        library: "Dapr",
        example_key: "data:/data/orderId",
        id: &["attribute:id", "property:message_id", "data:/id"],
        kind: &["attribute:type", "data:/type"],
        time: &["attribute:time", "data:/time"],
        signature: &["data:/specversion"],
        reason: "Dapr writes a CloudEvent in JSON with the content type text/plain, so Ordain treats the whole \
                 CloudEvent as data; with the content type application/cloudevents+json, Ordain reads the attributes \
                 of the CloudEvent",
    },
];

impl MessageFormat {
    /// Returns all formats.
    pub fn all() -> impl Iterator<Item = Self> {
        FORMATS.iter().map(Self)
    }

    /// Returns the name by which the configuration selects the format.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the name of the library that writes the format.
    pub(super) fn library(self) -> &'static str {
        self.0.library
    }

    /// Returns the place of a typical key in the format.
    pub(super) fn example_key(self) -> &'static str {
        self.0.example_key
    }

    /// Returns the places that identify messages of the library. Each message of the library has a value in at least
    /// one of these places. In messages of other programs, these places rarely have values.
    pub fn signature(self) -> Option<ValueLocation> {
        value_location(self.0.signature)
    }

    /// Returns the places in `named`. For each value without a place in `named`, returns the places of the format.
    pub fn complete(self, named: EventLocations) -> EventLocations {
        let default = self.locations();
        EventLocations {
            id: named.id.or(default.id),
            kind: named.kind.or(default.kind),
            time: named.time.or(default.time),
            ..named
        }
    }

    /// Returns the places of all values except the key and the sequence.
    fn locations(self) -> EventLocations {
        let FormatPlaces { id, kind, time, .. } = self.0;
        let id = id.iter().filter_map(|place| parse_id_place(place).ok()).collect();
        EventLocations {
            id: Some(IdLocation(id)),
            kind: value_location(kind),
            time: value_location(time),
            ..EventLocations::DEFAULT
        }
    }
}

fn value_location(places: &[&str]) -> Option<ValueLocation> {
    let places: Vec<Place> = places.iter().filter_map(|place| parse_place(place).ok()).collect();
    (!places.is_empty()).then_some(ValueLocation(places))
}

/// Appends the places of each format, and why the format uses them, to the reference of all settings.
pub(super) fn write_formats(out: &mut String, indent: &str) {
    for format in &FORMATS {
        let _ = writeln!(out, "{indent}format = {:?} names these places:", format.name);
        for (name, places) in [("id", format.id), ("type", format.kind), ("time", format.time)] {
            if !places.is_empty() {
                let _ = writeln!(out, "{indent}    {name} = {places:?}");
            }
        }
        let _ = writeln!(out, "{indent}    Needs a key, such as key = {:?}.", format.example_key);
        let _ = writeln!(out, "{indent}    Why: {}.", format.reason);
    }
}

impl SettingValue for MessageFormat {
    const FORM: &'static str =
        "\"masstransit\", \"nservicebus\", \"celery\", \"spring\", \"nestjs\" or \"dapr\"";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let text = reader.text(node, Self::FORM)?;
        if let Some(format) = FORMATS.iter().find(|format| format.name == text) {
            return Some(Self(format));
        }
        let names = FORMATS.iter().map(|format| format.name);
        let hint = nearest(&text, names)
            .map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
        let form = Self::FORM;
        let found = describe(node.value);
        reader.report(node.line, &node.name, format!("expected {form}, found {found}{hint}"));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_format_is_valid() {
        for format in &FORMATS {
            let signature = MessageFormat(format).signature();
            let locations = MessageFormat(format).locations();
            let count =
                |location: Option<ValueLocation>| location.map_or(0, |places| places.0.len());
            assert_eq!(locations.id.map_or(0, |id| id.0.len()), format.id.len(), "{format:?}");
            assert_eq!(count(locations.kind), format.kind.len(), "{format:?}");
            assert_eq!(count(locations.time), format.time.len(), "{format:?}");
            assert_eq!(count(signature), format.signature.len(), "{format:?}");
            assert!(locations.key.is_none() && locations.sequence.is_none(), "{format:?}");
            assert!(parse_place(format.example_key).is_ok(), "{format:?}");
            assert!(MessageFormat::FORM.contains(&format!("{:?}", format.name)), "{format:?}");
        }
    }
}
