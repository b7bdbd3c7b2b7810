//! Commits that the store has lost are made again from memory, where they still are.
//!
//! A store that went back in time under the claim of its owner has the last commits no more. The
//! same batches apply to it once more, in order and under their numbers: without the writes that
//! were refused then, and with the times that they got then, so that no message gets another id.
//! What does not apply as it did ends ownership: then the store is not what these batches were made
//! for.
//!
//! It is noticed at a commit, or by asking for the newest one after the connection to the store
//! broke. What was read before may be older than what is made again, and
//! nothing shows it: an event that is spilled again moves no `next`. So whatever may rest on that
//! is undone: the batch in flight is made void, and after it the lanes of the shard are loaded
//! again. Void are its writes, by a condition that never holds, and its letters go into the next
//! batch. It is not another batch under the same number: an earlier sending of it may still arrive,
//! and then the answer tells what applied.
//!
//! One case remains. If an earlier sending, one that came after the store went back, arrives
//! between the last commit made again and the void one, it is applied as it was, and what it has
//! done counts: its letters are in the store's outbox, and no later batch would bring them there.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::InFlight;
use crate::effect::{Effect, Stop};
use crate::event::Message;
use crate::job::{Applied, Batch, Change, Expect, Job, JobWrite};
use crate::letter::{DeadLetter, LetterContent};
use crate::sequencer::Sequencer;
use crate::sequencer::letters::FreeLetter;

/// The last commits of a shard, the newest last, without a hole.
#[derive(Debug, Default)]
pub(super) struct Kept {
    commits: VecDeque<Commit>,
    bytes: usize,
}

#[derive(Debug)]
struct Commit {
    batch: Arc<Batch>,
    applied: Applied,
    bytes: usize,
}

impl Commit {
    /// What it has done, as a batch.
    fn as_applied(&self) -> Batch {
        let Self { batch, applied, .. } = self;
        let refused = |at: &usize| applied.refused.binary_search_by_key(at, |it| it.0).is_ok();
        let writes = batch.writes.iter().enumerate().filter(|(at, _)| !refused(at));
        let mut writes: Vec<JobWrite> = writes.map(|(_, write)| write.clone()).collect();
        for write in &mut writes {
            write.job.fill_times(applied.time);
        }
        Batch { writes, letters: batch.letters.clone(), ..**batch }
    }
}

/// A batch of which no write applies, without letters. It has one write more, of a key that no
/// event has: that it was refused tells that this batch was applied, not an earlier sending.
fn void(batch: &Batch) -> Batch {
    let mut writes = batch.writes.clone();
    writes.push(JobWrite {
        key: "".into(),
        expect: Expect::Absent,
        job: Job::new(0, 0),
        state: Change::Keep,
        messages: Vec::new(),
        letters: Vec::new(),
        consumed: Vec::new(),
        spill: Vec::new(),
        ids: SmallVec::new(),
        due_in: None,
        expire_in: None,
    });
    for write in &mut writes {
        // Nobody gets there: it would be after the last sequence there is.
        write.expect = Expect::Next(u64::MAX);
    }
    Batch { writes, letters: Vec::new(), ..*batch }
}

impl InFlight {
    /// Where it was the void batch that was applied, its letters go into the next one.
    pub(super) fn return_letters(&mut self, applied: &Applied, letters: &mut VecDeque<FreeLetter>) {
        if applied.refused.last().is_none_or(|it| it.0 != self.batch.writes.len()) {
            return;
        }
        let own = self.batch.letters.iter().cloned().zip(self.letters.drain(..));
        for (letter, delivery) in own.rev() {
            self.bytes -= letter.memory();
            letters.push_front(FreeLetter { letter, delivery });
        }
        let writes = self.batch.writes.clone();
        self.batch = Arc::new(Batch { writes, letters: Vec::new(), ..*self.batch });
    }
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
    size_of::<Commit>()
        + size_of::<Batch>()
        + batch.writes.iter().map(write).sum::<usize>()
        + batch.letters.iter().map(DeadLetter::memory).sum::<usize>()
}

impl Sequencer {
    /// Keeps a commit in case that the store loses it, and as many as fit of those before it. Where
    /// all are too much, the shard with the most gives up its oldest: one of which older ones are
    /// lost is worth nothing. None is given up by a shard of which some are being made again.
    pub(super) fn keep(&mut self, batch: &Arc<Batch>, applied: &Applied) {
        if self.settings.keep_bytes == 0 {
            return;
        }
        let bytes = memory(batch);
        let kept = &mut self.shards[batch.shard as usize].kept;
        kept.bytes += bytes;
        kept.commits.push_back(Commit {
            batch: Arc::clone(batch),
            applied: applied.clone(),
            bytes,
        });
        self.memory += bytes;
        self.kept += bytes;
        while self.kept > self.settings.keep_bytes
            && let shards = self.shards.iter_mut().filter(|it| !it.makes_again())
            && let Some(most) = shards.max_by_key(|it| it.kept.bytes)
            && let Some(commit) = most.kept.commits.pop_front()
        {
            most.kept.bytes -= commit.bytes;
            self.memory -= commit.bytes;
            self.kept -= commit.bytes;
        }
    }

