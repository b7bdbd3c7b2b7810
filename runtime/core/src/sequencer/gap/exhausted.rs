//! Decides what happens to missing events after the last replay round.

use super::super::Sequencer;
use super::super::retry::gap_failure;
use super::{GapState, LaneGap};
use crate::gaps::{GapEnd, GapHistory};
use crate::settings::{ExhaustedPolicy, GapSettings};

/// The interval, in ms, between two checks whether the sequencer may now apply the policy `gap.on_exhausted`. The
/// sequencer applies this policy only while the source is available. When an unavailable source has become available,
/// the sequencer first waits for `gap.timeout`.
const SOURCE_CHECK_INTERVAL_MS: u64 = 1_000;

fn describe_missing(gaps: &GapHistory, first: u64, last: u64, rounds: u32) -> String {
    let events =
        if first == last { format!("event {first}") } else { format!("events {first} to {last}") };
    let rounds = if rounds == 1 { "1 round".into() } else { format!("{rounds} rounds") };
    let mut words = format!("{events} never arrived: requested in {rounds}");
    let gap = gaps.iter().rfind(|gap| (gap.first..=gap.last).contains(&first));
    for answers in gap.into_iter().flat_map(|gap| &gap.answers) {
        if let Some(error) = &answers.error {
            words += &format!(
                "; {} failed {} of {} times: {error}",
                answers.source, answers.failed, answers.requests
            );
        }
    }
    words
}

impl Sequencer {
    /// Searches the events with sequence `from` or a higher sequence. Returns the lowest sequence of an event that has
    /// arrived, but that is neither held nor in a durable dead letter yet. The lane has deferred such an event, or the
    /// dead letter of the event waits for its commit.
    pub(super) fn arriving_from(&self, index: u32, from: u64) -> Option<u64> {
        let lane = &self.lanes[index];
        let deferred = lane.deferred.iter().filter_map(|deferred| deferred.event.sequence());
        let letters = self.shards[lane.shard as usize].unstored_letters();
        let waiting =
            letters.filter(|letter| letter.id.key == lane.key && letter.cause.waits_for_earlier());
        let sequences = deferred.chain(waiting.map(|letter| letter.id.sequence));
        sequences.filter(|sequence| *sequence >= from).min()
    }

    /// Applies `gap.on_exhausted` if all rounds are over and all events before the gap have been executed. If the
    /// source is unavailable, or was unavailable within the last `gap.timeout`, schedules another check instead.
    pub(super) fn act_on_exhausted(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let Some(gap) = lane.cold.gap else { return };
        if gap.state != GapState::Exhausted || gap.at != lane.done || lane.turn.is_some() {
            return;
        }
        if self.now < self.gaps_held_until {
            let check_at =
                self.now.saturating_add(SOURCE_CHECK_INTERVAL_MS).min(self.gaps_held_until);
            lane.cold.get_or_init().gap = Some(LaneGap { state: GapState::Clock(check_at), ..gap });
            return;
        }
        let first = gap.at;
        let rounds = gap.round;
        let arriving = self.arriving_from(index, first);
        if arriving == Some(first) {
            // The event is not missing. The sequencer continues when the lane accepts the event, or when the dead
            // letter of the event is durable.
            return;
        }
        let lane = &mut self.lanes[index];
        let known = lane.next_known(first).into_iter().chain(arriving).min();
        let next = known.unwrap_or(first + 1);
        let may_skip = self.settings.gap.may_skip(first, next);
        // `gap.on_exhausted` applies only to the sequences that all rounds requested; later sequences get their own
        // rounds. If another owner ran the rounds, this owner knows only that the rounds requested the first sequence.
        let requested_end = if self.settings.gap.attempts > 0 {
            let requested_range = lane.cold.requested.iter().find(|range| range.contains(&first));
            requested_range.map_or(first, |range| *range.end())
        } else {
            u64::MAX
        };
        let last_missing = next - 1;
        let next = next.min(requested_end.saturating_add(1));
        let mut error = describe_missing(&lane.record.gaps, first, next - 1, rounds);
        let mut policy = self.settings.gap.on_exhausted;
        if policy == ExhaustedPolicy::Skip && !may_skip {
            policy = ExhaustedPolicy::Park;
            error = describe_missing(&lane.record.gaps, first, last_missing, rounds);
            error += &format!(
                "; the key does not skip these events, because the gap is more than {} times `gap.max_width` wide",
                GapSettings::SKIP_LIMIT
            );
        }
        match policy {
            ExhaustedPolicy::Wait => {
                lane.give_up_gap(GapEnd::Waiting, next - 1);
                lane.cold.get_or_init().gap = Some(LaneGap { state: GapState::Waiting, ..gap });
                // The write removes the key from the due index, because nothing of the key is due any more.
                lane.must_write = true;
            }
            ExhaustedPolicy::Park => {
                if lane.record.gaps.open().is_none() {
                    // The key has skipped the first part of the gap, and the skip ended the gap's entry in the gap
                    // history. The rest of the gap needs a new entry.
                    lane.record_gap(self.now);
                }
                lane.give_up_gap(GapEnd::Parked, next - 1);
                self.park(index, gap_failure(error));
            }
            ExhaustedPolicy::Skip => {
                // One dead letter stands for all skipped sequences, so the cost of a skip does not depend on the width
                // of the gap. If the results that wait for a commit already have the maximum number of dead letters of
                // a commit, the sequencer does not skip another gap of the key.
                let waiting: usize = lane.pending.iter().map(|chunk| chunk.letters.len()).sum();
                if waiting >= self.settings.batch_events {
                    return;
                }
                let last = next - 1;
                lane.record_skip(first, last);
                lane.cold.get_or_init().gap = Some(LaneGap { at: next, ..gap });
                self.skip_unseen(index, last, format!("{error}; skipped"));
                let lane = &mut self.lanes[index];
                lane.advance_front();
                if last == requested_end && lane.front == next {
                    lane.cold.get_or_init().forget_gap();
                }
                self.update_gap(index);
            }
        }
    }
}
