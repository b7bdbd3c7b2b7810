//! Decodes events in HTTP (CloudEvents 1.0, HTTP protocol binding). In structured mode, the body is the whole event. In
//! binary mode, the body is the data, the header `Content-Type` is the attribute `datacontenttype`, and each other
//! attribute is a header `ce-NAME`.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use ordain_core::{Cause, Event};
use percent_encoding::percent_decode;

use super::super::HEADERS_LIMIT;
use super::super::envelope::EventEnvelope;
use super::{DecodeError, DecodeResult, EventDecoder, EventRejection, unreadable};
use ordain_util::text::latin1_text;

/// Prefix of the HTTP headers that contain attributes of an event.
const ATTRIBUTE_PREFIX: &str = "ce-";
/// The header that every event in binary mode has.
const SPECVERSION_HEADER: &str = "ce-specversion";

/// The form in which a body holds events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentMode {
    /// The body is the data of one event, and HTTP headers contain the attributes of the event.
    Binary,
    /// The body is one event in JSON.
    Structured,
    /// The body is a JSON array of events.
    Batch,
    /// The body has one event in JSON per line.
    Lines,
}

/// Returns the form of a body according to its headers; `None` if the headers name no form of events.
pub fn content_mode(headers: &HeaderMap) -> Option<ContentMode> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if let Some(mode) = cloudevents_mode(kind) {
        return Some(mode);
    }
    if headers.contains_key(SPECVERSION_HEADER) {
        return Some(ContentMode::Binary);
    }
    let lines = ["application/x-ndjson", "application/ndjson", "application/jsonl"];
    lines.iter().any(|name| is_media_type(kind, name)).then_some(ContentMode::Lines)
}

/// Returns the form of a body with a media type that CloudEvents defines for JSON: structured or batch. Returns `None`
/// for any other media type.
pub fn cloudevents_mode(content_type: &str) -> Option<ContentMode> {
    if is_media_type(content_type, "application/cloudevents+json") {
        Some(ContentMode::Structured)
    } else if is_media_type(content_type, "application/cloudevents-batch+json") {
        Some(ContentMode::Batch)
    } else {
        None
    }
}

/// Returns whether a content type names a media type, with or without parameters such as `charset`.
fn is_media_type(content_type: &str, name: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case(name)
}

/// Decodes the single event of a body. If the headers of the body name no form, decodes the body in structured mode.
/// Rejects a body whose headers name a form for several events.
pub fn decode_http(
    decoder: &EventDecoder,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Event, DecodeError> {
    match content_mode(headers) {
        Some(ContentMode::Binary) => decoder.binary(headers, body),
        Some(ContentMode::Structured) | None => decoder.decode(body),
        Some(ContentMode::Batch | ContentMode::Lines) => Err(unreadable_request(
            "the content type is for several events: the body must be a single event, as \
             application/cloudevents+json",
        )),
    }
}

fn unreadable_request(message: &str) -> DecodeError {
    DecodeError { cause: Cause::Unreadable, message: message.to_owned(), key: None, sequence: None }
}

impl EventDecoder {
    fn binary(&self, headers: &HeaderMap, body: &Bytes) -> Result<Event, DecodeError> {
        let attributes = attributes(headers)
            .map_err(|EventRejection(_, message)| unreadable_request(&message))?;
        let mut envelope = EventEnvelope::default();
        let mut size = body.len();
        for (name, json) in &attributes {
            size += name.len() + json.len();
            envelope.insert(Cow::Borrowed(name), json);
        }
        if size > self.event_size {
            let limit = self.event_size;
            return Err(unreadable_request(&format!(
                "the event has {size} bytes; runtime.event_size allows {limit} bytes"
            )));
        }
        self.decode_envelope(&envelope, Some(body), None)
    }
}

/// Returns the attributes that HTTP headers contain: the name of each attribute, and its value as a JSON string.
fn attributes(headers: &HeaderMap) -> DecodeResult<Vec<(String, String)>> {
    let mut attributes = Vec::new();
    for (header, value) in headers {
        let name = match header.as_str().strip_prefix(ATTRIBUTE_PREFIX) {
            Some(name) => name,
            None if header == CONTENT_TYPE => "datacontenttype",
            None => continue,
        };
        let (text, form) = if header == CONTENT_TYPE {
            (value.to_str().ok().map(Cow::Borrowed), "printable ASCII")
        } else {
            (header_text(value), "percent-encoded UTF-8")
        };
        let Some(text) = text else {
            return unreadable(format!("the header {header} must be {form}"));
        };
        if attributes.len() > HEADERS_LIMIT {
            return unreadable(format!(
                "more than {HEADERS_LIMIT} headers that begin with {ATTRIBUTE_PREFIX}"
            ));
        }
        // A text can always be serialized.
        let json = serde_json::to_string(&text).unwrap_or_default();
        attributes.push((name.to_owned(), json));
    }
    Ok(attributes)
}

/// Decodes the value of a header: percent-encoded UTF-8, optionally in quotation marks. Reads a value that is not UTF-8
/// as Latin-1, because some HTTP clients send unencoded characters in Latin-1. Returns `None` for a percent-encoded
/// value that is not UTF-8.
fn header_text(value: &HeaderValue) -> Option<Cow<'_, str>> {
    let bytes = value.as_bytes();
    if std::str::from_utf8(bytes).is_err() {
        let latin1 = latin1_text(bytes);
        let unquoted = unquoted_text(latin1.as_bytes())?.into_owned();
        return Some(Cow::Owned(unquoted));
    }
    unquoted_text(bytes)
}

