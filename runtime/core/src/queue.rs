//! The position of a reader in a queue of the store. The store may go back in time: after a failure, the store may lack
//! its newest entries.
//!
//! After such a loss, the store assigns the numbers of the lost entries to new entries. A number alone therefore does
//! not identify an entry. For this reason, each entry also has a history digest: a digest of the previous history
//! digest and of a random number of the call that wrote the entry. If an entry has both the number and the history
//! digest that the reader remembers, this entry and all earlier entries are still the same. The history digest of a
//! damaged entry is unknown, so the reader identifies a damaged entry by its number alone.
//!
//! Each request to read names the last queue position that the reader has read, and each request to remove entries
//! names the last position to remove. The store rejects the request if the queue does not have this position. The
//! reader then reads its queue again from the beginning, and [`QueueCursor`] decides which entries are still to be
//! delivered.

use std::collections::{BTreeMap, VecDeque};

/// The number of an entry in a queue, and the history digest of the entry: a digest of all writes to the queue up to
/// this entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueuePosition {
    /// The number of the entry, from 1. 0 is the position before all entries.
    pub number: u64,
    /// The history digest of the entry; 0 if it is unknown.
    pub history: u64,
}

impl QueuePosition {
    /// Returns whether the entry `found` is the entry that the cursor remembers at this position. A damaged entry has
    /// no history digest and counts as the same entry if it has the same number.
    fn is_same_entry(self, found: Self) -> bool {
        self.number == found.number && (self.history == found.history || found.history == 0)
    }
}

/// A run: consecutive entries that one call put into a queue. All entries of a run have the same history digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueRun {
    /// The number of the first entry of the run.
    pub first: u64,
    /// The number of the last entry of the run.
    pub last: u64,
    /// The history digest of the entries.
    pub history: u64,
    /// The number that the writer gave to the call; 0 if this number is unknown.
    pub call: u64,
}

impl QueueRun {
    /// Returns the position of the last entry.
    pub fn end(&self) -> QueuePosition {
        QueuePosition { number: self.last, history: self.history }
    }
}

/// Entries that the store lost before a reader had read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueueLoss {
    /// The number of lost entries.
    pub entries: u64,
    /// The earliest time at which one of the lost entries was put into the queue, in ms since 1970.
    pub since: u64,
}

/// The result of a recount: how many entries the reader found, and how many entries the store lost. A recount begins
/// when a cursor learns that the store may have gone back in time. The recount covers the entries that the cursor
/// expects to read at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueueRecount {
    /// The number of covered entries that the reader has found since the recount began. A found entry is safe even if
    /// the store loses it later, because the reader has its event in memory.
    pub safe: u64,
    /// The number of lost entries that were passed to [`QueueCursor::confirm_rollback`] since the recount began.
    pub lost: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct RunningRecount {
    result: QueueRecount,
    /// True if the store certainly went back in time.
    went_back: bool,
}

/// A run of entries that the cursor still expects to read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ExpectedRun {
    run: QueueRun,
    /// The time when the writer put the run into the queue, in ms since 1970.
    at: u64,
    is_recounted: bool,
}

/// The maximum length of each of three lists:
/// - the delivered runs that a cursor remembers after their removal
/// - the runs that a cursor expects
/// - the runs of [`UnreadRuns`](crate::UnreadRuns)
///
/// Each call that adds entries makes one run, so the limit covers some seconds of a fast stream. At this length, each
/// list takes at most about 200 kB.
pub(crate) const RUNS_LIMIT: usize = 4_096;

/// A cursor: the position of a reader in one queue, the entries that the reader has delivered, and the entries that it
/// still expects to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct QueueCursor {
    /// The delivered runs of entries, in ascending order. The queue may have had other entries between two runs, so the
    /// numbers may have holes.
    delivered: VecDeque<QueueRun>,
    /// The numbers and history digests of late entries: unfinished entries that the cursor delivered after entries with
    /// higher numbers. An entry becomes late as follows. The store removes the entry, then goes back in time and loses
    /// the removal, so that the queue contains the entry again. The cursor does not recognise the entry, because the
    /// cursor has forgotten its delivery of the entry, or because another reader delivered the entry. The cursor
    /// therefore delivers the entry.
    late: BTreeMap<u64, u64>,
    /// The entries that writers of this process have put into the queue and that the cursor has not read yet.
    expected: VecDeque<ExpectedRun>,
    /// The number of the newest entry that the reader has read since the newest restart; 0 if the reader has read no
    /// entry since then.
    read: u64,
    /// All delivered entries through this number are finished, except the late entries.
    finished: u64,
    /// The store has removed all entries through this number, and has not lost that removal.
    removed: u64,
    /// The expected entries that the store has lost since the last call of [`QueueCursor::take_loss`].
    loss: QueueLoss,
    recount: Option<RunningRecount>,
}

