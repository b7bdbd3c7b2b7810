//! The id of a message, which must be the same each time the message is published.

use std::fmt::Write;

use ordain_store::OutboxMessage;

/// Returns `stream/key/incarnation/sequence/index`. Each part is percent-encoded, so that two messages never have the
/// same id, whatever characters their keys contain. The part `incarnation` is a bitwise XOR of two numbers: the time of
/// the key's first commit, and the digest of the event's source and id. The digest is necessary because a store can go
/// back in time (lose its newest writes). A lost event and a later event can then have the same sequence. The digest
/// gives the messages of the two events different ids. If an event is executed again, its messages have the same ids as
/// before.
pub fn message_id(stream: &str, message: &OutboxMessage) -> String {
    let mut id = String::with_capacity(stream.len() + message.key.len() + 32);
    percent_encode(stream, &mut id);
    id.push('/');
    percent_encode(&message.key, &mut id);
    let emitted = &message.emitted;
    let incarnation = message.incarnation ^ emitted.event_digest;
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

/// Appends the text, percent-encoded: every byte that is not an unreserved character of RFC 3986 becomes `%XX`.
pub(super) fn percent_encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}
