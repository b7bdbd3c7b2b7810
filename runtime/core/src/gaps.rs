//! The history of a key's gaps: the missing events, the replay sources that were queried, and how each gap ended.

use std::sync::Arc;

use crate::settings::SOURCES_LIMIT;

/// The latest gaps of a key, the newest last. The history contains only two kinds of gaps. The first kind are gaps
/// whose clock expired: their events were still missing after `gap.timeout`. The second kind are lost newest events of
/// the key that replay found (`gap.tail`). Each commit clones the records of its keys. The clones are cheap, because
/// they share one list until a clone changes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GapHistory(Option<Arc<Vec<GapEntry>>>);

/// A gap: one or more consecutive events of a key that were missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapEntry {
    /// The first missing sequence.
    pub first: u64,
    /// The last missing sequence.
    pub last: u64,
    /// The time of the first write that recorded the gap, by the clock of the store. The field is 0 until the store has
    /// applied that write.
    pub since: u64,
    /// The time, in ms, from the moment when the owner found the gap to the first write that recorded the gap.
    pub waited: u64,
    /// The time when the owner found the gap, by the clock of the owner. This time is used only until the first write
    /// that records the gap, and is not stored.
    pub known_since: u64,
    /// The number of replay rounds that have begun.
    pub rounds: u32,
    /// The answers of each replay source, in the order in which the sources first answered.
    pub answers: Vec<SourceAnswers>,
    /// The state of the gap, or how it ended.
    pub end: GapEnd,
    /// The time of the write that recorded the end, by the clock of the store. Before that write, the field is 0. While
    /// `end` is [`GapEnd::Open`], the field has no meaning.
    pub until: u64,
}

/// The answers of one replay source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceAnswers {
    /// The name of the source.
    pub source: Arc<str>,
    /// The number of requests to this source.
    pub requests: u32,
    /// The number of events of the gap that the source returned.
    pub found: u32,
    /// The number of requests that failed.
    pub failed: u32,
    /// The reason of the newest failure; `None` if no request failed.
    pub error: Option<Box<str>>,
}

/// The state of a gap, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapEnd {
    /// The event is missing, and the sequencer has not applied `gap.on_exhausted` yet.
    Open,
    /// No replay round found the event, and the key still waits for the event.
    Waiting,
    /// The source of the stream delivered the event.
    Arrived,
    /// A replay source returned the event.
    Replayed,
    /// No replay round found the event, and the key was parked (stopped at the event).
    Parked,
    /// No replay round found the event, and the key continued without the event.
    Skipped,
    /// The gap ended in another way: another owner settled the missing sequences, or the key ended.
    Passed,
}

impl GapEnd {
    /// All variants.
    pub const ALL: [Self; 7] = [
        Self::Open,
        Self::Waiting,
        Self::Arrived,
        Self::Replayed,
        Self::Parked,
        Self::Skipped,
        Self::Passed,
    ];

    /// Returns the name in listings.
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

    /// Parses a name that [`name`](Self::name) returned.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.name() == name)
    }

    /// Returns whether the gap is open: the arrival of the missing event may still end the gap.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Waiting | Self::Parked)
    }
}

impl GapEntry {
    /// The maximum length of [`SourceAnswers::error`], in bytes.
    pub const ERROR_LIMIT: usize = 120;

    /// Creates an open entry for a gap that the owner found `waited` ms ago.
    pub fn new(first: u64, last: u64, waited: u64) -> Self {
        let answers = Vec::new();
        let end = GapEnd::Open;
        Self { first, last, since: 0, waited, known_since: 0, rounds: 0, answers, end, until: 0 }
    }

    pub(crate) fn has_arrived(&self) -> bool {
        matches!(self.end, GapEnd::Arrived | GapEnd::Replayed)
    }