impl QueueCursor {
    /// Returns the position after which the next read begins.
    pub fn after(&self) -> QueuePosition {
        self.position(self.read).unwrap_or(QueuePosition { number: self.read, history: 0 })
    }

    /// Restarts at the beginning of the queue, because the store went back in time. The cursor still remembers the
    /// delivered entries.
    pub fn restart(&mut self) {
        self.read = 0;
        self.removed = 0;
    }

    /// Records an entry that the reader read after the position [`QueueCursor::after`]. Returns whether to deliver the
    /// entry; `false` if the cursor has delivered the entry before.
    pub fn accept(&mut self, place: QueuePosition) -> bool {
        let QueuePosition { number, history } = place;
        self.read = number;
        if self.position(number).is_some_and(|known| known.is_same_entry(place)) {
            return false;
        }
        let mut at = self.delivered.partition_point(|run| run.last < number);
        if self.delivered.get(at).is_some_and(|run| run.first <= number) {
            self.diverge(number);
            at = self.delivered.len();
        }
        if self.delivered.is_empty() {
            // The cursor remembers no delivered entry, so all lower numbers count as finished and removed.
            self.finished = number - 1;
            self.removed = number - 1;
        } else if at < self.delivered.len() {
            self.late.insert(number, history);
        }
        self.compare(place);
        match at.checked_sub(1).and_then(|before| self.delivered.get_mut(before)) {
            Some(run) if run.history == history && run.last + 1 == number => run.last = number,
            _ => {
                let run = QueueRun { first: number, last: number, history, call: 0 };
                self.delivered.insert(at, run);
            }
        }
        true
    }

    /// Records that a read after the position [`QueueCursor::after`] found no entries. Counts as lost all expected
    /// entries whose number is `first` or higher. `first` is the number of the first entry in the queue, or of the next
    /// entry if the queue is empty. Call this function only if all expected entries were written before the read began.
    pub fn record_end(&mut self, first: u64) {
        let end = self.read.max(first.saturating_sub(1));
        if self.last_delivered().is_some_and(|last| last > end) {
            self.diverge(end + 1);
        }
        while let Some(ExpectedRun { run, at, .. }) = self.expected.pop_front() {
            // Another reader has read and removed the entries below `first`.
            self.add_loss((run.last + 1).saturating_sub(run.first.max(first)), at);
        }
    }

    /// Records the number of the first entry in the queue, or of the next entry if the queue is empty. If the store
    /// went back in time, entries that the store had removed may be in the queue again; the cursor then no longer
    /// counts these entries as removed. The cursor no longer expects entries below `first`, because another reader has
    /// read and removed them.
    pub fn record_first(&mut self, first: u64) {
        self.removed = self.removed.min(first.saturating_sub(1));
        while let Some(ExpectedRun { run, .. }) = self.expected.front_mut()
            && run.first < first
        {
            if run.last >= first {
                run.first = first;
                return;
            }
            self.expected.pop_front();
        }
    }

