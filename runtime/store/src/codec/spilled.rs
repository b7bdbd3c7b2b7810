//! The records of spilled events: events that wait in the store until their key can execute them.

use bytes::Bytes;
use ordain_core::Event;
use std::sync::Arc;

/// Decodes a spilled event of a key, or returns a description of the damage.
pub fn decode_spilled(key: &str, sequence: u64, bytes: Bytes) -> Result<Arc<Event>, String> {
    let event =
        Event::decode(bytes).map_err(|error| format!("spilled event {sequence}: {error}"))?;
    if event.key() != key {
        return Err(format!(
            "spilled event {sequence} belongs to key {:?}, not to key {key:?}",
            event.key()
        ));
    }
    Ok(Arc::new(event))
}
