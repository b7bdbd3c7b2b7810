//! Faults that change or drop an input.

use ordain_core::{AppliedCommit, CommitReply, Input};

use super::{BoundaryFault, FaultySequencer};

impl FaultySequencer {
    /// Returns the input as the sequencer receives it, or `None` if the fault drops the input.
    pub(super) fn change_input(&mut self, fault: BoundaryFault, mut input: Input) -> Option<Input> {
        use BoundaryFault as Fault;
        match (fault, &mut input) {
            (Fault::ForgetLeftOvers, Input::OutboxBacklog { .. })
            | (Fault::RunWithoutVersion, Input::VersionChanged(None)) => return None,
            (Fault::KeepRefusedResults, Input::Committed { reply, .. }) => keep_refused(reply),
            (Fault::TakeUnknownForApplied, Input::Committed { reply, .. }) => take_unknown(reply),
            (Fault::NewNumberAfterUnknown, Input::Committed { shard, number, reply }) => {
                let shift = self.shifts.entry(*shard).or_default();
                *number = number.saturating_sub(*shift);
                *shift += u64::from(*reply == CommitReply::Unknown);
            }
            (Fault::SendWhatRestsOnOldReads, Input::Committed { shard, number, reply }) => {
                let is_answer = matches!(reply, CommitReply::Applied(_));
                self.unanswered.retain(|other, batch| {
                    !is_answer || (*other, batch.number) != (*shard, *number)
                });
            }
            (Fault::AckBeforeCommit | Fault::AckPastHeld | Fault::AckBeforeSpill, input) => {
                self.effects.extend(self.early_acks.take_input(fault, input));
            }
            _ => {}
        }
        Some(input)
    }
}

/// Changes a reply so that no write seems refused.
fn keep_refused(reply: &mut CommitReply) {
    if let CommitReply::Applied(applied) = reply {
        applied.refused.clear();
    }
}

/// Changes a missing answer into the answer that all writes are applied.
fn take_unknown(reply: &mut CommitReply) {
    if *reply == CommitReply::Unknown {
        *reply = CommitReply::Applied(AppliedCommit { time: 1, ..AppliedCommit::default() });
    }
}
