//! The attributes that Ordain itself looks at, one function each.

use std::borrow::Cow;

use ordain_core::{Cause, SEQUENCE_END};

use super::super::ATTRIBUTE_LIMIT;
use super::super::envelope::{Envelope, Member};
use super::{Read, Refusal, unreadable};
use ordain_store::KEY_SIZE_LIMIT;

/// The key, and the member that it stood in.
pub(super) fn key<'a>(envelope: &Envelope<'a>) -> Read<(Cow<'a, str>, Member)> {
    let (member, name) = match envelope.raw(Member::PartitionKey) {
        Some(_) => (Member::PartitionKey, "partitionkey"),
        None => (Member::Subject, "subject"),
    };
    let Some(raw) = envelope.raw(member) else {
        let message = "there is no key: `partitionkey` or `subject` must name it";
        return Err(Refusal(Cause::NoKey, message.to_owned()));
    };
    match text(raw) {
        Some(key) if key.len() > KEY_SIZE_LIMIT => {
            unreadable(format!("the key has {} bytes; {KEY_SIZE_LIMIT} are allowed", key.len()))
        }
        Some(key) if !key.is_empty() => Ok((key, member)),
        _ => {
            let found = shown(raw);
            let message =
                format!("the key, `{name}`, must be a text with something in it, found {found}");
            Err(Refusal(Cause::NoKey, message))
        }
    }
}

/// An attribute that must be a text with something in it.
pub(super) fn attribute<'a>(
    envelope: &Envelope<'a>,
    member: Member,
    name: &str,
) -> Read<Cow<'a, str>> {
    let Some(raw) = envelope.raw(member) else {
        return unreadable(format!("`{name}` is missing: it must be a text"));
    };
    match text(raw) {
        Some(text) if text.len() > ATTRIBUTE_LIMIT => {
            let size = text.len();
            unreadable(format!("`{name}` has {size} bytes; {ATTRIBUTE_LIMIT} are allowed"))
        }
        Some(text) if !text.is_empty() => Ok(text),
        _ => {
            let found = shown(raw);
            unreadable(format!("`{name}` must be a text with something in it, found {found}"))
        }
    }
}

/// The producer's number.
pub(super) fn sequence(envelope: &Envelope<'_>) -> Read<Option<u64>> {
    let Some(raw) = envelope.raw(Member::Sequence) else { return Ok(None) };
    let digits = raw.strip_prefix('"').and_then(|it| it.strip_suffix('"')).unwrap_or(raw);
    let number = digits.bytes().all(|it| it.is_ascii_digit()).then(|| digits.parse().ok());
    match number.flatten() {
        Some(number) if number < SEQUENCE_END => Ok(Some(number)),
        _ => {
            let (found, end) = (shown(raw), SEQUENCE_END);
            let message = format!("`sequence` must be a whole number below {end}, found {found}");
            Err(Refusal(Cause::NoSequence, message))
        }
    }
}

/// When it happened, in ms since the Unix epoch.
pub(super) fn time(envelope: &Envelope<'_>) -> Read<Option<u64>> {
    let Some(raw) = envelope.raw(Member::Time) else { return Ok(None) };
    let time: Option<jiff::Timestamp> = text(raw).and_then(|text| text.parse().ok());
    if let Some(Ok(time)) = time.map(|time| u64::try_from(time.as_millisecond())) {
        return Ok(Some(time));
    }
    let found = shown(raw);
    unreadable(format!(
        "`time` must be as in RFC 3339, from 1970 on, such as \"2026-01-31T12:00:00Z\", found {found}"
    ))
}

/// Whether it is the last one of its key.
pub(super) fn end(envelope: &Envelope<'_>) -> Read<bool> {
    match envelope.raw(Member::EndOfSequence) {
        Some("true" | "\"true\"") => Ok(true),
        None | Some("false" | "\"false\"") => Ok(false),
        Some(other) => {
            unreadable(format!("`endofsequence` must be true or false, found {}", shown(other)))
        }
    }
}

/// The text of a JSON string; borrowed unless it has escapes. `None` where it is no string, or one
/// that is no text (half of a surrogate pair).
pub(super) fn text(raw: &str) -> Option<Cow<'_, str>> {
    let inside = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inside.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inside));
    }
    serde_json::from_str::<String>(raw).ok().map(Cow::Owned)
}

/// The longest piece of an event that an error repeats.
pub(super) const SHOWN: usize = 60;

pub(super) fn shown(raw: &str) -> &str {
    if raw.len() <= SHOWN { raw } else { "something longer" }
}
