//! The position of a reader in a queue of a store that may go back in time.
//!
//! A store that lost its last seconds gives the numbers of lost entries to new ones, so a number alone does not
//! identify an entry. The store therefore keeps a history with each number: a digest of the history before it and
//! of a random number of the call that wrote the entry. If two entries have the same number and history, they are the
//! same entry, and all entries before them are the same too. The history of a damaged entry is unknown; the entry is
//! taken for the one that was read there before.
//!
//! Each read names the last place that was read, and each removal the last place to remove. The store refuses a
//! place that is not in its history. The reader then reads its queue again from the beginning, and [`QueueCursor`]
//! decides which entries are still to be delivered.

use std::collections::{BTreeMap, VecDeque};

/// Where an entry stands in a queue, and in which history of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueuePlace {
    /// The number of the entry, from 1. 0 is the place before all entries.
    pub number: u64,
    /// The history of the queue up to this entry; 0 if it is unknown.
    pub history: u64,
}

impl QueuePlace {
    /// Returns whether an entry that was read here before is still the one at its place, where `found` is read now. If
    /// that one is damaged, its history does not tell.
    fn is_still(self, found: Self) -> bool {
        self.number == found.number && (self.history == found.history || found.history == 0)
    }
}

/// Entries that one call put into a queue: they have one history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueRun {
    /// The number of the first one.
    pub first: u64,
    /// The number of the last one.
    pub last: u64,
    /// The history that the call gave them.
    pub history: u64,
}

impl QueueRun {
    /// The place of the last entry.
    pub fn end(&self) -> QueuePlace {
        QueuePlace { number: self.last, history: self.history }
    }
}

/// Entries that the store has lost before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueueLoss {
    /// How many.
    pub entries: u64,
    /// When the first of them was put, in ms since 1970.
    pub since: u64,
}

/// A run that is to be read, and when it was put.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Expected {
    run: QueueRun,
    at: u64,
}

/// The limit of delivered runs that a cursor remembers after their removal, and of runs that it expects. Each call of
/// a producer makes one run, so the limit covers some seconds of a fast stream, in about 100 kB each.
const RUNS_LIMIT: usize = 4_096;

/// The position of a reader in one queue, what it has delivered, and what it still expects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct QueueCursor {
    /// Delivered entries, ascending. Others may have been between them.
    delivered: VecDeque<QueueRun>,
    /// Numbers and histories of unfinished entries that were delivered after entries with higher numbers. The store
    /// had lost their removal.
    late: BTreeMap<u64, u64>,
    /// Entries that writers of this process have put, and that were not read yet.
    expected: VecDeque<Expected>,
    /// The number of the last entry that was read since the last restart.
    read: u64,
    /// All delivered entries through this number are finished, but for the late ones.
    finished: u64,
    /// The store has removed all entries through this number, and has not lost that removal.
    removed: u64,
    /// Expected entries that the store has lost.
    loss: QueueLoss,
}

impl QueueCursor {
    /// The place after which to read.
    pub fn after(&self) -> QueuePlace {
        self.place(self.read).unwrap_or(QueuePlace { number: self.read, history: 0 })
    }

    /// Starts again at the beginning of the queue, because the store went back in time. Delivered entries stay known.
    pub fn restart(&mut self) {
        (self.read, self.removed) = (0, 0);
    }

    /// Takes an entry that was read behind [`QueueCursor::after`]. Returns whether to deliver it; if
    /// not, it was delivered before.
    pub fn take(&mut self, place: QueuePlace) -> bool {
        let QueuePlace { number, history } = place;
        self.read = number;
        if self.place(number).is_some_and(|known| known.is_still(place)) {
            return false;
        }
        let mut at = self.delivered.partition_point(|run| run.last < number);
        if self.delivered.get(at).is_some_and(|run| run.first <= number) {
            self.diverge(number);
            at = self.delivered.len();
        }
        if self.delivered.is_empty() {
            // The cursor knows no entry in front of this one.
            (self.finished, self.removed) = (number - 1, number - 1);
        } else if at < self.delivered.len() {
            self.late.insert(number, history);
        }
        self.compare(place);
        match at.checked_sub(1).and_then(|before| self.delivered.get_mut(before)) {
            Some(run) if run.history == history && run.last + 1 == number => run.last = number,
            _ => self.delivered.insert(at, QueueRun { first: number, last: number, history }),
        }
        true
    }

