//! Missing events: a clock from the arrival of the first later one, rounds of asking every replay
//! source ([`round`]), and what happens when all rounds were in vain ([`exhausted`]). The event itself ends it at
//! any point.

mod exhausted;
mod round;

use super::Sequencer;

/// The gap that a lane has at its `front`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gap {
    /// The first missing sequence.
    pub(super) at: u64,
    stage: Stage,
    /// Rounds made.
    pub(super) round: u32,
    /// Some source may know more later.
    again: bool,
    /// Some source could not be asked in this round, which does not count then.
    unasked: bool,
    /// Asked because the key has been silent, not because a later event is there.
    pub(super) tail: bool,
    /// When it was first known that the event is missing.
    pub(super) since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Until the next round.
    Clock(u64),
    /// The job is loaded again: another owner may have gone past the gap.
    Reloading,
    /// This source is asked.
    Asking(usize),
    /// All rounds are over; it acts once everything before the gap has run.
    Exhausted,
    /// It waits for ever.
    Waiting,
}

impl Gap {
    /// When the next round starts, if it is the clock that is waited for.
    pub(super) fn clock(&self) -> Option<u64> {
        match self.stage {
            Stage::Clock(at) => Some(at),
            _ => None,
        }
    }

    /// When its owner must look at it if it leaves memory now.
    pub(super) fn until(&self, now: u64) -> Option<u64> {
        match self.stage {
            Stage::Clock(at) => Some(at),
            Stage::Waiting => None,
            _ => Some(now),
        }
    }

    /// Whether an answer is on its way.
    pub(super) fn asks(&self) -> bool {
        matches!(self.stage, Stage::Reloading | Stage::Asking(_))
    }

    pub(super) fn reloading(&self) -> bool {
        self.stage == Stage::Reloading
    }

    pub(super) fn for_ever(&self) -> bool {
        self.stage == Stage::Waiting
    }
}

impl Sequencer {
    /// Starts, keeps or ends the lane's gap according to what is there now.
    pub(super) fn update_gap(&mut self, index: u32) {
        self.lanes[index].end_listed_gap();
        let (now, ended) = (self.now, self.ended);
        let skip = fault!(self, SkipAGap);
        let lane = &mut self.lanes[index];
        if lane.ended || lane.parked() || !lane.has_gap() {
            // It stands still while what lies before it is in the store only.
            let closed = |gap: &Gap| gap.at < lane.front || lane.highest() <= Some(gap.at);
            let over = |gap: &Gap| {
                if gap.tail {
                    gap.at != lane.front
                } else {
                    lane.ended || lane.parked() || closed(gap)
                }
            };
            if lane.rare.gap.as_ref().is_some_and(over) {
                self.note_recovery(index);
                let rare = self.lanes[index].rare.make();
                rare.forget_gap();
                rare.replay = None;
            }
            return;
        }
        if lane.rare.gap.as_ref().is_none_or(|gap| gap.at != lane.front || gap.tail) {
            let front = lane.front;
            if skip
                && front == lane.done
                && lane.turn.is_none()
                && lane.held.find(front + 1).is_ok()
            {
                lane.done += 1;
                lane.front += 1;
                return;
            }
            self.note_recovery(index);
            let lane = &mut self.lanes[index];
            let later = lane.held.iter().filter(|held| held.sequence > front);
            let since = later.map(|held| held.at).min().unwrap_or(now);
            let timeout = if ended { 0 } else { self.settings.gap.timeout };
            let asked = lane.rare.asked.iter().any(|range| range.contains(&front));
            let before = lane.rare.gap.filter(|gap| !gap.tail && asked);
            let (round, wait) = match before {
                // What a source had of it, it may have more of.
                Some(before) if lane.is_replayed(before.at) => (before.round, 0),
                // What has come by itself may not be the last that does.
                Some(before) if before.stage != Stage::Exhausted => {
                    (before.round, self.settings.gap.backoff.min)
                }
                Some(before) => (before.round, 0),
                None if front == lane.done => (lane.job.rounds, 0),
                None => (0, 0),
            };
            let rare = lane.rare.make();
            let until = match rare.gap_due.take() {
                // What the last owner had not acknowledged comes again: it gets the time for that.
                Some(due) if !ended => due.max(self.born.saturating_add(timeout)),
                Some(due) => due,
                None => since.saturating_add(timeout),
            };
            let wait = if ended { 0 } else { wait };
            let until = until.max(now.saturating_add(wait));
            let stage = Stage::Clock(until);
            rare.replay = None;
            if before.is_none() {
                rare.asked.clear();
            }
            let (again, unasked, tail) = (false, false, false);
            rare.gap = Some(Gap { at: front, stage, round, again, unasked, tail, since });
            if ended || until <= now {
                self.gap_round(index);
            }
        } else if lane.rare.gap.as_ref().and_then(Gap::clock).is_some_and(|at| at <= now) {
            // It ran out while the gap stood still.
            self.gap_round(index);
        }
        self.act_on_exhausted(index);
    }

    /// Counts the lane's gap as recovered if what was missing has come.
    fn note_recovery(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        // One that was skipped has not come.
        let came = |gap: &Gap| !gap.tail && gap.at < lane.front && gap.stage != Stage::Exhausted;
        if let Some(gap) = lane.rare.gap.filter(came) {
            self.stats.recovery.add(self.now.saturating_sub(gap.since));
        }
    }

    /// When a key that is silent from now on is asked for its next event.
    pub(super) fn tail_from_now(&self) -> Option<u64> {
        let wait = |tail| if self.ended { 0 } else { tail };
        self.settings.gap.tail.map(|tail| self.now.saturating_add(wait(tail)))
    }

    /// The key has been silent for `gap.tail`: asks once for the event that would be next.
    pub(super) fn ask_for_tail(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if let Some(rare) = lane.rare.there() {
            rare.tail_at = None;
        }
        let busy = lane.turn.is_some() || lane.rare.gap.is_some() || lane.held.to_run() > 0;
        if busy || lane.ended || lane.parked() || !lane.live() || lane.rare.rest.count > 0 {
            return;
        }
        let at = lane.done;
        let stage = Stage::Asking(0);
        let since = self.now;
        let (again, unasked, tail) = (false, false, true);
        let gap = Gap { at, stage, round: 0, again, unasked, tail, since };
        lane.rare.make().gap = Some(gap);
        self.ask_source(index, 0);
    }

    /// Nothing more will come from the source.
    pub(super) fn source_ended(&mut self) {
        self.ended = true;
        self.due.soon(self.now);
        for index in self.lanes.indices() {
            let lane = &mut self.lanes[index];
            if lane.rare.tail_at.is_some_and(|at| at > self.now) {
                lane.rare.make().tail_at = Some(self.now);
            }
            if self.lanes[index].rare.gap.as_ref().is_some_and(|gap| gap.clock().is_some()) {
                self.gap_round(index);
            }
            self.settle(index);
        }
    }

    /// What it had meanwhile comes first, and has the time for that.
    pub(super) fn source_is_back(&mut self) {
        if self.away_until == u64::MAX {
            self.away_until = self.now.saturating_add(self.settings.gap.timeout);
        }
    }

    /// Whether every lane that waits does so without an end.
    pub(super) fn waiting_for_ever(&self) -> bool {
        self.restless == 0
    }
}