    /// `error` is the reason if the source failed.
    pub(crate) fn record_answer(&mut self, source: &Arc<str>, found: usize, error: Option<&str>) {
        let at =
            self.answers.iter().position(|known| known.source == *source).unwrap_or_else(|| {
                if self.answers.len() >= SOURCES_LIMIT {
                    // The list is full and lacks this source. At least one source in the list is therefore no longer
                    // configured. Make room by removing the oldest entry.
                    self.answers.remove(0);
                }
                let source = Arc::clone(source);
                self.answers.push(SourceAnswers {
                    source,
                    requests: 0,
                    found: 0,
                    failed: 0,
                    error: None,
                });
                self.answers.len() - 1
            });
        let answers = &mut self.answers[at];
        answers.requests = answers.requests.saturating_add(1);
        answers.found = answers.found.saturating_add(u32::try_from(found).unwrap_or(u32::MAX));
        if let Some(error) = error {
            answers.failed = answers.failed.saturating_add(1);
            let end = error.floor_char_boundary(Self::ERROR_LIMIT);
            answers.error = Some(error[..end].into());
        }
    }

    /// Returns the duration of the gap in ms. With [`GapEnd::Open`], the gap lasts until `now`; with every other value
    /// of `end`, until the write that recorded this value. A recorded time of 0 counts as `now`.
    pub fn lasted(&self, now: u64) -> u64 {
        let or_now = |time: u64| if time == 0 { now } else { time };
        let until = if self.end == GapEnd::Open { now } else { or_now(self.until) };
        until.saturating_sub(or_now(self.since)).saturating_add(self.waited)
    }

    /// Returns an upper bound of the memory cost of the entry, in bytes. For speed, counts the maximum length of each
    /// error instead of its real length: the sequencer calls this function for every event.
    fn memory(&self) -> usize {
        size_of::<Self>() + self.answers.len() * (size_of::<SourceAnswers>() + Self::ERROR_LIMIT)
    }
}

impl GapHistory {
    /// The maximum number of gaps remembered for a key. This number is large enough to show the behavior of the
    /// producer, and small enough for a record that each commit of the key writes.
    pub const GAPS_LIMIT: usize = 16;

