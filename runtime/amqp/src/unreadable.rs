//! Converts a message that the stream cannot process as an event into a dead letter. The letter contains the
//! properties, the headers and the body of the message. If the body exceeds the size limit of an event, the letter
//! contains only the beginning of the body. An event of a batch becomes a dead letter as if the message contained only
//! this event. If an operator moves a dead letter back to the stream, this module decodes the message in the letter.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use lapin::message::Delivery;
use ordain_cloudevents::{DecodeError, DecodedDelivery};
use ordain_core::{Cause, DeadLetter, Event, LetterContent, LetterId, digest};
use serde_json::Value;

use super::decode::{BatchEvent, DeliveryDecoder};
use super::encode::{header, id};
use super::header::{CAUSE_HEADER, ID_HEADER, SOURCE_HEADER};
use super::original_letter::{original_delivery, original_letter_id};
use super::raw_message::{RawBody, add_typed_headers, message_json};

/// The first word of the origin of a dead letter from a queue. Origins of other letters do not begin with this word.
const QUEUE_ORIGIN: &str = "queue ";
/// The beginning of the names of headers that a broker adds or changes.
const BROKER_HEADER_PREFIX: &str = "x-";

/// Decodes each event of a batch into an event, or into a dead letter that contains this event alone. If the delivery
/// is a dead letter of this stream in its original form, decodes the batch as it arrived before it became the dead
/// letter. Returns `None` for a message that is not a batch, and for a batch whose events cannot be separated.
pub(super) fn decode_batch(
    decoder: &DeliveryDecoder,
    queue: &str,
    delivery: &Delivery,
) -> Option<Vec<DecodedDelivery>> {
    let first = first_delivery(decoder, delivery);
    let delivery = first.as_ref().unwrap_or(delivery);
    let mut number = 0;
    decoder.decode_batch(delivery, |element, event| {
        number += 1;
        let BatchEvent { body, content_type, content_encoding, kind } = element;
        with_sequence(decoder, event).map_err(|error| {
            let body = RawBody {
                bytes: body.as_bytes(),
                size: body.len(),
                content_type: Some(content_type),
                content_encoding,
                kind,
            };
            let raw = RawDelivery { delivery, document: message_json(delivery, &body), rest: &[] };
            let key = error.key.unwrap_or_default().into();
            let sequence = error.sequence.unwrap_or_default();
            let id = LetterId { key, sequence, tag: raw.digest() };
            let message = format!("event {number} of the batch: {}", error.message);
            letter(queue, id, error.cause, message, &raw)
        })
    })
}

/// Decodes a delivery into an event, or into a dead letter whose origin names `queue`. If the delivery is a dead letter
/// of this stream in its original form, decodes the original message.
pub(super) fn decode_or_letter(
    decoder: &DeliveryDecoder,
    queue: &str,
    delivery: &Delivery,
) -> DecodedDelivery {
    let Some(letter_id) = original_letter_id(&delivery.properties) else {
        return decode_other(decoder, queue, delivery);
    };
    let original = original_delivery(delivery);
    let raw = || RawDelivery::of(decoder, &original);
    let dead_letter = |tag, cause, error| {
        let id = LetterId { key: "".into(), sequence: 0, tag };
        letter(queue, id, cause, error, &raw())
    };
    if !is_own(letter_id.as_bytes(), &decoder.letter_source) {
        // For this stream, a dead letter of another stream is an ordinary message, which also has headers about the
        // reason of the letter.
        let tag = letter_tag(letter_id.as_bytes()).unwrap_or_else(|| digest(letter_id.as_bytes()));
        return decode(decoder, delivery)
            .map_err(|error| dead_letter(tag, error.cause, error.message));
    }
    decode(decoder, &original).map_err(|error| {
        // The tag (the last part of the id) of the new dead letter depends on the message, not on the header with the
        // id of the returned letter. An operator may have edited the message, and a program may have copied the header
        // from another letter. Each time the letter returns, its message is the same, so the store forwards the letter
        // once.
        let tag = raw().returned_tag();
        let error = format!(
            "a dead letter of this stream has returned to the stream, which still cannot read the message: {}. First \
             correct the settings of the stream's source, then move the letter back. If a binding leads from the \
             exchange of `dead_letter` to the queue of this stream, remove the binding",
            error.message
        );
        dead_letter(tag, Cause::Returned, error)
    })
}

