//! The record of a dead letter: an event that ended without effect. The record must keep the key, the attributes and
//! the data of the event unchanged.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::{DeadLetter, Event, LetterContent, LetterId};

use super::key_record::{cause_number, cause_of};
use super::wire::{RecordDecodeError, RecordReader, put_bytes, put_option, put_varint};
use crate::StoredLetter;

const LETTER_FORMAT: u8 = 1;

/// The offset of the time when the letter was stored, eight bytes.
pub const LETTER_TIME_AT: usize = 1;
/// The offset of the key: its length with variable width, then its bytes. The sequence (variable width), the tag (eight
/// bytes) and the cause follow the key.
pub const LETTER_KEY_AT: usize = 9;

const CONTENT_NOTHING: u8 = 0;
const CONTENT_EVENT: u8 = 1;
const CONTENT_RAW: u8 = 2;

/// Appends the record of a letter that is stored at time `at`.
pub fn encode_letter(letter: &DeadLetter, at: u64, out: &mut Vec<u8>) {
    out.push(LETTER_FORMAT);
    out.extend_from_slice(&at.to_le_bytes());
    put_bytes(letter.id.key.as_bytes(), out);
    put_varint(letter.id.sequence, out);
    out.extend_from_slice(&letter.id.tag.to_le_bytes());
    out.push(cause_number(letter.cause));
    put_bytes(letter.error.as_bytes(), out);
    put_option(letter.origin.as_deref(), out);
    put_option(letter.version.as_deref(), out);
    match &letter.content {
        LetterContent::Nothing => out.push(CONTENT_NOTHING),
        LetterContent::Event(event) => {
            out.push(CONTENT_EVENT);
            event.encode(out);
        }
        LetterContent::Raw(bytes) => {
            out.push(CONTENT_RAW);
            out.extend_from_slice(bytes);
        }
    }
}

/// Decodes a record without copying the content.
pub fn decode_letter(bytes: &Bytes) -> Result<StoredLetter, RecordDecodeError> {
    let mut reader = RecordReader::new("dead letter", bytes, LETTER_FORMAT)?;
    let at = reader.u64("time")?;
    let id = LetterId {
        key: reader.text("key")?.into(),
        sequence: reader.varint("sequence")?,
        tag: reader.u64("tag")?,
    };
    let cause = reader.u8("cause")?;
    let cause = cause_of(cause).ok_or_else(|| reader.damaged("cause"))?;
    let error = reader.text("error")?.to_owned();
    let origin = reader.option("origin")?.map(str::to_owned);
    let version = reader.option("version")?.map(Into::into);
    let content = reader.u8("content")?;
    let rest = bytes.slice_ref(reader.rest());
    let content = match content {
        CONTENT_NOTHING => {
            reader.end()?;
            LetterContent::Nothing
        }
        CONTENT_EVENT => {
            let event = Event::decode(rest).map_err(|cause| reader.content(cause))?;
            LetterContent::Event(Arc::new(event))
        }
        CONTENT_RAW => LetterContent::Raw(rest),
        _ => return Err(reader.damaged("content")),
    };
    Ok(StoredLetter { letter: DeadLetter { id, cause, error, origin, version, content }, at })
}

/// Returns the time when a letter was stored, without decoding the rest of the record.
pub fn letter_time(bytes: &[u8]) -> Option<u64> {
    let mut reader = RecordReader::new("dead letter", bytes, LETTER_FORMAT).ok()?;
    reader.u64("time").ok()
}
