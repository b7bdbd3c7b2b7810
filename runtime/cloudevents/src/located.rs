//! Reads the key, id, sequence, type and time of an event from the places that the configuration names. The decoders of
//! messages, requests and lines implement [`PlaceReader`]; this module chooses among the places and describes faults.

use std::borrow::Cow;

use ordain_config::{IdLocation, IdPlace, KeyLocation, KeyPart, KeyPlace, Place, ValueLocation};
use ordain_core::{Cause, OrderingMode, SEQUENCE_END};
use ordain_store::KEY_SIZE_LIMIT;

use super::id::percent_encode_bytes;
use super::time::event_time;

/// The key of all events of a stream whose key is `"*"`.
const STREAM_KEY: &str = "*";

/// The value in a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceValue<'a> {
    /// A text, a number or a Boolean, as text.
    Text(Cow<'a, str>),
    /// No value, or a value that counts as missing.
    Missing,
    /// A value of a type that cannot be a text.
    NotText,
    /// No value can be found, because the data of the event is not JSON.
    NotJson,
}

/// A reader of the places of one event.
pub trait PlaceReader {
    /// Returns the value in a place. A text may be empty.
    fn read(&self, place: &Place) -> PlaceValue<'_>;

    /// Returns the value in a place as the sender wrote it, shortened, for an error.
    fn show(&self, place: &Place) -> String;
}

/// A fault of an event that concerns a location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocationFault {
    /// The cause in the dead letter.
    pub cause: Cause,
    /// The description of the fault, and the valid form.
    pub message: String,
}

/// The key of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedKey<'a, 'l> {
    /// The key.
    pub text: Cow<'a, str>,
    /// The place that contains the whole key; `None` if no single place does.
    pub place: Option<&'l Place>,
}

/// The id of an event, or the way to determine it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocatedId<'a> {
    /// The id.
    Text(Cow<'a, str>),
    /// The id is [`content_id`](crate::content_id).
    Content,
    /// The id is [`unique_id`](crate::unique_id).
    Unique,
    /// No place contains an id.
    Missing,
}

/// Returns the text in a place; `None` if the place contains no text or an empty text.
fn text<'a>(reader: &'a impl PlaceReader, place: &Place) -> Option<Cow<'a, str>> {
    match reader.read(place) {
        PlaceValue::Text(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

/// Returns the key of an event.
pub fn located_key<'a, 'l>(
    reader: &'a impl PlaceReader,
    location: &'l KeyLocation,
) -> Result<LocatedKey<'a, 'l>, LocationFault> {
    let found = location.0.iter().find_map(|key_place| match key_place {
        KeyPlace::Stream => Some(LocatedKey { text: STREAM_KEY.into(), place: None }),
        KeyPlace::Place(place) => {
            text(reader, place).map(|text| LocatedKey { text, place: Some(place) })
        }
        KeyPlace::Composite(parts) => {
            composite(reader, parts).map(|text| LocatedKey { text: text.into(), place: None })
        }
    });
    let Some(key) = found else {
        let message = describe_missing_key(reader, location);
        return Err(LocationFault { cause: Cause::NoKey, message });
    };
    let size = key.text.len();
    if size > KEY_SIZE_LIMIT {
        let message =
            format!("the key has {size} bytes; at most {KEY_SIZE_LIMIT} bytes are allowed");
        return Err(LocationFault { cause: Cause::Unreadable, message });
    }
    Ok(key)
}

/// Returns a composite key; `None` if a part is missing. Percent-encodes two kinds of characters in the values: `%`,
/// and the first character of each text between two places. Each value therefore ends at the first character of the
/// next text, and different values never result in the same key.
fn composite(reader: &impl PlaceReader, parts: &[KeyPart]) -> Option<String> {
    let mut ends = String::new();
    for part in parts.get(1..parts.len().saturating_sub(1)).unwrap_or_default() {
        if let KeyPart::Text(between) = part {
            ends.extend(between.chars().next());
        }
    }
    let mut key = String::new();
    for part in parts {
        match part {
            KeyPart::Text(fixed) => key.push_str(fixed),
            KeyPart::Place(place) => push_value(&text(reader, place)?, &ends, &mut key),
        }
    }
    Some(key)
}

/// Appends a value of a composite key. `ends` contains the characters that can follow a value; empty if the key has
/// only one value.
fn push_value(value: &str, ends: &str, key: &mut String) {
    let mut bytes = [0; 4];
    for character in value.chars() {
        if !ends.is_empty() && (character == '%' || ends.contains(character)) {
            percent_encode_bytes(character.encode_utf8(&mut bytes).bytes(), key);
        } else {
            key.push(character);
        }
    }
}

/// Describes why an event has no key. The text names each place. For a composite key, the text names only the first
/// missing part.
fn describe_missing_key(reader: &impl PlaceReader, location: &KeyLocation) -> String {
    let is_missing =
        |part: &&KeyPart| matches!(part, KeyPart::Place(place) if text(reader, place).is_none());
    let places = location.0.iter().filter_map(|key_place| match key_place {
        KeyPlace::Stream => None,
        KeyPlace::Place(place) => Some(place),
        KeyPlace::Composite(parts) => match parts.iter().find(is_missing) {
            Some(KeyPart::Place(place)) => Some(place),
            _ => None,
        },
    });
    let what = match &location.0[..] {
        [KeyPlace::Composite(_)] => "a part of the key",
        _ => "the key",
    };
    format!("there is no key: {}", describe_missing(reader, what, &places.collect::<Vec<_>>()))
}

/// States that one of `places` must contain a value, and names the values of a wrong type that these places contain.
fn describe_missing(reader: &impl PlaceReader, what: &str, places: &[&Place]) -> String {
    let mut message = String::new();
    for (index, place) in places.iter().enumerate() {
        message += match index {
            0 => "",
            _ if index + 1 == places.len() => " or ",
            _ => ", ",
        };
        message += &place.to_string();
    }
    message += &format!(" must contain {what}");
    let mut is_json = true;
    for place in places {
        match reader.read(place) {
            PlaceValue::NotText => {
                let found = reader.show(place);
                message +=
                    &format!("; {place} must be a text, a number or a Boolean, found {found}");
            }
            PlaceValue::NotJson => is_json = false,
            PlaceValue::Text(_) | PlaceValue::Missing => {}
        }
    }
    if !is_json {
        message += "; the data is not JSON";
    }
    message
}

/// Returns the id of an event, or the way to determine it.
pub fn located_id<'a>(reader: &'a impl PlaceReader, location: &IdLocation) -> LocatedId<'a> {
    let found = location.0.iter().find_map(|id_place| match id_place {
        IdPlace::Content => Some(LocatedId::Content),
        IdPlace::Unique => Some(LocatedId::Unique),
        IdPlace::Place(place) => text(reader, place).map(LocatedId::Text),
    });
    found.unwrap_or(LocatedId::Missing)
}

