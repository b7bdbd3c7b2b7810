//! The ledger of a key's gaps: what was missing, who was asked for it, and how it ended.

use std::sync::Arc;

use crate::settings::SOURCES_LIMIT;

/// The last gaps of a key whose clock ran out, the newest last. A clone shares them until one of the two
/// changes: every commit carries a copy of its jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gaps(Option<Arc<Vec<GapEntry>>>);

/// A gap whose clock ran out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapEntry {
    /// The first missing sequence.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Time of the write that told of it first. 0 in a record that is being written: that is the one.
    pub since: u64,
    /// For how long it had been known by then, in ms.
    pub waited: u64,
    /// Since when it is known, by the clock of whoever has it in memory: until that write. Not stored.
    pub known: u64,
    /// Rounds of asking that have begun.
    pub rounds: u32,
    /// What each source answered, in the order in which they are asked.
    pub answers: Vec<Answers>,
    /// How it ended.
    pub end: GapEnd,
    /// Time of the write that told of its end, as `since`; of no meaning while it is open.
    pub until: u64,
}

/// What a replay source answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// The source.
    pub source: Arc<str>,
    /// How often it was asked.
    pub asked: u32,
    /// Events that it had.
    pub found: u32,
    /// How often it failed.
    pub failed: u32,
    /// Why, the last time.
    pub error: Option<Box<str>>,
}

/// How a gap ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapEnd {
    /// It has not.
    Open,
    /// All rounds were in vain, and it is waited for all the same.
    Waiting,
    /// The event came by itself.
    Arrived,
    /// A replay source had it.
    Replayed,
    /// All rounds were in vain, and the key was parked.
    Parked,
    /// All rounds were in vain, and the key went on without it.
    Skipped,
    /// Something else went past it: another owner, or the end of the key.
    Passed,
}

impl GapEnd {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Open,
        Self::Waiting,
        Self::Arrived,
        Self::Replayed,
        Self::Parked,
        Self::Skipped,
        Self::Passed,
    ];

    /// Its name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Waiting => "waiting",
            Self::Arrived => "arrived",
            Self::Replayed => "replayed",
            Self::Parked => "parked",
            Self::Skipped => "skipped",
            Self::Passed => "passed",
        }
    }

    /// The inverse of [`name`](Self::name).
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.name() == name)
    }

    /// Whether the event may still end it.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Waiting | Self::Parked)
    }
}

impl GapEntry {
    /// Bytes of [`Answers::error`].
    pub const ERROR_LIMIT: usize = 120;

    /// A gap of which the clock has just run out, after so many ms.
    pub fn new(first: u64, last: u64, waited: u64) -> Self {
        let (answers, end) = (Vec::new(), GapEnd::Open);
        Self { first, last, since: 0, waited, known: 0, rounds: 0, answers, end, until: 0 }
    }

    /// Whether what was missing has come.
    pub(crate) fn has_come(&self) -> bool {
        matches!(self.end, GapEnd::Arrived | GapEnd::Replayed)
    }

    /// Notes what a source answered: how many events, or why it failed.
    pub(crate) fn answered(&mut self, source: &Arc<str>, found: usize, error: Option<&str>) {
        let at = self.answers.iter().position(|it| it.source == *source).unwrap_or_else(|| {
            if self.answers.len() >= SOURCES_LIMIT {
                // One that was asked before the settings were changed.
                self.answers.remove(0);
            }
            let source = Arc::clone(source);
            self.answers.push(Answers { source, asked: 0, found: 0, failed: 0, error: None });
            self.answers.len() - 1
        });
        let answers = &mut self.answers[at];
        answers.asked = answers.asked.saturating_add(1);
        answers.found = answers.found.saturating_add(u32::try_from(found).unwrap_or(u32::MAX));
        if let Some(error) = error {
            answers.failed = answers.failed.saturating_add(1);
            let end = error.floor_char_boundary(Self::ERROR_LIMIT);
            answers.error = Some(error[..end].into());
        }
    }

