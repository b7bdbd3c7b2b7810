//! Converts a message or a dead letter into an event of another stream.

use ordain_core::{DeadLetter, Event, EventParts, LetterContent};

use super::encode::message_type;
use super::id::{message_id, source_of};
use super::letter::{REASON_ATTRIBUTES, letter_attributes};
use ordain_store::OutboxMessage;

/// Returns a message of `stream` as an event without a sequence.
pub fn message_event(stream: &str, message: &OutboxMessage) -> Event {
    let inner = &message.emitted.message;
    let headers: Vec<(&str, &str)> = inner.headers().collect();
    Event::new(&EventParts {
        key: inner.key().unwrap_or(&message.key),
        sequence: None,
        id: &message_id(stream, message),
        kind: message_type(inner),
        source: &source_of(stream),
        time_us: None,
        content_type: inner.content_type(),
        headers: &headers,
        data: inner.data(),
        end: inner.end(),
    })
}

/// Returns a dead letter of `stream` as an event without a sequence. A dead letter is the record of an event that ended
/// without effect. The returned event has the type, headers and data of the original event, but another id and another
/// source. Its headers [`REASON_ATTRIBUTES`] contain the reason. A header of the original event with one of these names
/// is omitted. If the letter has no original event, the data is the raw bytes of the letter, or empty.
pub fn letter_event(stream: &str, letter: &DeadLetter) -> Event {
    let attributes = letter_attributes(stream, letter);
    let (event, raw): (Option<&Event>, &[u8]) = match &letter.content {
        LetterContent::Event(event) => (Some(event), event.data()),
        LetterContent::Raw(bytes) => (None, bytes),
        LetterContent::Nothing => (None, &[]),
    };
    let reason = attributes.reason.iter().map(|(name, value)| (*name, &**value));
    let others = event.into_iter().flat_map(Event::headers);
    let headers: Vec<(&str, &str)> =
        reason.chain(others.filter(|(name, _)| !REASON_ATTRIBUTES.contains(name))).collect();
    Event::new(&EventParts {
        key: &letter.id.key,
        sequence: None,
        id: &attributes.id,
        kind: attributes.kind,
        source: &source_of(stream),
        time_us: None,
        content_type: attributes.content_type,
        headers: &headers,
        data: raw,
        end: false,
    })
}
