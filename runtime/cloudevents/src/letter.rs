//! Encodes a dead letter, the record of an event that ended without effect, as a line. The line contains the type,
//! headers and data of the original event, if there is one, and the reason in extension attributes. The same letter
//! must always produce the same bytes.

use std::borrow::Cow;
use std::fmt::Write;

use ordain_core::{DeadLetter, Event, LetterContent, LetterId};

use super::encode::{TextForm, write_data, write_headers, write_member};
use super::id::{percent_encode, source_of};
use super::time::time_text;

/// The `type` of a letter that has no event, or whose event has no type.
const LETTER_TYPE: &str = "ordain.dead-letter";

/// The media type of data that could not be decoded.
const BYTES_MEDIA_TYPE: &str = "application/octet-stream";

/// The attributes that contain the reason of a dead letter. If the event itself has headers with these names,
/// [`encode_letter`] combines these headers in another attribute, [`letter_event`](crate::letter_event) omits them, and
/// the encoder for RabbitMQ renames them.
pub const REASON_ATTRIBUTES: [&str; 10] = [
    "deadcause",
    "deaderror",
    "deadversion",
    "deadorigin",
    "deadsequence",
    "deadlastsequence",
    "deadid",
    "deadsource",
    "deadtime",
    "deadend",
];

/// The attributes of a dead letter, independent of the format in which it is written.
pub struct LetterAttributes<'a> {
    /// Id of the letter.
    pub id: String,
    /// Type of the event; `ordain.dead-letter` if there is no event, or if the event has no type.
    pub kind: &'a str,
    /// Media type of the data; empty if it is unknown, or if there is no data.
    pub content_type: &'a str,
    /// The attributes that state the reason, each with its name. No value of an attribute is empty.
    pub reason: Vec<(&'static str, Cow<'a, str>)>,
}

/// Returns the attributes of a dead letter of `stream`.
pub fn letter_attributes<'a>(stream: &str, letter: &'a DeadLetter) -> LetterAttributes<'a> {
    let event = match &letter.content {
        LetterContent::Event(event) => Some(&**event),
        LetterContent::Nothing | LetterContent::Raw(_) => None,
    };
    let kind = event.map(Event::kind).filter(|kind| !kind.is_empty());
    let mut reason = Vec::new();
    let mut add_reason = |name, value: Option<Cow<'a, str>>| {
        // CloudEvents forbids attributes with an empty value.
        reason.extend(value.filter(|value| !value.is_empty()).map(|value| (name, value)));
    };
    add_reason("deadcause", Some(letter.cause.name().into()));
    add_reason("deaderror", Some((&*letter.error).into()));
    add_reason("deadversion", letter.version.as_deref().map(Into::into));
    add_reason("deadorigin", letter.origin.as_deref().map(Into::into));
    let number = |sequence: Option<u64>| sequence.map(|sequence| sequence.to_string().into());
    add_reason("deadsequence", number(letter.sequence()));
    add_reason("deadlastsequence", number(letter.last_sequence()));
    add_reason("deadid", event.map(|event| event.id().into()));
    add_reason("deadsource", event.map(|event| event.source().into()));
    add_reason("deadtime", event.and_then(Event::time_us).and_then(time_text).map(Into::into));
    add_reason("deadend", event.filter(|event| event.end()).map(|_| "true".into()));
    LetterAttributes {
        id: letter_id(stream, &letter.id),
        kind: kind.unwrap_or(LETTER_TYPE),
        content_type: match &letter.content {
            LetterContent::Nothing => "",
            LetterContent::Raw(_) => BYTES_MEDIA_TYPE,
            LetterContent::Event(event) => event.content_type(),
        },
        reason,
    }
}

/// Appends a dead letter of `stream` as a line, including its line end.
///
/// The letter has the type, content type, headers and data of the event, so that a consumer of the event can read the
/// letter. If the letter contains no valid event, but only the bytes of an unreadable delivery, these bytes become the
/// data, as base64. The letter of a missing event has no data. The letter has its own id and source. The id and source
/// of the event are in `deadid` and `deadsource`. `sequence` is the number that a sequenced sink gave to the letter.
/// `text_form` is the form of data that is text but not JSON.
pub fn encode_letter(
    stream: &str,
    letter: &DeadLetter,
    sequence: Option<u64>,
    text_form: TextForm,
    out: &mut Vec<u8>,
) {
    let LetterAttributes { id, kind, content_type, reason } = letter_attributes(stream, letter);
    out.extend_from_slice(b"{\"specversion\":\"1.0\"");
    write_member(out, "id", &id);
    write_member(out, "source", &source_of(stream));
    write_member(out, "type", kind);
    if !letter.id.key.is_empty() {
        write_member(out, "subject", &letter.id.key);
    }
    if let Some(sequence) = sequence {
        write_member(out, "sequence", &sequence.to_string());
    }
    for (name, value) in &reason {
        write_member(out, name, value);
    }
    if !content_type.is_empty() {
        write_member(out, "datacontenttype", content_type);
    }
    match &letter.content {
        LetterContent::Nothing => {}
        LetterContent::Raw(bytes) => write_data(out, BYTES_MEDIA_TYPE, bytes, text_form),
        LetterContent::Event(event) => {
            write_headers(out, event.headers(), &REASON_ATTRIBUTES);
            write_data(out, event.content_type(), event.data(), text_form);
        }
    }
    out.extend_from_slice(b"}\n");
}

/// Returns the id of a letter, `stream/key/dead/sequence/tag`. This id differs from the id of every message, because
/// the id of a message has a number in place of `dead`.
fn letter_id(stream: &str, letter: &LetterId) -> String {
    let mut id = String::new();
    percent_encode(stream, &mut id);
    id.push('/');
    percent_encode(&letter.key, &mut id);
    // Writing to a text cannot fail.
    let _ = write!(id, "/dead/{}/{:x}", letter.sequence, letter.tag);
    id
}
