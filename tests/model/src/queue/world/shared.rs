//! Calls that write to the queue and to another shard.

use ordain_core::QueueRun;

use super::super::QueueFault;
use super::super::outcome::QueueViolation;
use super::super::store::Writer;
use super::{QueueWorld, State};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SharedCall {
    /// The entry that the call put into the queue. `None` if the call has not put the entry yet, or has found that the
    /// store lost the entry.
    run: Option<QueueRun>,
    /// The ids of all entries that the call put into the queue. In the model, each write of the event creates an entry
    /// with a new id. In the product, the event keeps its id, so the sequencer recognises a repeat.
    pub(super) ids: Vec<u64>,
    /// True if the call wrote its part to the other shard, and has not found that the store lost this part.
    has_other: bool,
    /// States whether a shard went back since the call began, or since the call last checked its parts.
    rollback: CallRollback,
}

/// States whether a shard went back during a call, and whether the process has noticed the rollback.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum CallRollback {
    #[default]
    None,
    /// A shard went back. Since then, the process has sent nothing to the shard, and the connection has not broken.
    Unnoticed,
    Noticed,
}

impl SharedCall {
    pub(super) fn record_rollback(&mut self) {
        if self.rollback == CallRollback::None {
            self.rollback = CallRollback::Unnoticed;
        }
    }

    fn complete_run(&self) -> Option<QueueRun> {
        self.run.filter(|_| self.has_other)
    }
}

impl QueueWorld {
    /// Returns the call over two shards that is in progress. If no such call is in progress, begins a new call.
    fn shared_call(&mut self) -> &mut SharedCall {
        let State { shared, shared_calls, .. } = &mut self.state;
        shared.get_or_insert_with(|| {
            *shared_calls += 1;
            SharedCall::default()
        })
    }

    pub(super) fn put_part(&mut self) {
        if self.shared_call().run.is_some() {
            return;
        }
        // The process reports the entry to its reader only when the call succeeds.
        let (run, ids) = self.write(1, Writer::Own);
        let call = self.shared_call();
        call.run = Some(run);
        call.ids.extend(ids);
        let is_rewritten = call.ids.len() > 1;
        self.counts.rewritten += u64::from(is_rewritten);
    }

    pub(super) fn put_other_part(&mut self) {
        if std::mem::replace(&mut self.shared_call().has_other, true) {
            return;
        }
        let State { store, shared_calls, .. } = &mut self.state;
        store.other_parts.insert(*shared_calls);
    }

    /// Notices that a shard went back during the call over two shards. Does nothing before both parts are written,
    /// because the call looks for lost parts only after both parts are written.
    pub(super) fn notice_rollback(&mut self) {
        if let Some(call) = &mut self.state.shared
            && call.complete_run().is_some()
            && call.rollback == CallRollback::Unnoticed
        {
            call.rollback = CallRollback::Noticed;
        }
    }

    /// Completes the call over two shards if both parts are written. First, the process sends a read to both shards,
    /// and so notices each rollback. If a shard went back since the last check, the process checks the parts instead,
    /// and does not complete the call.
    pub(super) fn answer(&mut self) {
        if !self.is(QueueFault::AnswersWithoutLastRead) {
            self.notice_rollback();
        }
        let Some(call) = &self.state.shared else { return };
        let Some(run) = call.complete_run() else { return };
        if call.rollback == CallRollback::Noticed && !self.is(QueueFault::AnswersWithoutCheck) {
            return self.check_parts();
        }
        let Some(call) = self.state.shared.take() else { return };
        let number = self.state.shared_calls;
        let State { store, ever_delivered, own, unreported, .. } = &mut self.state;
        let is_known = |id: &u64| ever_delivered.contains(id) || store.has_entry(*id);
        let is_lost = !call.ids.iter().any(is_known) || !store.other_parts.contains(&number);
        own.extend(call.ids.last());
        unreported.push_back(run);
        if is_lost {
            self.record_violation(QueueViolation::AnsweredCallLost);
        }
    }

    /// Finds the parts of the call that the store has lost. The check for the entry reads the record of the writer. The
    /// store loses the number of the call in the record together with the entry, but keeps the number when a reader
    /// removes the entry. The check reads from both shards, so it also covers a rollback that the process has not
    /// noticed.
    fn check_parts(&mut self) {
        let compares_positions = self.is(QueueFault::ComparesPositions);
        let number = self.state.shared_calls;
        let State { store, shared, .. } = &mut self.state;
        let Some(call) = shared else { return };
        call.rollback = CallRollback::None;
        let record = store.record(Writer::Own);
        call.run = call.run.filter(|run| {
            if compares_positions { store.has(run.end()) } else { record.contains(&run.call) }
        });
        call.has_other &= store.other_parts.contains(&number);
    }
}
