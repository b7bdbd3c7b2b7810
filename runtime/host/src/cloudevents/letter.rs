//! From a dead letter to a line: the event as it came, with the reason in extension attributes.
//! The same letter always gives the same bytes.

use std::fmt::Write;

use ordain_core::{DeadLetter, Event, LetterContent, LetterId};

use super::encode::{data, headers, member};
use super::id::percent_encode;

/// The `type` where there is no event that has one.
const NO_EVENT: &str = "ordain.dead-letter";

/// The media type of what could not be read.
const BYTES: &str = "application/octet-stream";

/// The attributes that say what happened. Headers of these names stand apart.
const ATTRIBUTES: [&str; 9] = [
    "deadcause",
    "deaderror",
    "deadversion",
    "deadorigin",
    "deadsequence",
    "deadid",
    "deadsource",
    "deadtime",
    "deadend",
];

/// Appends a dead letter of `stream` as a line, with its end.
///
/// Type, content type, headers and data are the event's, so that whoever knows the event reads
/// the letter. Bytes that are no event are the data, as base64; of an event that never came there
/// is none. Id and source are the letter's own; those of the event are in `deadid`, `deadsource`.
pub fn encode_letter(stream: &str, letter: &DeadLetter, out: &mut Vec<u8>) {
    let event = match &letter.content {
        LetterContent::Event(event) => Some(&**event),
        LetterContent::Nothing | LetterContent::Raw(_) => None,
    };
    let mut source = String::from("/ordain/");
    percent_encode(stream, &mut source);
    out.extend_from_slice(b"{\"specversion\":\"1.0\"");
    member(out, "id", &letter_id(stream, &letter.id));
    member(out, "source", &source);
    let kind = event.map(Event::kind).filter(|kind| !kind.is_empty());
    member(out, "type", kind.unwrap_or(NO_EVENT));
    // An attribute must not be empty.
    let mut given = |name, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            member(out, name, value);
        }
    };
    given("subject", Some(&letter.id.key));
    given("deadcause", Some(letter.cause.name()));
    given("deaderror", Some(&letter.error));
    given("deadversion", letter.version.as_deref());
    given("deadorigin", letter.origin.as_deref());
    let first = event.and_then(Event::sequence) == Some(0);
    let sequence = (letter.id.sequence > 0 || first).then(|| letter.id.sequence.to_string());
    given("deadsequence", sequence.as_deref());
    given("deadid", event.map(Event::id));
    given("deadsource", event.map(Event::source));
    given("deadtime", event.and_then(Event::time_ms).and_then(time).as_deref());
    given("deadend", event.filter(|event| event.end()).map(|_| "true"));
    match &letter.content {
        LetterContent::Nothing => {}
        LetterContent::Raw(bytes) => {
            member(out, "datacontenttype", BYTES);
            data(out, BYTES, bytes);
        }
        LetterContent::Event(event) => {
            if !event.content_type().is_empty() {
                member(out, "datacontenttype", event.content_type());
            }
            headers(out, event.headers(), &ATTRIBUTES);
            data(out, event.content_type(), event.data());
        }
    }
    out.extend_from_slice(b"}\n");
}

/// `stream/key/dead/sequence/tag`: a letter's identity, which no message has, since a message has
/// a number where this says `dead`.
fn letter_id(stream: &str, letter: &LetterId) -> String {
    let mut id = String::new();
    percent_encode(stream, &mut id);
    id.push('/');
    percent_encode(&letter.key, &mut id);
    // Writing to a text cannot fail.
    let _ = write!(id, "/dead/{}/{:x}", letter.sequence, letter.tag);
    id
}

/// A producer's time, if a calendar has it.
fn time(ms: u64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(time.to_string())
}
