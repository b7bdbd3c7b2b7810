//! The id of a message, which must be the same each time the message is published.

use std::fmt::Write;

use ordain_store::OutboxMessage;

/// Returns `stream/key/incarnation/sequence/index`. Each part is percent-encoded, so that no two messages have the same
/// id, independently of the content of their keys. The incarnation is the time of the key's first commit. In a `fifo`
/// stream, it is combined with the digest of the event's id by exclusive or. The reason: after the store went back in
/// time (lost its newest writes), another event can have the same sequence.
pub fn message_id(stream: &str, message: &OutboxMessage) -> String {
    let mut id = String::with_capacity(stream.len() + message.key.len() + 32);
    percent_encode(stream, &mut id);
    id.push('/');
    percent_encode(&message.key, &mut id);
    let emitted = &message.emitted;
    let incarnation = message.incarnation ^ emitted.id_digest;
    // Writing to a text cannot fail.
    let _ = write!(id, "/{incarnation}/{}/{}", emitted.sequence, emitted.index);
    id
}

/// Returns the `source` of all messages and dead letters of a stream.
pub fn source_of(stream: &str) -> String {
    let mut source = String::from("/ordain/");
    percent_encode(stream, &mut source);
    source
}

/// Appends the text; all characters except the unreserved ones of RFC 3986 are written as `%XX`.
pub(super) fn percent_encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}
