//! The cold state of a lane: fields that most lanes do not need. Exception: if `gap.tail` is set (not the default),
//! every lane needs some of these fields. The cold state is stored apart from the lane, so that the lane stays small.
//! With a hundred thousand lanes, the time per event depends mainly on the amount of memory that the sequencer reads
//! and writes for the event.

use std::ops::{Deref, Range, RangeInclusive};

use super::gap::LaneGap;
use super::lane::{SpillCheck, StoredRevision};
use crate::event::DeliveryNumber;
use crate::key_record::SpillExtent;

/// The maximum number of digests in [`ColdFields::settled_ahead`]. The sequencer reads the early letters after each
/// commit, so it usually needs the digests of the events of a few commits. The limit prevents a key whose letters are
/// read slowly from using more than 64 KiB.
const SETTLED_AHEAD_LIMIT: usize = 4_096;

/// The cold state of a lane, which is allocated only if the lane needs it. Reading a state that is not allocated
/// returns empty values.
#[derive(Debug, Default)]
pub(super) struct ColdState(Option<Box<ColdFields>>);

#[derive(Debug)]
pub(super) struct ColdFields {
    /// The deliveries of repeated events, each with its sequence. Such a delivery is finished when the original event
    /// is durably settled or spilled.
    pub(super) repeats: Vec<(u64, DeliveryNumber)>,
    /// The checks: deliveries that may repeat events that are only in the spill area (`stored_only`). The store
    /// compares the events of these deliveries with the spilled events.
    pub(super) checks: Vec<SpillCheck>,
    /// The extent of the events that are only in the store's spill area, not in memory.
    pub(super) stored_only: SpillExtent,
    /// The fields by which the lane recognises another owner's write. The fields have the values that the store will
    /// have after the commit in flight.
    pub(super) revision: StoredRevision,
    /// The serial of the read of spilled events in progress.
    pub(super) page: Option<u64>,
    /// The reason why the spilled events cannot be read. The lane becomes broken after the commit of its executed
    /// events.
    pub(super) unreadable: Option<String>,
    /// The serial of the request to a replay source in progress.
    pub(super) replay: Option<u64>,
    /// The serial of the read of dead letters whose sequences the key has passed, while that read is in progress.
    pub(super) letter_read: Option<u64>,
    /// The sequences and digests of events that this owner has settled within the range of the key's early dead letters
    /// ([`crate::KeyRecord::ahead`]). The sequencer compares the events of the remaining letters with these digests.
    pub(super) settled_ahead: Vec<(u64, u32)>,
    /// The sequences that certainly have no early dead letter, according to the newest search of the store. Empty if no
    /// such sequences are known.
    pub(super) letter_free: Range<u64>,
    /// The sequence and the content digest of an event that failed once in a way that usually recurs, for example by a
    /// trap (a fault of the WebAssembly code). The sequencer tries the event once more, on a fresh Wasm instance of the
    /// handler.
    pub(super) trapped: Option<(u64, u64)>,
    pub(super) retry_at: Option<u64>,
    /// The rollout number that the key needs ([`crate::KeyRecord::missing_rollout`]), if this process does not know
    /// that rollout yet.
    pub(super) newer_rollout: Option<u64>,
    /// The time at which to load the key record again, because another partition took the key over, or may have
    /// released the parked key.
    pub(super) reload_at: Option<u64>,
    /// The time at which to request the next event from the replay sources, in case the newest event of the key was
    /// lost (`gap.tail`).
    pub(super) tail_at: Option<u64>,
    pub(super) gap: Option<LaneGap>,
    /// Every round of the gap has requested these missing sequences so far.
    pub(super) requested: Vec<RangeInclusive<u64>>,
    /// The earliest time of the next replay round, for a gap that the key had before a load. A load sets this time from
    /// the key's entry in the due index.
    pub(super) gap_due: Option<u64>,
    /// The time of the earliest entry of the lane in the timers.
    pub(super) timer_at: Option<u64>,
}

const EMPTY: ColdFields = ColdFields {
    repeats: Vec::new(),
    checks: Vec::new(),
    stored_only: SpillExtent { count: 0, first: 0, last: 0 },
    revision: StoredRevision::NEW,
    page: None,
    unreadable: None,
    replay: None,
    letter_read: None,
    settled_ahead: Vec::new(),
    letter_free: 0..0,
    trapped: None,
    retry_at: None,
    newer_rollout: None,
    reload_at: None,
    tail_at: None,
    gap: None,
    requested: Vec::new(),
    gap_due: None,
    timer_at: None,
};

static SHARED_EMPTY: ColdFields = EMPTY;

impl ColdState {
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the cold state if it is allocated. This function is for changes that only remove data, because such
    /// changes need no allocation.
    pub(super) fn get_mut(&mut self) -> Option<&mut ColdFields> {
        self.0.as_deref_mut()
    }

    pub(super) fn get_or_init(&mut self) -> &mut ColdFields {
        self.0.get_or_insert_with(|| Box::new(EMPTY))
    }

