//! The records of a destination (an exchange, a stream or a file that receives messages): the counter of each key, and
//! the messages that the store retains for replay.
//!
//! All numbers have fixed widths, so that a Redis script can build the records.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::Event;

use super::wire::{RecordDecodeError, RecordReader};
use crate::QueueEntry;

/// The format byte of a key's counter.
pub const COUNTER_FORMAT: u8 = 1;

/// The counter of a key in a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyCounter {
    /// The number that the next message of the key gets.
    pub next: u64,
    /// The time when the counter expires, in ms since the Unix epoch; 0 if the key has not ended.
    pub end: u64,
}

impl KeyCounter {
    /// Encodes the counter as a record.
    pub fn encode(self) -> [u8; 17] {
        let mut out = [COUNTER_FORMAT; 17];
        out[1..9].copy_from_slice(&self.next.to_le_bytes());
        out[9..].copy_from_slice(&self.end.to_le_bytes());
        out
    }

    /// Decodes a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordDecodeError> {
        let mut reader = RecordReader::new("count of a key", bytes, COUNTER_FORMAT)?;
        let counter = Self { next: reader.u64("next")?, end: reader.u64("end")? };
        reader.end().map(|()| counter)
    }
}

/// The offset of the content digest in a retained message. The expiry time of the message precedes the digest.
pub const RETAINED_CONTENT_AT: usize = 8;

/// Encodes a retained message without its expiry time: first the content digest, then the event with the number
/// `sequence`. With the digest, a store can compare two messages without decoding them. If the message comes from a
/// producer and has no number of its own, the event becomes store-numbered ([`Event::is_store_numbered`]).
pub fn encode_retained(event: &Event, sequence: Option<u64>, is_from_producer: bool) -> Vec<u8> {
    let mut value = Vec::with_capacity(8 + event.encoded_len());
    value.extend_from_slice(&event.content().to_be_bytes());
    if is_from_producer && sequence.is_some() {
        event.numbered_by_store().encode_with(sequence, &mut value);
    } else {
        event.encode_with(sequence, &mut value);
    }
    value
}

/// Decodes the event of a retained message, or returns a description of the damage. `value` begins with the expiry time
/// of the message.
pub fn decode_retained(value: &Bytes) -> Result<Arc<Event>, String> {
    let event_at = RETAINED_CONTENT_AT + 8;
    if value.len() < event_at {
        return Err("a retained message is truncated".to_owned());
    }
    let event = Event::decode(value.slice(event_at..));
    event.map(Arc::new).map_err(|error| format!("a retained message is damaged: {error}"))
}

/// Decodes an entry of a stream's queue. For a damaged entry, returns the bytes and the reason.
pub fn decode_queued(value: Bytes) -> QueueEntry {
    Event::decode(value.clone()).map_err(|error| (value, error.to_string()))
}