    /// Records that a writer of this process put the entries of `run` into the queue at the time `at`, in ms since
    /// 1970. The cursor then expects to read these entries.
    pub fn expect(&mut self, mut run: QueueRun, at: u64) {
        if self.position(run.last) == Some(run.end()) {
            return;
        }
        // The cursor may have read the beginning of the run already.
        if let Some(last) = self.last_delivered()
            && self.position(last).is_some_and(|place| place.history == run.history)
        {
            run.first = last + 1;
        }
        if run.first > run.last {
            return;
        }
        // The expected runs ascend and do not overlap.
        let mut place = self.expected.partition_point(|expected| expected.run.last < run.first);
        while let Some(ExpectedRun { run: other, at: since, .. }) = self.expected.get_mut(place)
            && other.first <= run.last
        {
            // The store assigned these numbers a second time, so it has lost the previous entries.
            let entries = other.last + 1 - other.first.max(run.first);
            let lost_at = *since;
            if other.first < run.first {
                other.last = run.first - 1;
                place += 1;
            } else {
                self.expected.remove(place);
            }
            self.add_loss(entries, lost_at);
        }
        self.expected.insert(place, ExpectedRun { run, at, is_recounted: false });
        if self.expected.len() > RUNS_LIMIT {
            self.expected.pop_front();
        }
    }

    /// Returns the entry at this position as a run, and the time when a writer of this process put the entry into the
    /// queue, in ms since 1970. Returns `None` if the cursor does not expect to read this entry.
    pub fn expected(&self, place: QueuePosition) -> Option<(QueueRun, u64)> {
        let QueuePosition { number, history } = place;
        let index = self.expected.partition_point(|expected| expected.run.last < number);
        let ExpectedRun { run, at, .. } = self.expected.get(index)?;
        let is_expected = run.first <= number && run.history == history;
        is_expected.then_some((QueueRun { first: number, last: number, ..*run }, *at))
    }

    /// Marks the delivered entries through this position as finished, so that they may be removed. A late entry becomes
    /// finished only when `place` is exactly the position of this entry. Ignores a position if the store has lost its
    /// entry since the delivery.
    pub fn finish(&mut self, place: QueuePosition) {
        if self.late.get(&place.number) == Some(&place.history) {
            self.late.remove(&place.number);
        }
        if self.position(place.number) == Some(place) {
            self.finished = self.finished.max(place.number);
        }
    }

    /// Returns the position of the newest entry that may be removed now, together with all earlier entries. Returns
    /// `None` if no entry may be removed now.
    pub fn removable(&self) -> Option<QueuePosition> {
        let mut through = self.finished.min(self.read);
        if let Some((late, _)) = self.late.first_key_value() {
            through = through.min(late - 1);
        }
        if through <= self.removed { None } else { self.position(through) }
    }

    /// Records that the store has removed all entries through this position.
    pub fn record_removal(&mut self, through: QueuePosition) {
        self.removed = self.removed.max(through.number);
        while self.delivered.len() > RUNS_LIMIT
            && self.delivered.front().is_some_and(|run| run.last < self.removed)
        {
            self.delivered.pop_front();
        }
    }

    /// Removes and returns the expected entries, so that the next reader of the queue expects them.
    pub fn take_expected(&mut self) -> impl Iterator<Item = (QueueRun, u64)> + use<> {
        let expected = std::mem::take(&mut self.expected);
        expected.into_iter().map(|expected| (expected.run, expected.at))
    }

    /// Returns the loss that the cursor has found since the last call of this function. The loss contains the number of
    /// lost entries, and the earliest time at which one of them was put into the queue. Returns `None` if no entry was
    /// lost.
    pub fn take_loss(&mut self) -> Option<QueueLoss> {
        let loss = std::mem::take(&mut self.loss);
        (loss.entries > 0).then_some(loss)
    }

    /// Records that the store may have gone back in time, and begins a recount of all entries that the cursor expects
    /// now. A recount that is already running then covers these entries too.
    pub fn suspect_rollback(&mut self) {
        self.expected.iter_mut().for_each(|expected| expected.is_recounted = true);
        self.recount.get_or_insert_default();
    }

    /// Records that the store went back in time. `lost` is the number of entries in the loss that [`Self::take_loss`]
    /// returned; 0 without such a loss. Begins a recount if none is running.
    pub fn confirm_rollback(&mut self, lost: u64) {
        if self.recount.is_none() {
            self.suspect_rollback();
        }
        let recount = self.recount.get_or_insert_default();
        recount.went_back = true;
        recount.result.lost += lost;
    }

    /// Ends the recount if the cursor no longer expects any entry that the recount covers. Returns the result of the
    /// ended recount if the store went back in time; otherwise returns `None`. The result does not count an entry that
    /// another reader has read and removed.
    pub fn take_recount(&mut self) -> Option<QueueRecount> {
        let is_covered = |expected: &ExpectedRun| expected.is_recounted;
        if self.recount.is_none() || self.expected.iter().any(is_covered) {
            return None;
        }
        let recount = self.recount.take()?;
        recount.went_back.then_some(recount.result)
    }

