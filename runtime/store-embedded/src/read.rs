//! What all reads of the owner of a partition have in common. Every read is of one snapshot, so that
//! a job, its state and its ids belong together. Must change nothing.

use super::tables::{is_damage, read_error};
use ordain_store::{OfKey, StoreError};

/// What was read of a key: a damaged block of a file is its own, and no reason to stop others.
pub(super) fn of_key<T>(read: fjall::Result<OfKey<T>>) -> Result<OfKey<T>, StoreError> {
    match read {
        Ok(read) => Ok(read),
        Err(error) if is_damage(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(read_error(&error)),
    }
}

/// The sequence at the end of a place that [`keys::event`](super::keys::event) made.
pub(super) fn sequence_of(place: &[u8]) -> u64 {
    place.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
