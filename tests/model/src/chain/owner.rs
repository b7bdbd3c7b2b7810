//! The shard with the outbox, and the owner whose commits fill the outbox.

use std::collections::{BTreeMap, BTreeSet};

use ordain_core::{OutboxPosition, PublishHistory};

use super::ChainFault;
use super::destination::{Call, ChainChunk, Message};

/// The shard with the outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Source {
    /// The epoch of the newest claim that the shard has.
    pub(super) epoch: u8,
    /// The first commit has number 1.
    pub(super) commits: Vec<Vec<Message>>,
    /// The messages of these commits are still in the outbox.
    pub(super) outbox: BTreeSet<u64>,
}

impl Source {
    pub(super) fn last(&self) -> u64 {
        self.commits.len() as u64
    }

    fn push(&mut self, messages: Vec<Message>) {
        self.commits.push(messages);
        self.outbox.insert(self.last());
    }
}

/// The owner of the partition, in the process that runs now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) epoch: u8,
    /// The number of the last commit in the shard at the time of the owner's claim.
    commit_at_claim: u64,
    /// All commits that the owner knows, including the commits before its claim.
    pub(super) commits: Vec<Vec<Message>>,
    pub(super) history: PublishHistory<ChainChunk>,
    /// Messages for which the owner has never received an answer, in the order of the outbox.
    pub(super) waiting: Vec<ChainChunk>,
    /// The messages of all commits up to this number are removed from the outbox. When the owner repeats commits, this
    /// number becomes 0.
    removed_through: u64,
    /// Removals that are not known to be durable. A removal up to commit 3, made when commit 5 was the last commit, is
    /// `(3, 5)`.
    pending_removals: Vec<(u64, u64)>,
    /// The messages up to this commit are durably removed from the outbox.
    pub(super) done: u64,
    /// Messages for which this owner has received an answer, with their numbers.
    pub(super) answered: BTreeMap<OutboxPosition, (Message, u64)>,
    /// Messages that the owner must send again, because the destination has lost them.
    pub(super) to_resend: BTreeSet<Message>,
}

fn chunks(number: u64, messages: &[Message]) -> impl Iterator<Item = ChainChunk> {
    (0..).zip(messages).map(move |(index, message)| ChainChunk {
        position: OutboxPosition { commit: number, chunk: index },
        message: *message,
        requested: 0,
    })
}

impl Owner {
    /// The new owner will send all messages that are in the outbox.
    pub(super) fn claim(epoch: u8, source: &mut Source) -> Self {
        source.epoch = epoch;
        let left =
            source.outbox.iter().map(|number| (*number, &source.commits[*number as usize - 1]));
        let waiting = left.flat_map(|(number, messages)| chunks(number, messages)).collect();
        Self {
            epoch,
            commit_at_claim: source.last(),
            commits: source.commits.clone(),
            history: PublishHistory::default(),
            waiting,
            removed_through: 0,
            pending_removals: Vec::new(),
            done: 0,
            answered: BTreeMap::new(),
            to_resend: BTreeSet::new(),
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.commits.len() as u64
    }

    pub(super) fn has_commits(&self, source: &Source) -> bool {
        source.epoch == self.epoch && source.commits == self.commits
    }

    /// Appends the messages to the messages to send. The commit makes all earlier removals from the outbox durable.
    pub(super) fn commit(&mut self, messages: Vec<Message>, source: &mut Source) {
        source.push(messages.clone());
        self.commits.push(messages);
        let number = self.last();
        self.waiting.extend(chunks(number, &self.commits[number as usize - 1]));
        while let Some((through, _)) =
            self.pending_removals.first().copied().filter(|(_, last)| *last < number)
        {
            self.done = self.done.max(through);
            self.pending_removals.remove(0);
        }
    }

    /// If the shard has also lost the owner's claim, repeats nothing and returns false.
    pub(super) fn recommit(&mut self, source: &mut Source, fault: Option<ChainFault>) -> bool {
        if source.epoch != self.epoch {
            return false;
        }
        for number in source.last()..self.last() {
            source.push(self.commits[number as usize].clone());
            if fault != Some(ChainFault::RepeatedMessagesAreNotRemoved) {
                // The messages of the repeated commits are in the outbox again, so the owner must remove them again.
                self.removed_through = 0;
            }
        }
        true
    }

    /// Removes from the outbox the messages of all commits before the first commit with a waiting message. Does nothing
    /// if the store has lost the owner's claim.
    pub(super) fn remove_sent(&mut self, source: &mut Source, fault: Option<ChainFault>) {
        let first = self.waiting.first().map_or(self.last() + 1, |chunk| chunk.position.commit);
        if first - 1 > self.removed_through && source.epoch == self.epoch {
            let through = first - 1;
            self.removed_through = through;
            source.outbox.retain(|number| *number > through);
            self.pending_removals.push((through, source.last()));
            if fault == Some(ChainFault::DoneBeforeDurable) {
                self.done = through;
            }
        }
    }

    /// Returns the next call, with at most `limit` messages.
    pub(super) fn call(&self, limit: usize, fault: Option<ChainFault>) -> Call {
        let mut chunks: Vec<_> =
            self.history.next_chunks(&self.waiting).take(limit).copied().collect();
        for chunk in &mut chunks {
            match fault {
                Some(ChainFault::LostMessagesGetNewNumbers) => chunk.requested = 0,
                Some(ChainFault::LaterNumbersGoBack) => {
                    chunk.requested =
                        self.answered.get(&chunk.position).map_or(0, |answered| answered.1);
                }
                _ => {}
            }
        }
        let (before, mut done) = self.history.next_call(self.done);
        let before = before.filter(|_| fault != Some(ChainFault::NoPositionIsNamed));
        if fault == Some(ChainFault::LostMessagesAreDone) {
            done = self.done;
        }
        Call { epoch: self.epoch, commit_at_claim: self.commit_at_claim, before, done, chunks }
    }

    /// Returns the answered messages that the history has forgotten: the oldest answered messages. Each message counts
    /// as one byte, so `history.bytes()` is the number of confirmed messages in the history. This number does not
    /// include the messages to send again.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = Message> {
        let remembered = self.history.bytes() + self.to_resend.len();
        self.answered
            .values()
            .take(self.answered.len().saturating_sub(remembered))
            .map(|answered| answered.0)
    }

    /// Keeps all other answered messages.
    pub(super) fn forget_newest(&mut self, now: u64) {
        let mut kept: Vec<(ChainChunk, u64)> = Vec::new();
        for (position, (message, number)) in &self.answered {
            kept.push((
                ChainChunk { position: *position, message: *message, requested: 0 },
                *number,
            ));
        }
        kept.pop();
        let (chunks, numbers): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
        self.history = PublishHistory::default();
        self.history.record_answer(&chunks, &numbers, true, now);
    }

    pub(super) fn drop_lost(&mut self) {
        let lost: Vec<_> = self.history.next_chunks(&[]).copied().collect();
        let numbers: Vec<u64> = lost.iter().map(|chunk| chunk.requested).collect();
        self.history.record_answer(&lost, &numbers, true, 0);
    }

    /// Returns the messages of the commits up to `done`.
    pub(super) fn done_messages(&self) -> impl Iterator<Item = &Message> {
        self.commits.iter().take(self.done as usize).flatten()
    }
}