    fn add_loss(&mut self, entries: u64, at: u64) {
        if entries > 0 {
            let before = if self.loss.entries == 0 { at } else { self.loss.since };
            self.loss = QueueLoss { entries: self.loss.entries + entries, since: before.min(at) };
        }
    }

    fn last_delivered(&self) -> Option<u64> {
        self.delivered.back().map(|run| run.last)
    }

    /// `None` if the cursor has delivered no such entry.
    fn position(&self, number: u64) -> Option<QueuePosition> {
        let at = self.delivered.partition_point(|run| run.last < number);
        let run = self.delivered.get(at).filter(|run| run.first <= number)?;
        Some(QueuePosition { number, history: run.history })
    }

    /// Forgets the delivered entries from this number on, because the store has lost them, and may have other entries
    /// under their numbers.
    fn diverge(&mut self, number: u64) {
        while let Some(run) = self.delivered.back_mut()
            && run.last >= number
        {
            if run.first < number {
                run.last = number - 1;
            } else {
                self.delivered.pop_back();
            }
        }
        self.finished = self.finished.min(number - 1);
        self.removed = self.removed.min(number - 1);
        self.late.split_off(&number);
    }

    /// Compares an entry that is read for the first time with the expected entry at its position.
    fn compare(&mut self, place: QueuePosition) {
        let QueuePosition { number, history } = place;
        while let Some(ExpectedRun { run, is_recounted, .. }) = self.expected.front_mut()
            && run.first <= number
        {
            let is_same = run.history == history || history == 0;
            let is_found = is_same && number <= run.last;
            if let Some(recount) = self.recount.as_mut().filter(|_| is_found && *is_recounted) {
                recount.result.safe += 1;
            }
            if is_same && run.last > number {
                run.first = number + 1;
                return;
            }
            let Some(ExpectedRun { run, at, .. }) = self.expected.pop_front() else { return };
            // If the expected run ends before this entry, another reader has removed the run, and the run is not lost.
            if !is_same && run.last >= number {
                self.add_loss(run.last + 1 - run.first, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u64, history: u64) -> QueuePosition {
        QueuePosition { number, history }
    }

    fn run(first: u64, last: u64, history: u64) -> QueueRun {
        QueueRun { first, last, history, call: history }
    }

    #[test]
    fn only_new_entries_are_delivered_after_the_store_went_back() {
        let mut cursor = QueueCursor::default();
        assert!((5..=7).all(|number| cursor.accept(place(number, 1))));
        cursor.finish(place(6, 1));
        assert_eq!(cursor.removable(), Some(place(6, 1)));
        cursor.record_removal(place(6, 1));
        assert_eq!(cursor.removable(), None);
        // The store has lost entry 7, and has another entry under this number.
        cursor.restart();
        assert_eq!(cursor.after(), place(0, 0));
        assert!(!cursor.accept(place(5, 1)));
        assert!(!cursor.accept(place(6, 1)));
        assert!(cursor.accept(place(7, 2)));
        assert_eq!(cursor.removable(), Some(place(6, 1)), "the removal may be repeated");
        cursor.finish(place(7, 1));
        assert_eq!(
            cursor.removable(),
            Some(place(6, 1)),
            "a position with another history digest does not finish the entry"
        );
        cursor.finish(place(7, 2));
        assert_eq!((cursor.removable(), cursor.after()), (Some(place(7, 2)), place(7, 2)));
    }

    #[test]
    fn forgotten_entry_is_delivered_again_before_removals() {
        let mut cursor = QueueCursor::default();
        assert!(cursor.accept(place(9, 2)));
        cursor.restart();
        assert!(cursor.accept(place(8, 1)));
        assert!(!cursor.accept(place(9, 2)));
        cursor.finish(place(9, 2));
        assert_eq!(cursor.removable(), None);
        cursor.finish(place(8, 1));
        assert_eq!(cursor.removable(), Some(place(9, 2)));
    }

    #[test]
    fn late_entries_delay_removals_after_the_store_went_back_twice() {
        let mut cursor = QueueCursor::default();
        assert!(cursor.accept(place(9, 3)));
        cursor.finish(place(9, 3));
        cursor.restart();
        assert!((5..=8).all(|number| cursor.accept(place(number, 2))));
        // Now number 8 belongs to another entry, and the store has lost entry 9.
        cursor.restart();
        assert!((5..=7).all(|number| !cursor.accept(place(number, 2))));
        assert!(cursor.accept(place(8, 4)));
        assert_eq!(cursor.removable(), None);
        for number in 5..=7 {
            cursor.finish(place(number, 2));
            assert_eq!(cursor.removable().map(|place| place.number), Some(number));
        }
        cursor.finish(place(8, 2));
        assert_eq!(cursor.removable(), Some(place(7, 2)));
        cursor.finish(place(8, 4));
        assert_eq!(cursor.removable(), Some(place(8, 4)));
    }

    #[test]
    fn damaged_entry_does_not_change_the_history() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 4, 7), 70);
        assert!(cursor.accept(place(1, 7)));
        assert!(cursor.accept(place(2, 0)));
        assert!(cursor.accept(place(3, 7)));
        cursor.restart();
        // Since the first pass, entries 1 and 3 have been damaged, so their history digests are unknown.
        assert!(!cursor.accept(place(1, 0)));
        assert!(!cursor.accept(place(2, 0)));
        assert!(!cursor.accept(place(3, 0)));
        assert!(cursor.accept(place(4, 7)));
        assert_eq!(cursor.take_loss(), None);
        cursor.finish(place(4, 7));
        assert_eq!(cursor.removable(), Some(place(4, 7)));
    }

