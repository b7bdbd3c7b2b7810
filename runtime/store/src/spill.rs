//! Events that wait in the store until their key can execute them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use ordain_core::{DeadLetter, Event, Key, SpillPage};

use super::{KeyResult, Partition, StoreError};

/// The approximate size of events, in bytes, at which [`SpillArea::find_missing`] and [`SpillArea::early_letters`]
/// stop. In [`SpillArea::find_missing`], the limit applies to the spilled events of each range of sequences, to the
/// dead letters of each range, and to the events of all completed ranges together. The next round of replay requests
/// the remaining events.
pub const FOUND_BYTES_LIMIT: usize = 16 << 20;

/// The events that a search for missing events has found. A search may end before it has searched for all wanted
/// sequences, because its result is limited in size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEvents {
    /// The events, each with its sequence, in ascending order.
    pub events: Vec<(u64, Arc<Event>)>,
    /// The first sequence for which the store possibly has not searched; `u64::MAX` if the store has searched for all
    /// wanted sequences.
    pub until: u64,
}

/// The early dead letters that a read has returned. A read may end before it has read all requested letters, because
/// its result is limited in size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlyLetters {
    /// The letters, ascending by sequence.
    pub letters: Vec<DeadLetter>,
    /// The first sequence whose letters the store possibly has not returned. The value is the sequence after the
    /// requested sequences if the store has returned all letters.
    pub until: u64,
}

/// Access to the events that wait in the store until their keys can execute them.
#[async_trait]
pub trait SpillArea: Send + Sync {
    /// Returns the spilled events of a key from sequence `from` on, in ascending order. The page also records whether
    /// it contains the last spilled event. Returns at most `limit` events, which use at most `bytes` bytes of memory,
    /// but at least one event if there is one.
    async fn read_spill(
        &self,
        partition: &Partition,
        key: &Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<KeyResult<SpillPage>, StoreError>;

    /// Returns the events of a key that the store contains and whose sequences are in `missing`, each with its
    /// sequence. The store contains such an event as a spilled event, or in an early dead letter
    /// ([`ordain_core::Cause::waits_for_earlier`]). Ignores dead letters that were stored more than `within` ms ago.
    /// Ends the search when the size of the events has reached [`FOUND_BYTES_LIMIT`].
    async fn find_missing(
        &self,
        partition: &Partition,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        within: u64,
    ) -> Result<KeyResult<FoundEvents>, StoreError>;

    /// Returns the early dead letters ([`ordain_core::Cause::waits_for_earlier`]) of a key that have a sequence in
    /// `sequences` and an event. Ignores dead letters that were stored more than `within` ms ago. Ends when the size of
    /// the events has reached [`FOUND_BYTES_LIMIT`].
    async fn early_letters(
        &self,
        partition: &Partition,
        key: &Key,
        sequences: &RangeInclusive<u64>,
        within: u64,
    ) -> Result<KeyResult<EarlyLetters>, StoreError>;
}