    /// How long it lasted, in ms, if it has ended; a time of 0 is `now`.
    pub fn lasted(&self, now: u64) -> u64 {
        let or_now = |time: u64| if time == 0 { now } else { time };
        let until = if self.end == GapEnd::Open { now } else { or_now(self.until) };
        until.saturating_sub(or_now(self.since)).saturating_add(self.waited)
    }

    /// At most, without a look at each error: it is asked for with each event.
    fn memory(&self) -> usize {
        size_of::<Self>() + self.answers.len() * (size_of::<Answers>() + Self::ERROR_LIMIT)
    }
}

impl Gaps {
    /// Gaps remembered for a key: enough to see what its producer does, in a record that is
    /// written with each commit.
    pub const LIMIT: usize = 16;

    /// All of them, the newest last.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &GapEntry> + DoubleEndedIterator {
        self.0.as_deref().map_or(&[][..], Vec::as_slice).iter()
    }

    /// The newest one, if its event may still end it.
    pub(crate) fn open(&self) -> Option<&GapEntry> {
        self.0.as_deref()?.last().filter(|it| it.end.is_open())
    }

    /// The same, to be changed.
    pub(crate) fn open_mut(&mut self) -> Option<&mut GapEntry> {
        self.open()?;
        Arc::make_mut(self.0.as_mut()?).last_mut()
    }

    /// Takes back what stands there of sequences from one on, which are missing after all: nothing of it was
    /// settled. Answers the gap that these are of, if it is known, up to the last that stood there: it is open or
    /// began there or behind it.
    pub(crate) fn take_back(&mut self, from: u64) -> Option<GapEntry> {
        self.iter().next_back().filter(|it| it.last.saturating_add(1) >= from)?;
        let entries = Arc::make_mut(self.0.as_mut()?);
        let (mut known, end) = (None, entries.last().map_or(0, |it| it.last));
        while let Some(entry) = entries.pop_if(|it| it.first >= from) {
            known = Some(GapEntry { last: end, ..entry });
        }
        if known.is_none() {
            known = entries.pop_if(|it| it.last + 1 >= from && it.end.is_open());
        }
        if let Some(entry) = entries.last_mut().filter(|it| it.last >= from) {
            entry.last = from - 1;
        }
        known
    }

    /// Makes one of the newest two, if they are parts of one gap that have both come.
    pub(crate) fn join_parts(&mut self) {
        let Some(entries) = &mut self.0 else { return };
        let [.., before, last] = &entries[..] else { return };
        let is_one = before.last.checked_add(1) == Some(last.first) && before.since == last.since;
        if is_one && before.has_come() && last.has_come() {
            let first = before.first;
            let entries = Arc::make_mut(entries);
            entries.remove(entries.len() - 2);
            entries.last_mut().expect("one is left of two").first = first;
        }
    }

    /// As long as what is missing from here on is not settled, it is open: whoever has it after this owner may
    /// find it otherwise.
    pub(crate) fn reopen_from(&mut self, next: u64) {
        let is_ahead = |it: &GapEntry| it.last >= next && !it.end.is_open();
        if !self.iter().any(is_ahead) {
            return;
        }
        let Some(entries) = &mut self.0 else { return };
        let entries = Arc::make_mut(entries);
        for entry in entries.iter_mut().filter(|it| it.first < next) {
            entry.last = entry.last.min(next - 1);
        }
        if let Some(at) = entries.iter().position(|it| it.first >= next)
            && let Some(last) = entries.last().map(|it| it.last)
        {
            entries.truncate(at + 1);
            let entry = &mut entries[at];
            (entry.last, entry.end, entry.until) = (last, GapEnd::Open, 0);
        }
    }

    /// How long what is written for the first time has been known by now.
    pub(crate) fn count_wait(&mut self, now: u64) {
        if self.iter().any(|it| it.since == 0)
            && let Some(entries) = &mut self.0
        {
            for entry in Arc::make_mut(entries).iter_mut().filter(|it| it.since == 0) {
                entry.waited = now.saturating_sub(entry.known);
            }
        }
    }

    /// The newest one.
    pub(crate) fn last_mut(&mut self) -> Option<&mut GapEntry> {
        Arc::make_mut(self.0.as_mut()?).last_mut()
    }

    pub(crate) fn push(&mut self, entry: GapEntry) {
        let entries = Arc::make_mut(self.0.get_or_insert_default());
        if entries.len() >= Self::LIMIT {
            entries.remove(0);
        }
        entries.push(entry);
    }

    /// Whether there is a time to be filled in.
    pub fn is_new(&self) -> bool {
        self.iter().any(|it| it.since == 0 || (it.end != GapEnd::Open && it.until == 0))
    }

    /// Puts the time of the commit in place of the zeros.
    pub(crate) fn fill_times(&mut self, now: u64) {
        if !self.is_new() {
            return;
        }
        let Some(entries) = &mut self.0 else { return };
        for entry in Arc::make_mut(entries) {
            if entry.since == 0 {
                entry.since = now;
            }
            if entry.end != GapEnd::Open && entry.until == 0 {
                entry.until = now;
            }
        }
    }

    /// Sets the times that the applied commit left open in `written`. A gap that ended after the commit
    /// was formed keeps an open end: a later commit records it.
    pub(crate) fn fill_written_times(&mut self, written: &Self, now: u64) {
        if !self.is_new() {
            return;
        }
        let Some(entries) = &mut self.0 else { return };
        for entry in Arc::make_mut(entries) {
            let is_of = |it: &&GapEntry| (it.first..=it.last).contains(&entry.first);
            let Some(written) = written.iter().find(is_of) else { continue };
            if entry.since == 0 && written.since == 0 {
                entry.since = now;
            }
            // The driver warned of the whole gap; its rest needs no second warning.
            let is_rest = entry.end == GapEnd::Waiting && entry.last <= written.last;
            let is_same = (entry.first, entry.last) == (written.first, written.last);
            if (is_rest || is_same)
                && entry.end == written.end
                && written.until == 0
                && entry.end != GapEnd::Open
                && entry.until == 0
            {
                entry.until = now;
            }
        }
    }

    /// What they cost in memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.iter().map(GapEntry::memory).sum()
    }
}

