//! Through which commit the outbox of a shard is done for good.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Through which commit all is published and marked done, so that no failure of the store brings it back: a mark
/// is lazy, and durable when a commit behind it is. The publisher notes; whoever numbers messages reads.
#[derive(Debug, Default)]
pub struct Done {
    through: AtomicU64,
    /// Marks that may not be durable: through which commit, and the last commit that there was. The first
    /// of them, and the newest.
    noted: Mutex<[Option<(u64, u64)>; 2]>,
}

impl Done {
    /// Through which commit.
    pub fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }

    /// Notes a mark that was written when the last commit was number `last`.
    pub fn mark(&self, through: u64, last: u64) {
        // A panic in here would have left nothing half done.
        let mut noted = self.noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let place = usize::from(noted[0].is_some());
        noted[place] = Some((through, last));
    }

    /// Notes that a commit is durable.
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
    fn a_mark_counts_when_a_later_commit_is_durable() {
        let done = Done::default();
        done.mark(3, 5);
        // Commit 5 was on its way when the mark was written.
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
