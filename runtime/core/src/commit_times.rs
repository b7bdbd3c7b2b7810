//! The times of commits. If the store loses commits, the sequencer can state a time before all lost commits.

use std::collections::VecDeque;

/// The minimum time between two recorded commits, in ms.
const RECORD_INTERVAL_MS: u64 = 60_000;
/// The maximum number of recorded commits. The times of two recorded commits differ by at least one minute, so a full
/// list covers about an hour or more. A failover of the store loses only the commits of a much shorter period.
const RECORDED_LIMIT: usize = 60;

/// The numbers and times of some commits of one shard (slice of the store), the newest last.
#[derive(Debug, Clone, Default)]
pub struct CommitTimes(VecDeque<(u64, u64)>);

impl CommitTimes {
    /// Records the time of a commit, in ms since the Unix epoch. If the newest recorded time is less than a minute
    /// earlier, records nothing. The commit must be newer than all recorded commits.
    pub fn record(&mut self, commit: u64, time: u64) {
        if self.0.back().is_none_or(|(_, last)| time >= last + RECORD_INTERVAL_MS) {
            self.0.push_back((commit, time));
            if self.0.len() > RECORDED_LIMIT {
                self.0.pop_front();
            }
        }
    }

    /// Returns the time of the newest recorded commit whose number is at most `commit`; `None` if no such commit is
    /// recorded. No commit after `commit` has an earlier time than the returned time.
    pub fn before_commits_after(&self, commit: u64) -> Option<u64> {
        let earlier = self.0.iter().rev().find(|(recorded, _)| *recorded <= commit);
        earlier.map(|(_, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of at most 60 commits are kept, and two kept times differ by at least a minute. The returned time
    /// belongs to the last kept commit whose number is at most the given number.
    #[test]
    fn time_is_before_all_later_commits() {
        let mut times = CommitTimes::default();
        assert_eq!(times.before_commits_after(9), None);
        // One commit every half minute.
        for commit in 5..=200 {
            times.record(commit, commit * 30_000);
        }
        assert_eq!(times.before_commits_after(200), Some(199 * 30_000));
        assert_eq!(times.before_commits_after(198), Some(197 * 30_000));
        assert_eq!(times.before_commits_after(81), Some(81 * 30_000));
        assert_eq!(times.before_commits_after(80), None);
    }
}
