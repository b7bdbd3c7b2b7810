//! Tracks the commit through which the outbox of a shard is durably done.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The commit through which all messages are published and durably marked as done, so that no failure of the store
/// can bring them back. A mark is written lazily, and is durable when a later commit is. The publisher records marks;
/// the task that numbers messages reads the result.
#[derive(Debug, Default)]
pub struct Done {
    through: AtomicU64,
    /// Marks that may not be durable yet, each with the commit through which it applies and the last commit at the
    /// time: the oldest such mark, and the newest.
    noted: Mutex<[Option<(u64, u64)>; 2]>,
}

impl Done {
    /// Returns the commit.
    pub fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }

    /// Records a mark that was written when the last commit was number `last`.
    pub fn mark(&self, through: u64, last: u64) {
        // A panic while the lock is held leaves the data consistent.
        let mut noted = self.noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let place = usize::from(noted[0].is_some());
        noted[place] = Some((through, last));
    }

    /// Records that a commit is durable.
    pub fn committed(&self, number: u64) {
        let mut noted = self.noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while let Some((through, last)) = noted[0]
            && last < number
        {
            self.through.fetch_max(through, Ordering::Relaxed);
            *noted = [noted[1], None];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_counts_when_a_later_commit_is_durable() {
        let done = Done::default();
        done.mark(3, 5);
        // Commit 5 was in flight when the mark was written.
        done.committed(5);
        assert_eq!(done.through(), 0);
        done.mark(4, 6);
        done.mark(5, 7);
        done.committed(6);
        assert_eq!(done.through(), 3);
        done.committed(7);
        assert_eq!(done.through(), 3);
        done.committed(8);
        assert_eq!(done.through(), 5);
        done.committed(9);
        assert_eq!(done.through(), 5);
    }
}
