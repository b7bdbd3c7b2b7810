//! The place of a dead letter: bytes whose order sorts the letters of a stream by key, sequence and tag. A key can
//! contain NUL bytes, so the place escapes these bytes, and ends the key with a terminator.

use ordain_core::LetterId;

use crate::KEY_SIZE_LIMIT;

/// Never occurs inside an escaped key, and sorts before all bytes that can continue one. A key therefore sorts before
/// all longer keys that begin with this key.
const TERMINATOR: [u8; 2] = [0, 1];
const ESCAPED_NUL: [u8; 2] = [0, 0xff];

/// Appends the common prefix of the places (the sort keys) of all letters of a key.
pub fn put_letter_key(key: &str, out: &mut Vec<u8>) {
    // An event with a key above `KEY_SIZE_LIMIT` becomes a dead letter. The store keeps this letter under the beginning
    // of the key.
    let key = &key[..key.floor_char_boundary(KEY_SIZE_LIMIT)];
    for part in key.as_bytes().split_inclusive(|byte| *byte == 0) {
        match part.split_last() {
            Some((0, text)) => {
                out.extend_from_slice(text);
                out.extend_from_slice(&ESCAPED_NUL);
            }
            _ => out.extend_from_slice(part),
        }
    }
    out.extend_from_slice(&TERMINATOR);
}

/// Appends the place (the sort key) of a letter.
pub fn put_letter_place(id: &LetterId, out: &mut Vec<u8>) {
    put_letter_key(&id.key, out);
    out.extend_from_slice(&id.sequence.to_be_bytes());
    out.extend_from_slice(&id.tag.to_be_bytes());
}

/// Returns the id of the letter that has this place (sort key); `None` if the place is not valid.
pub fn split_letter_place(place: &[u8]) -> Option<LetterId> {
    let (rest, tag) = place.split_last_chunk()?;
    let (rest, sequence) = rest.split_last_chunk()?;
    let escaped = rest.strip_suffix(&TERMINATOR)?;
    let mut key = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        key.push(*byte);
        if *byte == 0 && bytes.next() != Some(&0xff) {
            return None;
        }
    }
    // The place of a letter never contains a key that is longer than the limit.
    let key = Some(key).filter(|key| key.len() <= KEY_SIZE_LIMIT)?;
    let key = String::from_utf8(key).ok()?.into();
    let sequence = u64::from_be_bytes(*sequence);
    let tag = u64::from_be_bytes(*tag);
    Some(LetterId { key, sequence, tag })
}
