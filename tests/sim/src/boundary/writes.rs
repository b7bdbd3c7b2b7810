//! Faults that change the writes of a batch. A batch passes through the fault at its first commit, at each repeated
//! commit, and at its publication. Each time, the fault changes the batch in the same way.

use std::sync::Arc;

use ordain_core::{Batch, Cause, GapEnd, KeyWrite, LetterId};

use super::BoundaryFault;

pub(super) fn change_batch(fault: BoundaryFault, batch: &Batch) -> Arc<Batch> {
    let mut batch = batch.clone();
    if fault == BoundaryFault::IgnoreConflicts {
        batch.letters.retain(|letter| letter.cause != Cause::Conflict);
    }
    for write in &mut batch.writes {
        change_write(fault, write);
    }
    Arc::new(batch)
}

fn change_write(fault: BoundaryFault, write: &mut KeyWrite) {
    match fault {
        BoundaryFault::DropASpilledEvent => drop_a_spilled_event(write),
        BoundaryFault::LoseTheRetryCount => write.record.attempts = 0,
        BoundaryFault::ForgetTheVersion => write.record.rollout = None,
        BoundaryFault::ForgetTheId => write.ids.truncate(write.ids.len().saturating_sub(1)),
        BoundaryFault::SwapMessages => write.messages.reverse(),
        BoundaryFault::LoseAMessage => lose_a_message(write),
        BoundaryFault::ForgetTheDueTime => write.due_in = None,
        BoundaryFault::LoseALetter => {
            write.letters.retain(|letter| letter.cause != Cause::Rejected);
        }
        BoundaryFault::LoseAGapLetter => lose_a_gap_letter(write),
        BoundaryFault::ShortenAGapLetter => shorten_gap_letters(write),
        BoundaryFault::LoseAGapEnd => lose_a_gap_end(write),
        BoundaryFault::TakeLateForDuplicate => take_late_for_duplicate(write),
        _ => {}
    }
}

fn drop_a_spilled_event(write: &mut KeyWrite) {
    if !write.spill.is_empty() {
        write.spill.remove(0);
    }
}

fn lose_a_message(write: &mut KeyWrite) {
    if write.messages.len() > 1 {
        write.messages.pop();
    }
}

/// Removes the last dead letter with the cause `gap`.
fn lose_a_gap_letter(write: &mut KeyWrite) {
    if let Some(at) = write.letters.iter().rposition(|letter| letter.cause == Cause::Gap) {
        write.letters.remove(at);
    }
}

/// Removes the last sequence from each dead letter of several skipped sequences.
fn shorten_gap_letters(write: &mut KeyWrite) {
    for letter in &mut write.letters {
        if let Some(last) = letter.last_sequence() {
            letter.id = LetterId::of_skipped(&write.key, letter.id.sequence, last - 1);
        }
    }
}

fn lose_a_gap_end(write: &mut KeyWrite) {
    let gaps = write.record.gaps.iter();
    write.record.gaps = gaps.filter(|gap| gap.end != GapEnd::Skipped).cloned().collect();
}

/// Removes the dead letter of an event that arrived late, and keeps the empty dead letter of the skipped sequence.
fn take_late_for_duplicate(write: &mut KeyWrite) {
    write.letters.retain(|letter| letter.cause != Cause::Late);
    write.removed_letters.retain(|id| id.tag != 0);
}
