//! Encodes a message as a line. The same message must always produce the same bytes. This module must therefore not
//! read the clock, so the line contains no `time`.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;

use super::compact::compact;
use super::envelope::EnvelopeMember;
use super::id::{message_id, source_of};
use super::{HEADERS_ATTRIBUTE, JSON_MEDIA_TYPE, is_text};
use ordain_core::{Message, is_json};
use ordain_store::OutboxMessage;

/// The form in which a line contains data that is text but not JSON, such as plain text or XML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// A JSON string in `data`.
    Text,
    /// Base64 in `data_base64`. Earlier versions of Ordain wrote this form.
    Base64,
}

/// The type in the line of a message without a type, for example of a passed-on event. A CloudEvent must have a type.
const UNTYPED: &str = "ordain.untyped";

/// Appends a message of `stream` as a line, including its line end.
///
/// `sequence` is the number that a sequenced sink gave to the message. If the data is empty, the line contains no data.
/// Otherwise, the line contains the data in the first of these forms that is possible:
///
/// - compact JSON, if the content type is JSON or empty, and the data is valid JSON that is nested at most
///   `NESTING_LIMIT` deep;
/// - a JSON string, if `text_form` is `Text`, the content type is text, the data is UTF-8, and escapes do not make the
///   string longer than base64;
/// - base64.
///
/// Headers become extension attributes. One attribute contains all headers that repeat the name of an earlier header,
/// or whose name is not allowed. [`EventDecoder`](super::EventDecoder) splits this attribute back into headers.
pub fn encode(
    stream: &str,
    message: &OutboxMessage,
    sequence: Option<u64>,
    text_form: TextForm,
    out: &mut Vec<u8>,
) {
    let inner = &message.emitted.message;
    out.extend_from_slice(b"{\"specversion\":\"1.0\"");
    write_member(out, "id", &message_id(stream, message));
    write_member(out, "source", &source_of(stream));
    write_member(out, "type", message_type(inner));
    write_member(out, "subject", inner.key().unwrap_or(&message.key));
    if let Some(sequence) = sequence {
        write_member(out, "sequence", &sequence.to_string());
    }
    if inner.end() {
        out.extend_from_slice(b",\"endofsequence\":true");
    }
    if !inner.content_type().is_empty() {
        write_member(out, "datacontenttype", inner.content_type());
    }
    write_headers(out, inner.headers(), &[]);
    write_data(out, inner.content_type(), inner.data(), text_form);
    out.extend_from_slice(b"}\n");
}

/// Returns the type that a message has in its sink. All sinks give a message the same type: a stream may receive an
/// event and its repeat from different sinks, and compares their types.
pub fn message_type(message: &Message) -> &str {
    if message.kind().is_empty() { UNTYPED } else { message.kind() }
}

/// Writes headers as extension attributes. Combines in one attribute all headers whose names are not allowed, are in
/// `taken`, or repeat the name of an earlier header.
pub(super) fn write_headers<'a>(
    out: &mut Vec<u8>,
    headers: impl Iterator<Item = (&'a str, &'a str)>,
    taken: &[&'a str],
) {
    let mut seen: HashSet<&str> = taken.iter().copied().collect();
    let mut others = Vec::new();
    for (name, value) in headers {
        if is_extension(name) && seen.insert(name) {
            write_member(out, name, value);
        } else {
            others.push((name, value));
        }
    }
    if !others.is_empty() {
        let mut list = Vec::new();
        json(&mut list, &others);
        write_member(out, HEADERS_ATTRIBUTE, &String::from_utf8_lossy(&list));
    }
}

/// Returns whether a header of this name can be an extension attribute of its own.
fn is_extension(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && EnvelopeMember::of(name).is_none()
        && name != HEADERS_ATTRIBUTE
}

pub(super) fn write_data(out: &mut Vec<u8>, content_type: &str, data: &[u8], text_form: TextForm) {
    if data.is_empty() {
        return;
    }
    let content_type = if content_type.is_empty() { JSON_MEDIA_TYPE } else { content_type };
    let is_written = if is_json(content_type) {
        write_json(out, data)
    } else {
        text_form == TextForm::Text && is_text(content_type) && write_text(out, data)
    };
    if !is_written {
        write_member(out, "data_base64", &STANDARD.encode(data));
    }
}

/// Writes data as JSON. Writes nothing and returns `false` if the data is not valid JSON, or is nested deeper than
/// `NESTING_LIMIT`.
fn write_json(out: &mut Vec<u8>, data: &[u8]) -> bool {
    let Some(json) = compact_json(data) else { return false };
    out.extend_from_slice(b",\"data\":");
    out.extend_from_slice(json.as_bytes());
    true
}

/// Writes data as a JSON string. Writes nothing and returns `false` if the data is not UTF-8, or if the string is
/// longer than base64 because of many escapes. Escapes therefore never make an event exceed its size limit.
fn write_text(out: &mut Vec<u8>, data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let start = out.len();
    write_member(out, "data", text);
    let is_short = out.len() - start <= ",\"data\":\"\"".len() + data.len().div_ceil(3) * 4;
    if !is_short {
        out.truncate(start);
    }
    is_short
}

/// Returns the data in compact form. Returns `None` if the data is not valid JSON, or is nested deeper than
/// `NESTING_LIMIT`.
pub(super) fn compact_json(data: &[u8]) -> Option<Cow<'_, str>> {
    let raw: &RawValue = serde_json::from_slice(data).ok()?;
    compact(raw.get()).ok()
}

pub(super) fn write_member(out: &mut Vec<u8>, name: &str, value: &str) {
    // The names of members never need escaping.
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    json(out, value);
}

fn json(out: &mut Vec<u8>, value: impl serde::Serialize) {
    serde_json::to_writer(out, &value).expect("texts and lists can always be serialized");
}
