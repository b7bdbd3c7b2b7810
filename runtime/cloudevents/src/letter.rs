//! From a dead letter to a line: the event as it came, with the reason in extension attributes.
//! The same letter always gives the same bytes.

use std::borrow::Cow;
use std::fmt::Write;

use ordain_core::{DeadLetter, Event, LetterContent, LetterId};

use super::encode::{data, headers, member};
use super::id::{percent_encode, source_of};

/// The `type` where there is no event that has one.
const NO_EVENT: &str = "ordain.dead-letter";

/// The media type of what could not be read.
const BYTES: &str = "application/octet-stream";

/// The attributes that say what happened. Headers of these names stand apart.
pub const REASONS: [&str; 9] = [
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

/// What a dead letter says of itself and why, whatever form it is written in.
pub struct LetterAttributes<'a> {
    /// Its own id.
    pub id: String,
    /// The event's type, or one that says that there is no event with one.
    pub kind: &'a str,
    /// The media type of the data; empty where none is known.
    pub content_type: &'a str,
    /// What happened, by name. None of them is empty.
    pub reason: Vec<(&'static str, Cow<'a, str>)>,
}

/// What a dead letter of `stream` says.
pub fn letter_attributes<'a>(stream: &str, letter: &'a DeadLetter) -> LetterAttributes<'a> {
    let event = match &letter.content {
        LetterContent::Event(event) => Some(&**event),
        LetterContent::Nothing | LetterContent::Raw(_) => None,
    };
    let kind = event.map(Event::kind).filter(|kind| !kind.is_empty());
    let mut reason = Vec::new();
    let mut given = |name, value: Option<Cow<'a, str>>| {
        // An attribute must not be empty.
        reason.extend(value.filter(|value| !value.is_empty()).map(|value| (name, value)));
    };
    given("deadcause", Some(letter.cause.name().into()));
    given("deaderror", Some((&*letter.error).into()));
    given("deadversion", letter.version.as_deref().map(Into::into));
    given("deadorigin", letter.origin.as_deref().map(Into::into));
    let first = event.and_then(Event::sequence) == Some(0);
    let sequence = (letter.id.sequence > 0 || first).then(|| letter.id.sequence.to_string());
    given("deadsequence", sequence.map(Into::into));
    given("deadid", event.map(|event| event.id().into()));
    given("deadsource", event.map(|event| event.source().into()));
    given("deadtime", event.and_then(Event::time_ms).and_then(time).map(Into::into));
    given("deadend", event.filter(|event| event.end()).map(|_| "true".into()));
    LetterAttributes {
        id: letter_id(stream, &letter.id),
        kind: kind.unwrap_or(NO_EVENT),
        content_type: match &letter.content {
            LetterContent::Nothing => "",
            LetterContent::Raw(_) => BYTES,
            LetterContent::Event(event) => event.content_type(),
        },
        reason,
    }
}

/// Appends a dead letter of `stream` as a line, with its end.
///
/// Type, content type, headers and data are the event's, so that whoever knows the event reads
/// the letter. Bytes that are no event are the data, as base64; of an event that never came there
/// is none. Id and source are the letter's own; those of the event are in `deadid`, `deadsource`.
/// `sequence` is what a sequenced sink gave it.
pub fn encode_letter(stream: &str, letter: &DeadLetter, sequence: Option<u64>, out: &mut Vec<u8>) {
    let LetterAttributes { id, kind, content_type, reason } = letter_attributes(stream, letter);
    out.extend_from_slice(b"{\"specversion\":\"1.0\"");
    member(out, "id", &id);
    member(out, "source", &source_of(stream));
    member(out, "type", kind);
    if !letter.id.key.is_empty() {
        member(out, "subject", &letter.id.key);
    }
    if let Some(sequence) = sequence {
        member(out, "sequence", &sequence.to_string());
    }
    for (name, value) in &reason {
        member(out, name, value);
    }
    if !content_type.is_empty() {
        member(out, "datacontenttype", content_type);
    }
    match &letter.content {
        LetterContent::Nothing => {}
        LetterContent::Raw(bytes) => data(out, BYTES, bytes),
        LetterContent::Event(event) => {
            headers(out, event.headers(), &REASONS);
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
