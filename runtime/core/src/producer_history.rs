//! The newest calls with which a producer (a program that writes events) wrote events to a store.
//!
//! A store can go back in time: after a failure, a shard (a slice of the store) lacks its newest writes.
//! [`ProducerHistory`] keeps the calls of the most recent minutes, and for each shard a witness: the newest event of
//! the producer in the shard. A shard that lacks its witness has gone back in time. The producer then writes the calls
//! again, in their order and before any new event. Otherwise the store would give the numbers of lost events to new
//! events.
//!
//! Times are in milliseconds since any fixed moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The maximum time between two checks of the witnesses. A broken connection to the store causes an earlier check.
const CHECK_INTERVAL_MS: u64 = 5_000;

/// A call, the time when the store answered it, and its size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WrittenCall<C> {
    call: C,
    at: u64,
    bytes: usize,
}

/// The witness of each shard, and the time when the store confirmed it.
type Witnesses<W> = BTreeMap<u32, (W, u64)>;

/// The newest calls of a producer, and the newest event of the producer in each shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProducerHistory<C, W> {
    /// The calls that the history keeps in memory, oldest first.
    calls: VecDeque<WrittenCall<C>>,
    bytes: usize,
    max_bytes: usize,
    /// The time that calls stay in memory, in ms.
    max_age: u64,
    /// The most recent time when the history forgot a call for lack of memory, before the call reached `max_age`.
    dropped_at: Option<u64>,
    newest: Witnesses<W>,
    /// The shards that lack their witness.
    lacking: BTreeSet<u32>,
    /// The number of calls that the producer has written again since a check found that the shards in `lacking` lack
    /// their witnesses.
    rewritten: usize,
    /// The witnesses of the calls that were written again.
    renewed: Witnesses<W>,
    checked_at: u64,
    /// The number of broken connections to the store before the newest check.
    checked_breaks: u64,
}

impl<C, W: Clone> ProducerHistory<C, W> {
    /// Creates an empty history that keeps calls for `max_age` ms, but keeps at most `max_bytes` bytes of calls.
    /// `breaks` is the number of broken connections to the store so far.
    pub fn new(max_bytes: usize, max_age: u64, breaks: u64, now: u64) -> Self {
        Self {
            calls: VecDeque::new(),
            bytes: 0,
            max_bytes,
            max_age,
            dropped_at: None,
            newest: BTreeMap::new(),
            lacking: BTreeSet::new(),
            rewritten: 0,
            renewed: BTreeMap::new(),
            checked_at: now,
            checked_breaks: breaks,
        }
    }

    /// Returns the witness of each shard: the newest event that the shard must have. Omits witnesses older than
    /// `max_age`, except for shards that lack their witness.
    pub fn witnesses(&self, now: u64) -> BTreeMap<u32, W> {
        let is_kept = |shard: &u32, at: u64| {
            now.saturating_sub(at) < self.max_age || self.lacking.contains(shard)
        };
        let newest = self.newest.iter().filter(|(shard, (_, at))| is_kept(shard, *at));
        newest.map(|(shard, (witness, _))| (*shard, witness.clone())).collect()
    }

    /// Adds a call whose events are in the store, and its newest event in each shard. Returns the calls that the
    /// history had to forget to free memory, each with the time when the store answered it. The store may still lose
    /// the events of these calls.
    pub fn add(
        &mut self,
        call: C,
        bytes: usize,
        witnesses: BTreeMap<u32, W>,
        now: u64,
    ) -> Vec<(C, u64)> {
        self.newest.extend(dated(witnesses, now));
        self.bytes += bytes;
        self.calls.push_back(WrittenCall { call, at: now, bytes });
        let mut dropped = Vec::new();
        while self.bytes > self.max_bytes {
            dropped.extend(self.drop_oldest(now));
        }
        dropped
    }

    /// Forgets the oldest call to free memory, although the store may still lose this call. Returns the call, and the
    /// time when the store answered it.
    pub fn drop_oldest(&mut self, now: u64) -> Option<(C, u64)> {
        let oldest = self.forget_oldest()?;
        self.dropped_at = Some(now);
        Some((oldest.call, oldest.at))
    }

    fn forget_oldest(&mut self) -> Option<WrittenCall<C>> {
        let oldest = self.calls.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }

    /// Returns whether the history has forgotten calls that the store may still lose.
    pub fn is_incomplete(&self, now: u64) -> bool {
        self.dropped_at.is_some_and(|at| now.saturating_sub(at) < self.max_age)
    }

    /// Forgets the calls older than `max_age`, unless a shard still lacks its witness.
    pub fn forget_old(&mut self, now: u64) {
        let max_age = self.max_age;
        let is_old = |call: &WrittenCall<C>| now.saturating_sub(call.at) >= max_age;
        while self.lacking.is_empty() && self.calls.front().is_some_and(is_old) {
            self.forget_oldest();
        }
    }

    /// Returns whether shards may lack their witnesses, so that a check is due. `breaks` is the number of broken
    /// connections to the store so far.
    pub fn is_in_doubt(&self, breaks: u64, now: u64) -> bool {
        let is_due = now.saturating_sub(self.checked_at) >= CHECK_INTERVAL_MS;
        breaks != self.checked_breaks || is_due || !self.lacking.is_empty()
    }

    /// Records that a check found the witness of each shard. `breaks` is the number of broken connections to the store
    /// before the check.
    pub fn checked(&mut self, breaks: u64, now: u64) {
        self.checked_breaks = breaks;
        self.checked_at = now;
    }

