//! The requirements for a message that a handler emits. The message may become an event of another stream, and Ordain
//! must be able to accept this event.

use ordain_core::{EmittedMessage, Message};

use super::super::settings::DisplaySize;
use super::super::wire::MessageReply;
use ordain_cloudevents::{ATTRIBUTE_LIMIT, HEADERS_LIMIT, HEADERS_SIZE_LIMIT, TextForm};
use ordain_store::{KEY_SIZE_LIMIT, OutboxMessage};

/// Size of the fixed parts of a message in the form of an event (names, punctuation, numbers), in bytes.
const ENVELOPE_OVERHEAD_BYTES: usize = 1 << 10;
/// Largest factor by which escaping enlarges the parts of a message other than its data. In JSON, an escaped byte takes
/// at most 6 bytes. Some headers need a second escape, which at most doubles this size.
const MAX_ESCAPE_FACTOR: usize = 12;

/// Checks a message, except the size of the whole message. Returns the fault of an invalid message as the error.
pub(super) fn check(message: &MessageReply) -> Result<(), String> {
    if message.kind.is_empty() {
        return Err("an empty type: every message needs a type".into());
    }
    if message.key.as_deref() == Some("") {
        return Err("an empty key: set a key, or leave it out to use the event's key".into());
    }
    if message.delay_ms.is_some() {
        return Err(
            "a `delay-ms`, which Ordain does not support yet: emit the message without `delay-ms`"
                .into(),
        );
    }
    let key = message.key.as_deref().unwrap_or_default();
    for (what, text, limit) in [
        ("key", key, KEY_SIZE_LIMIT),
        ("type", &message.kind, ATTRIBUTE_LIMIT),
        ("content type", &message.content_type, ATTRIBUTE_LIMIT),
    ] {
        if text.len() > limit {
            return Err(format!(
                "a {what} of {}; at most {} are allowed",
                DisplaySize(text.len()),
                DisplaySize(limit)
            ));
        }
    }
    let headers = &message.headers;
    let size: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if headers.len() > HEADERS_LIMIT || size > HEADERS_SIZE_LIMIT {
        return Err(format!(
            "{} headers, {} in total; at most {HEADERS_LIMIT} headers and {} in total are allowed",
            headers.len(),
            DisplaySize(size),
            DisplaySize(HEADERS_SIZE_LIMIT),
        ));
    }
    Ok(())
}

/// Returns an error if the size of the message as an event exceeds the limit. The error contains the size. This
/// function first computes a cheap upper bound. To find the exact size, the function would have to encode the message.
/// Encoding is expensive, and most messages are far below the limit. The upper bound counts the data as base64, because
/// no other form of the data is longer.
pub(super) fn check_size(message: &Message, limit: usize) -> Result<(), String> {
    let data = message.data().len();
    let rest = message.memory() - data;
    if ENVELOPE_OVERHEAD_BYTES + rest * MAX_ESCAPE_FACTOR + data.div_ceil(3) * 4 <= limit {
        return Ok(());
    }
    let emitted = EmittedMessage {
        sequence: u64::MAX,
        index: u32::MAX,
        event_digest: 0,
        message: message.clone(),
    };
    let message = OutboxMessage { key: "".into(), incarnation: u64::MAX, emitted };
    let mut line = Vec::new();
    ordain_cloudevents::encode("", &message, Some(u64::MAX), TextForm::Text, &mut line);
    if line.len() > limit {
        return Err(format!(
            "{} as an event; `runtime.event_size` allows {}",
            DisplaySize(line.len()),
            DisplaySize(limit),
        ));
    }
    Ok(())
}
