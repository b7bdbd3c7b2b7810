//! The id of a message, the same however often it is published.

use std::fmt::Write;

use ordain_store::OutboxMessage;

/// Returns `stream/key/incarnation/sequence/index`, each percent-encoded, so that no two messages have one
/// id, whatever their keys contain. In a `fifo` stream the incarnation is combined with the digest of the
/// event's id by exclusive or: after the store went back in time, another event can have this sequence.
pub fn message_id(stream: &str, message: &OutboxMessage) -> String {
    let mut id = String::with_capacity(stream.len() + message.key.len() + 32);
    percent_encode(stream, &mut id);
    id.push('/');
    percent_encode(&message.key, &mut id);
    let emitted = &message.emitted;
    let incarnation = message.incarnation ^ emitted.event;
    // Writing to a text cannot fail.
    let _ = write!(id, "/{incarnation}/{}/{}", emitted.sequence, emitted.index);
    id
}

/// The source of all messages and letters of a stream.
pub fn source_of(stream: &str) -> String {
    let mut source = String::from("/ordain/");
    percent_encode(stream, &mut source);
    source
}

/// Everything but the characters that RFC 3986 leaves unreserved is written as `%XX`.
pub(super) fn percent_encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}