    pub(super) fn take_checks(&mut self) -> Vec<SpillCheck> {
        self.get_mut().map(|parts| std::mem::take(&mut parts.checks)).unwrap_or_default()
    }

    /// Records the digest of a settled event within the range of the key's early dead letters. Events are recorded in
    /// ascending order. Ignores the event if [`SETTLED_AHEAD_LIMIT`] digests are recorded already.
    pub(super) fn record_settled_ahead(&mut self, sequence: u64, digest: u32) {
        let settled = &mut self.get_or_init().settled_ahead;
        if settled.len() < SETTLED_AHEAD_LIMIT {
            settled.push((sequence, digest));
        }
    }

    pub(super) fn gap_mut(&mut self) -> Option<&mut LaneGap> {
        self.get_mut()?.gap.as_mut()
    }

    /// Returns the approximate memory of the cold state, in bytes. The sequencer counts the events of the checks
    /// separately.
    pub(super) fn memory(&self) -> usize {
        self.0.as_deref().map_or(0, |parts| {
            size_of::<ColdFields>()
                + parts.requested.capacity() * size_of::<RangeInclusive<u64>>()
                + parts.settled_ahead.capacity() * size_of::<(u64, u32)>()
        })
    }

    pub(super) fn release(&mut self) {
        if self.0.as_deref().is_some_and(ColdFields::is_empty) {
            self.0 = None;
        }
    }
}

impl ColdFields {
    /// Removes the gap of the lane, and the sequences that its rounds requested.
    pub(super) fn forget_gap(&mut self) {
        self.gap = None;
        self.requested = Vec::new();
    }

    fn is_empty(&self) -> bool {
        let Self {
            repeats,
            checks,
            stored_only: rest,
            revision: known,
            page,
            unreadable,
            replay,
            letter_read,
            settled_ahead,
            // The lane may lose these sequences: it then only keeps the range of the early dead letters longer than
            // necessary.
            letter_free: _,
            trapped: again,
            retry_at,
            newer_rollout: newer,
            reload_at,
            tail_at,
            gap,
            // `requested` has a meaning only while the lane has a gap.
            requested: _,
            gap_due,
            timer_at: timer,
        } = self;
        let numbers =
            [page, replay, letter_read, retry_at, newer, reload_at, tail_at, gap_due, timer];
        numbers.iter().all(|number| number.is_none())
            && again.is_none()
            && gap.is_none()
            && unreadable.is_none()
            && repeats.is_empty()
            && checks.is_empty()
            && settled_ahead.is_empty()
            && rest.count == 0
            && *known == StoredRevision::NEW
    }
}

impl Deref for ColdState {
    type Target = ColdFields;

    fn deref(&self) -> &ColdFields {
        self.0.as_deref().unwrap_or(&SHARED_EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_record::{KeyRecord, KeyStatus};

    type ColdChange = fn(&mut ColdFields);

    #[test]
    fn cold_state_is_kept_while_it_is_not_empty() {
        let mut cold = ColdState::default();
        cold.release();
        assert!(!cold.is_some() && cold.memory() == 0);
        let record = KeyRecord { attempts: 1, status: KeyStatus::Retrying, ..KeyRecord::new(1, 0) };
        let known = StoredRevision::of(&record);
        let changes: [(ColdChange, ColdChange); 14] = [
            (|parts| parts.repeats.push((1, 2)), |parts| parts.repeats.clear()),
            (|parts| parts.stored_only.add(3), |parts| parts.stored_only = SpillExtent::default()),
            (|parts| parts.page = Some(0), |parts| parts.page = None),
            (|parts| parts.unreadable = Some(String::new()), |parts| parts.unreadable = None),
            (|parts| parts.replay = Some(0), |parts| parts.replay = None),
            (|parts| parts.letter_read = Some(0), |parts| parts.letter_read = None),
            (|parts| parts.settled_ahead.push((1, 2)), |parts| parts.settled_ahead.clear()),
            (|parts| parts.trapped = Some((0, 0)), |parts| parts.trapped = None),
            (|parts| parts.retry_at = Some(0), |parts| parts.retry_at = None),
            (|parts| parts.newer_rollout = Some(0), |parts| parts.newer_rollout = None),
            (|parts| parts.reload_at = Some(0), |parts| parts.reload_at = None),
            (|parts| parts.tail_at = Some(0), |parts| parts.tail_at = None),
            (|parts| parts.gap_due = Some(0), |parts| parts.gap_due = None),
            (|parts| parts.timer_at = Some(0), |parts| parts.timer_at = None),
        ];
        for (number, (set, clear)) in changes.into_iter().enumerate() {
            set(cold.get_or_init());
            cold.release();
            assert!(cold.is_some(), "change {number} was lost");
            clear(cold.get_or_init());
            cold.release();
            assert!(!cold.is_some(), "change {number} stays");
        }
        cold.get_or_init().revision = known;
        cold.release();
        assert_eq!(cold.revision, known);
        // The change above must not have changed the shared empty state.
        assert_eq!(ColdState::default().revision, StoredRevision::NEW);
        assert!(ColdState::default().repeats.is_empty());
    }
}
