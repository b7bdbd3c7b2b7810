//! Faults that change, add or drop an effect.

use std::sync::Arc;

use ordain_core::{AttemptToken, Batch, Effect, Turn};

use super::{BoundaryFault, FaultySequencer, writes};

/// The bit that marks the token of a second turn, which the fault adds and the sequencer did not request.
const SECOND_TURN_BIT: u64 = 1 << 63;

impl FaultySequencer {
    pub(super) fn change_effect(&mut self, fault: BoundaryFault, effect: Effect) {
        use BoundaryFault as Fault;
        match (fault, effect) {
            (Fault::AckBeforeCommit | Fault::AckPastHeld | Fault::AckBeforeSpill, effect) => {
                self.effects.extend(self.early_acks.take_effect(fault, effect));
            }
            (Fault::TwoTurnsOfOneKey, Effect::Run(turn)) => {
                let token =
                    AttemptToken { serial: turn.token.serial | SECOND_TURN_BIT, ..turn.token };
                let second = Turn { token, ..turn.clone() };
                self.effects.extend([Effect::Run(turn), Effect::Run(second)]);
            }
            (Fault::NewNumberAfterUnknown, Effect::Commit(batch)) => {
                let shift = self.shifts.get(&batch.shard).copied().unwrap_or(0);
                let batch = Batch { number: batch.number + shift, ..(*batch).clone() };
                self.effects.push_back(Effect::Commit(Arc::new(batch)));
            }
            (Fault::SendWhatRestsOnOldReads, Effect::Commit(batch)) => {
                let batch = self.as_first_sent(batch);
                self.effects.push_back(Effect::Commit(batch));
            }
            (Fault::RepeatWithoutLetters, Effect::Commit(batch)) => {
                let batch = self.without_letters_if_repeated(batch);
                self.effects.push_back(Effect::Commit(batch));
            }
            (Fault::PublishRefused, Effect::Publish { batch, mut applied }) => {
                applied.refused.clear();
                self.effects.push_back(Effect::Publish { batch, applied });
            }
            (fault, Effect::Commit(batch)) => {
                self.effects.push_back(Effect::Commit(writes::change_batch(fault, &batch)));
            }
            (fault, Effect::Publish { batch, applied }) => {
                let batch = writes::change_batch(fault, &batch);
                self.effects.push_back(Effect::Publish { batch, applied });
            }
            (_, effect) => self.effects.push_back(effect),
        }
    }

    /// Returns the batch that the sequencer first requested under the number of `batch`, if this first batch has no
    /// answer yet. Otherwise returns `batch`.
    fn as_first_sent(&mut self, batch: Arc<Batch>) -> Arc<Batch> {
        let first = self.unanswered.entry(batch.shard).or_insert_with(|| Arc::clone(&batch));
        if first.number == batch.number { Arc::clone(first) } else { batch }
    }

    /// Removes the dead letters from a batch if the batch repeats a lost commit. A repeated batch has a lower number
    /// than the newest batch of its shard.
    fn without_letters_if_repeated(&mut self, batch: Arc<Batch>) -> Arc<Batch> {
        let newest = self.newest.entry(batch.shard).or_default();
        if batch.number >= *newest {
            *newest = batch.number;
            return batch;
        }
        let mut batch = Arc::unwrap_or_clone(batch);
        batch.letters.clear();
        for write in &mut batch.writes {
            write.letters.clear();
        }
        Arc::new(batch)
    }
}
