//! The range of numbers that wait in a queue. The events have records of their own.

use ordain_store::StoreError;

/// The first and the last number that wait in a queue.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Queue {
    /// Reads the stored form; an absent one is empty.
    pub fn decode(value: Option<&[u8]>) -> Result<Self, StoreError> {
        let Some(value) = value else { return Ok(Self { first: 1, last: 0 }) };
        let parts = value.split_first_chunk::<8>();
        let parts = parts.and_then(|(first, last)| Some((first, last.first_chunk::<8>()?)));
        let (first, last) =
            parts.ok_or_else(|| StoreError::Corrupt("a queue's numbers".to_owned()))?;
        Ok(Self { first: u64::from_le_bytes(*first), last: u64::from_le_bytes(*last) })
    }

    /// Returns the stored form.
    pub fn encode(self) -> Vec<u8> {
        [self.first.to_le_bytes(), self.last.to_le_bytes()].concat()
    }

    pub(super) fn len(self) -> u64 {
        self.last.saturating_add(1).saturating_sub(self.first)
    }
}
