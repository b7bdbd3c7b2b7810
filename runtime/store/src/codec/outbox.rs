//! The encoding of the messages and dead letters of one batch (the content of one commit) as one value. The value
//! contains a section for each applied write with messages, and then a section with the letters. A store can therefore
//! leave out the section of a refused write without decoding the other sections.

use bytes::Bytes;
use ordain_core::{DeadLetter, EmittedMessage, Key, Message};

use super::letter::{decode_letter, encode_letter};
use super::wire::{RecordDecodeError, RecordReader, put_bytes, put_varint};
use crate::{OutboxEntry, OutboxMessage};

const OUTBOX_WRITE_FORMAT: u8 = 1;
/// The format byte of the letters' section.
pub const OUTBOX_LETTERS_FORMAT: u8 = 2;
/// The format byte of the commit's time. The incarnation of a key is the time of its first commit. The Redis store
/// encodes a section before the time of the commit is known. If the commit is the first of a key, the section therefore
/// contains the incarnation 0. The commit script then writes the time of the commit before the sections, and the
/// decoder uses this time as the incarnation.
pub const OUTBOX_TIME_FORMAT: u8 = 3;

/// Appends the section of one write. Appends nothing if the write has no messages.
pub fn encode_outbox_write(
    key: &str,
    incarnation: u64,
    messages: &[EmittedMessage],
    out: &mut Vec<u8>,
) {
    if messages.is_empty() {
        return;
    }
    out.push(OUTBOX_WRITE_FORMAT);
    out.extend_from_slice(&incarnation.to_le_bytes());
    put_bytes(key.as_bytes(), out);
    put_varint(messages.len() as u64, out);
    for emitted in messages {
        put_varint(emitted.sequence, out);
        put_varint(u64::from(emitted.index), out);
        put_varint(emitted.event_digest, out);
        put_varint(emitted.message.encoded_len() as u64, out);
        emitted.message.encode(out);
    }
}

/// Appends the section of the dead letters that are to be published. `at` is the time at which the letters are stored.
/// Appends nothing if there are no letters.
pub fn encode_outbox_letters<'a>(
    letters: impl Iterator<Item = &'a DeadLetter>,
    at: u64,
    out: &mut Vec<u8>,
) {
    let mut letters = letters.peekable();
    if letters.peek().is_none() {
        return;
    }
    out.push(OUTBOX_LETTERS_FORMAT);
    let mut record = Vec::new();
    for letter in letters {
        record.clear();
        encode_letter(letter, at, &mut record);
        put_bytes(&record, out);
    }
}

/// Decodes all sections of a batch without copying the contents.
pub fn decode_outbox(number: u64, bytes: &Bytes) -> Result<OutboxEntry, RecordDecodeError> {
    let mut messages = Vec::new();
    let mut letters = Vec::new();
    let mut time = 0;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        if rest[0] == OUTBOX_LETTERS_FORMAT {
            let mut reader = RecordReader::new("outbox entry", rest, OUTBOX_LETTERS_FORMAT)?;
            // The section of the letters is the last section, and extends to the end of the bytes.
            while !reader.is_empty() {
                let record = bytes.slice_ref(reader.bytes("letter")?);
                letters.push(decode_letter(&record)?.letter);
            }
            break;
        }
        if rest[0] == OUTBOX_TIME_FORMAT {
            let mut reader = RecordReader::new("outbox entry", rest, OUTBOX_TIME_FORMAT)?;
            time = reader.u64("time")?;
            rest = reader.rest();
            continue;
        }
        let mut reader = RecordReader::new("outbox entry", rest, OUTBOX_WRITE_FORMAT)?;
        let incarnation = match reader.u64("incarnation")? {
            0 if time == 0 => return Err(reader.damaged("incarnation")),
            0 => time,
            incarnation => incarnation,
        };
        let key = Key::from(reader.text("key")?);
        for _ in 0..reader.varint("number of messages")? {
            let sequence = reader.varint("sequence")?;
            let index = reader.varint32("index")?;
            let event = reader.varint("event")?;
            let message = bytes.slice_ref(reader.bytes("message")?);
            let message = Message::decode(message).map_err(|cause| reader.content(cause))?;
            let emitted = EmittedMessage { sequence, index, event_digest: event, message };
            messages.push(OutboxMessage { key: key.clone(), incarnation, emitted });
        }
        rest = reader.rest();
    }
    if messages.is_empty() && letters.is_empty() {
        return Err(RecordDecodeError::Part { record: "outbox entry", part: "messages" });
    }
    Ok(OutboxEntry { number, messages, letters })
}