    /// The store was out of reach, or another server is its master now.
    pub(in super::super) fn store_may_have_gone_back(&mut self) {
        for shard in &mut self.shards {
            shard.in_doubt = true;
        }
    }

    /// Asks a shard in doubt where it stands, unless what is under way will tell: with a commit that
    /// does nothing. A shard without commits still has a claim to lose.
    pub(super) fn ask_if_in_doubt(&mut self, shard: usize) {
        let state = &mut self.shards[shard];
        if !std::mem::take(&mut state.in_doubt) {
            return;
        }
        state.asked = true;
        if state.sending.is_empty() {
            let batch = self.new_batch(shard);
            self.send(batch, Vec::new(), Vec::new(), 0);
        }
    }

    /// The store is not where this owner left it: its last commit is number `last`, or one of
    /// somebody else's.
    pub(super) fn rewound(&mut self, shard: u32, found: &str, last: Option<u64>) {
        let state = &mut self.shards[shard as usize];
        let newest = state.number - u64::from(state.in_flight.is_some());
        let first = last.map_or(u64::MAX, |last| last.saturating_add(1));
        let oldest = state.kept.commits.front().map_or(newest + 1, |it| it.batch.number);
        if first > newest {
            return self.give_up(shard, found);
        }
        if first < oldest {
            let found = format!(
                "{found}: commits {first} to {newest} are lost, and memory has those from {oldest} on"
            );
            return self.give_up(shard, &found);
        }
        let missing = state.kept.commits.iter().filter(|it| it.batch.number >= first);
        state.sending = missing.map(|commit| Arc::new(commit.as_applied())).collect();
        if let Some(flight) = &state.in_flight {
            state.sending.push_back(Arc::new(void(&flight.batch)));
        }
        (state.tries, state.gone_back) = (0, true);
        self.effects.extend(state.sending.front().cloned().map(Effect::Commit));
    }

    fn give_up(&mut self, shard: u32, found: &str) {
        let state = &self.shards[shard as usize];
        let newest = state.number - u64::from(state.in_flight.is_some());
        let detail = format!("its last commit was number {newest}, but {found}");
        self.stop(Stop::Rewound { shard, detail });
    }

    /// A kept commit is in the store, or still there.
    pub(super) fn made_again(&mut self, batch: Arc<Batch>, applied: Applied) {
        let state = &mut self.shards[batch.shard as usize];
        let number = batch.number;
        let commit = state.kept.commits.iter_mut().rfind(|it| it.batch.number == number);
        let Some(commit) = commit.filter(|it| it.applied != applied) else { return };
        if !applied.refused.is_empty() {
            let found =
                format!("commit {number} could not be made again: its keys have changed since");
            return self.give_up(batch.shard, &found);
        }
        (commit.batch, commit.applied) = (batch, applied);
        self.stats.rewound += 1;
    }

    /// What was read from a shard before all of it was there again does not count.
    pub(super) fn read_again(&mut self, shard: u32) {
        if fault!(self, TrustOldReads) {
            return;
        }
        for index in self.lanes.indices() {
            let lane = &self.lanes[index];
            let ours = lane.shard == shard;
            if ours && lane.durable() {
                self.leave(index);
            } else if ours {
                self.load_again(index);
            }
        }
        let letters = std::mem::take(&mut self.shards[shard as usize].letters);
        for FreeLetter { letter, delivery } in letters {
            // Its lane decides about the event once more. What was no delivery is read again by
            // itself. Where there is no room the letter stays, whose reason may be none any more.
            if let LetterContent::Event(event) = &letter.content
                && self.refuse(event).is_none()
                && (delivery == 0 || self.bring_in(&letter.id.key))
            {
                self.memory -= letter.memory();
                if let Some(index) = self.lanes.find(&letter.id.key).filter(|_| delivery != 0) {
                    self.window.belongs(delivery, index);
                    self.wait(index, delivery, Arc::clone(event));
                    self.lanes[index].arrivals.sort_by_key(|it| it.delivery);
                }
            } else {
                self.shards[shard as usize].letters.push_back(FreeLetter { letter, delivery });
            }
        }
        self.due.soon(self.now);
    }
}
