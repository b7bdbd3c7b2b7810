//! The shard with the outbox, and the owner whose commits fill it.

use std::collections::{BTreeMap, BTreeSet};

use ordain_core::{OutboxPosition, PublishHistory};

use super::ChainFault;
use super::destination::{Call, ChainPart, Message};

/// The shard that has the outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Source {
    /// The epoch of its claim.
    pub(super) epoch: u8,
    /// The messages of each commit; the first has number 1.
    pub(super) commits: Vec<Vec<Message>>,
    /// Commits whose messages are still in the outbox.
    pub(super) outbox: BTreeSet<u64>,
}

impl Source {
    /// Returns the number of the last commit.
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
    /// The last commit that the owner's claim found.
    found: u64,
    /// All commits that the owner knows, including those before its claim.
    pub(super) commits: Vec<Vec<Message>>,
    pub(super) history: PublishHistory<ChainPart>,
    /// Parts that were not given yet, in order.
    pub(super) waiting: Vec<ChainPart>,
    /// The outbox is marked through this commit: the messages of all commits up to it are removed.
    marked: u64,
    /// Marks that may not be durable: the commit through which they mark, and the last commit at the time of the mark.
    marks: Vec<(u64, u64)>,
    /// The messages of all commits up to this one are marked, and the mark is durable.
    pub(super) done: u64,
    /// Messages for which this owner got an answer, with their numbers.
    pub(super) answered: BTreeMap<OutboxPosition, (Message, u64)>,
    /// Messages to give again.
    pub(super) again: BTreeSet<Message>,
}

/// Returns the messages of a commit, each as a separate part.
fn parts(number: u64, messages: &[Message]) -> impl Iterator<Item = ChainPart> {
    (0..).zip(messages).map(move |(part, message)| ChainPart {
        place: OutboxPosition { commit: number, chunk: part },
        message: *message,
        requested: 0,
    })
}

impl Owner {
    /// Claims the shard, and begins with the messages of the outbox.
    pub(super) fn claim(epoch: u8, source: &mut Source) -> Self {
        source.epoch = epoch;
        let left =
            source.outbox.iter().map(|number| (*number, &source.commits[*number as usize - 1]));
        let waiting = left.flat_map(|(number, messages)| parts(number, messages)).collect();
        Self {
            epoch,
            found: source.last(),
            commits: source.commits.clone(),
            history: PublishHistory::default(),
            waiting,
            marked: 0,
            marks: Vec::new(),
            done: 0,
            answered: BTreeMap::new(),
            again: BTreeSet::new(),
        }
    }

    /// Returns the number of the owner's last commit.
    pub(super) fn last(&self) -> u64 {
        self.commits.len() as u64
    }

    /// Returns whether the shard has all commits of this owner.
    pub(super) fn has_commits(&self, source: &Source) -> bool {
        source.epoch == self.epoch && source.commits == self.commits
    }

    /// Commits messages.
    pub(super) fn commit(&mut self, messages: Vec<Message>, source: &mut Source) {
        source.push(messages.clone());
        self.commits.push(messages);
        let number = self.last();
        self.waiting.extend(parts(number, &self.commits[number as usize - 1]));
        while let Some((through, _)) =
            self.marks.first().copied().filter(|(_, last)| *last < number)
        {
            self.done = self.done.max(through);
            self.marks.remove(0);
        }
    }

    /// Repeats the commits that the shard has lost. Returns false if the claim is lost, too.
    pub(super) fn recommit(&mut self, source: &mut Source, fault: Option<ChainFault>) -> bool {
        if source.epoch != self.epoch {
            return false;
        }
        for number in source.last()..self.last() {
            source.push(self.commits[number as usize].clone());
            if fault != Some(ChainFault::RepeatedCommitsAreNotMarked) {
                // The messages of the repeated commits are in the outbox again.
                self.marked = 0;
            }
        }
        true
    }

    /// Marks the outbox through the last commit before the first message that waits to be given.
    pub(super) fn mark(&mut self, source: &mut Source, fault: Option<ChainFault>) {
        let first = self.waiting.first().map_or(self.last() + 1, |part| part.place.commit);
        if first - 1 > self.marked && source.epoch == self.epoch {
            let through = first - 1;
            self.marked = through;
            source.outbox.retain(|number| *number > through);
            self.marks.push((through, source.last()));
            if fault == Some(ChainFault::DoneBeforeDurable) {
                self.done = through;
            }
        }
    }

    /// Returns the next call, with at most `limit` parts.
    pub(super) fn call(&self, limit: usize, fault: Option<ChainFault>) -> Call {
        let mut parts: Vec<_> =
            self.history.next_chunks(&self.waiting).take(limit).copied().collect();
        for part in &mut parts {
            match fault {
                Some(ChainFault::LostPartsGetNewNumbers) => part.requested = 0,
                Some(ChainFault::LaterNumbersGoBack) => {
                    part.requested =
                        self.answered.get(&part.place).map_or(0, |answered| answered.1);
                }
                _ => {}
            }
        }
        let (before, mut done) = self.history.next_call(self.done);
        let before = before.filter(|_| fault != Some(ChainFault::NoPlaceIsNamed));
        if fault == Some(ChainFault::LostPartsAreDone) {
            done = self.done;
        }
        Call { epoch: self.epoch, found: self.found, before, done, parts }
    }

    /// Returns the messages that memory has forgotten, which are the oldest answered ones. A part counts as one byte,
    /// so the bytes of the history are the number of parts that it still has.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = Message> {
        let there = self.history.bytes() + self.again.len();
        self.answered
            .values()
            .take(self.answered.len().saturating_sub(there))
            .map(|answered| answered.0)
    }

    /// Forgets the newest part instead of the oldest.
    pub(super) fn forget_newest(&mut self, now: u64) {
        let mut kept: Vec<(ChainPart, u64)> = Vec::new();
        for (place, (message, number)) in &self.answered {
            kept.push((ChainPart { place: *place, message: *message, requested: 0 }, *number));
        }
        kept.pop();
        let (parts, numbers): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
        self.history = PublishHistory::default();
        self.history.record_answer(&parts, &numbers, true, now);
    }

    /// Drops the messages to give again.
    pub(super) fn drop_lost(&mut self) {
        let lost: Vec<_> = self.history.next_chunks(&[]).copied().collect();
        let numbers: Vec<u64> = lost.iter().map(|part| part.requested).collect();
        self.history.record_answer(&lost, &numbers, true, 0);
    }

    /// Returns the messages of the commits up to `done`.
    pub(super) fn done_messages(&self) -> impl Iterator<Item = &Message> {
        self.commits.iter().take(self.done as usize).flatten()
    }
}