    #[test]
    fn unread_lost_entries_are_counted() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 3, 1), 70);
        cursor.expect(run(4, 9, 2), 70);
        assert!(cursor.accept(place(1, 1)));
        // From number 5 on, the store has other entries, and it has no entry 9.
        assert!((2..=3).all(|number| cursor.accept(place(number, 1))));
        assert!(cursor.accept(place(4, 2)));
        assert!(cursor.accept(place(5, 3)));
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 5, since: 70 }));
        cursor.expect(run(6, 6, 4), 90);
        cursor.expect(run(7, 7, 5), 80);
        cursor.record_end(1);
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 2, since: 80 }));
        assert_eq!(cursor.take_loss(), None);
        // Entries that another reader has read and removed are not lost.
        cursor.expect(run(6, 7, 5), 70);
        cursor.record_end(8);
        assert_eq!(cursor.take_loss(), None);
    }

    #[test]
    fn repeated_numbers_are_counted_as_lost() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 3, 1), 10);
        cursor.expect(run(4, 6, 2), 20);
        cursor.expect(run(7, 7, 3), 30);
        cursor.expect(run(9, 9, 4), 40);
        // The store lost the entries from 3 on.
        cursor.expect(run(3, 8, 5), 50);
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 5, since: 10 }));
        let expected: Vec<_> = cursor.take_expected().collect();
        assert_eq!(expected, [(run(1, 2, 1), 10), (run(3, 8, 5), 50), (run(9, 9, 4), 40)]);
    }

    #[test]
    fn next_reader_expects_unread_entries() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 4, 1), 10);
        cursor.expect(run(5, 9, 2), 20);
        assert!(cursor.accept(place(1, 1)));
        let mut next = QueueCursor::default();
        cursor.take_expected().for_each(|(run, at)| next.expect(run, at));
        cursor.record_end(1);
        assert_eq!(cursor.take_loss(), None);
        // Another reader has removed the entries through 6, and the store has lost the entries from 8 on.
        next.record_first(7);
        assert!(next.accept(place(7, 2)));
        assert!(next.accept(place(8, 3)));
        assert_eq!(next.take_loss(), Some(QueueLoss { entries: 2, since: 20 }));
    }

    #[test]
    fn only_unread_entries_are_expected() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 4, 1), 10);
        cursor.expect(run(7, 9, 2), 20);
        assert!(cursor.accept(place(1, 1)));
        assert_eq!(cursor.expected(place(1, 1)), None);
        let third = QueueRun { first: 3, last: 3, history: 1, call: 1 };
        assert_eq!(cursor.expected(place(3, 1)), Some((third, 10)));
        assert_eq!(cursor.expected(place(3, 2)), None, "another entry has the number");
        assert_eq!(cursor.expected(place(5, 1)), None);
        let last = QueueRun { first: 9, last: 9, history: 2, call: 2 };
        assert_eq!(cursor.expected(place(9, 2)), Some((last, 20)));
        assert_eq!(cursor.expected(place(10, 2)), None);
    }

    /// A recount counts the waiting entries that the reader finds, and the waiting entries that the store lost.
    #[test]
    fn waiting_entries_are_recounted_after_a_loss() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 4, 1), 10);
        cursor.expect(run(5, 6, 2), 20);
        cursor.expect(run(7, 9, 3), 30);
        assert!(cursor.accept(place(1, 1)));
        cursor.suspect_rollback();
        // A writer adds this entry after the store went back in time. The entry gets the number of a lost entry.
        cursor.expect(run(5, 5, 4), 40);
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 2, since: 20 }));
        cursor.confirm_rollback(2);
        assert!((2..=4).all(|number| cursor.accept(place(number, 1))));
        assert_eq!(cursor.take_recount(), None, "it is not known yet whether 7 to 9 are lost");
        assert!(cursor.accept(place(5, 4)));
        cursor.record_end(1);
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 3, since: 30 }));
        cursor.confirm_rollback(3);
        assert_eq!(cursor.take_recount(), Some(QueueRecount { safe: 3, lost: 5 }));
        assert_eq!(cursor.take_recount(), None);
    }

    /// If no waiting entry is lost, the recount counts only safe entries. Entries that the reader read before the
    /// recount, and entries that another reader removed, do not count.
    #[test]
    fn recount_without_a_loss_covers_only_waiting_entries() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 4, 1), 10);
        cursor.expect(run(5, 9, 2), 20);
        assert!((1..=3).all(|number| cursor.accept(place(number, 1))));
        // The store lost a removal, but no entry.
        cursor.confirm_rollback(0);
        cursor.restart();
        assert!((1..=3).all(|number| !cursor.accept(place(number, 1))));
        assert!(cursor.accept(place(4, 1)));
        cursor.expect(run(10, 11, 3), 30);
        cursor.record_first(7);
        assert!((7..=8).all(|number| cursor.accept(place(number, 2))));
        assert_eq!(cursor.take_recount(), None);
        assert!(cursor.accept(place(9, 2)));
        assert_eq!(cursor.take_recount(), Some(QueueRecount { safe: 4, lost: 0 }));
    }

    /// The recount covers an entry, the reader finds this entry, and then the store goes back in time and loses the
    /// entry. The entry counts once, as safe, because the reader has delivered it.
    #[test]
    fn entry_that_was_read_before_a_late_loss_is_safe() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 2, 1), 10);
        cursor.expect(run(3, 5, 2), 20);
        cursor.suspect_rollback();
        assert!((1..=3).all(|number| cursor.accept(place(number, if number < 3 { 1 } else { 2 }))));
        // The store goes back: it loses entries 3 to 5, and the reader reads the queue again.
        cursor.confirm_rollback(0);
        cursor.restart();
        assert!((1..=2).all(|number| !cursor.accept(place(number, 1))));
        cursor.record_end(1);
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 2, since: 20 }));
        cursor.confirm_rollback(2);
        assert_eq!(cursor.take_recount(), Some(QueueRecount { safe: 3, lost: 2 }));
    }

    /// A broken connection alone does not mean that the store went back in time. The recount after a broken connection
    /// therefore has no result.
    #[test]
    fn recount_without_a_rollback_has_no_result() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 4, 1), 10);
        cursor.suspect_rollback();
        assert!((1..=4).all(|number| cursor.accept(place(number, 1))));
        assert_eq!(cursor.take_recount(), None);
        cursor.expect(run(5, 6, 2), 20);
        cursor.confirm_rollback(0);
        assert!((5..=6).all(|number| cursor.accept(place(number, 2))));
        let counted = QueueRecount { safe: 2, lost: 0 };
        assert_eq!(
            cursor.take_recount(),
            Some(counted),
            "entries 1 to 4 belong to another recount"
        );
    }
}
