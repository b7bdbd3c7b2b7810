//! Reads the attributes that Ordain interprets.

use std::borrow::Cow;

use ordain_core::{Cause, SEQUENCE_END};

use super::super::ATTRIBUTE_LIMIT;
use super::super::envelope::{EnvelopeMember, EventEnvelope};
use super::super::pointer::scalar_text;
use super::super::time::{event_time, in_calendar, parse_time};
use super::{DecodeResult, EventRejection, unreadable};
use ordain_store::KEY_SIZE_LIMIT;

/// Returns the key, and the name of the attribute that contains the key: `partitionkey`, or `subject` if there is no
/// `partitionkey`.
pub(super) fn key<'a>(envelope: &EventEnvelope<'a>) -> DecodeResult<(Cow<'a, str>, &'static str)> {
    let (member, name) = match envelope.raw(EnvelopeMember::PartitionKey) {
        Some(_) => (EnvelopeMember::PartitionKey, "partitionkey"),
        None => (EnvelopeMember::Subject, "subject"),
    };
    let Some(raw) = envelope.raw(member) else {
        let message = "the key is missing: `partitionkey` or `subject` must contain the key";
        return Err(EventRejection(Cause::NoKey, message.to_owned()));
    };
    match json_text(raw) {
        Some(key) if key.len() > KEY_SIZE_LIMIT => unreadable(format!(
            "the key has {} bytes; at most {KEY_SIZE_LIMIT} bytes are allowed",
            key.len()
        )),
        Some(key) if !key.is_empty() => Ok((key, name)),
        _ => {
            let found = excerpt(raw);
            let message =
                format!("the key, `{name}`, must be a text that is not empty, found {found}");
            Err(EventRejection(Cause::NoKey, message))
        }
    }
}

/// Returns the text of an attribute. Fails if the attribute is missing, empty, longer than [`ATTRIBUTE_LIMIT`], or not
/// a text.
pub(super) fn attribute<'a>(
    envelope: &EventEnvelope<'a>,
    member: EnvelopeMember,
    name: &str,
) -> DecodeResult<Cow<'a, str>> {
    let Some(raw) = envelope.raw(member) else {
        return unreadable(format!("`{name}` is missing: it must be a text"));
    };
    match json_text(raw) {
        Some(text) if text.len() > ATTRIBUTE_LIMIT => {
            let size = text.len();
            unreadable(format!(
                "`{name}` has {size} bytes; at most {ATTRIBUTE_LIMIT} bytes are allowed"
            ))
        }
        Some(text) if !text.is_empty() => Ok(text),
        _ => {
            let found = excerpt(raw);
            unreadable(format!("`{name}` must be a text that is not empty, found {found}"))
        }
    }
}

/// Returns the sequence that the producer gave to the event; `None` if there is no sequence.
pub(super) fn sequence(envelope: &EventEnvelope<'_>) -> DecodeResult<Option<u64>> {
    let Some(raw) = envelope.raw(EnvelopeMember::Sequence) else { return Ok(None) };
    let digits = raw.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(raw);
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
    match number.flatten() {
        Some(number) if number < SEQUENCE_END => Ok(Some(number)),
        _ => {
            let found = excerpt(raw);
            let message =
                format!("`sequence` must be a whole number below {SEQUENCE_END}, found {found}");
            Err(EventRejection(Cause::NoSequence, message))
        }
    }
}

/// Returns the time of the event, in µs since the Unix epoch; `None` if the event has no time. A time before 1970
/// or after the year 9999 counts as no time.
pub(super) fn time(envelope: &EventEnvelope<'_>) -> DecodeResult<Option<u64>> {
    let Some(raw) = envelope.raw(EnvelopeMember::Time) else { return Ok(None) };
    if let Some(us) = json_text(raw).and_then(|text| parse_time(&text)) {
        return Ok(in_calendar(us));
    }
    let found = excerpt(raw);
    unreadable(format!(
        "`time` must be a time as in RFC 3339, such as \"2026-01-31T12:00:00Z\", found {found}"
    ))
}

/// Returns the time of the event like [`time`], but also reads a number ([`event_time`]), and treats a time that cannot
/// be read as missing.
pub(super) fn lenient_time(envelope: &EventEnvelope<'_>) -> Option<u64> {
    let text = scalar_text(envelope.raw(EnvelopeMember::Time)?)?;
    event_time(&text)
}

/// Returns whether the event is the last event of its key. Reads a text in upper or lower case, because some SDKs write
/// the text `True`.
pub(super) fn end(envelope: &EventEnvelope<'_>) -> DecodeResult<bool> {
    let Some(raw) = envelope.raw(EnvelopeMember::EndOfSequence) else { return Ok(false) };
    let text = json_text(raw).unwrap_or(Cow::Borrowed(raw));
    if text.eq_ignore_ascii_case("true") {
        Ok(true)
    } else if text.eq_ignore_ascii_case("false") {
        Ok(false)
    } else {
        unreadable(format!("`endofsequence` must be true or false, found {}", excerpt(raw)))
    }
}

/// Returns the text of a JSON string; borrowed if the string has no escapes. Returns `None` for other JSON, and for a
/// string that is not valid text, because it contains half of a surrogate pair.
pub(crate) fn json_text(raw: &str) -> Option<Cow<'_, str>> {
    let inside = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inside.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inside));
    }
    serde_json::from_str::<String>(raw).ok().map(Cow::Owned)
}

/// Size limit, in bytes, of a value of an event that an error quotes.
pub(super) const EXCERPT_LIMIT: usize = 60;

/// Returns a value as an error quotes it. Replaces a value that exceeds [`EXCERPT_LIMIT`] by a fixed text.
pub(super) fn excerpt(raw: &str) -> &str {
    if raw.len() <= EXCERPT_LIMIT { raw } else { "a longer value" }
}
