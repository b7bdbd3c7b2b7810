//! Commits that the store has lost are made again from memory, where they still are.
//!
//! A store that went back in time under the claim of its owner has the last commits no more; all
//! that was read and written since is as it was before them. So the same batches apply once more,
//! in order and under their numbers: without the writes that were refused then, and with the times
//! that they got then, so that no message gets another id. What does not apply as it did ends
//! ownership: then the store is not what these batches were made for.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::RESEND;
use crate::effect::{Effect, Stop};
use crate::event::Message;
use crate::job::{Applied, Batch, CommitReply, JobWrite};
use crate::letter::DeadLetter;
use crate::sequencer::Sequencer;

/// The last commits of a shard, the newest last, up to a number of bytes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    commits: VecDeque<(Arc<Batch>, Applied)>,
    bytes: usize,
}

/// What is being made again.
#[derive(Debug)]
pub(super) struct Again {
    /// Not answered yet; the first is under way.
    batches: VecDeque<Arc<Batch>>,
    pub(super) resend_at: Option<u64>,
    tries: u32,
}

impl Kept {
    /// Keeps a commit; as many as are too much go.
    fn push(&mut self, batch: Arc<Batch>, applied: Applied, limit: usize) {
        self.bytes += memory(&batch);
        self.commits.push_back((batch, applied));
        while self.bytes > limit
            && let Some((batch, _)) = self.commits.pop_front()
        {
            self.bytes -= memory(&batch);
        }
    }

    /// The numbers that are kept.
    fn numbers(&self) -> Option<RangeInclusive<u64>> {
        let number = |commit: Option<&(Arc<Batch>, Applied)>| commit.map(|(batch, _)| batch.number);
        Some(number(self.commits.front())?..=number(self.commits.back())?)
    }

    /// All from a number on, to be made again.
    fn from(&self, first: u64) -> VecDeque<Arc<Batch>> {
        let lost = self.commits.iter().filter(|(batch, _)| batch.number >= first);
        lost.map(|(batch, applied)| Arc::new(as_applied(batch, applied))).collect()
    }
}

/// What a batch has done, as a batch.
fn as_applied(batch: &Batch, applied: &Applied) -> Batch {
    let refused = |at: &usize| applied.refused.binary_search_by_key(at, |it| it.0).is_ok();
    let writes = batch.writes.iter().enumerate().filter(|(at, _)| !refused(at));
    let mut writes: Vec<JobWrite> = writes.map(|(_, write)| write.clone()).collect();
    for write in &mut writes {
        write.job.fill_times(applied.time);
    }
    Batch { writes, letters: batch.letters.clone(), ..*batch }
}

/// What a batch costs in memory, in bytes.
fn memory(batch: &Batch) -> usize {
    let write = |write: &JobWrite| {
        let messages = write.messages.iter().map(|emitted| &emitted.message);
        size_of::<JobWrite>()
            + 4 * write.job.digests.iter().len()
            + write.state.memory()
            + messages.map(Message::memory).sum::<usize>()
            + write.letters.iter().map(DeadLetter::memory).sum::<usize>()
            + write.spill.iter().map(|(_, event)| event.memory()).sum::<usize>()
    };
    batch.writes.iter().map(write).sum::<usize>()
        + batch.letters.iter().map(DeadLetter::memory).sum::<usize>()
}

impl Sequencer {
    /// Keeps a commit in case that the store loses it.
    pub(super) fn keep(&mut self, batch: &Arc<Batch>, applied: &Applied) {
        let limit = self.settings.keep_bytes / self.shards.len();
        if limit > 0 {
            let kept = &mut self.shards[batch.shard as usize].kept;
            let before = kept.bytes;
            kept.push(Arc::clone(batch), applied.clone(), limit);
            self.memory = self.memory + kept.bytes - before;
        }
    }

    /// The store is not where this owner left it: its last commit is number `last`, or one of
    /// somebody else's.
    pub(super) fn rewound(&mut self, shard: u32, number: u64, found: &str, last: Option<u64>) {
        let state = &mut self.shards[shard as usize];
        let missing = last.and_then(|last| Some(last.checked_add(1)?..=number - 1));
        let (Some(missing), Some(kept)) = (missing, state.kept.numbers()) else {
            self.give_up(shard, number, found);
            return;
        };
        if missing.is_empty() || missing.start() < kept.start() || missing.end() != kept.end() {
            let found = format!(
                "{found}: commits {} to {} are lost, and memory has {} to {}",
                missing.start(),
                missing.end(),
                kept.start(),
                kept.end()
            );
            self.give_up(shard, number, &found);
            return;
        }
        let batches = state.kept.from(*missing.start());
        self.effects.extend(batches.front().cloned().map(Effect::Commit));
        state.again = Some(Again { batches, resend_at: None, tries: 0 });
    }

    fn give_up(&mut self, shard: u32, number: u64, found: &str) {
        let detail = format!("commit {number} was to follow {}, but {found}", number - 1);
        self.stop(Stop::Rewound { shard, detail });
    }

    /// An answer to a commit that is made again; whether it is one.
    pub(super) fn committed_again(&mut self, shard: u32, number: u64, reply: &CommitReply) -> bool {
        let Some(state) = self.shards.get_mut(shard as usize) else { return false };
        let Some(again) = &mut state.again else { return false };
        if again.resend_at.is_some() || again.batches.front().is_none_or(|it| it.number != number) {
            return false;
        }
        let (now, newest) = (self.now, state.number);
        match reply {
            CommitReply::Applied(applied) if applied.refused.is_empty() => {
                again.batches.pop_front();
                again.tries = 0;
                self.stats.rewound += 1;
                let next = if let Some(next) = again.batches.front() {
                    Some(Arc::clone(next))
                } else {
                    state.again = None;
                    state.in_flight.as_ref().map(|flight| Arc::clone(&flight.batch))
                };
                self.effects.extend(next.map(Effect::Commit));
            }
            CommitReply::Applied(_) => {
                let found =
                    format!("commit {number} could not be made again: its keys have changed since");
                self.give_up(shard, newest, &found);
            }
            CommitReply::Unknown => {
                again.resend_at = Some(now + self.jitter.delay(RESEND, again.tries));
                again.tries = again.tries.saturating_add(1);
            }
            CommitReply::Fenced => self.stop(Stop::Fenced),
            // It went back once more.
            CommitReply::Rewound { found, last } => {
                state.again = None;
                self.rewound(shard, newest, found, *last);
            }
        }
        true
    }

    /// Sends what is made again once more, if that got no answer.
    pub(super) fn resend_again(&mut self) {
        for shard in &mut self.shards {
            if let Some(again) = &mut shard.again
                && again.resend_at.is_some_and(|at| at <= self.now)
            {
                again.resend_at = None;
                self.effects.extend(again.batches.front().cloned().map(Effect::Commit));
            }
        }
    }
}
