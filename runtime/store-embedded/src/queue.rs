//! The ends of a queue, and its queue positions. A queue position is the number of an entry with a history: a digest of
//! all writes up to the entry. Each entry has its own record: first its history, then its event.

use ordain_core::{QueuePosition, digest};
use ordain_store::{QueueEnds, StoreError};

/// A queue: its ends, and the history before its first entry.
#[derive(Debug, Clone, Copy)]
pub struct QueueRecord {
    pub(super) ends: QueueEnds,
    pub(super) removed_history: u64,
}

impl QueueRecord {
    const EMPTY: Self = Self {
        ends: QueueEnds { first: 1, last: QueuePosition { number: 0, history: 0 } },
        removed_history: 0,
    };

    /// Decodes the stored form. Without a stored form, the queue is empty.
    pub fn decode(value: Option<&[u8]>) -> Result<Self, StoreError> {
        let Some(value) = value else { return Ok(Self::EMPTY) };
        let ([first, last, history, before], []) = value.as_chunks::<8>() else {
            return Err(StoreError::Corrupt("the ends of a queue".to_owned()));
        };
        let last = QueuePosition {
            number: u64::from_le_bytes(*last),
            history: u64::from_le_bytes(*history),
        };
        let ends = QueueEnds { first: u64::from_le_bytes(*first), last };
        Ok(Self { ends, removed_history: u64::from_le_bytes(*before) })
    }

    /// Returns the stored form.
    pub fn encode(self) -> Vec<u8> {
        let QueueEnds { first, last } = self.ends;
        [first, last.number, last.history, self.removed_history].map(u64::to_le_bytes).concat()
    }

    /// Returns the history of the entries that a call puts after the last entry. `nonce` is a random number of the
    /// call.
    pub(super) fn next_history(&self, nonce: u64) -> u64 {
        digest(&[self.ends.last.history, nonce].map(u64::to_le_bytes).concat())
    }

    /// Returns the history up to the entry that has this number and the stored value `value`.
    pub(super) fn history_at(&self, number: u64, value: Option<&[u8]>) -> u64 {
        if number == self.ends.last.number {
            return self.ends.last.history;
        }
        let history = value.and_then(|value| value.first_chunk());
        history.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns whether a queue position is in the history of the queue. If so, the queue also has the same earlier
    /// entries as when the caller read the position. The history of a damaged entry is unknown (0), and counts as equal
    /// to every other history. `read` returns the stored entry with a number.
    pub(super) fn contains<E>(
        &self,
        place: QueuePosition,
        read: impl FnOnce(u64) -> Result<Option<fjall::Slice>, E>,
    ) -> Result<bool, E> {
        let QueuePosition { number, history } = place;
        let QueueEnds { first, last } = self.ends;
        let found = if number > last.number {
            return Ok(false);
        } else if number >= first {
            self.history_at(number, read(number)?.as_deref())
        } else if number > 0 && number + 1 == first {
            self.removed_history
        } else {
            // The queue keeps no history of entries before the last removed one, so this function accepts their queue
            // positions.
            return Ok(true);
        };
        Ok(found == history || found == 0 || history == 0)
    }
}
