//! Reads and writes events as CloudEvents 1.0 in JSON (structured mode), one event per line. Files deliver events in
//! this format, and file sinks write messages and forwarded dead letters in this format. HTTP delivers events in this
//! format or in another [`ContentMode`].
//!
//! This crate validates the form, sizes and nesting of events that arrive in these formats, before any other part of
//! Ordain uses these events. An error describes the valid form or the limit. This crate must never change data, with
//! one exception: it removes the white space between tokens of JSON.
#![allow(clippy::doc_markdown, reason = "CloudEvents is a name, not code")]

mod blank;
mod body;
mod canonical;
mod compact;
mod decode;
mod delivery;
mod encode;
mod envelope;
mod event;
mod id;
mod letter;
mod located;
mod pointer;
mod time;

#[cfg(test)]
mod tests;

pub use blank::{is_blank, is_blank_byte, trim_blanks};
pub use body::{
    BodyError, BodyEvents, InvalidEvent, NAMED_EVENTS_LIMIT, batch_elements, decode_body,
};
pub use compact::{NESTING_LIMIT, NestingError, compact};
pub use decode::{ContentMode, cloudevents_mode, content_mode, decode_http};
pub use decode::{DecodeError, EventCarrier, EventDecoder};
pub use delivery::{
    AckProgress, BATCH_BYTES_LIMIT, BATCH_EVENTS_LIMIT, DecodedDelivery, DeliveryBatch,
    FilePosition, READ_AHEAD_BATCHES, ReadFingerprint, SourceHandle, SourceProgress,
};
pub use encode::{TextForm, encode, message_type};
pub use event::{letter_event, message_event};
pub use id::{content_id, message_id, source_of, unique_id};
pub use letter::{LetterAttributes, REASON_ATTRIBUTES, encode_letter, letter_attributes};
pub use located::{
    LocatedId, LocatedKey, LocationFault, PlaceReader, PlaceValue, describe_missing_id, located_id,
    located_key, located_sequence, located_text, located_time,
};
pub use pointer::{NotJsonError, find_value, scalar_text};
pub use time::{event_time, in_calendar, number_time, parse_time, time_text};

/// Size limit of an id, type, source or content type, in bytes. URLs of some KiB exist; a longer value is probably a
/// payload in the wrong attribute.
pub const ATTRIBUTE_LIMIT: usize = 4 << 10;

/// Maximum number of extension attributes of an event. Producers and tracing usually add about ten attributes.
pub const HEADERS_LIMIT: usize = 128;

/// Size limit of the names and values of all extension attributes of an event together, in bytes. The store keeps these
/// names and values with the event.
pub const HEADERS_SIZE_LIMIT: usize = 64 << 10;

/// The extension attribute that contains the headers whose names are not allowed for extension attributes. A name is
/// not allowed in four cases: it is empty, it contains characters other than `a-z` and `0-9`, it is the name of another
/// attribute of the event, or it repeats the name of an earlier header. The value of the attribute is a text that
/// contains a JSON array of `[name, value]` pairs.
const HEADERS_ATTRIBUTE: &str = "ordainheaders";

/// The media type of the data of an event in JSON that has no `datacontenttype`. The data of an event in binary mode
/// without a `Content-Type` has no media type.
const JSON_MEDIA_TYPE: &str = "application/json";

/// Returns whether data of this content type is text in UTF-8. The content type must not be JSON. If the content type
/// has a parameter `charset`, returns whether the value of this parameter is `utf-8` or `us-ascii`. If the content type
/// lacks this parameter, returns `true` for `text/…`, XML, YAML, JavaScript, and a form.
fn is_text(content_type: &str) -> bool {
    let content_type = content_type.to_ascii_lowercase();
    let (kind, parameters) = content_type.split_once(';').unwrap_or((&content_type, ""));
    let mut pairs = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
    match pairs.find(|(name, _)| name.trim() == "charset") {
        Some((_, charset)) => matches!(charset.trim().trim_matches('"'), "utf-8" | "us-ascii"),
        None => is_text_kind(kind.trim()),
    }
}

/// Returns whether a media type without parameters, in lower case, is text.
fn is_text_kind(kind: &str) -> bool {
    kind.starts_with("text/")
        || kind.ends_with("+xml")
        || kind.ends_with("+yaml")
        || matches!(
            kind,
            "application/xml"
                | "application/yaml"
                | "application/javascript"
                | "application/x-www-form-urlencoded"
        )
}