    /// Returns all gaps, the newest last.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &GapEntry> + DoubleEndedIterator {
        self.0.as_deref().map_or(&[][..], Vec::as_slice).iter()
    }

    /// Returns the newest gap if this gap is open ([`GapEnd::is_open`]).
    pub(crate) fn open(&self) -> Option<&GapEntry> {
        self.0.as_deref()?.last().filter(|gap| gap.end.is_open())
    }

    /// Returns the newest gap for modification if this gap is open ([`GapEnd::is_open`]).
    pub(crate) fn open_mut(&mut self) -> Option<&mut GapEntry> {
        self.open()?;
        Arc::make_mut(self.0.as_mut()?).last_mut()
    }

    /// Removes the recorded gaps for the sequences from `from` on, so that the caller can record a new entry for these
    /// sequences. There are two cases:
    /// - If gaps begin at or after `from`, removes all of them. Returns the first of these gaps, extended to the last
    ///   recorded sequence.
    /// - If no gap begins at or after `from`, and the newest gap is open and ends at `from - 1` or later, removes and
    ///   returns this gap. In all other cases, returns `None`.
    ///
    /// If the newest remaining gap contains `from`, shortens that gap to end at `from - 1`.
    pub(crate) fn withdraw_from(&mut self, from: u64) -> Option<GapEntry> {
        self.iter().next_back().filter(|gap| gap.last.saturating_add(1) >= from)?;
        let entries = Arc::make_mut(self.0.as_mut()?);
        let end = entries.last().map_or(0, |gap| gap.last);
        let mut known = None;
        while let Some(entry) = entries.pop_if(|gap| gap.first >= from) {
            known = Some(GapEntry { last: end, ..entry });
        }
        if known.is_none() {
            known = entries.pop_if(|gap| gap.last + 1 >= from && gap.end.is_open());
        }
        if let Some(entry) = entries.last_mut().filter(|gap| gap.last >= from) {
            entry.last = from - 1;
        }
        known
    }

    /// Merges the two newest entries, if they are adjacent parts of one gap and the events of both parts have arrived.
    pub(crate) fn merge_newest(&mut self) {
        let Some(entries) = &mut self.0 else { return };
        let [.., before, last] = &entries[..] else { return };
        let is_one = before.last.checked_add(1) == Some(last.first) && before.since == last.since;
        if is_one && before.has_arrived() && last.has_arrived() {
            let first = before.first;
            let entries = Arc::make_mut(entries);
            entries.remove(entries.len() - 2);
            entries.last_mut().expect("one is left of two").first = first;
        }
    }

    /// Reopens recorded gaps whose sequences are not settled yet: if another owner loads the record, these gaps may end
    /// in another way. Changes the history only if a gap that reaches `next` or beyond has ended. Merges the gaps that
    /// begin at `next` or later into one open gap, and shortens earlier gaps to end before `next`.
    pub(crate) fn reopen_from(&mut self, next: u64) {
        let is_ahead = |gap: &GapEntry| gap.last >= next && !gap.end.is_open();
        if !self.iter().any(is_ahead) {
            return;
        }
        let Some(entries) = &mut self.0 else { return };
        let entries = Arc::make_mut(entries);
        for entry in entries.iter_mut().filter(|gap| gap.first < next) {
            entry.last = entry.last.min(next - 1);
        }
        if let Some(at) = entries.iter().position(|gap| gap.first >= next)
            && let Some(last) = entries.last().map(|gap| gap.last)
        {
            entries.truncate(at + 1);
            let entry = &mut entries[at];
            entry.last = last;
            entry.end = GapEnd::Open;
            entry.until = 0;
        }
    }

    /// Sets `waited` in the gaps that the next write records for the first time.
    pub(crate) fn set_waited(&mut self, now: u64) {
        if self.iter().any(|gap| gap.since == 0)
            && let Some(entries) = &mut self.0
        {
            for entry in Arc::make_mut(entries).iter_mut().filter(|gap| gap.since == 0) {
                entry.waited = now.saturating_sub(entry.known_since);
            }
        }
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut GapEntry> {
        Arc::make_mut(self.0.as_mut()?).last_mut()
    }

    pub(crate) fn push(&mut self, entry: GapEntry) {
        let entries = Arc::make_mut(self.0.get_or_insert_default());
        if entries.len() >= Self::GAPS_LIMIT {
            entries.remove(0);
        }
        entries.push(entry);
    }

    /// Returns whether a gap still lacks a time that the store fills in.
    pub fn lacks_times(&self) -> bool {
        self.iter().any(|gap| gap.since == 0 || (gap.end != GapEnd::Open && gap.until == 0))
    }

    /// A missing time is 0, and `now` is the time of the commit.
    pub(crate) fn fill_times(&mut self, now: u64) {
        if !self.lacks_times() {
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

    /// Sets the times that were still 0 in `written`, the gap history in the record that the commit wrote. A gap that
    /// ended after the commit was formed gets no end time yet, because a later commit records this end.
    pub(crate) fn fill_written_times(&mut self, written: &Self, now: u64) {
        if !self.lacks_times() {
            return;
        }
        let Some(entries) = &mut self.0 else { return };
        for entry in Arc::make_mut(entries) {
            let is_of = |gap: &&GapEntry| (gap.first..=gap.last).contains(&entry.first);
            let Some(written) = written.iter().find(is_of) else { continue };
            if entry.since == 0 && written.since == 0 {
                entry.since = now;
            }
            // Some events of the written gap may have arrived since, so that only the rest of the gap is still missing.
            // When a commit writes a waiting gap without an end time, the driver logs a warning. The driver has already
            // warned about the whole gap. The rest gets its end time here, so that no second warning follows.
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

    /// Returns the memory cost of the gaps, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.iter().map(GapEntry::memory).sum()
    }
}

impl FromIterator<GapEntry> for GapHistory {
    fn from_iter<I: IntoIterator<Item = GapEntry>>(entries: I) -> Self {
        let entries: Vec<GapEntry> = entries.into_iter().collect();
        Self((!entries.is_empty()).then(|| Arc::new(entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_sets_only_the_times_that_it_wrote() {
        let waiting =
            |first, last| GapEntry { end: GapEnd::Waiting, ..GapEntry::new(first, last, 0) };
        let times = |written: GapEntry, now: GapEntry| {
            let mut gaps: GapHistory = std::iter::once(now).collect();
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
    fn sources_may_change_during_a_gap() {
        let mut gap = GapEntry::new(1, 1, 0);
        for number in 0..3 * SOURCES_LIMIT {
            gap.record_answer(&number.to_string().into(), 1, None);
            gap.record_answer(&number.to_string().into(), 0, Some("away"));
        }
        assert_eq!(gap.answers.len(), SOURCES_LIMIT);
        let last = gap.answers.last().expect("the last one");
        assert_eq!((last.requests, last.found, last.failed), (2, 1, 1));
    }
}
