//! The record of a queue, and the check of queue positions. A queue position consists of the number of an entry, and a
//! history: a digest of all writes to the queue up to the entry. Each entry of a queue is a separate record: first its
//! history, then its event.

use ordain_core::{QueuePosition, digest};
use ordain_store::{QueueEnds, StoreError};

/// The record of a queue: its ends, and the history of the last removed entry.
#[derive(Debug, Clone, Copy)]
pub struct QueueEndsRecord {
    pub(super) ends: QueueEnds,
    pub(super) removed_history: u64,
}

impl QueueEndsRecord {
    const EMPTY: Self = Self {
        ends: QueueEnds { first: 1, last: QueuePosition { number: 0, history: 0 } },
        removed_history: 0,
    };

    /// Decodes the record from its stored form. Without a stored form, returns an empty queue.
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

    /// Returns the history for the entries that a call adds to the queue. All these entries have the same history.
    /// `nonce` is a random number of the call.
    pub(super) fn next_history(&self, nonce: u64) -> u64 {
        digest(&[self.ends.last.history, nonce].map(u64::to_le_bytes).concat())
    }

    /// Returns the history of entry `number`. `value` is the stored form of the entry. Returns 0 if the stored form is
    /// damaged.
    pub(super) fn history_at(&self, number: u64, value: Option<&[u8]>) -> u64 {
        if number == self.ends.last.number {
            return self.ends.last.history;
        }
        let history = value.and_then(|value| value.first_chunk());
        history.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns whether the queue has, or had, an entry with the number and history of this queue position. If so, all
    /// earlier entries of the queue are also the same as when the caller got the queue position. The history of a
    /// damaged entry is unknown (0), and counts as equal to every history. `read` returns the stored entry with the
    /// given number.
    pub(super) fn contains<E>(
        &self,
        position: QueuePosition,
        read: impl FnOnce(u64) -> Result<Option<fjall::Slice>, E>,
    ) -> Result<bool, E> {
        let QueuePosition { number, history } = position;
        let QueueEnds { first, last } = self.ends;
        let found = if number > last.number {
            return Ok(false);
        } else if number >= first {
            self.history_at(number, read(number)?.as_deref())
        } else if number > 0 && number + 1 == first {
            self.removed_history
        } else {
            // The queue does not keep the histories of entries before the last removed entry. This function accepts the
            // queue positions of these entries.
            return Ok(true);
        };
        Ok(found == history || found == 0 || history == 0)
    }
}