    /// Records that a read behind [`QueueCursor::after`] found no entries, and counts the expected ones as lost.
    /// `first` is the number that the first entry of the queue has, or will have. Call this only if all expected
    /// entries were written before the read began.
    pub fn reached_end(&mut self, first: u64) {
        let end = self.read.max(first.saturating_sub(1));
        if self.last_delivered().is_some_and(|last| last > end) {
            self.diverge(end + 1);
        }
        while let Some(Expected { run, at }) = self.expected.pop_front() {
            // What stood before the first one was read and removed by another reader.
            self.lose((run.last + 1).saturating_sub(run.first.max(first)), at);
        }
    }

    /// Records the number that the first entry of the queue has, or will have: removed entries may be back.
    pub fn begins_at(&mut self, first: u64) {
        self.removed = self.removed.min(first.saturating_sub(1));
    }

    /// Expects entries that a writer of this process has put; `at` is that time, in ms since 1970.
    pub fn expect(&mut self, mut run: QueueRun, at: u64) {
        if self.place(run.last) == Some(run.end()) {
            return;
        }
        // The reader may have read the beginning.
        if let Some(last) = self.last_delivered()
            && self.place(last).is_some_and(|it| it.history == run.history)
        {
            run.first = last + 1;
        }
        for index in 0..self.expected.len() {
            let Expected { run: other, at } = &mut self.expected[index];
            if other.last >= run.first && other.first <= run.last {
                // The store has given these numbers again: it has lost what had them.
                let (entries, at) = (other.last + 1 - other.first.max(run.first), *at);
                other.last = run.first - 1;
                self.lose(entries, at);
            }
        }
        self.expected.retain(|it| it.run.first <= it.run.last);
        let place = self.expected.partition_point(|it| it.run.last < run.first);
        self.expected.insert(place, Expected { run, at });
        if self.expected.len() > RUNS_LIMIT {
            self.expected.pop_front();
        }
    }

    /// Marks all delivered entries through this place as finished, so that they may be removed. Ignores a place that
    /// the store has lost since it was delivered.
    pub fn finish(&mut self, place: QueuePlace) {
        if self.late.get(&place.number) == Some(&place.history) {
            self.late.remove(&place.number);
        }
        if self.place(place.number) == Some(place) {
            self.finished = self.finished.max(place.number);
        }
    }

    /// The place through which entries may be removed now; `None` if there are none.
    pub fn removable(&self) -> Option<QueuePlace> {
        let mut through = self.finished.min(self.read);
        if let Some((late, _)) = self.late.first_key_value() {
            through = through.min(late - 1);
        }
        if through <= self.removed { None } else { self.place(through) }
    }

    /// Records that the store has removed all entries through this place.
    pub fn removed(&mut self, through: QueuePlace) {
        self.removed = self.removed.max(through.number);
        while self.delivered.len() > RUNS_LIMIT
            && self.delivered.front().is_some_and(|run| run.last < self.removed)
        {
            self.delivered.pop_front();
        }
    }

    /// Returns the expected entries that were found to be lost since the last call.
    pub fn take_loss(&mut self) -> Option<QueueLoss> {
        let loss = std::mem::take(&mut self.loss);
        (loss.entries > 0).then_some(loss)
    }

    fn lose(&mut self, entries: u64, at: u64) {
        if entries > 0 {
            let before = if self.loss.entries == 0 { at } else { self.loss.since };
            self.loss = QueueLoss { entries: self.loss.entries + entries, since: before.min(at) };
        }
    }

    fn last_delivered(&self) -> Option<u64> {
        self.delivered.back().map(|run| run.last)
    }

    /// The place of a delivered entry.
    fn place(&self, number: u64) -> Option<QueuePlace> {
        let at = self.delivered.partition_point(|run| run.last < number);
        let run = self.delivered.get(at).filter(|run| run.first <= number)?;
        Some(QueuePlace { number, history: run.history })
    }

    /// From this number on the store has other entries than those that were delivered.
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

