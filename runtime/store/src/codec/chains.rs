//! What a destination knows of keys and messages: how far each key has counted, and what is kept.
//!
//! All numbers have fixed widths, so that a script can put the records together.

use std::sync::Arc;

use bytes::Bytes;
use ordain_core::Event;

use super::wire::{Reader, Undecodable};
use crate::Queued;

/// Opens the record of a key's count.
pub const COUNTER_FORMAT: u8 = 1;

/// How far a key has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// The next number.
    pub next: u64,
    /// When it is forgotten, in ms since the Unix epoch; 0: it has not ended.
    pub end: u64,
}

impl Counter {
    /// The record.
    pub fn encode(self) -> [u8; 17] {
        let mut out = [COUNTER_FORMAT; 17];
        out[1..9].copy_from_slice(&self.next.to_le_bytes());
        out[9..].copy_from_slice(&self.end.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        let mut reader = Reader::new("count of a key", bytes, COUNTER_FORMAT)?;
        let counter = Self { next: reader.u64("next")?, end: reader.u64("end")? };
        reader.end().map(|()| counter)
    }
}

/// Where the content of a message that is kept stands: behind the time at which it goes.
pub const RETAINED_CONTENT_AT: usize = 8;

/// A message as it is kept, behind the time at which it goes: its content, so that two are compared
/// without being taken apart, and the event with its number.
pub fn encode_retained(event: &Event, sequence: Option<u64>) -> Vec<u8> {
    let mut value = Vec::with_capacity(8 + event.encoded_len());
    value.extend_from_slice(&event.content().to_be_bytes());
    event.encode_with(sequence, &mut value);
    value
}

/// Reads one with its time, or says what is wrong with it.
pub fn decode_retained(value: &Bytes) -> Result<Arc<Event>, String> {
    let event_at = RETAINED_CONTENT_AT + 8;
    if value.len() < event_at {
        return Err("a message that is kept is cut off".to_owned());
    }
    let event = Event::decode(value.slice(event_at..));
    event.map(Arc::new).map_err(|error| format!("a message that is kept: {error}"))
}

/// Reads what waits for a stream.
pub fn decode_queued(value: Bytes) -> Queued {
    Event::decode(value.clone()).map_err(|error| (value, error.to_string()))
}
