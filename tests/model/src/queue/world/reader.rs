//! The reader of the queue, and the owner whose commits settle the entries that the reader has read. The reader of an
//! inbox publishes the entries instead, and commits nothing.

use std::collections::BTreeSet;

use ordain_core::{QueueCursor, QueuePosition};

use super::super::QueueFault;
use super::super::outcome::QueueViolation;
use super::super::store::Entry;
use super::{QueueWorld, State};

impl QueueWorld {
    pub(super) fn report_runs(&mut self) {
        self.state.must_report = false;
        while let Some(run) = self.state.unreported.pop_front() {
            if !self.is(QueueFault::ExpectsNothing) {
                self.state.cursor.expect(run, 0);
            }
        }
    }

    /// Returns whether the number of removed entries and the position of the last entry show that the reader has
    /// something to read.
    pub(super) fn has_news(&self) -> bool {
        let State { store, cursor, .. } = &self.state;
        let history = store.entries.last().map_or(0, |entry| entry.history);
        let last = QueuePosition { number: store.last(), history };
        let after = cursor.after();
        last != after && (after.number > 0 || store.last() > store.removed)
    }

    pub(super) fn read(&mut self, limit: usize) {
        if self.state.must_report && !self.is(QueueFault::ReportsLate) {
            self.report_runs();
        }
        let after = self.state.cursor.after();
        if !self.state.store.has(after) && !self.is(QueueFault::ReadsByNumber) {
            return self.restart_reading();
        }
        let ignores_lost_removals = self.is(QueueFault::IgnoresLostRemovals);
        let State { store, cursor, open, in_delivery, ever_delivered, .. } = &mut self.state;
        if !ignores_lost_removals {
            cursor.record_first(store.removed + 1);
        }
        let from = after.number.max(store.removed) as usize;
        let end = from.saturating_add(limit).min(store.entries.len());
        if from >= end {
            cursor.record_end(store.removed + 1);
        }
        let mut is_delivered_twice = false;
        for (at, Entry { id, history }) in (1..).zip(&store.entries).take(end).skip(from) {
            let position = QueuePosition { number: at, history: *history };
            if !cursor.accept(position) {
                self.counts.recognized += 1;
                continue;
            }
            // The reader may deliver a finished entry again, as it does after a restart, because the sequencer
            // recognises the entry by its id.
            is_delivered_twice |= !in_delivery.insert(*id);
            ever_delivered.insert(*id);
            open.push_back((position, *id));
        }
        self.state.lost += self.state.cursor.take_loss().map_or(0, |loss| loss.entries);
        if is_delivered_twice {
            self.record_violation(QueueViolation::DeliveredTwice);
        }
    }

    fn restart_reading(&mut self) {
        self.counts.refused += 1;
        if self.is(QueueFault::ForgetsDeliveries) {
            self.state.cursor = QueueCursor::default();
        }
        self.state.cursor.restart();
    }

    pub(super) fn settle(&mut self) {
        let is_newest_first = self.state.is_inbox && self.is(QueueFault::PublishesNewestFirst);
        let open = &mut self.state.open;
        let next = if is_newest_first { open.pop_back() } else { open.pop_front() };
        let Some((position, id)) = next else { return };
        if self.state.is_inbox {
            self.publish(id);
        } else {
            self.recommit();
            self.state.commits += 1;
            self.state.store.commits += 1;
            self.state.store.effects.insert(id);
        }
        self.state.effects.insert(id);
        self.state.settled.push_back((position, id));
    }

    /// Records a broken rule if an earlier entry of the queue is not published yet.
    fn publish(&mut self, id: u64) {
        self.counts.published += 1;
        let State { store, effects, .. } = &self.state;
        let mut earlier = store.entries.iter().take_while(|entry| entry.id != id);
        let is_too_early = store.has_entry(id) && earlier.any(|entry| !effects.contains(&entry.id));
        if is_too_early {
            self.record_violation(QueueViolation::OutOfOrder);
        }
    }

    pub(super) fn recommit(&mut self) {
        let State { store, commits, effects, is_inbox, fault, .. } = &mut self.state;
        if !*is_inbox && *fault != Some(QueueFault::DropsLostCommits) {
            store.commits = *commits;
            store.effects.clone_from(effects);
        }
    }

    pub(super) fn finish(&mut self) {
        while let Some((position, id)) = self.state.settled.pop_front() {
            self.state.in_delivery.remove(&id);
            self.state.cursor.finish(position);
        }
        if self.is(QueueFault::RemovesBeforePublishing) && self.state.is_inbox {
            let State { open, cursor, .. } = &mut self.state;
            for (position, _) in open.iter() {
                cursor.finish(*position);
            }
        }
    }

    pub(super) fn remove(&mut self, is_answered: bool) {
        let Some(through) = self.state.cursor.removable() else { return };
        if !self.is(QueueFault::RemovesByNumber) && !self.state.store.has(through) {
            return self.restart_reading();
        }
        // The reader of an inbox commits nothing, so its removals depend on no commit.
        let has_commit = self.state.store.commits >= self.state.commits;
        if !self.is(QueueFault::RemovesWithoutCommit) && !has_commit {
            self.counts.refused += 1;
            return;
        }
        let State { store, cursor, unread, .. } = &mut self.state;
        let end = through.number.min(store.last());
        let removed_ids = store.entries.iter().take(end as usize).skip(store.removed as usize);
        let removed_ids: BTreeSet<u64> = removed_ids.map(|entry| entry.id).collect();
        unread.record_removal(&removed_ids);
        store.removed = store.removed.max(end);
        if is_answered {
            cursor.record_removal(through);
        }
        if !removed_ids.is_subset(self.durable_effects()) {
            self.record_violation(QueueViolation::RemovedTooEarly);
        }
    }

    /// Returns the entries whose effects are durable. The publication of an entry of an inbox is always durable,
    /// because a rollback of the store does not undo the publication.
    pub(super) fn durable_effects(&self) -> &BTreeSet<u64> {
        let State { store, effects, is_inbox, .. } = &self.state;
        if *is_inbox { effects } else { &store.effects }
    }
}
