//! The cold state of a lane: fields that most lanes do not need (all lanes need them if `gap.tail`
//! is set). They are stored apart from the lane, because with a hundred thousand lanes the memory
//! that each event touches costs the time.

use std::ops::{Deref, RangeInclusive};

use super::gap::LaneGap;
use super::lane::{SpillCheck, StoredRevision};
use crate::event::DeliveryNumber;
use crate::job::SpillExtent;

/// The optional cold state. Reading an absent state returns empty values.
#[derive(Debug, Default)]
pub(super) struct ColdState(Option<Box<ColdFields>>);

#[derive(Debug)]
pub(super) struct ColdFields {
    /// Deliveries of repeats that wait for their original event.
    pub(super) repeats: Vec<(u64, DeliveryNumber)>,
    /// Deliveries that may be repeats of events in `rest`. The store compares them.
    pub(super) checks: Vec<SpillCheck>,
    /// The events that only the store's spill area has.
    pub(super) rest: SpillExtent,
    /// The stored fields of the record once the commit in flight is applied.
    pub(super) known: StoredRevision,
    /// The read of spilled events in progress.
    pub(super) page: Option<u64>,
    /// The reason why the spilled events cannot be read. The lane breaks when its executed events
    /// are written.
    pub(super) unreadable: Option<String>,
    /// The request to a replay source in progress.
    pub(super) replay: Option<u64>,
    /// The event (sequence and content) that trapped once. It is tried once more, on a fresh
    /// instance.
    pub(super) again: Option<(u64, u64)>,
    pub(super) retry_at: Option<u64>,
    /// The generation under which the job was executed, if this instance does not know it yet.
    pub(super) newer: Option<u64>,
    /// The time to load the job again, because another partition had the job or may have it now.
    pub(super) reload_at: Option<u64>,
    /// The time to request a lost last event.
    pub(super) tail_at: Option<u64>,
    pub(super) gap: Option<LaneGap>,
    /// The sequences that every round of the gap has requested.
    pub(super) asked: Vec<RangeInclusive<u64>>,
    /// The time, from the store, of the next round for a gap found now.
    pub(super) gap_due: Option<u64>,
    /// The earliest entry in the timers.
    pub(super) timer: Option<u64>,
}

const EMPTY: ColdFields = ColdFields {
    repeats: Vec::new(),
    checks: Vec::new(),
    rest: SpillExtent { count: 0, first: 0, last: 0 },
    known: StoredRevision::NEW,
    page: None,
    unreadable: None,
    replay: None,
    again: None,
    retry_at: None,
    newer: None,
    reload_at: None,
    tail_at: None,
    gap: None,
    asked: Vec::new(),
    gap_due: None,
    timer: None,
};

static SHARED_EMPTY: ColdFields = EMPTY;

impl ColdState {
    /// Returns whether the cold state is allocated.
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the cold state if it is allocated, for removals that need no allocation.
    pub(super) fn there(&mut self) -> Option<&mut ColdFields> {
        self.0.as_deref_mut()
    }

    /// Returns the cold state, and allocates it if necessary.
    pub(super) fn make(&mut self) -> &mut ColdFields {
        self.0.get_or_insert_with(|| Box::new(EMPTY))
    }

    pub(super) fn take_checks(&mut self) -> Vec<SpillCheck> {
        self.there().map(|parts| std::mem::take(&mut parts.checks)).unwrap_or_default()
    }

    pub(super) fn gap_mut(&mut self) -> Option<&mut LaneGap> {
        self.there()?.gap.as_mut()
    }

    /// Returns the memory of the cold state, in bytes.
    pub(super) fn memory(&self) -> usize {
        let asked = |parts: &ColdFields| parts.asked.capacity() * size_of::<RangeInclusive<u64>>();
        self.0.as_deref().map_or(0, |parts| size_of::<ColdFields>() + asked(parts))
    }

    /// Frees the cold state if it is empty.
    pub(super) fn release(&mut self) {
        if self.0.as_deref().is_some_and(ColdFields::are_none) {
            self.0 = None;
        }
    }
}

impl ColdFields {
    /// Removes the gap.
    pub(super) fn forget_gap(&mut self) {
        (self.gap, self.asked) = (None, Vec::new());
    }

    fn are_none(&self) -> bool {
        let Self {
            repeats,
            checks,
            rest,
            known,
            page,
            unreadable,
            replay,
            again,
            retry_at,
            newer,
            reload_at,
            tail_at,
            gap,
            // Meaningless without a gap.
            asked: _,
            gap_due,
            timer,
        } = self;
        let numbers = [page, replay, retry_at, newer, reload_at, tail_at, gap_due, timer];
        numbers.iter().all(|number| number.is_none())
            && again.is_none()
            && gap.is_none()
            && unreadable.is_none()
            && repeats.is_empty()
            && checks.is_empty()
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
    use crate::job::{KeyRecord, KeyStatus};

    type ColdChange = fn(&mut ColdFields);

    #[test]
    fn cold_state_is_kept_while_it_is_not_empty() {
        let mut rare = ColdState::default();
        rare.release();
        assert!(!rare.is_some() && rare.memory() == 0);
        let job = KeyRecord { attempts: 1, status: KeyStatus::Retrying, ..KeyRecord::new(1, 0) };
        let known = StoredRevision::of(&job);
        let changes: [(ColdChange, ColdChange); 12] = [
            (|parts| parts.repeats.push((1, 2)), |parts| parts.repeats.clear()),
            (|parts| parts.rest.add(3), |parts| parts.rest = SpillExtent::default()),
            (|parts| parts.page = Some(0), |parts| parts.page = None),
            (|parts| parts.unreadable = Some(String::new()), |parts| parts.unreadable = None),
            (|parts| parts.replay = Some(0), |parts| parts.replay = None),
            (|parts| parts.again = Some((0, 0)), |parts| parts.again = None),
            (|parts| parts.retry_at = Some(0), |parts| parts.retry_at = None),
            (|parts| parts.newer = Some(0), |parts| parts.newer = None),
            (|parts| parts.reload_at = Some(0), |parts| parts.reload_at = None),
            (|parts| parts.tail_at = Some(0), |parts| parts.tail_at = None),
            (|parts| parts.gap_due = Some(0), |parts| parts.gap_due = None),
            (|parts| parts.timer = Some(0), |parts| parts.timer = None),
        ];
        for (number, (set, clear)) in changes.into_iter().enumerate() {
            set(rare.make());
            rare.release();
            assert!(rare.is_some(), "change {number} was lost");
            clear(rare.make());
            rare.release();
            assert!(!rare.is_some(), "change {number} stays");
        }
        rare.make().known = known;
        rare.release();
        assert_eq!(rare.known, known);
        // The shared empty state is never written to.
        assert_eq!(ColdState::default().known, StoredRevision::NEW);
        assert!(ColdState::default().repeats.is_empty());
    }
}
