//! Shared parts of all reads for the owner of a partition. Each such read uses one snapshot, so that a key record, its
//! state and its ids are consistent. This module must not change any data.

use super::tables::{is_damage, read_error};
use ordain_store::{KeyResult, StoreError};

/// Converts the result of reading one key. A damaged block of a file becomes an error of this key alone.
pub(super) fn of_key<T>(read: fjall::Result<KeyResult<T>>) -> Result<KeyResult<T>, StoreError> {
    match read {
        Ok(read) => Ok(read),
        Err(error) if is_damage(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(read_error(&error)),
    }
}

/// Returns the sequence at the end of a place that [`keys::event`](super::keys::event) made.
pub(super) fn sequence_of(place: &[u8]) -> u64 {
    place.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
