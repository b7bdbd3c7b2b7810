//! The shared parts of all reads for the owner of a partition. Each of these reads uses one snapshot of the tables, so
//! that a key record, its state and its ids come from the same moment. This module must not change any data.

use super::shared::SharedStore;
use super::tables::{is_damage, read_error, reason};
use ordain_store::{KeyResult, StoreError};

/// Converts the result of a read of one key. If the read failed because a block of a file is damaged, returns an error
/// that concerns only this key, so that the caller can still read other keys.
pub(super) fn of_key<T>(
    shared: &SharedStore,
    read: fjall::Result<KeyResult<T>>,
) -> Result<KeyResult<T>, StoreError> {
    match read {
        Ok(read) => Ok(read),
        Err(error) if is_damage(&error) => Ok(Err(shared.damage_text(&reason(&error)))),
        Err(error) => Err(read_error(&error)),
    }
}

/// Returns the sequence at the end of a table key from [`keys::event`](super::keys::event) or
/// [`keys::retained`](super::keys::retained).
pub(super) fn sequence_of(table_key: &[u8]) -> u64 {
    table_key.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
