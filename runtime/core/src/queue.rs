//! What a reader knows of a queue in a store that may go back in time.
//!
//! A store that lost its last seconds gives the numbers of the lost entries to new ones. So a number alone
//! does not say which entry it was. The store therefore keeps a history with each number: a digest of
//! the history before it and of a random number of the call that wrote it. Two entries with the same
//! number and history are the same entry, and all entries before them are the same, too. The history of an entry
//! that is damaged is unknown, and counts as any other.
//!
//! A reader names the last place that it has read with each read, and with each removal the last place that
//! may go. The store refuses a place that is not in its history. The reader then reads its queue again from the
//! beginning, and [`QueueCursor`] tells it which entries it has already delivered.

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
    /// Whether these are places of the same entry, as far as is known.
    fn is_same(self, other: Self) -> bool {
        self.number == other.number
            && (self.history == other.history || self.history == 0 || other.history == 0)
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

/// Runs that a cursor remembers after they were removed, and runs that it expects. Each is a call of a
/// producer, so this is some seconds of a fast stream, in 100 kB.
const RUNS_LIMIT: usize = 4_096;

/// The position of a reader in one queue, what it has delivered, and what it still expects.
#[derive(Debug, Clone, Default)]
pub struct QueueCursor {
    /// Delivered entries, ascending. Others may have been between them.
    delivered: VecDeque<QueueRun>,
    /// Numbers and histories of the entries that were delivered although later ones had been, and that are not
    /// finished: the store had them again after they were removed.
    late: BTreeMap<u64, u64>,
    /// Entries that writers of this process have put, and that were not read yet.
    expected: VecDeque<QueueRun>,
    /// The number of the last entry that was read since the last restart.
    read: u64,
    /// All delivered entries through this number are finished, but for the late ones.
    finished: u64,
    /// All through this number are removed, as far as the store still knows.
    removed: u64,
    /// Expected entries that the store has lost.
    lost: u64,
}

impl QueueCursor {
    /// The place after which to read.
    pub fn after(&self) -> QueuePlace {
        self.place(self.read).unwrap_or(QueuePlace { number: self.read, history: 0 })
    }

    /// The store went back in time: everything is read again from the beginning.
    pub fn restart(&mut self) {
        (self.read, self.removed) = (0, 0);
    }

    /// Takes an entry that was read behind [`QueueCursor::after`]. Returns whether it is to be delivered;
    /// otherwise it is already.
    pub fn take(&mut self, place: QueuePlace) -> bool {
        let QueuePlace { number, history } = place;
        self.read = number;
        if self.place(number).is_some_and(|known| known.is_same(place)) {
            return false;
        }
        let mut at = self.delivered.partition_point(|run| run.last < number);
        if self.delivered.get(at).is_some_and(|run| run.first <= number) {
            self.diverge(number);
            at = self.delivered.len();
        }
        if self.delivered.is_empty() {
            // Nothing is known of what was in front of it.
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

    /// A read behind [`QueueCursor::after`] found nothing, in a queue whose first entry has the number `first`
    /// or will have it. Call this only if all that is expected was put before the read began.
    pub fn reached_end(&mut self, first: u64) {
        if self.last_delivered().is_some_and(|last| last > self.read) {
            self.diverge(self.read + 1);
        }
        for run in self.expected.drain(..) {
            // What stood before the first one was read and removed by another reader.
            self.lost += (run.last + 1).saturating_sub(run.first.max(first));
        }
    }

    /// Notes the number of the first entry that the queue has, or will have: what was removed may be there
    /// again.
    pub fn begins_at(&mut self, first: u64) {
        self.removed = self.removed.min(first.saturating_sub(1));
    }

    /// A writer of this process has put these entries.
    pub fn expect(&mut self, mut run: QueueRun) {
        if self.place(run.last) == Some(run.end()) {
            return;
        }
        // The reader may have read the beginning.
        if let Some(last) = self.last_delivered()
            && self.place(last).is_some_and(|it| it.history == run.history)
        {
            run.first = last + 1;
        }
        for other in &mut self.expected {
            if other.last >= run.first && other.first <= run.last {
                // The store has given these numbers again: it has lost what had them.
                self.lost += other.last + 1 - other.first.max(run.first);
                other.last = run.first - 1;
            }
        }
        self.expected.retain(|it| it.first <= it.last);
        let at = self.expected.partition_point(|it| it.last < run.first);
        self.expected.insert(at, run);
        if self.expected.len() > RUNS_LIMIT {
            self.expected.pop_front();
        }
    }

    /// All delivered entries through this place are finished, and may be removed. What the store has lost
    /// since is ignored.
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

    /// The store has removed all entries through this place.
    pub fn removed(&mut self, through: QueuePlace) {
        self.removed = self.removed.max(through.number);
        while self.delivered.len() > RUNS_LIMIT
            && self.delivered.front().is_some_and(|run| run.last < self.removed)
        {
            self.delivered.pop_front();
        }
    }

    /// Returns how many entries were found to be lost since this was asked last: writers of this process had
    /// put them, and nobody read them here.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
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

    /// Compares an entry that is new here with what is expected at its place.
    fn compare(&mut self, place: QueuePlace) {
        let QueuePlace { number, history } = place;
        while let Some(run) = self.expected.front_mut()
            && run.first <= number
        {
            if run.last < number {
                // Another reader has removed it.
            } else if run.history != history && history != 0 {
                self.lost += run.last + 1 - run.first;
            } else if run.last > number {
                run.first = number + 1;
                return;
            }
            self.expected.pop_front();
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
        cursor.expect(run(1, 4, 7));
        assert!(cursor.take(place(1, 7)));
        assert!(cursor.take(place(2, 0)));
        assert!(cursor.take(place(3, 7)));
        cursor.restart();
        // Meanwhile 1 has been damaged, and 3 removed by somebody.
        assert!(!cursor.take(place(1, 0)));
        assert!(!cursor.take(place(2, 0)));
        assert!(!cursor.take(place(3, 0)));
        assert!(cursor.take(place(4, 7)));
        assert_eq!(cursor.take_lost(), 0);
        cursor.finish(place(4, 7));
        assert_eq!(cursor.removable(), Some(place(4, 7)));
    }

    #[test]
    fn what_is_lost_unread_is_counted() {
        let mut cursor = QueueCursor::default();
        cursor.expect(run(1, 3, 1));
        cursor.expect(run(4, 9, 2));
        assert!(cursor.take(place(1, 1)));
        // 5 and what follows have other entries, and 9 none.
        assert!((2..=3).all(|number| cursor.take(place(number, 1))));
        assert!(cursor.take(place(4, 2)));
        assert!(cursor.take(place(5, 3)));
        assert_eq!(cursor.take_lost(), 5);
        cursor.expect(run(6, 7, 4));
        cursor.reached_end(1);
        assert_eq!((cursor.take_lost(), cursor.take_lost()), (2, 0));
        // What another reader has read and removed is not lost.
        cursor.expect(run(6, 7, 5));
        cursor.reached_end(8);
        assert_eq!(cursor.take_lost(), 0);
    }
}
