//! Where a dead letter lies among those of its stream: by key, sequence and tag, in the order of
//! bytes. A key has any bytes in it, so it is escaped and terminated.

use ordain_core::LetterId;

use crate::KEY_SIZE_LIMIT;

/// What ends an escaped key: less than any byte of a longer key, and never inside one.
const TERMINATOR: [u8; 2] = [0, 1];
/// What a NUL in an escaped key becomes.
const ESCAPED_NUL: [u8; 2] = [0, 0xff];

/// Appends with what the places of all letters of a key begin.
pub fn put_letter_key(key: &str, out: &mut Vec<u8>) {
    // A decoder refuses longer keys. Should one come all the same, its letter is kept under the
    // key's beginning rather than refused.
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

/// Appends the place of a letter.
pub fn put_letter_place(id: &LetterId, out: &mut Vec<u8>) {
    put_letter_key(&id.key, out);
    out.extend_from_slice(&id.sequence.to_be_bytes());
    out.extend_from_slice(&id.tag.to_be_bytes());
}

/// The identity of a letter, from its place; `None` if that is no letter's.
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
    // No letter is kept under a longer one.
    let key = Some(key).filter(|key| key.len() <= KEY_SIZE_LIMIT)?;
    let key = String::from_utf8(key).ok()?.into();
    let (sequence, tag) = (u64::from_be_bytes(*sequence), u64::from_be_bytes(*tag));
    Some(LetterId { key, sequence, tag })
}