/// Describes why an event has no id.
pub fn describe_missing_id(
    reader: &impl PlaceReader,
    location: &IdLocation,
    ordering: OrderingMode,
) -> String {
    let places = location.0.iter().filter_map(|id_place| match id_place {
        IdPlace::Place(place) => Some(place),
        IdPlace::Content | IdPlace::Unique => None,
    });
    let places = describe_missing(reader, "the id", &places.collect::<Vec<_>>());
    match ordering {
        OrderingMode::Fifo => {
            format!("there is no id, and a fifo stream detects repeats by the id: {places}")
        }
        OrderingMode::Sequenced => format!("there is no id: {places}"),
    }
}

/// Returns the sequence of an event of a `sequenced` stream; `None` if no place contains a value.
pub fn located_sequence(
    reader: &impl PlaceReader,
    location: &ValueLocation,
) -> Result<Option<u64>, LocationFault> {
    let mut wrong = None;
    for place in &location.0 {
        match reader.read(place) {
            PlaceValue::Text(text) if text.is_empty() => {}
            PlaceValue::Text(text) => {
                let number = digits(&text).filter(|number| *number < SEQUENCE_END);
                return number.map(Some).ok_or_else(|| wrong_sequence(reader, place));
            }
            PlaceValue::NotText => wrong = wrong.or(Some(place)),
            PlaceValue::Missing | PlaceValue::NotJson => {}
        }
    }
    wrong.map_or(Ok(None), |place| Err(wrong_sequence(reader, place)))
}

fn wrong_sequence(reader: &impl PlaceReader, place: &Place) -> LocationFault {
    let found = reader.show(place);
    let message = format!("{place} must be a whole number below {SEQUENCE_END}, found {found}");
    LocationFault { cause: Cause::NoSequence, message }
}

/// Returns a number in decimal digits; `None` for any other text.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the first text that is present and not empty.
pub fn located_text<'a>(
    reader: &'a impl PlaceReader,
    location: &ValueLocation,
) -> Option<Cow<'a, str>> {
    location.0.iter().find_map(|place| text(reader, place))
}

/// Returns the first time that can be read ([`event_time`]), in µs since the Unix epoch; `None` if no place contains
/// such a time.
pub fn located_time(reader: &impl PlaceReader, location: &ValueLocation) -> Option<u64> {
    location.0.iter().find_map(|place| event_time(&text(reader, place)?))
}