/// Decodes a delivery that is not a dead letter in its original form.
fn decode_other(decoder: &DeliveryDecoder, queue: &str, delivery: &Delivery) -> DecodedDelivery {
    if let Some(tag) = returned_tag(delivery, &decoder.letter_source) {
        let error = "a dead letter of this stream has returned to the stream, which does not process it again. If a \
                     binding leads from the exchange of `dead_letter` to the queue of this stream, remove the binding. \
                     To process the event again, send the event itself";
        let id = LetterId { key: "".into(), sequence: 0, tag };
        let raw = RawDelivery::of(decoder, delivery);
        return Err(letter(queue, id, Cause::Returned, error.to_owned(), &raw));
    }
    decode(decoder, delivery).map_err(|error| {
        let raw = RawDelivery::of(decoder, delivery);
        // A dead letter about another stream's dead letter gets the tag of that letter. If two streams feed their dead
        // letters to each other, the ids therefore repeat, and the store forwards each dead letter once.
        let properties = &delivery.properties;
        let is_letter = !header(properties, CAUSE_HEADER).is_empty();
        if let Some(tag) = letter_tag(id(properties)).filter(|_| is_letter) {
            let id = LetterId { key: "".into(), sequence: 0, tag };
            return letter(queue, id, error.cause, error.message, &raw);
        }
        let key = error.key.unwrap_or_default().into();
        let sequence = error.sequence.unwrap_or_default();
        let id = LetterId { key, sequence, tag: raw.digest() };
        letter(queue, id, error.cause, error.message, &raw)
    })
}

/// Decodes a delivery into an event. Also rejects an event whose sequence is missing or not valid in the stream, so
/// that its dead letter has the original form.
fn decode(decoder: &DeliveryDecoder, delivery: &Delivery) -> Result<Event, DecodeError> {
    with_sequence(decoder, decoder.decode(delivery))
}

/// Rejects an event whose sequence is missing or not valid in the stream.
fn with_sequence(
    decoder: &DeliveryDecoder,
    event: Result<Event, DecodeError>,
) -> Result<Event, DecodeError> {
    let event = event?;
    match decoder.sequence_fault(&event) {
        None => Ok(event),
        Some(message) => Err(DecodeError {
            cause: Cause::NoSequence,
            message,
            key: Some(event.key().to_owned()),
            sequence: event.sequence(),
        }),
    }
}

fn letter(
    queue: &str,
    id: LetterId,
    cause: Cause,
    error: String,
    raw: &RawDelivery<'_>,
) -> Box<DeadLetter> {
    Box::new(DeadLetter {
        id,
        cause,
        error,
        origin: Some(format!("{QUEUE_ORIGIN}{queue}")),
        version: None,
        content: LetterContent::Raw(raw.document()),
    })
}

pub(super) fn is_queue_origin(letter: &DeadLetter) -> bool {
    letter.origin.as_deref().is_some_and(|origin| origin.starts_with(QUEUE_ORIGIN))
}

struct RawDelivery<'a> {
    delivery: &'a Delivery,
    /// The document of the message, without the types of its headers.
    document: Value,
    /// The part of the body that the document does not contain. If the body exceeds the size limit of an event, the
    /// dead letter keeps only the beginning of the body. A file source treats a long line in the same way.
    rest: &'a [u8],
}

impl<'a> RawDelivery<'a> {
    fn of(decoder: &DeliveryDecoder, delivery: &'a Delivery) -> Self {
        let (bytes, rest) = split_at_limit(&delivery.data, decoder.event_size);
        let body = RawBody::of(delivery, bytes);
        Self { delivery, document: message_json(delivery, &body), rest }
    }

    fn document(&self) -> Bytes {
        let mut document = self.document.clone();
        add_typed_headers(&mut document, self.delivery);
        document.to_string().into()
    }

    /// Returns the digest of the message, which does not cover the types of the headers, as in earlier versions. If the
    /// message has a CloudEvents id, the digest does not cover the timestamp either: Ordain writes the time of
    /// publishing into the timestamp, so two copies of a message can have different timestamps.
    fn digest(&self) -> u64 {
        let mut document = self.document.clone();
        if !header(&self.delivery.properties, ID_HEADER).is_empty() {
            document["properties"]["timestamp"] = Value::Null;
        }
        let document = digest(document.to_string().as_bytes());
        if self.rest.is_empty() { document } else { document ^ digest(self.rest) }
    }