/// Decodes percent-encoded UTF-8, optionally in quotation marks. Returns `None` for any other value.
fn unquoted_text(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let inside = bytes.strip_prefix(b"\"").and_then(|inside| inside.strip_suffix(b"\""));
    let Some(quoted) = inside else {
        return percent_decode(bytes).decode_utf8().ok();
    };
    let mut plain = Vec::with_capacity(quoted.len());
    let mut rest = quoted.iter();
    while let Some(byte) = rest.next() {
        plain.push(if *byte == b'\\' { *rest.next()? } else { *byte });
    }
    percent_decode(&plain).decode_utf8().ok().map(|text| Cow::Owned(text.into_owned()))
}

#[cfg(test)]
mod tests {
    use ordain_core::OrderingMode;

    use super::*;

    const DECODER: EventDecoder = EventDecoder::new(OrderingMode::Sequenced, 1 << 10);

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (name.parse().expect("a name"), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn event_in_binary_mode_is_decoded() {
        let headers = headers(&[
            ("ce-specversion", "1.0"),
            ("ce-id", "caf%C3%A9 1"),
            ("CE-Type", "\"a \\\"b\\\"\""),
            ("ce-source", "/shop"),
            ("ce-subject", "key%2F1"),
            ("ce-sequence", "7"),
            ("ce-endofsequence", "true"),
            ("ce-time", "2026-01-31T12:00:00Z"),
            ("ce-other", "x"),
            ("content-type", "text/plain"),
            ("host", "here"),
        ]);
        let event =
            decode_http(&DECODER, &headers, &Bytes::from_static(b" \xff ")).expect("an event");
        assert_eq!((event.key(), event.sequence(), event.end()), ("key/1", Some(7), true));
        assert_eq!((event.id(), event.kind(), event.source()), ("café 1", "a \"b\"", "/shop"));
        assert_eq!((event.content_type(), event.data()), ("text/plain", &b" \xff "[..]));
        assert_eq!(event.headers().collect::<Vec<_>>(), [("other", "x")]);
        assert!(event.time_ms().is_some());
    }

    /// The SDK for Python writes a Boolean in the text form of Python.
    #[test]
    fn end_of_a_key_is_read_in_upper_and_lower_case() {
        for (value, end) in [("true", true), ("True", true), ("FALSE", false)] {
            let headers = headers(&[
                ("ce-specversion", "1.0"),
                ("ce-id", "1"),
                ("ce-type", "t"),
                ("ce-source", "/s"),
                ("ce-subject", "k"),
                ("ce-endofsequence", value),
            ]);
            let event = decode_http(&DECODER, &headers, &Bytes::new()).expect(value);
            assert_eq!(event.end(), end, "{value}");
        }
    }

    #[test]
    fn invalid_event_is_rejected_with_its_fault() {
        let valid = [
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-type", "t"),
            ("ce-source", "/s"),
            ("ce-subject", "k"),
        ];
        for (name, value, words) in [
            ("ce-specversion", "0.3", "`specversion` must be"),
            ("ce-sequence", "-1", "`sequence` must be a whole number"),
            ("ce-endofsequence", "yes", "`endofsequence` must be true or false, found \"yes\""),
            ("ce-time", "yesterday", "`time` must be"),
            ("ce-id", "%ff", "the header ce-id must be percent-encoded UTF-8"),
            ("ce-id", "", "`id` must be a text that is not empty"),
        ] {
            let mut headers = headers(&valid);
            headers.insert(name, HeaderValue::from_static(value));
            let error =
                decode_http(&DECODER, &headers, &Bytes::new()).expect_err("an invalid event");
            assert!(error.message.contains(words), "{error}");
        }
        let large = Bytes::from(vec![0; 2 << 10]);
        let error = decode_http(&DECODER, &headers(&valid), &large).expect_err("too large");
        assert!(error.message.contains("runtime.event_size allows 1024"), "{error}");
        let mut twice = headers(&valid);
        twice.append("ce-id", HeaderValue::from_static("2"));
        let error = decode_http(&DECODER, &twice, &Bytes::new()).expect_err("twice");
        assert!(error.message.contains("occurs twice"), "{error}");
        let mut foreign = headers(&valid);
        let kind = HeaderValue::from_bytes("text/café".as_bytes()).expect("a value");
        foreign.insert(CONTENT_TYPE, kind);
        let error = decode_http(&DECODER, &foreign, &Bytes::new()).expect_err("no ASCII");
        let words = "the header content-type must be printable ASCII";
        assert!(error.message.contains(words), "{error}");
    }

    /// Some clients write a header in Latin-1 instead of percent-encoded UTF-8.
    #[test]
    fn header_that_is_not_utf8_is_latin1() {
        for (value, key) in [
            (&b"K\xf6ln"[..], "Köln"),
            (b"\"K\xf6ln\"", "Köln"),
            (b"K\xf6ln%2F1", "Köln/1"),
            ("Köln".as_bytes(), "Köln"),
            (b"K%C3%B6ln", "Köln"),
        ] {
            let mut headers = headers(&[
                ("ce-specversion", "1.0"),
                ("ce-id", "1"),
                ("ce-type", "t"),
                ("ce-source", "/s"),
            ]);
            headers.insert("ce-subject", HeaderValue::from_bytes(value).expect("a value"));
            let event = decode_http(&DECODER, &headers, &Bytes::new()).expect(key);
            assert_eq!(event.key(), key);
        }
    }

    #[test]
    fn headers_determine_the_content_mode() {
        for (kind, form) in [
            ("application/cloudevents+json; charset=utf-8", Some(ContentMode::Structured)),
            ("Application/CloudEvents+JSON ;charset=UTF-8", Some(ContentMode::Structured)),
            ("application/cloudevents+avro", None),
            ("application/cloudevents-batch+json", Some(ContentMode::Batch)),
            ("Application/X-NDJSON", Some(ContentMode::Lines)),
            ("application/json", None),
        ] {
            assert_eq!(content_mode(&headers(&[("content-type", kind)])), form, "{kind}");
        }
        let binary = [("content-type", "application/json"), ("ce-specversion", "1.0")];
        assert_eq!(content_mode(&headers(&binary)), Some(ContentMode::Binary));
    }
}
