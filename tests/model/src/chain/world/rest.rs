//! The end of a run: the owner finishes all work, and the model checks the result.

use std::collections::BTreeSet;

use super::{CHECK_AFTER, ChainWorld, OTHERS, State};
use crate::chain::destination::{Entry, Message};
use crate::chain::outcome::ChainBroken;

impl ChainWorld {
    /// Sends all messages, removes them from the outbox, and checks the result.
    pub fn come_to_rest(&mut self) {
        for _ in 0..3 {
            self.repeat_commits();
            self.put_others_again();
            self.state.now += CHECK_AFTER;
            self.check_destination();
            for calls in 0.. {
                let State { owner, broken, .. } = &self.state;
                if owner.history.next_chunks(&owner.waiting).next().is_none() || broken.is_some() {
                    break;
                }
                self.give(usize::MAX);
                if calls > 100 {
                    return self.breaks(ChainBroken::Stuck);
                }
            }
            self.state.owner.mark(&mut self.state.source, self.state.fault);
        }
        self.check();
    }

    fn check(&mut self) {
        let State { source, destination, owner, .. } = &self.state;
        let State {
            only_there,
            marked_again,
            came_back,
            orphans,
            unclaimed,
            mistaken,
            source_rewinds,
            ..
        } = &self.state;
        let count = |message: &Message| {
            destination.entries.iter().filter(|entry| entry.message == *message).count()
        };
        let committed: Vec<Message> = source.commits.iter().flatten().copied().collect();
        let forgotten: BTreeSet<Message> = owner.forgotten().collect();
        let may_lack = |message: &Message| {
            only_there.contains(message)
                || forgotten.contains(message)
                || mistaken.contains(message)
        };
        let is_twice = |message: &Message| count(message) > 1 && !marked_again.contains(message);
        let is_one_of_two = |at: usize| {
            let entry = destination.entries[at];
            let is_same = |other: &Entry| {
                other.number == entry.number && other.message.key == entry.message.key
            };
            destination.entries[..at].iter().any(is_same)
        };
        let is_foreign = |entry: &Entry| {
            let Entry { message, .. } = entry;
            message.event < OTHERS && !committed.contains(message) && !orphans.contains(message)
        };
        let mut numbers: Vec<(u8, u64)> = Vec::new();
        let is_ordered = |message: &&Message| {
            [marked_again, came_back, unclaimed].iter().all(|late| !late.contains(message))
        };
        for message in committed.iter().filter(is_ordered) {
            let entry = destination.entries.iter().find(|entry| entry.message == *message);
            numbers.extend(entry.map(|entry| (message.key, entry.number)));
        }
        // A stable sort keeps the order of the outbox within a key.
        numbers.sort_by_key(|numbered| numbered.0);
        let lacking = committed.iter().filter(|message| count(message) == 0).count();
        let broken = if committed.iter().any(|message| count(message) == 0 && !may_lack(message)) {
            Some(ChainBroken::Missing)
        } else if committed.iter().any(is_twice) {
            Some(ChainBroken::Twice)
        } else if (0..destination.entries.len()).any(is_one_of_two) {
            Some(ChainBroken::OneNumberTwice)
        } else if destination.entries.iter().any(is_foreign) {
            Some(ChainBroken::WithoutCommit)
        } else if !numbers.is_sorted() {
            Some(ChainBroken::OutOfOrder)
        } else if !owner.waiting.is_empty() {
            Some(ChainBroken::Stuck)
        } else if *source_rewinds < 2 && source.outbox.iter().any(|commit| *commit <= owner.done) {
            Some(ChainBroken::DoneComesBack)
        } else {
            None
        };
        self.seen.lost += lacking as u64;
        if let Some(broken) = broken {
            self.breaks(broken);
        }
    }
}
