//! The entries that a process has put into a queue and that no reader of this process expects, because another process
//! reads the queue. The store may go back in time: after a failure, the store may lack its newest writes.
//!
//! A writer of queue entries numbers its calls. For each writer and shard, the store keeps a record: the numbers of the
//! writer's calls that the shard has processed. The store writes the record in the same atomic write as the entries of
//! a call, so the record goes back in time together with the entries. If the record lacks a call, the store has lost
//! the call. This conclusion is valid even if another reader has removed the entries of the call, and other entries
//! have the same numbers now. [`UnreadRuns`] compares the runs (a run is the entries of one call) with the record.

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use crate::queue::{QueueLoss, QueueRun, RUNS_LIMIT};

/// The time after a call of a writer, in ms, during which the record of the writer certainly does not expire. The store
/// keeps the record for at least half an hour after a call. The store has lost a missing record if the newest run, or
/// the newest check that found the record, is no older than this time. If both are older, the record may have expired.
const RECORD_AGE_LIMIT: u64 = 20 * 60 * 1_000;

/// The numbers of the calls of one writer that a shard (a slice of the store) has processed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriterCalls(Vec<RangeInclusive<u64>>);

impl WriterCalls {
    /// Creates the set of the calls in these ranges.
    pub fn new(ranges: Vec<RangeInclusive<u64>>) -> Self {
        Self(ranges)
    }

    /// Creates the set of all calls: a store that cannot go back in time has all calls.
    pub fn all() -> Self {
        Self(vec![0..=u64::MAX])
    }

    /// Returns whether the record contains no call of the writer.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the record contains the call with this number.
    pub fn contains(&self, call: u64) -> bool {
        self.0.iter().any(|range| range.contains(&call))
    }
}

/// For one queue, the runs that no reader of this process expects. Each call of the writer makes at most one run. There
/// are at most `RUNS_LIMIT` runs. Above this limit, the oldest runs are dropped, and if the store loses their entries,
/// the loss is not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UnreadRuns {
    /// The runs, each with the time when the writer put it into the queue, in ms since 1970. The runs are in the order
    /// in which the writer received the answers to its calls.
    runs: VecDeque<(QueueRun, u64)>,
    /// The time of the newest check that found a record of the writer in the store, in ms since 1970.
    record_seen_at: u64,
}

impl UnreadRuns {
    /// Adds a run that the writer put into the queue at the time `at`, in ms since 1970.
    pub fn add(&mut self, run: QueueRun, at: u64) {
        if self.runs.len() >= RUNS_LIMIT {
            self.runs.pop_front();
        }
        self.runs.push_back((run, at));
    }

    /// Puts back the runs that a reader expected but did not read. These runs precede the runs that were added since.
    pub fn put_back(&mut self, unread: impl Iterator<Item = (QueueRun, u64)>) {
        let newer = std::mem::take(&mut self.runs);
        self.runs.extend(unread.chain(newer));
        let excess = self.runs.len().saturating_sub(RUNS_LIMIT);
        self.runs.drain(..excess);
    }

    /// Removes and returns all runs, because a reader of this process now expects them.
    pub fn take(&mut self) -> VecDeque<(QueueRun, u64)> {
        std::mem::take(&mut self.runs)
    }

    /// Returns whether a check is due because the number of runs has reached half of `RUNS_LIMIT`.
    pub fn is_nearly_full(&self) -> bool {
        self.runs.len() >= RUNS_LIMIT / 2
    }

    /// Returns the numbers of the calls that made the runs.
    pub fn calls(&self) -> BTreeSet<u64> {
        self.runs.iter().map(|(run, _)| run.call).collect()
    }

