//! Spilled events.

use bytes::Bytes;
use ordain_core::Event;
use std::sync::Arc;

/// Reads a spilled event of a key; or what is wrong with it.
pub fn decode_spilled(key: &str, sequence: u64, bytes: Bytes) -> Result<Arc<Event>, String> {
    let event =
        Event::decode(bytes).map_err(|error| format!("spilled event {sequence}: {error}"))?;
    if event.key() != key {
        return Err(format!("spilled event {sequence} is of key {:?}", event.key()));
    }
    Ok(Arc::new(event))
}
