//! What most lanes have none of (all have it where `gap.tail` is set). It is kept beside the lane:
//! with a hundred thousand lanes it is the memory that each event touches that costs time.

use std::ops::{Deref, RangeInclusive};

use super::gap::Gap;
use super::lane::{Check, Known};
use crate::event::Delivery;
use crate::job::Spilled;

/// Reading what is not there shows that there is none.
#[derive(Debug, Default)]
pub(super) struct Rare(Option<Box<Parts>>);

#[derive(Debug)]
pub(super) struct Parts {
    /// Deliveries of repeats that wait for their original.
    pub(super) repeats: Vec<(u64, Delivery)>,
    /// Deliveries that may be repeats of events in `rest`: the store compares them.
    pub(super) checks: Vec<Check>,
    /// What only the store's spill area has.
    pub(super) rest: Spilled,
    /// What the store has of the record once the commit in flight is applied.
    pub(super) known: Known,
    /// The read of spilled events that is under way.
    pub(super) page: Option<u64>,
    /// Why its spilled events cannot be read: it breaks as soon as what it has executed is written.
    pub(super) unreadable: Option<String>,
    /// The question to a replay source that is under way.
    pub(super) replay: Option<u64>,
    /// This event (sequence and content) trapped once: it is tried once more, on a fresh instance.
    pub(super) again: Option<(u64, u64)>,
    pub(super) retry_at: Option<u64>,
    /// Its job was executed under this generation, which is not known here yet.
    pub(super) newer: Option<u64>,
    /// Another partition had the job, or may have it now: when to look again.
    pub(super) reload_at: Option<u64>,
    /// When to ask for a lost last event.
    pub(super) tail_at: Option<u64>,
    pub(super) gap: Option<Gap>,
    /// What every round of it has asked for.
    pub(super) asked: Vec<RangeInclusive<u64>>,
    /// When the store says that a gap found now is to be asked for.
    pub(super) gap_due: Option<u64>,
    /// Earliest entry in the timers.
    pub(super) timer: Option<u64>,
}

const NONE: Parts = Parts {
    repeats: Vec::new(),
    checks: Vec::new(),
    rest: Spilled { count: 0, first: 0, last: 0 },
    known: Known::NEW,
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

static SHARED: Parts = NONE;

impl Rare {
    /// Whether there may be any of it.
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// What there is of it: where something is only taken away, no room need be made.
    pub(super) fn there(&mut self) -> Option<&mut Parts> {
        self.0.as_deref_mut()
    }

    /// Room for it.
    pub(super) fn make(&mut self) -> &mut Parts {
        self.0.get_or_insert_with(|| Box::new(NONE))
    }

    pub(super) fn take_checks(&mut self) -> Vec<Check> {
        self.there().map(|it| std::mem::take(&mut it.checks)).unwrap_or_default()
    }

    pub(super) fn gap_mut(&mut self) -> Option<&mut Gap> {
        self.there()?.gap.as_mut()
    }

    /// Bytes it takes.
    pub(super) fn memory(&self) -> usize {
        let asked = |it: &Parts| it.asked.capacity() * size_of::<RangeInclusive<u64>>();
        self.0.as_deref().map_or(0, |it| size_of::<Parts>() + asked(it))
    }

    /// Gives the room back if there is none of it any more.
    pub(super) fn release(&mut self) {
        if self.0.as_deref().is_some_and(Parts::are_none) {
            self.0 = None;
        }
    }
}

impl Parts {
    /// There is no gap any more.
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
            // Of no meaning without a gap.
            asked: _,
            gap_due,
            timer,
        } = self;
        let numbers = [page, replay, retry_at, newer, reload_at, tail_at, gap_due, timer];
        numbers.iter().all(|it| it.is_none())
            && again.is_none()
            && gap.is_none()
            && unreadable.is_none()
            && repeats.is_empty()
            && checks.is_empty()
            && rest.count == 0
            && *known == Known::NEW
    }
}

impl Deref for Rare {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        self.0.as_deref().unwrap_or(&SHARED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Job, Status};

    type Change = fn(&mut Parts);

    #[test]
    fn it_is_kept_as_long_as_there_is_any_of_it() {
        let mut rare = Rare::default();
        rare.release();
        assert!(!rare.is_some() && rare.memory() == 0);
        let job = Job { attempts: 1, status: Status::Retrying, ..Job::new(1, 0) };
        let known = Known::of(&job);
        let changes: [(Change, Change); 12] = [
            (|it| it.repeats.push((1, 2)), |it| it.repeats.clear()),
            (|it| it.rest.add(3), |it| it.rest = Spilled::default()),
            (|it| it.page = Some(0), |it| it.page = None),
            (|it| it.unreadable = Some(String::new()), |it| it.unreadable = None),
            (|it| it.replay = Some(0), |it| it.replay = None),
            (|it| it.again = Some((0, 0)), |it| it.again = None),
            (|it| it.retry_at = Some(0), |it| it.retry_at = None),
            (|it| it.newer = Some(0), |it| it.newer = None),
            (|it| it.reload_at = Some(0), |it| it.reload_at = None),
            (|it| it.tail_at = Some(0), |it| it.tail_at = None),
            (|it| it.gap_due = Some(0), |it| it.gap_due = None),
            (|it| it.timer = Some(0), |it| it.timer = None),
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
        // What is shared by all that have none is never written to.
        assert_eq!(Rare::default().known, Known::NEW);
        assert!(Rare::default().repeats.is_empty());
    }
}
