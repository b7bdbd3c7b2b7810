//! How old the ids of a `fifo` key are, so that they can be forgotten by their age.
//!
//! A time beside each id would make every id a third larger. So a record has the time of about one
//! commit for each quarter of the time to live: between two of them lies a stretch of ids.

use std::sync::Arc;

/// The stretches of a key's ids, the newest last. A clone shares them until one of the two changes:
/// every commit carries a copy of its jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdTimes(Option<Arc<Vec<IdStretch>>>);

/// The ids from one sequence on, up to the next stretch. Their events were settled by commits that
/// followed each other within a quarter of the time to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdStretch {
    /// The first sequence.
    pub from: u64,
    /// The time of the commit that settled it, by the store's clock, in ms since the Unix epoch. 0
    /// in a record that is being written: that commit.
    pub since: u64,
}

impl IdTimes {
    /// Stretches of a key, at most: those of a time to live, and some that are older and stay
    /// because their ids must.
    pub const LIMIT: usize = 8;

    /// All of them, the newest last.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &IdStretch> + DoubleEndedIterator {
        self.0.as_deref().map_or(&[][..], Vec::as_slice).iter()
    }

    /// Returns the first sequence whose id is younger than `ttl`, or less than a quarter older; 0
    /// where all are.
    pub(crate) fn young_from(&self, now: u64, ttl: u64) -> u64 {
        let is_old = |stretch: &&IdStretch| {
            let until = stretch.since.saturating_add(ttl).saturating_add(span(ttl));
            stretch.since != 0 && until <= now
        };
        match self.iter().take_while(is_old).count() {
            0 => 0,
            old => self.iter().nth(old).map_or(u64::MAX, |young| young.from),
        }
    }

    /// Notes that the commit being written settles events from a sequence on.
    pub(crate) fn note(&mut self, from: u64, now: u64, ttl: u64) {
        let newest = self.iter().next_back();
        if newest.is_some_and(|it| it.since == 0 || now < it.since.saturating_add(span(ttl))) {
            return;
        }
        let stretches = Arc::make_mut(self.0.get_or_insert_default());
        if stretches.len() >= Self::LIMIT {
            // The two oldest become one, which is as young as the younger of them.
            stretches[1].from = stretches[0].from;
            stretches.remove(0);
        }
        stretches.push(IdStretch { from, since: 0 });
    }

    /// Forgets stretches of which no id is left.
    pub(crate) fn forget_below(&mut self, first: u64) {
        let gone = self.iter().skip(1).take_while(|next| next.from <= first).count();
        if gone > 0
            && let Some(stretches) = &mut self.0
        {
            Arc::make_mut(stretches).drain(..gone);
        }
    }

    /// Whether there is a time to be filled in.
    pub fn is_new(&self) -> bool {
        self.iter().next_back().is_some_and(|newest| newest.since == 0)
    }

    /// Puts the time of the commit in place of the zero.
    pub(crate) fn fill_times(&mut self, now: u64) {
        if self.is_new()
            && let Some(stretches) = &mut self.0
            && let Some(newest) = Arc::make_mut(stretches).last_mut()
        {
            newest.since = now;
        }
    }

    /// What they cost in memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.iter().len() * size_of::<IdStretch>()
    }
}

/// How far apart the first commits of two stretches are, at least.
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

    /// One event is settled at each of these times, from sequence 1 on.
    fn settled(times: impl IntoIterator<Item = u64>) -> IdTimes {
        let mut ids = IdTimes::default();
        for (sequence, time) in (1..).zip(times) {
            ids.note(sequence, time, TTL);
            ids.fill_times(time);
        }
        ids
    }

    #[test]
    fn an_id_is_young_for_its_time_to_live_and_at_most_a_quarter_longer() {
        let times: Vec<u64> = (0..500).map(|number| 1 + 7 * number).collect();
        for (count, last) in (1..).zip(&times) {
            let ids = settled(times[..count].iter().copied());
            for now in [*last, last + 400, last + TTL, last + 2 * TTL] {
                let from = ids.young_from(now, TTL);
                for (sequence, time) in (1..).zip(&times[..count]) {
                    let is_known = sequence >= from;
                    assert!(is_known || time + TTL <= now, "{sequence} is forgotten at {now}");
                    assert!(!is_known || now < time + TTL * 5 / 4, "{sequence} is known at {now}");
                }
            }
        }
    }

    #[test]
    fn a_key_has_few_stretches_and_none_without_ids() {
        let mut ids = settled((1..100_000).step_by(100));
        assert_eq!(ids.iter().len(), IdTimes::LIMIT);
        let newest = *ids.iter().next_back().expect("a stretch");
        ids.forget_below(newest.from - 1);
        assert_eq!(ids.iter().len(), 2);
        ids.forget_below(newest.from);
        assert_eq!(ids.iter().copied().collect::<Vec<_>>(), [newest]);
        ids.forget_below(u64::MAX);
        assert_eq!(ids.iter().len(), 1, "the newest one goes on");
    }
}