impl FromIterator<GapEntry> for Gaps {
    fn from_iter<I: IntoIterator<Item = GapEntry>>(entries: I) -> Self {
        let entries: Vec<GapEntry> = entries.into_iter().collect();
        Self((!entries.is_empty()).then(|| Arc::new(entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_gives_its_time_to_what_it_wrote_and_to_nothing_else() {
        let waiting =
            |first, last| GapEntry { end: GapEnd::Waiting, ..GapEntry::new(first, last, 0) };
        let times = |written: GapEntry, now: GapEntry| {
            let mut gaps: Gaps = std::iter::once(now).collect();
            gaps.fill_written_times(&std::iter::once(written).collect(), 7);
            let entry = gaps.iter().next().expect("an entry");
            (entry.since, entry.until)
        };
        assert_eq!(times(waiting(5, 9), waiting(5, 9)), (7, 7));
        assert_eq!(times(waiting(5, 9), waiting(7, 9)), (7, 7), "the warning covered the rest");
        assert_eq!(times(waiting(5, 9), waiting(5, 10)), (7, 0), "the gap has grown");
        assert_eq!(
            times(GapEntry::new(5, 9, 0), waiting(5, 9)),
            (7, 0),
            "the commit wrote an open gap"
        );
        assert_eq!(
            times(waiting(5, 9), waiting(12, 12)),
            (0, 0),
            "the commit did not write this gap"
        );
    }

    #[test]
    fn sources_may_change_while_a_gap_is_open() {
        let mut gap = GapEntry::new(1, 1, 0);
        for number in 0..3 * SOURCES_LIMIT {
            gap.answered(&number.to_string().into(), 1, None);
            gap.answered(&number.to_string().into(), 0, Some("away"));
        }
        assert_eq!(gap.answers.len(), SOURCES_LIMIT);
        let last = gap.answers.last().expect("the last one");
        assert_eq!((last.asked, last.found, last.failed), (2, 1, 1));
    }
}
