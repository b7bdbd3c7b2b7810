//! Handles failed tries, and parked keys: keys that stopped at an event.

use std::sync::Arc;

use super::Sequencer;
use super::letters::{early_letter_ids, settling_letter};
use crate::key_record::{FailureInfo, KeyStatus};
use crate::letter::Cause;
use crate::limit::{ExceededLimit, LimitValues};
use crate::settings::ExhaustedPolicy;
use crate::turn::FailedAttempt;
use crate::version::Rollout;

impl Sequencer {
    pub(super) fn handle_failure(
        &mut self,
        index: u32,
        failure: FailedAttempt,
        version: &Arc<Rollout>,
    ) {
        self.stats.failures += 1;
        self.stats.failures_by_kind[failure.kind as usize] += 1;
        let never_enough = fault!(self, RetryForEver);
        let settings = &self.settings.retry;
        let lane = &mut self.lanes[index];
        if failure.kind.may_pass() {
            lane.record.attempts = lane.record.attempts.saturating_add(1);
            if lane.record.attempts >= settings.attempts && !never_enough {
                self.handle_exhausted(index, failure, version);
                return;
            }
            let delay = match failure.after_ms {
                Some(requested_delay) => requested_delay.min(settings.backoff.max),
                None => self.jitter.delay(settings.backoff, lane.record.attempts - 1),
            };
            let cold = lane.cold.get_or_init();
            cold.trapped = None;
            cold.retry_at = Some(self.now.saturating_add(delay));
            lane.record.failure =
                Some(Box::new(handler_failure(failure, version, &self.settings.retry.limits)));
            lane.must_write = true;
        } else if lane.has_trapped() && !never_enough {
            self.handle_exhausted(index, failure, version);
        } else {
            // The retry follows immediately, on a fresh instance of the handler, because an earlier event may have
            // damaged the instance that failed.
            lane.cold.get_or_init().trapped = lane.next_event();
        }
    }

    fn handle_exhausted(&mut self, index: u32, failure: FailedAttempt, version: &Arc<Rollout>) {
        let active = self.settings.rollout.as_ref();
        if self.settings.retry.on_new_version
            && active.is_none_or(|active| active.build.version != version.build.version)
        {
            // During the turn, another version became active, or no version is available in this process any more. The
            // next active version tries the event again.
            self.clear_failure(index);
            return;
        }
        match self.settings.retry.on_exhausted {
            ExhaustedPolicy::Skip => self.skip_failed(index, failure, version),
            ExhaustedPolicy::Park | ExhaustedPolicy::Wait => {
                self.park(index, handler_failure(failure, version, &self.settings.retry.limits));
            }
        }
    }

    fn skip_failed(&mut self, index: u32, failure: FailedAttempt, version: &Arc<Rollout>) {
        let lane = &mut self.lanes[index];
        let held = lane.held.head().expect("the event was just executed");
        let ends = held.event.end();
        let event = Arc::clone(&held.event);
        let sequence = held.sequence;
        let cause = failure.kind.cause();
        let label = Some(Arc::clone(&version.build.version));
        let letter = settling_letter(&lane.key, sequence, &event, cause, failure.message, label);
        let consumed = early_letter_ids(&lane.key, held, lane.record.ahead.as_deref());
        let bytes = letter.memory();
        let chunk = lane.chunk(Some(Arc::clone(version)), &self.settings);
        chunk.next = sequence + 1;
        chunk.events += 1;
        chunk.letters.push(letter);
        chunk.removed_letters.extend(consumed);
        chunk.bytes += bytes;
        self.memory += bytes;
        self.ahead += 1;
        lane.done += 1;
        lane.held.mark_executed(1);
        lane.ended = ends && !fault!(self, ForgetTheEnd);
        self.clear_failure(index);
    }

    /// Stops the key at the event at `done`. The lane then spills the held events.
    pub(super) fn park(&mut self, index: u32, failure: FailureInfo) {
        let lane = &mut self.lanes[index];
        lane.record.status = KeyStatus::Parked;
        lane.record.park_count = lane.record.park_count.wrapping_add(1);
        lane.record.failure = Some(Box::new(failure));
        if let Some(cold) = lane.cold.get_mut() {
            cold.trapped = None;
            cold.retry_at = None;
            cold.forget_gap();
        }
        lane.spill_all = true;
        lane.must_write = true;
    }

    pub(super) fn resume(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        lane.record.status = KeyStatus::Active;
        lane.must_write = true;
        if let Some(cold) = lane.cold.get_mut() {
            // A load may be scheduled, because the key had reached `spill_limit`. The load is no longer necessary.
            cold.reload_at = None;
        }
        self.clear_failure(index);
    }

    pub(super) fn clear_failure(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        if let Some(cold) = lane.cold.get_mut() {
            cold.trapped = None;
            cold.retry_at = None;
        }
        lane.record.attempts = 0;
        lane.record.rounds = 0;
        lane.record.failure = None;
    }

    /// Retries the lane's next event (the event at `done`), because the delay after its last try is over.
    pub(super) fn retry_now(&mut self, index: u32) {
        let tail = self.tail_from_now();
        let lane = &mut self.lanes[index];
        lane.cold.get_or_init().retry_at = None;
        if lane.held.to_run() == 0 && lane.cold.stored_only.count == 0 {
            // The event is neither in memory nor in the store, so the event must arrive again. Usually the source
            // delivers the event again. But if the event was the lost newest event of the key, only replay found it,
            // and the next request for `gap.tail` finds it again. The key's entry in the due index therefore gets the
            // time of this request, unless dead letters of later events make the key due earlier.
            lane.cold.get_or_init().tail_at = tail;
            lane.must_write = true;
        }
    }

    pub(super) fn version_changed(&mut self, version: Option<Arc<Rollout>>) {
        self.settings.rollout = version;
        for index in self.lanes.indices() {
            let missing = self.lanes[index].compare_versions(&self.settings);
            self.newest_rollout = self.newest_rollout.max(missing);
            self.retry_outdated(index);
            self.reschedule(index);
        }
        // The sequencer did not read the due index while no version was available, so it reads the index now.
        self.due.schedule(self.now);
    }

    /// Resumes a parked key if the reason no longer applies under the active handler version: see
    /// [`RetrySettings::is_outdated`](crate::RetrySettings::is_outdated).
    pub(super) fn retry_outdated(&mut self, index: u32) {
        let lane = &self.lanes[index];
        if !lane.live() || !lane.parked() {
            return;
        }
        if let Some(active) = &self.settings.rollout
            && let Some(failure) = &lane.record.failure
            && self.settings.retry.is_outdated(failure, &active.build.version)
        {
            self.resume(index);
        }
    }
}

fn handler_failure(
    FailedAttempt { kind, limit, message, .. }: FailedAttempt,
    version: &Arc<Rollout>,
    limits: &LimitValues,
) -> FailureInfo {
    let error = match limit {
        Some(limit) => ExceededLimit { limit, value: Some(limits.get(limit)) }.tag(&message),
        None => message,
    };
    FailureInfo {
        cause: kind.cause(),
        error,
        since: 0,
        version: Some(Arc::clone(&version.build.version)),
    }
}

pub(super) fn gap_failure(error: String) -> FailureInfo {
    FailureInfo { cause: Cause::Gap, error, since: 0, version: None }
}
