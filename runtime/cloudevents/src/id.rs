//! The ids of messages, and the ids of events whose producers give them none. The id of a message must be the same each
//! time the message is published.

use std::fmt::Write;

use ordain_store::OutboxMessage;
use sha2::{Digest, Sha256};

use super::canonical::canonical_json;

/// Size of the digest in a content id, in bytes.
const CONTENT_DIGEST_BYTES: usize = 16;

/// Returns the id of a message: `stream/key/incarnation/sequence/index`. Each part is percent-encoded, so that two
/// messages never have the same id, whatever characters their keys contain. The part `incarnation` is a bitwise XOR of
/// two numbers: the time of the key's first commit, and the digest of the event's source and id. The digest is
/// necessary because a store can go back in time (lose its newest writes). A lost event and a later event can then have
/// the same sequence. The digest gives the messages of the two events different ids. If an event is executed again, its
/// messages have the same ids as before.
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

/// Returns the id of an event whose content identifies the event: the first 128 bits of a SHA-256 digest of key, type
/// and data, in hexadecimal digits. If the data is JSON, the digest covers the canonical form of the data, so that two
/// forms of the same JSON result in the same id.
pub fn content_id(key: &str, kind: &str, data: &[u8]) -> String {
    let json = canonical_json(data);
    let mut digest = Sha256::new();
    for part in [key.as_bytes(), kind.as_bytes(), json.as_deref().unwrap_or(data)] {
        // The digest also covers the length of each part, so that different parts never result in the same input of the
        // digest.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let mut id = String::with_capacity(2 * CONTENT_DIGEST_BYTES);
    for byte in &digest.finalize()[..CONTENT_DIGEST_BYTES] {
        // Writing to a text cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// Returns a random id of 128 bits, in hexadecimal digits.
pub fn unique_id() -> String {
    format!("{:032x}", rand::random::<u128>())
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
            percent_encode_bytes([byte], out);
        }
    }
}

/// Appends each byte as `%XX`.
pub(super) fn percent_encode_bytes(bytes: impl IntoIterator<Item = u8>, out: &mut String) {
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(out, "%{byte:02X}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_id_depends_on_key_type_and_data() {
        let id = content_id("k", "t", b"data");
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        for (key, kind, data) in [
            ("kt", "", &b"data"[..]),
            ("k", "td", b"ata"),
            ("k", "t", b"datb"),
            ("", "kt", b"data"),
        ] {
            assert_ne!(content_id(key, kind, data), id, "{key} {kind}");
        }
        let id = content_id("k", "t", b"{\"a\":[1,\"x\"],\"b\":2}");
        assert_eq!(content_id("k", "t", b"{\"b\": 2, \"a\": [1, \"\\u0078\"]}\n"), id);
        assert_ne!(content_id("k", "t", b"{\"a\":[\"x\",1],\"b\":2}"), id);
        assert_ne!(unique_id(), unique_id());
        assert_eq!(unique_id().len(), 32);
    }
}