    /// Compares the runs with the record of the writer. Removes the runs that the store has lost, and returns their
    /// loss. Also removes the runs that another reader has removed from the queue. If the record is missing and may
    /// have expired, removes all compared runs, and returns no loss. `checked_calls` is the result that [`Self::calls`]
    /// returned before the record was requested. Runs of later calls stay, because the record need not contain these
    /// calls. `stored` is the record. `first` is the number of the first entry in the queue, or of the next entry if
    /// the queue is empty.
    pub fn check(
        &mut self,
        checked_calls: &BTreeSet<u64>,
        stored: &WriterCalls,
        first: u64,
        now: u64,
    ) -> Option<QueueLoss> {
        let newest = self.runs.iter().map(|(_, at)| *at).max().unwrap_or(0);
        if !stored.is_empty() {
            self.record_seen_at = now;
        } else if now.saturating_sub(newest.max(self.record_seen_at)) > RECORD_AGE_LIMIT {
            self.runs.retain(|(run, _)| !checked_calls.contains(&run.call));
            return None;
        }
        let mut loss = QueueLoss::default();
        self.runs.retain(|(run, at)| {
            if !checked_calls.contains(&run.call) {
                return true;
            }
            if stored.contains(run.call) {
                return run.last >= first;
            }
            loss.since = if loss.entries == 0 { *at } else { loss.since.min(*at) };
            loss.entries += run.last + 1 - run.first;
            false
        });
        (loss.entries > 0).then_some(loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 100 * RECORD_AGE_LIMIT;

    /// The run was put into the queue `call` ms before [`NOW_MS`].
    fn run(first: u64, last: u64, call: u64) -> (QueueRun, u64) {
        (QueueRun { first, last, history: 100 + call, call }, NOW_MS - call)
    }

    fn add(runs: &mut UnreadRuns, (run, at): (QueueRun, u64)) {
        runs.add(run, at);
    }

    fn runs(all: impl IntoIterator<Item = (QueueRun, u64)>) -> UnreadRuns {
        let mut runs = UnreadRuns::default();
        all.into_iter().for_each(|run| add(&mut runs, run));
        runs
    }

    fn stored(ranges: &[RangeInclusive<u64>]) -> WriterCalls {
        WriterCalls::new(ranges.to_vec())
    }

    fn left(runs: &UnreadRuns) -> Vec<u64> {
        runs.calls().into_iter().collect()
    }

    /// Each lost call is counted once. Each call with a waiting entry is kept. Each call is forgotten after another
    /// reader has removed its entries.
    #[test]
    fn each_call_is_kept_forgotten_or_lost() {
        let mut unread = runs([run(1, 2, 1), run(3, 5, 2), run(6, 6, 3), run(7, 9, 4)]);
        let checked_calls = unread.calls();
        assert_eq!(unread.check(&checked_calls, &stored(&[1..=4]), 4, NOW_MS), None);
        assert_eq!(left(&unread), [2, 3, 4], "an entry of call 2 waits");
        // The store has lost calls 3 and 4. The entries of call 5 now have the numbers of the lost entries.
        add(&mut unread, run(6, 9, 5));
        let checked_calls = unread.calls();
        let lost = unread.check(&checked_calls, &stored(&[1..=2, 5..=5]), 6, NOW_MS);
        assert_eq!(lost, Some(QueueLoss { entries: 4, since: NOW_MS - 4 }));
        assert_eq!(left(&unread), [5]);
        assert_eq!(unread.check(&checked_calls, &stored(&[1..=2, 5..=5]), 6, NOW_MS), None);
    }

    /// The numbers of a lost call are below the first entry of the queue: other entries had these numbers, and were
    /// removed. The call is lost nevertheless.
    #[test]
    fn lost_call_is_counted_after_its_numbers_were_removed() {
        let mut unread = runs([run(1, 3, 1), run(4, 4, 2)]);
        let checked_calls = unread.calls();
        let lost = unread.check(&checked_calls, &stored(&[1..=1]), 90, NOW_MS);
        assert_eq!(lost, Some(QueueLoss { entries: 1, since: NOW_MS - 2 }));
        assert_eq!(left(&unread), [] as [u64; 0]);
    }

    /// The answers to some calls never arrived. The decision about the other calls is the same whether or not the
    /// record contains the unanswered calls.
    #[test]
    fn unanswered_calls_do_not_affect_the_result() {
        for record in [&[1..=5][..], &[1..=1, 3..=3, 5..=5]] {
            let mut unread = runs([run(1, 1, 1), run(8, 8, 5), run(4, 4, 3)]);
            let checked_calls = unread.calls();
            assert_eq!(unread.check(&checked_calls, &stored(record), 1, NOW_MS), None);
            assert_eq!(left(&unread), [1, 3, 5]);
        }
    }

    /// If the store answered a call after it had returned the record, the record may lack this call.
    #[test]
    fn newer_calls_are_not_checked() {
        let mut unread = runs([run(1, 1, 1)]);
        let checked_calls = unread.calls();
        add(&mut unread, run(2, 2, 2));
        assert_eq!(unread.check(&checked_calls, &stored(&[1..=1]), 9, NOW_MS), None);
        assert_eq!(left(&unread), [2]);
    }

    /// A reader has read some entries of a call, and then puts the rest of the call back. Only the unread entries count
    /// as lost.
    #[test]
    fn read_entries_of_a_call_are_not_lost() {
        let mut unread = runs([run(8, 9, 2)]);
        unread.put_back([run(5, 7, 1)].into_iter());
        let checked_calls = unread.calls();
        let lost = unread.check(&checked_calls, &WriterCalls::default(), 1, NOW_MS);
        assert_eq!(lost, Some(QueueLoss { entries: 5, since: NOW_MS - 2 }));
    }

    /// If the record cannot have expired, a missing record means a loss. If the record may have expired, no loss is
    /// reported.
    #[test]
    fn missing_record_is_a_loss_only_if_it_cannot_have_expired() {
        let gone = WriterCalls::default();
        let mut unread = runs([run(1, 1, 1), run(2, 2, 2)]);
        let checked_calls = unread.calls();
        assert_eq!(unread.check(&checked_calls, &stored(&[1..=2]), 1, NOW_MS), None);
        let later = NOW_MS + RECORD_AGE_LIMIT;
        assert_eq!(unread.check(&checked_calls, &gone, 1, later).map(|loss| loss.entries), Some(2));

        let mut unread = runs([run(1, 1, 1)]);
        assert_eq!(unread.check(&checked_calls, &gone, 1, later), None);
        assert_eq!(
            left(&unread),
            [] as [u64; 0],
            "the record may have expired, so the run must be removed without a report"
        );
    }

    #[test]
    fn oldest_runs_are_dropped_beyond_the_limit() {
        let mut unread = runs([run(9_999, 9_999, 9_999)]);
        assert!(!unread.is_nearly_full());
        unread.put_back((0..RUNS_LIMIT as u64).map(|number| run(number, number, number)));
        assert!(unread.is_nearly_full());
        add(&mut unread, run(10_000, 10_000, 10_000));
        let runs = unread.take();
        assert_eq!(runs.len(), RUNS_LIMIT);
        assert_eq!(runs.front().map(|(run, _)| run.call), Some(2));
        assert_eq!(runs.back().map(|(run, _)| run.call), Some(10_000));
    }
}
