//! CloudEvents 1.0 in JSON (structured mode), one event a line: how files and HTTP bring events in,
//! and how file sinks write messages and forwarded dead letters.
//!
//! What comes in is judged here, before anything else sees it: form, sizes and nesting. What is
//! refused names what would be right. Data is never altered, except that white space between the
//! parts of JSON goes, so that the same content has the same digest however it was laid out.
#![allow(clippy::doc_markdown, reason = "CloudEvents is a name, not code")]

mod body;
mod compact;
mod decode;
mod delivery;
mod encode;
mod envelope;
mod event;
mod id;
mod letter;

#[cfg(test)]
mod tests;

pub use body::{BodyError, BodyEvents, NAMED_LIMIT, WrongEvent, decode_body};
pub use compact::{NESTING_LIMIT, TooDeep, compact};
pub use decode::{DecodeError, Decoder};
pub use decode::{Form, decode_http, form_of};
pub use delivery::{
    Acknowledged, BATCH_BYTES, BATCH_EVENTS, Delivered, Deliveries, Position, Print, READ_AHEAD,
    Source,
};
pub use encode::encode;
pub use event::{letter_event, message_event};
pub use id::{message_id, source_of};
pub use letter::{LetterAttributes, REASONS, encode_letter, letter_attributes};

/// The longest id, type, source and content type, in bytes. URLs of some KiB exist; more is a
/// payload in the wrong place.
pub const ATTRIBUTE_LIMIT: usize = 4 << 10;

/// Extension attributes of an event. Producers and tracing add some ten.
pub const HEADERS_LIMIT: usize = 128;

/// Bytes of all their names and values: they are kept with every event beside its data.
pub const HEADERS_SIZE_LIMIT: usize = 64 << 10;

/// The extension attribute that holds what no extension attribute can: headers whose names are
/// not made of `a-z` and `0-9`, belong to the envelope, or stand twice. A JSON array of
/// `[name, value]` pairs, as text.
const MORE_HEADERS: &str = "ordainheaders";

/// The media type of events that state none.
const JSON: &str = "application/json";

/// Whether a media type says that the data is JSON: `application/json`, `text/json`, `…+json`.
fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim_end();
    let ends = |suffix: &str| {
        kind.len() >= suffix.len()
            && kind.as_bytes()[kind.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
    };
    ends("/json") || ends("+json")
}
