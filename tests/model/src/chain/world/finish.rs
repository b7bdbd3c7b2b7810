//! Finishes all work at the end of a run, and checks the result.

use std::collections::BTreeSet;

use super::{BEYOND_CHECK_INTERVAL_MS, ChainWorld, FIRST_OTHER_EVENT, State};
use crate::chain::destination::{Entry, Message};
use crate::chain::outcome::ChainViolation;

impl ChainWorld {
    /// Sends all messages, removes them from the outbox, and checks the result.
    pub fn finish_and_check(&mut self) {
        for _ in 0..3 {
            self.repeat_commits();
            self.resend_others();
            self.state.now += BEYOND_CHECK_INTERVAL_MS;
            self.check_destination();
            for calls in 0.. {
                let State { owner, broken, .. } = &self.state;
                if owner.history.next_chunks(&owner.waiting).next().is_none() || broken.is_some() {
                    break;
                }
                self.send_next(usize::MAX);
                if calls > 100 {
                    return self.record_violation(ChainViolation::Stuck);
                }
            }
            self.state.owner.remove_sent(&mut self.state.source, self.state.fault);
        }
        self.check();
    }

    fn check(&mut self) {
        let State { source, destination, owner, .. } = &self.state;
        let State {
            removed_before_claim,
            done_but_in_outbox,
            back_in_outbox,
            orphans,
            from_owner_without_claim,
            mistaken,
            source_rollbacks,
            ..
        } = &self.state;
        let count = |message: &Message| {
            destination.entries.iter().filter(|entry| entry.message == *message).count()
        };
        let committed: Vec<Message> = source.commits.iter().flatten().copied().collect();
        let forgotten: BTreeSet<Message> = owner.forgotten().collect();
        let may_lack = |message: &Message| {
            removed_before_claim.contains(message)
                || forgotten.contains(message)
                || mistaken.contains(message)
        };
        let is_twice =
            |message: &Message| count(message) > 1 && !done_but_in_outbox.contains(message);
        let reuses_number = |at: usize| {
            let entry = destination.entries[at];
            let is_same = |other: &Entry| {
                other.number == entry.number && other.message.key == entry.message.key
            };
            destination.entries[..at].iter().any(is_same)
        };
        let is_foreign = |entry: &Entry| {
            let Entry { message, .. } = entry;
            message.event < FIRST_OTHER_EVENT
                && !committed.contains(message)
                && !orphans.contains(message)
        };
        let mut numbers: Vec<(u8, u64)> = Vec::new();
        let is_ordered = |message: &&Message| {
            [done_but_in_outbox, back_in_outbox, from_owner_without_claim]
                .iter()
                .all(|late| !late.contains(message))
        };
        for message in committed.iter().filter(is_ordered) {
            let entry = destination.entries.iter().find(|entry| entry.message == *message);
            numbers.extend(entry.map(|entry| (message.key, entry.number)));
        }
        // The sort is stable, so it keeps the order of the outbox within a key.
        numbers.sort_by_key(|numbered| numbered.0);
        let lacking = committed.iter().filter(|message| count(message) == 0).count();
        let broken = if committed.iter().any(|message| count(message) == 0 && !may_lack(message)) {
            Some(ChainViolation::Missing)
        } else if committed.iter().any(is_twice) {
            Some(ChainViolation::Duplicated)
        } else if (0..destination.entries.len()).any(reuses_number) {
            Some(ChainViolation::NumberReused)
        } else if destination.entries.iter().any(is_foreign) {
            Some(ChainViolation::SentWithoutCommit)
        } else if !numbers.is_sorted() {
            Some(ChainViolation::OutOfOrder)
        } else if !owner.waiting.is_empty() {
            Some(ChainViolation::Stuck)
        } else if *source_rollbacks < 2 && source.outbox.iter().any(|commit| *commit <= owner.done)
        {
            Some(ChainViolation::DoneButInOutbox)
        } else {
            None
        };
        self.counts.lost += lacking as u64;
        if let Some(broken) = broken {
            self.record_violation(broken);
        }
    }
}
