//! Reads the data of an event and the values of extensions.

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::super::compact::{NESTING_LIMIT, NestingError, compact};
use super::super::envelope::{EnvelopeMember, EventEnvelope};
use super::attribute::{excerpt, json_text};
use super::{DecodeResult, unreadable};
use ordain_core::is_json;

/// Returns the payload of the event: the value of `data`, or the decoded value of `data_base64`. Returns empty data if
/// both are missing.
pub(super) fn data<'a>(
    envelope: &EventEnvelope<'a>,
    content_type: &str,
) -> DecodeResult<Cow<'a, [u8]>> {
    let data = envelope.raw(EnvelopeMember::Data);
    let Some(encoded) = envelope.raw(EnvelopeMember::DataBase64) else {
        return data.map_or(Ok(Cow::Borrowed(&[])), |raw| plain_data(raw, content_type));
    };
    if data.is_some() {
        return unreadable("both `data` and `data_base64` are present: only one is allowed");
    }
    match json_text(encoded).and_then(|text| BASE64.decode(text.as_bytes()).ok()) {
        Some(bytes) => Ok(Cow::Owned(bytes)),
        None => unreadable(format!("`data_base64` must be base64, found {}", excerpt(encoded))),
    }
}

/// Base64 with optional padding, as RFC 4648 allows.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the decoded text if the value is a JSON string and the media type is not JSON. In all other cases, returns
/// the value's JSON in compact form.
fn plain_data<'a>(raw: &'a str, content_type: &str) -> DecodeResult<Cow<'a, [u8]>> {
    let json = match json_text(raw) {
        Some(text) if !is_json(content_type) => text,
        _ => compacted(raw)?,
    };
    Ok(match json {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    })
}

fn compacted(raw: &str) -> DecodeResult<Cow<'_, str>> {
    compact(raw).or_else(|NestingError| {
        unreadable(format!(
            "the JSON is nested deeper than {NESTING_LIMIT} levels of arrays and objects"
        ))
    })
}

/// Returns the value of an extension: the text of a JSON string, or the compact JSON of any other value.
pub(super) fn value(raw: &str) -> DecodeResult<Cow<'_, str>> {
    match json_text(raw) {
        Some(text) => Ok(text),
        None => compacted(raw),
    }
}