    /// Compares an entry that is read for the first time with the expected one at its place.
    fn compare(&mut self, place: QueuePlace) {
        let QueuePlace { number, history } = place;
        while let Some(Expected { run, .. }) = self.expected.front_mut()
            && run.first <= number
        {
            let is_same = run.history == history || history == 0;
            if is_same && run.last > number {
                run.first = number + 1;
                return;
            }
            let Some(Expected { run, at }) = self.expected.pop_front() else { return };
            // What stood further in front was removed by another reader.
            if !is_same && run.last >= number {
                self.lose(run.last + 1 - run.first, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u64, history: u64) -> QueuePlace {
        QueuePlace { number, history }
    }

    fn run(first: u64, last: u64, history: u64) -> QueueRun {
        QueueRun { first, last, history }
    }

    #[test]
    fn what_is_new_after_the_store_went_back_is_delivered_and_the_rest_is_not() {
        let mut cursor = QueueCursor::default();
        assert!((5..=7).all(|number| cursor.take(place(number, 1))));
        cursor.finish(place(6, 1));
        assert_eq!(cursor.removable(), Some(place(6, 1)));
        cursor.removed(place(6, 1));
        assert_eq!(cursor.removable(), None);
        // The store has lost 7, and has another one.
        cursor.restart();
        assert_eq!(cursor.after(), place(0, 0));
        assert!(!cursor.take(place(5, 1)));
        assert!(!cursor.take(place(6, 1)));
        assert!(cursor.take(place(7, 2)));
        assert_eq!(cursor.removable(), Some(place(6, 1)), "it may be removed once more");
        cursor.finish(place(7, 1));
        assert_eq!(cursor.removable(), Some(place(6, 1)), "that is not the one");
        cursor.finish(place(7, 2));
        assert_eq!((cursor.removable(), cursor.after()), (Some(place(7, 2)), place(7, 2)));
    }

    #[test]
    fn what_was_removed_and_forgotten_comes_again_before_anything_is_removed() {
        let mut cursor = QueueCursor::default();
        assert!(cursor.take(place(9, 2)));
        cursor.restart();
        assert!(cursor.take(place(8, 1)));
        assert!(!cursor.take(place(9, 2)));
        cursor.finish(place(9, 2));
        assert_eq!(cursor.removable(), None);
        cursor.finish(place(8, 1));
        assert_eq!(cursor.removable(), Some(place(9, 2)));
    }

    #[test]
    fn late_entries_hold_up_removals_also_after_the_store_went_back_twice() {
        let mut cursor = QueueCursor::default();
        assert!(cursor.take(place(9, 3)));
        cursor.finish(place(9, 3));
        cursor.restart();
        assert!((5..=8).all(|number| cursor.take(place(number, 2))));
        // Now 8 is another entry, and 9 is lost.
        cursor.restart();
        assert!((5..=7).all(|number| !cursor.take(place(number, 2))));
        assert!(cursor.take(place(8, 4)));
        assert_eq!(cursor.removable(), None);
        for number in 5..=7 {
            cursor.finish(place(number, 2));
            assert_eq!(cursor.removable().map(|it| it.number), Some(number));
        }
        cursor.finish(place(8, 2));
        assert_eq!(cursor.removable(), Some(place(7, 2)));
        cursor.finish(place(8, 4));
        assert_eq!(cursor.removable(), Some(place(8, 4)));
    }

    #[test]
    fn a_damaged_entry_is_no_sign_of_another_history() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 4, 7), 70);
        assert!(cursor.take(place(1, 7)));
        assert!(cursor.take(place(2, 0)));
        assert!(cursor.take(place(3, 7)));
        cursor.restart();
        // Meanwhile 1 has been damaged, and 3 removed by somebody.
        assert!(!cursor.take(place(1, 0)));
        assert!(!cursor.take(place(2, 0)));
        assert!(!cursor.take(place(3, 0)));
        assert!(cursor.take(place(4, 7)));
        assert_eq!(cursor.take_loss(), None);
        cursor.finish(place(4, 7));
        assert_eq!(cursor.removable(), Some(place(4, 7)));
    }

    #[test]
    fn what_is_lost_unread_is_counted() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 3, 1), 70);
        cursor.expect(run(4, 9, 2), 70);
        assert!(cursor.take(place(1, 1)));
        // 5 and what follows have other entries, and 9 none.
        assert!((2..=3).all(|number| cursor.take(place(number, 1))));
        assert!(cursor.take(place(4, 2)));
        assert!(cursor.take(place(5, 3)));
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 5, since: 70 }));
        cursor.expect(run(6, 6, 4), 90);
        cursor.expect(run(7, 7, 5), 80);
        cursor.reached_end(1);
        assert_eq!(cursor.take_loss(), Some(QueueLoss { entries: 2, since: 80 }));
        assert_eq!(cursor.take_loss(), None);
        // What another reader has read and removed is not lost.
        cursor.expect(run(6, 7, 5), 70);
        cursor.reached_end(8);
        assert_eq!(cursor.take_loss(), None);
    }
}