    /// Prepares to repeat the calls in memory, each only for the shards in `lacking`, because these shards lack their
    /// witnesses.
    pub fn went_back(&mut self, lacking: BTreeSet<u32>) {
        self.lacking = lacking;
        self.rewritten = 0;
        self.renewed.clear();
    }

    /// Returns, for each shard that lacked its witness, the newest event of the calls that were written again.
    pub fn renewed(&self) -> BTreeMap<u32, W> {
        self.renewed.iter().map(|(shard, (witness, _))| (*shard, witness.clone())).collect()
    }

    /// Returns the next call that the producer must repeat, and the shards that lack their witnesses. The producer
    /// repeats only the events of the call that belong to these shards.
    pub fn next_lost(&self) -> Option<(&C, &BTreeSet<u32>)> {
        self.calls.get(self.rewritten).map(|written| (&written.call, &self.lacking))
    }

    /// Records that the producer has repeated the call that [`Self::next_lost`] returned. `call` is the same call with
    /// the store's new results; it replaces the call in memory. If the store had lost events of the call, `at` is the
    /// time of the write. If the store still had all events of the call, `at` is `None`. The old witnesses stay until
    /// all calls are repeated ([`Self::restored`]). Until then, the store refuses new events of the producer, because
    /// the producer names an old witness that a shard lacks. If the producer cannot repeat one of the calls, the
    /// refusals continue.
    pub fn written_again(&mut self, call: C, witnesses: BTreeMap<u32, W>, at: Option<u64>) {
        if let Some(written) = self.calls.get_mut(self.rewritten) {
            written.call = call;
            written.at = at.unwrap_or(written.at);
            let in_lacking = |(shard, _): &(u32, W)| self.lacking.contains(shard);
            self.renewed.extend(dated(witnesses.into_iter().filter(in_lacking), written.at));
            self.rewritten += 1;
        }
    }

    /// Records that all calls are repeated, so that the store lacks no event of these calls.
    pub fn restored(&mut self) {
        let lacking = std::mem::take(&mut self.lacking);
        self.newest.retain(|shard, _| !lacking.contains(shard));
        self.newest.append(&mut self.renewed);
    }

    /// Returns the calls in memory, oldest first.
    pub fn calls(&self) -> impl Iterator<Item = &C> {
        self.calls.iter().map(|written| &written.call)
    }
}

fn dated<W>(
    witnesses: impl IntoIterator<Item = (u32, W)>,
    at: u64,
) -> impl Iterator<Item = (u32, (W, u64))> {
    witnesses.into_iter().map(move |(shard, witness)| (shard, (witness, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;

    fn history() -> ProducerHistory<char, u64> {
        ProducerHistory::new(30, MINUTE_MS, 0, 0)
    }

    fn in_shard(shard: u32, witness: u64) -> BTreeMap<u32, u64> {
        BTreeMap::from([(shard, witness)])
    }

    #[test]
    fn old_witnesses_stay_until_all_calls_are_written_again() {
        let mut history = history();
        history.add('a', 10, in_shard(0, 1), 0);
        history.add('b', 10, in_shard(1, 1), 0);
        history.add('c', 10, in_shard(0, 2), 0);
        let lacking = BTreeSet::from([0]);
        history.went_back(lacking.clone());
        assert_eq!(history.next_lost(), Some((&'a', &lacking)));
        history.written_again('A', in_shard(0, 7), None);
        assert_eq!(history.renewed(), in_shard(0, 7));
        assert_eq!(history.witnesses(0), BTreeMap::from([(0, 2), (1, 1)]));
        // While calls are missing, the history keeps all calls and stays in doubt.
        history.forget_old(MINUTE_MS);
        assert_eq!(history.calls().count(), 3);
        assert_eq!(history.witnesses(MINUTE_MS), in_shard(0, 2));
        assert!(history.is_in_doubt(0, 1));

        // The store goes back in time once more. The calls are written again from the first one on.
        history.went_back(lacking);
        for call in ['A', 'B', 'C'] {
            let lost = history.next_lost().map(|(lost, _)| *lost);
            assert!(lost.is_some_and(|lost| lost.eq_ignore_ascii_case(&call)));
            history.written_again(call, BTreeMap::from([(0, u64::from(call)), (1, 9)]), Some(9));
        }
        assert_eq!(history.next_lost(), None);
        history.restored();
        assert_eq!(history.witnesses(0), BTreeMap::from([(0, u64::from('C')), (1, 1)]));
        assert_eq!(history.calls().collect::<String>(), "ABC");
        assert!(!history.is_incomplete(0));
    }

    #[test]
    fn memory_and_age_have_limits() {
        let mut history = history();
        let mut dropped = Vec::new();
        for (at, call) in (0..).zip("abcd".chars()) {
            dropped.extend(history.add(call, 10, in_shard(0, at), at));
        }
        assert_eq!(dropped, [('a', 0)]);
        assert_eq!(history.calls().collect::<String>(), "bcd");
        assert!(history.is_incomplete(MINUTE_MS + 2));
        assert!(!history.is_incomplete(MINUTE_MS + 3));
        assert_eq!(history.witnesses(MINUTE_MS + 2), in_shard(0, 3));
        history.forget_old(MINUTE_MS + 2);
        assert_eq!(history.calls().collect::<String>(), "d");
        assert!(history.witnesses(MINUTE_MS + 3).is_empty());
    }

    #[test]
    fn disconnects_and_time_cause_doubt() {
        let mut history = history();
        history.checked(3, 1_000);
        assert!(!history.is_in_doubt(3, 1_000 + CHECK_INTERVAL_MS - 1));
        assert!(history.is_in_doubt(4, 1_001));
        assert!(history.is_in_doubt(3, 1_000 + CHECK_INTERVAL_MS));
    }
}
