//! The ages of the event ids that the sequencer remembers for a key of a `fifo` stream. The sequencer forgets old ids.
//!
//! A timestamp for each id would increase the size of each stored id by a third. Instead, each timestamp applies to a
//! stretch: a run of consecutive ids. A key record has about four stretches for each period of `id_ttl`.

use std::sync::Arc;

/// The stretches of a key, the newest last. A stretch is a run of consecutive ids with one timestamp. Each commit
/// clones the records of its keys. The clones are cheap, because they share one list until a clone changes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdTimes(Option<Arc<Vec<IdStretch>>>);

/// A run of consecutive ids: the ids of events with consecutive sequences. Usually, these events were settled within a
/// quarter of `id_ttl`. If stretches were merged, the oldest stretch may cover a longer time. The run ends before the
/// first sequence of the next stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdStretch {
    /// The first sequence of the run.
    pub from: u64,
    /// The time of the commit that settled the first sequence, by the store's clock, in ms since the Unix epoch; 0
    /// until that commit is applied. If two stretches were merged, this is the time of the later stretch.
    pub since: u64,
}

impl IdTimes {
    /// The maximum number of stretches of a key: about four for the most recent period of `id_ttl`, and a few older
    /// stretches. The older stretches are kept, because events with older ids can arrive again after a crash.
    pub const STRETCHES_LIMIT: usize = 8;

    /// Returns all stretches, the newest last.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &IdStretch> + DoubleEndedIterator {
        self.0.as_deref().map_or(&[][..], Vec::as_slice).iter()
    }

    /// Returns the first sequence whose id is not old. An id becomes old at an age between `ttl` and 1.25 times `ttl`,
    /// or later if its stretch was merged with a newer stretch. Returns 0 if no id is old, and `u64::MAX` if all ids
    /// are old.
    pub(crate) fn first_young(&self, now: u64, ttl: u64) -> u64 {
        let is_old = |stretch: &&IdStretch| {
            let until = stretch.since.saturating_add(ttl).saturating_add(span(ttl));
            stretch.since != 0 && until <= now
        };
        match self.iter().take_while(is_old).count() {
            0 => 0,
            old => self.iter().nth(old).map_or(u64::MAX, |young| young.from),
        }
    }

    /// Records that a commit at `now` settles events from sequence `from` on. If no stretch exists, or if the newest
    /// stretch began a quarter of `ttl` ago or earlier, starts a new stretch.
    pub(crate) fn record_commit(&mut self, from: u64, now: u64, ttl: u64) {
        let newest = self.iter().next_back();
        if newest.is_some_and(|last| last.since == 0 || now < last.since.saturating_add(span(ttl)))
        {
            return;
        }
        let stretches = Arc::make_mut(self.0.get_or_insert_default());
        if stretches.len() >= Self::STRETCHES_LIMIT {
            // Merge the two oldest stretches. The merged stretch has the age of the younger of the two.
            stretches[1].from = stretches[0].from;
            stretches.remove(0);
        }
        stretches.push(IdStretch { from, since: 0 });
    }

    /// Removes the stretches whose ids all have sequences below `first`. Always keeps the newest stretch.
    pub(crate) fn forget_below(&mut self, first: u64) {
        let gone = self.iter().skip(1).take_while(|next| next.from <= first).count();
        if gone > 0
            && let Some(stretches) = &mut self.0
        {
            Arc::make_mut(stretches).drain(..gone);
        }
    }

    /// Returns whether the newest stretch still lacks its time.
    pub fn lacks_time(&self) -> bool {
        self.iter().next_back().is_some_and(|newest| newest.since == 0)
    }

    pub(crate) fn fill_times(&mut self, now: u64) {
        if self.lacks_time()
            && let Some(stretches) = &mut self.0
            && let Some(newest) = Arc::make_mut(stretches).last_mut()
        {
            newest.since = now;
        }
    }

    /// Returns the memory of the stretches, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.iter().len() * size_of::<IdStretch>()
    }
}

/// Returns the minimum time between the first commits of two stretches.
fn span(ttl: u64) -> u64 {
    ttl / 4
}

impl FromIterator<IdStretch> for IdTimes {
    fn from_iter<I: IntoIterator<Item = IdStretch>>(stretches: I) -> Self {
        let stretches: Vec<IdStretch> = stretches.into_iter().collect();
        Self((!stretches.is_empty()).then(|| Arc::new(stretches)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: u64 = 1_000;

    /// The key settled one event at each of these times, from sequence 1 on.
    fn settled(times: impl IntoIterator<Item = u64>) -> IdTimes {
        let mut ids = IdTimes::default();
        for (sequence, time) in (1..).zip(times) {
            ids.record_commit(sequence, time, TTL);
            ids.fill_times(time);
        }
        ids
    }

    #[test]
    fn id_is_remembered_for_its_ttl_and_at_most_a_quarter_longer() {
        let times: Vec<u64> = (0..500).map(|number| 1 + 7 * number).collect();
        for (count, last) in (1..).zip(&times) {
            let ids = settled(times[..count].iter().copied());
            for now in [*last, last + 400, last + TTL, last + 2 * TTL] {
                let from = ids.first_young(now, TTL);
                for (sequence, time) in (1..).zip(&times[..count]) {
                    let is_known = sequence >= from;
                    assert!(is_known || time + TTL <= now, "{sequence} is forgotten at {now}");
                    assert!(!is_known || now < time + TTL * 5 / 4, "{sequence} is known at {now}");
                }
            }
        }
    }

    #[test]
    fn stretches_are_limited_and_forgotten_with_their_ids() {
        let mut ids = settled((1..100_000).step_by(100));
        assert_eq!(ids.iter().len(), IdTimes::STRETCHES_LIMIT);
        let newest = *ids.iter().next_back().expect("a stretch");
        ids.forget_below(newest.from - 1);
        assert_eq!(ids.iter().len(), 2);
        ids.forget_below(newest.from);
        assert_eq!(ids.iter().copied().collect::<Vec<_>>(), [newest]);
        ids.forget_below(u64::MAX);
        assert_eq!(ids.iter().len(), 1, "the newest stretch is kept");
    }
}