    /// Returns the tag of a dead letter about the message, if the cause of the letter is [`Cause::Returned`]. This tag
    /// differs from the tag of the first dead letter about the message. The tag does not depend on headers that the
    /// broker may change on the way back to the stream, such as `x-death`.
    fn returned_tag(mut self) -> u64 {
        if let Some(headers) = self.document["headers"].as_object_mut() {
            headers.retain(|name, _| !name.starts_with(BROKER_HEADER_PREFIX));
        }
        digest(format!("returned {:016x}", self.digest()).as_bytes())
    }
}

/// Returns why the stream cannot process a message, or an event of a batch: the cause and the error.
pub(super) fn fault(message: &DecodedDelivery) -> Option<(Cause, &str)> {
    message.as_ref().err().map(|letter| (letter.cause, &*letter.error))
}

/// Returns the fault of the first event of a batch if the stream can process no event of the batch.
pub(super) fn batch_fault(events: &[DecodedDelivery]) -> Option<(Cause, &str)> {
    let first = fault(events.first()?)?;
    events.iter().all(Result::is_err).then_some(first)
}

/// Returns the message of a dead letter as it arrived before it became the dead letter. Returns `None` if `delivery` is
/// no dead letter of this stream in its original form.
pub(super) fn first_delivery(decoder: &DeliveryDecoder, delivery: &Delivery) -> Option<Delivery> {
    let letter_id = original_letter_id(&delivery.properties)?;
    is_own(letter_id.as_bytes(), &decoder.letter_source).then(|| original_delivery(delivery))
}

/// Returns the tag (the last part of the id) of the new dead letter about a returned delivery. Two kinds of deliveries
/// count as returned. The first kind is a dead letter of this stream that has no event, or whose event is itself a dead
/// letter. The second kind is another stream's dead letter about a dead letter of this stream. Returns `None` for any
/// other delivery. A dead letter of this stream about any other event does not count as returned. The stream can
/// process such an event, and an operator who has corrected the handler may send the dead letter back to the stream.
///
/// A letter gets the same tag each time it returns. The store therefore forwards the letter once, and no letter
/// circulates forever.
fn returned_tag(delivery: &Delivery, letter_source: &str) -> Option<u64> {
    let properties = &delivery.properties;
    let cause = header(properties, CAUSE_HEADER);
    if cause.is_empty() {
        return None;
    }
    let event_id = header(properties, "deadid");
    let wrapped_tag = letter_tag(event_id);
    // Another stream has received a dead letter of this stream, and has sent its own dead letter about that letter.
    if wrapped_tag.is_some() && is_own(event_id, letter_source) {
        return wrapped_tag;
    }
    let is_about_event = !event_id.is_empty() && wrapped_tag.is_none();
    if header(properties, SOURCE_HEADER) != letter_source.as_bytes() || is_about_event {
        return None;
    }
    let id = id(properties);
    let is_returned_again = cause == Cause::Returned.name().as_bytes();
    is_returned_again.then(|| letter_tag(id)).flatten().or_else(|| Some(digest(id)))
}

/// Returns whether the id of a dead letter belongs to a letter of this stream.
fn is_own(id: &[u8], letter_source: &str) -> bool {
    let stream = letter_source.trim_start_matches("/ordain/");
    id.strip_prefix(stream.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns the tag in the id of a dead letter of any stream: `stream/key/dead/sequence/tag`. No part contains a `/`.
/// Returns `None` for any other id.
fn letter_tag(id: &[u8]) -> Option<u64> {
    let parts: Vec<&str> = std::str::from_utf8(id).ok()?.split('/').collect();
    let [_stream, _key, "dead", _sequence, tag] = parts[..] else { return None };
    u64::from_str_radix(tag, 16).ok()
}

/// Splits a body after at most `limit` bytes, at a character boundary if the body is text.
fn split_at_limit(body: &[u8], limit: usize) -> (&[u8], &[u8]) {
    let limit = std::str::from_utf8(body).map_or(limit, |text| text.floor_char_boundary(limit));
    body.split_at(limit.min(body.len()))
}
