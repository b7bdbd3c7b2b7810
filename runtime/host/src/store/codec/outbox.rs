//! The committed messages of one batch as one value: a chunk for each applied write, one after
//! the other, so that a store joins the chunks of what it applied without taking them apart.

use bytes::Bytes;
use ordain_core::{Emitted, Key, Message};

use super::wire::{Reader, Undecodable, put_bytes, put_varint};
use crate::store::{OutboxEntry, OutboxMessage};

/// Opens each chunk.
const FORMAT: u8 = 1;

/// Appends the chunk of one write. A write without messages has none.
pub fn encode_outbox_write(key: &str, incarnation: u64, messages: &[Emitted], out: &mut Vec<u8>) {
    if messages.is_empty() {
        return;
    }
    out.push(FORMAT);
    out.extend_from_slice(&incarnation.to_le_bytes());
    put_bytes(key.as_bytes(), out);
    put_varint(messages.len() as u64, out);
    for emitted in messages {
        put_varint(emitted.sequence, out);
        put_varint(u64::from(emitted.index), out);
        put_varint(emitted.message.encoded_len() as u64, out);
        emitted.message.encode(out);
    }
}

/// Reads all chunks of a batch; the messages share the bytes.
pub fn decode_outbox(number: u64, bytes: &Bytes) -> Result<OutboxEntry, Undecodable> {
    let mut messages = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let mut reader = Reader::new("outbox entry", rest, FORMAT)?;
        let incarnation = reader.u64("incarnation")?;
        let key = Key::from(reader.text("key")?);
        for _ in 0..reader.varint("number of messages")? {
            let sequence = reader.varint("sequence")?;
            let index = reader.varint32("index")?;
            let message = bytes.slice_ref(reader.bytes("message")?);
            let message = Message::decode(message).map_err(|cause| reader.content(cause))?;
            let emitted = Emitted { sequence, index, message };
            messages.push(OutboxMessage { key: key.clone(), incarnation, emitted });
        }
        rest = reader.rest();
    }
    Ok(OutboxEntry { number, messages })
}
